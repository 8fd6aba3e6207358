"""``dockless.toml``: quotas and caps, read strictly. A key that is unknown or of the wrong kind is an error, never ignored::

[quota]
default = 2                      # GPUs at once for users not named below; left out: no limit
[quota.users]
anna = 4
[quota.groups]
vision = 6                       # all members together
[groups]
vision = ["anna", "bob"]         # members; left out: the system's group of that name (getgrouplist(3))
[queue]
per_user = 10000                 # jobs one user may have waiting and running
[host]
cpu_jobs = 16                    # jobs without GPUs at once
admins = ["carl"]                # besides root and the daemon's own user
[logs]
keep_days = 30                   # output of ended jobs
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dockless.errors import BadInput
from dockless.sched.policy import Quotas


@dataclass(frozen=True, slots=True)
class Config:
    """See the module's text for the file it mirrors."""

    quotas: Quotas = field(default_factory=Quotas)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    per_user: int = 10_000
    cpu_jobs: int = field(default_factory=lambda: max(8, 2 * (os.cpu_count() or 1)))
    admins: tuple[str, ...] = ()
    keep_days: float = 30.0


def load(path: Path) -> Config:
    """The settings in ``path``; defaults where there is no file. Raises BadInput that names the key."""
    import tomllib

    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except FileNotFoundError:
        return Config()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise BadInput(f"{path}: {error}", subject=str(path), hint="correct the file, or move it away") from None
    return _Reader(path).config(data)


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path

    def wrong(self, key: str, what: str) -> BadInput:
        return BadInput(f"{self.path}: {key} {what}", subject=key, hint="the settings are described in dockless.sched.config")

    def table(self, data: Mapping[str, Any], key: str, known: tuple[str, ...] | None = None) -> Mapping[str, Any]:
        value = data.get(key.rpartition(".")[2], {})
        if not isinstance(value, dict):
            raise self.wrong(f"[{key}]", "is not a table")
        for name in value:
            if known is not None and name not in known:
                raise self.wrong(f"{key}.{name}", "is unknown")
        return value

    def count(self, value: Any, key: str, least: int = 0) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1_000_000_000:
            raise self.wrong(key, f"is not a whole number from {least}")
        return value

    def counts(self, table: Mapping[str, Any], key: str) -> dict[str, int]:
        return {name: self.count(value, f"{key}.{name}") for name, value in table.items()}

    def names(self, value: Any, key: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "is not a list of names")
        return tuple(value)

    def config(self, data: Mapping[str, Any]) -> Config:
        # Other rooms keep their tables in the same file, so an unknown table is theirs.
        quota = self.table(data, "quota", ("default", "users", "groups"))
        queue = self.table(data, "queue", ("per_user",))
        host = self.table(data, "host", ("cpu_jobs", "admins"))
        logs = self.table(data, "logs", ("keep_days",))
        plain = Config()
        return Config(
            Quotas(
                self.counts(self.table(quota, "quota.users"), "quota.users"),
                self.counts(self.table(quota, "quota.groups"), "quota.groups"),
                self.count(quota["default"], "quota.default") if "default" in quota else None,
            ),
            {name: self.names(value, f"groups.{name}") for name, value in self.table(data, "groups").items()},
            self.count(queue.get("per_user", plain.per_user), "queue.per_user", 1),
            self.count(host.get("cpu_jobs", plain.cpu_jobs), "host.cpu_jobs"),
            self.names(host.get("admins", []), "host.admins"),
            float(self.count(logs.get("keep_days", 30), "logs.keep_days")),
        )
