"""What root's daemon has taken out of service is given out by nobody: no ``dockless run``, no other daemon."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from support.boxes import until
from support.described import KIND, describe
from support.requires import requires
from support.scheduling import DaemonProcess, as_user

import dockless
from dockless.cli import main
from dockless.errors import NotEnoughGpus
from dockless.sandbox.gpus import gpu, lease
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State

pytestmark = [requires("userns"), requires("root")]

FOREVER = ["sleep", "1000"]
WHY = "drained by root: fan"


@pytest.fixture
def two(own_host) -> str:
    return own_host("2x80G")


@pytest.fixture
def uuids(two) -> list[str]:
    return [unit.uuid for unit in gpu.inventory()]


@pytest.fixture
def daemon(two, home) -> Iterator[DaemonProcess]:
    """It hears of failures of GPUs by ``home / "gpus-now"``."""
    process = DaemonProcess(home, gpus=two)
    state = home / "gpus-now"
    state.touch()
    process.environment["DOCKLESS_SIMULATED_STATE"] = str(state)
    process.start()
    yield process
    process.end()
    assert lease.standing() == ({}, {})


def refused(wanted: str, why: str) -> None:
    with pytest.raises(NotEnoughGpus) as caught:
        dockless.run("host", ["true"], gpus=wanted)
    assert why in f"{caught.value} {caught.value.hint}"


def taken(*uuids: str) -> str:
    """What a user of no rights is told who wants these very GPUs."""
    outcome = as_user(12345, "/", lambda _: [one.close() for one in lease.take(uuids)])
    return "" if outcome[0] == "ok" else str(outcome[2])


def test_one_that_is_drained(daemon, uuids, capfd):
    with daemon.client() as queue:
        queue.drain(["0"], reason="fan")
        refused("device=0", f"GPU 0 is out of service: {WHY}")
        refused("2", f"2 GPUs asked for, 1 of 2 free (simulated) GPU 0 is out of service: {WHY}")
        assert taken(uuids[0]) == f"GPU {uuids[0]} is out of service: {WHY}" and taken(uuids[1]) == ""
        with pytest.raises(NotEnoughGpus, match=f"is out of service: {WHY}"):
            lease.take_share(lease.Share(uuids[0], 1024, "all", "1"), 81920)
        assert dockless.run("host", ["true"], gpus=1).returncode == 0, "the other"
        info = queue.info()
        assert [(one.user, one.outside, one.trouble) for one in info.gpus] == [("", False, WHY), ("", False, "")]
        assert not [row for row in info.quotas if row[2]]
        job = queue.submit(JobSpec(Spec(argv=("true",)), gpus="device=0"))
        assert queue.why(job).reason.endswith(f"GPU 0 is out of service: {WHY}") and "leased" not in queue.why(job).reason
        capfd.readouterr()
        for command in (["info"], ["gpu", "list"], ["top", "--once"]):
            assert main(command) == 0
            shown = capfd.readouterr().out
            assert WHY in shown and " root " not in shown.replace(WHY, ""), command
        queue.undrain(["0"])
        assert queue.wait(job, timeout=30).state is State.COMPLETED
        assert dockless.run("host", ["true"], gpus=2).returncode == 0
        assert queue.info().gpus[0].trouble == "" and lease.standing() == ({}, {})


def test_one_that_has_failed(daemon, home, uuids):
    (home / "gpus-now").write_text("xid 1 79\n")
    until(lambda: uuids[1] in lease.out_of_service(uuids), "the daemon has heard it")
    refused("device=1", "GPU 1 is out of service: Xid 79")
    assert dockless.run("host", ["true"], gpus=1).returncode == 0
    daemon.stop()
    assert dockless.run("host", ["true"], gpus="device=1").returncode == 0
    daemon.start()


def test_a_daemon_that_is_killed_and_comes_back(daemon, uuids):
    """Nobody holds them while it is gone."""
    with daemon.client() as queue:
        queue.drain(["0"], reason="fan")
    daemon.kill9()
    assert lease.standing() == ({}, {})
    box = dockless.start("host", FOREVER, gpus="device=0")
    try:
        daemon.start()
        with daemon.client() as queue:
            assert [(one.user, one.trouble) for one in queue.info().gpus] == [("root", WHY), ("", "")], "its sandbox has it"
        assert box.poll() is None and lease.standing() == ({uuids[0]: 0}, {})
    finally:
        box.rm(force=True)
    until(lambda: lease.standing(uuids) == ({}, {uuids[0]: WHY}), "the daemon has it")


def test_a_job_that_has_one_goes_on_and_nobody_has_it_after_that(daemon, uuids):
    with daemon.client() as queue:
        job = queue.submit(JobSpec(Spec(argv=tuple(FOREVER)), gpus="device=0"))
        until(lambda: queue.job(job).state is State.RUNNING, "it runs")
        queue.drain(["0", "1"], reason="fan")
        assert lease.standing() == ({uuids[0]: 0}, {uuids[1]: WHY}) and taken(uuids[0]) == f"GPU {uuids[0]} is leased"
        assert queue.job(job).state is State.RUNNING and queue.info().gpus[0].job == job
        queue.cancel(job, grace=0)
        assert queue.wait(job, timeout=30).state is State.CANCELLED
        assert lease.standing() == ({}, dict.fromkeys(uuids, WHY))
        refused("device=0", WHY)
        queue.drain(["0"], reason="disk")
        assert lease.out_of_service(uuids) == {uuids[0]: "drained by root: disk", uuids[1]: WHY}


@pytest.mark.parametrize("wanted", ["device=0", "2"])
def test_nobody_comes_between_a_job_and_the_daemon(wanted, daemon, uuids):
    """Who tries without a pause, as a user, gets it at no moment."""
    with daemon.client() as queue:
        job = queue.submit(JobSpec(Spec(argv=tuple(FOREVER)), gpus=wanted))
        until(lambda: queue.job(job).state is State.RUNNING, "it runs")
        queue.drain(["0", "1"], reason="fan")
        child = os.fork()
        if child == 0:
            try:
                os.setresgid(12345, 12345, 12345)
                os.setresuid(12345, 12345, 12345)
                while not lease.keep_out(uuids[0]):
                    pass
            finally:
                os._exit(0)
        try:
            queue.cancel(job, grace=0)
            assert queue.wait(job, timeout=30).state is State.CANCELLED
            assert lease.out_of_service(uuids) == dict.fromkeys(uuids, WHY)
        finally:
            os.kill(child, signal.SIGKILL)
            assert os.waitpid(child, 0)[1] == signal.SIGKILL, "it had it"
        again = queue.submit(JobSpec(Spec(argv=("true",)), gpus=wanted))
        queue.undrain(["0", "1"])
        assert queue.wait(again, timeout=30).state is State.COMPLETED


def test_one_that_is_in_service_again_before_its_job_ends(daemon, uuids):
    with daemon.client() as queue:
        job = queue.submit(JobSpec(Spec(argv=tuple(FOREVER)), gpus="2"))
        until(lambda: queue.job(job).state is State.RUNNING, "it runs")
        for _ in range(2):
            queue.drain(["0", "1"], reason="fan")
            queue.undrain(["0", "1"])
        assert lease.standing() == (dict.fromkeys(uuids, 0), {}), "the job has them still"
        queue.cancel(job, grace=0)
        assert queue.wait(job, timeout=30).state is State.CANCELLED
        assert lease.standing() == ({}, {})


def test_the_whole_host(daemon, uuids):
    with daemon.client() as queue:
        queue.drain(everything=True, reason="power")
        assert lease.out_of_service(uuids) == dict.fromkeys(uuids, "drained by root: power")
        refused("1", "drained by root: power")
        queue.undrain(everything=True)
        assert dockless.run("host", ["true"], gpus=2).returncode == 0


def test_another_daemon_has_it_out_of_service_too(daemon, two, tmp_path_factory):
    other = DaemonProcess(tmp_path_factory.mktemp("o"), gpus=two).start()
    try:
        with daemon.client() as queue, other.client() as others:
            queue.drain(["0"], reason="fan")
            job = others.submit(JobSpec(Spec(argv=("true",)), gpus="2"))
            until(lambda: f"GPU 0 is out of service: {WHY}" in others.job(job).reason, "it says why")
            assert "leased" not in others.job(job).reason and [one.user for one in others.info().gpus] == ["", ""]
            queue.undrain(["0"])
            assert others.wait(job, timeout=30).state is State.COMPLETED
    finally:
        other.end()


def test_only_root_is_believed(two, uuids):
    """A user's word does not hide that she has one."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresgid(12345, 12345, 12345)
            os.setresuid(12345, 12345, 12345)
            kept = [*lease.keep_out(uuids[0]), *lease.say_why(uuids[0], "a fan"), *lease.say_why(uuids[1], "a fan")]
            os.write(writer, b"%d" % len(kept))
            time.sleep(1000)
        finally:
            os._exit(1)
    try:
        os.close(writer)
        assert os.read(reader, 2) == b"3"
        having, out = lease.standing(uuids)
        assert having[uuids[0]] == 12345 and out == {}
        assert dockless.run("host", ["true"], gpus="device=1").returncode == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)


def test_a_long_reason_is_cut(two, uuids):
    held = [*lease.keep_out(uuids[0]), *lease.say_why(uuids[0], "drained by root: " + "ü" * 200)]
    try:
        (why,) = lease.out_of_service(uuids).values()
        assert why.startswith("drained by root: ü") and why.endswith("ü…")
    finally:
        for one in held:
            one.close()


def test_devices_of_another_kind(two, home, tmp_path):
    settings = describe(tmp_path / "cdi")
    daemon = DaemonProcess(home, gpus=two, settings=settings).start()
    try:
        with daemon.client() as queue:
            queue.drain([f"{KIND}=0"], reason="fan")
            with pytest.raises(NotEnoughGpus) as caught:
                dockless.run("host", ["true"], devices=[f"{KIND}=0"])
            assert f"{KIND}=0 is out of service: {WHY}" in str(caught.value.hint)
            assert lease.standing()[0] == {}
            queue.undrain([f"{KIND}=0"])
            assert dockless.run("host", ["true"], devices=[f"{KIND}=0"]).returncode == 0
    finally:
        daemon.end()


def test_a_reason_counts_only_beside_the_name_that_root_has_bound():
    """Of a GPU that a user has it says nothing: she has it still, and it counts in her quota."""
    said = (b"GPU-a/out/fan", 0)
    assert lease._reasons([said]) == lease._reasons([said, (b"GPU-a", 1000)]) == {}
    assert lease._reasons([(b"GPU-a/out/fan", 1000), (b"GPU-a", 0)]) == {}
    assert lease._reasons([said, (b"GPU-a", 0)]) == {b"GPU-a": "fan"}
