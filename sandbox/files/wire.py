"""What is said to the agent and what it answers: the numbers and structures of ``native/agent/agent.h``."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from dockless.base.dataclass import dataclass
from dockless.errors import BadAnswer

CHUNK = 1 << 18
"""Bytes of a request's or an answer's contents at most."""
LAST, ROOT = -1, -100
"""Handles: what the latest OPEN gave; none, for absolute paths."""

OPEN, CLOSE, READ, WRITE, LIST, STAT, MKDIR, REMOVE, RENAME, SYMLINK, SET, WATCH, EVENTS, LINK = range(1, 15)

WITH_READ, WITH_WRITE, WITH_CREATE, WITH_EXCLUSIVE, WITH_TRUNCATE, WITH_APPEND, WITH_DIRECTORY = (1 << bit for bit in range(7))
WITH_NOFOLLOW, WITH_BENEATH, WITH_TREE, WITH_MODE, WITH_TIME, WITH_SIZE = (1 << bit for bit in range(7, 13))

MADE_BY_KERNEL = 1 << 16
"""Of a mode, in the answer to LIST: a file system without files of anybody is mounted there."""

_REQUEST = struct.Struct("=IHHiIQQ")
ANSWER = struct.Struct("=iI")
_ABOUT = struct.Struct("=IIIIQQq")
_LENGTH = struct.Struct("=H")
_EVENT = struct.Struct("=iIII")
_LONGEST_NAME, _LONGEST_PATH = 255, 4095
_ERRNOS = 4095


def nonsense(what: str) -> BadAnswer:
    """The error for what no agent of ours says."""
    hint = "something inside changes what is said about its files: trust no more of what it says"
    return BadAnswer(f"the sandbox's answer about its files makes no sense: {what}", hint=hint)


@dataclass(frozen=True, slots=True)
class Request:
    op: int
    contents: bytes | memoryview = b""
    flags: int = 0
    handle: int = ROOT
    mode: int = 0
    offset: int = 0
    length: int = 0

    def encoded(self) -> bytes:
        """Its header; the contents follow."""
        offset = self.offset % (1 << 64)  # a time before 1970
        return _REQUEST.pack(len(self.contents), self.op, self.flags, self.handle, self.mode, offset, self.length)


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """``error``: an errno, 0 where it was done."""

    result: int
    contents: bytes

    @property
    def error(self) -> int:
        return max(0, -self.result)


@dataclass(frozen=True, slots=True)
class About:
    """As stat(2) has it. ``modified``: nanoseconds since 1970."""

    mode: int
    links: int
    uid: int
    gid: int
    inode: int
    size: int
    modified: int


def answer_header(raw: bytes) -> tuple[int, int]:
    """Result and size of the contents. ``BadAnswer``"""
    result, size = ANSWER.unpack(raw)
    if size > CHUNK or result < -_ERRNOS or (result < 0 and size):
        raise nonsense(f"result {result} with {size} bytes")
    return result, size


def about(raw: bytes) -> tuple[About, bytes]:
    """The facts an answer begins with, and what follows them. ``BadAnswer``"""
    if len(raw) < _ABOUT.size:
        raise nonsense(f"{len(raw)} bytes of facts")
    found = About(*_ABOUT.unpack_from(raw))
    if found.size >= 1 << 63:
        raise nonsense(f"a size of {found.size} bytes")
    rest = raw[_ABOUT.size :]
    if len(rest) > _LONGEST_PATH + 1 or b"\0" in rest:
        raise nonsense("a link to nowhere")
    return found, rest


def entries(raw: bytes) -> Iterator[tuple[bytes, About]]:
    """Names and facts of a LIST. ``BadAnswer``"""
    at = 0
    while at < len(raw):
        if len(raw) - at < _ABOUT.size + _LENGTH.size:
            raise nonsense("half an entry")
        found, _ = about(raw[at : at + _ABOUT.size])
        at += _ABOUT.size
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        name = raw[at : at + length]
        at += length
        if len(name) < length:
            raise nonsense("half a name")
        yield checked_name(name), found


def checked_name(name: bytes) -> bytes:
    """A name of a directory's entry. ``BadAnswer`` for what the kernel gives nobody, and what would lead elsewhere."""
    if not name or name in (b".", b"..") or b"/" in name or b"\0" in name or len(name) > _LONGEST_NAME:
        raise nonsense(f"a name {name[:80]!r}")
    return name


def events(raw: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Watch, mask and name of each record of inotify(7). ``BadAnswer``"""
    at = 0
    while at < len(raw):
        if len(raw) - at < _EVENT.size:
            raise nonsense("half an event")
        watch, mask, _, length = _EVENT.unpack_from(raw, at)
        at += _EVENT.size
        name = raw[at : at + length]
        if len(name) < length:
            raise nonsense("half an event's name")
        at += length
        name = name.partition(b"\0")[0]
        yield watch, mask, checked_name(name) if name else b""
