"""``dockless.volumes``: the named directories that are kept between sandboxes.

::

    volumes.create("data", labels={"team": "a"})
    dockless.run("busybox", ["touch", "/data/x"], mounts=["data:/data"])     a sandbox makes one that is missing, too
    volumes.list(labels={"team": "a"}), volumes.get("data").directory
    volumes.remove("data")                                                   with all that is in it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dockless._life import check_labels
from dockless.base.checks import checked
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import UnknownVolume, VolumeInUse

if TYPE_CHECKING:
    from dockless.sandbox.run.volumes import VolumeInfo

__all__ = ["create", "get", "list", "prune", "remove"]


@checked
def create(name: str, *, labels: Mapping[str, str] | None = None) -> VolumeInfo:
    """Make a volume; one that is there stays as it is. ``BadInput`` for what cannot be a name, and where that one has other labels."""
    from dockless.sandbox.run import volumes

    return volumes.create(name, check_labels(labels))


@checked
def get(name: str) -> VolumeInfo:
    """What there is to know about a volume. ``UnknownVolume``"""
    from dockless.sandbox.run import volumes

    return volumes.get(name)


@checked
def list(
    *, names: str | Iterable[str] = (), labels: Mapping[str, str | None] | None = None, dangling: bool | None = None
) -> Sequence[VolumeInfo]:
    """The volumes of this user, by name. ``names``: those with this text, or one of several, in their name. ``labels``: those that have
    all of them, None for any value. ``dangling``: those that no sandbox has, or, if False, that one has."""
    from dockless.sandbox.run import volumes

    texts = (names,) if isinstance(names, str) else names
    return volumes.chosen(names=texts, labels=(labels or {}).items(), dangling=dangling)


@checked
def remove(name: str) -> None:
    """Remove a volume and all that is in it. ``UnknownVolume``, ``VolumeInUse`` while a sandbox has it, also one that has ended."""
    from dockless.sandbox.run import volumes

    volumes.remove(name)


@checked
def prune(*, names: str | Iterable[str] = (), labels: Mapping[str, str | None] | None = None) -> Sequence[str]:
    """Remove the volumes that no sandbox has, of those that ``list`` gives for the same keywords; the names of those that were removed."""
    removed = []
    for volume in list(names=names, labels=labels, dangling=True):
        try:
            remove(volume.name)
        except (UnknownVolume, VolumeInUse):
            continue  # somebody removed it meanwhile, or a sandbox has it now
        removed.append(volume.name)
    return removed
