"""What takes how much of the disk in the store: its parts, and which image needs which.

Everything on disk is a *part*: a blob, a layer, a tar, a torn download.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from pathlib import Path

from dockless.base.dataclass import dataclass, field
from dockless.base.typing import Any
from dockless.errors import BadDigest, BadImage, UnknownImage
from dockless.images.catalog.catalog import LAYER_FILE, Catalog
from dockless.images.catalog.pins import is_used, last_use
from dockless.images.files import explained
from dockless.images.layers.layers import INDEX_FILE, MERGED_FILE
from dockless.images.model import digest

Part = tuple[str, str, str]
"""The folder of the store, the algorithm, the rest of the name."""
_FOLDERS = ("blobs", "diffs", "layers", "tars", "partial")


@dataclass(frozen=True, slots=True)
class ImageUsage:
    """One image. ``size``: bytes of all its parts; ``own``: of those that no other image needs. ``last_used``: seconds since 1970."""

    digest: str
    tags: tuple[str, ...]
    size: int
    own: int
    last_used: float
    in_use: bool


@dataclass(frozen=True, slots=True)
class ImageUse:
    """One image by itself: what ``ImageUsage`` says without a look at the others."""

    tags: tuple[str, ...]
    size: int
    last_used: float
    in_use: bool


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The whole store, in bytes. ``blobs``: with the notes about them; ``layers``: unpacked, or tars and their indexes; ``unneeded``: of no
    image; ``free``: of its file system. ``bound``: what the settings allow, None for no bound."""

    images: tuple[ImageUsage, ...]
    blobs: int
    layers: int
    partial: int
    unneeded: int
    free: int
    bound: int | None

    @property
    def used(self) -> int:
        return self.blobs + self.layers + self.partial


@dataclass(slots=True)
class Inventory:
    """What is on disk, and who needs it."""

    parts: dict[Part, int]
    needs: dict[str, frozenset[Part]]
    tags: dict[str, tuple[str, ...]]
    used: dict[str, float] = field(default_factory=dict)

    def unneeded(self, without: Set[str] = frozenset()) -> list[Part]:
        """Parts that no image needs when those ``without`` are gone."""
        needed: set[Part] = set()
        for name, parts in self.needs.items():
            if name not in without:
                needed |= parts
        return [part for part in self.parts if part not in needed and part[0] != "partial"]

    def alone(self) -> dict[str, int]:
        """What each image takes that no other one needs, in bytes."""
        needing = Counter(part for parts in self.needs.values() for part in parts)
        return {name: self.size(part for part in parts if needing[part] == 1) for name, parts in self.needs.items()}

    def left(self, going: Iterable[str]) -> Iterator[int]:
        """Bytes that are left in the store when none, one, two, … of the images ``going`` have gone."""
        needing = Counter(part for parts in self.needs.values() for part in parts)
        size = sum(self.parts.values()) - self.size(self.unneeded())
        yield size
        for name in going:
            needing.subtract(self.needs[name])
            size -= self.size(part for part in self.needs[name] if not needing[part])
            yield size

    def size(self, parts: Iterable[Part]) -> int:
        return sum(self.parts.get(part, 0) for part in parts)


def use(store: Catalog, name: str) -> ImageUse | None:
    """What the image of that digest takes, in a time that does not grow with the store; None for one that is not listed. ``ImageError``"""
    with explained(f"cannot read the image store {store.root}", str(store.root), "it belongs to one user"):
        index = store.read_index()
        entry = index["images"].get(name)
        if entry is None:
            return None
        size = 0
        for part in _needs(store, name, entry):
            with contextlib.suppress(FileNotFoundError):
                size += _part_size(part, store.root.joinpath(*part))
        tags = tuple(sorted(tag for tag, target in index["tags"].items() if target == name))
        return ImageUse(tags, size, _last_used(store, name, entry), is_used(store, name))


def last_uses(store: Catalog) -> dict[str, tuple[float, bool]]:
    """Of each image, by its digest: when it was last used, in seconds since 1970, and whether it is in use. Its documents are not read.
    ``ImageError``"""
    with explained(f"cannot read the image store {store.root}", str(store.root), "it belongs to one user"):
        images = store.read_index()["images"]
        return {name: (_last_used(store, name, entry), is_used(store, name)) for name, entry in images.items()}


def disk_usage(store: Catalog) -> DiskUsage:
    """What takes how much. ``ImageError`` where the store cannot be read."""
    with explained(f"cannot read the image store {store.root}", str(store.root), "it belongs to one user"):
        catalog = inventory(store, store.read_index())
        alone = catalog.alone()
        images = [
            ImageUsage(
                name,
                catalog.tags.get(name, ()),
                catalog.size(parts),
                alone[name],
                catalog.used[name],
                is_used(store, name),
            )
            for name, parts in catalog.needs.items()
        ]
        by_folder = {folder: sum(size for part, size in catalog.parts.items() if part[0] == folder) for folder in _FOLDERS}
        unneeded = catalog.size(catalog.unneeded())
        about = os.statvfs(next(place for place in (store.root, *store.root.parents) if place.is_dir()))
        free = about.f_bavail * about.f_frsize
    return DiskUsage(
        tuple(sorted(images, key=lambda image: -image.last_used)),
        blobs=by_folder["blobs"] + by_folder["diffs"],
        layers=by_folder["layers"] + by_folder["tars"],
        partial=by_folder["partial"],
        unneeded=unneeded,
        free=free,
        bound=bound(),
    )


def bound() -> int | None:
    """The upper bound of the store in bytes, ``[images] max_size = "200G"`` in dockless.toml; None where there is none. ``BadInput``"""
    from dockless.base import settings

    value: int | None = settings.load()["images.max_size"]
    return value


def inventory(store: Catalog, index: dict[str, Any]) -> Inventory:
    tags: dict[str, list[str]] = {}
    for tag, name in index["tags"].items():
        tags.setdefault(name, []).append(tag)
    catalog = Inventory(dict(_parts(store)), {}, {name: tuple(sorted(found)) for name, found in tags.items()})
    for name, entry in index["images"].items():
        catalog.needs[name] = _needs(store, name, entry)
        catalog.used[name] = _last_used(store, name, entry)
    return catalog


def _last_used(store: Catalog, name: str, entry: dict[str, Any]) -> float:
    return max(last_use(store, name), float(entry.get("added", 0)))


def _needs(store: Catalog, name: str, entry: dict[str, Any]) -> frozenset[Part]:
    """The parts of an image; of one whose documents are damaged, what is still known of it."""
    needed: set[Part] = {("blobs", *index.partition(":")[::2]) for index in entry.get("indexes", ())}
    try:
        own = digest.parse(name)
        needed.add(("blobs", own.algorithm, own.hex))
        _, parsed, document = store.documents(name, f"image {name}")
        for blob in (parsed.config, *parsed.layers):
            needed.add(("blobs", blob.digest.algorithm, blob.digest.hex))
            needed.add(("diffs", blob.digest.algorithm, blob.digest.hex))
        for chain_id in digest.chain(document.diff_ids):
            needed.add(("layers", chain_id.algorithm, chain_id.hex))
        for diff_id in document.diff_ids:
            needed.add(("tars", diff_id.algorithm, diff_id.hex))
    except (BadImage, BadDigest, UnknownImage):
        config = entry.get("config", "")
        needed.add(("blobs", *config.partition(":")[::2]))
    return frozenset(needed)


def _parts(store: Catalog) -> Iterator[tuple[Part, int]]:
    for folder in _FOLDERS:
        for algorithm in _listed(store.root / folder):
            for path in _listed(algorithm):
                if not path.name.startswith(".") or folder == "partial":
                    with contextlib.suppress(FileNotFoundError):
                        part = (folder, algorithm.name, path.name)
                        yield part, _part_size(part, path)


def _part_size(part: Part, path: Path) -> int:
    return _layer_size(path) if part[0] == "layers" else path.stat().st_blocks * 512


def _layer_size(path: Path) -> int:
    index = path / INDEX_FILE
    if index.exists():
        return index.stat().st_size + (merged.stat().st_size if (merged := path / MERGED_FILE).exists() else 0)
    try:
        return int(json.loads((path / LAYER_FILE).read_bytes())["size"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _listed(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except FileNotFoundError:
        return []
