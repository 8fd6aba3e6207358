"""kill -9 of the daemon and of keepers, and a full disk: jobs lost, run twice, left behind, exit codes lost, errors that are not clear.

    python benchmarks/crash_matrix.py [--only daemon|keeper|full|enospc|moments] [--most 0] [--kills 200] [--seed 1] [--json FILE]

At each write, fsync, rename, clone and answer of the daemon and of the keepers, and at random moments under load; with a disk that is full
from each of their changes on until it is noticed (full), or at that one alone (enospc). Root; an hour for all. Ends with 1 if anything is
not 0.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.kill_matrix import COUNTS, FULL, ORDERS, WHOM, matrix
from support.scheduling import crash_matrix

import dockless.sandbox.run.detached  # once here instead of in every child
import dockless.sched.daemon  # noqa: F401

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=(*WHOM, ORDERS, *FULL, "moments"))
    parser.add_argument("--most", type=int, default=0, help="calls of each, spread over all; 0: every one")
    parser.add_argument("--kills", type=int, default=200, help="at random moments")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULTS / "crash-matrix.json")
    options = parser.parse_args()
    document: dict[str, Any] = {}
    clean = True
    for whom in (*WHOM, ORDERS, *FULL):
        if options.only in (None, whom):
            rows, right = points(whom, options.most)
            document[whom], clean = rows, clean and right
    if options.only in (None, "moments"):
        row, right = moments(options.kills, options.seed)
        document["moments"], clean = row, clean and right
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if clean else 1


def points(whom: str, most: int) -> tuple[list[dict[str, Any]], bool]:
    with tempfile.TemporaryDirectory(prefix="dk-") as place:
        cells = matrix(Path(place), whom, most, lambda line: print(f"\r\033[K{line}", end="", file=sys.stderr))
    print(file=sys.stderr)
    what = "no room at this call" if whom in FULL else f"the {'daemon' if whom == ORDERS else whom} dies instead of"
    names = ("points", "killed", "refused", *COUNTS)
    print(f"| {what} | calls | {'failed' if whom in FULL else 'killed'} | {' | '.join(names[2:]).replace('_', ' ')} |")
    print("|---|" + "--:|" * len(names))
    for cell in cells:
        print(f"| {cell.call} | {' | '.join(str(getattr(cell, name)) for name in names)} |")
    for cell in cells:
        print(*(f"  {line}\n" for line in cell.details[:20]), sep="", end="")
    print()
    return [asdict(cell) for cell in cells], all(cell.clean for cell in cells)


def moments(kills: int, seed: int) -> tuple[dict[str, Any], bool]:
    """The daemon at random moments; jobs are submitted, started and ended by real sandboxes all the while."""
    with tempfile.TemporaryDirectory(prefix="dk-") as place:
        began = time.monotonic()
        result = crash_matrix(Path(place), kills, seed=seed)
        seconds = time.monotonic() - began
    row = {**asdict(result), "seed": seed, "seconds": round(seconds, 1)}
    for name, value in row.items():
        if name != "details":
            print(f"{name:18} {value}")
    for line in result.details[:40]:
        print("  ", line)
    return row, result.clean


if __name__ == "__main__":
    sys.exit(main())
