"""Mounting a layer that was never unpacked: an EROFS index and the uncompressed tar that holds its files' data, or the tars of several
layers.

The kernel (6.12 and newer) mounts both straight from the files, without a block device; root alone may ask for it. Such a mount is
attached nowhere and goes with its last descriptor: nothing is left to unmount, whoever is killed. 20 to 150 µs each.

A process has one per layer, from the first use on, and holds it: a mount has page cache of its own, so only what is a clone of the same
mount shares what was read. Where another process has one, it is a clone of that (``layers.mounts``): one per layer for all of the host.
``held`` gives duplicates of its descriptor; a duplicate outlives whatever happens here.

Whether it works is found out by doing it, per file system: EROFS reads through the page cache of the file system that its files lie on,
which tmpfs and overlayfs, for two, do not offer.

https://docs.kernel.org/filesystems/erofs.html
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import errno
import functools
import os
import time

from dockless import native
from dockless.base.path import Path
from dockless.base.paths import HINTS
from dockless.errors import ImageError
from dockless.images.files import temporary_directory
from dockless.images.layers import mounts

FSOPEN, FSCONFIG, FSMOUNT = 430, 431, 432
FSOPEN_CLOEXEC = FSMOUNT_CLOEXEC = 1
SET_FLAG, SET_STRING, CMD_CREATE = 0, 1, 6
READ_ONLY, NODEV = 0x1, 0x4
HELD_MAX = 256
"""Mounts that a process holds, unless that is more than a quarter of the descriptors it may have."""

_Key = tuple[tuple[Path, ...], tuple[tuple[int, ...], ...]]


def mount(index: Path, *tars: Path) -> int:
    """A descriptor (as of ``O_PATH``) of the layer's root: a mount of its own, read-only, devices inert, attached nowhere. The caller
    closes it. Setuid files stay setuid, which is the sandbox's to decide. ``ImageError``"""
    try:
        return _mount(index, *tars)
    except OSError as error:
        raise _failed(error, index, *tars) from error


def held(index: Path, *tars: Path) -> int:
    """As ``mount``, but of the one mount that this host's processes have of the layer: whoever reads in it or in a clone of it shares page
    cache. The caller closes the descriptor. From any thread. ``ImageError``"""
    try:
        with _lock:
            key = _key(index, *tars)
            if time.monotonic() >= _look_again:
                _release(everything=False)
            fd, identity, noted = _held.pop(key, _NONE)
            if _identity(fd) != identity:  # none yet; or somebody closed what is not his, as a daemon does after a fork
                while _held and len(_held) >= _most():
                    _close(next(iter(_held)))
                with mounts.alone():
                    fd = mounts.find(_name(key))
                    if fd < 0:
                        fd = _mount(index, *tars)
                    noted = mounts.note(_name(key), fd)
                identity = _identity(fd)
            elif noted is None:  # it was our parent's, before a fork
                noted = mounts.note(_name(key), fd)
            _held[key] = fd, identity, noted  # last used, last in the row
            return os.dup(fd)
    except OSError as error:
        raise _failed(error, index, *tars) from error


def note_keeper(index: Path, *tars: Path, fd: int, keeper: int, socket: int, place: int) -> None:
    """The keeper of a sandbox has this mount as well, at this ``place`` of what waits in its ``socket``: others find it there when we are
    gone."""
    with contextlib.suppress(OSError):
        mounts.note(_name(_key(index, *tars)), fd, keeper=keeper, socket=socket, place=place)


def release(*, everything: bool = False) -> None:
    """Close the mounts whose files were removed or replaced: a mount keeps them on the disk. ``everything``: close all, so that the
    store's own file system can be unmounted. What others have of them goes on. What processes have noted that were killed is removed."""
    with _lock:
        _release(everything)
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            mounts.sweep()


_Held = tuple[int, tuple[int, int], Path | None]
"""A descriptor, its identity, and where others find it."""
_NONE: _Held = (-1, (0, 0), None)
_held: dict[_Key, _Held] = {}  # by layer, the longest unused first
_look_again = 0.0  # when to look whether some were removed, by whomever; a second after the last time
_lock = _thread.allocate_lock()


def _after_fork() -> None:
    """The descriptors are the child's as well, the notes of them are not; a lock that another thread held is not going to be released
    here."""
    global _lock
    _lock = _thread.allocate_lock()
    for key, (fd, identity, _) in tuple(_held.items()):
        _held[key] = fd, identity, None


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def forget_notes() -> None:
    """Nobody looks for our mounts any more: this process is about to end."""
    for *_, noted in tuple(_held.values()):
        if noted is not None:
            mounts.forget(noted)


def _most() -> int:
    import resource

    return min(HELD_MAX, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))


def _key(*paths: Path) -> _Key:
    """The files at these paths, not the paths: a layer may be removed and made again. No number comes twice as long as we hold it."""
    # An index of several layers goes with the topmost one, and the others with it: two looks are enough.
    return paths, tuple((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in map(os.stat, paths[:2]))


def _name(key: _Key) -> str:
    return "-".join(".".join(f"{number:x}" for number in numbers) for numbers in key[1])


def _identity(fd: int) -> tuple[int, int]:
    try:
        found = os.fstat(fd)
    except OSError:
        return -1, -1
    return found.st_dev, found.st_ino


def _release(everything: bool) -> None:
    global _look_again
    _look_again = time.monotonic() + 1
    for key in list(_held):
        try:
            stale = everything or _key(*key[0]) != key
        except OSError:
            stale = True
        if stale:
            _close(key)


def _close(key: _Key) -> None:
    fd, identity, noted = _held.pop(key)
    if _identity(fd) == identity:
        os.close(fd)
    if noted is not None:
        mounts.forget(noted)


def _failed(error: OSError, index: Path, *tars: Path) -> ImageError:
    step = f"{error.step}: " if isinstance(error, _Refused) else ""
    return ImageError(
        f"cannot mount the layer {index}: {step}{error.strerror}", subject=str(index), hint=_hint(error.errno or 0, index, *tars)
    )


def supported(store: Path) -> bool:
    """Whether this kernel mounts indexes that lie in the directory ``store`` for this process. Asked once per file system."""
    return why_not(store) == ""


def why_not(store: Path) -> str:
    """Empty where ``supported``, else the reason."""
    if os.geteuid() != 0:
        return "only root may mount a layer"
    from dockless.native.layers import Fault

    try:
        return _why_not(os.stat(store).st_dev, str(store))
    except (OSError, Fault) as error:  # not kept: it may be the disk of this moment
        return f"cannot try it in {store}: {error}"


@functools.lru_cache(maxsize=16)
def _why_not(_device: int, store: str) -> str:
    import tempfile

    from dockless.native.erofs_index import IndexBuilder

    swept = Path(store, "tmp")  # of a store: what a disk refuses to remove goes from there with the next change
    scratch = temporary_directory(swept) if swept.is_dir() else tempfile.TemporaryDirectory(prefix=".erofs-", dir=store)
    try:
        # A tar with one empty directory and one file: the smallest that needs both halves.
        with scratch as place:
            index, tar = Path(place, "index"), Path(place, "tar")
            raw = _header(b"d/", b"5", 0) + _header(b"d/f", b"0", 4) + b"here".ljust(512, b"\0") + bytes(1024)
            tar.write_bytes(raw)
            builder = IndexBuilder(base=True, size_max=1 << 20, entries_max=100)
            builder.feed(raw)
            with open(index, "xb") as out:
                builder.finish(out.fileno())
            fd = _mount(index, tar)
            try:
                with open("d/f", "rb", opener=lambda path, flags: os.open(path, flags, dir_fd=fd)) as file:
                    return "" if file.read() == b"here" else "the kernel reads something else than was written"
            finally:
                os.close(fd)
    except _Refused as error:
        return f"{error.step}: {error}"


class _Refused(OSError):
    """A step of mounting failed; what the kernel said in its own words, if it did."""

    def __init__(self, number: int, step: str, said: str) -> None:
        super().__init__(number, said or os.strerror(number))
        self.step = step

    def __str__(self) -> str:
        return str(self.strerror)


def _mount(index: Path, *tars: Path) -> int:
    context = native.syscall(FSOPEN, b"erofs", FSOPEN_CLOEXEC)
    if context < 0:
        raise _Refused(-context, "fsopen erofs", "")
    try:
        steps: tuple[tuple[str, int, bytes | int, bytes | int], ...] = (
            ("fsconfig source", SET_STRING, b"source", os.fsencode(index)),
            *(("fsconfig device", SET_STRING, b"device", os.fsencode(tar)) for tar in tars),
            ("fsconfig ro", SET_FLAG, b"ro", 0),
            ("mount erofs", CMD_CREATE, 0, 0),
        )
        for step, command, key, value in steps:
            result = native.syscall(FSCONFIG, context, command, key, value, 0)
            if result < 0:
                raise _Refused(-result, step, _said(context))
        fd = native.syscall(FSMOUNT, context, FSMOUNT_CLOEXEC, READ_ONLY | NODEV)
        if fd < 0:
            raise _Refused(-fd, "fsmount", _said(context))
        return fd
    finally:
        os.close(context)


def _said(context: int) -> str:
    """What the kernel has to say about its refusal: one message per read, ``e`` before an error. fsopen(2)"""
    found = []
    try:
        while line := os.read(context, 1024):
            found.append(line.decode(errors="replace").strip())
    except OSError:
        pass
    return "; ".join(line[2:] for line in found if line.startswith("e "))


def _hint(number: int, *paths: Path) -> str:
    missing = [str(path) for path in paths if not os.path.isfile(path)]
    if missing:
        return f"{' and '.join(missing)} is gone: load or pull the image again"
    if number in (errno.EMFILE, errno.ENFILE):
        return HINTS[number]
    if number in (errno.EPERM, errno.EACCES):
        return "layers in this form are mounted by root; load the image as this user to have it unpacked"
    if number in (errno.ENODEV, errno.ENOTBLK, errno.EOPNOTSUPP):
        return "this kernel mounts no EROFS from such a file (Linux 6.12 and newer do): remove the image, load it again to have it unpacked"
    return "run 'dockless images check', then remove the image and load it again"


def _header(name: bytes, kind: bytes, size: int) -> bytes:
    fields = (name.ljust(100, b"\0"), b"0000755\0", b"0000000\0" * 2, b"%011o\0" % size, b"0" * 11 + b"\0", b" " * 8, kind)
    block = b"".join(fields).ljust(257, b"\0") + b"ustar\x0000"
    block = block.ljust(512, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]
