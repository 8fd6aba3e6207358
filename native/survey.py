"""What every name in a tree is, and which of it is as an earlier survey saw it: one lstat for each. native/layer/survey.c

Nothing here reads what is in a file, or its extended attributes.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator

from dockless.base.dataclass import dataclass
from dockless.native import _check, _extension

PATH_MAX = 4096
_ENTRY = struct.Struct("=QQQQQqqIIIIIIIIII")
_SAME = 1


class PathTooLong(Exception):
    """``path``: the end of one that no system call takes."""

    def __init__(self, path: bytes) -> None:
        super().__init__(os.fsdecode(path))
        self.path = path


@dataclass(frozen=True, slots=True)
class Entry:
    """``number``: in its survey. ``settled``: see ``Survey``."""

    number: int
    info: os.stat_result
    name: bytes
    changed: bool


class Survey:
    """The tree at the descriptor ``root``, which may change meanwhile, compared with the survey ``before``. An inode counts as changed
    unless its ctime proves that it is not; so what changed in the last hundredth of a second before a survey counts as changed in the next
    one. ``OSError``, ``PathTooLong``, ``OverflowError`` where there are more than ``entries_max``."""

    def __init__(self, root: int, before: Survey | None, entries_max: int) -> None:
        native = _extension()
        self._ffi, self._lib = native.ffi, native.lib
        raw = self._lib.survey_new()
        if raw == self._ffi.NULL:
            raise MemoryError
        self._raw = self._ffi.gc(raw, self._lib.survey_free)
        result = self._lib.survey_take(self._raw, root, before._raw if before is not None else self._ffi.NULL, entries_max)
        if result == -errno.ENAMETOOLONG:
            raise PathTooLong(self._longest())
        if result > 0:
            raise OverflowError(entries_max)
        _check(result, "cannot look at the files of a sandbox")
        self.count = int(self._lib.survey_count(self._raw))
        self._entries = self._ffi.buffer(self._lib.survey_entries(self._raw), self.count * _ENTRY.size)
        self._names = self._ffi.buffer(self._lib.survey_names(self._raw), self._lib.survey_names_size(self._raw))

    def index(self) -> None:
        """So that a later one can be compared with it."""
        _check(self._lib.survey_index(self._raw), "cannot note the files of a sandbox")

    def forget(self, entry: Entry) -> None:
        """Its inode counts as changed in a later one."""
        self._lib.survey_void(self._raw, entry.number)

    def changed(self) -> Iterator[Entry]:
        """What the one before does not prove to be the same, in no order."""
        at = int(self._lib.survey_changed(self._raw, 0))
        while at < self.count:
            yield self._entry(at)[0]
            at = int(self._lib.survey_changed(self._raw, at + 1))

    def path(self, entry: Entry) -> bytes:
        """From the root, without a leading slash."""
        room = self._ffi.new("char[]", PATH_MAX)
        size = _check(self._lib.survey_path(self._raw, entry.number, room), "a path of a sandbox")
        return bytes(self._ffi.buffer(room, size))

    def sorted(self) -> Iterator[tuple[bytes, Entry]]:
        """Everything with its path: parents before what is in them, names in the order of their bytes."""
        root, first, count = self._entry(0)
        yield b"", root
        levels = [(b"", self._children(first, count))]
        while levels:
            folder, children = levels[-1]
            if not children:
                levels.pop()
                continue
            entry, first, count = children.pop()
            path = folder + entry.name
            yield path, entry
            if count:
                levels.append((path + b"/", self._children(first, count)))

    def _children(self, first: int, count: int) -> list[tuple[Entry, int, int]]:
        return sorted((self._entry(at) for at in range(first, first + count)), key=lambda found: found[0].name, reverse=True)

    def _entry(self, at: int) -> tuple[Entry, int, int]:
        values = _ENTRY.unpack_from(self._entries, at * _ENTRY.size)
        ino, dev, size, blocks, rdev, mtime, ctime, mode, uid, gid, nlink, _, name_at, name_size, first, count, flags = values
        seconds = (size, 0, mtime // 10**9, ctime // 10**9)
        info = os.stat_result(
            (mode, ino, dev, nlink, uid, gid, *seconds), {"st_mtime_ns": mtime, "st_ctime_ns": ctime, "st_blocks": blocks, "st_rdev": rdev}
        )
        return Entry(at, info, bytes(self._names[name_at : name_at + name_size]), not flags & _SAME), first, count

    def _longest(self) -> bytes:
        names = self._ffi.buffer(self._lib.survey_names(self._raw), self._lib.survey_names_size(self._raw))
        return bytes(names[-255:])


def trusts(fd: int) -> bool:
    """Whether the file system of ``fd`` is one that shows in an inode's times whatever has changed, also what a program writes through a
    mapping of pages that ``flush`` has cleaned. Those in memory do not, and others may not."""
    return bool(_extension().lib.survey_trusts(fd))


def flush(fd: int) -> None:
    """Write out what is dirty of a file, so that the next write through a mapping faults and shows in its times. ``OSError``"""
    _check(_extension().lib.survey_flush(fd), "cannot write out a file of a sandbox")
