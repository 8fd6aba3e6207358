"""Whole processes that bring an image to a fresh place: how to run one, time it, and see how much memory all its processes take.

A place is never used twice and nothing is deleted before everything has been measured: ext4 creates files slowly right after many
deletions. Before each run all written data is flushed, so that nobody pays for whoever came before. Warm means that the image's blobs
are in the page cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.contender import ContenderFailed

PATIENCE = 600
"""Seconds after which a run counts as failed."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a contender does in a fresh directory. ``env``: added to ours; ``others``: processes that work for it, whose memory counts."""

    argv: Sequence[str | Path]
    env: Mapping[str, str] = field(default_factory=dict)
    others: tuple[int, ...] = ()


@dataclass(slots=True)
class Used:
    """Of one run: seconds by the clock, seconds of processor of the process and its children, bytes of memory of all at the worst
    moment."""

    seconds: float = 0.0
    processor: float = 0.0
    memory: int = 0


class Whole:
    """``job``: from a fresh directory to what is to run there; a context manager, for what has to be ready before and to end after it.
    To ``race`` this is a ``Contender``."""

    def __init__(self, name: str, place: Path, job: Callable[[Path], AbstractContextManager[Job]], note: str = "") -> None:
        self.name = name
        self.note = note
        self.uses: list[Used] = []
        self._place = place
        self._job = job

    def run(self, starts: int = 1) -> list[float]:
        return [self.once().seconds for _ in range(starts)]

    def once(self, *, watched: bool = False) -> Used:
        """One run in a fresh directory. ``watched``: look at the memory meanwhile, which takes a little time."""
        fresh = Path(tempfile.mkdtemp(prefix="run-", dir=self._place))
        with self._job(fresh) as job, tempfile.TemporaryFile() as said:
            os.sync()
            used = _timed(job, said.fileno(), watched)
            if used is None:
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines()
                raise ContenderFailed(": ".join(line[:200] for line in lines[-3:]) or "it failed")
        self.uses.append(used)
        return used

    def close(self) -> None:
        pass


def plain(
    argv: Callable[[Path], Sequence[str | Path]], env: Mapping[str, str] | None = None
) -> Callable[[Path], AbstractContextManager[Job]]:
    """A job that needs nothing around it."""
    return lambda fresh: nullcontext(Job(argv(fresh), env or {}))


def _timed(job: Job, said: int, watched: bool) -> Used | None:
    """None where it fails."""
    used = Used()
    began = time.perf_counter()
    process = subprocess.Popen(
        [os.fspath(word) for word in job.argv], stdin=subprocess.DEVNULL, stdout=said, stderr=said, env={**os.environ, **job.env}
    )
    before = {pid: _processor(pid) for pid in job.others}
    if watched:
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            used.memory = max(used.memory, memory_of([process.pid, *job.others]))
            time.sleep(0.004)
    _, status, usage = os.wait4(process.pid, 0)
    used.seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    used.processor = usage.ru_utime + usage.ru_stime + sum(_processor(pid) - before[pid] for pid in job.others)
    return used if process.returncode == 0 else None


def memory_of(roots: Sequence[int]) -> int:
    """Bytes resident in these processes and all their descendants, a page that two of them share counted twice."""
    pids, total = list(roots), 0
    while pids:
        pid = pids.pop()
        try:
            with open(f"/proc/{pid}/statm") as line:
                total += int(line.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as line:
                    pids += [int(word) for word in line.read().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def _processor(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as line:
        words = line.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def place(parent: Path) -> Iterator[Path]:
    """A directory for all runs, on a real disk; it goes at the end with everything in it."""
    directory = parent / f"dockless-bench-{os.urandom(4).hex()}"  # podman makes an image's name of it: no '_' as mkdtemp has
    directory.mkdir(mode=0o755)
    try:
        yield directory
    finally:
        _unmount_below(directory)
        shutil.rmtree(directory, ignore_errors=True)


def _unmount_below(directory: Path) -> None:
    """Some peers leave their own directory mounted on itself."""
    with open("/proc/self/mounts") as mounts:
        found = [line.split()[1] for line in mounts if line.split()[1].startswith(f"{directory}/")]
    for target in reversed(found):
        subprocess.run(["umount", "--lazy", target], stderr=subprocess.DEVNULL)


def warm(paths: Sequence[Path]) -> None:
    """Read them once."""
    for path in paths:
        with open(path, "rb", buffering=0) as stream:
            while stream.read(1 << 20):
                pass


def free(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize
