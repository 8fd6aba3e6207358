"""The daemon's policy on public job traces, in simulated time: how long jobs wait, beside what is published.

``tiresias_60`` and ``philly_2869ce`` on 8 GPUs; ``lublin_256``: ten windows of 1,024 jobs on 256 processors. Run times are known when a job
is submitted, as the published figures have it. Replayed as ``dockless simulate`` does it; ``simple`` is the scheduler of
RLScheduler (Zhang et al., SC 2020), whose four published cells it reproduces to the digit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from dockless.sched.policy.replay import Policy, Replay, TraceJob, replay
from dockless.sched.policy.state import QueueState
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


def easy(jobs: Sequence[TraceJob], gpus: int, order: Callable[[TraceJob, float, float], tuple[float, ...]]) -> Replay:
    """Textbook EASY with perfect limits: the first in the queue has a reservation, and of the others whatever does not delay it may start,
    the least ``order(job, now, when the first starts)`` before the others."""
    started = [0.0] * len(jobs)
    queue: list[int] = []
    running: list[tuple[float, int]] = []
    free, coming = gpus, 0
    while coming < len(jobs) or running:
        now = min(jobs[coming].submitted if coming < len(jobs) else math.inf, running[0][0] if running else math.inf)
        while running and running[0][0] <= now:
            free += heapq.heappop(running)[1]
        while coming < len(jobs) and jobs[coming].submitted <= now:
            queue.append(coming)
            coming += 1
        starts: list[int] = []
        room = free
        for number in queue:
            if jobs[number].gpus > room:
                break
            starts.append(number)
            room -= jobs[number].gpus
        waiting = queue[len(starts) :]
        if waiting and room:
            ends = sorted([*running, *((now + jobs[number].length, jobs[number].gpus) for number in starts)])
            there, shadow = room, now
            for end, count in ends:
                if there >= jobs[waiting[0]].gpus and end > shadow:
                    break
                there, shadow = there + count, end
            over = there - jobs[waiting[0]].gpus
            for number in sorted(waiting[1:], key=lambda number: order(jobs[number], now, shadow)):
                job = jobs[number]
                late = now + job.length > shadow
                if job.gpus <= room and (not late or job.gpus <= over):
                    starts.append(number)
                    room -= job.gpus
                    over -= job.gpus if late else 0
        for number in starts:
            started[number] = now
            heapq.heappush(running, (now + jobs[number].length, jobs[number].gpus))
        free = room
        queue = [number for number in queue if number not in set(starts)]
    return Replay(gpus, tuple(jobs), tuple(started))


def _patience(job: TraceJob, now: float, shadow: float) -> tuple[float, ...]:
    """Those that end before the first in the queue starts, in order; then who has waited long for a short run."""
    late = now + job.length > shadow
    return late, -(now - job.submitted) / job.length**0.25 if late else job.submitted


ORDERS: dict[str, Callable[[TraceJob, float, float], tuple[float, ...]]] = {
    "queue": lambda job, now, shadow: (job.submitted,),
    "in time first": lambda job, now, shadow: (now + job.length > shadow, job.submitted),
    "patience": _patience,
}
"""Of the candidates for backfill: the queue's own; those that end before the first in the queue starts come before those that take what is
over even then; the same, and of the latter who has waited long for short."""


def read(place: Path, name: str) -> tuple[TraceJob, ...]:
    return parse((place / name).read_text(), name).jobs


def lublin(place: Path) -> list[tuple[TraceJob, ...]]:
    """The windows."""
    jobs = read(place, "lublin_256.swf")
    return [jobs[start : start + 1024] for start in WINDOWS]
