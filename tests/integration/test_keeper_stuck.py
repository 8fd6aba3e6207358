"""A keeper that does nothing more, since somebody stopped it: whoever waits is back at the deadline, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.boxes import alive, children_of, running, until
from support.requires import requires

import dockless
from dockless import native
from dockless._stdio import PIPE
from dockless.errors import LaunchFailed, NotEnded, SandboxGone
from dockless.sandbox.run import detached, process
from dockless.sandbox.spec import Spec

pytestmark = requires("userns")

SLEEP = ("sleep", "1000")
LIMITED = Spec(argv=SLEEP, timeout=1)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == "T", "the keeper is stopped")


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def over(ended) -> bool:
    return ended.timed_out and ended.signal == signal.SIGKILL


@pytest.fixture
def deaf(monkeypatch):
    """SIGCONT does not wake a keeper; with ``deaf()`` nothing ends anything any more, as where the kernel does not wake a process."""
    send = signal.pidfd_send_signal
    refused = {signal.SIGCONT}
    monkeypatch.setattr(
        process.signal, "pidfd_send_signal", lambda fd, number, *more: None if number in refused else send(fd, number, *more)
    )
    monkeypatch.setattr(process, "KILLED_FOR", 0.2)
    monkeypatch.setattr(process, "AT_LAST", 60.0)

    def nothing_helps() -> None:
        refused.add(signal.SIGKILL)
        monkeypatch.setattr(process, "AT_LAST", 0.2)

    yield nothing_helps
    refused.clear()


def test_the_time_limit_where_the_keeper_is_stopped():
    with running(LIMITED) as (box, _):
        stop(box.process.keeper_pid)
        inside = box.process.pid
        assert over(box.wait(60))
        assert not alive(inside)


def test_communicate():
    with dockless.Sandbox(["sleep", "1000"], timeout=1, stdout=PIPE) as box:
        stop(box.process.keeper_pid)
        assert box.communicate(timeout=60) == (b"", None)
        assert over(box.wait())


def test_the_event_loop():
    async def main():
        async with dockless.aio.Sandbox(["sleep", "1000"], timeout=1, stdout=PIPE) as box:
            stop(box.box.process.keeper_pid)
            assert await box.communicate(timeout=60) == (b"", None)
            assert over(await box)

    asyncio.run(main())


def test_the_command_line():
    command = [sys.executable, "-P", "-m", "dockless", "run", "--timeout", "2", "host", "--", *SLEEP]
    with subprocess.Popen(command) as program:
        until(lambda: "sleep" in named(program.pid), "it runs")
        stop(named(program.pid)["dockless-keeper"])
        assert program.wait(60) == 124


def named(pid: int) -> dict[str, int]:
    """The processes below that one."""
    names = {}
    for child in children_of(pid):
        with contextlib.suppress(OSError):
            names[Path(f"/proc/{child}/comm").read_text().strip()] = child
    return names


def test_a_keeper_that_does_not_wake_is_killed(deaf):
    with running(LIMITED) as (box, _):
        stop(box.process.keeper_pid)
        inside = box.process.pid
        assert over(box.wait(60))
        assert not alive(inside)


def test_killed_without_a_time_limit(deaf):
    with running(Spec(argv=SLEEP)) as (box, _):
        stop(box.process.keeper_pid)
        box.kill()
        ended = box.wait(60)
        assert (ended.signal, ended.timed_out) == (signal.SIGKILL, False)


def test_a_stopped_keeper_and_no_wait():
    with running(Spec(argv=SLEEP)) as (box, _):
        stop(box.process.keeper_pid)
        inside = box.process.pid
    assert not alive(inside)


def test_what_nothing_ends_is_said(deaf):
    deaf()
    with running(LIMITED) as (box, _):
        keeper, inside = box.process.keeper_pid, box.process.pid
        stop(keeper)
        descriptors = len(os.listdir("/proc/self/fd"))
        with pytest.raises(NotEnded, match=f"process {keeper} ") as raised:
            box.process.wait(60)
        assert raised.value.hint
        with pytest.raises(NotEnded):  # at once: it was waited for
            box.process.poll()
        assert len(os.listdir("/proc/self/fd")) == descriptors
        os.kill(keeper, signal.SIGCONT)
        until(lambda: not alive(inside) and not alive(keeper), "it ends after all: nobody waits for it for long any more")


def test_the_event_loop_hears_of_it(deaf):
    deaf()

    async def main():
        async with dockless.aio.Sandbox(["sleep", "1000"], timeout=1) as box:
            stop(box.box.process.keeper_pid)
            try:
                with pytest.raises(NotEnded):
                    await box.wait(60)
            finally:
                os.kill(box.box.process.keeper_pid, signal.SIGCONT)
                until(lambda: not alive(box.box.process.keeper_pid), "it ends after all")

    asyncio.run(main())


def test_a_keeper_that_was_killed_has_nothing_left_inside():
    """The end of its report comes before the kernel kills init for it."""
    with running(Spec(argv=SLEEP)) as (box, _):
        inside = box.process.pid
        os.kill(box.process.keeper_pid, signal.SIGKILL)
        assert box.wait(60).signal == signal.SIGKILL
        assert not alive(inside)


def test_a_start_that_hangs(monkeypatch):
    """Stopped before its program was started."""
    await_ready = process.Process._await_ready

    def stopped(self, *given):
        os.kill(self.keeper_pid, signal.SIGSTOP)
        await_ready(self, *given)

    monkeypatch.setattr(process.Process, "_await_ready", stopped)
    before = time.monotonic()
    for _ in range(20):  # it may be READY before it is stopped
        try:
            with running(Spec(argv=SLEEP, timeout=0.2)) as (box, _):
                assert over(box.wait(60))
        except LaunchFailed as error:
            assert "the timeout" in str(error)
            return
    pytest.skip(f"always ready before it was stopped, {time.monotonic() - before:.1f} s")


def test_reaping_wakes_who_was_stopped():
    with native.hold_userns() as holder:
        stop(holder.pid)
    assert not alive(holder.pid)


def test_a_detached_sandbox_whose_keeper_does_not_wake(deaf):
    box = detached.start(Spec(argv=SLEEP))
    try:
        stop(box.pid)
        inside = box.init_pid
        box.stop(0)
        until(lambda: not alive(inside), "it has ended")
        assert box.state() in ("exited", "vanished")
    finally:
        box.remove()
    assert not box.directory.exists()


def test_a_detached_sandbox_that_nothing_ends_stays(deaf, monkeypatch):
    deaf()
    box = detached.start(Spec(argv=SLEEP))
    keeper = box.pid
    stop(keeper)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(detached.Box, "cgroup", lambda self, known=None: None)
            for end in (lambda: box.stop(0), box.remove):
                with pytest.raises(NotEnded, match=f"{keeper} still lives"):
                    end()
        assert box.state() == "running"
    finally:
        os.kill(keeper, signal.SIGKILL)
        with pytest.raises(SandboxGone):
            box.wait(60)
        box.remove()


def test_waiting_in_several_threads():
    ends = []
    with running(LIMITED) as (box, _):
        stop(box.process.keeper_pid)
        threads = [threading.Thread(target=lambda: ends.append(box.process.wait(60))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [over(ended) for ended in ends] == [True] * 4
