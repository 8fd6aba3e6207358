"""The daemon's part of ``dockless.toml`` (``dockless.settings`` lists and reads all of it): quotas, caps, groups, administrators."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dockless import settings
from dockless.sched.policy import Quotas


@dataclass(frozen=True, slots=True)
class Config:
    """See ``dockless.settings.SETTINGS`` for what each means."""

    quotas: Quotas = field(default_factory=Quotas)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    per_user: int = 10_000
    cpu_jobs: int = field(default_factory=lambda: max(8, 2 * (os.cpu_count() or 1)))
    admins: tuple[str, ...] = ()
    keep_days: float = 30.0
    per_user_size: int = 64 << 20
    keep_jobs_days: float = 30.0
    keep_jobs: int = 10_000
    logs_per_user: int = 4 << 30
    log_size_limit: int = 1 << 30
    log_size: int = settings.LOG_SIZE


def load(path: Path) -> Config:
    """The settings in ``path``; defaults where there is no file. ``BadInput`` names line and key."""
    found = settings.load(path)
    return Config(
        Quotas(found["quota.users"], found["quota.groups"], found["quota.default"]),
        found["groups"],
        found["queue.per_user"],
        Config().cpu_jobs if found["host.cpu_jobs"] is None else found["host.cpu_jobs"],
        found["host.admins"],
        float(found["logs.keep_days"]),
        found["queue.per_user_size"],
        float(found["queue.keep_days"]),
        found["queue.keep_jobs"],
        found["logs.per_user"],
        found["logs.size_limit"],
        found["logs.size"],
    )
