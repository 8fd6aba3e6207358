"""The three standard streams of a job: pipes, files, nothing; and moving the bytes, with neither thread nor deadlock.

A ``Reader`` and a ``Writer`` are one step each: call them when their fd is ready, they say whether they are still open. ``exchange`` drives
them with a selector; ``arun`` and ``async with`` drive the same ones with asyncio's loop. Reading ends when everything inside is dead, not
only at end of file: a job may have handed its pipe to somebody outside.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from typing import Any, Protocol

from dockless.base.text import shown
from dockless.errors import BadInput

PIPE, STDOUT, DEVNULL = -1, -2, -3
"""The same numbers as ``subprocess`` has."""
_CHUNK = 1 << 16
_GETPIPE_SZ = 1032


class Stdio:
    """The job's fds 0-2 and our ends of their pipes. ``ours[i]`` is -1 where there is no pipe. Whoever takes an end sets it to -1."""

    def __init__(self, stdin: Any = None, stdout: Any = None, stderr: Any = None) -> None:
        self.ours = [-1, -1, -1]
        self.theirs = [0, 1, 2]
        self._opened: list[int] = []
        try:
            for number, given in enumerate((stdin, stdout, stderr)):
                self.theirs[number] = self._open(number, given)
        except BaseException:
            self.close()
            raise

    def _open(self, number: int, given: Any) -> int:
        if given is None:
            return number if _is_open(number) else self._keep(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        if given == PIPE:
            reader, writer = os.pipe2(os.O_CLOEXEC)
            # So that "> /dev/stderr" works for the sandbox's users too, who are not the pipe's owner: it opens /proc/self/fd/2.
            os.fchmod(reader, 0o666)
            mine, its = (writer, reader) if number == 0 else (reader, writer)
            self.ours[number] = mine
            return self._keep(its)
        if given == DEVNULL:
            return self._keep(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        if given == STDOUT:
            if number != 2:
                raise BadInput("STDOUT is only for stderr", subject="STDOUT", hint="stderr=STDOUT joins the two")
            return self.theirs[1]
        name = ("stdin", "stdout", "stderr")[number]
        try:
            fd = given if isinstance(given, int) else int(given.fileno())
        except (OSError, ValueError):  # closed, or no file of the system's
            raise BadInput(f"{name} is a file without a descriptor", subject=name, hint="give an open file, PIPE or DEVNULL") from None
        if not 0 <= fd < 1 << 31 or not _is_open(fd):
            raise BadInput(f"{name}: descriptor {fd} is not open", subject=name, hint="give an open file, PIPE or DEVNULL")
        return fd

    def _keep(self, fd: int) -> int:
        self._opened.append(fd)
        return fd

    def started(self) -> None:
        """The job has its ends; ours of them would only keep pipes open."""
        while self._opened:
            os.close(self._opened.pop())

    def take(self, number: int) -> int:
        fd, self.ours[number] = self.ours[number], -1
        return fd

    def close(self) -> None:
        self.started()
        for number in range(3):
            fd = self.take(number)
            if fd >= 0:
                os.close(fd)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


class Reader:
    """Collects what comes out of a pipe."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._chunks: list[bytes] = []

    def step(self) -> bool:
        """Read what is there, a little; whether there may be more some time."""
        try:
            chunk = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return True
        self._chunks.append(chunk)
        return bool(chunk)

    def finish(self) -> bytes:
        """Everything; what still lies in the pipe is read, what somebody outside may write later is not."""
        if self.fd >= 0:
            left = fcntl.fcntl(self.fd, _GETPIPE_SZ)
            while left > 0:
                try:
                    chunk = os.read(self.fd, min(left, _CHUNK))
                except BlockingIOError:
                    break
                if not chunk:
                    break
                self._chunks.append(chunk)
                left -= len(chunk)
            self.close()
        return b"".join(self._chunks)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Writer:
    """Feeds a pipe and closes it; a job that stops reading is no error."""

    def __init__(self, fd: int, data: bytes) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._rest = memoryview(data)

    def step(self) -> bool:
        """Write what goes; whether there is more to write."""
        try:
            while self._rest:
                self._rest = self._rest[os.write(self.fd, self._rest[:_CHUNK]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            pass
        return False

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Ending(Protocol):
    """What ends some time: readable when it has to be looked at; ``sandbox.run.process.Process``."""

    def fileno(self) -> int: ...
    def poll(self) -> object | None: ...


def exchange(end: Ending, readers: Iterable[Reader], writer: Writer | None, timeout: float | None = None) -> bool:
    """Move bytes until everything inside is dead. False if ``timeout`` seconds passed before that.

    A descriptor is forgotten before it is closed: while another thread starts a process, that one has a copy, and epoll(7) would go on
    to report what nobody can take out of it any more.
    """
    import selectors
    import time

    deadline = None if timeout is None else time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        selector.register(end, selectors.EVENT_READ)
        for reader in readers:
            if reader.fd >= 0:
                selector.register(reader.fd, selectors.EVENT_READ, reader)
        if writer is not None and writer.fd >= 0:
            selector.register(writer.fd, selectors.EVENT_WRITE, writer)
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = selector.select(left)
            if not ready and left == 0:
                return False
            over = False
            for key, _ in ready:
                if key.data is None:
                    over = end.poll() is not None
                elif not key.data.step():
                    selector.unregister(key.fd)
                    key.data.close()
            if over:
                return True


def _look_up(encoding: str, errors: str) -> None:
    import codecs

    for name, value, find in (("encoding", encoding, "".encode), ("errors", errors, codecs.lookup_error)):
        try:
            find(value)
        except (LookupError, ValueError):
            raise BadInput(
                f"{name} {shown(value)} is unknown", subject=name, hint="as str.encode has them: utf-8, surrogateescape"
            ) from None


class Text:
    """``text``, ``encoding`` and ``errors`` as ``subprocess`` has them: bytes in and out unless one of them is given."""

    def __init__(self, text: bool | None, encoding: str | None, errors: str | None) -> None:
        """``BadInput`` for an encoding or a way to treat errors that nobody knows."""
        if encoding or errors:
            _look_up(encoding or "utf-8", errors or "strict")
        self.on = bool(text or encoding or errors)
        self.encoding = encoding
        self.errors = errors or "strict"
        if self.on and encoding is None:
            import locale

            self.encoding = locale.getencoding()

    def encode(self, data: Any) -> bytes:
        """What goes to stdin. ``BadInput`` for text without ``text=True`` and the other way round."""
        if not isinstance(data, str if self.on else (bytes, bytearray, memoryview)):
            got = "a text" if isinstance(data, str) else "bytes" if isinstance(data, bytes) else shown(data)
            wanted = "a text: text=True is given" if self.on else "bytes: text=True is not given"
            raise BadInput(f"input is {got}, not {wanted}", subject="input", hint="give text=True for a text, leave it out for bytes")
        if not isinstance(data, str):
            return bytes(data)
        try:
            return data.encode(self.encoding or "utf-8", self.errors)
        except UnicodeError:
            hint = "give another encoding, or errors='surrogateescape'"
            raise BadInput(f"input cannot be written in {self.encoding}", subject="input", hint=hint) from None

    def decode(self, data: bytes) -> str | bytes:
        if not self.on:
            return data
        return data.decode(self.encoding or "utf-8", self.errors).replace("\r\n", "\n").replace("\r", "\n")

    def open(self, fd: int, mode: str) -> Any:
        """A file object for our end of a pipe, as ``Popen`` gives it."""
        import io

        raw: Any = io.FileIO(fd, mode + "b")
        buffered: Any = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
        if not self.on:
            return buffered
        return io.TextIOWrapper(buffered, encoding=self.encoding, errors=self.errors, write_through=mode == "w", line_buffering=mode == "w")
