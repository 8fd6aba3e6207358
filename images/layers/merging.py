"""One index of all layers of an image: what overlayfs would show of them, as one mount over all their tars."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from dockless.images.layers.layers import MERGED_FROM, Layer
from dockless.native.erofs_index import IndexBuilder
from dockless.native.layers import Fault


def mergeable(layers: Sequence[Layer]) -> bool:
    return len(layers) >= MERGED_FROM and all(layer.tar is not None for layer in layers)


def merge(layers: Sequence[Layer], target: Path) -> bool:
    """Write the index of these indexed layers, bottom first, into a new file. False, and no file, where it cannot be said in one: it only
    makes starts shorter. ``OSError``"""
    builder = IndexBuilder(base=True, size_max=0, entries_max=0)
    with contextlib.closing(builder), contextlib.ExitStack() as stack:
        sources = []
        for layer in layers:
            sources.append(os.open(layer.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
            stack.callback(os.close, sources[-1])
        index = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, index)
        try:
            builder.merge(index, sources)
            os.fsync(index)
        except Fault:
            target.unlink()
            return False
    return True
