"""The three standard streams of a program: pipes, files, nothing; and what is text in them."""

from __future__ import annotations

import os

from dockless.base.text import shown
from dockless.base.typing import IO, Any
from dockless.errors import BadInput

PIPE, STDOUT, DEVNULL = -1, -2, -3
"""The same numbers as ``subprocess`` has."""
Stream = int | IO[Any] | None


class Stdio:
    """The program's fds 0-2 and our ends of their pipes. ``ours[i]`` is -1 where there is no pipe. Whoever takes an end sets it to -1."""

    def __init__(self, stdin: Any = None, stdout: Any = None, stderr: Any = None) -> None:
        self.ours = [-1, -1, -1]
        self.theirs = [0, 1, 2]
        self._opened: list[int] = []
        self._null = -1
        try:
            for number, given in enumerate((stdin, stdout, stderr)):
                self.theirs[number] = self._open(number, given)
        except BaseException:
            self.close()
            raise

    def _open(self, number: int, given: Any) -> int:
        if given is None:
            return number if _is_open(number) else self._nothing()
        if given == PIPE:
            reader, writer = os.pipe2(os.O_CLOEXEC)
            # So that "> /dev/stderr" works for the sandbox's users too, who are not the pipe's owner: it opens /proc/self/fd/2.
            os.fchmod(reader, 0o666)
            mine, its = (writer, reader) if number == 0 else (reader, writer)
            self.ours[number] = mine
            return self._keep(its)
        if given == DEVNULL:
            return self._nothing()
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

    def _nothing(self) -> int:
        if self._null < 0:
            self._null = self._keep(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        return self._null

    def _keep(self, fd: int) -> int:
        self._opened.append(fd)
        return fd

    def join(self, terminal: int) -> None:
        """Ours are both sides of one terminal."""
        self.ours = [os.dup(terminal), terminal, -1]

    def started(self) -> None:
        """The program has its ends; ours of them would only keep pipes open."""
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

    def encode(self, data: Any, name: str = "input") -> bytes:
        """What goes to stdin. ``BadInput`` for text without ``text=True`` and the other way round."""
        if not isinstance(data, str if self.on else (bytes, bytearray, memoryview)):
            got = "a text" if isinstance(data, str) else "bytes" if isinstance(data, bytes) else shown(data)
            wanted = "a text: text=True is given" if self.on else "bytes: text=True is not given"
            raise BadInput(f"{name} is {got}, not {wanted}", subject=name, hint="give text=True for a text, leave it out for bytes")
        if not isinstance(data, str):
            return bytes(data)
        try:
            return data.encode(self.encoding or "utf-8", self.errors)
        except UnicodeError:
            hint = "give another encoding, or errors='surrogateescape'"
            raise BadInput(f"{name} cannot be written in {self.encoding}", subject=name, hint=hint) from None

    def decode(self, data: bytes) -> Any:
        if not self.on:
            return data
        return data.decode(self.encoding or "utf-8", self.errors).replace("\r\n", "\n").replace("\r", "\n")

    def whole(self, data: bytes) -> bytes:
        """Without a character that was cut in two at the end."""
        if not self.on:
            return data
        import codecs

        decoder = codecs.getincrementaldecoder(self.encoding or "utf-8")("replace")
        decoder.decode(data[-64:])
        return data[: len(data) - len(decoder.getstate()[0])]

    def decoder(self) -> Any:
        """An incremental decoder of what comes in pieces, which makes every line end "\\n"; None for bytes."""
        if not self.on:
            return None
        import codecs
        import io

        return io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(self.encoding or "utf-8")(self.errors), translate=True)
