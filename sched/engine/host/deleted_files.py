"""Run by itself: what deleted files take that processes of sandboxes still have open or mapped. Cgroups on standard input, ended by NULs;
for each a line with bytes.

Of each process the descriptors and mappings are looked at that are of the mount that is its root: no other file system is asked for
anything, for it might never answer. A table of descriptors that many processes share is looked at once, and a cgroup for ``LONGEST``
seconds: what was found until then counts. proc_pid_fdinfo(5), proc_pid_map_files(5), kcmp(2)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import random
import sys
import time
from collections.abc import Iterator

LONGEST = 2.0
_KCMP, _FILES = {"x86_64": 312, "aarch64": 272}.get(platform.machine(), -1), 2
_libc = ctypes.CDLL(None)
Blocks = dict[tuple[int, int], int]
"""Blocks of 512 bytes, by device and inode."""


def room(group: str) -> int:
    """Bytes, of all processes in a cgroup and in those below it."""
    found: Blocks = {}
    tables: list[int] = []
    until = time.monotonic() + LONGEST
    for pid in _processes(group):
        with contextlib.suppress(OSError):  # it has ended
            root = _root(pid)
            places = ["map_files"]
            if not any(_have_one_table(pid, other) for other in tables):
                tables.append(pid)
                places.append("fd")
            for place in places:
                for about in _deleted(f"/proc/{pid}/{place}", root, until):
                    found[about.st_dev, about.st_ino] = about.st_blocks
        if time.monotonic() > until:
            break
    return 512 * sum(found.values())


def _processes(group: str) -> list[int]:
    """In any order: what is looked at no more is not the same each time."""
    found: list[int] = []
    for place, _, _ in os.walk(group):
        with contextlib.suppress(OSError), open(f"{place}/cgroup.procs") as file:
            found += map(int, file.read().split())
    random.shuffle(found)
    return found


def _have_one_table(pid: int, other: int) -> bool:
    return bool(_libc.syscall(_KCMP, pid, other, _FILES, 0, 0) == 0)


def _deleted(place: str, root: int, until: float) -> Iterator[os.stat_result]:
    for name in os.listdir(place):
        if time.monotonic() > until:
            return
        path = f"{place}/{name}"
        with contextlib.suppress(OSError):  # it was closed
            if not os.readlink(path).endswith(" (deleted)"):
                continue
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)  # the file system is not asked
            try:
                about = os.fstat(fd) if _mount(fd) == root else None
            finally:
                os.close(fd)
            if about is not None and not about.st_nlink:  # a file of the image has its name there
                yield about


def _mount(fd: int) -> int:
    with open(f"/proc/self/fdinfo/{fd}") as file:
        return next(int(line.partition(":")[2]) for line in file if line.startswith("mnt_id:"))


def _root(pid: int) -> int:
    """The mount that is a process's root. proc_pid_mountinfo(5)"""
    root = -1
    with open(f"/proc/{pid}/mountinfo", errors="surrogateescape") as file:
        for line in file:
            number, _, _, _, target, *_ = line.split(" ", 5)
            if target == "/":
                root = int(number)
    return root


if __name__ == "__main__":
    for group in sys.stdin.buffer.read().split(b"\0")[:-1]:
        print(room(os.fsdecode(group)), flush=True)
