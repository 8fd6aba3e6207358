"""Where the time of an image goes: every stage alone, on one thread and without anything beside it, and what this machine can do at most.

The stages of a load run beside each other, layers too: so the longest of them, or all of them divided by the processors, is what a load
could take at best.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench_image import BenchImage
from benchmarks.contender import HERE
from benchmarks.report import Table

_CHUNK = 1 << 18
_MOST = 1 << 40


@dataclass(frozen=True, slots=True)
class Stage:
    """``seconds`` for the whole image; ``bytes`` and ``files`` that went through, 0 where that says nothing."""

    name: str
    seconds: float
    bytes: int = 0
    files: int = 0
    note: str = ""

    def line(self) -> str:
        rate = f"{self.bytes / self.seconds / 1e6:8,.0f} MB/s" if self.bytes else ""
        rate += f"{self.files / self.seconds:10,.0f} files/s" if self.files else ""
        return f"{self.name:44} {self.seconds:7.3f} s {rate:34} {self.note}".rstrip()


def stages(place: Path, image: BenchImage) -> Table:
    """See ``image_measures.stages``."""
    table = Table("stages", "Where the time goes: each stage alone, one thread, all layers one after the other")
    blobs = image.blobs()
    home = place / "stages"
    home.mkdir()
    tars = [home / f"{number}.tar" for number in range(len(blobs))]
    for blob, tar in zip(blobs, tars, strict=True):
        with open(tar, "wb") as out:
            for data in _inflated(blob):
                out.write(data)
    os.sync()
    done: list[Stage] = []
    for step in (_reading, _hashing, _inflating, _listing, _keeping, _indexing, _writing, _creating):
        try:
            done += step(home, blobs, tars)
        except (ImportError, OSError, subprocess.CalledProcessError) as error:
            table.notes.append(f"{step.__name__[1:]}: not measured: {error}")
    table.rows = [stage.line() for stage in done]
    table.extra["stages"] = [
        {"name": s.name, "seconds": round(s.seconds, 4), "bytes": s.bytes, "files": s.files, "note": s.note} for s in done
    ]
    return table


def _chunks(path: Path) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as stream:
        while data := stream.read(_CHUNK):
            yield data


def _inflated(blob: Path) -> Iterator[bytes]:
    from isal import isal_zlib

    inflate = isal_zlib.decompressobj(31)
    for data in _chunks(blob):
        yield inflate.decompress(data)


def _clock(work: Callable[[], object]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def _bytes(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _drain(items: Iterator[object]) -> None:
    for _ in items:
        pass


def _reading(home: Path, blobs: list[Path], tars: list[Path]) -> list[Stage]:
    return [Stage("read the blobs (page cache)", _clock(lambda: [_drain(_chunks(path)) for path in blobs]), _bytes(blobs))]


def _hashing(home: Path, blobs: list[Path], tars: list[Path]) -> list[Stage]:
    def hash_all(paths: list[Path]) -> None:
        for path in paths:
            found = hashlib.sha256()
            for data in _chunks(path):
                found.update(data)

    return [
        Stage("sha256 of the blobs", _clock(lambda: hash_all(blobs)), _bytes(blobs)),
        Stage("sha256 of the tars", _clock(lambda: hash_all(tars)), _bytes(tars)),
    ]


def _inflating(home: Path, blobs: list[Path], tars: list[Path]) -> list[Stage]:
    def with_zlib() -> None:
        for blob in blobs:
            inflate: Any = zlib.decompressobj(31)
            for data in _chunks(blob):
                inflate.decompress(data)

    seconds = _clock(lambda: [_drain(_inflated(blob)) for blob in blobs])
    return [
        Stage("gunzip with isal", seconds, _bytes(tars), note="of tar"),
        Stage("gunzip with zlib, for comparison", _clock(with_zlib), _bytes(tars), note="of tar"),
    ]


def _listing(home: Path, blobs: list[Path], tars: list[Path]) -> list[Stage]:
    from dockless.native.layers import TarLister

    count = 0

    def work() -> None:
        nonlocal count
        for tar in tars:
            lister = TarLister(1 << 22)
            for data in _chunks(tar):
                lister.feed(data)
            lister.finish()
            count += len(lister.members)

    return [Stage("read the tars, parse their headers (C)", _clock(work), _bytes(tars), note=f"{count} members")]


def _keeping(home: Path, blobs: list[Path], tars: list[Path]) -> list[Stage]:
    def copy(paths: list[Path], into: str) -> None:
        for number, path in enumerate(paths):
            with open(home / f"{into}-{number}", "wb", buffering=0) as out:
                for data in _chunks(path):
                    out.write(data)

    return [
        Stage("keep the blobs (write, page cache)", _clock(lambda: copy(blobs, "blob")), _bytes(blobs)),
        Stage("keep the tars (write, page cache)", _clock(lambda: copy(tars, "tar")), _bytes(tars)),
        Stage("syncfs of both", _clock(os.sync), _bytes(blobs) + _bytes(tars)),
    ]


def _indexing(home: Path, blobs: list[Path], tars: list[Path]) -> list[Stage]:
    from dockless.native.erofs_index import IndexBuilder

    size = 0

    def work() -> None:
        nonlocal size
        for number, tar in enumerate(tars):
            builder = IndexBuilder(base=number == 0, size_max=_MOST, entries_max=1 << 22)
            for data in _chunks(tar):
                builder.feed(data)
            fd = os.open(home / f"index-{number}", os.O_RDWR | os.O_CREAT, 0o600)
            root = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
            builder.finish(fd, [root])
            builder.close()
            size += os.fstat(fd).st_size
            os.close(fd)
            os.close(root)

    seconds = _clock(work)
    return [Stage("read the tars, build the EROFS indexes (C)", seconds, _bytes(tars), note=f"indexes of {size / 1e6:.1f} MB")]


def _writing(home: Path, blobs: list[Path], tars: list[Path]) -> list[Stage]:
    from dockless.native.layers import LayerWriter

    files = 0
    lower: list[int] = []

    def work() -> None:
        nonlocal files
        for number, tar in enumerate(tars):
            root = home / f"written-{number}"
            root.mkdir()
            fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            writer = LayerWriter(fd, as_root=os.geteuid() == 0, size_max=_MOST, entries_max=1 << 22, reserve=1 << 29)
            writer.set_lower(lower)
            for data in _chunks(tar):
                writer.feed(data)
            files += writer.finish().entries
            writer.close()
            lower.insert(0, fd)

    os.sync()
    seconds = _clock(work)
    for fd in lower:
        os.close(fd)
    flushed = _clock(os.sync)
    return [
        Stage("read the tars, write the layers (C)", seconds, _bytes(tars), files, "members"),
        Stage("syncfs of them", flushed, _bytes(tars)),
    ]


def _creating(home: Path, blobs: list[Path], tars: list[Path]) -> list[Stage]:
    """The limit: the same files of the same sizes by a C program that does nothing else."""
    from dockless.native.layers import TarLister

    compiler = shutil.which(os.environ.get("CC", "gcc"))
    if compiler is None:
        raise OSError("there is no C compiler (apt-get install gcc)")
    subprocess.run([compiler, "-O2", "-o", home / "creations", HERE / "creations.c"], check=True, capture_output=True)
    took = files = 0
    for number, tar in enumerate(tars):
        lister = TarLister(1 << 22)
        for data in _chunks(tar):
            lister.feed(data)
        lister.finish()
        lines: dict[bytes, bytes] = {}
        for member in lister.members:
            name = member.name.strip(b"/")
            for at, letter in enumerate(name):
                if letter == 0x2F:
                    lines.setdefault(name[:at], b"d %s\n" % name[:at])
            if member.kind == "directory":
                lines.setdefault(name, b"d %s\n" % name)
            elif member.kind == "file":
                lines[name] = b"f %d %s\n" % (member.size, name)
        root = home / f"created-{number}"
        root.mkdir()
        os.sync()
        done = subprocess.run([home / "creations", root], input=b"".join(lines.values()), stdout=subprocess.PIPE, check=True)
        nanoseconds, count = map(int, done.stdout.split())
        took, files = took + nanoseconds, files + count
    return [Stage("limit: create and fill the same files (C)", took / 1e9, _bytes(tars), files)]
