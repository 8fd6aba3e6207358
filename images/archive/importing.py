"""Import: the tar of a root file system becomes an image of one layer.

A tar that is compressed as layers are (gzip, zstd) is taken as it is: its bytes become the layer's blob. Any other (plain, xz, bzip2) is
compressed on the way. The tar comes from anywhere, so it takes the same guarded way into the store as every layer.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
from collections.abc import Iterator
from pathlib import Path

from dockless.base.typing import Any, BinaryIO, cast
from dockless.errors import BadImage, BadInput, ImageError
from dockless.images.archive.assemble import Created, Edit, NewLayer
from dockless.images.archive.commit import pack, register
from dockless.images.archive.diff import WrittenLayer
from dockless.images.archive.packing import SUFFIX, Compression, check_level
from dockless.images.archive.tarwriter import Writable
from dockless.images.catalog.catalog import Catalog
from dockless.images.catalog.image import Image
from dockless.images.catalog.reserving import reserved
from dockless.images.files import check_room, explained, temporary_directory
from dockless.images.layers.compression import CHUNK, Decompressed
from dockless.images.model import manifest
from dockless.images.model.digest import Digest
from dockless.images.model.platforms import Platform

_BLOCK = 512
_ROOM = 64 << 20


def import_root(
    store: Catalog,
    source: str | Path | BinaryIO,
    *,
    reference: str | None = None,
    edit: Edit | None = None,
    platform: Platform | None = None,
    compression: Compression | None = None,
    level: int | None = None,
    created: float | datetime.datetime | None = None,
    created_by: str = "",
) -> Image:
    """An image out of the tar at ``source`` (a path, or a stream that is read to its end).

    ``edit``: its configuration. ``platform``: this host's if it is not given. ``compression``: of the layer; None: as it comes if layers
    can be so, else gzip. Raises ``BadInput``, ``BadImage``, ``UnsafeLayer``, ``ImageError``; the store stays sound.
    """
    what = str(source) if isinstance(source, (str, os.PathLike)) else "the stream"
    name = store.check_name(reference) if reference is not None else None
    level_used = check_level(compression or "gzip", level)
    when = Created.of(created)
    with (
        explained(f"cannot import {what}", what, f"check that it can be read, and that the store {store.root} has room"),
        reserved(store, os.stat(source).st_size if isinstance(source, (str, os.PathLike)) else 0, what),
        store.using(),
        temporary_directory(store.root / "tmp") as scratch,
        _opened(source, what) as raw,
    ):
        blob = scratch / "blob"
        with open(os.open(blob, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb", buffering=0) as out:
            tee = _Tee(raw, out)
            content = Decompressed(cast(BinaryIO, tee), what)
            kept = compression is None and content.kind in ("gzip", "zstd")
            if kept:
                layer = _as_it_is(content, tee, what, store.limits.size)
            else:
                tee.stop()
        if not kept:
            blob.unlink()
            wanted: Compression = compression or "gzip"
            _, packed = pack(blob, lambda out: _copied(content, out, what, store.limits.size), wanted, level_used, what)
            layer = NewLayer(packed.diff_id, packed.digest, packed.size, manifest.OCI_LAYER + SUFFIX[wanted])
        by = created_by or f"import of {os.path.basename(what) or what}"
        return register(store, None, layer, blob, name, edit or Edit(), when, by, platform=platform)


@contextlib.contextmanager
def _opened(source: str | Path | BinaryIO, what: str) -> Iterator[BinaryIO]:
    if not isinstance(source, (str, os.PathLike)):
        yield source
        return
    if Path(source).is_dir():
        raise BadInput(f"{what} is a directory", subject=what, hint=f"make a tar of it: tar -C {what} -cf root.tar .")
    with open(source, "rb") as stream:
        yield stream


class _Tee(io.RawIOBase):
    """What is read is kept, and hashed, until ``stop``."""

    def __init__(self, raw: BinaryIO, out: BinaryIO) -> None:
        self._raw = raw
        self._out: BinaryIO | None = out
        self._hash: Any = Digest("sha256", "").hasher()
        self._room = 0
        self.done = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(CHUNK if size < 0 else size)
        self.done += len(data)
        if self._out is not None:
            if self.done >= self._room:
                check_room(self._out.fileno(), len(data), "the import")
                self._room = self.done + _ROOM
            self._hash.update(data)
            self._out.write(data)
        return data

    def stop(self) -> None:
        self._out = None

    def digest(self) -> Digest:
        return Digest("sha256", self._hash.hexdigest())


def _as_it_is(content: Decompressed, tee: _Tee, what: str, limit: int) -> NewLayer:
    hasher = Digest("sha256", "").hasher()
    for piece in _pieces(content, what, limit):
        hasher.update(piece)
    while tee.read():
        pass
    return NewLayer(Digest("sha256", hasher.hexdigest()), tee.digest(), tee.done, manifest.OCI_LAYER + SUFFIX[content.kind])


def _copied(content: Decompressed, out: Writable, what: str, limit: int) -> WrittenLayer:
    for piece in _pieces(content, what, limit):
        out.write(piece)
    return WrittenLayer(0, 0, ())


def _pieces(content: Decompressed, what: str, limit: int) -> Iterator[bytes]:
    """All of the content, looked at once: does it begin as a tar does, and is it within the store's limits?"""
    done = 0
    head = b""
    while piece := content.read(CHUNK):
        if len(head) < _BLOCK:
            head += piece[:_BLOCK]
            if len(head) >= _BLOCK and not _is_header(head[:_BLOCK]):
                raise _no_tar(what)
        done += len(piece)
        if done > limit:
            raise ImageError(f"{what} is more than {limit} bytes", subject=what, hint="raise the limits of the store if you trust it")
        yield piece
    if len(head) < _BLOCK:
        raise _no_tar(what)


def _is_header(block: bytes) -> bool:
    """A tar header by its checksum, or the zeros that end an empty archive."""
    if block == bytes(_BLOCK):
        return True
    try:
        stated = int(block[148:156].strip(b" \0"), 8)
    except ValueError:
        return False
    bytes_summed = block[:148] + b" " * 8 + block[156:]
    return stated in (sum(bytes_summed), sum(bytes_summed) - 256 * sum(byte > 127 for byte in bytes_summed))


def _no_tar(what: str) -> BadImage:
    return BadImage(f"{what} is not a tar archive", subject=what, hint="give the tar of a root file system, compressed or not")
