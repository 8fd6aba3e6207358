"""What the checks of a sandbox's health say, and waiting until it is healthy: for its keeper's next record, or its keeper's end, whichever
comes first. Who carries them out: native/launcher/health.c."""

from __future__ import annotations

import contextlib
import os
import select
import time
from types import TracebackType

from dockless.base.dataclass import dataclass
from dockless.base.waits import readable
from dockless.errors import BadInput, SandboxGone
from dockless.native import inotify
from dockless.native.inotify import Inotify
from dockless.sandbox.run import documents, process, records
from dockless.sandbox.run.box import Box
from dockless.sandbox.run.records import numbers_of, whole
from dockless.sandbox.state import HEALTHS, HealthStatus

NAME = "health"
_ENDING = 0.05
"""Seconds in which a keeper removes its sandbox's directory."""
_NUMBERS = ("state", "streak", "count", "status", "outcome", "began_ns", "ended_ns", "changed_ns")


@dataclass(frozen=True, slots=True)
class Health:
    """What the checks of a sandbox's health say. ``streak``: failures in a row; ``count``: checks so far. Of the last one: ``exit_code``,
    None before the first, 126 and 127 where its command could not be executed; ``output``: the end of what it wrote; ``began``, ``ended``:
    seconds since 1970. ``since``: when ``status`` last changed."""

    status: HealthStatus = "starting"
    streak: int = 0
    count: int = 0
    exit_code: int | None = None
    timed_out: bool = False
    output: str = ""
    began: float = 0.0
    ended: float = 0.0
    since: float = 0.0


def parse(raw: bytes) -> Health:
    """The keeper's record of the last check. ``ValueError`` for one that is not whole."""
    if not raw.strip(b"\0"):
        return Health()  # the room of one that is not written yet
    head, _, output = whole(raw).decode("ascii").partition("output ")
    numbers = numbers_of(head)
    missing = [name for name in _NUMBERS if name not in numbers]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    if numbers["state"] >= len(HEALTHS) or numbers["status"] > 0xFFFF:
        raise ValueError("it says what no check can be")
    count, outcome = numbers["count"], numbers["outcome"]
    return Health(
        HEALTHS[numbers["state"]],
        numbers["streak"],
        count,
        process.exit_of(numbers["status"], outcome).exit_code if count else None,
        bool(outcome & process.TIMED_OUT),
        bytes.fromhex(output.strip()).decode(errors="replace"),
        numbers["began_ns"] / 1e9,
        numbers["ended_ns"] / 1e9,
        numbers["changed_ns"] / 1e9,
    )


def health_of(box: Box) -> Health | None:
    """What its checks say, after its end what they said last; None where it has none, or nothing sound is written."""
    return None if (found := last_change(box)) is None else found[0]


def last_change(box: Box) -> tuple[Health, int, int | None] | None:
    """What its checks say, and ``streak`` and ``exit_code`` of the check by which ``status`` last changed."""
    try:
        raw = records.read(box.directory / NAME)
        found = parse(raw)
        numbers = numbers_of(whole(raw).decode("ascii").partition("output ")[0]) if found.since else {}
        if "changed_outcome" not in numbers:  # the keeper is of an older version
            return found, found.streak, found.exit_code
        exit_code = process.exit_of(numbers["changed_status"], numbers["changed_outcome"]).exit_code
        return found, numbers["changed_streak"], exit_code
    except (FileNotFoundError, ValueError):
        return None


class HealthWatch:
    """A context manager. ``SandboxGone`` for a sandbox that does not run."""

    def __init__(self, box: Box) -> None:
        self._box = box
        with contextlib.ExitStack() as opened:
            self._alive = box.pidfd()
            opened.callback(os.close, self._alive)
            self._written = opened.enter_context(Inotify())
            with contextlib.suppress(FileNotFoundError):  # it has just ended, and its directory is gone
                self._written.add(box.directory, inotify.MOVED_TO)
            self._both = opened.enter_context(select.epoll())
            for fd in (self._alive, self._written.fileno()):
                self._both.register(fd, select.EPOLLIN)
            self._checked = os.path.lexists(box.directory / NAME)
            self._opened = opened.pop_all()

    def fileno(self) -> int:
        """Readable when ``look`` may have something new to say."""
        return self._both.fileno()

    def _over(self, within: float) -> bool:
        return readable(self._alive, within)

    def _ending(self) -> bool:
        """Whether it ends, and what it had is being removed, or has been."""
        return self._over(_ENDING) or not os.path.lexists(self._box.directory / documents.NAME)

    def look(self) -> Health | None:
        """What it is like if it is healthy, None if it may become so. ``SandboxGone`` when it has ended, ``BadInput`` for one without
        checks."""
        box = self._box
        over = self._over(0)
        for _ in self._written.read():
            pass
        found = health_of(box)
        if over:
            raise self._ended(found)
        self._checked = self._checked or found is not None
        if found is None and not self._checked and not self._ending():
            hint = "start it with one: --health-cmd COMMAND, health=HealthCheck([program, …])"
            raise BadInput(f"sandbox {box.id} has no health check", subject=box.id, hint=hint)
        return found if found is not None and found.status == "healthy" else None

    def _ended(self, found: Health | None) -> SandboxGone:
        ended = self._box.exit()
        how = "" if ended is None else f": exit code {ended.exit_code}"
        last = f"; its last check wrote: {found.output.strip()[-200:]}" if found is not None and found.output.strip() else ""
        hint = f"dockless logs {self._box.id}"
        return SandboxGone(f"sandbox {self._box.id} ended before it was healthy{how}{last}", subject=self._box.id, hint=hint)

    def wait(self, timeout: float | None = None) -> Health:
        """``TimeoutError`` after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (found := self.look()) is None:
            left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._both.poll(left) and deadline is not None and time.monotonic() >= deadline:
                raise self.late(timeout)
        return found

    def late(self, timeout: float | None) -> TimeoutError:
        found = health_of(self._box)
        return TimeoutError(f"sandbox {self._box.id} is not healthy after {timeout} s: {found.status if found else 'unknown'}")

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> HealthWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
