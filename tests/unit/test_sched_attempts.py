"""An attempt and its sandbox: what it is started with, what is found of it again, and what of it is kept."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest
from support.stand_in import Box

from dockless.base.dataclass import replace
from dockless.base.waits import readable
from dockless.cgroups import Limits
from dockless.errors import SandboxGone
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched.engine import attempts
from dockless.sched.engine.attempts import SETTLE, AttemptEnd
from dockless.sched.jobs import Job, State
from dockless.sched.store.queries import Live


@pytest.fixture
def box(launcher):
    made = launcher.boxes["b"] = Box("b", launcher.place / "b")
    return made


@pytest.fixture
def clock(monkeypatch):
    """Time that goes on by sleeping alone. ``at``: what happens once it has come."""
    clock = SimpleNamespace(now=0.0, at={})

    def sleep(seconds):
        clock.now += max(seconds, 0.5)
        for when in [when for when in clock.at if when <= clock.now]:
            clock.at.pop(when)()

    monkeypatch.setattr(attempts.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(attempts.time, "sleep", sleep)
    return clock


def test_the_environment_of_a_job():
    """Its own numbers are what the queue says, whatever was submitted."""
    spec = Spec(argv=("true",), env=(("A", "1"), ("DOCKLESS_JOB_ID", "99"), ("DOCKLESS_ARRAY_ID", "98")))
    alone = attempts.complete(spec, Live(Job(7, 0, "root", State.STARTING), (), (), False), 2, (), 0.0)
    assert alone.env == (("A", "1"), ("DOCKLESS_ARRAY_ID", "98"), ("DOCKLESS_JOB_ID", "7"), ("DOCKLESS_ATTEMPT", "2"))
    member = attempts.complete(spec, Live(Job(7, 0, "root", State.STARTING, array=5, index=2), (), (), False), 1, (), 0.0)
    assert member.env == (
        ("A", "1"), ("DOCKLESS_JOB_ID", "7"), ("DOCKLESS_ATTEMPT", "1"), ("DOCKLESS_ARRAY_ID", "5"), ("DOCKLESS_ARRAY_INDEX", "2")
    )  # fmt: skip


@pytest.mark.parametrize(("same_boot", "reason"), [(True, "its keeper was killed"), (False, "the host was rebooted while it ran")])
def test_what_became_of_one_that_ran(launcher, box, same_boot, reason):
    box.now = "vanished"
    assert attempts.recover(launcher, "b", True, same_boot) == AttemptEnd("lost", box, reason)
    assert attempts.recover(launcher, "none", True, same_boot) == AttemptEnd("lost", None, "its sandbox is gone")
    assert attempts.recover(launcher, "none", False, same_boot) == AttemptEnd("void", None, "the daemon ended before the launch")
    assert attempts.recover(launcher, "b", False, same_boot) == AttemptEnd("void", box, "the daemon ended during the launch")
    os.symlink("nowhere", box.directory / "started")
    assert attempts.recover(launcher, "b", False, same_boot) == AttemptEnd("lost", box, reason)


def test_one_that_is_just_starting_is_waited_for(launcher, box, clock):
    box.now = "starting"
    clock.at[SETTLE - 1] = lambda: setattr(box, "now", "running")
    assert attempts.recover(launcher, "b", False, True) == AttemptEnd("running", box) and box.said == []


def test_one_that_does_not_come_up_is_killed(launcher, box, clock):
    box.now = "starting"
    killed = []
    box.on_kill = lambda: killed.append(clock.now)
    clock.at[SETTLE + 5] = lambda: setattr(box, "now", "exited")
    assert attempts.recover(launcher, "b", False, True) == AttemptEnd("exited", box)
    assert SETTLE < killed[0] <= SETTLE + 1


def test_one_that_not_even_a_kill_ends_is_given_up(launcher, box, clock):
    box.now = "starting"
    assert attempts.recover(launcher, "b", False, True) == AttemptEnd("lost", box, "its keeper neither starts nor ends")
    assert 2 * SETTLE < clock.now <= 2 * SETTLE + 1


def gone():
    raise SandboxGone("not yet, or not any more")


def test_its_end_can_be_waited_for_as_soon_as_it_has_a_pid(box, clock, monkeypatch):
    fd = attempts.wait_gone(box)
    os.close(fd)
    real, answers = box.pidfd, [gone, gone]
    monkeypatch.setattr(box, "pidfd", lambda: (answers.pop() if answers else real)())
    for state in ("starting", "running"):
        box.now, answers[:] = state, [gone, gone]
        clock.at[clock.now + 1] = lambda: setattr(box, "now", "running")
        os.close(attempts.wait_gone(box))
        assert answers == []
    box.now, answers[:] = "exited", [gone, gone]
    assert attempts.wait_gone(box) is None and len(answers) == 1


def test_a_pid_that_never_comes_is_not_waited_for_for_ever(box, clock, monkeypatch):
    monkeypatch.setattr(box, "pidfd", gone)
    assert attempts.wait_gone(box) is None
    assert SETTLE < clock.now <= SETTLE + 1


def test_the_record_of_an_end():
    record = attempts.exit_record(Exit(None, 9, oom_killed=True))
    assert list(record) == ["code", "signal", "oom_killed", "timed_out", "started", "ended", "usage"]
    assert (record["code"], record["signal"], record["oom_killed"], record["timed_out"]) == (None, 9, True, False)
    assert attempts.exit_record(object()) == dict.fromkeys(record)


def test_a_keeper_that_is_ours_leaves_no_zombie(box):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    box.pid = pid
    attempts.reaped(box)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    attempts.reaped(box)  # somebody else's
    other = os.fork()
    if other == 0:
        os._exit(0)
    os.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT)
    for box.pid in (0, -1):  # none, not any
        attempts.reaped(box)
    assert os.waitpid(other, 0)[0] == other


def test_its_output_moves_and_nothing_else_does(box, tmp_path):
    kept = tmp_path / "kept"
    (box.directory / "log.1").write_text("older")
    attempts.keep_log(box, kept)
    (box.directory / "log").write_text("newer")
    attempts.keep_log(box, kept)
    attempts.keep_log(box, kept)
    assert {path.name: path.read_text() for path in tmp_path.glob("kept*")} == {"kept.log.1": "older", "kept.log": "newer"}
    (box.directory / "log").symlink_to(kept)
    (box.directory / "log.1").mkdir()
    attempts.keep_log(box, tmp_path / "other")
    assert sorted(tmp_path.glob("other*")) == [] and (box.directory / "log").is_symlink()
    for name in ("log", "log.1"):
        (box.directory / name).rmdir() if name == "log.1" else (box.directory / name).unlink()
    box.directory.rmdir()
    attempts.keep_log(box, kept)
    box.directory.symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError):
        attempts.keep_log(box, kept)


def test_what_is_left_of_this_queue(launcher):
    """Not what lives, nor what another queue has; of what says nothing of itself, what this queue named and is dead."""
    for name, labels in (("ours", {"queue": "q"}), ("alive", {"queue": "q"}), ("theirs", {"queue": "r"}), ("run", {})):
        launcher.start(None, id=name, labels=labels)

    class Torn(Box):
        @property
        def labels(self):
            raise SandboxGone("nothing was written")

        @labels.setter
        def labels(self, value):
            pass

    for name, state in (("torn", "vanished"), ("new", "starting"), ("strange", "vanished")):
        launcher.boxes[name] = Torn(name, launcher.place / name, now=state)
    found = attempts.orphans(launcher, "q", {"alive"}.__contains__, {"torn", "new", "ours"}.__contains__)
    assert [handle.id for handle in found] == ["ours", "torn"]


@pytest.mark.parametrize(("named", "weight"), [
    (Limits(), None), (Limits(pids_max=5), None), (Limits(cpu_max=1.0), 100), (Limits(cpu_max=0.25), 25), (Limits(cpu_max=0.001), 1),
    (Limits(cpu_max=500.0), 10_000), (Limits(cpu_max=4.0, cpu_weight=7), 7),
])  # fmt: skip
def test_cores_that_are_named_weigh(named, weight):
    live = Live(Job(7, 0, "root", State.STARTING), (), (), False)
    launched = attempts.complete(Spec(argv=("true",), limits=named), live, 1, (), 0.0)
    assert launched.limits == replace(named, cpu_weight=weight)


def test_what_has_started_comes_with_its_pidfd_where_there_is_one(box, monkeypatch):
    found = attempts.started(lambda: box)
    os.close(found.pidfd)
    assert found.handle is box and found.over is None
    for error in (SandboxGone("it has ended"), OSError(24, "too many open files")):
        monkeypatch.setattr(box, "pidfd", lambda error=error: (_ for _ in ()).throw(error))
        assert attempts.started(lambda: box) == attempts.Started(box, -1)  # an error of the start would end what runs


@pytest.mark.parametrize("before", [True, False], ids=["before its pidfd is there", "after that"])
def test_what_ends_at_once_comes_with_its_end(box, tmp_path, before):
    def start():
        (box.directory / "log").write_text("x")
        if before:
            box.end(Exit(3, None))
        else:
            timer.start()
        return box

    timer = threading.Timer(0.01, lambda: box.end(Exit(3, None)))
    fds = set(os.listdir("/proc/self/fd"))
    found = attempts.started(start, tmp_path, 20.0)
    assert set(os.listdir("/proc/self/fd")) == fds
    assert found == attempts.Started(box, -1, (Exit(3, None), True)) and (tmp_path / f"{box.id}.log").read_text() == "x"


def test_what_goes_on_and_what_has_vanished_come_without_an_end(box, tmp_path):
    found = attempts.started(lambda: box, tmp_path, 0.0)
    assert found.over is None and not readable(found.pidfd, 0)
    os.close(found.pidfd)
    box.end(None)
    assert attempts.started(lambda: box, tmp_path, 0.0) == attempts.Started(box, -1)


def test_the_output_of_what_has_ended_is_kept_at_once(box, tmp_path):
    (box.directory / "log").write_text("x")
    assert attempts.taken_in(box, tmp_path / "kept") == (None, False) and (box.directory / "log").exists()
    box.record = Exit(0, None)
    assert attempts.taken_in(box, tmp_path / "nowhere" / "kept") == (box.record, False)
    assert attempts.taken_in(box, tmp_path / "kept") == (box.record, True)
    assert (tmp_path / "kept.log").read_text() == "x"
