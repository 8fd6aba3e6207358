"""What is told of a sound ``dockless.toml``: settings that have no effect on this host, as it is now. None of it is an error."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from dockless.base import paths
from dockless.base.findings import MOST
from dockless.base.occasions import parse
from dockless.base.settings import dotted, line_of, load, text_of
from dockless.base.typing import Any


def without_effect(path: Path | None = None) -> list[str]:
    """One line for each user and group in the file that this host does not know, for each reservation that is over, for ``gpus.mps`` where
    no GPU is shared so, and for each weight, the first 20, where ``queue.order`` is not fair: what is said of them has no effect. No
    error: an account may be removed while the file stays, and time passes. ``BadInput`` as ``load``."""
    path = paths.config_file() if path is None else path
    values, text = load(path), text_of(path) or ""
    users: list[tuple[tuple[str, ...], str]] = [(("quota", "users", name), name) for name in values["quota.users"]]
    users += [(("groups", group), name) for group, names in values["groups"].items() for name in names]
    users += [(("host", "admins"), name) for name in values["host.admins"]]
    for name, said in values["reservations"].items():
        users += [(("reservations", name, "users"), user) for user in said.get("users", ())]
    lines = [(here, "user", name) for here, name in users if not is_known("user", name)]
    of_groups: list[tuple[tuple[str, ...], str]] = [(("quota", "groups", name), name) for name in values["quota.groups"]]
    of_groups += [(("host", "admin_groups"), name) for name in values["host.admin_groups"]]
    lines += [(here, "group", name) for here, name in of_groups if name not in values["groups"] and not is_known("group", name)]
    for name, said in values["reservations"].items():
        of = [group for group in said.get("groups", ()) if group not in values["groups"] and not is_known("group", group)]
        lines += [(("reservations", name, "groups"), "group", group) for group in of]
    found = [(here, f"there is no {kind} {name!r}" + (": write the name" if name.isdecimal() else "")) for here, kind, name in lines]
    for name, said in values["reservations"].items():
        if parse(said["start"]).next(said["duration"], time.time()) is None:
            found.append((("reservations", name, "start"), f"{said['start']} is over"))
    if values["gpus.mps"] == "yes" and values["gpus.share"] != "user":
        found.append((("gpus", "mps"), f'is for share = "user", and gpus.share is {values["gpus.share"]!r}'))
    if values["queue.order"] != "fair":
        weights = (weight for here, said in _quotas(values) for weight in _weights(here, said))
        found += [(here, f'is for order = "fair", and queue.order is {values["queue.order"]!r}') for here in islice(weights, MOST)]
    return [f"{path}:{line_of(text, here)}: {dotted(here)}: {what}" for here, what in found]


def missing_driver(path: Path | None = None) -> list[str]:
    """One line where ``gpus.driver_root`` is no directory: this host then has no GPUs of NVIDIA. No error: the directory may be mounted
    later. ``BadInput`` as ``load``."""
    path = paths.config_file() if path is None else path
    root, here = load(path)["gpus.driver_root"], ("gpus", "driver_root")
    if os.path.isdir(root):
        return []
    return [f"{path}:{line_of(text_of(path) or '', here)}: {dotted(here)}: there is no directory {root}, so no GPU of NVIDIA is found"]


def unknown_classes(has_class: Callable[[str], bool], path: Path | None = None) -> list[str]:
    """One line for each class of GPUs in a quota of which there is no GPU, by ``has_class``. ``BadInput`` as ``load``."""
    path = paths.config_file() if path is None else path
    values, text = load(path), text_of(path) or ""
    here = [(*where, "classes", name) for where, said in _quotas(values) for name in said.get("classes", ())]
    return [
        f"{path}:{line_of(text, one)}: {dotted(one)}: no GPU of this host is of class {one[-1]}" for one in here if not has_class(one[-1])
    ]


def is_known(kind: str, name: str) -> bool:
    """Whether this host has that ``user`` or ``group``."""
    import grp
    import pwd

    try:
        pwd.getpwnam(name) if kind == "user" else grp.getgrnam(name)
    except (KeyError, ValueError):  # also a name with a NUL
        return False
    return True


def _quotas(values: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Those that are more than a number, and where each stands."""
    quotas: list[tuple[tuple[str, ...], Any]] = [(("quota", "default"), values["quota.default"])]
    quotas += [(("quota", of, name), said) for of in ("users", "groups") for name, said in values[f"quota.{of}"].items()]
    return [(here, said) for here, said in quotas if isinstance(said, Mapping)]


def _weights(here: tuple[str, ...], said: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Where a quota says a weight, its own or of a class."""
    if "weight" in said:
        yield (*here, "weight")
    for name, of in said.get("classes", {}).items():
        if isinstance(of, Mapping) and "weight" in of:
            yield (*here, "classes", name, "weight")
