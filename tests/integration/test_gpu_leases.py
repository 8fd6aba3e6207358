"""Who has which GPU: one table for the host, whoever starts, and nothing of it left when its keeper is gone."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.boxes import until
from support.requires import requires
from support.scheduling import DaemonProcess
from support.screens import Screen

import dockless
from dockless import Sandbox
from dockless.base import idmaps
from dockless.cli import main
from dockless.errors import NotEnoughGpus
from dockless.sandbox.gpus import gpu, lease
from dockless.sandbox.run import box as run_box
from dockless.sandbox.run import restarting, seen
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State
from dockless.sched.engine.gpus import asking, hostgpus

pytestmark = requires("userns")

FOREVER = ["sleep", "1000"]
ANNA = pwd.getpwnam("daemon").pw_uid


@pytest.fixture
def four(own_host) -> str:
    return own_host("4x80G")


@pytest.fixture
def uuids(four) -> list[str]:
    return [unit.uuid for unit in gpu.inventory()]


def test_it_is_leased_for_as_long_as_its_keeper_lives(uuids):
    box = dockless.start("host", FOREVER, gpus=2)
    try:
        assert lease.holders() == dict.fromkeys(box.gpus, os.geteuid())
        with pytest.raises(NotEnoughGpus, match="3 GPUs asked for, 2 of 4 free"):
            dockless.run("host", ["true"], gpus=3)
        os.kill(box.inspect()["pid"], signal.SIGKILL)
        until(lambda: not lease.holders(), "nobody has them")
    finally:
        box.rm(force=True)


def test_of_a_program_that_is_killed_nothing_stays_leased(uuids):
    """Neither what it had chosen and not started, nor the GPUs of its sandboxes."""
    code = (
        "import dockless, dockless._gpus as g, os; one = g.lease(1)\n"
        "with dockless.Sandbox('host', ['sleep', '1000'], gpus=1): print('up', flush=True); os.read(0, 1)"
    )
    child = subprocess.Popen([sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"up\n"
    assert len(lease.holders()) == 2
    child.kill()
    child.communicate()
    until(lambda: not lease.holders(), "nobody has them")


def test_who_embeds_it_and_forks_has_no_part_in_it(uuids):
    """A child of the program that began a sandbox does not keep its GPUs when that has ended."""
    with Sandbox("host", FOREVER, gpus=4) as box:
        child = os.fork()
        if child == 0:
            time.sleep(1000)
        try:
            box.kill()
            until(lambda: not lease.holders(), "nobody has them")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_program_inside_has_nothing_of_it(uuids):
    """It could hold the GPUs beyond the end of its sandbox."""
    shown = "ls -l /proc/self/fd | grep -c socket; grep -c dockless-gpu /proc/net/unix"
    ran = dockless.run("host", ["sh", "-c", shown], gpus=1, capture_output=True, text=True)
    assert ran.stdout == "0\n0\n"


def test_these_very_ones(uuids):
    with pytest.raises(NotEnoughGpus, match=f"GPU {uuids[1]} is leased"):
        held = lease.take([uuids[1]])
        try:
            lease.take(uuids)
        finally:
            assert lease.holders().keys() == {uuids[1]}, "all or none"
            held[0].close()
    assert lease.holders() == {}


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_socket_of_another_kind_is_no_lease(kind, uuids):
    """The kernel has names of their own for each kind: it would be shown as the holder and hold nothing."""
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(f"\0dockless-gpu/{gpu.simulated_host()}{uuids[0]}")
        assert lease.holders() == {}
        with dockless.Sandbox("host", FOREVER, gpus=4) as box:
            assert set(lease.holders()) == set(box.gpus)


def test_a_name_of_any_bytes_keeps_nobody_from_a_gpu(uuids, daemon, capfd):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as odd, daemon.client() as queue:
        odd.bind(f"\0dockless-gpu/{gpu.simulated_host()}".encode() + b"\xff\n")
        assert lease.holders(uuids) == {} and list(lease.holders()) == ["\\xff\n"]
        assert dockless.run("host", ["true"], gpus=3).returncode == 0
        assert queue.wait(queue.submit(JobSpec(Spec(argv=("true",)), gpus="3"))).state is State.COMPLETED
        assert queue.info().gpus and main(["metrics"]) == 0


def test_each_is_given_out_once_to_many_at_a_time(uuids):
    def one(_: int) -> str:
        while True:
            try:
                with lease.lease(gpu.parse_request("1")) as held:
                    (mine,) = held.uuids
                    assert mine not in using
                    using.add(mine)
                    time.sleep(0.0001)
                    using.remove(mine)
                    return mine
            except NotEnoughGpus:
                pass

    using: set[str] = set()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(one, range(400))) == {*uuids}


def test_a_kernel_that_does_not_tell_whose_they_are(uuids, monkeypatch):
    """One without unix_diag: they are leased all the same."""

    def no_handler(*arguments):
        raise FileNotFoundError(2, "No such file or directory")

    with lease.lease(gpu.parse_request("3")) as held, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(lease._name(uuids[3]))  # another kind
        before = lease.holders()
        monkeypatch.setattr(lease, "_answers", no_handler)
        assert lease.holders() == dict.fromkeys(held.uuids, lease.NOBODY) and lease.holders().keys() == before.keys()
        assert lease.holders([held.uuids[0], uuids[3]]) == {held.uuids[0]: lease.NOBODY}
        with pytest.raises(NotEnoughGpus):
            lease.lease(gpu.parse_request("2"))
    assert lease.holders() == {}


@requires("root")
def test_another_users(uuids):
    """She sees who has it and cannot take it; who has hers is seen by all; hers are free when her program is gone."""
    box = dockless.start("host", FOREVER, gpus=f"device={uuids[0]}")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(12345, 12345, 12345)
            os.setresuid(12345, 12345, 12345)
            try:
                lease.take([uuids[0]])
            except NotEnoughGpus:
                hers = lease.take([uuids[1]])
                os.write(writer, f"{sorted(lease.holders().items())} {len(hers)}".encode())
                time.sleep(1000)
        finally:
            os._exit(1)
    try:
        os.close(writer)
        assert os.read(reader, 1000).decode() == f"{[(uuids[0], 0), (uuids[1], 12345)]} 1"
        with pytest.raises(NotEnoughGpus):
            lease.take([uuids[1]])
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        box.rm(force=True)
    assert not lease.holders()


def test_a_restarted_one_leases_them_again(uuids, monkeypatch):
    """While it pauses others may have them; then it waits for them, and says so."""
    monkeypatch.setattr(restarting, "FIRST", 0.3)
    box = dockless.start("host", ["sh", "-c", "test -e /tmp/stop || exit 1; sleep 1000"], gpus="all", restart="always")
    try:
        until(lambda: not lease.holders(), "a pause")
        with lease.lease(gpu.parse_request("1")) as others:
            until(lambda: "is leased" in box.inspect()["reason"], f"that it waits for GPU {others.uuids[0]}")
        until(lambda: len(lease.holders()) == 4, "it has them again", 60)
    finally:
        box.rm(force=True)


# -- and the queue


@pytest.fixture
def daemon(four, home) -> Iterator[DaemonProcess]:
    """With a quota of three GPUs for this user."""
    settings = f"[quota.users]\n{idmaps.user_name(os.geteuid())} = 3\n"
    process = DaemonProcess(home, gpus=four, settings=settings).start()
    yield process
    process.end()
    assert not lease.holders()


def test_a_job_has_its_gpus_though_the_daemon_is_killed(daemon):
    with daemon.client() as queue:
        job = queue.submit(JobSpec(Spec(argv=("sleep", "1000")), gpus="3"))
        until(lambda: queue.job(job).state is State.RUNNING, "it runs")
    daemon.kill9()
    with pytest.raises(NotEnoughGpus, match="2 GPUs asked for, 1 of 4 free"):
        dockless.run("host", ["true"], gpus=2)
    assert dockless.run("host", ["true"], gpus=1).returncode == 0
    daemon.start()


def test_what_is_leased_without_the_queue_counts_in_it(daemon, capfd):
    """In the quota of who has it, and in what ``info`` says."""
    me = idmaps.user_name(os.geteuid())
    box = dockless.start("host", FOREVER, gpus=2)
    with daemon.client() as queue, contextlib.ExitStack() as started:
        started.callback(box.rm, force=True)
        small, large = (queue.submit(JobSpec(Spec(argv=("sleep", "1000")), gpus=wanted)) for wanted in ("1", "2"))
        until(lambda: queue.job(small).state is State.RUNNING, "there is one in the quota")
        reason = queue.job(large).reason
        assert "1 free (2 leased outside the queue)" in reason and f"user {me} uses 3 of 3" in reason
        info = queue.info()
        assert ("user", me, 3, 3) in info.quotas
        assert {(one.job, one.user, one.outside) for one in info.gpus} == {(small, me, False), (0, me, True), (0, "", False)}
        assert main(["info"]) == 0 and capfd.readouterr().out.count(f"  a process of {me}  {me}\n") == 2
        started.close()
        queue.cancel(small, grace=0)
        until(lambda: queue.job(large).state is State.RUNNING, "its quota has room")


def test_one_that_is_out_of_service(home, own_host, capfd):
    """It is given to nobody, and whoever waits for it is told why."""
    simulation = own_host("2x80G,ecc=1")
    broken = "GPU 1 is out of service: 2 uncorrectable errors of its memory since its driver was loaded"
    assert main(["info"]) == 0 and f"{broken}." in capfd.readouterr().out.splitlines()
    daemon = DaemonProcess(home, gpus=simulation).start()
    with daemon.client() as queue:
        both, one = (queue.submit(JobSpec(Spec(argv=("true",)), gpus=wanted)) for wanted in ("2", "device=0"))
        assert queue.wait(one, timeout=30).state is State.COMPLETED
        assert queue.job(both).state is State.PENDING and broken in queue.job(both).reason
        assert main(["info"]) == 0
        shown = capfd.readouterr().out
        assert "  out of service" in shown and f"{broken}." in shown
        assert main(["metrics"]) == 0
        shown = capfd.readouterr().out
        assert "dockless_jobs_waiting 1\n" in shown
        (line,) = [line for line in shown.splitlines() if line.startswith("dockless_gpu_out_of_service") and line.endswith(" 1")]
        assert 'gpu="1"' in line and 'simulated="true"' in line and "2 uncorrectable errors" in line
    daemon.end()


def said(state: Path, text: str) -> None:
    """What the driver says from now on, at once: a file that is just being written has told nothing yet."""
    new = state.with_name("gpus-new")
    new.write_text(text)
    new.replace(state)


def test_what_fails_or_is_used_meanwhile(home, own_host, capfd):
    """A GPU whose driver reports an error, and one on which a program computes that has no lease, are given to nobody from then on. A job
    that is there goes on."""
    daemon = DaemonProcess(home, gpus=own_host("3x80G"))
    state = home / "gpus-now"
    state.touch()
    daemon.environment["DOCKLESS_SIMULATED_STATE"] = str(state)
    daemon.start()
    with daemon.client() as queue:
        runs = queue.submit(JobSpec(Spec(argv=("sleep", "1000")), gpus="device=0"))
        until(lambda: queue.job(runs).state is State.RUNNING, "it runs")
        said(state, f"process 0 {os.getpid()} 1048576\nprocess 1 {os.getpid()} 1048576\nxid 0 31\nxid 0 79\nxid 2 13\nxid 2 119\n")
        until(lambda: [bool(one.trouble) for one in queue.info().gpus] == [True, False, True], "the driver was heard")
        until(lambda: [one.outside for one in queue.info().gpus] == [False, True, False], "the program was seen")
        (inside,) = seen.processes(run_box.get(sandbox := queue.job(runs).attempts[0].sandbox))
        said(state, f"{state.read_text()}busy 0 40\nprocess 0 {inside.pid} 4096\n")
        until(lambda: [(one.job, one.busy, one.used) for one in queue.top().jobs] == [(runs, 0.4, 4096)], f"{sandbox} has a process there")
        assert {(one.pid, one.job) for one in queue.top().gpus[0].programs} == {(os.getpid(), 0), (inside.pid, runs)}
        assert main(["top"]) == 0
        shown = capfd.readouterr().out
        assert f"GPU 1 is used by process {os.getpid()} of " in shown and f"job {runs}" in shown and "is out of service: Xid 119" in shown
        with Screen("top", "--interval", "1s", size=(40, 160)) as screen:
            screen.expect("40 %")
            said(state, state.read_text().replace("busy 0 40", "busy 0 70"))
            screen.expect("70 %")
            screen.type("\x03")
            assert screen.code() == 0
        waits = queue.submit(JobSpec(Spec(argv=("true",)), gpus="1"))
        until(lambda: "0 free" in queue.job(waits).reason, "nothing is free")
        assert "is out of service: Xid 119, its system processor does not answer (" in queue.job(waits).reason
        assert queue.job(runs).state is State.RUNNING and "is out of service: Xid 79" in daemon.errors()
        assert [error.partition(",")[0] for error in queue.job(runs).attempts[0].gpu_errors] == ["GPU 0: Xid 31", "GPU 0: Xid 79"]
        assert [one.xids for one in queue.top().gpus] == [((31, 1), (79, 1)), (), ((13, 1), (119, 1))]
        assert main(["queue", str(runs)]) == 0 and "GPU 0: Xid 31, " in capfd.readouterr().out
        said(state, "")
        assert queue.wait(waits, timeout=30).state is State.COMPLETED  # on GPU 1
    daemon.end()


def test_one_whose_driver_hangs(home, own_host, capfd):
    """Nothing waits for it but who wants it: the daemon answers, and starts and ends jobs without GPUs and those on the other one. It is
    out of service after ten seconds, until its driver answers."""
    daemon = DaemonProcess(home, gpus=own_host("2x80G"))
    state = home / "gpus-now"
    state.touch()
    daemon.environment["DOCKLESS_SIMULATED_STATE"] = str(state)
    daemon.start()
    took = []

    def timed(call):
        began = time.monotonic()
        answer = call()
        took.append(time.monotonic() - began)
        return answer

    with daemon.client() as queue:
        runs = queue.submit(JobSpec(Spec(argv=("sleep", "1000")), gpus="device=0"))
        until(lambda: queue.job(runs).state is State.RUNNING, "it runs")
        state.write_text("hang 0 600\n")
        time.sleep(hostgpus.FRESH + 0.1)  # so that the next decision looks again
        began = time.monotonic()
        waits = queue.submit(JobSpec(Spec(argv=("true",)), gpus="device=0"))
        others = [queue.submit(JobSpec(Spec(argv=("true",)), gpus=wanted)) for wanted in ("", "device=1", "1")]
        while time.monotonic() < began + asking.NO_ANSWER + 3:
            timed(lambda: queue.queue())
            timed(lambda: queue.info())
            timed(lambda: queue.top())
            time.sleep(0.1)
            if all(queue.job(one).state is State.COMPLETED for one in others):
                break
        assert [queue.job(one).state for one in others] == [State.COMPLETED] * 3 and time.monotonic() < began + asking.NO_ANSWER
        timed(lambda: queue.cancel(runs, grace=0))
        assert queue.wait(runs, timeout=5).state is State.CANCELLED
        silent = "its driver does not answer"
        until(lambda: [one.trouble for one in timed(queue.info).gpus] == [silent, ""], "it is out of service")
        assert time.monotonic() > began + asking.NO_ANSWER
        job = queue.job(waits)
        assert job.state is State.PENDING and f"GPU 0 is out of service: {silent}" in job.reason
        assert main(["info"]) == 0 and f"GPU 0 is out of service: {silent}." in capfd.readouterr().out
        more = [queue.submit(JobSpec(Spec(argv=("true",)), gpus=wanted)) for wanted in ("", "1")]
        assert [queue.wait(one, timeout=5).state for one in more] == [State.COMPLETED] * 2
        assert max(took) < 3 * asking.PATIENCE, took
        began = time.monotonic()
        queue.reload()  # all stays as it was
        assert "the GPUs are not listed again: the NVIDIA driver does not answer" in daemon.errors() and len(queue.info().gpus) == 2
        assert asking.NO_ANSWER <= time.monotonic() - began < 2 * asking.NO_ANSWER
        state.write_text("")
        assert queue.wait(waits, timeout=5).state is State.COMPLETED
        assert [one.trouble for one in queue.info().gpus] == ["", ""] and queue.info().gpu_error == ""
        hung = "GPU-51d01a7e-d000-4000-8000-000000000000 is"
        assert f"{hung} out of service: {silent}" in daemon.errors() and f"{hung} in service again" in daemon.errors()
        state.write_text("hang 0 600\n")
        time.sleep(hostgpus.FRESH + 0.1)
        queue.info()
    daemon.end()  # which waits for no driver


def test_a_daemon_that_starts_while_the_driver_hangs(home, own_host):
    """It serves, without GPUs; they are there as soon as the driver answers, and a failure of one is heard."""
    daemon = DaemonProcess(home, gpus=own_host("2x80G"))
    state = home / "gpus-now"
    state.touch()
    daemon.environment["DOCKLESS_SIMULATED_STATE"] = str(state)
    daemon.start()
    with daemon.client() as queue:
        waits = queue.submit(JobSpec(Spec(argv=("true",)), gpus="2", hold=True))
    daemon.stop()
    state.write_text("hang 1 600\n")
    daemon.start()
    with daemon.client() as queue:
        queue.release(waits)
        assert queue.wait(queue.submit(JobSpec(Spec(argv=("true",)))), timeout=5).state is State.COMPLETED
        info = queue.info()
        assert info.gpus == () and info.gpu_error.startswith("the NVIDIA driver does not answer")
        assert queue.job(waits).state is State.PENDING
        state.write_text("")
        assert queue.wait(waits, timeout=5).state is State.COMPLETED
        assert len(queue.info().gpus) == 2 and queue.info().gpu_error == ""
        state.write_text("xid 0 79\n")
        until(lambda: queue.info().gpus[0].trouble.startswith("Xid 79"), "its failure was heard")
    daemon.end()


HOSTS: set[str] = set()


@pytest.mark.parametrize("turn", range(2))
def test_the_next_test_has_another_host(turn, own_host):
    """A keeper of this one's may just be ending when that begins."""
    name = own_host("1x80G")
    assert name not in HOSTS and gpu.simulated_host() in f"{name.partition('host=')[2]}/"
    HOSTS.add(name)
