"""A file of a sandbox as a file object of Python's."""

from __future__ import annotations

import io
import os

from dockless.base.typing import IO, Any
from dockless.errors import BadInput
from dockless.sandbox.files import wire
from dockless.sandbox.files.agent import Agent
from dockless.sandbox.files.calls import ask, look, opened, written
from dockless.sandbox.files.wire import Request

_MODES = {
    "r": wire.WITH_READ,
    "w": wire.WITH_WRITE | wire.WITH_CREATE | wire.WITH_TRUNCATE,
    "a": wire.WITH_WRITE | wire.WITH_CREATE | wire.WITH_APPEND,
    "x": wire.WITH_WRITE | wire.WITH_CREATE | wire.WITH_EXCLUSIVE,
}


class Raw(io.RawIOBase):
    """Unbuffered, with a position of its own."""

    def __init__(self, agent: Agent, path: bytes, flags: int) -> None:
        super().__init__()
        self._agent, self._path, self._flags = agent, path, flags
        self._handle = -1
        self._handle, about = opened(agent, path, flags, mode=0o666)
        self._at = about.size if flags & wire.WITH_APPEND else 0
        self.name = os.fsdecode(path)

    def readable(self) -> bool:
        return bool(self._flags & wire.WITH_READ)

    def writable(self) -> bool:
        return bool(self._flags & wire.WITH_WRITE)

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        answer = self._ask(Request(wire.READ, handle=self._handle, offset=self._at, length=min(len(view), wire.CHUNK)))
        size = len(answer.contents)
        if size > len(view):
            raise OSError(f"{size} bytes came where {len(view)} were asked for")
        view[:size] = answer.contents
        self._at += size
        return size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._check()
        written(self._agent, self._path, self._handle, self._at, view)
        self._at = self._size() if self._flags & wire.WITH_APPEND else self._at + len(view)
        return len(view)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence)
        at = offset + (self._size() if base is None else base)
        if at < 0 or whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"cannot seek to {offset} from {whence}")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def truncate(self, size: int | None = None) -> int:
        size = self._at if size is None else size
        self._ask(Request(wire.SET, flags=wire.WITH_SIZE, handle=self._handle, length=size))
        return size

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._handle >= 0:
                self._agent.let_go(self._handle)

    def _size(self) -> int:
        self._check()
        return look(self._agent, b"", handle=self._handle)[0].size

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _ask(self, request: Request) -> wire.AgentAnswer:
        self._check()
        return ask(self._agent, self._path, request)


def open_file(agent: Agent, path: bytes, mode: str, encoding: str | None, errors: str | None, newline: str | None) -> IO[Any]:
    """As the built-in ``open`` makes it, always buffered; text is UTF-8 unless ``encoding`` says otherwise."""
    kind, plus = mode.replace("b", "").replace("t", "")[:1], "+" in mode
    if kind not in _MODES or sorted(mode) != sorted({*mode}) or not {*mode} <= {kind, "+", "b", "t"} or {"b", "t"} <= {*mode}:
        raise BadInput(f"{mode!r} is no mode of a file", subject="mode", hint="write r, w, a or x, with b for bytes and + for both ways")
    if "b" in mode and (encoding, errors, newline) != (None, None, None):
        raise BadInput("bytes have no encoding, errors or newline", subject="mode", hint="leave them out, or open it as text")
    raw = Raw(agent, path, _MODES[kind] | (wire.WITH_READ | wire.WITH_WRITE if plus else 0))
    if plus:
        buffered: Any = io.BufferedRandom(raw, wire.CHUNK)
    else:
        buffered = io.BufferedReader(raw, wire.CHUNK) if kind == "r" else io.BufferedWriter(raw, wire.CHUNK)
    if "b" in mode:
        return buffered  # type: ignore[no-any-return]
    return io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline)
