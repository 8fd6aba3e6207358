"""What keeps a job waiting: the place that another, or it itself, keeps in a pool; and when that place will be there."""

from __future__ import annotations

from collections.abc import Sequence

from dockless.base.dataclass import dataclass


@dataclass(slots=True)
class Reservation:
    """What is kept in one pool for ``job``. ``at``: when it can start at the latest, None if nobody can say; ``extra``: how much of
    the pool is over even then; ``after``: the running job whose end makes room."""

    pool: str
    job: int
    need: int
    at: float | None
    extra: int
    after: int
    devices: frozenset[str] = frozenset()


@dataclass(slots=True)
class Hold:
    """``within``: jobs of the same kind that may run for longer, seconds, are held by it too."""

    code: str
    pool: str
    priority: int
    reservation: Reservation | None = None
    within: float = 0.0


def shadow(free: int, need: int, releases: Sequence[tuple[float | None, int, int]], now: float) -> tuple[float | None, int, int]:
    """(when ``need`` will be there at the latest, what is over then, the job whose end makes it so), from ``(ends, count, job)``.

    Unknown ends: the moment is None, and what is over is the least that any order of those ends can leave over.
    """
    known = sorted((max(ends, now), count, job) for ends, count, job in releases if ends is not None)
    unknown = [count for ends, count, _ in releases if ends is None]
    there = free
    for place, (ends, count, job) in enumerate(known):
        there += count
        if there >= need:
            there += sum(other for later, other, _ in known[place + 1 :] if later == ends)
            return ends, there - need, job
    sums = 1  # bit n: some of the unknown add up to n
    for count in unknown:
        sums |= sums << count
    least: int | None = None
    there = free
    for count in (0, *(count for _, count, _ in known)):
        there += count
        above = sums >> need - there
        if above:
            over = (above & -above).bit_length() - 1
            least = over if least is None else min(least, over)
    after = next((job for ends, _, job in releases if ends is None), 0)
    return None, least or 0, after
