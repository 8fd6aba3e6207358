"""How much of the host's disk the jobs that run have written: ``disk.per_job`` and ``disk.per_user``, and the end of who passes them.

It is measured: by du(1), apart from the daemon and behind all others, of the changes to their images and of their logs. What a job
writes into directories of the host is not its own. Of a file that is deleted and still open nothing is
seen. Measuring takes a twentieth of the time at most for each user; between two measures a job can pass its limit by what the disk takes
in that time.
"""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from dockless.base.typing import TYPE_CHECKING
from dockless.base.units import format_size
from dockless.sched.engine import stopping
from dockless.sched.engine.faults import describe, say
from dockless.sched.jobs import State

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob

EVERY = 10.0
"""Seconds between two measures of a user's jobs at least."""
SHARE = 20
"""How many times as long as it took the next measure is waited for."""
LONGEST = 1800.0
"""Seconds after which a measure is given up: of what it has not come to nothing is known."""
_DU = ("nice", "-n", "19", "du", "-s", "-x", "-0", "--block-size=1", "--files0-from=-")
_ENVIRONMENT = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"}


async def watch(engine: Engine) -> None:
    """Until cancelled. Each user's jobs are measured by themselves, so that the many files of one delay the measures of nobody else's."""
    due: dict[int, float] = {}
    measuring: dict[int, asyncio.Task[None]] = {}

    async def measure(uid: int, jobs: dict[Path, LiveJob]) -> None:
        began = time.monotonic()
        try:
            await look(engine, jobs)
        except Exception as error:
            say(f"the disk that jobs of uid {uid} use: {describe(error)}; going on")
        finally:
            now = time.monotonic()
            due[uid] = now + max(EVERY, SHARE * (now - began))
            del measuring[uid]

    try:
        while True:
            await asyncio.sleep(EVERY)
            of_user = running(engine) if engine.config.disk_per_job or engine.config.disk_per_user else {}
            due = {uid: at for uid, at in due.items() if at > time.monotonic()}
            for uid in of_user.keys() - due.keys() - measuring.keys():
                measuring[uid] = asyncio.create_task(measure(uid, of_user[uid]))
    finally:
        for task in measuring.values():
            task.cancel()


def running(engine: Engine) -> dict[int, dict[Path, LiveJob]]:
    """The jobs of each user that run, by what they write to."""
    found: dict[int, dict[Path, LiveJob]] = defaultdict(dict)
    for entry in engine.active.values():
        if entry.handle is not None and entry.job.state is State.RUNNING and not entry.cancelled:
            found[entry.job.uid][entry.handle.directory] = entry
    return found


async def look(engine: Engine, running: Mapping[Path, LiveJob]) -> None:
    """Once, at these jobs of one user."""
    sizes = await measured([*running])
    jobs = [(sizes.get(directory, 0), entry) for directory, entry in running.items()]
    per_job, per_user = engine.config.disk_per_job, engine.config.disk_per_user
    total = 0
    for size, entry in sorted(jobs, key=lambda one: (one[0], one[1].job.id)):
        total += size
        if per_job and size > per_job:
            await _end(engine, entry, f"it had {format_size(size)} on disk, more than the {format_size(per_job)} of a job")
        elif per_user and total > per_user:
            what = f"its user's jobs had {format_size(sum(size for size, _ in jobs))} on disk, more than the {format_size(per_user)}"
            await _end(engine, entry, f"{what} of a user, and it is one of the largest")


async def measured(directories: Sequence[Path]) -> dict[Path, int]:
    """Bytes that they take on their disk, by directory; those that are gone are left out. Links are not followed, other file systems not
    entered. ``OSError``"""
    du = await asyncio.create_subprocess_exec(
        *_DU, env=_ENVIRONMENT, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )  # what it says of files that go while it looks is as much as a job likes
    said = bytearray()

    async def listen() -> None:
        assert du.stdin is not None and du.stdout is not None
        du.stdin.write(b"\0".join(map(os.fsencode, directories)))
        du.stdin.close()
        while part := await du.stdout.read(1 << 16):
            said.extend(part)
        if await du.wait() in (126, 127):
            raise OSError(errno.ENOENT, "there is no du(1)")

    try:
        await asyncio.wait_for(listen(), LONGEST)
    except TimeoutError:
        say(f"the disk that jobs use: some have more files than can be measured in {LONGEST:g} seconds; going on")
    finally:
        if du.returncode is None:
            du.kill()
            await du.wait()
    lines = [line.partition(b"\t") for line in bytes(said).split(b"\0")[:-1]]
    return {Path(os.fsdecode(name)): int(size) for size, _, name in lines}


async def _end(engine: Engine, entry: LiveJob, why: str) -> None:
    """At once: what fills the disk is in everybody's way."""
    if engine.entries.get(entry.job.id) is entry and entry.job.state is State.RUNNING and not entry.cancelled:
        await stopping.end(engine, entry, f"ended by the daemon: {why}", 0.0)
