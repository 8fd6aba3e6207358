"""Space for what is coming into the store: promised before it comes, and made by removing what was not used for longest."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from dockless.errors import NoRoom
from dockless.images.catalog.catalog import Catalog
from dockless.images.catalog.disk_usage import bound, inventory
from dockless.images.catalog.pins import is_used
from dockless.images.catalog.pruning import collect, drop
from dockless.images.files import check_room, explained


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


def _shrink(store: Catalog, most: int, size: int, limit: int, what: str) -> None:
    """Remove the images that were not used for longest until ``most`` bytes are left."""
    catalog = inventory(store, store.read_index())
    used = sum(catalog.parts.values())
    if used <= most:
        return
    collect(store)
    catalog = inventory(store, store.read_index())
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
    if len(drop(store, unused[:count]).images) < count:  # somebody has just started one of them
        _shrink(store, most, size, limit, what)


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
