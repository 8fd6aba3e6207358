"""The layer of an upper in which a sandbox writes, as it is at one moment. It is frozen for no longer than it must be: copied before
the freeze, as live migration does it.

::

    runs          survey: what every name is (inode, times, size …), noted          ◄─┐ while much of it
    frozen        nothing: whoever was in a system call or a page fault is out of it   │ changes, at most
    runs          flush what is mapped; copy what is new to a file without a name    ──┘ ROUNDS times
    frozen        survey; copy what is not proved to be as it was noted
    runs          the layer, from the last survey and the copies

Why an inode whose times are those of the note has the content of its copy. A system call that writes takes the time at its beginning, and a
write through a shared mapping when it faults on a page that is not writable yet. One that took its time before the note is over when the
sandbox was frozen: a call has written then, before the copy, and a page is writable and dirty, so that the flush makes it read-only
again. One that takes its time after the note shows in the times, if the clock has ticked since (native/layer/survey.c). What is still
on its way then is I/O that is asynchronous and direct: a write that was submitted before the note, and arrives after the copy, is not seen.

On a file system whose times do not tell (all but ext4, XFS and Btrfs: tmpfs does not note writes through mappings) there are no rounds:
everything is copied while it is frozen.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from dockless.base.dataclass import dataclass
from dockless.images.archive.diff import Upper, WrittenLayer, layer_of, open_root, reading, write_layer
from dockless.images.archive.entries import Data
from dockless.images.archive.tarwriter import Writable, segments
from dockless.images.files import check_room
from dockless.images.layers import whiteouts
from dockless.images.layers.layers import Layer
from dockless.images.layers.walk import changed, too_long
from dockless.native import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, openat2
from dockless.native.survey import Entry, PathTooLong, Survey, flush, trusts

ROUNDS = 4
FEW_BYTES, FEW_FILES = 2 << 20, 50
"""So little is copied while it is frozen without another round."""
ENTRIES_MAX = 1 << 20
"""Names that are noted: some 600 bytes each, with short names and without what ``HELD_MAX`` bounds."""
HELD_MAX = 128 << 20
"""Bytes of extended attributes and of targets of links that are noted: a program can give each file 4 KiB of either."""
_MEANWHILE = (errno.ENXIO, errno.EACCES, errno.EPERM)
"""Of a file that was cut while it was looked through, or of one that was put in its place."""
_PIECE = 1 << 20
_SMALL = 128 << 10
_ROOM = 64 << 20
_BENEATH = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV

Frozen = Callable[[], AbstractContextManager[None]]
"""Nothing in the sandbox moves inside of it."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """What one look at an inode does not show. ``at``: where its data begins in the spool, with ``room`` for it there."""

    xattrs: dict[bytes, bytes]
    target: bytes = b""
    at: int = 0
    room: int = 0
    sparse: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class Noted:
    """A thing in the upper as it was. See ``layers.walk.Found``."""

    path: bytes
    info: os.stat_result
    name: bytes
    copy: _Copy
    opaque: bool
    whiteout: bool
    layer: int = 0

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.info.st_mode)

    def readlink(self) -> bytes:
        return self.copy.target

    def xattrs(self) -> dict[bytes, bytes]:
        return self.copy.xattrs

    def xattr(self, key: bytes) -> bytes | None:
        return self.copy.xattrs.get(key)


def write_running(
    upper: Upper, base: Sequence[Layer], out: Writable, spool: int, frozen: Frozen, *, what: str, clamp: int | None = None
) -> WrittenLayer:
    """As ``write_layer``, of an upper in which a sandbox writes. ``spool``: an empty file, for a copy of what is in it and, until the
    end, of what has changed meanwhile. ``frozen``: called some times. ``what``: for errors. ``ImageError``, ``NoRoom``"""
    if upper.from_inside:
        from dockless.images.archive import inside

        return inside.write_running(upper, base, out, clamp, spool, frozen, what)
    with reading(upper):
        root = open_root(upper)
        try:
            copies = _Copies(root, spool, what)
            try:
                last = _last_of(root, copies, frozen)
            except OverflowError:  # nothing is noted: it stays frozen until all is written
                with frozen():
                    return write_layer(upper, base, out, clamp=clamp)
        finally:
            os.close(root)
        return layer_of(_noted(last, copies, upper), copies.data, upper, base, out, clamp=clamp)


def _last_of(root: int, copies: _Copies, frozen: Frozen) -> Survey:
    """The survey of the moment; what it shows is in ``copies``."""
    before: Survey | None = None
    for _ in range(ROUNDS if trusts(root) else 0):
        survey = _survey(root, before)
        survey.index()
        with frozen():
            pass
        files, size = copies.take(survey, frozen=False)
        before = survey
        if files <= FEW_FILES and size <= FEW_BYTES:
            break
    with frozen():
        last = _survey(root, before)
        copies.take(last, frozen=True)
    return last


def _survey(root: int, before: Survey | None) -> Survey:
    try:
        return Survey(root, before, ENTRIES_MAX)
    except PathTooLong as error:
        raise too_long(error.path) from None


class _Copies:
    """By inode. The spool has room for each once; what has grown meanwhile is behind it."""

    def __init__(self, root: int, spool: int, what: str) -> None:
        self._root, self._spool, self._what = root, spool, what
        self._by_inode: dict[int, _Copy] = {}
        self._end = 0
        self._checked = 0
        self._held = 0

    def of(self, info: os.stat_result) -> _Copy:
        return self._by_inode[info.st_ino]

    @contextlib.contextmanager
    def data(self, thing: Noted) -> Iterator[Data]:
        sparse, at = thing.copy.sparse, thing.copy.at
        if sparse is None:
            yield Data(None, self._spool, ((at, thing.info.st_size),))
            return
        pieces = []
        for _, length in sparse:
            pieces.append((at, length))
            at += length
        yield Data(sparse, self._spool, tuple(pieces))

    def take(self, survey: Survey, *, frozen: bool) -> tuple[int, int]:
        """Copy what has changed: how many files and bytes. What changes while it is copied shows in the next survey. ``OverflowError`` for
        more than ``HELD_MAX``."""
        done: set[int] = set()
        size = 0
        for entry in survey.changed():
            if entry.info.st_ino in done:
                continue
            done.add(entry.info.st_ino)
            try:
                copy = self._copy(survey.path(entry), entry, frozen)
            except _Other:
                if frozen:
                    raise changed(survey.path(entry)) from None
                survey.forget(entry)
            except OSError as error:
                if frozen or error.errno not in _MEANWHILE:
                    raise
                survey.forget(entry)
            else:
                self._keep(entry.info.st_ino, copy)
                size += copy.room
        return len(done), size

    def _keep(self, inode: int, copy: _Copy) -> None:
        last = self._by_inode.get(inode)
        self._held += _held(copy) - (0 if last is None else _held(last))
        if self._held > HELD_MAX:
            raise OverflowError("more than is noted of extended attributes and links")
        self._by_inode[inode] = copy

    def _copy(self, path: bytes, entry: Entry, frozen: bool) -> _Copy:
        """``_Other`` where something else is there by now."""
        regular = stat.S_ISREG(entry.info.st_mode)
        kind = os.O_NONBLOCK if regular else os.O_DIRECTORY if stat.S_ISDIR(entry.info.st_mode) else os.O_PATH
        try:
            fd = openat2(self._root, path or b".", os.O_RDONLY | os.O_NOFOLLOW | kind, resolve=_BENEATH)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
                raise _Other from error
            raise
        try:
            now = os.fstat(fd)
            if now.st_ino != entry.info.st_ino or stat.S_IFMT(now.st_mode) != stat.S_IFMT(entry.info.st_mode):
                raise _Other
            target = os.readlink(b"", dir_fd=fd) if stat.S_ISLNK(now.st_mode) else b""
            xattrs = _xattrs(fd)
            if not regular or not entry.info.st_size:
                return _Copy(xattrs, target)
            if not frozen:
                flush(fd)
            sparse = segments(fd, entry.info)
            pieces = sparse if sparse is not None else ((0, entry.info.st_size),)
            size = sum(length for _, length in pieces)
            at, room = self._place(entry.info.st_ino, size)
            for offset, length in pieces:
                if not self._data(fd, offset, at, length):
                    raise _Other
                at += length
            return _Copy(xattrs, target, at - size, room, sparse)
        finally:
            os.close(fd)

    def _place(self, inode: int, size: int) -> tuple[int, int]:
        """Where so much goes, and how much room there is: where the inode's last copy lies, if it is no larger."""
        last = self._by_inode.get(inode)
        if last is not None and last.room >= size:
            return last.at, last.room
        if self._end + size > self._checked:
            check_room(self._spool, size, self._what)
            self._checked = self._end + size + _ROOM
        at = self._end
        self._end += size
        return at, size

    def _data(self, fd: int, offset: int, at: int, length: int) -> bool:
        """Into the spool; False where the file is shorter by now."""
        if length <= _SMALL:
            piece = os.pread(fd, length, offset)
            return len(piece) == length and _write(self._spool, piece, at)
        os.lseek(self._spool, at, os.SEEK_SET)
        end = offset + length
        while offset < end:
            sent = os.sendfile(self._spool, fd, offset, min(end - offset, _PIECE << 4))
            if not sent:
                return False
            offset += sent
        return True


class _Other(Exception):
    """Something else is there by now, or less."""


def _held(copy: _Copy) -> int:
    return len(copy.target) + sum(len(key) + len(value) for key, value in copy.xattrs.items())


def _write(fd: int, piece: bytes, at: int) -> bool:
    while piece:
        written = os.pwrite(fd, piece, at)
        piece, at = piece[written:], at + written
    return True


def _noted(last: Survey, copies: _Copies, upper: Upper) -> Iterator[Noted]:
    """As ``walk`` gives an upper."""
    prefix = whiteouts.prefix(userxattr=upper.userxattr)
    has_marked: set[bytes] = set()
    for path, entry in last.sorted():
        copy = copies.of(entry.info)
        mark = copy.xattrs.get(prefix + b"opaque") if stat.S_ISDIR(entry.info.st_mode) else None
        if mark == whiteouts.HAS_MARKED:
            has_marked.add(path)
        marked = path.rpartition(b"/")[0] in has_marked and whiteouts.is_marked(entry.info, copy.xattrs, prefix)
        whiteout = whiteouts.is_whiteout(entry.info) or marked
        yield Noted(path, entry.info, entry.name, copy, mark == whiteouts.HIDES and bool(path), whiteout)


def _xattrs(fd: int) -> dict[bytes, bytes]:
    """By its name in procfs, which leads to what is open and no further: fgetxattr(2) takes nothing that was opened with O_PATH."""
    place = b"/proc/self/fd/%d" % fd
    try:
        return {key: os.getxattr(place, key) for key in map(os.fsencode, os.listxattr(place))}
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENODATA):
            raise
        return {}
