"""What happens to names in directories, as the kernel tells it. inotify(7)"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType

from dockless.base.dataclass import dataclass
from dockless.native import _check, _lib

MODIFIED, CLOSED_WRITTEN, MOVED_FROM, MOVED_TO, CREATED, DELETED = 0x2, 0x8, 0x40, 0x80, 0x100, 0x200
UNMOUNTED, OVERFLOW, IGNORED = 0x2000, 0x4000, 0x8000
ONLY_DIRECTORY, NO_FOLLOW, IS_DIRECTORY = 0x01000000, 0x02000000, 0x40000000
_EVENT = struct.Struct("iIII")
_MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class Happened:
    """``watch``: where, -1 where events were lost; ``cookie``: joins both ends of a rename; ``name``: empty for the object itself."""

    watch: int
    mask: int
    cookie: int
    name: str


class Inotify:
    """A queue of events, readable when there are some. A context manager."""

    def __init__(self) -> None:
        self._fd = _check(_lib().shim_inotify(), "inotify_init1")

    def fileno(self) -> int:
        return self._fd

    def add(self, path: str | os.PathLike[str], mask: int) -> int:
        """A watch. ``OSError``: ENOENT, ENOTDIR; ENOSPC where this user has too many, sysctl fs.inotify.max_user_watches."""
        watch: int = _lib().shim_inotify_add(self._fd, os.fsencode(path), mask)
        if watch < 0:
            raise OSError(-watch, os.strerror(-watch), os.fspath(path))
        return watch

    def remove(self, watch: int) -> None:
        _lib().shim_inotify_remove(self._fd, watch)

    def read(self) -> Iterator[Happened]:
        """What has happened since the last time; does not block."""
        with suppress(BlockingIOError):
            raw = os.read(self._fd, _MOST)
            at = 0
            while at < len(raw):
                watch, mask, cookie, length = _EVENT.unpack_from(raw, at)
                at += _EVENT.size + length
                yield Happened(watch, mask, cookie, os.fsdecode(raw[at - length : at].rstrip(b"\0")))

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Inotify:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
