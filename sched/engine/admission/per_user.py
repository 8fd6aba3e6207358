"""How much of the queue each user has: jobs that have not ended, and what their specs take. Kept up to date, so that a submit need not
count."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from dockless.sched.jobs import JobOptions
from dockless.sched.store.queries import Live

DEPENDENCY = 200
"""Bytes of memory for each job that one waits for."""


def taken(spec_size: int, options: JobOptions) -> int:
    """What a job, or an array, counts."""
    return spec_size + DEPENDENCY * len(options.after)


class PerUser:
    """``jobs`` and ``size`` (characters of their specs as JSON, and ``DEPENDENCY``) by user id; ``submitting``: those of the jobs that are
    parts of a submit without its end. The jobs of an array share one spec."""

    def __init__(self) -> None:
        self.jobs: Counter[int] = Counter()
        self.size: Counter[int] = Counter()
        self.submitting: Counter[int] = Counter()
        self._of_spec: Counter[int] = Counter()

    def enter(self, live: Live) -> None:
        job, key = live.job, _key(live)
        self.jobs[job.uid] += 1
        self._of_spec[key] += 1
        if self._of_spec[key] == 1:
            self.size[job.uid] += taken(live.spec_size, job.options)

    def enter_many(
        self, uids: Iterable[int], keys: Sequence[int], specs: Iterable[int], sizes: Callable[[Collection[int]], Mapping[int, int]]
    ) -> None:
        """Jobs that wait for no others. ``keys``: the same for those that share a spec; ``sizes``: of specs by their number."""
        uids = [*uids]
        self.jobs.update(uids)
        new = dict(zip(keys, zip(uids, specs, strict=True), strict=True))
        for key in self._of_spec.keys() & new.keys():
            del new[key]
        self._of_spec.update(keys)
        size = sizes({spec for _, spec in new.values()})
        for uid, spec in new.values():
            self.size[uid] += size.get(spec, 0)

    def leave(self, live: Live) -> None:
        job, key = live.job, _key(live)
        self._of_spec[key] -= 1
        if not self._of_spec[key]:
            del self._of_spec[key]
            self._less(self.size, job.uid, taken(live.spec_size, job.options))
        self._less(self.jobs, job.uid, 1)

    @contextlib.contextmanager
    def coming(self, uid: int, jobs: int, size: int) -> Iterator[None]:
        """Counted while they are being written, so that a flood through many connections at once cannot slip in between."""
        self.jobs[uid] += jobs
        self.size[uid] += size
        try:
            yield
        finally:
            self._less(self.jobs, uid, jobs)
            self._less(self.size, uid, size)

    @contextlib.contextmanager
    def coming_in_parts(self, uid: int, jobs: int, size: int) -> Iterator[None]:
        """As ``coming``, of a part: until the end of its submit."""
        with self.coming(uid, jobs, size):
            self.submitting[uid] += jobs
            try:
                yield
            finally:
                self._less(self.submitting, uid, jobs)

    @staticmethod
    def _less(of: Counter[int], uid: int, count: int) -> None:
        of[uid] -= count
        if not of[uid]:
            del of[uid]


def _key(live: Live) -> int:
    """Of those that have a spec in common."""
    return live.job.id if live.job.gang else live.job.array or live.job.id
