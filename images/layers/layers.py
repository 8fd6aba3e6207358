"""A layer in the form overlayfs takes, however it lies in the store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

INDEX_FILE = "index.erofs"


@dataclass(frozen=True, slots=True)
class Layer:
    """``path``: a directory; or, where ``tar`` is set, an EROFS index whose files' data lies in that uncompressed tar."""

    path: Path
    tar: Path | None = None

    def open(self) -> int:
        """A descriptor of the layer's root directory, to look up names below it; the caller closes it. ``OSError``

        An index is mounted for it, attached nowhere (root only); the process holds that mount and gives the same one again.
        ``ImageError``"""
        if self.tar is None:
            return os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        from dockless.images.layers import erofs

        return erofs.held(self.path, self.tar)


@contextlib.contextmanager
def opened(layers: Iterable[Layer]) -> Iterator[list[int]]:
    """The layers' roots, open while the block runs."""
    with contextlib.ExitStack() as stack:
        fds = []
        for layer in layers:
            fds.append(layer.open())
            stack.callback(os.close, fds[-1])
        yield fds
