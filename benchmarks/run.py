"""``make bench``: measure, print tables, write JSON.

    run.py [--quick] [--starts N] [--burst N]
            [--only start,memory,command,keeper,detail,threads,exec,pool,networks,many,forks,together,streams,driver]
            [--peers crun,bwrap] [--pin CPU] [--resident 8G] [--json FILE | -]

Takes about three minutes, ``--quick`` half a minute. Results go to benchmarks/results.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

# At the end: the folders of this repository must not hide modules of the standard library (``sched``).
sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks import machine, measures, race, report
from benchmarks.contender import ContenderFailed
from benchmarks.scene import Scene, scene
from dockless.errors import DocklessError

RESULTS = Path(__file__).resolve().parent / "results"


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    from dockless.base.units import parse_size

    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description="How long dockless takes, beside its peers and a C program.")
    parser.add_argument("--quick", action="store_true", help="fewer starts: enough to see that it works, not to compare")
    parser.add_argument("--starts", "--rounds", type=int, default=0, help="starts of what takes milliseconds (default 300)")
    parser.add_argument("--burst", type=int, default=race.BURST, help="starts in a row (default %(default)s); 1: each from cold caches")
    parser.add_argument("--only", default="", help=f"some of {','.join(measures.MEASURES)}")
    parser.add_argument("--peers", default="", help="some peers by name, of those that are installed")
    parser.add_argument("--resident", type=parse_size, default=8 << 30, help="memory of the big process (default 8G)")
    parser.add_argument(
        "--pin", type=int, default=-1, metavar="CPU", help="keep all contenders on one processor, for machines that others use too"
    )
    parser.add_argument("--json", default="", metavar="FILE", help="write the JSON there instead of benchmarks/results; - for stdout")
    words = parser.parse_args(argv)
    words.only = [name for name in words.only.split(",") if name] or list(measures.MEASURES)
    unknown = [name for name in words.only if name not in measures.MEASURES]
    if unknown:
        parser.error(f"no measurement {unknown[0]!r}: there are {', '.join(measures.MEASURES)}")
    return words


def effort(words: argparse.Namespace) -> measures.Effort:
    chosen = measures.Effort(burst=words.burst, resident=words.resident, only_peers=tuple(name for name in words.peers.split(",") if name))
    if words.quick:
        chosen = replace(chosen, starts=50, slow_starts=6, limit=20.0, patience=3.0, resident=min(chosen.resident, 2 << 30), at_once=100)
    return replace(chosen, starts=words.starts) if words.starts else chosen


def measured(name: str, place: Scene, chosen: measures.Effort) -> report.Table:
    """One table; an error becomes its only line, so that the others are still made."""
    try:
        return measures.MEASURES[name](place, chosen)
    except (DocklessError, ContenderFailed, OSError) as error:
        return report.Table(name, name, notes=[f"not measured: {type(error).__name__}: {error}"])


def main(argv: list[str] | None = None) -> int:
    words = parse(argv)
    out = sys.stderr if words.json == "-" else sys.stdout
    when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    tables: list[report.Table] = []
    if words.pin >= 0:
        os.sched_setaffinity(0, {words.pin})
    with scene() as place:
        about = machine.describe(place.directory)
        print(
            f"Linux {about['kernel']}, {about['cpus']} × {about['cpu'] or about['machine']}, {about['memory_bytes'] / 2**30:.0f} GiB, "
            f"{about['disk']}, {'root' if about['root'] else 'an ordinary user'}, load {os.getloadavg()[0]:.1f}",
            file=out,
        )
        for name in words.only:
            with machine.Noise() as noise:
                table = measured(name, place, effort(words))
            table.noise = noise.figures
            tables.append(table)
            print(report.text(table), file=out, flush=True)
    content = report.document(
        tables, about, {"starts": effort(words).starts, "burst": words.burst, "quick": words.quick, "pin": words.pin}, when
    )
    if words.json == "-":
        print(content)
    elif words.json:
        Path(words.json).write_text(content + "\n")
    else:
        print(f"\n{report.save(RESULTS, time.strftime('%Y%m%d-%H%M%S'), content)}", file=out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
