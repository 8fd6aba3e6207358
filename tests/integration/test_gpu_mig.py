"""MIG slices made and removed: all or none, none that is in use, and what is made can be leased."""

from __future__ import annotations

import contextlib
import grp
import io
import json
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.requires import requires
from support.scheduling import DaemonProcess, as_user

import dockless
from dockless.cli import main
from dockless.errors import BadInput, GpuError, NotEnoughGpus, UnknownGpu
from dockless.sandbox.gpus import gpu, lease, mig
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec


@pytest.fixture
def simulated(monkeypatch, tmp_path) -> Path:
    """Two GPUs of 80 GiB; the second is divided into a slice of one seventh and 11 GiB, seven times. The state's file."""
    state = tmp_path / "state"
    state.touch()
    monkeypatch.setenv("DOCKLESS_SIMULATED_STATE", str(state))
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G,mig=7")
    return state


def there() -> dict[str, int]:
    """The slices, and how many GiB each has."""
    return {unit.uuid: unit.memory >> 30 for unit in gpu.units(gpu.inventory(processes=False, links=False)) if unit.parent}


@pytest.fixture
def empty(simulated) -> Path:
    if os.geteuid() != 0:
        pytest.skip("root alone makes and removes slices")
    mig.remove(list(there()))
    assert there() == {}
    return simulated


@requires("root")
def test_made_and_removed(empty):
    rooms = {one.name: one.free for one in mig.profiles(1)}
    assert rooms == {"1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1}
    made = mig.create(1, ["3g.40gb", "2g.20gb", "1g.10gb"])
    assert there() == dict(zip(made, (40, 20, 10), strict=True))
    assert {one.name: one.free for one in mig.profiles(1)} == {"1g.10gb": 1, "2g.20gb": 0, "3g.40gb": 0, "4g.40gb": 0, "7g.80gb": 0}
    mig.remove(made[1:2])
    assert list(there().values()) == [40, 10]
    assert list(there()) == [made[0], made[2]]


@requires("root")
def test_all_or_none(empty):
    with pytest.raises(NotEnoughGpus, match=r"a slice 3g\.40gb of GPU 1 cannot be made: there is no room") as caught:
        mig.create(1, ["3g.40gb", "3g.40gb", "3g.40gb"])
    assert caught.value.hint and there() == {}
    assert len(mig.create(1, ["7g.80gb"])) == 1


@requires("root", "userns")
def test_a_slice_is_leased_as_soon_as_it_is_made_and_not_removed_while_it_is(empty):
    (made,) = mig.create(1, ["2g.20gb"])
    with dockless.Sandbox(["sleep", "100"], gpu_memory="20G") as box:
        assert box.gpus == (made,)
        with pytest.raises(NotEnoughGpus, match="is leased"):
            mig.remove([made])
        box.kill()
    mig.remove([made])
    assert there() == {}


@requires("root")
def test_a_slice_that_is_out_of_service_can_be_removed(empty):
    """Root's daemon has its name meanwhile, so nobody leases it."""
    made = mig.create(1, ["1g.10gb", "1g.10gb"])
    with contextlib.ExitStack() as kept:
        for one in (*lease.keep_out(made[0]), *lease.say_why(made[0], "drained by root"), *lease.take([made[1]])):
            kept.enter_context(one)
        with pytest.raises(NotEnoughGpus, match=f"{made[1]} is leased"):
            mig.remove(made)
        mig.remove(made[:1])
    assert list(there()) == [made[1]]


@requires("root")
def test_a_slice_on_which_something_computes_stays(empty):
    (made,) = mig.create(1, ["1g.10gb"])
    instance = next(unit.mig[0].gi for unit in gpu.units(gpu.inventory()) if unit.uuid == made)
    with empty.open("a") as out:
        out.write(f"process 1 {os.getpid()} 1048576 {instance}\n")
    with pytest.raises(GpuError, match=f"process {os.getpid()} computes on {made}"):
        mig.remove([made])
    assert list(there()) == [made]


def test_what_cannot_be(simulated):
    with pytest.raises(GpuError, match="GPU 0 is not divided by MIG") as caught:
        mig.create(0, ["1g.10gb"])
    assert "nvidia-smi -i 0 -mig 1" in caught.value.hint
    with pytest.raises(UnknownGpu):
        mig.profiles(7)
    with pytest.raises(BadInput, match="has no profile '9g'") as caught:
        mig.create(1, ["9g"])
    assert "3g.40gb" in caught.value.hint
    with pytest.raises(BadInput, match="GPU 0 is not a slice"):
        mig.remove([gpu.inventory()[0].uuid])
    with pytest.raises(UnknownGpu):
        mig.remove(["MIG-nosuch"])


@requires("user")
def test_root_alone_may(simulated):
    with pytest.raises(GpuError, match="Insufficient Permissions") as caught:
        mig.remove(list(there())[:1])
    assert caught.value.hint == "root alone may: sudo" and len(there()) == 7


def test_on_the_command_line(simulated, capsys):
    assert main(["gpu", "mig", "profiles", "1", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)][:2] == ["1g.10gb", "2g.20gb"]
    for words in (["mig"], ["mig", "create", "1"], ["mig", "profiles", "x"], ["mig", "grow", "1"], ["list", "x"]):
        assert main(["gpu", *words]) == 125
    if os.geteuid() == 0:
        one = next(iter(there()))
        capsys.readouterr()
        assert main(["gpu", "mig", "remove", one]) == 0 and main(["gpu", "mig", "create", "1", "1g.10gb"]) == 0
        assert capsys.readouterr().out.split()[0] in there() and one not in there()


@requires("root", "userns")
def test_a_daemon_sees_them_at_once(empty, tmp_path):
    """A job waits for a class of which there is nothing left, and starts when a slice is made; one that runs keeps its own."""
    home = tmp_path / "h"
    home.mkdir(exist_ok=True)
    (kept,) = mig.create(1, ["2g.20gb"])
    daemon = DaemonProcess(home, gpus="2x80G,mig=7")

    def gpu_mig(*words: str) -> list[str]:
        command = [sys.executable, "-m", "dockless", "gpu", "mig", *words]
        return subprocess.run(command, env=daemon.environment, check=True, capture_output=True, text=True, cwd="/").stdout.split()

    daemon.start()
    try:
        with daemon.client() as queue:
            first, second = (queue.submit(JobSpec(Spec(argv=("sleep", "100")), gpus="class=2g.20gb")) for _ in range(2))
            until_running(queue, first)
            assert queue.job(second).state == "PENDING"
            (made,) = gpu_mig("create", "1", "2g.20gb")
            until_running(queue, second)
            assert [queue.job(number).devices for number in (first, second)] == [(kept,), (made,)]
            queue.cancel(second, grace=0)
            queue.wait(second, timeout=30)
            gpu_mig("remove", made)
            assert made not in {one.uuid for one in queue.info().gpus} and queue.job(first).state == "RUNNING"
        assert f"GPU {made} is new" in daemon.errors() and f"GPU {made} is gone" in daemon.errors()
    finally:
        daemon.end()


ANNA, BEN, CARL = (pwd.getpwnam(name).pw_uid for name in ("daemon", "bin", "games"))


def says(uid: int, daemon: DaemonProcess, *words: str) -> tuple[int, list[str], str]:
    """The command line of a user who can call this daemon: its code, what it prints, and its error."""

    def there(_):
        os.environ["DOCKLESS_SOCKET"] = "daemon.sock"
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["gpu", "mig", *words])
        return code, out.getvalue().split(), err.getvalue()

    outcome, said = as_user(uid, daemon.socket.parent, there)
    assert outcome == "ok", said
    return said


@requires("root", "userns")
def test_administrators_make_and_remove_slices_through_roots_daemon(empty, tmp_path):
    home = tmp_path / "h"
    home.mkdir(exist_ok=True)
    group = grp.getgrgid(pwd.getpwuid(CARL).pw_gid).gr_name
    daemon = DaemonProcess(home, gpus="2x80G,mig=7", settings=f'[host]\nadmins = ["daemon"]\nadmin_groups = ["{group}"]\n').start()
    try:
        with daemon.client() as queue:
            assert [unit for unit in queue.info().gpus if unit.uuid.startswith("MIG")] == []
            code, made, err = says(ANNA, daemon, "create", "1", "2g.20gb", "1g.10gb")
            assert (code, err) == (0, "") and made == list(there())
            assert set(made) <= {unit.uuid for unit in queue.info().gpus}  # the daemon sees them at once
            number = queue.submit(JobSpec(Spec(argv=("sleep", "1000")), gpus="class=2g.20gb"))
            until_running(queue, number)
            (leased,) = queue.job(number).devices
            (free,) = set(made) - {leased}
            for uid in (ANNA, CARL, 0):
                with pytest.raises(NotEnoughGpus) as caught:
                    mig.remove([leased])
                code, out, err = says(uid, daemon, "remove", leased)
                assert code == 125 and f"dockless: {caught.value}" in err and f"hint: {caught.value.hint}" in err
            code, out, err = says(BEN, daemon, "remove", free)
            assert code == 125 and "making and removing MIG slices is for administrators" in err and out == []
            assert "is for administrators" in says(BEN, daemon, "create", "1", "1g.10gb")[2] and set(there()) == set(made)
            assert says(CARL, daemon, "remove", free) == (0, [], "") and list(there()) == [leased]
            for words, message in (
                (("create", "0", "1g.10gb"), "GPU 0 is not divided by MIG"), (("create", "1", "9g"), "GPU 1 has no profile '9g'"),
                (("create", "1", "7g.80gb"), "there is no room"), (("create", "9", "1g.10gb"), "no GPU 9"),
                (("remove", "MIG-nosuch"), "MIG-nosuch"), (("remove", gpu.inventory()[0].uuid), "GPU 0 is not a slice"),
            ):  # fmt: skip
                code, out, err = says(CARL, daemon, *words)
                assert code == 125 and message in err and out == [] and list(there()) == [leased]
            assert queue.job(number).state == "RUNNING"
            anna = pwd.getpwuid(ANNA).pw_name
            audit = [line.split(" ", 1)[1] for line in (home / "state" / "audit.log").read_text().splitlines() if "op=mig_" in line]
            assert audit[:2] == [f"uid={ANNA} user={anna} op=mig_create ok", f"uid={ANNA} user={anna} op=mig_remove not_enough_gpus"]
            assert f"uid={BEN} user={pwd.getpwuid(BEN).pw_name} op=mig_remove not_permitted" in audit
    finally:
        daemon.end()


def until_running(queue, number: int) -> None:
    deadline = time.monotonic() + 30
    while queue.job(number).state != "RUNNING":
        assert time.monotonic() < deadline, queue.why(number)
        time.sleep(0.02)
