"""Pins: what runs from an image keeps it in the store.

A pin is a shared lock on a small file, held by an open descriptor. The sandbox's keeper inherits it, so it lasts exactly as long as the
sandbox, whoever dies. A detached sandbox that has ended can still be committed: it keeps its image by a hard link to that file in its own
directory, until it is removed. The file's time is when the image was last used. flock(2)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator

from dockless.base.path import Path
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import UnknownImage

if TYPE_CHECKING:
    from dockless.images.catalog.catalog import Catalog
    from dockless.images.catalog.image import Image


DIRECTORY = "pins"
"""Of the store: a file for each image."""


def _place(store: Catalog, name: str) -> Path:
    return store.root / DIRECTORY / name.replace(":", "-")


def pin(store: Catalog, image: Image) -> int:
    """Keep ``image`` until the returned descriptor and its copies are closed. ``UnknownImage`` if it has just been removed."""
    fd = _locked(store, image.digest)
    try:
        os.utime(fd)
        if not all(layer.path.exists() for layer in image.layers):
            raise UnknownImage(f"image {image.name} has just been removed", subject=image.name, hint="pull or load it again")
    except BaseException:
        os.close(fd)
        raise
    return fd


def keep(store: Catalog, image: Image, link: Path) -> None:
    """Keep ``image``, which is pinned, as long as the file ``link`` exists too. ``OSError`` where there can be none, as on another file
    system."""
    os.link(_place(store, image.digest), link)


def _locked(store: Catalog, name: str) -> int:
    place = _place(store, name)
    while True:
        try:
            fd = os.open(place, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # a store of an earlier version, which had no such directory
            store.prepare()
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            # Whoever removed the image while we waited has removed this file too; the next one counts.
            if place.stat().st_ino == os.fstat(fd).st_ino:
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


@contextlib.contextmanager
def pinned(store: Catalog, images: Iterable[Image]) -> Iterator[None]:
    """Keep ``images`` while the block runs. In a store that is not ours nothing can be kept, and they are read all the same."""
    with contextlib.ExitStack() as stack:
        for image in images:
            with contextlib.suppress(OSError):
                stack.callback(os.close, pin(store, image))
        yield


@contextlib.contextmanager
def unpinned(store: Catalog, names: Iterable[str]) -> Iterator[frozenset[str]]:
    """Those of the images ``names`` that no sandbox uses; while the block runs, none starts from them either."""
    with contextlib.ExitStack() as held:
        free = set()
        for name in names:
            fd = _opened(_place(store, name))
            held.callback(os.close, fd)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _kept(fd):
                    free.add(name)
        yield frozenset(free)


def _opened(place: Path) -> int:
    """The file, made if it is missing, without the look of a use."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with contextlib.suppress(FileExistsError):
            fd = os.open(place, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.utime(fd, (0, 0))
            return fd


def _kept(fd: int) -> bool:
    return os.fstat(fd).st_nlink > 1


def is_used(store: Catalog, name: str) -> bool:
    """Whether a sandbox uses the image of this manifest digest: it runs, or it has ended and was not removed."""
    try:
        fd = os.open(_place(store, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _kept(fd)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def last_use(store: Catalog, name: str) -> float:
    """Seconds since 1970, 0 if it was never used."""
    try:
        return _place(store, name).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def forget(store: Catalog, name: str) -> None:
    """Remove the file of an image that is gone, while nothing can pin it."""
    with contextlib.suppress(FileNotFoundError):
        _place(store, name).unlink()
