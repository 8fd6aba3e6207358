"""The policy on public job traces: one host, many hosts' worth of processors, with the same ``decide`` as the daemon.

    python benchmarks/replay_traces.py [--traces DIR] [--json FILE]

``tiresias_60`` and ``philly_2869ce`` on 8 GPUs: mean wait. ``lublin_256``: mean bounded slowdown and mean wait over ten windows of 1,024
jobs on 256 processors (run times known, as the published figures have it). ``strict`` is first come first served: the policy sees only the
head of the queue.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dockless.sched.policy.policy import QueueState, RunningJob, WaitingJob, decide

WINDOWS = (1981, 2756, 4299, 8850, 3316, 2714, 5228, 7762, 4022, 7085)


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows of (submitted, runs, gpus), seconds, in order of submission."""

    name: str
    jobs: tuple[tuple[float, float, int], ...]
    gpus: int


def replay(trace: Trace, strict: bool = False) -> list[float]:
    """How long each job waits, seconds. Time limits are the run times: EASY with perfect estimates."""
    gpus = tuple(f"g{i}" for i in range(trace.gpus))
    waits = [0.0] * len(trace.jobs)
    waiting: list[WaitingJob] = []
    running: dict[int, RunningJob] = {}
    ends: list[tuple[float, int]] = []
    arrivals = list(range(len(trace.jobs) - 1, -1, -1))
    while arrivals or ends:
        now = min(trace.jobs[arrivals[-1]][0] if arrivals else float("inf"), ends[0][0] if ends else float("inf"))
        while ends and ends[0][0] <= now:
            del running[heapq.heappop(ends)[1]]
        while arrivals and trace.jobs[arrivals[-1]][0] <= now:
            number = arrivals.pop()
            _, runs, count = trace.jobs[number]
            waiting.append(WaitingJob(number + 1, "u", count, time_limit=max(runs, 1e-3)))
        seen = waiting[:1] if strict else waiting
        while seen:
            starts = decide(QueueState(gpus, seen, list(running.values())), now).starts
            gone = {start.job for start in starts}
            for start in starts:
                submitted, runs, _ = trace.jobs[start.job - 1]
                waits[start.job - 1] = now - submitted
                running[start.job] = RunningJob(start.job, "u", frozenset(start.gpus), ends=now + max(runs, 1e-3))
                heapq.heappush(ends, (now + max(runs, 1e-3), start.job))
            waiting = [job for job in waiting if job.id not in gone]
            if not strict or not starts:
                break
            seen = waiting[:1]
    return waits


def slowdown(trace: Trace, waits: list[float]) -> float:
    rows = [max(1.0, (wait + runs) / max(runs, 10.0)) for wait, (_, runs, _) in zip(waits, trace.jobs, strict=True)]
    return sum(rows) / len(rows)


def tiresias(place: Path) -> Trace:
    with open(place / "tiresias_60.csv") as file:
        rows = [(float(r["submit_time"]), float(r["duration"]), int(r["num_gpu"])) for r in csv.DictReader(file)]
    return Trace("tiresias_60", tuple(sorted(rows, key=lambda r: r[0])), 8)


def philly(place: Path) -> Trace:
    with open(place / "philly_2869ce.csv") as file:
        rows = [(float(r["submit_s"]), float(r["run_s"]), int(r["gpus"])) for r in csv.DictReader(file)]
    return Trace("philly_2869ce", tuple(sorted(rows, key=lambda r: r[0])), 8)


def lublin(place: Path) -> list[Trace]:
    rows = []
    with open(place / "lublin_256.swf") as file:
        for line in file:
            cells = line.split()
            if cells and not line.startswith(";"):
                rows.append((float(cells[1]), float(cells[3]), int(cells[4]) if int(cells[4]) > 0 else int(cells[7])))
    return [Trace(f"lublin {start}", tuple(rows[start : start + 1024]), 256) for start in WINDOWS]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shared = Path(os.environ.get("DOCKLESS_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--traces", type=Path, default=shared / "data" / "traces")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not options.traces.is_dir():
        print(f"skipped: no traces at {options.traces} (--traces)")
        return 0
    table: dict[str, float] = {}
    for trace in (tiresias(options.traces), philly(options.traces)):
        for strict in (True, False):
            waits = replay(trace, strict)
            table[f"{trace.name} {'strict' if strict else 'dockless'} mean wait s"] = round(sum(waits) / len(waits), 1)
    before = time.perf_counter()
    windows = lublin(options.traces)
    waits = [replay(window) for window in windows]
    values = [slowdown(window, own) for window, own in zip(windows, waits, strict=True)]
    table["lublin_256 dockless bounded slowdown"] = round(sum(values) / len(values), 2)
    table["lublin_256 dockless mean wait s"] = round(sum(map(sum, waits)) / sum(map(len, waits)), 1)
    table["lublin_256 seconds"] = round(time.perf_counter() - before, 1)
    for name, value in table.items():
        print(f"{name:40} {value}")
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
