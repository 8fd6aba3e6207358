"""What users and groups may have of the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from dockless.base.dataclass import dataclass, field

JOBS_OF, CPU_JOBS_OF = "jobs of ", "jobs without GPUs of "
"""How the names of the pools begin from which a job takes one place, whatever it holds; from the others it takes its GPUs."""


@dataclass(frozen=True, slots=True)
class ClassQuota:
    """Of the GPUs of a class, as in ``Quota``. ``weight``: of the jobs that get GPUs of the class alone, in place of that of the quota."""

    limit: int | None = None
    guarantee: int | None = None
    weight: int | None = None


@dataclass(frozen=True, slots=True)
class Quota:
    """Of one user, or of all members of a group together. ``limit``: GPUs at once; ``jobs``: jobs that run at once, with or without GPUs;
    ``cpu_jobs``: those without; None for any number. ``guarantee``: GPUs that are given back by whoever borrows them. ``weight``: the part
    in a fair order; None is 1 for a user, and no part of its own for a group. ``classes``: the same of GPUs of a class. ``queued``: jobs
    that wait or run, which a submit does not pass."""

    limit: int | None = None
    jobs: int | None = None
    cpu_jobs: int | None = None
    guarantee: int | None = None
    weight: int | None = None
    classes: Mapping[str, ClassQuota] = field(default_factory=dict)
    queued: int | None = None


@dataclass(frozen=True, slots=True)
class Quotas:
    """``default``: of users not named."""

    users: Mapping[str, Quota] = field(default_factory=dict)
    groups: Mapping[str, Quota] = field(default_factory=dict)
    default: Quota = Quota()

    def of(self, kind: str, name: str) -> Quota:
        """``kind``: ``user`` or ``group``."""
        return self.users.get(name, self.default) if kind == "user" else self.groups.get(name, _NONE)

    def pools(self, user: str, groups: Sequence[str], *, gpus: bool, job: bool = True) -> dict[str, int]:
        """What a job of ``user`` with or without GPUs draws on, nearest first, and how much there is of it. ``job``: False for what holds
        GPUs outside the queue."""
        found = {}
        for kind, name in (("user", user), *(("group", group) for group in groups)):
            quota = self.of(kind, name)
            if gpus and quota.limit is not None:
                found[f"{kind} {name}"] = quota.limit
            if job and quota.jobs is not None:
                found[f"{JOBS_OF}{kind} {name}"] = quota.jobs
            if job and not gpus and quota.cpu_jobs is not None:
                found[f"{CPU_JOBS_OF}{kind} {name}"] = quota.cpu_jobs
        return found

    def of_classes(self, user: str, groups: Sequence[str]) -> dict[str, tuple[str, int]]:
        """The pools from which a job of ``user`` draws its GPUs of a class: the class, and how many there are."""
        return {pool: (name, of.limit) for pool, name, of in self._classes_of(user, groups) if of.limit is not None}

    @property
    def classes(self) -> frozenset[str]:
        """All that are named."""
        return frozenset(chain.from_iterable(quota.classes for quota in self._all()))

    @property
    def guaranteed_classes(self) -> frozenset[str]:
        """Those of which anybody is guaranteed GPUs."""
        return frozenset(name for quota in self._all() for name, of in quota.classes.items() if of.guarantee is not None)

    @property
    def weighted_classes(self) -> frozenset[str]:
        """Those with a weight of their own."""
        return frozenset(name for quota in self._all() for name, of in quota.classes.items() if of.weight is not None)

    def guarantees(self, user: str, groups: Sequence[str]) -> dict[str, tuple[str, int]]:
        """The pools in which a job of ``user`` is guaranteed GPUs: of which class, "" for any, and how many."""
        pools = (("user", user), *(("group", group) for group in groups))
        found = {f"{kind} {name}": ("", count) for kind, name in pools if (count := self.of(kind, name).guarantee) is not None}
        return found | {pool: (name, of.guarantee) for pool, name, of in self._classes_of(user, groups) if of.guarantee is not None}

    def weight(self, kind: str, name: str, classes: Iterable[str]) -> int | None:
        """Of a user's or a group's jobs that get GPUs of these ``classes`` alone: of the first that has one, else the quota's."""
        quota = self.of(kind, name)
        of_classes = (quota.classes[of].weight for of in classes if of in quota.classes)
        return next((weight for weight in of_classes if weight is not None), quota.weight)

    @property
    def limit_jobs(self) -> bool:
        """Whether anybody's jobs are counted."""
        return any(quota.jobs is not None for quota in self._all())

    @property
    def guarantee_any(self) -> bool:
        """Whether anybody is guaranteed GPUs."""
        return any(quota.guarantee is not None for quota in self._all()) or bool(self.guaranteed_classes)

    def _classes_of(self, user: str, groups: Sequence[str]) -> Iterator[tuple[str, str, ClassQuota]]:
        """The pools of the classes of which the quotas of a job say something, each with its class."""
        for kind, who in (("user", user), *(("group", group) for group in groups)):
            for name, of in self.of(kind, who).classes.items():
                yield f"{name} of {kind} {who}", name, of

    def _all(self) -> Iterator[Quota]:
        return chain(self.users.values(), self.groups.values(), (self.default,))


_NONE = Quota()


def counts_jobs(pool: str) -> bool:
    return pool.startswith((JOBS_OF, CPU_JOBS_OF))
