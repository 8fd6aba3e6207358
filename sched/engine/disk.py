"""How much of the host's disk the jobs that run have written: ``disk.per_job`` and ``disk.per_user``, and the end of who passes them.

It is measured: by du(1), apart from the daemon and behind all others, of the changes to their images and of their logs. What a job
writes into directories of the host is not its own. Measuring takes a twentieth of the time at most; between two measures a job can pass
its limit by what the disk takes in that time.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Sequence
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
"""Seconds between two measures at least."""
SHARE = 20
"""How many times as long as it took the next measure is waited for."""
LONGEST = 1800.0
"""Seconds after which a measure is given up."""


async def watch(engine: Engine) -> None:
    """Until cancelled."""
    took = 0.0
    while True:
        await asyncio.sleep(max(EVERY, SHARE * took))
        began = time.monotonic()
        if engine.config.disk_per_job or engine.config.disk_per_user:
            try:
                await look(engine)
            except Exception as error:
                say(f"the disk that jobs use: {describe(error)}; going on")
        took = time.monotonic() - began


async def look(engine: Engine) -> None:
    """Once, at all jobs that run."""
    running = {
        entry.handle.directory: entry
        for entry in engine.active.values()
        if entry.handle is not None and entry.job.state is State.RUNNING and not entry.cancelled
    }
    if not running:
        return
    sizes = await engine.in_thread(engine.removing, measured, [*running])
    of_user: dict[int, list[tuple[int, LiveJob]]] = defaultdict(list)
    for directory, entry in running.items():
        of_user[entry.job.uid].append((sizes.get(directory, 0), entry))
    per_job, per_user = engine.config.disk_per_job, engine.config.disk_per_user
    for jobs in of_user.values():
        left = 0
        for size, entry in sorted(jobs, key=lambda one: (one[0], one[1].job.id)):
            left += size
            if per_job and size > per_job:
                await _end(engine, entry, f"it had {format_size(size)} on disk, more than the {format_size(per_job)} of a job")
            elif per_user and left > per_user:
                what = f"its user's jobs had {format_size(sum(size for size, _ in jobs))} on disk, more than the {format_size(per_user)}"
                await _end(engine, entry, f"{what} of a user, and it is one of the largest")
            else:
                continue
            left -= size


def measured(directories: Sequence[Path]) -> dict[Path, int]:
    """Bytes that they take on their disk, by directory; those that are gone are left out. Links are not followed, other file systems not
    entered. ``OSError``, ``subprocess.TimeoutExpired``"""
    names = b"\0".join(map(os.fsencode, directories))
    command = ["nice", "-n", "19", "du", "-s", "-x", "-0", "--block-size=1", "--files0-from=-"]
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"}
    done = subprocess.run(command, input=names, capture_output=True, env=environment, cwd="/", timeout=LONGEST, check=False)
    lines = [line.partition(b"\t") for line in done.stdout.split(b"\0") if line]
    if done.returncode and not lines:
        raise OSError(done.returncode, done.stderr.decode(errors="replace")[:200])
    return {Path(os.fsdecode(name)): int(size) for size, _, name in lines}


async def _end(engine: Engine, entry: LiveJob, why: str) -> None:
    """At once: what fills the disk is in everybody's way."""
    if engine.entries.get(entry.job.id) is entry and entry.job.state is State.RUNNING and not entry.cancelled:
        await stopping.end(engine, entry, f"ended by the daemon: {why}", 0.0)
