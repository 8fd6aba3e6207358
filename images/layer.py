"""The layer writer: one tar stream becomes one directory, in the form overlayfs takes as a lower layer.

Theory of operation. The directory is private and fresh; only this writer changes it, and nobody sees it before it is complete. For
each member the writer walks to the parent, one component at a time on descriptors with ``O_NOFOLLOW``: a real directory is entered, a
symbolic link (from this layer or a lower one) is expanded by hand against *this* root, ``..`` in a link stops at the root. So no name, no
link and no combination of the two reaches the host, whatever the order of members (attacks A1-A8, A15). Names with ``..`` are refused.

A parent that this layer does not list is looked up in the layers below and made with the owner, mode and times it has there, because
overlayfs shows the topmost directory's. A hard link to a file of a lower layer copies that file up first, as link(2) on a mounted overlay
would. Whiteouts ``.wh.x`` become a character device 0:0, ``.wh..wh..opq`` the xattr ``trusted.overlay.opaque`` (root) or
``user.overlay.opaque`` (ordinary user); both hide only what lies below, never what this layer brings, in whatever order they come.

As root: owners, setuid bits, capabilities, ACLs, devices and xattrs are kept. As an ordinary user everything belongs to her, devices and
what only root may set are left out, and ``warnings`` says so. Xattrs that overlayfs itself would obey are always dropped (attack A11).

https://github.com/opencontainers/image-spec/blob/main/layer.md, https://docs.kernel.org/filesystems/overlayfs.html
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dockless.errors import BadImage, ImageError, NoRoom, UnsafeLayer
from dockless.images import tarstream
from dockless.images.files import check_room, remove_tree
from dockless.images.layers import Layer
from dockless.images.limits import UnpackLimits
from dockless.images.merged import LINKS_MAX, PATH_MAX, Merged, Node, Parts, has_opaque, is_whiteout, show
from dockless.images.tarstream import Member, TarReader
from dockless.native.layers import Fault

WHITEOUT = b".wh."
AUFS = b".wh..wh."
OPAQUE_NAME = b".wh..wh..opq"
_ROOM_BYTES = 64 << 20
_ROOM_ENTRIES = 10_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What came of a layer."""

    size: int
    entries: int
    warnings: tuple[str, ...]


@dataclass(slots=True)
class _Dir:
    """An open directory of this layer. Its times are put back when we leave it: making entries in it has changed them."""

    fd: int
    parts: Parts
    times: tuple[int, int]


def unpack(
    reader: TarReader, target: Path, lower: Sequence[Layer], what: str, *, limits: UnpackLimits | None = None, as_root: bool | None = None
) -> Unpacked:
    """Write the members of ``reader`` into the empty directory ``target``. ``lower``: the layers below, bottom first.

    Raises ``UnsafeLayer``, ``BadImage``, or ``ImageError`` where the disk or a limit is full; ``target`` is then incomplete.
    """
    writer = _Writer(target, lower, what, limits or UnpackLimits(), os.geteuid() == 0 if as_root is None else as_root)
    try:
        writer.all(reader)
    finally:
        writer.close()
    return Unpacked(writer.size, writer.entries, tuple(writer.notes()))


class _Writer:
    def __init__(self, target: Path, lower: Sequence[Layer], what: str, limits: UnpackLimits, as_root: bool) -> None:
        self.what = what
        self.limits = limits
        self.as_root = as_root
        self.size = 0
        self.entries = 0
        self._next_room_size = 0
        self._next_room_entries = 0
        self._warned: dict[str, tuple[int, str]] = {}
        self._root_opaque = False
        self._current: tuple[Parts, _Dir] | None = None
        self._lower = Merged(list(reversed(lower)))
        self._root = os.open(target, _DIRECTORY)
        if self._lower:
            self._copy_meta(self._lower.open_dir(self._lower.root), self._root)
        else:
            os.fchmod(self._root, 0o755)

    def close(self) -> None:
        self._leave()
        os.close(self._root)
        self._lower.close()

    def notes(self) -> Iterator[str]:
        for why, (count, example) in self._warned.items():
            yield f"{why}: {example}" + (f" and {count - 1} more" if count > 1 else "")

    # -- members ---------------------------------------------------------------------------------------------------------------------

    def all(self, reader: TarReader) -> None:
        for member in reader:
            self.entries += 1
            if self.entries > self.limits.entries:
                raise self._too_big(f"it has more than {self.limits.entries} entries")
            if self.entries >= self._next_room_entries:
                self._room(0)
            try:
                self._member(member, reader)
            except OSError as error:
                raise self._failed(member, error) from error
        try:
            if self._root_opaque:
                self._hide_root()
            self._leave()
        except OSError as error:
            raise ImageError(f"{self.what}: cannot finish the layer: {error.strerror}", subject=self.what) from error

    def _member(self, member: Member, reader: TarReader) -> None:
        parts = self._clean(member.name)
        for name in parts[:-1]:
            if name.startswith(AUFS):
                return  # AUFS keeps its own books below .wh..wh.plnk and friends
            if name.startswith(WHITEOUT):
                raise self._unsafe(member.name, "it lies below a whiteout")
        if not parts:
            if member.kind != tarstream.DIRECTORY:
                raise self._unsafe(member.name, f"the root cannot be a {member.kind}")
            self._leave()
            self._set_meta(self._root, member)
        elif parts[-1].startswith(WHITEOUT):
            self._whiteout(member, parts)
        elif member.kind == tarstream.DIRECTORY:
            self._directory(member, parts)
        elif member.kind == tarstream.HARDLINK:
            self._hardlink(member, parts)
        else:
            where = self._enter(parts[:-1])
            if member.kind == tarstream.FILE:
                self._file(where, parts[-1], member, reader)
            elif member.kind == tarstream.SYMLINK:
                self._symlink(where, parts[-1], member)
            else:
                self._special(where, parts[-1], member)

    def _directory(self, member: Member, parts: Parts) -> None:
        where = self._enter(parts[:-1])
        found = _lstat(where.fd, parts[-1])
        if found is None or not stat.S_ISDIR(found.st_mode):
            if found is not None:
                os.unlink(parts[-1], dir_fd=where.fd)
            os.mkdir(parts[-1], 0o700, dir_fd=where.fd)
        fd = os.open(parts[-1], _DIRECTORY, dir_fd=where.fd)
        try:
            if found is not None and not stat.S_ISDIR(found.st_mode):
                # What it replaces (a whiteout, a file) had already hidden the directory of that name below.
                self._set_opaque(fd)
            self._set_meta(fd, member)
        finally:
            os.close(fd)

    def _file(self, where: _Dir, name: bytes, member: Member, reader: TarReader) -> None:
        if self.size + member.stored > self.limits.size:
            raise self._too_big(f"it unpacks to more than {self.limits.size} bytes")
        fd = self._create(where, name, lambda: os.open(name, _FILE, 0o600, dir_fd=where.fd))
        try:
            if member.sparse is None:
                for piece in reader.data():
                    self._write(fd, piece)
            else:
                self._sparse(fd, member, reader)
            self._set_meta(fd, member)
        finally:
            os.close(fd)

    def _sparse(self, fd: int, member: Member, reader: TarReader) -> None:
        segments = iter(member.sparse or ())
        offset = left = 0
        for piece in reader.data():
            view = memoryview(piece)
            while view:
                if not left:
                    offset, left = next(segments)
                    os.lseek(fd, offset, os.SEEK_SET)
                part = view[:left]
                self._write(fd, part)
                left -= len(part)
                view = view[len(part) :]
        os.ftruncate(fd, member.size)

    def _write(self, fd: int, piece: bytes | memoryview) -> None:
        self.size += len(piece)
        if self.size >= self._next_room_size:
            self._room(len(piece))
        written = os.write(fd, piece)
        while written < len(piece):
            written += os.write(fd, piece[written:])

    def _symlink(self, where: _Dir, name: bytes, member: Member) -> None:
        if not member.link or len(member.link) >= PATH_MAX:
            raise self._unsafe(member.name, "its link target is empty or too long")
        self._create(where, name, lambda: os.symlink(member.link, name, dir_fd=where.fd))
        self._set_meta_at(where, name, member)

    def _special(self, where: _Dir, name: bytes, member: Member) -> None:
        if member.kind == tarstream.FIFO:
            self._create(where, name, lambda: os.mkfifo(name, 0o600, dir_fd=where.fd))
        else:
            kind = stat.S_IFCHR if member.kind == tarstream.CHAR else stat.S_IFBLK
            if kind == stat.S_IFCHR and member.major == member.minor == 0:
                self._warn("left out: a device 0:0 would act as a whiteout", member.name)
                return
            if not self.as_root:
                self._warn("left out: only root can make devices", member.name)
                return
            try:
                self._create(where, name, lambda: os.mknod(name, kind | 0o600, os.makedev(member.major, member.minor), dir_fd=where.fd))
            except PermissionError:
                self._warn("left out: this root may not make devices", member.name)
                return
        self._set_meta_at(where, name, member)

    def _hardlink(self, member: Member, parts: Parts) -> None:
        target = self._clean(member.link)
        if not target or any(name.startswith(WHITEOUT) for name in target):
            raise self._unsafe(member.name, f"it is a hard link to {show(member.link)}")
        there = self._enter(target[:-1])
        source, source_parts = os.dup(there.fd), (*there.parts, target[-1])
        try:
            found = _lstat(source, target[-1])
            if found is None:
                found = self._copy_up(there, target[-1])
            if found is None or is_whiteout(found):
                raise BadImage(
                    f"{self.what}: {show(member.name)} is a hard link to {show(member.link)}, which does not exist", subject=self.what
                )
            if stat.S_ISDIR(found.st_mode):
                raise self._unsafe(member.name, f"it is a hard link to the directory {show(member.link)}")
            where = self._enter(parts[:-1])
            if (*where.parts, parts[-1]) != source_parts:
                last = target[-1]
                self._create(
                    where, parts[-1], lambda: os.link(last, parts[-1], src_dir_fd=source, dst_dir_fd=where.fd, follow_symlinks=False)
                )
        finally:
            os.close(source)

    def _whiteout(self, member: Member, parts: Parts) -> None:
        name = parts[-1]
        if name == OPAQUE_NAME:
            if self._lower:
                where = self._enter(parts[:-1])
                if where.parts:
                    self._set_opaque(where.fd)
                else:
                    self._root_opaque = True
            return
        if name.startswith(AUFS):
            return
        hidden = name[len(WHITEOUT) :]
        if hidden in (b"", b".", b".."):
            raise self._unsafe(member.name, "it is a whiteout of nothing")
        if self._lower:
            self._hide(self._enter(parts[:-1]), hidden)

    def _hide(self, where: _Dir, name: bytes) -> None:
        """Hide what the layers below have at ``name``; what this layer has there stays."""
        found = _lstat(where.fd, name)
        if found is None:
            below = self._below(where.parts)
            if below is not None and self._lower.child(below, name) is not None:
                os.mknod(name, stat.S_IFCHR | 0o600, os.makedev(0, 0), dir_fd=where.fd)
        elif stat.S_ISDIR(found.st_mode):
            fd = os.open(name, _DIRECTORY, dir_fd=where.fd)
            try:
                self._set_opaque(fd)
            finally:
                os.close(fd)

    def _hide_root(self) -> None:
        """The root cannot be opaque (overlayfs does not look there), so each of its entries below is hidden by itself."""
        self._root_opaque = False
        where = self._enter(())
        for name in self._lower.children(self._lower.root):
            self._hide(where, name)

    # -- the walk --------------------------------------------------------------------------------------------------------------------

    def _clean(self, name: bytes) -> Parts:
        parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
        if b".." in parts:
            raise self._unsafe(name, "its name leads out of the image")
        if len(name) >= PATH_MAX:
            raise self._unsafe(name, f"its name is longer than {PATH_MAX - 1} bytes")
        return parts

    def _enter(self, parts: Parts) -> _Dir:
        """The directory at ``parts`` in this layer, links resolved inside, made if it is not there. One is kept open."""
        if self._current is not None:
            if self._current[0] == parts:
                return self._current[1]
            self._leave()
        where = self._walk(parts)
        self._current = (parts, where)
        return where

    def _leave(self) -> None:
        if self._current is not None:
            where = self._current[1]
            self._current = None
            try:
                os.utime(where.fd, ns=where.times)
            finally:
                os.close(where.fd)

    def _walk(self, parts: Parts) -> _Dir:
        todo = list(reversed(parts))
        here: Parts = ()
        fd = os.open(".", _DIRECTORY, dir_fd=self._root)
        links = 0
        try:
            while todo:
                name = todo.pop()
                if name == b"..":
                    here = here[:-1]
                    fd = self._reopen(fd, here)
                    continue
                try:
                    below = os.open(name, _DIRECTORY, dir_fd=fd)
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                        raise
                    if (info := _lstat(fd, name)) is None:
                        target = self._missing(fd, here, name)
                    elif stat.S_ISLNK(info.st_mode):
                        target = os.readlink(name, dir_fd=fd)
                    elif is_whiteout(info):
                        os.unlink(name, dir_fd=fd)
                        self._implicit(fd, name, None, hides=True)
                        target = None
                    else:
                        raise BadImage(f"{self.what}: {show(name)} is a file, but entries lie below it", subject=self.what) from None
                    if target is None:
                        below = os.open(name, _DIRECTORY, dir_fd=fd)
                    else:
                        links += 1
                        if links > LINKS_MAX or len(todo) + len(target) > PATH_MAX:
                            raise self._unsafe(b"/".join(parts), "too many symbolic links lead to it") from None
                        if target.startswith(b"/"):
                            here = ()
                            fd = self._reopen(fd, here)
                        todo += [part for part in reversed(target.split(b"/")) if part not in (b"", b".")]
                        continue
                os.close(fd)
                fd = below
                here = (*here, name)
            if sum(map(len, here)) + len(here) >= PATH_MAX:
                raise self._unsafe(b"/".join(parts), f"links make its path longer than {PATH_MAX - 1} bytes")
            info = os.fstat(fd)
        except BaseException:
            os.close(fd)
            raise
        return _Dir(fd, here, (info.st_atime_ns, info.st_mtime_ns))

    def _reopen(self, fd: int, parts: Parts) -> int:
        """Walk to real directories again (after ``..`` or an absolute link). Takes over ``fd``."""
        new = os.open(".", _DIRECTORY, dir_fd=self._root)
        try:
            for name in parts:
                below = os.open(name, _DIRECTORY, dir_fd=new)
                os.close(new)
                new = below
            os.dup2(new, fd, inheritable=False)
        finally:
            os.close(new)
        return fd

    def _missing(self, fd: int, here: Parts, name: bytes) -> bytes | None:
        """``name`` is not in this layer: make the directory, or give the target of a link that lies there in a lower layer."""
        below = self._below(here)
        node = self._lower.child(below, name) if below is not None else None
        if node is not None and stat.S_ISLNK(node.info.st_mode):
            return self._lower.readlink(node)
        is_dir = node is not None and node.is_dir
        self._implicit(fd, name, node if is_dir else None, hides=node is not None and not is_dir)
        return None

    def _implicit(self, fd: int, name: bytes, node: Node | None, *, hides: bool) -> None:
        """A parent that this layer does not list, as the layers below have it, else 0755. The times of its own parent are kept."""
        before = os.fstat(fd)
        os.mkdir(name, 0o755, dir_fd=fd)
        made = os.open(name, _DIRECTORY, dir_fd=fd)
        try:
            if node is not None:
                self._copy_meta(self._lower.open_dir(node), made)
            else:
                os.fchmod(made, 0o755)
                if self.as_root:
                    os.fchown(made, 0, 0)
                if hides:
                    self._set_opaque(made)
        finally:
            os.close(made)
        os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))

    def _below(self, parts: Parts) -> Node | None:
        """What the lower layers show at the directory ``parts``, None where this layer hides it or nothing is there."""
        if not self._lower or self._root_opaque:
            return None
        fd = os.open(".", _DIRECTORY, dir_fd=self._root)
        try:
            for name in parts:
                below = os.open(name, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = below
                if has_opaque(fd):
                    return None
        finally:
            os.close(fd)
        return self._lower.directory(parts)

    def _create(self, where: _Dir, name: bytes, make: Callable[[], int | None]) -> int:
        """``make()``, after removing what this layer already has there: the last entry of a name wins."""
        try:
            return make() or 0
        except FileExistsError:
            found = _lstat(where.fd, name)
            if found is not None and stat.S_ISDIR(found.st_mode):
                remove_tree(Path(f"/proc/self/fd/{where.fd}") / os.fsdecode(name))
            else:
                os.unlink(name, dir_fd=where.fd)
            return make() or 0

    # -- owners, modes, times, xattrs ------------------------------------------------------------------------------------------------

    def _set_meta(self, fd: int, member: Member) -> None:
        """By descriptor, in the order that keeps everything: chown clears setuid bits and capabilities, so it comes first."""
        if self.as_root:
            os.fchown(fd, member.uid, member.gid)
        os.fchmod(fd, member.mode if self.as_root or member.kind != tarstream.DIRECTORY else member.mode | 0o700)
        for key, value in member.xattrs.items():
            if self._wanted(key, member.name):
                self._setxattr(fd, key, value, member.name)
        os.utime(fd, ns=(member.mtime, member.mtime))

    def _set_meta_at(self, where: _Dir, name: bytes, member: Member) -> None:
        """For what must not be opened: links, devices, fifos."""
        if self.as_root:
            os.chown(name, member.uid, member.gid, dir_fd=where.fd, follow_symlinks=False)
        if member.kind != tarstream.SYMLINK:
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=where.fd)
            try:
                os.chmod(f"/proc/self/fd/{fd}", member.mode)
            finally:
                os.close(fd)
        for key, value in member.xattrs.items():
            if self._wanted(key, member.name):
                self._setxattr(f"/proc/self/fd/{where.fd}/{os.fsdecode(name)}", key, value, member.name)
        os.utime(name, ns=(member.mtime, member.mtime), dir_fd=where.fd, follow_symlinks=False)

    def _wanted(self, key: bytes, name: bytes) -> bool:
        if key.startswith((b"trusted.", b"user.overlay.")):
            self._warn("dropped: an xattr that overlayfs or the host would obey", key + b" of " + name)
            return False
        if key.startswith(b"user."):
            return True
        if key in (b"security.capability", b"system.posix_acl_access", b"system.posix_acl_default"):
            if not self.as_root:
                self._warn("dropped: only root can keep capabilities and ACLs", name)
            return self.as_root
        return False  # security.selinux, security.ima …: the host's policy, not the image's

    def _setxattr(self, target: int | str, key: bytes, value: bytes, name: bytes) -> None:
        try:
            if isinstance(target, int):
                os.setxattr(target, key, value)
            else:
                os.setxattr(target, key, value, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL, errno.E2BIG, errno.ERANGE, errno.EACCES):
                raise
            self._warn(f"dropped: this file system does not take it ({error.strerror})", key + b" of " + name)

    def _set_opaque(self, fd: int) -> None:
        if self._lower:
            try:
                os.setxattr(fd, b"trusted.overlay.opaque" if self.as_root else b"user.overlay.opaque", b"y")
            except OSError as error:
                raise ImageError(
                    f"{self.what}: the image store's file system cannot mark a directory opaque: {error.strerror}",
                    subject=self.what,
                    hint="keep the image store on ext4, xfs or btrfs (or tmpfs since Linux 6.6)",
                ) from error

    def _copy_meta(self, source: int, target: int) -> None:
        """Owner, mode, xattrs and times of ``source`` (taken over and closed) onto ``target``."""
        try:
            info = os.fstat(source)
            if self.as_root:
                os.fchown(target, info.st_uid, info.st_gid)
            os.fchmod(target, stat.S_IMODE(info.st_mode))
            for key in os.listxattr(source):
                if self._wanted(os.fsencode(key), b"") and (value := os.getxattr(source, key)) is not None:
                    self._setxattr(target, os.fsencode(key), value, b"")
            os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
        finally:
            os.close(source)

    def _copy_up(self, where: _Dir, name: bytes) -> os.stat_result | None:
        """Bring ``name`` from the layers below into this one, so that it can be linked; None where they do not have it."""
        below = self._below(where.parts)
        node = self._lower.child(below, name) if below is not None else None
        if node is None or node.is_dir:
            return node.info if node is not None else None
        info = node.info
        if stat.S_ISREG(info.st_mode):
            with self._lower.open_file(node) as source:
                fd = os.open(name, _FILE, 0o600, dir_fd=where.fd)
                try:
                    while piece := source.read(1 << 20):
                        self._write(fd, piece)
                    self._copy_meta(os.dup(source.fileno()), fd)
                finally:
                    os.close(fd)
            return info
        if stat.S_ISLNK(info.st_mode):
            os.symlink(self._lower.readlink(node), name, dir_fd=where.fd)
        else:
            os.mknod(name, stat.S_IFMT(info.st_mode) | 0o600, info.st_rdev, dir_fd=where.fd)
            os.chmod(name, stat.S_IMODE(info.st_mode), dir_fd=where.fd)
        if self.as_root:
            os.chown(name, info.st_uid, info.st_gid, dir_fd=where.fd, follow_symlinks=False)
        os.utime(name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=where.fd, follow_symlinks=False)
        return info

    # -- limits and errors -----------------------------------------------------------------------------------------------------------

    def _room(self, coming: int) -> None:
        check_room(self._root, coming, self.what)
        self._next_room_size = self.size + _ROOM_BYTES
        self._next_room_entries = self.entries + _ROOM_ENTRIES

    def _warn(self, why: str, name: bytes) -> None:
        count, example = self._warned.get(why, (0, show(name)))
        self._warned[why] = (count + 1, example)

    def _unsafe(self, name: bytes, why: str) -> UnsafeLayer:
        return UnsafeLayer(
            f"{self.what}: the entry {show(name)} is not safe: {why}",
            subject=self.what,
            hint="do not use this image: no honest tool makes such a layer",
        )

    def _too_big(self, why: str) -> ImageError:
        return ImageError(
            f"{self.what}: the layer is too large: {why}", subject=self.what, hint="raise the limits of the store if you trust the image"
        )

    def _failed(self, member: Member, error: OSError) -> ImageError:
        if error.errno == errno.ENAMETOOLONG:
            return BadImage(f"{self.what}: {show(member.name)} has a component longer than this file system allows", subject=self.what)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return NoRoom(
                f"{self.what}: no room in the image store for {show(member.name)}: {error.strerror}",
                subject=self.what,
                hint="free some space on the file system of the store, or move the store",
            )
        return ImageError(f"{self.what}: cannot write {show(member.name)}: {error.strerror}", subject=self.what)


def _lstat(fd: int, name: bytes) -> os.stat_result | None:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    return None


def explain(fault: Fault, what: str) -> ImageError:
    """The error for what went wrong in C, with the layer's name."""
    if fault.kind == "unsafe":
        return UnsafeLayer(f"{what}: {fault.text}", subject=what, hint="do not use this image: no honest tool makes such a layer")
    if fault.kind == "malformed":
        return BadImage(f"{what}: not a sound tar archive: {fault.text}", subject=what, hint="build or fetch the image again")
    if fault.kind == "limit":
        return ImageError(f"{what}: {fault.text}", subject=what, hint="raise the limits of the store if you trust the image")
    if fault.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoRoom(f"{what}: no room in the image store: {fault.text}", subject=what, hint="make room: dockless prune")
    return ImageError(f"{what}: {fault.text}", subject=what)
