"""The records of a detached sandbox, ``started`` and ``exit``: room for them before the start, and what counts as whole.

The keeper writes them (native/launcher/keeper.c) into files that were given their room by the host, so a disk that is full by then changes
nothing. Each ends with ``[end]`` and a checksum of everything up to there. What is torn, cut off or garbage is no record:
``ValueError``, with the reason. Records of keepers before the checksum are still read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Mapping

from dockless.base.later import zlib
from dockless.base.locks import CANNOT_TELL
from dockless.base.path import Path
from dockless.cgroups import Usage
from dockless.sandbox.run import process
from dockless.sandbox.run.process import Exit

ROOM = {"started.tmp": 4096, "exit.tmp": 16384}
"""Bytes of each record at most: a block, and ``RECORD_ROOM`` of native/launcher/launcher.h."""
HEALTH_ROOM = {"health": 12288, "health.tmp": 12288}
"""The same for checks of health: the keeper writes the one and then lets both change places."""
MOST = 1 << 20
"""Bytes that are read of any file of a sandbox's directory: more than this none of them has."""
_END = b"[end]\n"
_NUMBERS = ("status", "outcome", "user_us", "system_us", "max_rss_kb", "started_ns", "ended_ns")
_LARGEST = 1 << 64
_PID_MAX = 1 << 22
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def reserve(directory: Path, sizes: Mapping[str, int] = ROOM) -> None:
    """Set aside the room of these records. ``OSError`` where there is none.

    posix_fallocate(3): on file systems that write elsewhere each time (btrfs) only room that was never written is kept; a C library or a
    file system without it gets zeros. A network file system answers at close(2), which is where Python raises.
    """
    for name, size in sizes.items():
        fd = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                os.posix_fallocate(fd, 0, size)
            except OSError as error:
                if error.errno not in _NO_FALLOCATE:
                    raise
                if os.write(fd, bytes(size)) != size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


_OF_A_RUN = ("exit", "started")
_DOCUMENT = "spec.json"


def set_aside(directory: Path) -> None:
    """What is written down gets other names, until ``put_back`` or ``forget``. ``OSError``"""
    forget(directory)
    os.link(directory / _DOCUMENT, directory / _aside(_DOCUMENT))
    for name in _OF_A_RUN:
        with contextlib.suppress(FileNotFoundError):
            os.rename(directory / name, directory / _aside(name))


def put_back(directory: Path) -> None:
    """As it was before ``set_aside``. Names alone change, which a full disk takes."""
    for name in _OF_A_RUN:
        (directory / name).unlink(missing_ok=True)
    for name in (_DOCUMENT, *_OF_A_RUN):
        with contextlib.suppress(FileNotFoundError):
            os.rename(directory / _aside(name), directory / name)


def forget(directory: Path) -> None:
    """What was set aside is needed no more."""
    for name in (_DOCUMENT, *_OF_A_RUN):
        (directory / _aside(name)).unlink(missing_ok=True)


def _aside(name: str) -> str:
    return f"{name}.old"


def read(path: Path) -> bytes:
    """A file of a sandbox's directory. ``FileNotFoundError``; ``ValueError``, with the reason, for one that is damaged; ``OSError`` where
    we cannot tell, such as too many open files."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise ValueError("it is no plain file")
            if found.st_size > MOST:
                raise ValueError(f"it has {found.st_size} bytes")
            return os.read(fd, found.st_size)  # asked for much, it maps much
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in CANNOT_TELL:
            raise
        raise ValueError(error.strerror) from None


def parse_exit(raw: bytes) -> Exit:
    """The keeper's exit record: numbers, then the cgroup's files as they stood. ``ValueError`` for one that is not whole."""
    if raw.startswith(b"format ") or _END in raw:
        raw = whole(raw)
    head, *sections = raw.decode("utf-8").split("\n[")
    numbers = numbers_of(head)
    missing = [name for name in _NUMBERS if name not in numbers]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    if numbers["status"] > 0xFFFF:
        raise ValueError(f"{numbers['status']} is no wait status")
    files = {}
    for section in sections:
        name, _, body = section.partition("]\n")
        files[name] = body + "\n"
    user, system = numbers["user_us"] / 1e6, numbers["system_us"] / 1e6
    own = Usage(cpu_seconds=user + system, user_seconds=user, system_seconds=system)
    ended = process.exit_of(
        numbers["status"],
        numbers["outcome"],
        started=numbers["started_ns"] / 1e9,
        ended=numbers["ended_ns"] / 1e9,
        max_rss=numbers["max_rss_kb"] * 1024,
        usage=own,
    )
    try:
        return process.with_usage(ended, Usage.from_files(files)) if files else ended
    except OverflowError as error:
        raise ValueError(f"the cgroup's account: {error}") from None


def parse_started(raw: bytes) -> dict[str, int]:
    """The pids of ``keeper`` and ``init``. ``ValueError`` for a record that is not whole."""
    if _END in raw:
        raw = whole(raw)
    pids = numbers_of(raw.decode("utf-8"))
    for name in ("keeper", "init"):
        if not 0 < pids.get(name, 0) < _PID_MAX:
            raise ValueError(f"it names no {name}")
    return pids


def whole(raw: bytes) -> bytes:
    """The record without its end, which is checked."""
    body, end, rest = raw.partition(_END)
    key, _, value = rest.partition(b"\n")[0].partition(b" ")
    if not end or key != b"crc32" or not value.isdigit():
        raise ValueError("it has no end")
    if int(value) != zlib.crc32(body + end):
        raise ValueError("its checksum is wrong")
    return body


def numbers_of(text: str) -> dict[str, int]:
    numbers = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if not (value.isascii() and value.isdigit()) or len(value) > 20 or int(value) >= _LARGEST:
            raise ValueError(f"{line[:40]!r} is no number")
        numbers[key] = int(value)
    return numbers
