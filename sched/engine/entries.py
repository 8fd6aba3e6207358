"""The jobs that have not ended, by number.

Of those that wait when a daemon comes back there can be a hundred thousand. Only what the policy sees is made of each, and the whole of it
when somebody asks: when it starts, is cancelled, held or looked at. A listing reads them from the queue on disk, which has the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import compress
from operator import not_

from dockless.base.dataclass import copied, dataclass
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.sched.engine.entry import LiveJob, waiting_jobs
from dockless.sched.jobs import Job
from dockless.sched.policy.waiting import Kind, WaitingJob
from dockless.sched.store import pending

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine

_NEED_MORE = frozenset({"begin", "retry_at", "after", "singleton", "role", "requeue", "preempted_by"})
"""Options whose jobs are made whole at once: what keeps them from starting takes more than a look at themselves."""


class Entries(MutableMapping[int, LiveJob]):
    """``make``: the whole of a job of which only the outline is here."""

    def __init__(self, make: Callable[[WaitingJob], LiveJob]) -> None:
        self._make = make
        self._of: dict[int, LiveJob | WaitingJob] = {}

    def __getitem__(self, number: int) -> LiveJob:
        found = self._of[number]
        if isinstance(found, WaitingJob):
            found = self._of[number] = self._make(found)
        return found

    def __setitem__(self, number: int, entry: LiveJob) -> None:
        self._of[number] = entry

    def __delitem__(self, number: int) -> None:
        del self._of[number]

    def __contains__(self, number: object) -> bool:
        return number in self._of

    def __iter__(self) -> Iterator[int]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def is_outline(self, number: int) -> bool:
        """Whether only what the policy sees of it is here."""
        return isinstance(self._of.get(number), WaitingJob)

    def seen_of(self, numbers: Iterable[int]) -> dict[int, WaitingJob]:
        """As ``seen``, by number; those that have ended are left out."""
        found, of = dict[int, WaitingJob](), self._of
        for number in numbers:
            one = of.get(number)
            if isinstance(one, LiveJob):
                found[number] = one.waiting if one.gang is None else one.first.waiting
            elif one is not None:
                found[number] = one
        return found

    def jobs(self, numbers: Iterable[int]) -> tuple[dict[int, Job], list[int]]:
        """The jobs of these numbers that are in memory completely, and the numbers of those of which only an outline is."""
        found, outlined, of = dict[int, Job](), list[int](), self._of
        for number in numbers:
            one = of.get(number)
            if isinstance(one, LiveJob):
                found[number] = one.live.job
            elif one is not None:
                outlined.append(number)
        return found, outlined

    def seen(self, number: int) -> WaitingJob | None:
        """What the policy sees of it, or of the first of its gang; None for one that has ended."""
        found = self._of.get(number)
        if isinstance(found, LiveJob):
            return found.waiting if found.gang is None else found.first.waiting
        return found

    def all_seen(self) -> Iterator[tuple[int, WaitingJob]]:
        """The number of each, and what the policy sees of it alone while it waits."""
        for number, found in self._of.items():
            yield number, found.waiting if isinstance(found, LiveJob) else found

    def see(self, jobs: Mapping[int, WaitingJob]) -> None:
        """What the policy sees from now on of these numbers, whose groups have changed."""
        for number, job in jobs.items():
            found = self._of[number]
            if isinstance(found, LiveJob):
                found.waiting, found.live = job, copied(found.live, quota_groups=job.groups)
            else:
                self._of[number] = job

    def add_outlines(self, ids: Iterable[int], jobs: Iterable[WaitingJob]) -> None:
        self._of.update(zip(ids, jobs, strict=True))


@dataclass(frozen=True, slots=True)
class _Like:
    """What jobs have in common that ask for the same. ``held``, ``array_limit``: as in ``JobOptions``; ``whole``: made whole at once."""

    kind: Kind
    held: str = ""
    array_limit: int = 0
    whole: bool = False


class _Known(dict[tuple[Any, ...], _Like]):
    """What was made of each combination of values in the columns ``_ASKED``; it is made at the first look."""

    def __missing__(self, asked: tuple[Any, ...]) -> _Like:
        found = self[asked] = _like(*asked)
        return found


def outlines(engine: Engine) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Take up the jobs that wait, are not cancelled and need no more than a look: those that may start stand in line afterwards.

    The numbers of all others; and those that an array's limit may keep aside: the job, its array, the limit."""
    others = pending.others(engine.reader)
    limited: list[tuple[int, int, int]] = []
    known = _Known()
    line: list[WaitingJob] = []
    for part in pending.pending(engine.reader):
        likes = [*map(known.__getitem__, zip(*map(part.__getitem__, _ASKED), strict=True))]
        if any(part["cancelled"]) or any(like.whole for like in known.values()):
            chosen = [not like.whole and not cancelled for like, cancelled in zip(likes, part["cancelled"], strict=True)]
            others += compress(part["id"], map(not_, chosen))
            part = {name: [*compress(column, chosen)] for name, column in part.items()}
            likes = [*compress(likes, chosen)]
        jobs = waiting_jobs(part["id"], [like.kind for like in likes], part["priority"], part["time_limit"], part["submitted"])
        engine.entries.add_outlines(part["id"], jobs)
        engine.per_user.enter_many(part["uid"], _keys(part), part["spec"], lambda specs: pending.spec_sizes(engine.reader, specs))
        engine.aside.enter_names(part["id"], part["uid"], part["name"])
        if not any(like.held or like.array_limit for like in known.values()):
            line += jobs
            continue
        for job, like, array in zip(jobs, likes, part["array"], strict=True):
            if like.held:
                engine.aside.keep(job)
            elif like.array_limit:
                limited.append((job.id, array, like.array_limit))
            else:
                line.append(job)
    engine.waiting.add_all(line)
    return others, limited


_ASKED = ("user", "gpus", "groups", "wanted", "options")


def _like(user: str, gpus: int, groups: str | None, wanted: str | None, options: str | None) -> _Like:
    said = json.loads(options or "{}")
    kind = Kind(
        user=user,
        gpus=gpus,
        groups=tuple(json.loads(groups or "[]")),
        devices=frozenset(json.loads(wanted or "[]")),
        gpu_class=said.get("gpu_class", ""),
        share=said.get("gpu_share", 0),
        cores=said.get("millicores", 0),
        memory=said.get("memory", 0),
        width=1,
    )
    return _Like(kind, said.get("held", ""), said.get("array_limit", 0), not _NEED_MORE.isdisjoint(said))


def _keys(part: dict[str, Sequence[Any]]) -> list[int]:
    """Of those that have a spec in common: no gang is among them."""
    return [array or number for number, array in zip(part["id"], part["array"], strict=True)]
