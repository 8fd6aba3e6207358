"""Run by itself: what deleted files take that processes of sandboxes still have open. Cgroups on standard input, ended by NULs; for each a
line with bytes.

Of each process the descriptors are looked at that are of the mount that is its root: no other file system is asked for anything, for it
might never answer. proc_pid_fdinfo(5)
"""

from __future__ import annotations

import contextlib
import os
import sys


def room(group: str) -> int:
    """Bytes, of all processes in a cgroup and in those below it."""
    found: dict[tuple[int, int], int] = {}
    for place, _, _ in os.walk(group):
        with contextlib.suppress(OSError), open(f"{place}/cgroup.procs") as file:
            for pid in file.read().split():
                with contextlib.suppress(OSError):  # it has ended
                    found |= _of(pid)
    return 512 * sum(found.values())


def _of(pid: str) -> dict[tuple[int, int], int]:
    """Blocks of 512 bytes, by device and inode."""
    root, found = _root(pid), {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{number}"
        with contextlib.suppress(OSError):  # it was closed
            if not os.readlink(path).endswith(" (deleted)"):
                continue
            with open(f"/proc/{pid}/fdinfo/{number}") as file:
                mount = next(int(line.partition(":")[2]) for line in file if line.startswith("mnt_id:"))
            if mount == root:
                about = os.stat(path)
                if not about.st_nlink:  # a file of the image has its name there
                    found[about.st_dev, about.st_ino] = about.st_blocks
    return found


def _root(pid: str) -> int:
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
