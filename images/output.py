"""Where an archive goes: a path that appears whole or not at all, a pipe, an open file; compressed or not."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dockless.errors import BadInput
from dockless.images.files import replacing
from dockless.images.packing import Compression, Packer
from dockless.images.tarwriter import Output, TarWriter

Destination = str | Path | BinaryIO


def shown(destination: Destination) -> str:
    """For messages."""
    return str(destination) if isinstance(destination, (str, Path)) else "the stream"


@contextlib.contextmanager
def archive(destination: Destination, compression: Compression = "none", level: int | None = None) -> Iterator[TarWriter]:
    """A tar to be written to ``destination``; it is finished at the end of the block."""
    with packed(destination, compression, level) as out:
        tar = TarWriter(out)
        yield tar
        tar.finish()


@contextlib.contextmanager
def packed(destination: Destination, compression: Compression = "none", level: int | None = None) -> Iterator[Output]:
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
def opened(destination: Destination) -> Iterator[Output]:
    """The destination, open for writing; a regular file is replaced when the block has ended well."""
    if not isinstance(destination, (str, Path)):
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
