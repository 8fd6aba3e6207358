"""Single requests with their errors: an answer that is an error becomes the ``OSError`` that the same call of ``os`` would raise, with the
path as it is inside."""

from __future__ import annotations

import errno
import os
import stat as modes
from collections.abc import Generator

from dockless.sandbox.files import wire
from dockless.sandbox.files.agent import Agent
from dockless.sandbox.files.wire import About, AgentAnswer, Request

ENTRIES_MAX = 100_000
"""Entries of one directory at most: what has more is not listed."""
REMOVAL = 600.0
"""Seconds that the removal of a tree may take."""
AT_ONCE = 4
"""Requests of a whole chunk each that are sent together."""

INSIDE = "inside the sandbox"
"""The note of each error of a path inside."""
READ_ONLY = "give it a place to write to: --tmpfs /tmp, --root tmpfs or a volume; in Python tmpfs=, root= or mounts="

_WORDS = {errno.ENOTSUP: "Not a regular file: a FIFO, a socket or a device"}


def failed(number: int, path: bytes) -> OSError:
    """The error of a path inside: ``FileNotFoundError`` and its like."""
    error = OSError(number, _WORDS.get(number) or os.strerror(number), os.fsdecode(path))
    error.add_note(INSIDE)
    if number == errno.EROFS:
        error.add_note(READ_ONLY)
    return error


def checked(answer: AgentAnswer, path: bytes) -> AgentAnswer:
    if answer.error:
        raise failed(answer.error, path)
    return answer


def ask(agent: Agent, path: bytes, request: Request) -> AgentAnswer:
    return checked(agent.ask(request)[0], path)


def named(op: int, path: bytes, *, flags: int = 0, handle: int = wire.ROOT, mode: int = 0, more: bytes = b"") -> Request:
    """A request about a path. ``more``: a second one."""
    contents = path + b"\0" + (more + b"\0" if more else b"")
    return Request(op, contents, flags=flags, handle=handle, mode=mode)


def look(agent: Agent, path: bytes, *, follow: bool = True, handle: int = wire.ROOT, flags: int = 0) -> tuple[About, bytes]:
    """Facts, and where a link leads."""
    flags |= 0 if follow else wire.WITH_NOFOLLOW
    return wire.about(ask(agent, path, named(wire.STAT, path, flags=flags, handle=handle)).contents)


def look_or_none(agent: Agent, path: bytes, *, follow: bool = True) -> tuple[About, bytes] | None:
    """The same, None where there is nothing."""
    answer = agent.ask(named(wire.STAT, path, flags=0 if follow else wire.WITH_NOFOLLOW))[0]
    if answer.error in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return None
    return wire.about(checked(answer, path).contents)


def opened(agent: Agent, path: bytes, flags: int, *, mode: int = 0, handle: int = wire.ROOT) -> tuple[int, About]:
    """A handle, which the caller closes, and its facts."""
    answer = ask(agent, path, named(wire.OPEN, path, flags=flags, mode=mode, handle=handle))
    return answer.result, wire.about(answer.contents)[0]


def listing(agent: Agent, path: bytes, *, handle: int = wire.ROOT, flags: int = 0) -> list[tuple[bytes, About]]:
    """The entries of a directory, sorted by name."""
    directory, _ = opened(agent, path, wire.WITH_READ | wire.WITH_DIRECTORY | flags, handle=handle)
    found: list[tuple[bytes, About]] = []
    try:
        while raw := ask(agent, path, Request(wire.LIST, handle=directory)).contents:
            found.extend(wire.entries(raw))
            if len(found) > ENTRIES_MAX:
                raise OSError(errno.EFBIG, f"More than {ENTRIES_MAX} entries in one directory", os.fsdecode(path))
    finally:
        agent.let_go(directory)
    return sorted(found, key=lambda entry: entry[0])


def content(agent: Agent, path: bytes, size: int, *, handle: int = wire.ROOT, flags: int = 0) -> Generator[bytes, None, None]:
    """What is in a file, in chunks, to its end; one of less than a chunk takes one exchange. ``size``: as it was seen."""
    flags |= wire.WITH_READ
    if size < wire.CHUNK:
        read = Request(wire.READ, handle=wire.LAST, length=wire.CHUNK)
        open_, only, _ = agent.ask(named(wire.OPEN, path, flags=flags, handle=handle), read, Request(wire.CLOSE, handle=wire.LAST))
        checked(open_, path)
        if len(checked(only, path).contents) < wire.CHUNK:
            yield only.contents
            return
    file, _ = opened(agent, path, flags, handle=handle)
    try:
        for at in range(0, 1 << 63, AT_ONCE * wire.CHUNK):
            reads = (Request(wire.READ, handle=file, offset=at + n * wire.CHUNK, length=wire.CHUNK) for n in range(AT_ONCE))
            for answer in agent.ask(*reads):
                yield checked(answer, path).contents
                if len(answer.contents) < wire.CHUNK:
                    return
    finally:
        agent.let_go(file)


def written(agent: Agent, path: bytes, handle: int, at: int, data: bytes | memoryview) -> None:
    """All of ``data``, at this offset of a file."""
    view = memoryview(data)
    for start in range(0, len(view), AT_ONCE * wire.CHUNK):
        part = view[start : start + AT_ONCE * wire.CHUNK]
        starts = range(0, len(part), wire.CHUNK)
        writes = (Request(wire.WRITE, part[n : n + wire.CHUNK], handle=handle, offset=at + start + n) for n in starts)
        for answer in agent.ask(*writes):
            checked(answer, path)


def is_directory(about: About) -> bool:
    return modes.S_ISDIR(about.mode)
