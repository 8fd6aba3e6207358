"""Commit: an image and what a sandbox changed of it become a new image.

::

    upper ─► write_layer ─► hash (diff_id) ─► compress ─► hash (digest) ─► a file of the store ─┐
    the base's documents ─► new configuration and manifest ────────────────────────────────────┴─► ingest ─► Image

The layer takes the same way into the store as a pulled one: verified, unpacked or indexed, its blob kept for push and save. With a given
time (``created`` or ``SOURCE_DATE_EPOCH``) no file in the layer is younger than that, so the same changes give the same image wherever and
whenever they were made; an upper without changes adds no layer.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from dockless.base.typing import BinaryIO
from dockless.errors import BadImage, BadInput
from dockless.images.archive.assemble import Created, Edit, NewLayer, new_config, new_manifest, to_json
from dockless.images.archive.diff import Upper, WrittenLayer, write_layer
from dockless.images.archive.discover import Candidate
from dockless.images.archive.ingest import ingest
from dockless.images.archive.packing import SUFFIX, Compression, Packed, Packer, check_level
from dockless.images.archive.tarwriter import Writable
from dockless.images.catalog.catalog import Catalog
from dockless.images.catalog.image import Image
from dockless.images.catalog.pins import pinned
from dockless.images.catalog.reserving import reserved
from dockless.images.files import explained, temporary_directory
from dockless.images.layers.pipeline import LayerSource
from dockless.images.model import config, digest, manifest
from dockless.images.model.manifest import Descriptor
from dockless.images.model.platforms import Platform

WriteLayer = Callable[[Writable, int | None], WrittenLayer]
"""Writes a layer into an output; the number is the youngest time it may have, nanoseconds."""


def commit(
    store: Catalog,
    base: Image,
    upper: Upper | WriteLayer,
    *,
    reference: str | None = None,
    edit: Edit | None = None,
    compression: Compression = "gzip",
    level: int | None = None,
    created: float | datetime.datetime | None = None,
    created_by: str = "",
) -> Image:
    """The image ``base`` with the changes of ``upper`` as its newest layer, registered in ``store``, tagged ``reference`` if that is given.

    ``edit``: changes to its configuration. ``level``: of the compression, see ``packing``. ``created``: seconds since 1970 or a time with a
    zone, else ``SOURCE_DATE_EPOCH``, else now. ``created_by``: what the history says made it. Warnings about what could not be kept are in
    the image's ``warnings``. Raises ``BadInput``, ``ImageError`` (which names the file); the store stays sound.
    """
    if base.is_host:
        raise BadInput("the host is no image that can be committed to", subject=base.name, hint="run an image, and commit that")
    when = Created.of(created)
    write: WriteLayer
    if isinstance(upper, Upper):
        known = upper

        def write(out: Writable, clamp: int | None) -> WrittenLayer:
            return write_layer(known, base.layers, out, clamp=clamp)
    else:
        write = upper
    name = store.check_name(reference) if reference is not None else None
    level = check_level(compression, level)
    what = f"the new layer on {base.name}"
    with (
        _storing(store, what),
        pinned(store, (base,)),
        reserved(store, 0, what),  # how much it will be is not known: the store is brought back to its bound first
        store.using(),
        temporary_directory(store.root / "tmp") as scratch,
    ):
        written, packed = pack(scratch / "blob", lambda out: write(out, when.clamp), compression, level, what)
        new = NewLayer(packed.diff_id, packed.digest, packed.size, manifest.OCI_LAYER + SUFFIX[compression])
        # An upper without changes: nothing for readers to fetch.
        layer = new if written.members else None
        return register(store, base, layer, scratch / "blob", name, edit or Edit(), when, created_by, written.warnings)


def pack(
    path: Path, write: Callable[[Writable], WrittenLayer], compression: Compression, level: int, what: str
) -> tuple[WrittenLayer, Packed]:
    """Have a layer written into a new file, compressed."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb", buffering=0) as out:
        packer = Packer(out, compression, level, room=out.fileno(), what=what)
        try:
            written = write(packer)
            return written, packer.close()
        finally:
            packer.abort()


def register(
    store: Catalog,
    base: Image | None,
    layer: NewLayer | None,
    blob: Path,
    name: str | None,
    edit: Edit,
    when: Created,
    created_by: str,
    warnings: tuple[str, ...] = (),
    platform: Platform | None = None,
) -> Image:
    """Make the documents and give everything to ingest. ``blob``: the file that holds the layer's bytes. ``platform``: of an image without
    a base, this host's if it is not given."""
    what = f"a commit to {base.name}" if base is not None else "the new image"
    old_manifest = old_config = None
    sources: list[LayerSource] = []
    if base is not None:
        old_manifest, parsed, _ = store.documents(base.digest, f"image {base.name}")
        old_config = store.read_blob(parsed.config.digest, f"image {base.name}")
        sources += [_of_the_base(store, base, entry) for entry in parsed.layers]
    elif platform is not None:
        fields = {"architecture": platform.architecture, "os": platform.os, "variant": platform.variant}
        old_config = to_json({key: value for key, value in fields.items() if value})
    config_raw = new_config(old_config, layer, edit, when, created_by)
    manifest_raw = new_manifest(old_manifest, config_raw, digest.of(config_raw), layer)
    if layer is not None:
        sources.append(LayerSource(lambda: blob.open("rb"), layer.digest, layer.size, what, spool=blob))
    document = config.parse(manifest.load_json(config_raw, what), what)
    candidate = Candidate((), manifest_raw, config_raw, document, tuple(sources), what, warnings)
    (image,) = ingest(store, [candidate], name)
    return image


def _of_the_base(store: Catalog, base: Image, entry: Descriptor) -> LayerSource:
    def missing() -> BinaryIO:
        if store.has_blob(entry.digest):
            return store.open_blob(entry.digest)
        raise BadImage(
            f"image {base.name}: the store does not keep the blob {entry.digest} of its layers",
            subject=base.name,
            hint="pull or load that image again, then commit",
        )

    return LayerSource(missing, entry.digest, entry.size, f"image {base.name}: layer {entry.digest}")


def _storing(store: Catalog, what: str) -> AbstractContextManager[None]:
    return explained(f"cannot store {what}", str(store.root), "check that the image store is on a writable file system with room")
