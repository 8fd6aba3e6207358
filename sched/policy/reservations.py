"""What keeps a job waiting: the place that another, or it itself, keeps in a pool; and when that place will be there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dockless.base.dataclass import dataclass

SUMS = 1 << 18
"""Different sums that ends of unknown moments may add up to, and that are looked at."""


@dataclass(slots=True)
class Reservation:
    """What is kept in one pool for ``job``. ``at``: when it can start at the latest, None if nobody can say; ``extra``: how much of
    the pool is over even then; ``after``: the running job whose end makes room. ``user``, ``gpus``: of ``job``, where it is the first
    for GPUs, cores, memory or places."""

    pool: str
    job: int
    need: int
    at: float | None
    extra: int
    after: int
    devices: frozenset[str] = frozenset()
    user: str = ""
    gpus: int = 0


@dataclass(slots=True)
class Hold:
    """``within``: jobs of the same kind that may run for longer, seconds, are held by it too."""

    code: str
    pool: str
    priority: int
    reservation: Reservation | None = None
    within: float = 0.0


Releases = Sequence[tuple[float | None, int, int]]
"""Of each running job when it ends (None: nobody knows), how much is free then, and its number."""


def moment(free: int, need: int, releases: Releases, now: float) -> tuple[float | None, int]:
    """When ``need`` will be there at the latest, None where nobody knows, and the job whose end makes it so, 0 where it is there now."""
    if free >= need:
        return now, 0
    for ends, count, job in sorted((max(ends, now), count, job) for ends, count, job in releases if ends is not None):
        free += count
        if free >= need:
            return ends, job
    return None, next((job for ends, _, job in releases if ends is None), 0)


def left_over(free: int, need: int, releases: Releases, at: float | None, now: float) -> int:
    """What is there at that moment beyond ``need``. ``at`` None: the least that any order of the ends can leave over, or, where that would
    take long to find, 0."""
    known = sorted((max(ends, now), count) for ends, count, _ in releases if ends is not None)
    if at is not None:
        return max(0, free + sum(count for ends, count in known if ends <= at) - need)
    unknown = [count for ends, count, _ in releases if ends is None]
    step = math.gcd(*unknown) or 1
    if sum(unknown) // step > SUMS:
        return 0
    sums = 1  # bit n: some of the unknown add up to n steps
    for count in unknown:
        sums |= sums << count // step
    found = []
    for count in (0, *(count for _, count in known)):
        free += count
        short = max(0, need - free)
        steps = -(-short // step)
        if above := sums >> steps:
            over = (above & -above).bit_length() - 1
            found.append(free - need + step * (steps + over))
    return min(found, default=0)
