"""Export: the merged root of an image, or of a sandbox, as one tar without layers, whiteouts or configuration.

Owners are those that a sandbox sees. Root reads them as they are; for an ordinary user a process in a user namespace with her
sandboxes' id map does, and where she can have none, everything belongs to root.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Sequence

from dockless.base.idmaps import default_map
from dockless.errors import BadInput, IdMapError
from dockless.images.archive.assemble import Created
from dockless.images.archive.diff import Upper, WrittenLayer
from dockless.images.archive.entries import Entries, Owners, opened
from dockless.images.archive.output import Destination, packed
from dockless.images.archive.packing import Compression, check_level
from dockless.images.archive.tarwriter import TarWriter, Writable
from dockless.images.catalog.catalog import Catalog
from dockless.images.catalog.image import Image
from dockless.images.catalog.pins import pinned
from dockless.images.files import explained
from dockless.images.layers.layers import Layer
from dockless.images.layers.walk import walk


def export(
    image: Image,
    destination: Destination,
    *,
    upper: Upper | None = None,
    compression: Compression = "none",
    level: int | None = None,
    created: float | datetime.datetime | None = None,
    store: Catalog | None = None,
) -> WrittenLayer:
    """Write the root of ``image``, with ``upper`` on top if that is given, to a path or an open file. No file is younger than ``created``,
    or ``SOURCE_DATE_EPOCH``, where there is one. ``store``: the image's, where it is then kept meanwhile. Raises ``BadInput``,
    ``ImageError`` (which names the file)."""
    if image.is_host:
        raise BadInput("the host is no image that can be exported", subject=image.name, hint="name an image of 'dockless images'")
    check_level(compression, level)
    clamp = Created.of(created).clamp
    with (
        packed(destination, compression, level) as out,
        explained(f"cannot read the root of {image.name}", image.name, "dockless images check"),
        pinned(store, (image,)) if store is not None else contextlib.nullcontext(),
    ):
        return write_root(image.layers, out, upper=upper, clamp=clamp)


def write_root(layers: Sequence[Layer], out: Writable, *, upper: Upper | None = None, clamp: int | None = None) -> WrittenLayer:
    """The merged ``layers`` (bottom first) as an uncompressed tar into ``out``."""
    if os.geteuid() != 0 and (upper is None or upper.from_inside):
        from dockless.images.archive import inside

        try:
            idmap = upper.idmap if upper is not None and upper.idmap is not None else default_map()
            return inside.write_root(layers, out, upper, idmap, clamp)
        except IdMapError:
            if upper is not None:
                raise
    return read_root(layers, out, upper=upper, clamp=clamp, userxattr=os.geteuid() != 0)


def read_root(layers: Sequence[Layer], out: Writable, *, upper: Upper | None, clamp: int | None, userxattr: bool) -> WrittenLayer:
    """``write_root`` with the rights that we have."""
    tar = TarWriter(out)
    of_layers = Owners(all_root=os.geteuid() != 0)
    of_upper = upper.owners if upper is not None else None
    entries = Entries(tar, lambda layer: of_upper if of_upper is not None and layer == 0 else of_layers, opened, clamp=clamp)
    with contextlib.ExitStack() as stack:
        roots: list[int] = []
        if upper is not None:
            roots.append(os.open(upper.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
            stack.callback(os.close, roots[-1])
        for layer in reversed(layers):
            roots.append(layer.open())
            stack.callback(os.close, roots[-1])
        if roots:
            for found in walk(roots, userxattr=userxattr):
                entries.add(found)
    tar.finish()
    return WrittenLayer(entries.members, entries.size, entries.warnings)
