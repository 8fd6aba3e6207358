"""Loading: an OCI layout or a docker-save archive becomes images of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from dockless.images.archive.discover import Candidate, candidates
from dockless.images.archive.ingest import ingest
from dockless.images.archive.source import open_source
from dockless.images.catalog.catalog import Catalog
from dockless.images.catalog.image import Image
from dockless.images.catalog.reserving import reserved
from dockless.images.files import explained, temporary_directory
from dockless.images.progress import Progress


def load(store: Catalog, path: Path, name: str | None, progress: Callable[[Progress], None] | None) -> list[Image]:
    """See ``Store.load``."""
    doing, hint = f"cannot load {path}", f"check that the image store {store.root} is on a writable file system with room"
    with explained(doing, str(path), hint):
        store.prepare()
        with temporary_directory(store.root / "tmp") as scratch:
            source = open_source(path, scratch, store.limits.size)
            try:
                found = candidates(source)
                while True:
                    lacking = _lacking(store, path, found)
                    with reserved(store, lacking, str(path)):
                        if _lacking(store, path, found) <= lacking:
                            return ingest(store, found, name, progress)
                    # Making room took layers that these images have, too: ask for the room of those as well.
            finally:
                source.close()


def _lacking(store: Catalog, path: Path, found: Iterable[Candidate]) -> int:
    """Bytes that the store does not have yet, by the source's own word; of a docker-save archive the whole file."""
    layers = [layer for candidate in found for layer in candidate.layers]
    if any(layer.digest is None for layer in layers):
        return path.stat().st_size
    sizes = {layer.digest: layer.size or 0 for layer in layers if layer.digest is not None and not store.has_blob(layer.digest)}
    return sum(sizes.values())
