"""A tree on the host, as items to copy in, and items that were copied out.

What comes out of a sandbox is written below one directory that is opened once: no link is followed there, also none that the sandbox made a
moment ago, a file that is there is replaced and never written through, and neither special files nor set-user-id bits are made. A link is
made only if it cannot lead out of what was copied.
"""

from __future__ import annotations

import errno
import os
import stat as modes
from collections.abc import Callable, Generator, Iterable, Iterator

from dockless import native
from dockless.base.typing import TypeVar
from dockless.sandbox.files.inside import kind_of
from dockless.sandbox.files.tree import NOTHING, Item, Tally, below, joined, leads_out
from dockless.sandbox.files.wire import CHUNK

T = TypeVar("T")
_BELOW = native.RESOLVE_BENEATH | native.RESOLVE_NO_SYMLINKS
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ZEROS = bytes(CHUNK)


def items(path: bytes) -> Generator[Item, None, None]:
    """What is at a path and, in a directory, below it. A link at the path itself is followed, below it none is."""
    path = os.path.join(os.getcwdb(), path)
    found = os.stat(path)
    if not modes.S_ISDIR(found.st_mode):
        yield _item(b"", found, _content(path, b"", -1))
        return
    base = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _item(b"", os.fstat(base))
        waiting = [b""]
        while waiting:
            with below(path):
                found_here = _entries(base, path, waiting.pop())
            for item in found_here:
                if item.kind == "directory":
                    waiting.append(item.path)
                yield item
    finally:
        os.close(base)


def _entries(base: int, top: bytes, above: bytes) -> list[Item]:
    """What is in one directory now."""
    found = []
    folder = native.openat2(base, above or b".", _DIRECTORY, resolve=_BELOW)
    try:
        for name in sorted(map(os.fsencode, os.listdir(folder))):
            path = joined(above, name)
            try:
                about = os.stat(name, dir_fd=folder, follow_symlinks=False)
                target = os.readlink(name, dir_fd=folder) if modes.S_ISLNK(about.st_mode) else b""
            except FileNotFoundError:  # gone since
                continue
            found.append(_item(path, about, _content(top, path, base), target))
    finally:
        os.close(folder)
    return found


def _item(path: bytes, found: os.stat_result, content: Iterator[bytes] = NOTHING, target: bytes = b"") -> Item:
    return Item(path, kind_of(found.st_mode), found.st_mode, found.st_mtime_ns, found.st_size, content, target)


def _content(top: bytes, path: bytes, base: int) -> Generator[bytes, None, None]:
    how = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with below(top):
        fd = os.open(top, how) if base < 0 else native.openat2(base, path, how | os.O_NOFOLLOW, resolve=_BELOW)
    try:
        if not modes.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.ENOTSUP, "Not a regular file any more", os.path.join(top, path))
        while chunk := os.read(fd, CHUNK):
            yield chunk
    finally:
        os.close(fd)


def put(path: bytes, things: Iterable[Item], tally: Tally, *, merged: bool) -> None:
    """Write items at a path; its parent is there. ``merged``: it is a directory, also behind a link, and they come into it.

    Directories get their modes and times last.
    """
    parent, name = os.path.split(os.path.join(os.getcwdb(), path))
    place = os.path.join(parent, name) if merged else parent
    base = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        directories = []
        for item in things:
            at = item.path if merged else joined(name, item.path).removesuffix(b"/")
            with below(place):
                if _put(base, at, item, tally):
                    directories.append((at, item))
        for at, item in reversed(directories):
            with below(place):
                _finish(base, at, item)
    finally:
        os.close(base)


def _put(base: int, at: bytes, item: Item, tally: Tally) -> bool:
    """Whether it is a new directory."""
    tally.item(item)
    if item.kind == "special" or (item.kind == "link" and leads_out(item.path, item.target)):
        link = item.kind == "link"
        tally.skip(item, f"a link that leads out, to {os.fsdecode(item.target)!r}" if link else "a FIFO, a socket or a device")
        return False
    if not at:  # the directory itself, which is there
        return False
    above, name = os.path.split(at)
    folder = native.openat2(base, above or b".", os.O_PATH | os.O_DIRECTORY, resolve=_BELOW)
    try:
        if item.kind == "directory":
            return _make_directory(folder, name)
        if item.kind == "link":
            _replacing(folder, name, lambda: os.symlink(item.target, name, dir_fd=folder))
            return False
        fd = _replacing(folder, name, lambda: os.open(name, os.O_WRONLY | _NEW, 0o600, dir_fd=folder))
        try:
            _fill(fd, item, tally)
        finally:
            os.close(fd)
        return False
    except OSError as error:
        if not os.fsdecode(error.filename or "").startswith("/"):
            error.filename = os.fsdecode(at)
        raise
    finally:
        os.close(folder)


def _make_directory(folder: int, name: bytes) -> bool:
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        os.close(os.open(name, _DIRECTORY, dir_fd=folder))  # an error where it is something else
        return False
    return True


def _replacing(folder: int, name: bytes, make: Callable[[], T]) -> T:
    """Make a new name; a file or a link that has it goes first. ``IsADirectoryError``, ``FileExistsError`` for a FIFO or a device."""
    try:
        return make()
    except FileExistsError:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if modes.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(name)) from None
        if not (modes.S_ISREG(mode) or modes.S_ISLNK(mode)):
            raise
    os.unlink(name, dir_fd=folder)
    return make()


def _fill(fd: int, item: Item, tally: Tally) -> None:
    """Chunks of zeros become holes."""
    size = 0
    for chunk in item.content:
        tally.chunk(item, len(chunk))
        if len(chunk) < CHUNK or chunk != _ZEROS:
            view = memoryview(chunk)
            done = 0
            while done < len(view):
                done += os.pwrite(fd, view[done:], size + done)
        size += len(chunk)
    os.ftruncate(fd, size)
    _set(fd, item)


def _set(fd: int, item: Item) -> None:
    os.fchmod(fd, item.mode & 0o777)
    os.utime(fd, ns=(item.modified, item.modified))


def _finish(base: int, at: bytes, item: Item) -> None:
    fd = native.openat2(base, at, _DIRECTORY, resolve=_BELOW)
    try:
        _set(fd, item)
    finally:
        os.close(fd)
