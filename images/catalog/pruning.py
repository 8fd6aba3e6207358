"""Removing images, and what no image needs any more.

Never while a sandbox uses an image. While a pull or a load is at work no part is removed, because what it has found or brought is
not listed yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Collection, Iterable, Set

from dockless.base.dataclass import dataclass
from dockless.errors import BadDigest, BadImage, ImageInUse
from dockless.images.catalog.catalog import Catalog
from dockless.images.catalog.disk_usage import Inventory, Part, inventory
from dockless.images.catalog.pins import DIRECTORY, forget, is_used, unpinned
from dockless.images.files import explained, temporary_directory
from dockless.images.layers import erofs
from dockless.images.model import reference

_TORN_FOR = 7 * 86400.0
"""Seconds that a torn download is kept for another try."""
_AT_ONCE = 100
"""Images that are removed together: each holds a descriptor meanwhile."""


@dataclass(frozen=True, slots=True)
class Freed:
    """What was removed (or would be). ``size``: bytes. ``busy``: a pull or load was at work, so its parts had to stay for now."""

    images: tuple[str, ...] = ()
    size: int = 0
    busy: bool = False


def remove(store: Catalog, ref: str, *, force: bool = False) -> Freed:
    """Take a tag away; with its last tag goes the image, and everything that no other image needs.

    By digest or id, all tags go; several only with ``force``. Raises ``UnknownImage``, and ``ImageInUse`` while a sandbox uses it, be it
    one that has ended (with ``force`` the tags go, the image when it is no longer in use).
    """
    image = store.find(ref)
    with explained(f"cannot remove {ref}", ref, f"the store {store.root} belongs to one user"):
        store.prepare()
        with unpinned(store, [image.digest]) as free:
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
            freed = collect(store)
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
        catalog = inventory(store, store.read_index())
        unwanted = _unwanted(catalog, all_images, unused_for, keep_last)
        if dry_run:
            going = frozenset(name for name in unwanted if not is_used(store, name))
            parts = {*catalog.unneeded(going), *(_layer_blobs(store, catalog, going) if blobs else ())}
            return Freed(_names(catalog, going), catalog.size(parts) + catalog.size(_torn(store, catalog, all_images)))
        freed = drop(store, unwanted, blobs=blobs, torn=all_images)
    return Freed(_names(catalog, freed.images), freed.size, freed.busy)


def unlist(store: Catalog, going: Set[str]) -> None:
    """Take images and their tags off the list."""
    with store.changing() as index:
        for name in going:
            index["images"].pop(name, None)
        index["tags"] = {tag: target for tag, target in index["tags"].items() if target not in going}


def drop(store: Catalog, names: Collection[str], *, blobs: bool = False, torn: bool = False) -> Freed:
    """Remove those of the images that no sandbox uses, and what no other image needs."""
    dropped: set[str] = set()
    size, busy, rest = 0, False, list(names)
    while True:
        with unpinned(store, rest[:_AT_ONCE]) as going:
            unlist(store, going)
            freed = collect(store, blobs=blobs, torn=torn)
        dropped |= going
        size, busy, rest = size + freed.size, busy or freed.busy, rest[_AT_ONCE:]
        if not rest:
            return Freed(tuple(dropped), size, busy)


def collect(store: Catalog, *, blobs: bool = False, torn: bool = False) -> Freed:
    """Remove what no listed image needs; nothing while a pull or load is at work."""
    using = os.open(store.root / "locks" / "using", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(using, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Freed(busy=True)
        catalog = inventory(store, store.read_index())
        going = catalog.unneeded()
        if blobs:
            going += _layer_blobs(store, catalog, frozenset())
        going += _torn(store, catalog, torn)
        size = catalog.size(going)
        _remove(store, going)
        for left in (store.root / DIRECTORY).iterdir():
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


def _unwanted(catalog: Inventory, all_images: bool, unused_for: float | None, keep_last: int | None) -> frozenset[str]:
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


def _names(catalog: Inventory, going: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(tag for name in going for tag in catalog.tags.get(name, (name,))))


def _layer_blobs(store: Catalog, catalog: Inventory, without: Set[str]) -> list[Part]:
    """Blobs of layers that some image has unpacked."""
    found: set[Part] = set()
    for name in catalog.needs:
        if name not in without:
            with contextlib.suppress(BadImage, BadDigest):
                for layer in store.documents(name, name)[1].layers:
                    found.add(("blobs", layer.digest.algorithm, layer.digest.hex))
    return [part for part in found if part in catalog.parts]


def _torn(store: Catalog, catalog: Inventory, all_of_them: bool) -> list[Part]:
    now = time.time()
    torn = [part for part in catalog.parts if part[0] == "partial"]
    return [part for part in torn if all_of_them or now - store.root.joinpath(*part).stat().st_mtime > _TORN_FOR]
