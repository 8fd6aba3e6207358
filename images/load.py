"""Loading: an OCI layout or a docker-save archive becomes images of the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dockless.images.discover import candidates
from dockless.images.files import explained, temporary_directory
from dockless.images.image import Image
from dockless.images.ingest import ingest
from dockless.images.progress import Progress
from dockless.images.source import open_source
from dockless.images.store import Store


def load(store: Store, path: Path, name: str | None, progress: Callable[[Progress], None] | None) -> list[Image]:
    """See ``Store.load``."""
    doing, hint = f"cannot load {path}", f"check that the image store {store.root} is on a writable file system with room"
    with explained(doing, str(path), hint):
        store.prepare()
        with temporary_directory(store.root / "tmp") as scratch:
            source = open_source(path, scratch, store.limits.size)
            try:
                return ingest(store, candidates(source), name, progress)
            finally:
                source.close()
