"""One tar stream becomes one directory, in the form overlayfs takes as a lower layer. The work is done in C (``native/layer/layer.c``).

Theory of operation. The directory is private and fresh; only the writer changes it, and nobody sees it before it is complete. For each
member the writer goes to the parent without following anything, or walks there by hand: a real directory is entered, a symbolic link (from
this layer or a lower one) is expanded against *this* root, ``..`` in a link stops at the root. So no name, no link and no combination of
the two reaches the host, whatever the order of members (attacks A1-A8, A15). Names with ``..`` are refused.

A parent that this layer does not list is looked up in the layers below and made with the owner, mode and times it has there, because
overlayfs shows the topmost directory's. A hard link to a file of a lower layer copies that file up first, as link(2) on a mounted overlay
would. Whiteouts and opaque directories (``whiteouts.py``) hide only what lies below, never what this layer brings, in whatever order they
come.

As root: owners, setuid bits, capabilities, ACLs, devices and xattrs are kept. As root of a user namespace (``owned``) all but devices. As
an ordinary user everything belongs to her, devices and what only root may set are left out, and ``warnings`` says so. Xattrs that
overlayfs itself would obey are always dropped (attack A11).

https://github.com/opencontainers/image-spec/blob/main/layer.md, https://docs.kernel.org/filesystems/overlayfs.html
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from dockless.base.dataclass import dataclass
from dockless.base.typing import BinaryIO
from dockless.errors import BadImage, ImageError, NoRoom, UnsafeLayer
from dockless.images.files import MAKE_ROOM, RESERVE
from dockless.images.layers.compression import CHUNK
from dockless.images.layers.layers import Layer, opened
from dockless.images.layers.limits import UnpackLimits
from dockless.images.layers.pipeline import GivenUp
from dockless.native.layers import Fault, LayerWriter


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What came of a layer."""

    size: int
    entries: int
    warnings: tuple[str, ...]


class Writer:
    """Writes a layer's members into the empty directory ``target`` while the archive is fed. ``set_lower`` and ``abort`` may come from
    any thread at any time: the writer waits where it cannot go on without the layers below. Raises ``UnsafeLayer``, ``BadImage``,
    ``NoRoom``, ``ImageError``; ``target`` is then incomplete."""

    def __init__(self, target: Path, what: str, *, limits: UnpackLimits | None = None, as_root: bool | None = None) -> None:
        limits = limits or UnpackLimits()
        as_root = os.geteuid() == 0 if as_root is None else as_root
        self._what = what
        fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._writer = LayerWriter(fd, as_root=as_root, size_max=limits.size, entries_max=limits.entries, reserve=RESERVE)
        finally:
            os.close(fd)

    def set_lower(self, lower: Sequence[Layer]) -> None:
        """The layers below, bottom first, are there now."""
        with opened(reversed(lower)) as fds:
            self._writer.set_lower(fds)

    def feed(self, data: bytes) -> None:
        with explained(self._what):
            self._writer.feed(data)

    def finish(self) -> Unpacked:
        """After the last byte. Nothing is flushed to the disk yet."""
        with explained(self._what):
            written = self._writer.finish()
        return Unpacked(written.size, written.entries, written.warnings)

    def abort(self) -> None:
        """A writer that waits fails now, with ``ImageError``."""
        self._writer.abort()

    def close(self) -> None:
        self._writer.close()


def unpack(
    stream: BinaryIO, target: Path, lower: Sequence[Layer], what: str, *, limits: UnpackLimits | None = None, as_root: bool | None = None
) -> Unpacked:
    """Write the tar archive ``stream`` into the empty directory ``target``. ``lower``: the layers below, bottom first."""
    with contextlib.closing(Writer(target, what, limits=limits, as_root=as_root)) as writer:
        writer.set_lower(lower)
        while piece := stream.read(CHUNK):
            writer.feed(piece)
        return writer.finish()


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """A ``Fault`` inside becomes the error that tells it of the archive ``what``."""
    try:
        yield
    except Fault as fault:
        raise explain(fault, what) from fault


def explain(fault: Fault, what: str) -> ImageError:
    """The error for what went wrong in C, with the archive's name."""
    text = f"{what}: {fault.text}"
    if fault.kind == "malformed":
        return BadImage(f"{what}: not a sound tar archive: {fault.text}", subject=what, hint="build or fetch the image again")
    if fault.kind == "wrong":
        return BadImage(text, subject=what, hint="build the image again")
    if fault.kind == "unsafe":
        return UnsafeLayer(text, subject=what, hint="do not use this image: no honest tool makes such a layer")
    if fault.kind == "limit":
        return ImageError(text, subject=what, hint="raise the limits of the store if you trust the image")
    if fault.kind == "room":
        return _no_room(fault, what)
    if fault.errno == errno.ECANCELED:
        return GivenUp(text, subject=what)
    if fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoRoom(text if "no room" in text else f"{what}: no room in the image store: {fault.text}", subject=what, hint=MAKE_ROOM)
    if fault.errno == errno.EOPNOTSUPP:
        return ImageError(text, subject=what, hint="keep the image store on ext4, xfs or btrfs (or tmpfs since Linux 6.6)")
    return ImageError(text, subject=what, hint="look at the disk of the image store (dmesg), and try again")


def _no_room(fault: Fault, what: str) -> NoRoom:
    from dockless.base.units import format_size

    needed = f"no room in the image store: {format_size(fault.missing)} more are needed" if fault.missing else fault.text
    error = NoRoom(f"{what}: {needed}", subject=what, hint=MAKE_ROOM)
    error.missing = fault.missing
    return error
