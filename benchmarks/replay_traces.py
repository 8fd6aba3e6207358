"""The daemon's policy on public job traces, in simulated time: how long jobs wait, beside what is published.

``tiresias_60`` and ``philly_2869ce`` on 8 GPUs; ``lublin_256``: ten windows of 1,024 jobs on 256 processors. Run times are known when a job
is submitted, as the published figures have it. ``replay`` asks the very ``decide`` of the daemon; ``simple`` is the scheduler of
RLScheduler (Zhang et al., SC 2020), whose four published cells it reproduces to the digit.
"""

from __future__ import annotations

import csv
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dockless.sched.policy.policy import QueueState, RunningJob, WaitingJob, decide

WINDOWS = (1981, 2756, 4299, 8850, 3316, 2714, 5228, 7762, 4022, 7085)


Job = tuple[float, float, int]


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows of (submitted, runs, gpus), seconds, in order of submission."""

    name: str
    jobs: tuple[Job, ...]
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


def simple(trace: Trace, score: Callable[[Job], float], backfill: bool) -> list[float]:
    """How long each job waits: the one with the least ``score`` is next, and nothing else starts until it fits; with ``backfill`` whatever
    fits and ends before what runs now will have made room for it, in the order of submission. Jobs that come while one is awaited compete
    only for the next turn."""
    jobs, free, now, coming = trace.jobs, trace.gpus, 0.0, 0
    waits = [0.0] * len(jobs)
    queue: list[int] = []
    running: list[tuple[float, int]] = []

    def start(number: int) -> None:
        nonlocal free
        waits[number] = now - jobs[number][0]
        free -= jobs[number][2]
        heapq.heappush(running, (now + jobs[number][1], number))
        queue.remove(number)

    def advance() -> None:
        """To the next arrival or the next end."""
        nonlocal free, now, coming
        if coming < len(jobs) and (not running or jobs[coming][0] <= running[0][0]):
            now = max(now, jobs[coming][0])
            queue.append(coming)
            coming += 1
        else:
            end, number = heapq.heappop(running)
            now = max(now, end)
            free += jobs[number][2]

    while coming < len(jobs) or queue:
        if not queue:
            advance()
            continue
        head = min(queue, key=lambda number: (score(jobs[number]), number))
        room, shadow = free, now
        for end, number in sorted(running):
            if room >= jobs[head][2]:
                break
            room, shadow = room + jobs[number][2], end
        while jobs[head][2] > free:
            for number in sorted(queue) if backfill else ():
                if jobs[number][2] <= free and now + jobs[number][1] < shadow:
                    start(number)
            advance()
        start(head)
    return waits


def utilisation(trace: Trace, waits: Sequence[float]) -> float:
    """The part of all GPUs that is in use from the first submission to the last end."""
    last = max(submitted + wait + runs for wait, (submitted, runs, _) in zip(waits, trace.jobs, strict=True))
    return sum(runs * gpus for _, runs, gpus in trace.jobs) / trace.gpus / (last - trace.jobs[0][0])


def slowdown(trace: Trace, waits: Sequence[float]) -> float:
    """The mean of (wait + run) / run, where a run of less than 10 seconds counts as 10, and never less than 1."""
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
