"""What can be seen of a sandbox that runs: its processes, and what they take at this moment.

Its processes are the descendants of its keeper, on any host; what the kernel's accounts do not count there, memory without its controller
for one, is added up over them.
"""

from __future__ import annotations

import contextlib
import os

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
