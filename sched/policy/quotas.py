"""What users and groups may have of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dockless.base.dataclass import dataclass, field

JOBS_OF, CPU_JOBS_OF = "jobs of ", "jobs without GPUs of "
"""How the names of the pools begin from which a job takes one place, whatever it holds; from the others it takes its GPUs."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Of one user, or of all members of a group together. ``limit``: GPUs at once; ``jobs``: jobs that run at once, with or without GPUs;
    ``cpu_jobs``: those without; None for any number."""

    limit: int | None = None
    jobs: int | None = None
    cpu_jobs: int | None = None


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

    @property
    def limit_jobs(self) -> bool:
        """Whether anybody's jobs are counted."""
        return any(quota.jobs is not None for quota in (*self.users.values(), *self.groups.values(), self.default))


_NONE = Quota()


def counts_jobs(pool: str) -> bool:
    return pool.startswith((JOBS_OF, CPU_JOBS_OF))
