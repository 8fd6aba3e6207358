"""What a sandbox changed: an overlay's upper over the image below it, as a list of changes and as an OCI layer.

::

    upper                                        in the list   in the layer
    a name the image does not have               A             the entry
    a name the image has                         C             the entry
    a whiteout of a name the image has           D             .wh.<name>, empty
    an opaque directory over one of the image    C, and D      the entry, then .wh..wh..opq in it
                                                 for each of
                                                 its names
    a directory on the way to a change           C             the entry

The layer is made of the upper alone; the image below is only asked whether it has a name. So a layer never hides what is not there, and a
file that was made and removed again leaves no trace. ``redirect`` and ``metacopy`` (a directory or a file whose content is elsewhere) are
refused: dockless mounts without them, so such an upper is not ours.

https://github.com/opencontainers/image-spec/blob/main/layer.md#change-types, https://docs.kernel.org/filesystems/overlayfs.html
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from dockless.base.dataclass import dataclass
from dockless.base.idmaps import IdMap
from dockless.base.typing import Generic, Literal
from dockless.errors import ImageError
from dockless.images.archive.entries import Data, Entries, Owners, T, Thing, opened
from dockless.images.archive.tarwriter import TarWriter, Writable
from dockless.images.files import explained
from dockless.images.layers import whiteouts
from dockless.images.layers.layers import Layer
from dockless.images.layers.merged import Merged, Node, show
from dockless.images.layers.walk import WalkedFile, walk


@dataclass(frozen=True, slots=True)
class Upper:
    """``path``: an overlay's upper directory that nobody writes to now. ``idmap``: the sandbox's; None where it had none. ``userxattr``: it
    was mounted by an ordinary user, so the marks are ``user.overlay.*``. ``name``: what errors call it; left out: its path.

    Root reads it as it lies there and shifts the owners. An ordinary user has no rights over what the sandbox's other ids own, so her
    uppers are read from inside a user namespace with that map."""

    path: Path
    idmap: IdMap | None = None
    userxattr: bool = False
    name: str = ""

    @property
    def owners(self) -> Owners:
        return Owners(self.idmap)

    @property
    def what(self) -> str:
        """For errors."""
        return self.name or f"the upper {self.path}"

    @property
    def from_inside(self) -> bool:
        return self.idmap is not None and os.geteuid() != 0


@dataclass(frozen=True, slots=True)
class Change:
    """``kind``: added, changed, deleted. ``path``: absolute, in the container."""

    kind: Literal["A", "C", "D"]
    path: str


@dataclass(frozen=True, slots=True)
class WrittenLayer:
    """What went into a layer. ``size``: bytes of file content."""

    members: int
    size: int
    warnings: tuple[str, ...]


def changes(upper: Upper, base: Sequence[Layer]) -> list[Change]:
    """What ``upper`` changes of the image with the layers ``base`` (bottom first), sorted as a tree. ``ImageError``"""
    if upper.from_inside:
        from dockless.images.archive import inside

        return inside.changes(upper, base)
    found: list[Change] = []
    with reading(upper), _walked(upper) as things, Merged(tuple(reversed(base))) as below:
        for step in _steps(things, upper, below):
            if step.kind == "D" or step.found.path:
                found.append(Change(step.kind, _absolute(step.found.path)))
            if step.emptied is not None:
                found += [
                    Change("D", _absolute(b"/".join((*step.emptied.parts, name))))
                    for name in below.children(step.emptied)
                    if not _has(step.found, name)
                ]
    return sorted(found, key=lambda change: change.path.split("/"))


def write_layer(upper: Upper, base: Sequence[Layer], out: Writable, *, clamp: int | None = None) -> WrittenLayer:
    """The changes as an uncompressed OCI layer. ``clamp``: no time is later than that, nanoseconds since 1970. ``ImageError`` names the
    file that cannot be in a layer."""
    if upper.from_inside:
        from dockless.images.archive import inside

        return inside.write_layer(upper, base, out, clamp)
    with reading(upper), _walked(upper) as things:
        return layer_of(things, opened, upper, base, out, clamp=clamp)


def layer_of(
    things: Iterable[T],
    data: Callable[[T], AbstractContextManager[Data]],
    upper: Upper,
    base: Sequence[Layer],
    out: Writable,
    *,
    clamp: int | None = None,
) -> WrittenLayer:
    """``write_layer`` of the ``things`` of an upper in the order of a walk, which may have been noted before. ``data``: of a file."""
    tar = TarWriter(out)
    owners = upper.owners
    entries = Entries[T](tar, lambda layer: owners, data, clamp=clamp)
    with Merged(tuple(reversed(base))) as below:
        for step in _steps(things, upper, below):
            folder, _, name = step.found.path.rpartition(b"/")
            if step.kind == "D":
                entries.mark((folder + b"/" if folder else b"") + whiteouts.IN_TAR + name)
                continue
            if name.startswith(whiteouts.IN_TAR):
                raise ImageError(
                    f"{show(step.found.path)} cannot be in an image: a name that starts with .wh. means that something is deleted",
                    subject=show(step.found.path),
                    hint="rename or remove it",
                )
            entries.add(step.found)
            if step.emptied is not None:
                entries.mark(step.found.path + b"/" + whiteouts.OPAQUE_IN_TAR)
    tar.finish()
    return WrittenLayer(entries.members, entries.size, entries.warnings)


@dataclass(frozen=True, slots=True)
class _Step(Generic[T]):
    """``emptied``: the directory of the image whose names an opaque one hides."""

    kind: Literal["A", "C", "D"]
    found: T
    emptied: Node | None = None


@contextlib.contextmanager
def _walked(upper: Upper) -> Iterator[Iterator[WalkedFile]]:
    root = open_root(upper)
    try:
        yield walk([root], userxattr=upper.userxattr, raw=True)
    finally:
        os.close(root)


def open_root(upper: Upper) -> int:
    return os.open(upper.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _steps(things: Iterable[T], upper: Upper, below: Merged) -> Iterator[_Step[T]]:
    # The directory of the image that is merged with each directory on the way; None where nothing is.
    trail: list[Node | None] = []
    for found in things:
        _refuse(found, upper.userxattr)
        if not found.path:
            trail = [below.root if below else None]
            if _root_changed(found, trail[0], upper.owners):
                yield _Step("C", found)
            continue
        del trail[found.path.count(b"/") + 1 :]
        merged = trail[-1]
        node = below.child(merged, found.name) if merged is not None else None
        if found.whiteout:
            if node is not None:
                yield _Step("D", found)
            continue
        hides = found.opaque and node is not None and node.is_dir
        yield _Step("A" if node is None else "C", found, node if hides else None)
        if found.is_dir:
            trail.append(node if node is not None and node.is_dir and not hides else None)


def _root_changed(found: Thing, node: Node | None, owners: Owners) -> bool:
    """The upper's own root is made by dockless, 0755 and the container root's; it is a change only if it is neither that nor the
    image's."""
    now = (stat.S_IMODE(found.info.st_mode), owners.uid(found.info.st_uid), owners.gid(found.info.st_gid))
    known = [(0o755, 0, 0)]
    if node is not None:
        known.append((stat.S_IMODE(node.info.st_mode), node.info.st_uid, node.info.st_gid))
    return now not in known


def _refuse(found: Thing, userxattr: bool) -> None:
    kind = stat.S_IFMT(found.info.st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR) or found.whiteout:
        return
    mark = "redirect" if kind == stat.S_IFDIR else "metacopy"
    if found.xattr(f"{'user' if userxattr else 'trusted'}.overlay.{mark}".encode()) is None:
        return
    raise ImageError(
        f"{show(found.path)} in the upper has overlayfs' mark {mark!r}: its content lies elsewhere",
        subject=show(found.path),
        hint="mount with redirect_dir=off,metacopy=off as dockless does; such an upper cannot become a layer",
    )


def _has(found: WalkedFile, name: bytes) -> bool:
    """Whether the opaque directory ``found`` brings something of that name itself."""
    try:
        return not whiteouts.is_whiteout(os.stat(found.place + b"/" + name, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _absolute(path: bytes) -> str:
    return "/" + os.fsdecode(path)


def reading(upper: Upper) -> AbstractContextManager[None]:
    return explained(f"cannot read {upper.what}", upper.what, "only its owner can: run it as whoever ran the sandbox")
