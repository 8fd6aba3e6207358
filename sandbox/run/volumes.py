"""Named volumes and the sandboxes that have them: which there are, and their end. Made by ``sandbox.volumes``."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping

from dockless.base import paths
from dockless.base.dataclass import dataclass
from dockless.base.path import Path
from dockless.errors import BadInput, SandboxGone, UnknownVolume, VolumeInUse
from dockless.sandbox.filters import has_labels, is_named
from dockless.sandbox.names import check_id
from dockless.sandbox.run import records
from dockless.sandbox.run.box import everything
from dockless.sandbox.run.removal import remove_tree
from dockless.sandbox.volumes import LABELS, NEW, volume_path


@dataclass(frozen=True, slots=True)
class VolumeInfo:
    """A named volume. ``directory``: where it is on the host. ``changed``: when a name directly in it was last made or removed, seconds
    since 1970. ``labels``: those it was made with. ``sandboxes``: the ids of those that have it, also of those that have ended: they can
    be started again."""

    name: str
    directory: str
    changed: float
    labels: dict[str, str]
    sandboxes: tuple[str, ...]


def create(name: str, labels: Mapping[str, str]) -> VolumeInfo:
    """A volume with labels; one that is there stays as it is. ``BadInput`` where that has other labels."""
    there = name in _names()
    if there and labels and labels != _labels_of(name):
        raise BadInput(f"there is a volume {name} with other labels", subject=name, hint=f"dockless volume rm {name}, or another name")
    volume_path(name)
    if labels and not there:
        path = _home() / f"{LABELS}{name}"
        with paths.writing(f"the labels of the volume {name}", path):
            path.unlink(missing_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
                json.dump(dict(labels), file)
    return get(name)


def get(name: str) -> VolumeInfo:
    """``UnknownVolume``, ``BadInput`` for what cannot be a name."""
    _existing(name)
    return _described(name, _users())


def chosen(*, names: Iterable[str] = (), labels: Iterable[tuple[str, str | None]] = (), dangling: bool | None = None) -> list[VolumeInfo]:
    """The volumes of this user by name. ``names``: those with one of these texts in their name. ``labels``: those that have all of them,
    None for any value. ``dangling``: those that no sandbox has, or, if False, that one has."""
    users, texts, wanted = _users(), tuple(names), tuple(labels)
    found = []
    for name in _names():
        with contextlib.suppress(UnknownVolume):  # it was removed meanwhile
            found.append(_described(name, users))
    return [one for one in found if is_named(one.name, texts) and has_labels(one.labels, wanted) and dangling in (None, not one.sandboxes)]


def remove(name: str) -> None:
    """A volume and all that is in it. ``UnknownVolume``, ``VolumeInUse``"""
    path = _existing(name)
    using = _users().get(name, [])
    if using:
        hint = f"remove them first: dockless rm {' '.join(using[:3])}"
        raise VolumeInUse(f"the volume {name} belongs to {len(using)} sandboxes: {', '.join(using[:3])}", subject=name, hint=hint)
    # The name goes first: nobody then mounts what is half removed.
    gone = path.with_name(f"{NEW}-{os.urandom(4).hex()}")
    with paths.writing(f"the volume {name}", path):
        os.rename(path, gone)
        path.with_name(f"{LABELS}{name}").unlink(missing_ok=True)
    remove_tree(gone)


def _described(name: str, users: Mapping[str, list[str]]) -> VolumeInfo:
    path = _home() / name
    try:
        changed = path.stat().st_mtime
    except FileNotFoundError:
        raise _unknown(name) from None
    return VolumeInfo(name, str(path), changed, _labels_of(name), tuple(users.get(name, ())))


def _names() -> list[str]:
    try:
        with os.scandir(_home()) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def _labels_of(name: str) -> dict[str, str]:
    try:
        found = json.loads(records.read(_home() / f"{LABELS}{name}"))
    except (FileNotFoundError, ValueError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _existing(name: str) -> Path:
    check_id(name, "volume name")
    path = _home() / name
    if path.is_symlink() or not path.is_dir():
        raise _unknown(name)
    return path


def _unknown(name: str) -> UnknownVolume:
    return UnknownVolume(f"there is no volume {name}", subject=name, hint="'dockless volume ls' lists them")


def _users() -> dict[str, list[str]]:
    """The ids of this user's sandboxes, by the volumes that they have."""
    found: dict[str, list[str]] = {}
    for box in everything():
        with contextlib.suppress(SandboxGone):
            for name in {mount.source for mount in box.spec.mounts if mount.kind == "volume"}:
                found.setdefault(name, []).append(box.id)
    return {name: sorted(ids) for name, ids in found.items()}


def _home() -> Path:
    return paths.state() / "volumes" / str(os.geteuid())
