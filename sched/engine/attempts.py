"""One attempt and its sandbox: start it, find it again, record how it ended. Blocking; the engine calls this from threads.

The launcher is a seam, so that tests can put a small stand-in there; ``dockless.sandbox.run.detached`` is the real one.

What a daemon that comes back may find, and what it means (same boot)::

    the attempt in the queue     its sandbox                       then
    STARTING                     none, or it died before it began  void: the job waits again, nothing ran
    STARTING, RUNNING            running                           adopt it
    STARTING, RUNNING            ended, with an exit record        record the end
    RUNNING                      none, or no exit record           LOST: it ran, and nobody can say how it ended

Whether something lives is told by the lock that its keeper holds, never by a process id.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dockless.base.dataclass import copied, dataclass, replace
from dockless.base.records import plain
from dockless.base.typing import TYPE_CHECKING, Any, Protocol
from dockless.base.waits import readable
from dockless.cgroups.users import WEIGHT
from dockless.errors import SandboxGone
from dockless.sandbox.run import children
from dockless.sandbox.run.door import Entrance
from dockless.sandbox.spec import Spec
from dockless.sandbox.state import RUNNING
from dockless.sched.store.queries import Live

if TYPE_CHECKING:
    from dockless.cgroups import Cgroup

SETTLE = 30.0
"""Seconds a sandbox that a dead daemon was just starting gets to be up; its keeper needs milliseconds."""


class Handle(Protocol):
    """A detached sandbox; ``dockless.sandbox.run.box.Box``."""

    @property
    def id(self) -> str: ...
    @property
    def directory(self) -> Path: ...
    @property
    def pid(self) -> int: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    def state(self) -> str: ...
    def exit(self) -> Any: ...
    def why_vanished(self) -> str: ...
    def pidfd(self) -> int: ...
    def entrance(self) -> Entrance: ...
    def stdin(self) -> int: ...
    def cgroup(self) -> Cgroup | None: ...
    def send_stop(self) -> None: ...
    def send_signal(self, number: int) -> None: ...
    def kill(self) -> None: ...
    def lighten(self) -> None: ...
    def remove(self) -> None: ...


class Launcher(Protocol):
    """What starts sandboxes and finds them again; the module ``dockless.sandbox.run.detached``."""

    def start(self, spec: Spec, *, id: str, owner: int | None = None, labels: dict[str, str] = ..., user: int | None = None) -> Handle: ...
    def find(self, id: str) -> Handle | None: ...
    def list_all(self) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """What became of an attempt: ``void``, ``running``, ``exited`` or ``lost``."""

    what: str
    handle: Handle | None = None
    reason: str = ""


def left_behind(launcher: Launcher, name: str, queue: str) -> Handle | None:
    """The sandbox of an attempt whose start failed: there where it could not be removed, or could not be told that it runs."""
    handle = launcher.find(name)
    if handle is None:
        return None
    try:
        ours = handle.labels.get("queue") == queue
    except SandboxGone:  # it failed before anything was written about it
        ours = True
    return handle if ours else None


def launch_again(launcher: Launcher, spec: Spec, *, id: str, labels: dict[str, str], **how: Any) -> Handle:
    """The same attempt once more. What runs, or has ended, is not started again; what never began is removed first."""
    left = left_behind(launcher, id, labels["queue"])
    if left is not None and left.state() in ("running", "exited"):
        return left
    if left is not None:
        left.remove()
    return launcher.start(spec, id=id, labels=labels, **how)


def complete(spec: Spec, live: Live, attempt: int, gpus: tuple[str, ...], queue_time_limit: float) -> Spec:
    """The spec as it is launched: with the leased GPUs, the time limit, the job's own numbers in its environment, and the weight of the
    cores that it named: while processors are short, each job gets its cores before others get more."""
    own = {"DOCKLESS_JOB_ID": str(live.job.id), "DOCKLESS_ATTEMPT": str(attempt)}
    if live.job.array and not live.job.gang:
        own |= {"DOCKLESS_ARRAY_ID": str(live.job.array), "DOCKLESS_ARRAY_INDEX": str(live.job.index)}
    env = tuple(pair for pair in spec.env if pair[0] not in own) + tuple(own.items())
    limits = [seconds for seconds in (spec.timeout, queue_time_limit) if seconds]
    wanted = spec.limits
    if wanted.cpu_max is not None and wanted.cpu_weight is None:
        wanted = replace(wanted, cpu_weight=max(1, min(10_000, round(wanted.cpu_max * WEIGHT))))
    timeout = min(limits, default=0.0)
    if (gpus, timeout, wanted) != (spec.gpus, spec.timeout, spec.limits):
        spec = replace(spec, gpus=gpus, timeout=timeout, limits=wanted)
    return copied(spec, env=env)


def recover(launcher: Launcher, name: str, was_running: bool, same_boot: bool) -> AttemptEnd:
    """What there is to find of an attempt that an earlier daemon left. Waits while it is just starting."""
    handle = launcher.find(name)
    if handle is None:
        return (
            AttemptEnd("lost", None, "its sandbox is gone")
            if was_running
            else AttemptEnd("void", None, "the daemon ended before the launch")
        )
    state = handle.state()
    deadline = time.monotonic() + SETTLE
    while state == "starting":
        if time.monotonic() > deadline:
            handle.kill()
        if time.monotonic() > deadline + SETTLE:
            return AttemptEnd("lost", handle, "its keeper neither starts nor ends")
        time.sleep(0.01)
        state = handle.state()
    if state == "running":
        return AttemptEnd("running", handle)
    if state == "exited":
        return AttemptEnd("exited", handle)
    if not was_running and not os.path.lexists(handle.directory / "started"):
        return AttemptEnd("void", handle, "the daemon ended during the launch")
    handle.kill()  # nothing of it may go on while its GPUs go to the next
    return AttemptEnd("lost", handle, handle.why_vanished() if same_boot else "the host was rebooted while it ran")


def ended_by_shutdown(handle: Handle, shutdown: float) -> dict[str, Any] | None:
    """How it ended, where that was after the host had begun to go down, at ``shutdown`` in seconds since 1970, and neither well nor by its
    time limit. ``shutdown`` 0: nobody knows."""
    exit = handle.exit()
    after = bool(shutdown) and exit is not None and exit.ended >= shutdown
    return exit_record(exit) if after and exit.code != 0 and not exit.timed_out else None


def exit_record(exit: Any) -> dict[str, Any]:
    """An ``Exit`` as plain JSON values."""
    fields = ("code", "signal", "oom_killed", "timed_out", "started", "ended", "usage")
    return {name: plain(getattr(exit, name, None)) for name in fields}


@dataclass(frozen=True, slots=True)
class Started:
    """What has been started. ``pidfd``: as of ``wait_gone``; -1 where that has to be asked for once more. ``over``: as of ``taken_in``,
    where it has ended by now."""

    handle: Handle
    pidfd: int = -1
    over: tuple[Any, bool] | None = None


def started(start: Callable[[], Handle], kept: Path | None = None, patience: float = 0.0) -> Started:
    """What ``start`` has started. ``kept``: where its output goes if it ends within ``patience`` seconds; None: nobody asks for its end."""
    handle = start()
    fd = -1
    with contextlib.suppress(Exception):  # whatever it is, it runs, or has run
        with contextlib.suppress(SandboxGone):
            fd = handle.pidfd()
        if kept is not None and (fd < 0 or readable(fd, patience)):
            over = taken_in(handle, kept / handle.id)
            if over[0] is not None:  # else it is looked at more closely
                if fd >= 0:
                    os.close(fd)
                return Started(handle, over=over)
    return Started(handle, fd)


def wait_gone(handle: Handle) -> int | None:
    """A pidfd that becomes readable when the sandbox has ended; None if it has already.

    A program may run before its keeper has put down its own pid, which takes two fsyncs: that is waited for."""
    deadline = time.monotonic() + SETTLE
    while True:
        try:
            return handle.pidfd()
        except SandboxGone:
            if handle.state() not in RUNNING or time.monotonic() > deadline:
                return None
            time.sleep(0.001)


def reaped(handle: Handle) -> Any:
    """How it ended, None if nobody can say. Takes the keeper's status if it is a child of ours: a daemon that started it is its parent, one
    that adopted it is not."""
    pid = handle.pid
    if pid > 0:
        children.collect_if_ended(pid)
    return handle.exit()


def taken_in(handle: Handle, kept: Path) -> tuple[Any, bool]:
    """``reaped``, and whether its output is kept by now, see ``keep_log``; not that of one of which nobody can say how it ended."""
    exit = reaped(handle)
    if exit is not None:
        with contextlib.suppress(OSError):
            keep_log(handle, kept)
            return exit, True
    return exit, False


def keep_log(handle: Handle, kept: Path) -> None:
    """Move an ended attempt's output out of its sandbox's directory, which is about to go. Repeating it is no error.

    ``kept``: the path without its suffix. rename(2) never follows a link, and what is no plain file is not served later."""
    try:
        directory = os.open(handle.directory, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        for name, suffix in (("log.1", ".log.1"), ("log", ".log")):
            try:
                found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode):
                os.rename(name, str(kept) + suffix, src_dir_fd=directory)
    finally:
        os.close(directory)


def orphans(launcher: Launcher, queue: str, alive: Callable[[str], bool], known: Callable[[str], bool]) -> list[Handle]:
    """Sandboxes of this very queue that no live attempt owns: their end was committed and their directory was not removed yet, or
    they were never whole. ``known``: whether the queue has an attempt of that name."""
    found = []
    for handle in launcher.list_all():
        if alive(handle.id):
            continue
        try:
            ours = handle.labels.get("queue") == queue
        except SandboxGone:  # left before anything was written about it
            ours = known(handle.id) and handle.state() == "vanished"
        if ours:
            found.append(handle)
    return found
