"""Mounting a layer that was never unpacked: an EROFS index and the uncompressed tar that holds its files' data.

The kernel (6.12 and newer) mounts both straight from the files, without a block device; root alone may ask for it. Such a mount is made
when it is needed, attached nowhere, and goes with its last descriptor: nothing is left to unmount, whoever is killed. 20 to 150 µs each.

Whether it works is found out by doing it, per file system: EROFS reads through the page cache of the file system that its files lie on,
which tmpfs and overlayfs, for two, do not offer.

https://docs.kernel.org/filesystems/erofs.html
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import struct
import tempfile
from pathlib import Path

from dockless import native
from dockless.errors import ImageError

FSOPEN, FSCONFIG, FSMOUNT = 430, 431, 432
FSOPEN_CLOEXEC = FSMOUNT_CLOEXEC = 1
SET_FLAG, SET_STRING, CMD_CREATE = 0, 1, 6
READ_ONLY, NODEV = 0x1, 0x4
ENABLE_VERITY, MEASURE_VERITY = 0x40806685, 0xC0046686
_SHA256 = 1
_NO_VERITY = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS)


def mount(index: Path, tar: Path) -> int:
    """A descriptor (as of ``O_PATH``) of the layer's root: a mount of its own, read-only, devices inert, attached nowhere. The caller
    closes it. Setuid files stay setuid, which is the sandbox's to decide. ``ImageError``"""
    try:
        return _mount(index, tar)
    except _Refused as error:
        raise ImageError(
            f"cannot mount the layer {index}: {error.step}: {error}", subject=str(index), hint=_hint(error.errno or 0, index, tar)
        ) from error


def supported(store: Path) -> bool:
    """Whether this kernel mounts indexes that lie in the directory ``store`` for this process. Asked once per file system."""
    return why_not(store) == ""


def why_not(store: Path) -> str:
    """Empty where ``supported``, else the reason."""
    if os.geteuid() != 0:
        return "only root may mount a layer"
    return _why_not(os.stat(store).st_dev, str(store))


@functools.lru_cache(maxsize=16)
def _why_not(_device: int, store: str) -> str:
    from dockless.native.erofs_index import IndexBuilder

    # A tar with one empty directory and one file: the smallest that needs both halves.
    try:
        with tempfile.TemporaryDirectory(prefix=".erofs-", dir=store) as place:
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
    except OSError as error:
        return f"cannot try it in {store}: {error.strerror}"


def protect(path: Path) -> str | None:
    """Make the file ``path`` unchangeable from now on, to the kernel and to whoever edits the disk: fs-verity. Its digest (``sha256:…``),
    None where the file system has no such thing. Nobody may hold the file open for writing; takes the time to read it once. ``OSError``

    https://docs.kernel.org/filesystems/fsverity.html"""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        try:
            # version, hash algorithm, block size, salt size, salt, signature size, reserved, signature, reserved
            fcntl.ioctl(fd, ENABLE_VERITY, struct.pack("=IIIIQII Q88x", 1, _SHA256, 4096, 0, 0, 0, 0, 0))
        except OSError as error:
            if error.errno in _NO_VERITY:
                return None
            if error.errno != errno.EEXIST:
                raise
        return _measured(fd)
    finally:
        os.close(fd)


def measured(path: Path) -> str | None:
    """The fs-verity digest that the kernel holds the file to, None if it holds it to none. Reads no content."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return _measured(fd)
    finally:
        os.close(fd)


def _measured(fd: int) -> str | None:
    answer = bytearray(struct.pack("=HH64x", 0, 64))
    try:
        fcntl.ioctl(fd, MEASURE_VERITY, answer)
    except OSError as error:
        if error.errno in (errno.ENODATA, *_NO_VERITY):
            return None
        raise
    algorithm, size = struct.unpack_from("=HH", answer)
    return f"{'sha256' if algorithm == _SHA256 else algorithm}:{answer[4 : 4 + size].hex()}"


class _Refused(OSError):
    """A step of mounting failed; what the kernel said in its own words, if it did."""

    def __init__(self, number: int, step: str, said: str) -> None:
        super().__init__(number, said or os.strerror(number))
        self.step = step

    def __str__(self) -> str:
        return str(self.strerror)


def _mount(index: Path, tar: Path) -> int:
    context = native.syscall(FSOPEN, b"erofs", FSOPEN_CLOEXEC)
    if context < 0:
        raise _Refused(-context, "fsopen erofs", "")
    try:
        for step, command, key, value in (
            ("fsconfig source", SET_STRING, b"source", os.fsencode(index)),
            ("fsconfig device", SET_STRING, b"device", os.fsencode(tar)),
            ("fsconfig ro", SET_FLAG, b"ro", 0),
            ("mount erofs", CMD_CREATE, 0, 0),
        ):
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


def _hint(number: int, index: Path, tar: Path) -> str:
    missing = [str(path) for path in (index, tar) if not path.is_file()]
    if missing:
        return f"{' and '.join(missing)} is gone: load or pull the image again"
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
