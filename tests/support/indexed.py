"""Layers that are not unpacked, for tests: a tar becomes an index, the index a mount, a mount or a directory a table of facts."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dockless.images.layers import erofs
from dockless.images.layers.layers import Layer, opened
from dockless.native.erofs_index import IndexBuilder
from dockless.native.layers import UnpackedLayer

PIECE = 65536


def build(
    raw: bytes, place: Path, *, below: Sequence[Layer] | None = None, size: int = 1 << 40, entries: int = 5_000_000
) -> tuple[Layer, UnpackedLayer]:
    """``place/tar`` and ``place/index`` of an archive. ``below``: the layers below, bottom first; None: it is the lowest. ``Fault``"""
    place.mkdir(exist_ok=True)
    layer = Layer(place / "index", place / "tar")
    builder = IndexBuilder(base=below is None, size_max=size, entries_max=entries)
    for at in range(0, len(raw), PIECE):
        builder.feed(raw[at : at + PIECE])
    try:
        with open(layer.path, "wb") as out, opened(reversed(below or ())) as roots:
            written = builder.finish(out.fileno(), roots)
    finally:
        builder.close()
    assert layer.tar is not None
    layer.tar.write_bytes(raw)
    return layer, written


@contextmanager
def mounted(layer: Layer) -> Iterator[Path]:
    """The layer's root as a path."""
    fd = erofs.mount(layer.path, *layer.tars)
    try:
        yield Path(f"/proc/self/fd/{fd}/.")
    finally:
        os.close(fd)


def facts(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything that a program can see below ``root``: path to kind and mode, owner, time, xattrs, names of the same file, content."""
    found: dict[str, list[object]] = {}
    same: dict[tuple[int, int], list[str]] = {}  # an overlay shows the numbers that its layers have, each on a device of its own
    for top, directories, files in os.walk(root):
        for name in [".", *directories, *files] if top == str(root) else [*directories, *files]:
            path = os.path.join(top, name)
            info = os.lstat(path)
            relative = os.path.normpath(os.path.relpath(path, root))
            content: object = info.st_rdev
            if stat.S_ISLNK(info.st_mode):
                content = (os.readlink(path), info.st_size)
            elif stat.S_ISREG(info.st_mode):
                content = (info.st_size, hashlib.sha256(Path(path).read_bytes()).hexdigest())
            xattrs = tuple(
                sorted((key, os.getxattr(path, key, follow_symlinks=False)) for key in os.listxattr(path, follow_symlinks=False))
            )
            found[relative] = [oct(info.st_mode), info.st_uid, info.st_gid, info.st_mtime_ns, info.st_nlink, xattrs, content]
            if not stat.S_ISDIR(info.st_mode):
                same.setdefault((info.st_dev, info.st_ino), []).append(relative)
    for names in same.values():
        for name in names:
            found[name].append(tuple(sorted(names)))
    return {name: tuple(facts) for name, facts in found.items()}
