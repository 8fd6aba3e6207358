"""Our tar parser beside GNU tar and Python's tarfile, over mutated archives: ``differential.py [--seconds 60] [archive or directory …]``.

Where we accept an archive and GNU tar does too, without complaint, both must have seen the same members: name, kind, size, link, mode,
owner, time. Anything else is an archive that shows one thing to a scanner and another to us (attack A13): it should have been refused, and
the exit status is 1. What tarfile sees is only counted: it takes ustar's prefix for a part of every name, lists volume labels, cuts numbers
that begin with a NUL, and shows extended headers that it cannot read as files; in all of these GNU tar and Go are of our opinion.

Kinds of disagreement are counted, and the first archive of each is kept below ``--work``.
"""

from __future__ import annotations

import argparse
import collections
import io
import math
import random
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

from fuzz import seeds  # noqa: E402
from fuzz.mutators import tar_mutator  # noqa: E402

from dockless.native.layers import Fault, Member, TarLister  # noqa: E402

FIELDS = ("name", "kind", "size", "link", "mode", "uid", "gid", "time")
Row = tuple[bytes, str, int, bytes, int, int, int, int]

_LINE = re.compile(
    rb"block \d+: (.)(\S{9}) (-?\d+)/(-?\d+) +([-\d]+|\d+,\d+) (\S+ \S+) +"
    rb'"((?:[^"\\]|\\.)*)"(?: (?:->|link to) "((?:[^"\\]|\\.)*)")?\Z'
)
_KINDS = {b"-": "file", b"C": "file", b"h": "hardlink", b"l": "symlink", b"c": "char", b"b": "block", b"d": "directory", b"p": "fifo"}
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def ours(raw: bytes) -> list[Member] | None:
    """The members, or None where we refuse."""
    lister = TarLister(10_000)
    try:
        lister.feed(raw)
        lister.finish()
    except Fault:
        return None
    return lister.members


def rows(members: list[Member]) -> list[Row]:
    return [(trimmed(m.name), m.kind, m.size, m.link, m.mode, m.uid, m.gid, m.mtime // 1_000_000_000) for m in members]


def trimmed(name: bytes) -> bytes:
    """What a trailing slash says, the kind says too."""
    return name.rstrip(b"/") or b"/"


def gnu(raw: bytes) -> tuple[list[Row], str]:
    """What GNU tar lists, and its complaint."""
    command = [
        "tar",
        "-tvRf",
        "-",
        "--numeric-owner",
        "--full-time",
        "--quoting-style=c",
        "--absolute-names",
        "--warning=no-unknown-keyword",
    ]
    done = subprocess.run(command, input=raw, capture_output=True, env={"TZ": "UTC", "LC_ALL": "C", "PATH": "/usr/bin:/bin"})
    found = []
    for line in done.stdout.split(b"\n"):
        match = _LINE.match(line)
        if match is None or match[1] not in _KINDS:
            if line and not re.match(rb"block \d+: (V|(block \d+: )?\*\* )", line):
                return found, "a line nobody understands"
            continue
        kind = "directory" if match[1] == b"C" and match[7].endswith(b"/") else _KINDS[match[1]]
        size = int(match[5]) if kind == "file" and b"," not in match[5] else 0
        mode = sum(1 << (8 - at) for at, letter in enumerate(match[2]) if letter in b"rwxst")
        mode |= sum(0o4000 >> at for at in range(3) if match[2][3 * at + 2] in b"sStT")
        seconds = int(datetime.fromisoformat(match[6][:19].decode() + "+00:00").timestamp())
        name, link = _unquoted(match[7]), _unquoted(match[8] or b"")
        found.append((trimmed(name), kind, size, link, mode, int(match[3]), int(match[4]), seconds))
    complaint = done.stderr.decode(errors="replace").strip().splitlines()
    return found, re.sub(r"[\d'\"].*", "", complaint[0]) if complaint else f"status {done.returncode}" if done.returncode else ""


def _unquoted(raw: bytes) -> bytes:
    def one(match: re.Match[bytes]) -> bytes:
        return bytes([int(match[1], 8)]) if match[1][:1].isdigit() else _ESCAPES.get(match[1], match[1])

    return re.sub(rb"\\([0-7]{1,3}|.)", one, raw, flags=re.DOTALL)


def python(raw: bytes) -> tuple[list[Row], str]:
    """What tarfile lists, and its complaint."""
    kinds = {
        tarfile.LNKTYPE: "hardlink",
        tarfile.SYMTYPE: "symlink",
        tarfile.CHRTYPE: "char",
        tarfile.BLKTYPE: "block",
        tarfile.DIRTYPE: "directory",
    }
    found = []
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:", errors="surrogateescape", encoding="utf-8", errorlevel=2) as archive:
            for info in archive:
                kind = kinds.get(info.type, "fifo" if info.type == tarfile.FIFOTYPE else "file")
                if kind == "file" and info.name.endswith("/"):
                    kind = "directory"  # it looks at the slash in the oldest format only
                name, link = (text.encode("utf-8", "surrogateescape") for text in (info.name, info.linkname))
                size, link = info.size if kind == "file" else 0, link if kind in ("hardlink", "symlink") else b""
                found.append((trimmed(name), kind, size, link, info.mode & 0o7777, info.uid, info.gid, math.floor(info.mtime)))
                if len(found) > 10_000:
                    return found, "no end"
    except Exception as error:  # tarfile raises whatever it stumbles over; each is a refusal
        return found, type(error).__name__
    return found, ""


def disagreement(raw: bytes) -> Iterator[tuple[str, str]]:
    """(reader, kind of disagreement) of each reader that sees other members than we do; in parentheses where it refuses what we accept."""
    members = ours(raw)
    if members is None:
        return
    mine = rows(members)
    for reader in (gnu, python):
        theirs, complaint = reader(raw)
        if complaint:
            yield f"({reader.__name__} refuses", complaint + ")"
        elif what := difference(mine, theirs, has_global(raw)):
            yield reader.__name__, what


def has_global(raw: bytes) -> bool:
    return any(raw[at + 156 : at + 157] == b"g" for at in range(0, len(raw), 512))


def difference(mine: list[Row], theirs: list[Row], any_time: bool) -> str:
    """What differs, "" for nothing that matters. A global header's time, which GNU tar takes over and Go does not, does no harm; neither
    does a time before 1970, which is shown in ways of its own; a name of slashes alone is the root to us."""
    if len(mine) != len(theirs):
        return "number of members"
    words = set()
    for one, other in zip(mine, theirs, strict=True):
        for what, a, b in zip(FIELDS, one, other, strict=True):
            harmless = (what == "time" and (any_time or one[-1] < 0)) or (what == "kind" and one[0] == b"/")
            if a != b and not harmless:
                words.add(f"{what} of a {one[1]}")
    return ", ".join(sorted(words))


def blind(rng: random.Random) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        changed = bytearray(data or b"\0")
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(changed))] = rng.choice((0, 32, 47, 48, 49, 55, 128, 255, rng.randrange(256)))
        return bytes(changed)

    return change


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", nargs="*", type=Path, help="seeds; directories count with all their files (default: seeds.py)")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, default=HERE.parents[1] / "build" / "fuzz")
    options = parser.parse_args()
    files = [file for path in options.archives for file in (path.iterdir() if path.is_dir() else [path])]
    pool = [file.read_bytes() for file in files] or list(seeds.seeds()["tar"].values())
    rng = random.Random(options.seed)
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    place = options.work / "differential"
    place.mkdir(parents=True, exist_ok=True)
    tried = accepted = 0
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        raw = rng.choice(pool)
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            raw = tar_mutator(raw, rng, blind(rng))
        tried += 1
        accepted += ours(raw) is not None
        for kind in disagreement(raw):
            counts[kind] += 1
            if counts[kind] == 1:
                (place / re.sub(r"[^a-z]+", "-", " ".join(kind).lower())[:80]).with_suffix(".tar").write_bytes(raw)
    print(f"{tried} archives, {accepted} accepted")
    for (reader, what), count in sorted(counts.items()):
        print(f"{count:6} {reader}: {what}")
    return int(any(reader == "gnu" for reader, _ in counts))


if __name__ == "__main__":
    sys.exit(main())
