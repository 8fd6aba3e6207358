"""What a decision depends on, and the two things that it may order: starts and preemptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dockless.base.dataclass import dataclass, field
from dockless.sched.policy.quotas import Quotas
from dockless.sched.policy.supplies import CORES, MEMORY, Supply
from dockless.sched.policy.waiting import WaitingJob, WaitingList

Links = Mapping[tuple[str, str], float]
"""Distance of each pair of GPUs, in both orders; a pair that is missing is as far as can be."""

HOST, JOBS = "host", "jobs"
"""Pools: the host's GPUs; its places for jobs without GPUs."""
CLASS = "class "
"""How the names of the pools begin that are the GPUs of a class."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that holds GPUs (starting ones too). ``ends``: the moment its time limit ends it, None without one. ``since``: when it started;
    ``stopping``: it is being ended, at ``ends`` at the latest. ``share``: MiB that it has of its one GPU, 0 where its GPUs are its own.
    ``cores``, ``memory``, ``width``: as in ``WaitingJob``. ``part``: of each of its GPUs, by which a fair order counts."""

    id: int
    user: str
    gpus: frozenset[str] = frozenset()
    groups: tuple[str, ...] = ()
    ends: float | None = None
    since: float = 0.0
    stopping: bool = False
    share: int = 0
    cores: int = 0
    memory: int = 0
    width: int = 1
    part: float = 1.0


@dataclass(frozen=True, slots=True)
class Preemption:
    """When a job gives back what it borrowed. ``after``: seconds that it has run then at least; ``grace``: seconds that it has to save its
    work, once it is told."""

    after: float = 300.0
    grace: float = 30.0


@dataclass(frozen=True, slots=True)
class Window:
    """Hours for which ``gpus`` whole GPUs are kept for ``users``: the next, or those that have begun.
    ``starts``, ``ends``: on the clock of ``decide``; ``text``: the same as people say it. ``cores``, in thousandths, and ``memory``, in
    bytes: kept, too, of what is common to all GPUs."""

    name: str
    gpus: int
    users: frozenset[str]
    starts: float
    ends: float
    text: str = ""
    cores: int = 0
    memory: int = 0

    @property
    def pools(self) -> dict[str, tuple[str, int]]:
        """From which all others draw, for as long as they run into it: of what each is a part, and how much of that is kept from them."""
        kept = {HOST: self.gpus, CORES: self.cores, MEMORY: self.memory}
        return {f"{of} of reservation {self.name}": (of, amount) for of, amount in kept.items() if amount}

    def is_reached(self, ends: float | None) -> bool:
        """Whether a job that runs now, until ``ends``, runs into it."""
        return ends is None or ends > self.starts


@dataclass(frozen=True, slots=True)
class MemoryNode:
    """A memory node (NUMA): the GPUs that are at it, and its processors, in thousandths of a core."""

    gpus: frozenset[str]
    cores: int


@dataclass(frozen=True, slots=True)
class QueueState:
    """All that a decision may depend on. ``waiting``: a plain sequence is made a ``WaitingList`` first, which takes longer than the
    decision; ``gpus`` in index order; ``unusable``: GPUs that nobody can have, as something else on the host uses them or they are
    ``out_of_service``; ``slices``: those of ``gpus`` that are given by name or as one of a class alone (MIG); ``classes``: the GPUs of each
    class that a job or a quota names, those first that are to be given first; ``cpu_jobs``: how many jobs without GPUs may run at once;
    ``usage``: for a fair order the GPU-seconds of the past, by ``user NAME`` and ``group NAME``, None for first come, first served.
    ``shareable``: the MiB of each GPU that those who share it have together, empty where GPUs are not shared; ``company``: who shares a
    GPU: jobs of one ``user``, or of ``all``. ``supplies``: ``CORES`` and ``MEMORY``, each of them only where it is counted.
    ``windows``: the reserved hours that are next. ``nodes``: where jobs are kept to the processors near their GPUs, the nodes of these."""

    gpus: tuple[str, ...]
    waiting: WaitingList | Sequence[WaitingJob]
    running: Sequence[RunningJob] = ()
    quotas: Quotas = field(default_factory=Quotas)
    links: Links = field(default_factory=dict)
    unusable: frozenset[str] = frozenset()
    slices: frozenset[str] = frozenset()
    cpu_jobs: int = 64
    usage: Mapping[str, float] | None = None
    preemption: Preemption = Preemption()
    out_of_service: frozenset[str] = frozenset()
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shareable: Mapping[str, int] = field(default_factory=dict)
    company: str = "user"
    supplies: Mapping[str, Supply] = field(default_factory=dict)
    windows: Sequence[Window] = ()
    nodes: Sequence[MemoryNode] = ()


def drawn(job: WaitingJob | RunningJob, pool: str, state: QueueState) -> int:
    """What it takes of one of the ``supplies``, at most. Who shares a GPU has as much of its part as of its memory; a slice has none."""
    supply, asked = state.supplies[pool], job.cores if pool == CORES else job.memory
    if not job.gpus:
        return supply.counts(asked, has_gpus=False)
    if isinstance(job, RunningJob):
        whole = len(job.gpus - state.slices)
    elif job.devices:
        whole = len(job.devices - state.slices)
    else:
        whole = 0 if job.gpu_class and not state.slices.isdisjoint(state.classes.get(job.gpu_class, ())) else job.gpus
    own = supply.own(whole, job.share, state.shareable.values())
    return supply.counts(asked, has_gpus=True, own=own) - own


@dataclass(frozen=True, slots=True)
class StartJob:
    """Start this job on exactly these GPUs."""

    job: int
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreemptJob:
    """Tell this job to end and queue it again: ``by`` has a guarantee of the GPUs that it borrowed."""

    job: int
    by: int
