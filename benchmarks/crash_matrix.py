"""kill -9 of the daemon at random moments under load: lost, run twice, exit codes lost.

    python benchmarks/crash_matrix.py [--kills 200] [--seed 1] [--json FILE]

Jobs are submitted, started and ended by real sandboxes all the while; ends with 1 if anything is not 0.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.scheduling import crash_matrix


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dk-") as place:
        began = time.monotonic()
        result = crash_matrix(Path(place), options.kills, seed=options.seed)
        seconds = time.monotonic() - began
    row = {**asdict(result), "seed": options.seed, "seconds": round(seconds, 1)}
    for name, value in row.items():
        if name != "details":
            print(f"{name:18} {value}")
    for line in result.details[:40]:
        print("  ", line)
    if options.json:
        options.json.write_text(json.dumps(row, indent=1) + "\n")
    return 0 if result.clean else 1


if __name__ == "__main__":
    sys.exit(main())
