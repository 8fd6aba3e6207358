"""Records for use of the host and for exceeded quotas, which daemon and client exchange."""

from __future__ import annotations

from dockless.base.dataclass import dataclass
from dockless.base.typing import Literal

By = Literal["user", "group", "gpu", "day", "week", "month"]
BY: tuple[By, ...] = ("user", "group", "gpu", "day", "week", "month")


@dataclass(frozen=True, slots=True)
class Used:
    """``key``: the user, the group, the GPUs' model, or the day, week or month (``2026-11-23``, ``2026-W48``, ``2026-11``; UTC).
    ``gpu_seconds``: of each GPU; ``cpu_seconds``: that jobs without GPUs ran. ``jobs``: those that were started for the first time, and
    ``attempts``: those that began, in that time. ``outside_seconds``: those of ``gpu_seconds`` that were leased outside the queue."""

    key: str
    gpu_seconds: float
    cpu_seconds: float
    jobs: int
    attempts: int
    outside_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A quota that GPUs exceed which its user has leased outside the queue. ``kind``: ``user`` or ``group``. ``gpu_class``: of whose GPUs
    there are ``limit``, empty where it is all. ``used``: without those that are ``asked`` for."""

    kind: str
    name: str
    gpu_class: str
    limit: int
    used: int
    asked: int
