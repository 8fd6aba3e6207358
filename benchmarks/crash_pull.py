"""Pulls killed with SIGKILL, and disks that fill up, at random moments: is the store sound, does the next pull go on where it stopped?

    python benchmarks/crash_pull.py [--kills 100] [--full 20] [--seed 1] [--place DIR] [--json FILE]

The image has blobs of 20, 12 and 9 MB that do not compress, from a registry that counts what it sends. Ends with 1 if anything is not as it
should be.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support import pull_crashes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--full", type=int, default=20, help="disks that fill up (root: each is an ext4 in a file)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--place", default="/var/tmp", help="on which disk (default %(default)s)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dk-", dir=options.place) as place, pull_crashes.bench(options.seed) as bench:
        began = time.monotonic()
        pull_crashes.killed(bench, Path(place), options.kills)
        if os.geteuid() == 0:
            pull_crashes.filled(bench, Path(place), options.full)
        elif options.full:
            print("disk full: measured as root only")
        seconds = time.monotonic() - began
    row = {**asdict(bench.result), "seed": options.seed, "seconds": round(seconds, 1)}
    for name, value in row.items():
        if name != "details":
            print(f"{name:20} {value}")
    for line in bench.result.details[:40]:
        print("  ", line)
    if options.json:
        options.json.write_text(json.dumps(row, indent=1) + "\n")
    return 0 if bench.result.clean else 1


if __name__ == "__main__":
    sys.exit(main())
