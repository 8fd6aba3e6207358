"""Where an archive goes: a path that appears whole or not at all, a pipe, an open file; compressed or not."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dockless.base.typing import BinaryIO
from dockless.errors import BadInput, ImageError, NoRoom
from dockless.images.archive.packing import Compression, Packer
from dockless.images.archive.tarwriter import TarWriter, Writable
from dockless.images.files import replacing

Destination = str | Path | BinaryIO
_STREAM = "the stream"


def shown(destination: Destination) -> str:
    """For messages."""
    return str(destination) if isinstance(destination, (str, os.PathLike)) else _STREAM


@contextlib.contextmanager
def unwritten(destination: Destination) -> Iterator[None]:
    """An ``OSError`` inside becomes an ``ImageError`` of the destination, ``NoRoom`` where its file system is full."""
    try:
        yield
    except OSError as error:
        where = shown(destination)
        place = None if where == _STREAM else _file_system(Path(where))
        message = f"cannot write {where}: {error.strerror or error}"
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            hint = "write where its reader takes it all" if place is None else f"look at the file system {place}, or write to another place"
            raise ImageError(message, subject=where, hint=hint) from error
        hint = "make room where it goes" if place is None else f"make room on the file system {place}, or write to another one"
        raise NoRoom(message, subject=where, hint=hint) from error


def _file_system(path: Path) -> Path:
    """Where the file system that a path is on, or would be, is mounted."""
    place = path.resolve()
    return next(p for p in (place, *place.parents) if p.is_mount() or p == p.parent)


class _Written:
    """An output whose errors are the destination's: reading what is written may fail, too."""

    def __init__(self, out: Writable, destination: Destination) -> None:
        self._out = out
        self._destination = destination

    def write(self, data: bytes, /) -> object:
        with unwritten(self._destination):
            return self._out.write(data)


@contextlib.contextmanager
def archive(destination: Destination, compression: Compression = "none", level: int | None = None) -> Iterator[TarWriter]:
    """A tar to be written to ``destination``; it is finished at the end of the block. The errors are ``unwritten``'s: what fails in the
    block for another reason must not leave it as an ``OSError``."""
    with packed(destination, compression, level) as out:
        tar = TarWriter(out)
        yield tar
        tar.finish()


@contextlib.contextmanager
def packed(destination: Destination, compression: Compression = "none", level: int | None = None) -> Iterator[Writable]:
    """``destination``, open for bytes that are compressed on the way."""
    with opened(destination) as out:
        if compression == "none":
            yield out
            return
        packer = Packer(out, compression, level)
        try:
            yield packer
            packer.close()
        finally:
            packer.abort()


@contextlib.contextmanager
def opened(destination: Destination) -> Iterator[Writable]:
    """The destination, open for writing; a regular file is replaced when the block has ended well."""
    with unwritten(destination), _opened(destination) as out:
        yield _Written(out, destination)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Writable]:
    """A new file that takes the place of ``path``, be that a link, when the block has ended well."""
    with unwritten(path), replacing(path, 0o666) as out:
        yield _Written(out, path)


@contextlib.contextmanager
def _opened(destination: Destination) -> Iterator[Writable]:
    if not isinstance(destination, (str, os.PathLike)):
        yield destination
        destination.flush()
        return
    path = Path(destination)
    if path.is_dir():
        raise BadInput(f"{path} is a directory", subject=str(path), hint="name a file in it")
    try:
        special = not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        special = False
    if special:  # a pipe, /dev/stdout: nothing that could be replaced
        with open(_open_special(path), "wb") as out:
            yield out
        return
    with replacing(path.resolve(), 0o666) as out:
        yield out


def _open_special(path: Path) -> int:
    """Without making or cutting anything: whoever owns the directory may have put a link to a file there since we looked."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BadInput(f"{path} was replaced by a file just now", subject=str(path), hint="write where nobody else can")
    return fd
