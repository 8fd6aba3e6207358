"""How much of the host's disk the jobs that run have written: ``disk.per_job`` and ``disk.per_user``, and the end of who passes them.

Where the disk has project quotas the kernel refuses what passes a job's own limit (``sandbox.run.project``) and knows what each job takes;
only who passes the limit of a user is ended. Elsewhere it is measured: by du(1), apart from the daemon and behind all others, of the
changes to their images and of their logs, and with deleted files that a process still has open or mapped (``deleted_files``). Each of these
two takes a twentieth of the time at most for each user, and neither waits for the other: who makes one of them long is ended by what the
other finds. Between two measures a job can pass its limit by what the disk takes in that time.

What a job writes into directories of the host is not its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from dockless.base import paths
from dockless.base.dataclass import replace
from dockless.base.typing import TYPE_CHECKING
from dockless.base.units import format_size
from dockless.errors import DocklessError
from dockless.sandbox.run import project
from dockless.sched.engine import stopping
from dockless.sched.engine.faults import describe, say
from dockless.sched.jobs import State

if TYPE_CHECKING:
    from dockless.sandbox.spec import Spec
    from dockless.sched.engine.attempts import Handle
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob

EVERY = 10.0
"""Seconds between two measures of a user's jobs at least."""
SHARE = 20
"""How many times as long as it took the next measure is waited for."""
LONGEST = 1800.0
"""Seconds after which a measure is given up: of what it has not come to nothing is known."""
_NICE = ("nice", "-n", "19")
_DU = (*_NICE, "du", "-s", "-x", "-0", "--block-size=1", "--files0-from=-")
_DELETED = (*_NICE, sys.executable, "-IS", os.path.join(os.path.dirname(__file__), "deleted_files.py"))
Look = Callable[["Engine", Collection["Handle"]], Awaitable[dict[Path, int]]]
Known = dict[tuple[Path, Look], int]
"""Bytes, by the directory of a job and the look that found them."""
_ENVIRONMENT = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"}


async def watch(engine: Engine) -> None:
    """Until cancelled. Each user's jobs are measured by themselves, so that the many files of one delay the measures of nobody else's."""
    due: dict[tuple[int, Look], float] = {}
    measuring: dict[tuple[int, Look], asyncio.Task[None]] = {}
    known: Known = {}

    async def measure(uid: int, look: Look, jobs: dict[Path, LiveJob]) -> None:
        began = time.monotonic()
        try:
            await measure_once(engine, jobs, look, known)
        except Exception as error:
            say(f"the disk that jobs of uid {uid} use: {describe(error)}; going on")
        finally:
            now = time.monotonic()
            due[uid, look] = now + max(EVERY, SHARE * (now - began))
            del measuring[uid, look]

    try:
        while True:
            await asyncio.sleep(EVERY)
            of_user = running(engine)
            due = {what: at for what, at in due.items() if at > time.monotonic()}
            there = {directory for jobs in of_user.values() for directory in jobs}
            for what in [what for what in known if what[0] not in there]:
                del known[what]
            for uid, look in {(uid, look) for uid in of_user for look in LOOKS} - due.keys() - measuring.keys():
                measuring[uid, look] = asyncio.create_task(measure(uid, look, of_user[uid]))
    finally:
        for task in measuring.values():
            task.cancel()


def smallest(*limits: int) -> int:
    """Of some limits, of which 0 is none."""
    return min(filter(None, limits), default=0)


def bounded(engine: Engine, spec: Spec) -> Spec:
    """``spec`` with the limit that the kernel is to hold; with none where it cannot."""
    limit = smallest(spec.disk, engine.config.disk_per_job, engine.config.disk_per_user)
    held = limit if limit and not project.unenforced(spec, paths.state()) else 0
    return spec if spec.disk == held else replace(spec, disk=held)


def limits(engine: Engine) -> str:
    """What jobs may write to their disk, and who holds that, in words; empty where there is no limit."""
    per_job, per_user = engine.config.disk_per_job, engine.config.disk_per_user
    said = [f"{format_size(size)} {of}" for size, of in ((per_job, "a job"), (per_user, "a user")) if size]
    if not said:
        return ""
    why = project.lacking(paths.state())
    return f"{', '.join(said)}: " + (f"measured ({why})" if why else "enforced by the kernel, with project quotas")


def running(engine: Engine) -> dict[int, dict[Path, LiveJob]]:
    """The jobs of each user that run and have a limit, by what they write to."""
    found: dict[int, dict[Path, LiveJob]] = defaultdict(dict)
    all_of_them = engine.config.disk_per_job or engine.config.disk_per_user
    for entry in engine.active.values():
        if not all_of_them and not entry.disk:
            continue
        if entry.handle is not None and entry.job.state is State.RUNNING and not entry.cancelled:
            found[entry.job.uid][entry.handle.directory] = entry
    return found


async def named(_: Engine, handles: Collection[Handle]) -> dict[Path, int]:
    """Bytes of the files of these, by directory."""
    return await measured([handle.directory for handle in handles])


async def unnamed(engine: Engine, handles: Collection[Handle]) -> dict[Path, int]:
    """Bytes of the files that they have deleted and still use."""
    return await deleted(await engine.looked_at(groups_of, handles))


LOOKS: tuple[Look, ...] = (named, unnamed)


async def measure_once(engine: Engine, running: Mapping[Path, LiveJob], look: Look, known: Known) -> None:
    """One look at these jobs of one user, and the end of those that have too much by what is ``known`` then."""
    handles = [entry.handle for directory, entry in running.items() if entry.handle is not None and counted(directory) is None]
    if handles:
        known |= {(directory, look): size for directory, size in (await look(engine, handles)).items()}
    jobs = []
    for directory, entry in running.items():
        if entry.job.state is State.RUNNING and not entry.cancelled and not entry.verdict:
            by_kernel = counted(directory)
            size = sum(known.get((directory, one), 0) for one in LOOKS) if by_kernel is None else by_kernel
            jobs.append((size, by_kernel is not None, entry))
    per_user = engine.config.disk_per_user
    total = 0
    for size, is_held, entry in sorted(jobs, key=lambda one: (one[0], one[2].job.id)):
        total += size
        per_job = smallest(engine.config.disk_per_job, entry.disk)
        if per_job and size > per_job and not is_held:
            await _end(engine, entry, f"it had {format_size(size)} on disk, more than the {format_size(per_job)} of a job")
        elif per_user and total > per_user:
            what = f"its user's jobs had {format_size(sum(size for size, *_ in jobs))} on disk, more than the {format_size(per_user)}"
            await _end(engine, entry, f"{what} of a user, and it is one of the largest")


def counted(directory: Path) -> int | None:
    """Bytes that a job takes on its disk, as the kernel counts them, with its log; None where it does not."""
    try:
        account = project.account(directory)
    except OSError:
        return None
    if account is None:
        return None
    size = account.size
    for name in ("log", "log.1"):
        with contextlib.suppress(OSError):
            size += 512 * os.lstat(directory / name).st_blocks
    return size


async def measured(directories: Sequence[Path]) -> dict[Path, int]:
    """Bytes that they take on their disk, by directory; those that are gone are left out. Links are not followed, other file systems not
    entered. ``OSError``"""
    lines = [line.partition(b"\t") for line in (await _told(_DU, map(os.fsencode, directories))).split(b"\0")[:-1]]
    return {Path(os.fsdecode(name)): int(size) for size, _, name in lines}


async def deleted(groups: Mapping[Path, bytes]) -> dict[Path, int]:
    """Bytes of the files that the processes of these cgroups have deleted and still have open or mapped, by directory. ``OSError``"""
    said = await _told(_DELETED, groups.values()) if groups else b""
    return dict(zip(groups, map(int, said.splitlines()), strict=False))


def groups_of(handles: Iterable[Handle]) -> dict[Path, bytes]:
    """The cgroups of those that have one, by their directories."""
    groups = {}
    for handle in handles:
        with contextlib.suppress(DocklessError):  # it is just ending
            if (group := handle.cgroup()) is not None:
                with contextlib.closing(group):
                    groups[handle.directory] = os.fsencode(group.path)
    return groups


async def _told(program: Sequence[str], about: Iterable[bytes]) -> bytes:
    """What a program says that gets these on its standard input. ``OSError``"""
    measuring = await asyncio.create_subprocess_exec(
        *program, env=_ENVIRONMENT, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )  # what it says of files that go while it looks is as much as a job likes
    said = bytearray()

    async def listen() -> None:
        assert measuring.stdin is not None and measuring.stdout is not None
        measuring.stdin.write(b"".join(one + b"\0" for one in about))
        measuring.stdin.close()
        while part := await measuring.stdout.read(1 << 16):
            said.extend(part)
        if await measuring.wait() in (126, 127):
            raise OSError(errno.ENOENT, f"there is no {program[3]}")

    try:
        await asyncio.wait_for(listen(), LONGEST)
    except TimeoutError:
        say(f"the disk that jobs use: some have more files than can be measured in {LONGEST:g} seconds; going on")
    finally:
        if measuring.returncode is None:
            measuring.kill()
            await measuring.wait()
    return bytes(said)


async def _end(engine: Engine, entry: LiveJob, why: str) -> None:
    """At once: what fills the disk is in everybody's way."""
    if engine.entries.get(entry.job.id) is entry and entry.job.state is State.RUNNING and not entry.cancelled:
        await stopping.end(engine, entry, f"ended by the daemon: {why}", 0.0)
