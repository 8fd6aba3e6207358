"""Reserved hours of the settings, as a decision sees them: on the policy's clock, the next ones or those that have begun."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from dockless.sched.config import Reserved
from dockless.sched.policy.state import Window

Members = Callable[[Sequence[str]], Collection[str]]
"""Who is in one of these groups, of those who matter."""


def windows(reserved: Iterable[Reserved], now: float, wall: float, members: Members) -> Iterator[Window]:
    """``now``: on the policy's clock; ``wall``: the same moment in seconds since 1970."""
    for one in reserved:
        found = one.start.next(one.duration, wall)
        if found is not None:
            starts, ends = found
            users = frozenset(one.users).union(members(one.groups))
            begins, ends_at = starts - wall + now, ends - wall + now
            yield Window(one.name, one.gpus, users, begins, ends_at, said(starts, ends), 1000 * one.cores, one.memory)


def said(starts: float, ends: float) -> str:
    """``from Tue 2026-11-24 10:00 to 12:00``, in the host's time."""
    first, last = time.localtime(starts), time.localtime(ends)
    day = "%a %Y-%m-%d %H:%M"
    return f"from {time.strftime(day, first)} to {time.strftime('%H:%M' if first[:3] == last[:3] else day, last)}"
