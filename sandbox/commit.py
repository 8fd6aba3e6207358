"""What a sandbox changed of its image: listed, exported, or made into a new image.

::

    Box, ForegroundSandbox ─► Changes(upper, base, id map) ─► frozen, if it runs ─► images.archive: diff / export / commit

A detached sandbox keeps its private upper until it is removed; a foreground one loses it at its end, so it is committed while it runs.
A running sandbox is frozen while it is listed or exported, and for the last step of a commit.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from pathlib import Path

from dockless.base import paths
from dockless.base.dataclass import dataclass, replace
from dockless.base.idmaps import IdMap
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import SandboxGone, UnknownImage, Unsupported
from dockless.sandbox.freezing import Freezing
from dockless.sandbox.resolved import Identity
from dockless.sandbox.run.places import by_name
from dockless.sandbox.spec import Spec

if TYPE_CHECKING:
    from dockless.images import Image
    from dockless.images.archive.assemble import Edit
    from dockless.images.archive.diff import Change, Upper, WrittenLayer
    from dockless.images.archive.output import Destination
    from dockless.images.archive.packing import Compression
    from dockless.images.archive.tarwriter import Writable
    from dockless.sandbox.run.box import Box
    from dockless.sandbox.run.foreground import ForegroundSandbox


@dataclass(frozen=True, slots=True)
class Changes:
    """Where the changes of one sandbox lie. ``idmap``: None where it shared its starter's user namespace. ``cgroup``: to freeze it, if it
    runs."""

    id: str
    path: Path
    base: Image
    command: str
    idmap: IdMap | None
    running: bool
    cgroup: Path | None

    @property
    def upper(self) -> Upper:
        from dockless.images.archive.diff import Upper

        return Upper(self.path, self.idmap, userxattr=os.geteuid() != 0, name=f"what sandbox {self.id} changed")

    def changes(self, *, pause: bool = True) -> list[Change]:
        """Added, changed and deleted paths, as ``docker diff`` has them."""
        from dockless.images.archive import diff

        with self._frozen(pause):
            return diff.changes(self.upper, self.base.layers)

    def export(
        self, destination: Destination, *, compression: Compression = "none", level: int | None = None, pause: bool = True
    ) -> WrittenLayer:
        """The whole root, image and changes, as one tar. See ``dockless.images.archive.export``."""
        from dockless.images import Store
        from dockless.images.archive.export import export

        with self._frozen(pause):
            return export(self.base, destination, upper=self.upper, compression=compression, level=level, store=Store())

    def commit(
        self,
        reference: str | None = None,
        *,
        edit: Edit | None = None,
        compression: Compression = "gzip",
        level: int | None = None,
        created: float | datetime.datetime | None = None,
        pause: bool = True,
    ) -> Image:
        """A new image: the sandbox's own and its changes. See ``dockless.images.archive.commit``. A running one is frozen for what has
        changed while its changes were copied: see ``dockless.images.archive.capture``."""
        import tempfile

        from dockless.images import Store
        from dockless.images.archive.capture import write_running
        from dockless.images.archive.commit import commit
        from dockless.images.archive.diff import write_layer

        store = Store()
        paused = 0.0

        def write(out: Writable, clamp: int | None) -> WrittenLayer:
            nonlocal paused
            if not self.running or not pause:
                return write_layer(self.upper, self.base.layers, out, clamp=clamp)
            with (
                Freezing(self.id, self.cgroup, self.path.parent) as freezing,
                tempfile.TemporaryFile(dir=store.root / "tmp", buffering=0) as spool,
            ):
                what = f"the changes of sandbox {self.id}"
                written = write_running(self.upper, self.base.layers, out, spool.fileno(), freezing, what=what, clamp=clamp)
                paused = freezing.seconds
                return written

        made = commit(
            store,
            self.base,
            write,
            reference=reference,
            edit=edit,
            compression=compression,
            level=level,
            created=created,
            created_by=self.command,
        )
        return replace(made, paused=paused)

    @contextlib.contextmanager
    def _frozen(self, pause: bool) -> Iterator[None]:
        """Nothing in it moves while the block runs. Without ``pause`` it goes on, at the caller's risk."""
        if self.running and pause:
            with Freezing(self.id, self.cgroup, self.path.parent) as freezing, freezing():
                yield
        else:
            yield


def changes_of(box: Box | ForegroundSandbox) -> Changes:
    """The changes of a sandbox. ``SandboxGone``, ``UnknownImage``, ``Unsupported`` where there is no upper on disk."""
    from dockless.sandbox.run.foreground import ForegroundSandbox

    return _foreground(box) if isinstance(box, ForegroundSandbox) else _found(box)


def _found(box: Box) -> Changes:
    from dockless.sandbox.run.documents import boot_id

    document = box.document
    if not document.begun:
        hint = f"give the image another name: dockless tag {document.spec.image} NAME"
        raise Unsupported(f"sandbox {box.id} was never started, so it has changed nothing", subject=box.id, hint=hint)
    running = box.alive
    here = document.cgroup and document.boot_id == boot_id() and os.path.isdir(document.cgroup)
    cgroup = Path(document.cgroup) if here else None
    return _changes(box.id, box.directory / "upper", document.spec, document.identity, document.image, running, cgroup)


def _foreground(box: ForegroundSandbox) -> Changes:
    if box.process.poll() is not None:
        raise SandboxGone(
            f"sandbox {box.id} has ended, and its changes went with it",
            subject=box.id,
            hint="commit it while it runs, or start it detached: its changes stay until it is removed",
        )
    upper = paths.state() / "running" / box.id / "upper"
    return _changes(box.id, upper, box.spec, box.identity, box.image_digest, True, box.cgroup.path if box.cgroup else None)


def _changes(id: str, path: Path, spec: Spec, identity: Identity | None, digest: str, running: bool, cgroup: Path | None) -> Changes:
    from dockless.images import Store

    if spec.image == "host":
        raise Unsupported(f"sandbox {id} ran on the host's own root, not on an image", subject=id, hint="run an image to change one")
    if not path.is_dir():
        raise Unsupported(
            f"sandbox {id} keeps no changes: its root was read-only, or in memory",
            subject=id,
            hint="run it with its root on disk, which is the default, and not untrusted",
        )
    try:
        base = Store().get(digest or spec.image)
    except UnknownImage:
        raise UnknownImage(
            f"the image that sandbox {id} ran from is not in the store any more",
            subject=spec.image,
            hint=f"load or pull {spec.image} again",
        ) from None
    if identity is None:
        raise Unsupported(
            f"sandbox {id} was started by an earlier version, which did not note its id map",
            subject=id,
            hint=f"what it changed lies in {by_name(path.parent) / path.name}",
        )
    command = " ".join((*(spec.entrypoint or ()), *spec.argv))
    return Changes(id, path, base, command, identity.idmap, running, cgroup)


@contextlib.contextmanager
def find(sandbox: str | Box) -> Iterator[Changes]:
    """The changes of a sandbox or of the one of that id, jobs among them, whatever it is called meanwhile. ``BadInput``, ``SandboxGone``"""
    from dockless.sandbox.run import box

    with (box.get(sandbox) if isinstance(sandbox, str) else sandbox).held() as held:
        yield changes_of(held)
