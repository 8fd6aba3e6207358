"""What users and groups have had of the GPUs, counting less the longer ago it was: after each half-life half as much."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dockless.base.typing import TYPE_CHECKING
from dockless.sched.policy.ranks import ENTRY

if TYPE_CHECKING:
    from dockless.sched.policy.state import RunningJob


class PastUsage:
    """GPU-seconds by pool (``user anna``, ``group vision``). ``half_life``: seconds."""

    def __init__(self, half_life: float) -> None:
        self.half_life = half_life
        self._had: dict[str, float] = defaultdict(float)
        self._at = 0.0

    def add(self, user: str, groups: Sequence[str], gpus: float, began: float, ended: float) -> None:
        """A job that had so many GPUs between two moments, of which the second may be in the past."""
        now = max(self._at, ended)
        self._had = defaultdict(float, self._decayed(now))
        self._at = now
        for pool in _pools(user, groups):
            self._had[pool] += self._worth(gpus, began, ended, now)

    def at(self, now: float, running: Iterable[RunningJob] = ()) -> Mapping[str, float]:
        """With what runs, of which each job counts for ``ENTRY`` seconds at least."""
        found = defaultdict(float, self._decayed(now))
        for job in running:
            count = len(job.gpus) * job.part
            worth = max(self._worth(count, job.since, now, now), count * ENTRY)
            for pool in _pools(job.user, job.groups) if job.gpus and job.id else ():
                found[pool] += worth
        return found

    def _decayed(self, now: float) -> dict[str, float]:
        left = 0.5 ** ((now - self._at) / self.half_life)
        return {pool: had * left for pool, had in self._had.items()}

    def _worth(self, gpus: float, began: float, ended: float, now: float) -> float:
        old, new = (0.5 ** ((now - moment) / self.half_life) for moment in (min(began, ended), ended))
        return float(gpus * (new - old) * self.half_life / math.log(2))


def _pools(user: str, groups: Sequence[str]) -> Iterable[str]:
    return (f"user {user}", *(f"group {group}" for group in groups))
