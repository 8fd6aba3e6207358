"""A layer in the form overlayfs takes, however it lies in the store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

from dockless.base.dataclass import dataclass
from dockless.base.path import Path

INDEX_FILE = "index.erofs"
MERGED_FILE = "merged.erofs"
MERGED_FROM = 12
"""Layers of an image from which on it gets one index of all of them: a start mounts that instead of each."""


@dataclass(frozen=True, slots=True)
class Layer:
    """``path``: a directory; or, where ``tar`` is set, an EROFS index whose files' data lies in that uncompressed tar. ``others``: the
    further tars of an index of several layers."""

    path: Path
    tar: Path | None = None
    others: tuple[Path, ...] = ()

    @property
    def tars(self) -> tuple[Path, ...]:
        return () if self.tar is None else (self.tar, *self.others)

    def open(self) -> int:
        """A descriptor of the layer's root directory, to look up names below it; the caller closes it. ``OSError``

        An index is mounted for it, attached nowhere (root only); the process holds that mount and gives the same one again.
        ``ImageError``"""
        if not self.tars:
            return os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        from dockless.images.layers import erofs

        return erofs.held(self.path, *self.tars)


@contextlib.contextmanager
def opened(layers: Iterable[Layer]) -> Iterator[list[int]]:
    """The layers' roots, open while the block runs."""
    with contextlib.ExitStack() as stack:
        fds = []
        for layer in layers:
            fds.append(layer.open())
            stack.callback(os.close, fds[-1])
        yield fds
