"""Our terminal and that of a sandbox: what is typed here goes in there, what is shown there is shown here, and the size follows ours.

While that lasts ours is in raw mode, so Ctrl-C and Ctrl-Z are for the program inside. It gets its modes back whatever becomes of us: a
guard outside of this process sees to it (``sandbox.run.guard``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
from collections.abc import Callable, Iterator

from dockless.base import signal
from dockless.base.typing import TYPE_CHECKING, Any, Protocol
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless._attaching import TerminalOutput

_CHUNK = 1 << 16
_MOST = 1 << 18
"""Bytes of typing that wait for a program that does not read."""
_END_OF_FILE = b"\x04"


class HasTerminal(Protocol):
    """What has a terminal: ``dockless.Sandbox``, ``dockless.Execution``."""

    @property
    def terminal(self) -> int: ...
    def fileno(self) -> int: ...
    def poll(self) -> Any: ...
    def kill(self) -> None: ...


def size(fd: int = 0) -> tuple[int, int] | None:
    """Rows and columns of our terminal, None if that is none."""
    try:
        found = os.get_terminal_size(fd)
    except OSError:
        return None
    return found.lines, found.columns


def named(env: dict[str, str]) -> dict[str, str]:
    """Variables with the kind of our terminal, unless they name another."""
    return {"TERM": os.environ.get("TERM") or "xterm", **env}


def keys(text: str) -> bytes:
    """Detach keys as Docker writes them: ``ctrl-p,ctrl-q``, letters; empty for none. ``BadInput``"""
    typed = b""
    for key in text.split(",") if text else ():
        control = key.removeprefix("ctrl-")
        if len(control) != 1 or not control.isascii() or (key != control and not "@" <= control.upper() <= "_"):
            hint = "write letters and ctrl-LETTER with commas between: ctrl-p,ctrl-q"
            raise BadInput(f"--detach-keys {text[:40]!r} cannot be read", subject="--detach-keys", hint=hint)
        typed += control.encode() if key == control else bytes([ord(control.upper()) - 64])
    return typed


@contextlib.contextmanager
def raw(fd: int = 0) -> Iterator[None]:
    """Our terminal in raw mode, as long as the block runs; no change where ``fd`` is none."""
    if not os.isatty(fd):
        yield
        return
    import termios
    import tty

    from dockless.sandbox.run.guard import restores_terminal

    before = termios.tcgetattr(fd)
    guard = restores_terminal(fd)
    try:
        tty.setraw(fd, termios.TCSADRAIN)  # what has been typed already is for the program inside, too
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
        guard.release()


class _Resized:
    """Our window's changes of size, as a descriptor to wait for."""

    def __enter__(self) -> _Resized:
        self.fd, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # By the interpreter's own handler: one in Python would run only when poll(2), which it may come just before, has returned.
        self._woken = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._before = signal.signal(signal.SIGWINCH, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGWINCH, self._before)
        signal.set_wakeup_fd(self._woken)
        os.close(self.fd)
        os.close(self._wake)


def resize(terminal: int) -> None:
    """The size of our terminal for that one."""
    import termios

    found = size()
    if found is not None:
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetwinsize(terminal, found)


def converse(shown: HasTerminal, used: Callable[[], object] = bool) -> Any:
    """Until it has ended: how it ended. ``used``: called when something is typed."""
    terminal, end = shown.terminal, shown.fileno()
    os.set_blocking(terminal, False)
    with raw(), _Resized() as resized:
        resize(terminal)
        typing = _Typing(terminal, b"", used)
        ended = None
        while ended is None:
            ready = _ready({terminal: select.POLLIN, end: select.POLLIN, resized.fd: select.POLLIN}, typing)
            if resized.fd in ready:
                os.read(resized.fd, _CHUNK)
                resize(terminal)
            typing.step(ready)
            if ready.get(terminal, 0) & ~select.POLLOUT and not _show(terminal):
                return _until_ended(shown)  # nothing in there has it open any more
            if end in ready:
                ended = shown.poll()
        while select.select([terminal], [], [], 0)[0] and _show(terminal):
            pass
        return ended


def _until_ended(shown: HasTerminal) -> Any:
    while (ended := shown.poll()) is None:
        select.select([shown.fileno()], [], [])
    return ended


def _ready(wanted: dict[int, int], typing: _Typing, timeout: float | None = None) -> dict[int, int]:
    poller = select.poll()
    for fd, events in typing.wanted(wanted).items():
        poller.register(fd, events)
    return dict(poller.poll(timeout))


def watch(terminal: int, before: bytes, output: TerminalOutput, detach: bytes, used: Callable[[], object]) -> bool:
    """A terminal that somebody else reads: show what was ``before``, then what ``output`` gives. True when that is over; False when the
    detach keys are typed. ``used``: called when something is typed."""
    os.set_blocking(terminal, False)
    with raw(), _Resized() as resized:
        show(before)
        _redraw(terminal)
        typing = _Typing(terminal, detach, used)
        while True:
            if rows := output.read():
                show(b"".join(row.written for row in rows))
                continue
            if output.over or typing.detached:
                return not typing.detached
            ready = _ready({output.fd: select.POLLIN, resized.fd: select.POLLIN}, typing, output.glance)
            if resized.fd in ready:
                os.read(resized.fd, _CHUNK)
                resize(terminal)
            typing.step(ready)


def _redraw(terminal: int) -> None:
    """A program that fills the screen draws it anew when the size changes."""
    import termios

    found = size()
    if found is not None:
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetwinsize(terminal, (found[0], found[1] + 1))
    resize(terminal)


class _Typing:
    """From our standard input to a terminal."""

    def __init__(self, terminal: int, detach: bytes, used: Callable[[], object]) -> None:
        self._terminal = terminal
        self._used = used
        self._detach = detach
        self._held = b""
        self._waiting = bytearray()
        self.open = True
        self.detached = False

    def wanted(self, others: dict[int, int]) -> dict[int, int]:
        """The events to wait for, with ours among others."""
        found = dict(others)
        if self.open and len(self._waiting) < _MOST and not self.detached:
            found[0] = found.get(0, 0) | select.POLLIN
        if self._waiting:
            found[self._terminal] = found.get(self._terminal, 0) | select.POLLOUT
        return found

    def step(self, ready: dict[int, int]) -> None:
        if 0 in ready:
            typed = os.read(0, _CHUNK)
            self._used()
            if not typed:
                self.open = False
                self._waiting += _END_OF_FILE
            self._take(typed)
        if self._waiting and ready.get(self._terminal, 0) & select.POLLOUT:
            try:
                del self._waiting[: os.write(self._terminal, self._waiting)]
            except BlockingIOError:
                pass
            except OSError:
                self._waiting.clear()

    def _take(self, typed: bytes) -> None:
        """The keys that detach are held back until it is clear that they are none."""
        if not self._detach:
            self._waiting += typed
            return
        for at in range(len(typed)):
            self._held += typed[at : at + 1]
            while self._held and not self._detach.startswith(self._held):
                self._waiting += self._held[:1]
                self._held = self._held[1:]
            if self._held == self._detach:
                self.detached = True
                return


def _show(terminal: int) -> bool:
    """What is there; False at its end."""
    try:
        shown = os.read(terminal, _CHUNK)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False
    show(shown)
    return bool(shown)


def show(shown: bytes) -> None:
    rest = memoryview(shown)
    while rest:
        try:
            rest = rest[os.write(1, rest) :]
        except BlockingIOError:
            select.select([], [1], [])
