"""Ending a sandbox: its stop signal, SIGKILL to everything inside, and the removal of what it had.

Whoever finds a sandbox by its directory may end it, also where its keeper does not answer or its records are torn. A signal goes to a
process only while its keeper holds the sandbox's lock: so no pid was reused. Which signal is the stop signal: sandbox/resolve.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import time
from collections.abc import Iterator

from dockless.base import signal
from dockless.base.locks import is_locked
from dockless.base.pidfds import hold
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadInput, DocklessError, SandboxError, SandboxGone
from dockless.sandbox.run import asked, documents, process, records, restarting
from dockless.sandbox.run.children import collect_ended
from dockless.sandbox.run.choosing import FILES, choose
from dockless.sandbox.run.places import DOOR, names_stay
from dockless.sandbox.run.process import gone
from dockless.sandbox.run.project import LAYER, given_back
from dockless.sandbox.run.removal import remove_cgroup, remove_tree, unnamed_cgroup
from dockless.sandbox.spec import GRACE
from dockless.sandbox.state import RUNNING

if TYPE_CHECKING:
    from dockless.sandbox.run.box import Box
    from dockless.sandbox.run.foreground import ForegroundSandbox

STDIN = "stdin"
GLANCE = 0.001
"""Seconds between looks at a lock that is about to be let go."""


def send_signal(box: Box, number: int) -> None:
    """See ``Box.send_signal``."""
    process.check_signal(number)
    if number == signal.SIGKILL:
        return kill(box)
    if not box.foreground and restarting.holds(box.directory) and number == box.document.stop_signal:
        _give_up(box)
    fd = box.pidfd()
    asked.note(box.directory, asked.KILL, number)
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        raise gone(box.id) from None
    finally:
        os.close(fd)


def stop(box: Box, grace: float | None) -> None:
    """See ``Box.stop``."""
    for _ in stopping(box, grace):
        pass


def stopping(box: Box, grace: float | None) -> Iterator[None]:
    """See ``Box.stopping``."""
    _give_up(box)
    deadline = -math.inf
    with contextlib.suppress(DocklessError, OSError):
        if box.alive:
            asked.note(box.directory, asked.STOP, box.document.stop_signal)
        deadline = ask(box, grace)
    yield
    with contextlib.suppress(TimeoutError, DocklessError, OSError):
        if deadline > -math.inf:
            box.wait(max(0.0, deadline - time.monotonic()))
    end(box)


def ask(box: Box | ForegroundSandbox, grace: float | None) -> float:
    """The stop signal. Returns when its time is over, on the monotonic clock. ``grace``: in seconds; None: its own, or 10."""
    box.send_stop()
    if box.paused():
        box.resume()
    return time.monotonic() + (grace if grace is not None else box.spec.grace or GRACE)


def end(box: Box) -> None:
    """End it where it has not ended, its keeper too if that does not see to it. Returns when its keeper has ended, so that its GPUs are
    free. ``NotEnded`` for what survives both."""
    if box.state() not in RUNNING:
        with contextlib.suppress(TimeoutError), box.waiting() as waiting:
            waiting.wait(process.KILLED_FOR)  # it writes down how it ended before it lets go of what it holds
        return
    keeper = box.keeper()
    with contextlib.suppress(SandboxGone):
        _kill(box)
        try:
            box.wait_for_run(process.KILLED_FOR)
        except TimeoutError:
            send_to(box, keeper, signal.SIGKILL)
            try:
                box.wait_for_run(process.AT_LAST)
            except TimeoutError:
                raise process.not_ended(f"sandbox {box.id}", keeper) from None
    # Its keeper may just be removing its records, and nobody finds it by them any more.
    deadline = time.monotonic() + process.KILLED_FOR
    while not os.path.lexists(box.directory / documents.NAME) and is_locked(box.lock) and time.monotonic() < deadline:
        select.select([], [], [], GLANCE)


def kill(box: Box) -> None:
    """See ``Box.kill``."""
    _give_up(box)
    _kill(box)


def _give_up(box: Box) -> None:
    """Nobody restarts it by its restart policy, until somebody starts it."""
    if not box.foreground:
        restarting.give_up(box.directory)


def _kill(box: Box) -> None:
    if box.alive:
        asked.note(box.directory, asked.KILL, signal.SIGKILL)
    # By its cgroup and by its init: whichever fails, the other is tried.
    failed: Exception | None = None
    group = None
    try:
        group = box.cgroup()
        if group is not None:
            with contextlib.closing(group):  # not removed: the keeper reads its accounts first
                group.kill()
    except (DocklessError, OSError) as error:
        failed = error
    try:
        init = box.init_pid
        killed = send_to(box, init, signal.SIGKILL)
        if init or group is not None:
            send_to(box, box.pid, signal.SIGCONT)  # somebody may have stopped the keeper
        else:
            send_to(box, box.keeper(), signal.SIGKILL)  # its records are no use: init goes with its keeper
    except OSError as error:
        failed, killed = failed or error, False
    if failed is not None and not killed and box.alive:
        raise failed


def send_to(box: Box, pid: int, number: int) -> bool:
    """To its init or its keeper; False where that is not there any more."""
    if not pid:
        return False
    try:
        fd = hold(pid)
    except ProcessLookupError:
        return False
    try:
        if not is_locked(box.lock):
            return False
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def lighten(box: Box) -> None:
    """See ``Box.lighten``."""
    if box.alive:
        raise SandboxError(f"sandbox {box.id} still runs", subject=box.id, hint=f"dockless stop {box.id}")
    with given_back(box.directory):
        for name in LAYER:
            remove_tree(box.directory / name)


def clear(box: Box) -> None:
    """Remove what only the run that has ended needed: its cgroup, its plan, its door. Its records, files and output stay."""
    box.collect(box.keeper())
    group = box.cgroup() or unnamed_cgroup(box.directory)
    if group is not None:
        with group:
            remove_cgroup(group)
    for name in (*records.ROOM, *records.HEALTH_ROOM, documents.PLAN, DOOR, STDIN):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(box.directory / name)
    remove_tree(box.directory / "work")  # a volatile overlay is mounted with it once


def remove(box: Box) -> None:
    """See ``Box.remove``."""
    while not _removed_ended(box):
        _give_up(box)
        keeper = box.keeper()
        end(box)
        if not box.foreground:
            box.collect(keeper)
            collect_ended()
        with _nobody_starts(box):
            if not box.alive:
                return _remove(box)
        # Somebody has started it meanwhile: once more.


def _removed_ended(box: Box) -> bool:
    """Whether nothing of it lives; then it is removed. That is said by its lock, where it has no restart policy, and not by its records."""
    if box.foreground or _may_live(box):
        return False
    with _nobody_starts(box):
        if _may_live(box):
            return False
        box.collect(box.keeper())
        collect_ended()  # the keepers of its starts before
        _remove(box)
        return True


def _may_live(box: Box) -> bool:
    return is_locked(box.lock) or restarting.holds(box.directory)


@contextlib.contextmanager
def _nobody_starts(box: Box) -> Iterator[None]:
    with contextlib.ExitStack() as opened:
        has_files_mounted = os.path.lexists(box.directory / FILES)  # by one who keeps others from starting it
        try:
            if not box.foreground:
                opened.callback(os.close, choose(box.directory, patience=0 if has_files_mounted else None))
        except SandboxGone:
            pass
        except BadInput:
            if not has_files_mounted:
                raise
        yield


def _leave_networks(box: Box) -> None:
    """What it had there is free at once. Where its record is no use it is swept later."""
    with contextlib.suppress(DocklessError, FileNotFoundError):
        if box.spec.network == "private":
            from dockless.sandbox.network import attach, leases

            attach.release(leases.of(box.directory))


def _remove(box: Box) -> None:
    group = box.cgroup()
    if group is not None:
        with group:
            remove_cgroup(group)
    with contextlib.suppress(FileNotFoundError), names_stay(box.present.directory.parent), given_back(box.present.directory):
        _leave_networks(box)
        remove_tree(box.present.directory)
