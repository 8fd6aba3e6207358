"""Named volumes and the sandboxes that have them: which there are, and their end. Made by ``sandbox.volumes``."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from dockless.base import paths
from dockless.errors import BadInput, SandboxGone
from dockless.sandbox.run import records
from dockless.sandbox.run.box import everything
from dockless.sandbox.run.removal import remove_tree
from dockless.sandbox.spec import check_id
from dockless.sandbox.volumes import LABELS, NEW, volume_path


def names() -> list[str]:
    """The volumes of this user."""
    try:
        with os.scandir(_home()) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def create(name: str, labels: Mapping[str, str]) -> None:
    """A volume with labels; one that is there stays as it is. ``BadInput`` where that has other labels."""
    there = name in names()
    if there and labels and labels != labels_of(name):
        raise BadInput(f"there is a volume {name} with other labels", subject=name, hint=f"dockless volume rm {name}, or another name")
    volume_path(name)
    if labels and not there:
        path = _home() / f"{LABELS}{name}"
        with paths.writing(f"the labels of the volume {name}", path):
            path.unlink(missing_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
                json.dump(dict(labels), file)


def labels_of(name: str) -> dict[str, str]:
    """Those that it was made with."""
    try:
        found = json.loads(records.read(_home() / f"{LABELS}{name}"))
    except (FileNotFoundError, ValueError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def existing(name: str) -> Path:
    """The directory of a volume that is there. ``BadInput``"""
    check_id(name, "volume name")
    path = _home() / name
    if path.is_symlink() or not path.is_dir():
        raise BadInput(f"there is no volume {name}", subject=name, hint="'dockless volume ls' lists them")
    return path


def users_of(name: str) -> list[str]:
    """The ids of the sandboxes of this user that have it, also of those that have ended: they can be started again."""
    found = []
    for box in everything():
        with contextlib.suppress(SandboxGone):
            if any(mount.kind == "volume" and mount.source == name for mount in box.spec.mounts):
                found.append(box.id)
    return found


def remove(name: str) -> None:
    """A volume and all that is in it. ``BadInput`` where there is none, or a sandbox has it."""
    path = existing(name)
    using = users_of(name)
    if using:
        hint = f"remove them first: dockless rm {' '.join(using[:3])}"
        raise BadInput(f"the volume {name} belongs to {len(using)} sandboxes: {', '.join(using[:3])}", subject=name, hint=hint)
    # The name goes first: nobody then mounts what is half removed.
    gone = path.with_name(f"{NEW}-{os.urandom(4).hex()}")
    with paths.writing(f"the volume {name}", path):
        os.rename(path, gone)
        path.with_name(f"{LABELS}{name}").unlink(missing_ok=True)
    remove_tree(gone)


def _home() -> Path:
    return paths.state() / "volumes" / str(os.geteuid())
