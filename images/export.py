"""Export: the merged root of an image, or of a sandbox, as one tar without layers, whiteouts or configuration.

As root owners, capabilities and ACLs are those of the image. The layers of an ordinary user's store all belong to her, so in her exports
what the image brought belongs to root, as it did in her sandboxes.
"""

from __future__ import annotations

import contextlib
import datetime
import os

from dockless.errors import BadInput
from dockless.images.assemble import Created
from dockless.images.diff import Upper, Written
from dockless.images.entries import Entries, Owners
from dockless.images.files import explained
from dockless.images.image import Image
from dockless.images.output import Destination, archive, shown
from dockless.images.packing import Compression, check_level
from dockless.images.tarwriter import Output, TarWriter
from dockless.images.walk import walk


def export(
    image: Image,
    destination: Destination,
    *,
    upper: Upper | None = None,
    compression: Compression = "none",
    level: int | None = None,
    created: float | datetime.datetime | None = None,
) -> Written:
    """Write the root of ``image``, with ``upper`` on top if that is given, to a path or an open file. No file is younger than ``created``,
    or ``SOURCE_DATE_EPOCH``, where there is one. Raises ``BadInput``, ``ImageError`` (which names the file)."""
    if image.is_host:
        raise BadInput("the host is no image that can be exported", subject=image.name)
    check_level(compression, level)
    where = shown(destination)
    clamp = Created.of(created).clamp
    with (
        explained(f"cannot export {image.name} to {where}", where, "check that the place is writable and has room"),
        archive(destination, compression, level) as tar,
    ):
        return _fill(image, tar, upper, clamp)


def write_root(image: Image, out: Output, *, upper: Upper | None = None, clamp: int | None = None) -> Written:
    """The same as an uncompressed tar into ``out``."""
    tar = TarWriter(out)
    written = _fill(image, tar, upper, clamp)
    tar.finish()
    return written


def _fill(image: Image, tar: TarWriter, upper: Upper | None, clamp: int | None) -> Written:
    userxattr = upper.userxattr if upper is not None else os.geteuid() != 0
    of_layers = Owners(all_root=os.geteuid() != 0)
    of_upper = upper.owners if upper is not None else None
    entries = Entries(tar, lambda layer: of_upper if of_upper is not None and layer == 0 else of_layers, clamp=clamp)
    with contextlib.ExitStack() as stack:
        roots: list[int] = []
        if upper is not None:
            roots.append(os.open(upper.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
            stack.callback(os.close, roots[-1])
        for layer in reversed(image.layers):
            roots.append(layer.open())
            stack.callback(os.close, roots[-1])
        if roots:
            for found in walk(roots, userxattr=userxattr):
                entries.add(found)
    return Written(entries.members, entries.size, entries.warnings)
