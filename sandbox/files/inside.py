"""A tree inside a sandbox, as items to copy out, and items that were copied in. Below the directory where it begins no link is followed."""

from __future__ import annotations

import errno
import os
import stat as modes
from collections.abc import Generator, Iterable

from dockless.sandbox.files import wire
from dockless.sandbox.files.agent import Agent
from dockless.sandbox.files.calls import ask, checked, content, failed, is_directory, listing, look, named, opened, written
from dockless.sandbox.files.tree import Item, Kind, Tally, below, joined
from dockless.sandbox.files.wire import WITH_BENEATH, WITH_CREATE, WITH_DIRECTORY, WITH_EXCLUSIVE, WITH_READ, WITH_WRITE, About, Request

_LONGEST = 4095


def kind_of(mode: int) -> Kind:
    return "file" if modes.S_ISREG(mode) else "directory" if modes.S_ISDIR(mode) else "link" if modes.S_ISLNK(mode) else "special"


def items(agent: Agent, path: bytes, about: About) -> Generator[Item, None, None]:
    """What is at an absolute path and, in a directory, below it, but nothing in procfs, sysfs, devpts, mqueue and those of cgroups that are
    mounted below it. A link at the path itself is followed. ``about``: what was seen there."""
    if not is_directory(about):
        yield Item(b"", kind_of(about.mode), about.mode, about.modified, about.size, content(agent, path, about.size))
        return
    base, about = opened(agent, path, WITH_READ | WITH_DIRECTORY)
    try:
        yield Item(b"", "directory", about.mode, about.modified)
        waiting = [b""]
        while waiting:
            above = waiting.pop()
            with below(path):
                found = listing(agent, above or b".", handle=base, flags=WITH_BENEATH)
            for name, about in found:
                with below(path):
                    item = _item(agent, base, path, joined(above, name), about)
                if item.kind == "directory" and not about.mode & wire.MADE_BY_KERNEL:
                    waiting.append(item.path)
                yield item
    finally:
        agent.let_go(base)


def _item(agent: Agent, base: int, top: bytes, path: bytes, about: About) -> Item:
    if len(path) > _LONGEST:
        raise failed(errno.ENAMETOOLONG, path)
    kind = kind_of(about.mode)
    target = look(agent, path, handle=base, flags=WITH_BENEATH)[1] if kind == "link" else b""
    return Item(path, kind, about.mode, about.modified, about.size, _content(agent, base, top, path, about.size), target)


def _content(agent: Agent, base: int, top: bytes, path: bytes, size: int) -> Generator[bytes, None, None]:
    with below(top):
        yield from content(agent, path, size, handle=base, flags=WITH_BENEATH)


def put(agent: Agent, path: bytes, things: Iterable[Item], tally: Tally, *, merged: bool) -> None:
    """Write items at an absolute path; its parent is there. ``merged``: it is a directory, also behind a link, and they come into it.

    A file or link that is there is replaced, never written through. Directories get their modes and times last.
    """
    parent, name = os.path.split(path)
    base, _ = opened(agent, path if merged else parent, WITH_READ | WITH_DIRECTORY)
    try:
        directories = []
        for item in things:
            at = (item.path or b".") if merged else joined(name, item.path).removesuffix(b"/")
            with below(path if merged else parent):
                if item.kind == "hardlink":
                    _link(agent, base, item.target if merged else joined(name, item.target), at, item, tally)
                elif _put(agent, base, at, item, tally):
                    directories.append((at, item))
        for at, item in reversed(directories):
            with below(path if merged else parent):
                _finish(agent, base, at, item)
    finally:
        agent.let_go(base)


def _put(agent: Agent, base: int, at: bytes, item: Item, tally: Tally) -> bool:
    """Whether it is a new directory."""
    tally.item(item)
    if item.kind == "special":
        tally.skip(item, "a FIFO, a socket or a device")
    elif item.kind == "directory":
        return at != b"." and _make_directory(agent, base, at)
    elif item.kind == "link":
        _make(agent, base, at, named(wire.SYMLINK, at, flags=WITH_BENEATH, handle=base, more=item.target))
    else:
        _write(agent, base, at, item, tally)
    return False


def _link(agent: Agent, base: int, old: bytes, at: bytes, item: Item, tally: Tally) -> None:
    tally.item(item)
    if old != at:  # a file cannot be in the way of itself
        _make(agent, base, at, named(wire.LINK, old, flags=WITH_BENEATH, handle=base, more=at))


def _make_directory(agent: Agent, base: int, at: bytes) -> bool:
    """Whether it was not there. ``FileExistsError`` for something else by that name."""
    answer = agent.ask(named(wire.MKDIR, at, flags=WITH_BENEATH, handle=base, mode=0o700))[0]
    if answer.error == errno.EEXIST and is_directory(look(agent, at, handle=base, flags=WITH_BENEATH)[0]):
        return False
    checked(answer, at)
    return True


def _make(agent: Agent, base: int, at: bytes, first: Request, *more: Request) -> int:
    """Carry out what makes a new name; what is there by that name, and is no directory, goes first. The result of the first request."""
    answers = agent.ask(first, *more)
    if answers[0].error == errno.EEXIST:
        if is_directory(look(agent, at, handle=base, flags=WITH_BENEATH)[0]):
            raise failed(errno.EISDIR, at)
        ask(agent, at, named(wire.REMOVE, at, flags=WITH_BENEATH, handle=base))
        answers = agent.ask(first, *more)
    for answer in answers:
        checked(answer, at)
    return answers[0].result


def _write(agent: Agent, base: int, at: bytes, item: Item, tally: Tally) -> None:
    """A file of one chunk takes one exchange."""
    create = named(wire.OPEN, at, flags=WITH_WRITE | WITH_CREATE | WITH_EXCLUSIVE | WITH_BENEATH, handle=base, mode=0o600)
    first = next(item.content, b"")
    tally.chunk(item, len(first))
    if len(first) < wire.CHUNK:
        write = Request(wire.WRITE, first, handle=wire.LAST)
        _make(agent, base, at, create, write, _facts(item, wire.LAST), Request(wire.CLOSE, handle=wire.LAST))
        return
    file = _make(agent, base, at, create)
    try:
        written(agent, at, file, 0, first)
        size = len(first)
        for chunk in item.content:
            tally.chunk(item, len(chunk))
            written(agent, at, file, size, chunk)
            size += len(chunk)
        ask(agent, at, _facts(item, file))
    finally:
        agent.let_go(file)


def _facts(item: Item, handle: int) -> Request:
    mode = modes.S_IMODE(item.mode)
    return Request(wire.SET, flags=wire.WITH_MODE | wire.WITH_TIME, handle=handle, mode=mode, offset=item.modified)


def _finish(agent: Agent, base: int, at: bytes, item: Item) -> None:
    open_ = named(wire.OPEN, at, flags=WITH_READ | WITH_DIRECTORY | WITH_BENEATH, handle=base)
    for answer in agent.ask(open_, _facts(item, wire.LAST), Request(wire.CLOSE, handle=wire.LAST)):
        checked(answer, at)
