"""Waiting for the end of a sandbox that this program did not start.

::

    with Waiting(box) as waiting:      opens the file to which the keeper writes how it ended: it can be read after it is removed
        …                              until waiting.fileno() is readable, by select or by a loop
        waiting.result()
"""

from __future__ import annotations

import contextlib
import os
from types import TracebackType

from dockless import native
from dockless.base.typing import TYPE_CHECKING
from dockless.base.waits import readable
from dockless.errors import SandboxGone
from dockless.sandbox.run import records, restarting
from dockless.sandbox.run.process import Exit

if TYPE_CHECKING:
    from dockless.sandbox.run.box import Box


class Waiting:
    """``over``: the sandbox had ended before."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._ends = self._exit_fd = -1
        with contextlib.suppress(SandboxGone):
            self._ends = box.pidfd()
            self._exit_fd = self._open_exit()

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for fd in (self._ends, self._exit_fd):
            if fd >= 0:
                os.close(fd)
        self._ends = self._exit_fd = -1

    @property
    def over(self) -> bool:
        return self._ends < 0

    def fileno(self) -> int:
        """Readable when it has ended."""
        return self._ends

    def wait(self, timeout: float | None = None) -> None:
        """Until it has ended. ``TimeoutError`` after ``timeout`` seconds."""
        if not self.over and not readable(self.fileno(), timeout):
            raise self.too_long(timeout)

    def too_long(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"sandbox {self._box.id} still runs after {timeout} s")

    def result(self) -> Exit | None:
        """How it ended, when it has; None where it is just being restarted. ``SandboxGone`` if it vanished without a record,
        ``BadInput`` for one that was never started."""
        if not self.over and not self._box.foreground:  # a foreground one is its starter's to collect
            native.reap(self._ends)
        ended, why = self._box.recorded()
        if ended is None and self._exit_fd >= 0:  # its keeper has removed it
            with contextlib.suppress(ValueError):
                ended = records.parse_exit(os.pread(self._exit_fd, records.MOST, 0))
        if ended is None and not (restarting.holds(self._box.directory) and self._box.alive):
            raise self._box.no_exit(why)
        return ended

    def _open_exit(self) -> int:
        """The file to which the keeper writes how it ended, opened before it is removed; -1 where there is none. That of a detached sandbox
        is renamed from ``exit.tmp`` to ``exit`` when it is complete."""
        how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_CREAT if self._box.foreground else 0)
        for name in ("exit.tmp",) if self._box.foreground else ("exit.tmp", "exit"):
            with contextlib.suppress(OSError):
                return os.open(self._box.directory / name, how, 0o600)
        return -1
