"""Stop, cancel and deadlines arrive, whatever goes wrong on the way; the stop signal is the image's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import failing_daemon
from support.boxes import alive, load, log_paths, until
from support.requires import requires
from support.scheduling import DaemonProcess

from dockless.sandbox.run import detached
from dockless.sandbox.spec import Spec
from dockless.sched import Client, JobSpec, State

pytestmark = requires("userns")

DEAF = ("/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 1000; done")
SAYS = ("/bin/sh", "-c", "trap 'echo asked; exit 6' USR2; echo up; while :; do sleep 0.02; done")


@contextmanager
def serving(home: Path, *steps: str, settings: str = "") -> Iterator[Client]:
    program = (failing_daemon.__file__, *steps) if steps else ("-m", "dockless.sched.daemon")
    daemon = DaemonProcess(home, gpus="1x80G", settings=settings, program=program).start()
    try:
        with daemon.client() as queue:
            yield queue
    finally:
        daemon.stop()
        if steps:  # what could not be removed is removed by the next one
            DaemonProcess(home, gpus="1x80G").start().stop()


def up(queue: Client, number: int) -> None:
    for _ in queue.logs(number, follow=True):
        return


def box_of(queue: Client, number: int) -> detached.Box:
    found = detached.find(queue.job(number).attempts[-1].sandbox)
    assert found is not None
    return found


@contextmanager
def started(argv: tuple[str, ...], **fields) -> Iterator[detached.Box]:
    box = detached.start(Spec(argv=argv, **fields))
    try:
        until(lambda: any(path.stat().st_size for path in log_paths(box)), "the job is up")
        yield box
    finally:
        box.remove()


@requires("overlay")
def test_stop_sends_what_the_image_says(tmp_path: Path):
    with started(SAYS, image=load(tmp_path, stop_signal="SIGUSR2")) as box:
        box.stop(60)
        assert box.exit().code == 6


@requires("overlay")
@pytest.mark.parametrize("wrong", ["SIGSTOP", "19", "SIGCONT", "SIGCHLD"])
def test_an_image_whose_stop_signal_ends_nothing(tmp_path: Path, wrong: str):
    with started(
        ("/bin/sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.02; done"), image=load(tmp_path, stop_signal=wrong)
    ) as box:
        box.stop(60)
        assert box.exit().code == 7


@requires("overlay")
def test_cancel_sends_what_the_image_says(home: Path, tmp_path: Path):
    image = load(tmp_path, stop_signal="SIGUSR2")
    with serving(home) as queue:
        number = queue.submit(JobSpec(Spec(argv=SAYS, image=image, grace=60)))
        up(queue, number)
        queue.cancel(number)
        job = queue.wait(number, timeout=60)
        assert (job.state, job.exit_code) == (State.CANCELLED, 6)


def test_stop_when_somebody_stopped_the_keeper():
    with started(DEAF) as box:
        os.kill(box.pid, signal.SIGSTOP)
        box.stop(0.1)
        assert box.exit().signal == signal.SIGKILL


def test_stop_when_the_signal_cannot_be_sent(monkeypatch):
    def refuse(self):
        raise PermissionError(1, "planted")

    monkeypatch.setattr(detached.Box, "send_stop", refuse)
    with started(DEAF) as box:
        box.stop(1000)
        assert box.exit().signal == signal.SIGKILL


def test_stop_when_its_document_is_torn():
    with started(DEAF) as box:
        (box.directory / "spec.json").write_bytes(b"{")
        box.stop(1000)
        assert box.exit().signal == signal.SIGKILL


@pytest.mark.parametrize("missing", ["cgroup", "init"])
def test_each_way_to_kill_is_enough(missing: str):
    with started(DEAF) as box, pytest.MonkeyPatch.context() as monkeypatch:
        if missing == "cgroup":
            monkeypatch.setattr(detached.Box, "cgroup", lambda self, known=None: None)
        else:
            if not box.document.cgroup:
                pytest.skip("this host has no place for a cgroup")
            known = box._pids()
            monkeypatch.setattr(detached.Box, "_pids", lambda self: {"keeper": known["keeper"]})
        box.kill()
        assert box.wait(60).signal == signal.SIGKILL


@pytest.mark.parametrize("step", [step for step in failing_daemon.STEPS if step != "patience"])
def test_cancel_when_a_step_fails(home: Path, step: str):
    with serving(home, step) as queue:
        number = queue.submit(JobSpec(Spec(argv=DEAF), gpus="1"))
        if step != "pidfd":  # nobody could follow that one: it is ended at once
            up(queue, number)
            queue.cancel(number, grace=0.05)
        job = queue.wait(number, timeout=60)
        assert job.state in (State.CANCELLED, State.LOST)
        assert queue.info().gpus[0].job == 0
        box = detached.find(queue.job(number).attempts[-1].sandbox)
        assert box is None or box.state() not in ("starting", "running")


def test_cancel_when_somebody_stopped_the_keeper(home: Path):
    with serving(home) as queue:
        number = queue.submit(JobSpec(Spec(argv=DEAF)))
        up(queue, number)
        os.kill(box_of(queue, number).pid, signal.SIGSTOP)
        queue.cancel(number, grace=0.1)
        assert queue.wait(number, timeout=60).state is State.CANCELLED


def test_the_time_limit_when_somebody_stopped_the_keeper(home: Path):
    with serving(home, "patience") as queue:
        number = queue.submit(JobSpec(Spec(argv=DEAF), time_limit=1.0))
        up(queue, number)
        init = box_of(queue, number)._pids()["init"]
        os.kill(box_of(queue, number).pid, signal.SIGSTOP)
        assert queue.wait(number, timeout=60).state is State.TIMEOUT
        assert not alive(init)


def test_long_graces_hold_up_nobody(home: Path):
    """More jobs that take their time than the daemon has threads of any kind; then one that is to end now."""
    deaf = 40
    with serving(home, settings=f"[host]\ncpu_jobs = {deaf + 1}\n") as queue:
        numbers = queue.submit_array(JobSpec(Spec(argv=DEAF)), deaf + 1)
        for number in numbers:
            up(queue, number)
        for number in numbers[:-1]:
            queue.cancel(number, grace=1000)
        queue.cancel(numbers[-1], grace=0)
        assert queue.wait(numbers[-1], timeout=120).state is State.CANCELLED
        assert {queue.job(number).state for number in numbers[:-1]} == {State.RUNNING}
        for number in numbers[:-1]:  # asked again, a shorter grace counts and a longer does not
            queue.cancel(number, grace=0)
            queue.cancel(number, grace=1000)
        queue.wait_many(numbers, timeout=120)
