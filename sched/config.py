"""The daemon's part of ``dockless.toml`` (``dockless.base.settings`` lists and reads all of it): quotas, caps, groups, administrators."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from dockless.base import settings
from dockless.base.dataclass import dataclass, field
from dockless.base.occasions import Occasion, parse
from dockless.base.settings import DEFAULTS
from dockless.base.typing import Any
from dockless.sched.policy.quotas import ClassQuota, Quota, Quotas
from dockless.sched.policy.state import Preemption


@dataclass(frozen=True, slots=True)
class Ways:
    """How notices go out, see ``dockless.base.settings``; with nothing said none do."""

    sendmail: str | None = None
    smtp: str | None = None
    sender: str | None = None
    domains: tuple[str, ...] = ()
    webhook: str | None = None

    @property
    def any(self) -> bool:
        return bool(self.sendmail or self.smtp or self.webhook)


@dataclass(frozen=True, slots=True)
class Reserved:
    """Hours for which ``gpus`` whole GPUs, ``cores`` and ``memory``, bytes, are kept for some users. ``duration``: seconds."""

    name: str
    start: Occasion
    duration: float
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    gpus: int = 0
    cores: int = 0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Config:
    """See ``dockless.base.settings.SETTINGS`` for what each means."""

    quotas: Quotas = field(default_factory=Quotas)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    per_user: int = DEFAULTS["queue.per_user"]
    cpu_jobs: int = field(default_factory=lambda: max(8, 2 * (os.cpu_count() or 1)))
    admins: tuple[str, ...] = DEFAULTS["host.admins"]
    admin_groups: tuple[str, ...] = DEFAULTS["host.admin_groups"]
    keep_days: float = DEFAULTS["logs.keep_days"]
    per_user_size: int = DEFAULTS["queue.per_user_size"]
    keep_jobs_days: float = DEFAULTS["queue.keep_days"]
    keep_jobs: int = DEFAULTS["queue.keep_jobs"]
    logs_per_user: int = DEFAULTS["logs.per_user"]
    log_size_limit: int = DEFAULTS["logs.size_limit"]
    log_size: int = DEFAULTS["logs.size"]
    idle_after: float = DEFAULTS["gpus.idle_after"]
    idle_notice: float = DEFAULTS["gpus.idle_notice"]
    volumes: Mapping[str, str] = field(default_factory=dict)
    disk_per_job: int = DEFAULTS["disk.per_job"]
    disk_per_user: int = DEFAULTS["disk.per_user"]
    order: str = DEFAULTS["queue.order"]
    half_life: float = DEFAULTS["queue.half_life"]
    preemption: Preemption = Preemption(DEFAULTS["preempt.after"], DEFAULTS["preempt.grace"])
    preempt_signal: int = DEFAULTS["preempt.signal"]
    notify: Ways = field(default_factory=Ways)
    share: str = DEFAULTS["gpus.share"]
    devices: tuple[str, ...] = DEFAULTS["gpus.devices"]
    mps: str = DEFAULTS["gpus.mps"]
    reservations: tuple[Reserved, ...] = ()
    cores: int | None = None
    memory: int | None = None
    cores_per_gpu: int = DEFAULTS["host.cores_per_gpu"]
    memory_per_gpu: int = DEFAULTS["host.memory_per_gpu"]
    cores_per_job: int = DEFAULTS["host.cores_per_job"]
    memory_per_job: int = DEFAULTS["host.memory_per_job"]
    numa: str = DEFAULTS["host.numa"]
    own_cores: str = DEFAULTS["host.own_cores"]

    @property
    def has_mps(self) -> bool:
        """Whether jobs that share a GPU get NVIDIA's Multi-Process Service."""
        return self.mps == "yes" and self.share == "user"

    @property
    def has_own_cores(self) -> bool:
        """Whether users have processors of their own for the whole cores of their jobs."""
        return self.own_cores == "yes"

    def kept_since(self) -> float:
        """Output of before this moment is removed, in seconds since 1970."""
        return time.time() - self.keep_days * 86400


def load(path: Path) -> Config:
    """The settings in ``path``; defaults where there is no file. ``BadInput`` names line and key."""
    found = settings.load(path)
    return Config(
        Quotas(
            {name: _quota(said) for name, said in found["quota.users"].items()},
            {name: _quota(said) for name, said in found["quota.groups"].items()},
            _quota(found["quota.default"]),
        ),
        found["groups"],
        found["queue.per_user"],
        Config().cpu_jobs if found["host.cpu_jobs"] is None else found["host.cpu_jobs"],
        found["host.admins"],
        found["host.admin_groups"],
        float(found["logs.keep_days"]),
        found["queue.per_user_size"],
        float(found["queue.keep_days"]),
        found["queue.keep_jobs"],
        found["logs.per_user"],
        found["logs.size_limit"],
        found["logs.size"],
        found["gpus.idle_after"],
        found["gpus.idle_notice"],
        found["volumes"],
        found["disk.per_job"],
        found["disk.per_user"],
        found["queue.order"],
        found["queue.half_life"],
        Preemption(found["preempt.after"], found["preempt.grace"]),
        found["preempt.signal"],
        Ways(*(found[f"notify.{name}"] for name in ("sendmail", "smtp", "sender", "domains", "webhook"))),
        found["gpus.share"],
        tuple(dict.fromkeys(found["gpus.devices"])),
        found["gpus.mps"],
        tuple(_reserved(name, said) for name, said in found["reservations"].items()),
        *(
            found[f"host.{name}"]
            for name in ("cores", "memory", "cores_per_gpu", "memory_per_gpu", "cores_per_job", "memory_per_job", "numa", "own_cores")
        ),
    )


def _reserved(name: str, said: Mapping[str, Any]) -> Reserved:
    return Reserved(name, **{**said, "start": parse(said["start"])})


def _quota(said: Mapping[str, Any] | int | None) -> Quota:
    if not isinstance(said, Mapping):
        return Quota(said)
    classes = {name: ClassQuota(**of) if isinstance(of, Mapping) else ClassQuota(of) for name, of in said.get("classes", {}).items()}
    return Quota(**{**said, "classes": classes})
