"""What can be seen of a sandbox that runs: its processes, and what they take at this moment.

Its processes are the descendants of its keeper, on any host; what the kernel's accounts do not count there, memory without its controller
for one, is added up over them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping

import psutil

from dockless.base.dataclass import dataclass, replace
from dockless.cgroups import Usage
from dockless.sandbox.run.box import Box
from dockless.sandbox.run.process import gone

_OURS = ("dockless-init", "dockless-enter", "dockless-reader")
"""Names of processes that belong to the sandbox and run nothing of it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One process. ``pid``: as the host numbers it, ``inside``: as the sandbox does. ``uid``: of the host. ``started``: seconds since the
    epoch. ``memory``: bytes that are resident. ``command``: what it says of itself, which is whatever it likes."""

    pid: int
    inside: int
    uid: int
    started: float
    cpu_seconds: float
    memory: int
    command: str


def processes(box: Box) -> tuple[Seen, ...]:
    """Everything that runs inside, in the order of the host's numbers. ``SandboxGone``"""
    if not box.alive:
        raise box.not_running()
    try:
        below = _below(box.pid)
    except OSError:
        raise gone(box.id) from None
    found = []
    for pid in sorted(below):
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            if (seen := _seen(psutil.Process(pid))) is not None:
                found.append(seen)
    return tuple(found)


def _below(pid: int) -> set[int]:
    """The descendants of a process, in a time that does not grow with what else runs on the host. ``OSError`` if it is gone."""
    left = _children(pid)
    found = set(left)
    while left:
        with contextlib.suppress(OSError):
            left |= (new := _children(left.pop()) - found)
            found |= new
    return found


def _children(pid: int) -> set[int]:
    """proc_pid_task(5), children"""
    found: set[int] = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as stream:
            found.update(map(int, stream.read().split()))
    return found


def whose(pids: Iterable[int], keepers: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Of each process its user id on the host, -1 where it has ended, and what ``keepers`` has of the keeper above it, 0 where there is
    none. Takes as long as there are processes above them, however many share those."""
    known: dict[int, int] = {}
    return {pid: (_uid(pid), _above(pid, keepers, known)) for pid in pids}


def _above(pid: int, keepers: Mapping[int, int], known: dict[int, int]) -> int:
    way: list[int] = []
    while pid not in known and pid not in keepers and pid > 1:
        known[pid] = 0  # also a way that comes back to itself, as numbers are given out again, ends
        way.append(pid)
        pid = _parent(pid)
    found = keepers[pid] if pid in keepers else known.get(pid, 0)
    known.update(dict.fromkeys(way, found))
    return found


def _parent(pid: int) -> int:
    """proc_pid_stat(5); 0 for one that has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _uid(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def _seen(process: psutil.Process) -> Seen | None:
    """None for one of ours."""
    with process.oneshot():
        name, numbers = process.name(), _numbers(process.pid)
        if (name in _OURS and len(numbers) == 1) or numbers[-1] == 1:
            return None
        times = process.cpu_times()
        command = " ".join(process.cmdline()) or f"[{name}]"
        memory = process.memory_info().rss
        return Seen(
            process.pid, numbers[-1], process.uids().effective, process.create_time(), times.user + times.system, memory, command
        )  # fmt: skip


def _numbers(pid: int) -> list[int]:
    """Its number in each PID namespace, the host's first. proc(5), NSpid"""
    with open(f"/proc/{pid}/status", errors="surrogateescape") as status:
        line = next(line for line in status if line.startswith("NSpid:"))
    return [int(number) for number in line.split()[1:]]


def usage(box: Box) -> Usage:
    """What it takes now: the kernel's accounts where there is a cgroup, the rest added up over its processes. ``SandboxGone``"""
    if not box.alive:
        raise box.not_running()
    known = box.usage() or Usage()
    if None not in (known.cpu_seconds, known.memory_current, known.pids_current):
        return known
    alive = processes(box)
    return replace(
        known,
        cpu_seconds=sum(one.cpu_seconds for one in alive) if known.cpu_seconds is None else known.cpu_seconds,
        memory_current=sum(one.memory for one in alive) if known.memory_current is None else known.memory_current,
        pids_current=len(alive) if known.pids_current is None else known.pids_current,
    )
