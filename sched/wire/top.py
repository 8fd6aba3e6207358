"""The host at one moment, as ``dockless top`` shows it: records alone, which client and daemon share."""

from __future__ import annotations

from dockless.base.dataclass import dataclass
from dockless.base.records import plain
from dockless.base.typing import Any


@dataclass(frozen=True, slots=True)
class GpuProgram:
    """A process that uses a GPU. ``pid``: its number on the host. ``job``: 0 where it belongs to no job. ``memory``: bytes of the GPU;
    ``busy``: the share of the last second in which it computed there, 0 to 1; None where the driver does not say."""

    pid: int
    user: str = ""
    job: int = 0
    memory: int | None = None
    busy: float | None = None


@dataclass(frozen=True, slots=True)
class GpuShare:
    """A part of a GPU that is leased. ``memory``: bytes. ``job`` 0: none of the queue's."""

    user: str
    memory: int
    job: int = 0


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What a GPU does and who holds it: see ``GpuInfo``. ``busy``: the share of the last sample, up to a second, in which something
    computed, 0 to 1; ``used``: bytes of its memory; ``temperature``: degrees Celsius; ``power``: watts; None for what is not known.
    ``programs``: the first of those that use it; ``more``: how many more there are. ``ecc_corrected``, ``ecc_uncorrected``: errors of its
    memory since its driver was loaded; ``xids``: the numbers of Xid errors, and how many of each the daemon has heard."""

    index: int
    uuid: str
    model: str = ""
    memory: int = 0
    simulated: bool = False
    job: int = 0
    user: str = ""
    since: float = 0.0
    outside: bool = False
    trouble: str = ""
    busy: float | None = None
    used: int | None = None
    temperature: float | None = None
    power: float | None = None
    programs: tuple[GpuProgram, ...] = ()
    more: int = 0
    shares: tuple[GpuShare, ...] = ()
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    xids: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class JobUse:
    """A job that has been started, and what it does with its GPUs. ``name``: empty for another's. ``busy``: the mean of its GPUs,
    and of one that it shares what its own programs compute; ``used``: bytes of their memory that its processes have; None for what is not
    known. ``share``: bytes that it may have of a shared GPU."""

    job: int
    user: str
    name: str = ""
    gpus: tuple[int, ...] = ()
    started: float = 0.0
    time_limit: float = 0.0
    busy: float | None = None
    used: int | None = None
    share: int = 0


@dataclass(frozen=True, slots=True)
class UserUse:
    """What a user has and waits for. ``gpus``: also those leased outside the queue. ``next``: of her waiting jobs the first, 0 for none;
    ``place``: where it stands in the queue, 0 where that was not looked up; ``starts_in``: seconds until it starts at the latest, None
    where nobody can say."""

    user: str
    running: int = 0
    gpus: int = 0
    waiting: int = 0
    next: int = 0
    place: int = 0
    starts_in: float | None = None


@dataclass(frozen=True, slots=True)
class Top:
    """The host at one moment. ``more_jobs``, ``more_users``: how many more there are than these. ``cores``, ``memory`` and what is used of
    them: see ``HostInfo``."""

    at: float
    gpus: tuple[GpuUse, ...] = ()
    jobs: tuple[JobUse, ...] = ()
    users: tuple[UserUse, ...] = ()
    running: int = 0
    waiting: int = 0
    more_jobs: int = 0
    more_users: int = 0
    gpu_error: str = ""
    cores: float = 0.0
    cores_used: float = 0.0
    memory: int = 0
    memory_used: int = 0

    def as_dict(self) -> dict[str, Any]:
        return dict(plain(self))
