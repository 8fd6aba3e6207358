"""What a sandbox changed of its image: listed, exported, or made into a new image.

::

    Detached, Sandbox ─► Changes(upper, base, id map) ─► frozen, if it runs ─► images.archive: diff / export / commit

A detached sandbox keeps its private upper until it is removed; an attached one loses it at its end, so it is committed while it runs.
While it is read a running sandbox stands still, frozen by its cgroup.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dockless.base import paths
from dockless.base.idmaps import IdMap
from dockless.cgroups import Cgroup
from dockless.errors import SandboxGone, UnknownImage, Unsupported
from dockless.sandbox.resolved import Identity
from dockless.sandbox.spec import Spec

if TYPE_CHECKING:
    from dockless.images import Image
    from dockless.images.archive.assemble import Edit
    from dockless.images.archive.diff import Change, Upper, Written
    from dockless.images.archive.output import Destination
    from dockless.images.archive.packing import Compression
    from dockless.sandbox.run.attached import Sandbox
    from dockless.sandbox.run.detached import Detached


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

        return Upper(self.path, self.idmap, userxattr=os.geteuid() != 0)

    def changes(self, *, pause: bool = True) -> list[Change]:
        """Added, changed and deleted paths, as ``docker diff`` has them."""
        from dockless.images.archive import diff

        with self._still(pause):
            return diff.changes(self.upper, self.base.layers)

    def export(
        self, destination: Destination, *, compression: Compression = "none", level: int | None = None, pause: bool = True
    ) -> Written:
        """The whole root, image and changes, as one tar. See ``dockless.images.archive.export``."""
        from dockless.images import Store
        from dockless.images.archive.export import export

        with self._still(pause):
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
        """A new image: the sandbox's own and its changes. See ``dockless.images.archive.commit``."""
        from dockless.images import Store
        from dockless.images.archive.commit import commit

        with self._still(pause):
            return commit(
                Store(),
                self.base,
                self.upper,
                reference=reference,
                edit=edit,
                compression=compression,
                level=level,
                created=created,
                created_by=self.command,
            )

    @contextlib.contextmanager
    def _still(self, pause: bool) -> Iterator[None]:
        """Nothing in it moves while the block runs. Without ``pause`` it goes on, at the caller's risk."""
        if not self.running or not pause:
            yield
            return
        if self.cgroup is None:
            raise Unsupported(
                f"sandbox {self.id} runs and has no cgroup by which it could be frozen",
                subject=self.id,
                hint="stop it first, or read it as it runs (--no-pause, pause=False) if nothing writes in it",
            )
        group = Cgroup.open(self.cgroup)
        try:
            group.freeze()
            try:
                yield
            finally:
                group.thaw()
        finally:
            group.close()  # not removed: it is the sandbox's


def changes_of(box: Detached | Sandbox) -> Changes:
    """The changes of a sandbox. ``SandboxGone``, ``UnknownImage``, ``Unsupported`` where there is no upper on disk."""
    from dockless.sandbox.run.attached import Sandbox

    return _attached(box) if isinstance(box, Sandbox) else _detached(box)


def _detached(box: Detached) -> Changes:
    from dockless.sandbox.run.detached import boot_id

    document = box.document
    running = box.state() in ("starting", "running")
    here = document.cgroup and document.boot_id == boot_id() and os.path.isdir(document.cgroup)
    cgroup = Path(document.cgroup) if here else None
    return _changes(box.id, box.directory / "upper", document.spec, document.identity, document.image, running, cgroup)


def _attached(box: Sandbox) -> Changes:
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
            hint=f"what it changed lies in {path}",
        )
    command = " ".join((*(spec.entrypoint or ()), *spec.argv))
    return Changes(id, path, base, command, identity.idmap, running, cgroup)


def find(id: str) -> Changes:
    """The changes of the detached sandbox of that id, the daemon's jobs among them. ``BadInput``, ``SandboxGone``"""
    from dockless.sandbox.run import detached

    return changes_of(detached.get(id))
