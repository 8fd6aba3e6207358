"""The store's file habits: temp file + fsync + rename, locks that die with their holder, directories that nobody sees half done.

A temporary directory is held by a lock on itself for as long as its maker lives, so the next process can tell a crash's left-overs
(nobody holds the lock) from work in progress.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

from dockless.base.locks import in_use
from dockless.base.path import Path
from dockless.base.typing import BinaryIO
from dockless.errors import ImageError, NoRoom

RESERVE = 512 << 20
"""Bytes of a file system that stay free, at most; on a small one a twentieth of it."""
MAKE_ROOM = "make room: dockless prune; or move the store to a larger file system"


def make_private(path: Path) -> Path:
    """The directory ``path``, made with its parents if need be, 0700: layers hold setuid files (CVE-2021-41091)."""
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    return path


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``path`` if the block ends well: durable, never seen half written."""
    temporary = path.with_name(f"{_prefix(path.name)}{os.urandom(6).hex()}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_directory(path.parent)


def _prefix(name: str) -> str:
    return f".{name[:200]}."


def is_left_over(path: Path, name: str) -> bool:
    """Whether ``path`` is what ``replacing`` the file ``name`` leaves where the disk refuses to remove it."""
    return path.name.startswith(_prefix(name))


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace ``path`` by ``data``; it gets exactly this mode."""
    with replacing(path) as out:
        os.fchmod(out.fileno(), mode)
        out.write(data)


def sync_directory(path: Path) -> None:
    sync_file(path, os.O_DIRECTORY)


def sync_file(path: Path, flags: int = 0) -> None:
    fd = os.open(path, os.O_RDONLY | flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock file ``path``; other processes and threads wait. The kernel lets go when the holder dies."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def explained(doing: str, subject: str, hint: str) -> Iterator[None]:
    """An ``OSError`` inside becomes an ``ImageError`` that says what was being done."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoRoom(f"{doing}: no room in the image store: {error.strerror}", subject=subject, hint=MAKE_ROOM) from error
        where = f": {error.filename}" if error.filename and str(error.filename) not in doing else ""
        raise ImageError(f"{doing}: {error.strerror or error}{where}", subject=subject, hint=hint) from error


@contextlib.contextmanager
def temporary_directory(parent: Path) -> Iterator[Path]:
    """A fresh 0700 directory below ``parent``, in use while we live; whatever is left of it goes at the end."""
    while True:
        path = parent / os.urandom(8).hex()
        path.mkdir(mode=0o700)
        # A sweeper may be quicker: it takes a directory that is not in use yet for a crash's left-over.
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            fd = in_use(path)
            if os.path.exists(path):
                break
            os.close(fd)
    try:
        yield path
    finally:
        remove_tree(path)
        os.close(fd)


def sweep(parent: Path) -> None:
    """Remove the temporary directories below ``parent`` that nobody uses: neither who made them nor a process that writes there."""
    for name in os.listdir(parent):
        path = parent / name
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # By another name, so that who has just made it does not take it for its own while a process that removes it for us uses it too.
            path = path.rename(parent / os.urandom(8).hex())
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            remove_tree(path)
        except (BlockingIOError, FileNotFoundError):  # it is in use; another sweeper has it
            pass
        finally:
            os.close(fd)


def remove_tree(path: Path) -> None:
    """Remove a directory we own, whatever is in it: any depth, any names, any modes. Follows no link. Absent is fine.

    It holds one descriptor and walks up by ``..``, so neither the depth of the tree nor the length of its paths matters; nobody else writes
    below the store, so ``..`` is where we came from. What belongs to an ordinary user's subordinate ids is removed inside.
    """
    try:
        _remove_tree(path)
    except PermissionError:
        from dockless.images import subid

        idmap = subid.ids()
        if idmap is None:
            raise
        subid.remove(path, idmap)


def _remove_tree(path: Path) -> None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        return
    trail: list[bytes] = []
    try:
        while True:
            below = _empty(fd)
            if below is not None:
                with contextlib.suppress(PermissionError):
                    os.chmod(below, 0o700, dir_fd=fd)
                child = os.open(below, flags, dir_fd=fd)
                os.close(fd)
                fd = child
                trail.append(below)
            elif trail:
                up = os.open("..", flags, dir_fd=fd)
                os.close(fd)
                fd = up
                os.rmdir(trail.pop(), dir_fd=fd)
            else:
                break
    finally:
        os.close(fd)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path)


def _empty(fd: int) -> bytes | None:
    """Unlink all but directories; the name of a directory that is still to be emptied, or None."""
    found: bytes | None = None
    for text in os.listdir(fd):
        name = os.fsencode(text)
        if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            try:
                os.rmdir(name, dir_fd=fd)
            except OSError:
                found = name
        else:
            os.unlink(name, dir_fd=fd)
    return found


def check_room(fd: int, coming: int, what: str) -> None:
    """``ImageError`` if ``coming`` more bytes would eat into the reserve of the file system that ``fd`` is on (attack A12)."""
    room = os.fstatvfs(fd)
    reserve = min(RESERVE, room.f_blocks * room.f_frsize // 20)
    free = room.f_bavail * room.f_frsize
    if free - coming < reserve:
        from dockless.base.units import format_size

        missing = coming + reserve - free
        error = NoRoom(
            f"{what}: no room in the image store: {format_size(missing)} more are needed, {format_size(reserve)} are kept free",
            subject=what,
            hint=MAKE_ROOM,
        )
        error.missing = missing
        raise error
    if room.f_files and room.f_favail < min(1000, room.f_files // 20):
        raise NoRoom(f"{what}: no room in the image store: its file system has {room.f_favail} inodes left", subject=what, hint=MAKE_ROOM)


_SYNCFS = {"x86_64": 306, "aarch64": 267}


def sync_filesystem(path: Path) -> None:
    """syncfs(2) on the file system of ``path``: one flush for a whole layer instead of one per file."""
    from dockless import native

    number = _SYNCFS.get(os.uname().machine)
    if number is None:
        os.sync()
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        result = native.syscall(number, fd)
    finally:
        os.close(fd)
    if result < 0:
        raise OSError(-result, f"syncfs: {os.strerror(-result)}")
