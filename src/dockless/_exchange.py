"""Moving bytes between us and something that runs, with neither thread nor deadlock.

A ``Reader`` and a ``PipeWriter`` are one step each: called when their pipe is ready, they say whether there may be more. ``Exchange`` knows
which are ready and whether all has ended; it is itself a descriptor to wait for, so one loop drives it with or without asyncio or trio.
Reading ends when everything inside is dead, not only at end of file: a program may have handed its pipe to somebody outside.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import select
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from dockless.base.interrupts import waiting
from dockless.base.typing import Any, Protocol

_SMALL, READ_SIZE = 1 << 16, 1 << 17
"""Bytes of one read, at first and of a busy pipe."""
_BUSY = 1 << 20
"""Bytes after which a pipe is busy: it is then made so large, where the kernel allows it, pipe(7)."""
AT_ONCE = 16
"""Reads or writes of one pipe before the others have their turn."""
_SETPIPE_SZ, _FIONREAD = 1031, 0x541B
_TERMINAL = 1 << 18
"""Bytes; more than the kernel keeps of what a terminal has shown and nobody has read."""
_LONGEST_LINE = 1 << 20
"""Characters after which a line that does not end is handed on in pieces."""
_LONGEST_WAIT = 86400.0


class Ending(Protocol):
    """What ends some time: readable when it has to be looked at; ``sandbox.run.process.Process``."""

    def fileno(self) -> int: ...
    def poll(self) -> object | None: ...
    def wait(self, timeout: float | None = None) -> object: ...


class Splitter:
    """Bytes as they come → lines, or pieces of any size, of text where there is a decoder and of bytes where there is none."""

    def __init__(self, decoder: Any = None) -> None:
        self._decoder = decoder
        self._newline: Any = b"\n" if decoder is None else "\n"
        self.nothing: Any = self._newline[:0]
        self._pieces: deque[Any] = deque()
        self._at = 0  # how much of the first piece was taken
        self._begun: list[Any] = []  # the beginning of a line whose end is not there yet
        self._length = 0
        self.ended = False

    @property
    def empty(self) -> bool:
        return not (self._pieces or self._begun)

    def feed(self, chunk: bytes) -> None:
        """``b""`` is the end."""
        self.ended = not chunk
        piece = chunk if self._decoder is None else self._decoder.decode(chunk, self.ended)
        if piece:
            self._pieces.append(piece)

    def line(self) -> Any:
        """The next line with its end, or what there is of it at the end of everything; None where more has to be fed first."""
        while self._pieces:
            piece = self._pieces[0]
            end = piece.find(self._newline, self._at) + 1
            if end:
                return self._whole(self._advance(end))
            self._begun.append(self._advance(len(piece)))
            self._length += len(self._begun[-1])
            if self._length >= _LONGEST_LINE:
                return self._whole(self.nothing)
        return self._whole(self.nothing) if self.ended else None

    def piece(self, size: int) -> Any:
        """What is there, ``size`` at most; None where more has to be fed first, empty at the end."""
        if self._begun:
            self._pieces.appendleft(self._whole(self.nothing))  # the pieces that it was in were taken whole
        if self._pieces:
            return self._advance(min(len(self._pieces[0]), self._at + size))
        return self.nothing if self.ended else None

    def _advance(self, end: int) -> Any:
        piece = self._pieces[0]
        taken = piece[self._at : end]
        self._at = end
        if end == len(piece):
            self._pieces.popleft()
            self._at = 0
        return taken

    def _whole(self, end: Any) -> Any:
        if not self._begun:
            return end
        line = self.nothing.join((*self._begun, end))
        self._begun, self._length = [], 0
        return line


def taken(fd: int, size: int) -> bytes:
    """read(2), where a terminal that nobody has open any more has ended too: for it the kernel says EIO, pty(7)."""
    try:
        return os.read(fd, size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


class Pace:
    """How one pipe is read: once it is busy it is made larger, and read in larger pieces."""

    def __init__(self, fd: int) -> None:
        self.size = _SMALL
        self._fd = fd
        self._seen = 0

    def took(self, count: int) -> None:
        """``count`` bytes were read."""
        self._seen += count
        if self._seen >= _BUSY and self.size == _SMALL:
            self.size = READ_SIZE
            grow(self._fd)


class Reader:
    """Takes what comes out of a pipe. ``keep``: for the end, but no more than ``most`` bytes. ``tell``: a function that is to hear of it, a
    line at a time where ``decoder`` makes it text, else as it comes; whoever drives the reader calls it."""

    def __init__(
        self, fd: int, *, keep: bool = True, most: int | None = None, tell: Callable[[Any], object] | None = None, decoder: Any = None
    ) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.tell = tell
        self.dropped = 0
        self._kept = io.BytesIO() if keep else None
        self._most = most
        self._splitter = None if tell is None else Splitter(decoder)
        self._lines = decoder is not None
        self._pace = Pace(fd)

    def step(self) -> bool:
        """Read what is there, a little; whether there may be more some time."""
        if self.fd < 0:  # another task has come to its end
            return False
        for _ in range(AT_ONCE if self.tell is None else 1):
            try:
                size = self._pace.size
                chunk = taken(self.fd, size)
            except BlockingIOError:
                return True
            self._take(chunk)
            if not chunk:
                return False
            if len(chunk) < size:
                return True
        return True

    def _take(self, chunk: bytes) -> None:
        if self._kept is not None:
            room = len(chunk) if self._most is None else max(0, self._most - self._kept.tell())
            self._kept.write(chunk if room >= len(chunk) else chunk[:room])
            self.dropped += max(0, len(chunk) - room)
        if self._splitter is not None:
            self._splitter.feed(chunk)
        self._pace.took(len(chunk))

    @property
    def heard(self) -> bool:
        """Whether ``tell`` is to hear more: of what comes, or of what lies here since it raised an error."""
        return self._splitter is not None and (self.fd >= 0 or not self._splitter.empty)

    def told(self) -> Iterator[Any]:
        """What ``tell`` has not heard yet."""
        if self._splitter is None:
            return
        while piece := self._splitter.line() if self._lines else self._splitter.piece(READ_SIZE):
            yield piece

    def finish(self) -> None:
        """What still lies in the pipe is read, what somebody outside may write later is not."""
        if self.fd < 0:
            return
        left = lying_in(self.fd)
        while left > 0:
            try:
                chunk = taken(self.fd, min(left, READ_SIZE))
            except BlockingIOError:
                break
            if not chunk:
                break
            self._take(chunk)
            left -= len(chunk)
        self._take(b"")
        self.close()

    def data(self) -> bytes | None:
        """What was kept."""
        return None if self._kept is None else self._kept.getvalue()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class PipeWriter:
    """Feeds a pipe and closes it; a program that stops reading is no error."""

    tell = None

    def __init__(self, fd: int, data: bytes) -> None:
        os.set_blocking(fd, False)
        if len(data) >= _BUSY:
            grow(fd)
        self.fd = fd
        self._rest = memoryview(data)

    def step(self) -> bool:
        """Write what goes; whether there is more to write."""
        try:
            for _ in range(AT_ONCE):
                if not self._rest:
                    return False
                self._rest = self._rest[os.write(self.fd, self._rest[:_BUSY]) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            return False
        return bool(self._rest)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Exchange:
    """Some readers and writers, and that which has to end.

    A descriptor is forgotten before it is closed: while another thread starts a process, that one has a copy, and epoll(7) would go on
    to report what nobody can take out of it any more.
    """

    def __init__(self, end: Ending, pumps: Iterable[Reader | PipeWriter], watched: tuple[int, int] | None = None) -> None:
        """``watched``: a further descriptor and its event of epoll(7): ``ready`` says whether it has come."""
        self.ready = False
        self._end = end
        self._watched = -1
        self._epoll = select.epoll()
        self._epoll.register(end.fileno(), select.EPOLLIN)
        self._pumps = {pump.fd: pump for pump in pumps if pump.fd >= 0}
        for fd, pump in self._pumps.items():
            self._epoll.register(fd, select.EPOLLOUT if isinstance(pump, PipeWriter) else select.EPOLLIN)
        if watched is not None:
            self._watched = watched[0]
            self._epoll.register(*watched)

    def fileno(self) -> int:
        """Readable when ``step`` has something to do."""
        return self._epoll.fileno()

    def step(self, timeout: float | None = 0) -> bool:
        """Move what can be moved, after ``timeout`` seconds at most. Whether everything inside has ended."""
        over = False
        with waiting():
            ready = self._epoll.poll(timeout)
        for fd, _ in ready:
            pump = self._pumps.get(fd)
            if pump is not None:
                if not pump.step():
                    with contextlib.suppress(OSError):  # another task has just closed it
                        self._epoll.unregister(fd)
                    del self._pumps[fd]
                    pump.close()
            elif fd == self._watched:
                self.ready = True
            else:
                over = self._end.poll() is not None
        return over

    def close(self) -> None:
        self._epoll.close()


def exchange(end: Ending, pumps: Iterable[Reader | PipeWriter], timeout: float | None = None) -> bool:
    """Move bytes until everything inside is dead. False if ``timeout`` seconds passed before that. Errors: what a ``tell`` raises."""
    pumps = tuple(pumps)
    if not pumps:
        with contextlib.suppress(TimeoutError), waiting():
            end.wait(timeout)
            return True
        return False
    if end.poll() is not None:  # its descriptor may be closed by now
        return True
    deadline = None if timeout is None else time.monotonic() + timeout
    moving = Exchange(end, pumps)
    try:
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            over = moving.step(left if left is None else min(left, _LONGEST_WAIT))
            for pump in pumps:
                say(pump)
            if over or left == 0:
                return over
    finally:
        moving.close()


def say(pump: Reader | PipeWriter) -> None:
    """Let whoever is to hear of it hear what has come."""
    if isinstance(pump, Reader) and pump.tell is not None:
        for piece in pump.told():
            with waiting():
                pump.tell(piece)


def is_terminal(fd: int) -> bool:
    """Whether a stream of ours is a terminal and no pipe. isatty(3) says no for a moment when all programs have left the other side."""
    return stat.S_ISCHR(os.fstat(fd).st_mode)


def lying_in(fd: int) -> int:
    """Bytes that lie in a pipe. Of a terminal nobody knows more than that the kernel keeps no more: who reads so many, without blocking,
    comes to an end before."""
    return _TERMINAL if is_terminal(fd) else lying_in_pipe(fd)


def lying_in_pipe(fd: int) -> int:
    """pipe(7)"""
    return int.from_bytes(fcntl.ioctl(fd, _FIONREAD, bytes(4)), "little")


def grow(fd: int) -> None:
    """Make a busy pipe larger; a user who has many large ones already keeps it as it is."""
    try:
        fcntl.fcntl(fd, _SETPIPE_SZ, _BUSY)
    except OSError:
        pass
