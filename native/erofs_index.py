"""An EROFS index over an uncompressed tar, made while the tar's bytes stream by. See ``native/layer/erofs.h``."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from dockless.native import _extension
from dockless.native.layers import Data, UnpackedLayer, fault


class IndexBuilder:
    """Feed it a whole tar archive, then ``finish`` writes the index. Works without the interpreter's lock.

    ``base``: no layers lie below. ``size_max``: bytes of file content, ``entries_max``: members. ``Fault`` everywhere, also of kind
    ``declined``: the layer is sound, as far as it was read, but has to be unpacked, because an index cannot
    say it. The index file is touched by ``finish`` alone."""

    def __init__(self, *, base: bool, size_max: int, entries_max: int) -> None:
        native = _extension()
        self._ffi, self._lib = native.ffi, native.lib
        raw = self._lib.erofs_index_new(base, size_max, entries_max)
        if raw == self._ffi.NULL:
            raise MemoryError
        self._index = self._ffi.gc(raw, self._lib.erofs_index_free)
        self._lock = threading.Lock()

    def feed(self, data: Data) -> None:
        """The next bytes of the archive."""
        with self._lock, self._ffi.from_buffer(data) as buffer:
            self._after(self._lib.erofs_index_feed(self._index, buffer, len(buffer)))

    @property
    def looks_below(self) -> bool:
        """Whether there are whiteouts so far, or entries in directories that the archive has not listed: ``finish`` needs all layers."""
        with self._lock:
            return bool(self._lib.erofs_index_looks_below(self._index))

    def finish(self, index_fd: int, lower: Sequence[int] = ()) -> UnpackedLayer:
        """After the last byte: write the index into the empty file ``index_fd``. ``lower``: descriptors of the root directories of the
        layers below, top first (``O_PATH`` is enough). Directories that the archive does not list get owner, mode, times and xattrs from
        there, whiteouts that hide nothing are left out. The topmost is enough, for the root, where nothing ``looks_below``."""
        with self._lock:
            self._after(self._lib.erofs_index_finish(self._index, index_fd, list(lower), len(lower)))
            return UnpackedLayer(self._lib.erofs_index_size(self._index), self._lib.erofs_index_entries(self._index), self._warnings())

    def merge(self, index_fd: int, sources: Sequence[int]) -> None:
        """Instead of all that: write one index of several layers, which shows what overlayfs would show of them, into the empty file
        ``index_fd``. ``sources``: their own indexes, bottom first. Their tars are its devices, in the same order."""
        with self._lock:
            self._after(self._lib.erofs_index_merge(self._index, index_fd, list(sources), len(sources)))

    def close(self) -> None:
        """Free its memory at once."""
        with self._lock:
            if self._index is not None:
                self._ffi.release(self._index)
                self._index = None

    def _after(self, result: int) -> None:
        if result < 0:
            raise fault(self._lib.erofs_index_error(self._index))

    def _warnings(self) -> tuple[str, ...]:
        found = []
        text = self._ffi.new("char[]", 1024)
        number = 0
        while (count := self._lib.erofs_index_warning(self._index, number, text, len(text))) >= 0:
            if count:
                said = self._ffi.string(text).decode("utf-8", "backslashreplace")
                found.append(said + (f" and {count - 1} more" if count > 1 else ""))
            number += 1
        return tuple(found)
