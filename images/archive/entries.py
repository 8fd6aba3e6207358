"""From what lies in a layer to what stands in a tar: owners as the container numbers them, the xattrs that an image keeps, hard links.

An upper is not idmapped (decision 005): its files carry the host's ids. ``Owners`` turns them back, in the file's owner, in the ids of
POSIX ACLs, and in the root id of a file capability set inside a user namespace. A file of an id outside the map is an error that names it:
written as it is, it would belong to somebody else's account in the image.

Kept are ``user.*``, ``security.capability`` and ACLs. What overlayfs, a security module or the host means (``trusted.*``,
``user.overlay.*``, ``security.selinux``) is no part of an image.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from dockless.base.dataclass import dataclass
from dockless.base.idmaps import IdMap, Range
from dockless.base.typing import Generic, Protocol, TypeVar
from dockless.errors import ImageError
from dockless.images.archive import tarwriter
from dockless.images.archive.tarwriter import TarMember, TarWriter, segments
from dockless.images.layers.merged import show
from dockless.images.layers.walk import WalkedFile

CAPABILITY = b"security.capability"
ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
_CAP_REVISION = 0xFF000000
_CAP_V2, _CAP_V3 = 0x02000000, 0x03000000
_ACL_USER, _ACL_GROUP = 0x02, 0x08
_ACL_ENTRY = struct.Struct("<HHI")
_KINDS = {
    stat.S_IFREG: tarwriter.FILE,
    stat.S_IFDIR: tarwriter.DIRECTORY,
    stat.S_IFLNK: tarwriter.SYMLINK,
    stat.S_IFCHR: tarwriter.CHAR,
    stat.S_IFBLK: tarwriter.BLOCK_DEVICE,
    stat.S_IFIFO: tarwriter.FIFO,
}


@dataclass(frozen=True, slots=True)
class Owners:
    """The host's ids to those of the container. ``idmap`` None: as they are. ``all_root``: whatever they are, they are root's."""

    idmap: IdMap | None = None
    all_root: bool = False

    @property
    def unchanged(self) -> bool:
        return self.idmap is None and not self.all_root

    def uid(self, outside: int) -> int | None:
        return self._inside(outside, self.idmap.uids if self.idmap is not None else None)

    def gid(self, outside: int) -> int | None:
        return self._inside(outside, self.idmap.gids if self.idmap is not None else None)

    def _inside(self, number: int, ranges: tuple[Range, ...] | None) -> int | None:
        if self.all_root or ranges is None:
            return 0 if self.all_root else number
        for r in ranges:
            if r.outside <= number < r.outside + r.count:
                return r.inside + number - r.outside
        return None


class Thing(Protocol):
    """What becomes a member: ``layers.walk.Found``, or what a ``capture`` has noted of one."""

    @property
    def path(self) -> bytes: ...
    @property
    def info(self) -> os.stat_result: ...
    @property
    def layer(self) -> int: ...
    @property
    def name(self) -> bytes: ...
    @property
    def opaque(self) -> bool: ...
    @property
    def whiteout(self) -> bool: ...
    @property
    def is_dir(self) -> bool: ...
    def readlink(self) -> bytes: ...
    def xattr(self, key: bytes) -> bytes | None: ...
    def xattrs(self) -> dict[bytes, bytes]: ...


T = TypeVar("T", bound=Thing)


@dataclass(frozen=True, slots=True)
class Data:
    """What is in a regular file: ``sparse`` as ``segments`` has it, and the ``pieces`` (offset, length) of ``fd`` in which the data is."""

    sparse: tuple[tuple[int, int], ...] | None
    fd: int
    pieces: tuple[tuple[int, int], ...]


@contextlib.contextmanager
def opened(found: WalkedFile) -> Iterator[Data]:
    """Of a file where it lies."""
    fd = found.open()
    try:
        sparse = segments(fd, found.info)
        yield Data(sparse, fd, sparse if sparse is not None else ((0, found.info.st_size),))
    finally:
        os.close(fd)


class Entries(Generic[T]):
    """Makes the members of one archive, and remembers what has to be remembered over all of it. ``owners``: by the layer that a thing is
    in. ``data``: of a regular file. ``clamp``: no file is younger than that, nanoseconds."""

    def __init__(
        self,
        tar: TarWriter,
        owners: Callable[[int], Owners],
        data: Callable[[T], AbstractContextManager[Data]],
        *,
        clamp: int | None = None,
    ) -> None:
        self._tar = tar
        self._owners = owners
        self._data = data
        self._clamp = clamp
        self._links: dict[tuple[int, int, int], bytes] = {}
        self._warned: dict[str, tuple[int, str]] = {}
        self.members = 0
        self.size = 0

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(
            f"{why}: {example}" + (f" and {count - 1} more" if count > 1 else "") for why, (count, example) in self._warned.items()
        )

    def add(self, found: T) -> None:
        """``found`` as a member, with its data."""
        info = found.info
        kind = _KINDS.get(stat.S_IFMT(info.st_mode))
        if kind is None:
            self.warn("left out: a socket", found.path)
            return
        if kind != tarwriter.DIRECTORY and info.st_nlink > 1:
            key = (found.layer, info.st_dev, info.st_ino)
            first = self._links.setdefault(key, found.path)
            if first != found.path:
                self._put(
                    TarMember(found.path, tarwriter.HARDLINK, stat.S_IMODE(info.st_mode), *self._ids(found), self._time(info), link=first)
                )
                return
        entry = TarMember(found.path, kind, stat.S_IMODE(info.st_mode), *self._ids(found), self._time(info))
        entry.xattrs = self._xattrs(found)
        if kind == tarwriter.FILE:
            self._file(found, entry)
            return
        if kind == tarwriter.SYMLINK:
            entry.mode, entry.link = 0o777, found.readlink()
        elif kind in (tarwriter.CHAR, tarwriter.BLOCK_DEVICE):
            entry.major, entry.minor = os.major(info.st_rdev), os.minor(info.st_rdev)
        self._put(entry)

    def mark(self, path: bytes) -> None:
        """An empty file that means something by its name alone: a whiteout."""
        self._put(TarMember(path, mode=0o600))

    def warn(self, why: str, path: bytes) -> None:
        count, example = self._warned.get(why, (0, show(path)))
        self._warned[why] = (count + 1, example)

    def _file(self, found: T, entry: TarMember) -> None:
        entry.size = found.info.st_size
        if not entry.size:
            self._put(entry)
            return
        with self._data(found) as data:
            entry.sparse = data.sparse
            self._put(entry)
            if not self._tar.copy(data.fd, data.pieces):
                self.warn("became shorter while it was read; zeros are in the place of the rest", found.path)

    def _put(self, entry: TarMember) -> None:
        self._tar.add(entry)
        self.members += 1
        self.size += entry.size

    def _time(self, info: os.stat_result) -> int:
        return info.st_mtime_ns if self._clamp is None else min(info.st_mtime_ns, self._clamp)

    def _ids(self, found: T) -> tuple[int, int]:
        owners = self._owners(found.layer)
        uid, gid = owners.uid(found.info.st_uid), owners.gid(found.info.st_gid)
        if uid is None or gid is None:
            what = f"user {found.info.st_uid}" if uid is None else f"group {found.info.st_gid}"
            raise ImageError(
                f"{show(found.path or b'/')} belongs to {what} of the host, which the container's id map does not have",
                subject=show(found.path or b"/"),
                hint="give it to an id of the container (chown), or remove it",
            )
        return uid, gid

    # -- xattrs ----------------------------------------------------------------------------------------------------------------------

    def _xattrs(self, found: T) -> dict[bytes, bytes]:
        kept: dict[bytes, bytes] = {}
        for key, value in sorted(found.xattrs().items()):
            if key == CAPABILITY:
                shifted = self._capability(found, value)
            elif key in ACLS:
                shifted = self._acl(found, value)
            elif key.startswith(b"user.") and not key.startswith(b"user.overlay."):
                shifted = value
            else:
                continue
            if b"=" in key:
                # A record would end its name there, and every reader would see another xattr.
                self.warn("dropped: an xattr with '=' in its name", found.path)
            elif shifted is not None:
                kept[key] = shifted
        return kept

    def _capability(self, found: T, value: bytes) -> bytes | None:
        """A capability that was set inside a user namespace names that namespace's root; an image's does not. capabilities(7)"""
        if len(value) != 24:
            return value
        magic, *words, root = struct.unpack("<6I", value)
        if magic & _CAP_REVISION != _CAP_V3:
            return value
        if self._owners(found.layer).uid(root) != 0:
            self.warn("dropped: a file capability of another user namespace", found.path)
            return None
        return struct.pack("<5I", _CAP_V2 | magic & ~_CAP_REVISION, *words)

    def _acl(self, found: T, value: bytes) -> bytes | None:
        """The ids in an ACL are shifted like owners. acl(5); linux/posix_acl_xattr.h"""
        owners = self._owners(found.layer)
        if owners.unchanged:
            return value
        if (len(value) - 4) % _ACL_ENTRY.size:
            return None
        out = bytearray(value[:4])
        for tag, rights, number in _ACL_ENTRY.iter_unpack(value[4:]):
            shifted = owners.uid(number) if tag == _ACL_USER else owners.gid(number) if tag == _ACL_GROUP else number
            if shifted is None:
                self.warn("dropped: an ACL for an id that the container does not have", found.path)
                return None
            out += _ACL_ENTRY.pack(tag, rights, shifted)
        return bytes(out)
