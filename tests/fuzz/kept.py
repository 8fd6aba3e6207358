"""What fuzzing has kept: ``corpus.tar.gz``, minimised by coverage, and ``corpus/<target>/<name>``, what once broke something.

python -P tests/fuzz/kept.py unpack DIRECTORY    the archive, one directory for each target, to merge new inputs into
python -P tests/fuzz/kept.py pack DIRECTORY      the archive anew, the same bytes for the same inputs
"""

from __future__ import annotations

import functools
import gzip
import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ARCHIVE, NAMED = HERE / "corpus.tar.gz", HERE / "corpus"


@functools.cache
def inputs() -> dict[str, dict[str, bytes]]:
    """Target → name → input."""
    found: dict[str, dict[str, bytes]] = {}
    for target, name, raw in _archived():
        found.setdefault(target, {})[name] = raw
    for path in sorted(NAMED.glob("*/*")):
        found.setdefault(path.parent.name, {})[path.name] = path.read_bytes()
    return found


def _archived() -> Iterator[tuple[str, str, bytes]]:
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            target, name = member.name.split("/")
            yield target, name, archive.extractfile(member).read()


def unpack(directory: Path) -> None:
    for target, name, raw in _archived():
        (directory / target).mkdir(parents=True, exist_ok=True)
        (directory / target / name).write_bytes(raw)


def pack(directory: Path) -> None:
    with gzip.GzipFile(ARCHIVE, "wb", mtime=0) as file, tarfile.open(fileobj=file, mode="w") as archive:
        for path in sorted(directory.glob("*/*")):
            member = tarfile.TarInfo(f"{path.parent.name}/{path.name}")
            member.size = path.stat().st_size
            archive.addfile(member, io.BytesIO(path.read_bytes()))


if __name__ == "__main__":
    {"unpack": unpack, "pack": pack}[sys.argv[1]](Path(sys.argv[2]))
