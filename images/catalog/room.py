"""Room: what takes how much of it in the store, and how to get it back.

Everything on disk is a *part* (a blob, a layer, a tar, a torn download); an image needs some of them. What no listed image needs may go,
and images go by their last use, never while a sandbox uses them. While a pull or a load is at work nothing is removed, because what
it has found or brought is not listed yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dockless.errors import BadDigest, BadImage, ImageInUse, NoRoom, UnknownImage
from dockless.images.catalog.catalog import LAYER_FILE, Catalog
from dockless.images.catalog.lease import exclusive, forget, is_used, last_use
from dockless.images.files import check_room, explained, temporary_directory
from dockless.images.layers import erofs
from dockless.images.layers.layers import INDEX_FILE
from dockless.images.model import digest, reference

Part = tuple[str, str, str]
"""The folder of the store, the algorithm, the rest of the name."""
_FOLDERS = ("blobs", "diffs", "layers", "tars", "partial")
_TORN_FOR = 7 * 86400.0
"""Seconds that a torn download is kept for another try."""
_AT_ONCE = 100
"""Images that are removed together: each holds a descriptor meanwhile."""


@dataclass(frozen=True, slots=True)
class ImageRoom:
    """One image. ``size``: bytes of all its parts; ``own``: of those that no other image needs. ``last_used``: seconds since 1970."""

    digest: str
    tags: tuple[str, ...]
    size: int
    own: int
    last_used: float
    in_use: bool


@dataclass(frozen=True, slots=True)
class Room:
    """The whole store, in bytes. ``blobs``: with the notes about them; ``layers``: unpacked, or tars and their indexes; ``unneeded``: of no
    image; ``free``: of its file system. ``bound``: what the settings allow, None for no bound."""

    images: tuple[ImageRoom, ...]
    blobs: int
    layers: int
    partial: int
    unneeded: int
    free: int
    bound: int | None

    @property
    def used(self) -> int:
        return self.blobs + self.layers + self.partial


@dataclass(frozen=True, slots=True)
class Freed:
    """What was removed (or would be). ``size``: bytes. ``busy``: a pull or load was at work, so its parts had to stay for now."""

    images: tuple[str, ...] = ()
    size: int = 0
    busy: bool = False


@dataclass(slots=True)
class _Catalog:
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


def room(store: Catalog) -> Room:
    """What takes how much room. ``ImageError`` where the store cannot be read."""
    with explained(f"cannot read the image store {store.root}", str(store.root), "it belongs to one user"):
        catalog = _catalog(store, store.read_index())
        alone = catalog.alone()
        images = [
            ImageRoom(
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
    return Room(
        tuple(sorted(images, key=lambda image: -image.last_used)),
        blobs=by_folder["blobs"] + by_folder["diffs"],
        layers=by_folder["layers"] + by_folder["tars"],
        partial=by_folder["partial"],
        unneeded=unneeded,
        free=free,
        bound=bound(),
    )


def remove(store: Catalog, ref: str, *, force: bool = False) -> Freed:
    """Take a tag away; with its last tag goes the image, and everything that no other image needs.

    By digest or id, all tags go; several only with ``force``. Raises ``UnknownImage``, and ``ImageInUse`` while a sandbox uses it, be it
    one that has ended (with ``force`` the tags go, the image when it is no longer in use).
    """
    image = store.find(ref)
    with explained(f"cannot remove {ref}", ref, f"the store {store.root} belongs to one user"):
        store.prepare()
        with exclusive(store, [image.digest]) as free:
            with store.changing() as index:
                tags = [tag for tag, target in index["tags"].items() if target == image.digest]
                going = [image.reference] if image.reference is not None else tags
                if image.reference is None and len(tags) > 1 and not force:
                    raise ImageInUse(
                        f"{ref} has {len(tags)} tags: {', '.join(tags)}", subject=ref, hint="remove the tags one by one, or use --force"
                    )
                last = len(going) == len(tags)
                if last and not force and not free:
                    raise ImageInUse(f"a sandbox uses {image.name}", subject=ref, hint="remove it first: dockless ps --all; or --force")
                for tag in going:
                    del index["tags"][tag]
                if last and free:
                    index["images"].pop(image.digest, None)
            freed = _collect(store)
    return Freed(tuple(going) or (image.digest,), freed.size, freed.busy)


def prune(
    store: Catalog,
    *,
    all_images: bool = False,
    unused_for: float | None = None,
    keep_last: int | None = None,
    blobs: bool = False,
    dry_run: bool = False,
) -> Freed:
    """Remove images without a tag, what no image needs, and downloads torn off a week ago.

    ``all_images``: tagged ones too, ``unused_for`` only those not used for so many seconds, ``keep_last`` all but the so many last used of
    each repository. ``blobs``: layers' blobs as well, which only ``push`` and ``save`` need. What is in use stays.
    """
    with explained("cannot prune the image store", str(store.root), "it belongs to one user"):
        store.prepare()
        catalog = _catalog(store, store.read_index())
        unwanted = _unwanted(catalog, all_images, unused_for, keep_last)
        if dry_run:
            going = frozenset(name for name in unwanted if not is_used(store, name))
            parts = {*catalog.unneeded(going), *(_layer_blobs(store, catalog, going) if blobs else ())}
            return Freed(_names(catalog, going), catalog.size(parts) + catalog.size(_torn(store, catalog, all_images)))
        freed = _drop(store, unwanted, blobs=blobs, torn=all_images)
    return Freed(_names(catalog, freed.images), freed.size, freed.busy)


@contextlib.contextmanager
def reserved(store: Catalog, size: int, what: str) -> Iterator[None]:
    """Be promised ``size`` bytes of the store's file system, and of its bound, while the block runs.

    Where the settings bound the store (``[images] max_size``), images go by their last use until there is room. ``NoRoom`` names the bytes
    that are missing. A promise dies with who holds it.
    """
    store.prepare()
    with explained("cannot reserve room in the image store", str(store.root), "check that it can be written"):
        limit = bound()
        if limit is not None:
            _shrink(store, limit - size, size, limit, what)
        fd = os.open(store.root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            check_room(fd, size + sum(_promises(store)), what)
        finally:
            os.close(fd)
        place = store.root / "reserved" / os.urandom(8).hex()
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(fd, str(size).encode())
        yield
    finally:
        os.close(fd)
        place.unlink(missing_ok=True)


def bound() -> int | None:
    """The upper bound of the store in bytes, ``[images] max_size = "200G"`` in dockless.toml; None where there is none. ``BadInput``"""
    from dockless.base import settings

    value: int | None = settings.load()["images.max_size"]
    return value


# -- how -----------------------------------------------------------------------------------------------------------------------------


def _shrink(store: Catalog, most: int, size: int, limit: int, what: str) -> None:
    """Remove the images that were not used for longest until ``most`` bytes are left."""
    catalog = _catalog(store, store.read_index())
    used = sum(catalog.parts.values())
    if used <= most:
        return
    _collect(store)
    catalog = _catalog(store, store.read_index())
    unused = [name for name in sorted(catalog.needs, key=lambda name: catalog.used[name]) if not is_used(store, name)]
    lefts = list(catalog.left(unused))
    count = next((count for count, left in enumerate(lefts) if left <= most), None)
    if count is None:
        from dockless.base.units import format_size

        left = lefts[-1]
        taken = f", {format_size(left)} of it are in use" if left else ""
        free = "remove what uses them: dockless ps --all; or " if left else ""
        error = NoRoom(
            f"{what}: {format_size(size)} do not fit: the store may hold {format_size(limit)}{taken}",
            subject=what,
            hint=f"{free}raise max_size below [images] in dockless.toml",
        )
        error.missing = left - most
        raise error
    if len(_drop(store, unused[:count]).images) < count:  # somebody has just started one of them
        _shrink(store, most, size, limit, what)


def _drop(store: Catalog, names: Collection[str], *, blobs: bool = False, torn: bool = False) -> Freed:
    """Remove those of the images that no sandbox uses, and what no other image needs."""
    dropped: set[str] = set()
    size, busy, rest = 0, False, list(names)
    while True:
        with exclusive(store, rest[:_AT_ONCE]) as going:
            unlist(store, going)
            freed = _collect(store, blobs=blobs, torn=torn)
        dropped |= going
        size, busy, rest = size + freed.size, busy or freed.busy, rest[_AT_ONCE:]
        if not rest:
            return Freed(tuple(dropped), size, busy)


def unlist(store: Catalog, going: Set[str]) -> None:
    """Take images and their tags off the list."""
    with store.changing() as index:
        for name in going:
            index["images"].pop(name, None)
        index["tags"] = {tag: target for tag, target in index["tags"].items() if target not in going}


def _promises(store: Catalog) -> Iterator[int]:
    """Bytes that others have been promised. What a dead one left is removed."""
    for place in (store.root / "reserved").iterdir():
        try:
            fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.fstat(fd).st_size:
                place.unlink(missing_ok=True)
        except BlockingIOError:
            yield int(os.read(fd, 32) or 0)
        finally:
            os.close(fd)


def _collect(store: Catalog, *, blobs: bool = False, torn: bool = False) -> Freed:
    """Remove what no listed image needs; nothing while a pull or load is at work."""
    using = os.open(store.root / "locks" / "using", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(using, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Freed(busy=True)
        catalog = _catalog(store, store.read_index())
        going = catalog.unneeded()
        if blobs:
            going += _layer_blobs(store, catalog, frozenset())
        going += _torn(store, catalog, torn)
        size = catalog.size(going)
        _remove(store, going)
        for left in (store.root / "leases").iterdir():
            if (name := left.name.replace("-", ":", 1)) not in catalog.needs:
                forget(store, name)
        return Freed(size=size)
    finally:
        os.close(using)


def _remove(store: Catalog, parts: list[Part]) -> None:
    """Layers first, so that none is seen without its tar; each vanishes at once and is taken apart afterwards."""
    with temporary_directory(store.root / "tmp") as grave:
        for number, part in enumerate(sorted(parts, key=lambda part: part[0] != "layers")):
            path = store.root.joinpath(*part)
            if part[0] == "layers":
                with contextlib.suppress(FileNotFoundError):
                    os.rename(path, grave / str(number))
            else:
                path.unlink(missing_ok=True)
    erofs.release()


def _unwanted(catalog: _Catalog, all_images: bool, unused_for: float | None, keep_last: int | None) -> frozenset[str]:
    now = time.time()
    kept: set[str] = set()
    if keep_last is not None:
        by_repository: dict[str, list[str]] = {}
        for name, tags in catalog.tags.items():
            for tag in tags:
                by_repository.setdefault(reference.parse(tag).name, []).append(name)
        for names in by_repository.values():
            kept.update(sorted(dict.fromkeys(names), key=lambda name: -catalog.used[name])[:keep_last])
    chosen = all_images or unused_for is not None or keep_last is not None
    return frozenset(
        name
        for name in catalog.needs
        if name not in catalog.tags or (chosen and name not in kept and (unused_for is None or now - catalog.used[name] >= unused_for))
    )


def _names(catalog: _Catalog, going: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(tag for name in going for tag in catalog.tags.get(name, (name,))))


def _catalog(store: Catalog, index: dict[str, Any]) -> _Catalog:
    tags: dict[str, list[str]] = {}
    for tag, name in index["tags"].items():
        tags.setdefault(name, []).append(tag)
    catalog = _Catalog(dict(_parts(store)), {}, {name: tuple(sorted(found)) for name, found in tags.items()})
    for name, entry in index["images"].items():
        catalog.needs[name] = _needs(store, name, entry)
        catalog.used[name] = max(last_use(store, name), float(entry.get("added", 0)))
    return catalog


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


def _layer_blobs(store: Catalog, catalog: _Catalog, without: Set[str]) -> list[Part]:
    """Blobs of layers that some image has unpacked."""
    found: set[Part] = set()
    for name in catalog.needs:
        if name not in without:
            with contextlib.suppress(BadImage, BadDigest):
                for layer in store.documents(name, name)[1].layers:
                    found.add(("blobs", layer.digest.algorithm, layer.digest.hex))
    return [part for part in found if part in catalog.parts]


def _torn(store: Catalog, catalog: _Catalog, all_of_them: bool) -> list[Part]:
    now = time.time()
    torn = [part for part in catalog.parts if part[0] == "partial"]
    return [part for part in torn if all_of_them or now - store.root.joinpath(*part).stat().st_mtime > _TORN_FOR]


def _parts(store: Catalog) -> Iterator[tuple[Part, int]]:
    for folder in _FOLDERS:
        for algorithm in _listed(store.root / folder):
            for path in _listed(algorithm):
                if not path.name.startswith(".") or folder == "partial":
                    with contextlib.suppress(FileNotFoundError):
                        yield (folder, algorithm.name, path.name), _layer_size(path) if folder == "layers" else path.stat().st_blocks * 512


def _layer_size(path: Path) -> int:
    index = path / INDEX_FILE
    if index.exists():
        return index.stat().st_size
    try:
        return int(json.loads((path / LAYER_FILE).read_bytes())["size"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _listed(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except FileNotFoundError:
        return []
