"""Quotas as the settings have them: a plain number is a limit of GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from dockless.sched.policy.quotas import Quota, Quotas


def limits(
    users: Mapping[str, Quota | int] | None = None, groups: Mapping[str, Quota | int] | None = None, default: Quota | int | None = None
) -> Quotas:
    return Quotas(
        {name: _quota(said) for name, said in (users or {}).items()},
        {name: _quota(said) for name, said in (groups or {}).items()},
        _quota(default),
    )


def _quota(said: Quota | int | None) -> Quota:
    return said if isinstance(said, Quota) else Quota(said)
