"""Reserved hours of the settings, as a decision sees them: on the policy's clock, the next ones or those that have begun."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from dockless.base.dataclass import replace
from dockless.sched.config import Reserved
from dockless.sched.policy.state import HOST, Window
from dockless.sched.policy.supplies import CORES, MEMORY, Supply

Members = Callable[[Sequence[str]], Collection[str]]
"""Who is in one of these groups, of those who matter."""


def windows(reserved: Iterable[Reserved], now: float, wall: float, members: Members, there: Mapping[str, int]) -> Iterator[Window]:
    """``now``: on the policy's clock; ``wall``: the same moment in seconds since 1970. ``there``: what can be kept of the host.
    Of hours that overlap the later ones keep what the earlier ones leave: if each kept all, each would keep the others from it."""
    before: list[Window] = []
    for one in reserved:
        found = one.start.next(one.duration, wall)
        if found is not None:
            starts, ends = found
            users = frozenset(one.users).union(members(one.groups))
            begins, ends_at = starts - wall + now, ends - wall + now
            window = Window(one.name, one.gpus, users, begins, ends_at, said(starts, ends), 1000 * one.cores, one.memory)
            others = [other for other in before if other.starts < window.ends and window.starts < other.ends]
            for field, pool in (("gpus", HOST), ("cores", CORES), ("memory", MEMORY)):
                left = there.get(pool, 0) - sum(getattr(other, field) for other in others)
                window = replace(window, **{field: max(0, min(getattr(window, field), left))})
            before.append(window)
            yield window


def can_be_kept(gpus: int, supplies: Mapping[str, Supply]) -> dict[str, int]:
    """How much a host has of what reserved hours keep: of its whole GPUs, and of what is common to all of cores and memory."""
    return {HOST: gpus, **{pool: supply.common(gpus) for pool, supply in supplies.items()}}


def said(starts: float, ends: float) -> str:
    """``from Tue 2026-11-24 10:00 to 12:00``, in the host's time."""
    first, last = time.localtime(starts), time.localtime(ends)
    day = "%a %Y-%m-%d %H:%M"
    return f"from {time.strftime(day, first)} to {time.strftime('%H:%M' if first[:3] == last[:3] else day, last)}"
