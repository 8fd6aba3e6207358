"""Images of one extreme layer each, for what memory depends on: one huge file, very many entries. Kept beside the bench's image."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_image import _layout, cache

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Odd:
    """``files`` of ``size`` bytes in one layer."""

    key: str
    title: str
    files: int
    size: int


ODD = (Odd("huge", "a layer of one file of 3 GiB", 1, 3 << 30), Odd("many", "a layer of 300,000 empty files", 300_000, 0))


def odd_layout(odd: Odd) -> Path:
    """Its OCI layout, made if the cache lacks it."""
    place = cache() / f"odd-{odd.key}-2"
    if not (place / "index.json").exists():
        work = cache() / f"odd-{odd.key}.making-{os.getpid()}"
        work.mkdir(parents=True)
        try:
            _layout(work / "layout", odd.key, [_layer(odd, work)], work)
            os.rename(work / "layout", place)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return place


def _layer(odd: Odd, blobs: Path) -> dict[str, object]:
    inner, outer, size = hashlib.sha256(), hashlib.sha256(), 0
    deflate = zlib.compressobj(1, zlib.DEFLATED, 31)
    with open(blobs / "making", "wb") as file:

        def keep(data: bytes) -> None:
            nonlocal size
            outer.update(data)
            size += len(data)
            file.write(data)

        for data in _archive(odd):
            inner.update(data)
            keep(deflate.compress(data))
        keep(deflate.flush())
    (blobs / "making").rename(blobs / outer.hexdigest())
    return {"step": odd.title, "digest": f"sha256:{outer.hexdigest()}", "diff_id": f"sha256:{inner.hexdigest()}", "size": size}


def _archive(odd: Odd) -> Iterator[bytes]:
    """Content that deflates to some half, so that neither side is idle."""
    block = b"".join(hashlib.sha256(str(n).encode()).digest() + bytes(32) for n in range(_MIB // 64))
    for number in range(odd.files):
        if number % 1000 == 0:
            folder = tarfile.TarInfo(f"data/{number // 1000:04}/")
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            yield folder.tobuf()
        member = tarfile.TarInfo(f"data/{number // 1000:04}/file-{number:07}")
        member.size = odd.size
        yield member.tobuf()
        for _ in range(odd.size // _MIB):
            yield block
    yield bytes(2 * tarfile.BLOCKSIZE)
