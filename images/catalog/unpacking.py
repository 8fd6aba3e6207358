"""The two forms a layer can take in the store.

- **written**: its members as files of a directory. Works everywhere.
- **indexed**: its uncompressed tar as it is, and an EROFS index over it that the kernel mounts. Nothing is unpacked at all. For root, on a
  kernel that can.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from dockless.base.typing import TYPE_CHECKING, Protocol
from dockless.images import subid
from dockless.images.files import check_room
from dockless.images.layers import erofs, owned
from dockless.images.layers.compression import CHUNK
from dockless.images.layers.layer import Unpacked, Writer, explain
from dockless.images.layers.layers import INDEX_FILE, Layer, opened
from dockless.images.layers.pipeline import GivenUp
from dockless.native.erofs_index import IndexBuilder
from dockless.native.layers import Fault

if TYPE_CHECKING:
    from dockless.base.idmaps import IdMap
    from dockless.images.catalog.catalog import Catalog


_ROOM = 64 << 20


class Unpacking(Protocol):
    """A ``Sink`` for a layer's content. ``tar``: the kept archive, for the indexed form."""

    form: str
    tar: Path | None

    def feed(self, data: bytes) -> None: ...
    def abort(self) -> None: ...

    def set_lower(self, lower: Sequence[Layer]) -> None:
        """The layers below, bottom first, are there now. From any thread."""

    def finish(self) -> Unpacked:
        """After all content: what came of it."""

    def close(self) -> None: ...


@contextlib.contextmanager
def unpacking(store: Catalog, scratch: Path, base: bool, what: str) -> Iterator[Unpacking]:
    """Make ``scratch/layer`` of the content that is fed. ``base``: there are no layers below."""
    (scratch / "layer").mkdir(mode=0o700)
    form: Unpacking
    if indexes(store):
        form = _Indexing(store, scratch, base, what)
    elif (idmap := subid.ids()) is not None:
        form = _Owned(store, scratch, scratch / "layer" / "fs", what, idmap)
    else:
        form = _Writing(store, scratch / "layer" / "fs", what)
    try:
        yield form
    finally:
        form.close()


def indexes(store: Catalog) -> bool:
    """Whether layers of this store are indexed rather than written."""
    return store.index if store.index is not None else erofs.supported(store.root)


class _Indexing:
    """Keeps the tar and indexes it as it passes. What an index cannot express is written after all, from the tar, and a warning says so."""

    form = "indexed"

    def __init__(self, store: Catalog, scratch: Path, base: bool, what: str) -> None:
        self.tar: Path | None = scratch / "tar"
        self._store = store
        self._place = scratch / "layer"
        self._base = base
        self._what = what
        self._builder: IndexBuilder | None = IndexBuilder(base=base, size_max=store.limits.size, entries_max=store.limits.entries)
        self._file = open(scratch / "tar", "xb", buffering=0)  # noqa: SIM115 - closed by close()
        self._done = self._room = 0
        self._below: Sequence[Layer] = ()
        self._has_below = threading.Event()
        self._aborted = False
        self._declined_for = ""

    def set_lower(self, lower: Sequence[Layer]) -> None:
        self._below = lower
        self._has_below.set()

    def abort(self) -> None:
        self._aborted = True
        self._has_below.set()

    def feed(self, data: bytes) -> None:
        if self._done >= self._room:
            check_room(self._file.fileno(), len(data), self._what)
            self._room = self._done + _ROOM
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self._done += len(data)
        if self._builder is not None:
            with self._declined():
                self._builder.feed(data)

    def finish(self) -> Unpacked:
        self._file.close()
        self._has_below.wait()
        if self._aborted:
            raise GivenUp(f"{self._what}: given up", subject=self._what)
        if self._builder is not None:
            with self._declined(), contextlib.ExitStack() as stack:
                below = self._below[::-1] if self._builder.looks_below else self._below[-1:]
                fds = stack.enter_context(opened(below))
                index = os.open(self._place / INDEX_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, index)
                written = self._builder.finish(index, fds)
                return Unpacked(written.size, written.entries, written.warnings)
        return self._write()

    @contextlib.contextmanager
    def _declined(self) -> Iterator[None]:
        """Go on without an index where the index declines."""
        try:
            yield
        except Fault as fault:
            if fault.kind != "declined":
                raise explain(fault, self._what) from fault
            assert self._builder is not None
            self._builder.close()
            self._builder = None
            self._declined_for = f"kept as files, which takes longer than an index: {fault.text}"

    def _write(self) -> Unpacked:
        assert self.tar is not None
        (self._place / INDEX_FILE).unlink(missing_ok=True)
        writing = _Writing(self._store, self._place / "fs", self._what)
        try:
            writing.set_lower(self._below)
            with open(self.tar, "rb", buffering=0) as tar:
                while piece := tar.read(CHUNK):
                    writing.feed(piece)
            written = writing.finish()
        finally:
            writing.close()
        self.tar.unlink()
        self.tar, self.form = None, writing.form
        return Unpacked(written.size, written.entries, (*written.warnings, self._declined_for))

    def close(self) -> None:
        self._file.close()
        if self._builder is not None:
            self._builder.close()


class _Writing(Writer):
    form = "written"
    tar: Path | None = None

    def __init__(self, store: Catalog, root: Path, what: str) -> None:
        root.mkdir(mode=0o700)
        super().__init__(root, what, limits=store.limits)


class _Owned(owned.OwnedWriter):
    form = "written"
    tar: Path | None = None

    def __init__(self, store: Catalog, scratch: Path, root: Path, what: str, idmap: IdMap) -> None:
        root.mkdir(mode=0o700)
        super().__init__(idmap, scratch, root, what, store.limits)
