"""A program on a real terminal, pty(7), as a shell would have started it there.

::

    with Screen("exec", "-t", box.id, "--", "sh") as screen:
        screen.expect("$ ")
        screen.type("exit 3\\n")
        assert screen.code() == 3
"""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import sys
import termios
import time
from collections.abc import Callable
from typing import Any

from support.boxes import DEADLINE

_LAST = b"\x00the last of it\x00"


class Screen:
    """``dockless`` with these words, its three streams a terminal of ``size`` rows and columns; ``shown``: all that came so far."""

    def __init__(self, *words: str, size: tuple[int, int] = (24, 80)) -> None:
        self.ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, size)
        self.before = termios.tcgetattr(theirs)
        self.pid = os.fork()
        if self.pid == 0:
            _become(theirs, [sys.executable, "-P", "-m", "dockless", *words])
        self.theirs = theirs  # kept open: what is left of a client that was killed can still be asked for its modes
        self.shown = b""
        self._status: int | None = None

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._status is None:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        os.close(self.ours)
        os.close(self.theirs)

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        termios.tcsetwinsize(self.ours, (rows, columns))

    def raw(self) -> bool:
        """Whether what is typed goes to the program as it is."""
        return not termios.tcgetattr(self.theirs)[3] & (termios.ECHO | termios.ICANON | termios.ISIG)

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.theirs)

    def expect(self, text: str, *, after: int = 0) -> str:
        """Read until this is shown, from byte ``after`` of all that was shown on: everything up to its end."""
        return self.until(lambda: text.encode() in self.shown[after:], repr(text)).partition(text)[0] + text

    def until(self, condition: Callable[[], Any], what: str) -> str:
        """Read until ``condition`` holds."""
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, f"not within {DEADLINE} s: {what}; shown: {self.shown[-2000:]!r}"
            self._read()
        return self.shown.decode(errors="replace")

    def press(self, key: str, text: str) -> None:
        """Type ``key``, once a second, until ``text`` is shown: a program that draws anew may drop what is typed meanwhile."""
        before, last = len(self.shown), 0.0

        def come() -> bool:
            nonlocal last
            if text.encode() in self.shown[before:]:
                return True
            if time.monotonic() >= last + 1:
                last = time.monotonic()
                self.type(key)
            return False

        self.until(come, repr(text))

    def _read(self) -> None:
        if select.select([self.ours], [], [], 0.01)[0]:
            self.shown += os.read(self.ours, 1 << 16)

    def code(self) -> int:
        """Read until the program has ended: its exit code, minus the signal."""
        self.until(self._ended, "it has ended")
        os.write(self.theirs, _LAST)  # what is written comes out at the other side in its order, but not at once
        self.until(lambda: self.shown.endswith(_LAST), "the end of what it showed")
        self.shown = self.shown.removesuffix(_LAST)
        assert self._status is not None
        return os.waitstatus_to_exitcode(self._status)

    def _ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None


def _become(terminal: int, command: list[str]) -> None:
    try:
        os.setsid()
        os.login_tty(terminal) if hasattr(os, "login_tty") else _take(terminal)
        os.environ["TERM"] = "xterm"
        os.execv(command[0], command)
    finally:
        os._exit(127)


def _take(terminal: int) -> None:
    import fcntl

    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for fd in range(3):
        os.dup2(terminal, fd)
    os.closerange(3, 256)
