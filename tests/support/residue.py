"""What a test may not leave behind: mounts, cgroups, processes, descriptors, directories, a changed host process.

``snapshot()`` before, ``leftovers(before)`` after. Ends take a moment (a cgroup empties, a keeper writes its last line), so the second look
waits for the condition "nothing is left" with a deadline and reports only what is still there at the end of it. What another run on the
same machine has there is not looked at: apart.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support import apart
from support.requires import cgroup2_mount

from dockless.base import paths
from dockless.errors import BadInput
from dockless.images.layers import erofs

DEADLINE = 3.0  # seconds that ends may take
EMPTY_DEADLINE = 30.0  # for groups in which nobody lives: who made one cannot be known, and another run may be about to use or remove it
PR_GET_DUMPABLE = 3

# What a process keeps on purpose, once each: the sealed memfds of launcher and agent, the user namespaces of its id maps, loaded device
# filters. The mounts of layers are let go.
KEPT = re.compile(r"/memfd:dockless-(?:launcher|agent)|user:\[|anon_inode:bpf-prog")

# pytest's directory of this run; set by conftest.py.
OWN_DIRECTORY: Path | None = None

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class State:
    """Names alone, so that a look is cheap; whose they are is asked of those that a later look finds besides."""

    mounts: frozenset[str]
    cgroups: frozenset[str]
    processes: frozenset[str]
    dead: frozenset[str]
    descriptors: frozenset[str]
    directories: frozenset[str]
    host: frozenset[str]


def _mounts() -> frozenset[str]:
    rows = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return frozenset(f"mount {row[4]} ({row[row.index('-') + 1]})" for row in rows)


def _new_mounts(names: frozenset[str]) -> Iterator[str]:
    return (name for name in names if not _in_another_runs_directory(Path(name.split()[1])))


def _in_another_runs_directory(place: Path) -> bool:
    """pytest numbers its directories, and those of all runs are below the system's."""
    if place.is_relative_to(tempfile.gettempdir()) or not place.is_relative_to(apart.everybodys_temporary_directory()):
        return False
    return OWN_DIRECTORY is None or not place.is_relative_to(OWN_DIRECTORY)


def _cgroups() -> frozenset[str]:
    """Every group below a directory called ``dockless``; the directory itself may stay."""
    top = cgroup2_mount()
    return (
        frozenset()
        if top is None
        else frozenset(group for group in _groups(str(top)) if "/dockless" in os.path.dirname(group)[len(str(top)) :])
    )


def _groups(top: str) -> Iterator[str]:
    try:
        if os.stat(top).st_nlink == 2:  # none below: dozens of files that need not be listed
            return
        below = [entry.path for entry in os.scandir(top) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for group in below:
        yield group
        yield from _groups(group)


def _new_cgroups(names: frozenset[str]) -> Iterator[str]:
    """Those of this user's run."""
    return (f"cgroup {name}" for name in names if not _of_another_user(Path(name)) and not _another_runs(Path(name)))


def _another_runs(group: Path) -> bool:
    pids = [pid for directory, _, _ in os.walk(group) for pid in _text(Path(directory, "cgroup.procs")).split()]
    return all(map(apart.is_another_runs, pids)) if pids else any(map(_named_by_another_home, group.parts))


def _named_by_another_home(name: str) -> bool:
    """A detached sandbox's group stays, empty, until it is removed, with those below it; its name says under which state directory."""
    found = re.fullmatch(r".+\.([0-9a-f]{8})", name)
    return found is not None and int(found[1], 16) != zlib.crc32(os.fsencode(paths.state() / "sandboxes"))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _stat(pid: str) -> tuple[str, str, int] | None:
    """(name, state, parent) of a process, None when it is gone. proc_pid_stat(5)"""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # every process, twice for every test: no more than needed
            text = file.read(1024).decode(errors="surrogateescape")
    except OSError:
        return None
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    return name, rest[0], int(rest[1])


def _processes() -> frozenset[str]:
    return frozenset(filter(str.isdigit, os.listdir("/proc")))


def _new_processes(pids: frozenset[str]) -> Iterator[str]:
    """Children of this process, zombies among them, and everything called dockless… that this run started."""
    for pid in pids:
        stat = _stat(pid)
        if stat is None:
            continue
        name, state, parent = stat
        if parent == os.getpid() or (name.startswith("dockless") and parent == 1 and not apart.is_another_runs(pid)):
            yield f"process {pid} {name}{' (zombie)' if state == 'Z' else ''}"


def _dead() -> frozenset[str]:
    """Zombies of this process. proc(5), /proc/PID/task/TID/children"""
    children = [pid for task in os.listdir("/proc/self/task") for pid in _text(Path("/proc/self/task", task, "children")).split()]
    stats = {pid: _stat(pid) for pid in children}
    return frozenset(f"process {pid} {stat[0]} (zombie)" for pid, stat in stats.items() if stat and stat[1] == "Z")


def _descriptors() -> frozenset[str]:
    with contextlib.suppress(BadInput):  # DOCKLESS_HOME is the test's, and cannot be used
        erofs.release(everything=True)
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # the descriptor of the listing itself
        if not KEPT.match(target):
            found.add(f"fd {fd} {target}")
    return frozenset(found)


def _directories() -> frozenset[str]:
    """The places a test must not touch (its DOCKLESS_HOME is elsewhere) and forgotten temporary directories."""
    places = [Path("/run/dockless"), Path("/var/lib/dockless"), Path("/etc/dockless"), *Path(tempfile.gettempdir()).glob("dockless*")]
    return frozenset(f"path {place}" for place in places if place.exists() and not _of_another_user(place))


def _of_another_user(place: Path) -> bool:
    try:
        return place.stat().st_uid != os.geteuid()
    except OSError:
        return True


def _mode(directory: Path) -> str:
    return f"{stat.S_IMODE(directory.stat().st_mode):o}"


def _host() -> frozenset[str]:
    mask = os.umask(0)
    os.umask(mask)
    return frozenset(
        {
            f"hostname {socket.gethostname()}",
            f"cwd {os.getcwd()}",
            f"umask {mask:o}",
            f"dumpable {_libc.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)}",
            f"ids {os.getresuid()} {os.getresgid()}",
            f"blocked signals {sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))}",
            f"nofile {resource.getrlimit(resource.RLIMIT_NOFILE)}",
            f"oom_score_adj {Path('/proc/self/oom_score_adj').read_text().strip()}",
            f"mode of pytest's directory {_mode(OWN_DIRECTORY)} in {_mode(OWN_DIRECTORY.parent)}" if OWN_DIRECTORY else "",
            *(
                f"{name} namespace {os.readlink(f'/proc/self/ns/{name}')}"
                for name in ("mnt", "user", "net", "uts", "cgroup", "pid_for_children")
            ),
        }
    )


def snapshot() -> State:
    return State(_mounts(), _cgroups(), _processes(), _dead(), _descriptors(), _directories(), _host())


def _difference(before: State, after: State) -> set[str]:
    return {
        *_new_mounts(after.mounts - before.mounts),
        *_new_cgroups(after.cgroups - before.cgroups),
        *_new_processes(after.processes - before.processes),
        *(after.dead - before.dead),
        *(after.descriptors - before.descriptors),
        *(after.directories - before.directories),
        *(after.host - before.host),
    }


def leftovers(before: State, deadline: float = DEADLINE) -> list[str]:
    """What is there now that was not there before, once everything that was ending had its time."""
    left = _difference(before, snapshot())
    start = time.monotonic()
    while left and time.monotonic() < start + (EMPTY_DEADLINE if all(one.startswith("cgroup ") for one in left) else deadline):
        gc.collect()  # a descriptor held by a dead object is closed by the collector
        time.sleep(0.02)
        left &= _difference(before, snapshot())
    return sorted(left)


def open_descriptors(but: frozenset[str] = frozenset()) -> frozenset[str]:
    """Descriptors of this process that are not ``but`` those, without what dead objects hold."""
    found = _descriptors() - but
    if found and but:
        gc.collect()
        found &= _descriptors()
    return found


def unmount_below(place: Path) -> None:
    """Detach mounts that a failed test left below ``place``: whoever removes the directory later must not remove what is mounted there."""
    below = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {place}" in line]
    for target in reversed(below):
        if Path(target).is_relative_to(place):
            _libc.umount2(os.fsencode(target), 2)  # MNT_DETACH


def remove_tree(place: Path) -> None:
    """Remove a directory that may hold files of a user's subordinate ids, which only her own user namespace can remove."""
    shutil.rmtree(place, ignore_errors=True)
    if place.exists() and os.geteuid() != 0:
        subprocess.run(["unshare", "--user", "--map-root-user", "--map-auto", "rm", "-rf", str(place)], capture_output=True)
