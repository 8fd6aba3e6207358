"""The daemon's policy on public job traces, in simulated time: how long jobs wait, beside what is published.

``tiresias_60`` and ``philly_2869ce`` on 8 GPUs; ``lublin_256``: ten windows of 1,024 jobs on 256 processors. Run times are known when a job
is submitted, as the published figures have it. Replayed as ``dockless simulate`` does it; ``simple`` is the scheduler of
RLScheduler (Zhang et al., SC 2020), whose four published cells it reproduces to the digit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from pathlib import Path

from dockless.sched.policy.policy import QueueState
from dockless.sched.policy.replay import Policy, Replay, TraceJob, replay
from dockless.sched.traces import parse

WINDOWS = (1981, 2756, 4299, 8850, 3316, 2714, 5228, 7762, 4022, 7085)
LUBLIN_GPUS = 256


def replayed(jobs: Sequence[TraceJob], gpus: int, policy: Policy = "backfill") -> Replay:
    """On a host with so many GPUs and no quotas."""
    return replay(jobs, QueueState(tuple(f"g{number}" for number in range(gpus)), ()), policy)


def simple(jobs: Sequence[TraceJob], gpus: int, score: Callable[[TraceJob], float], backfill: bool) -> Replay:
    """The one with the least ``score`` is next, and nothing else starts until it fits; with ``backfill`` whatever
    fits and ends before what runs now will have made room for it, in the order of submission. Jobs that come while one is awaited compete
    only for the next turn."""
    free, now, coming = gpus, 0.0, 0
    started = [0.0] * len(jobs)
    queue: list[int] = []
    running: list[tuple[float, int]] = []

    def start(number: int) -> None:
        nonlocal free
        started[number] = now
        free -= jobs[number].gpus
        heapq.heappush(running, (now + jobs[number].runs, number))
        queue.remove(number)

    def advance() -> None:
        """To the next arrival or the next end."""
        nonlocal free, now, coming
        if coming < len(jobs) and (not running or jobs[coming].submitted <= running[0][0]):
            now = max(now, jobs[coming].submitted)
            queue.append(coming)
            coming += 1
        else:
            end, number = heapq.heappop(running)
            now = max(now, end)
            free += jobs[number].gpus

    while coming < len(jobs) or queue:
        if not queue:
            advance()
            continue
        head = min(queue, key=lambda number: (score(jobs[number]), number))
        room, shadow = free, now
        for end, number in sorted(running):
            if room >= jobs[head].gpus:
                break
            room, shadow = room + jobs[number].gpus, end
        while jobs[head].gpus > free:
            for number in sorted(queue) if backfill else ():
                if jobs[number].gpus <= free and now + jobs[number].runs < shadow:
                    start(number)
            advance()
        start(head)
    return Replay(gpus, tuple(jobs), tuple(started))


def read(place: Path, name: str) -> tuple[TraceJob, ...]:
    return parse((place / name).read_text(), name).jobs


def lublin(place: Path) -> list[tuple[TraceJob, ...]]:
    """The windows."""
    jobs = read(place, "lublin_256.swf")
    return [jobs[start : start + 1024] for start in WINDOWS]
