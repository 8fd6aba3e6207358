"""Jobs that hold GPUs and do not use them: a notice after ``gpus.idle_after``, the end ``gpus.idle_notice`` later.

A GPU is used while something computes on it; memory that is merely held is no use of it. What does not tell how busy it is (a MIG slice)
is used while a process is on it. One look every few seconds sees a sample of up to a second, so a job that computes now and then is seen
sooner or later, and a single look is enough. A daemon that comes back counts anew.
"""

from __future__ import annotations

import asyncio
import time

from dockless.base.typing import TYPE_CHECKING
from dockless.base.units import format_duration
from dockless.sched import clock
from dockless.sched.engine import stopping
from dockless.sched.engine.faults import describe, say
from dockless.sched.engine.gpus import sharing
from dockless.sched.jobs import State
from dockless.sched.store import queue

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob
    from dockless.sched.engine.gpus.figures import Figures

EVERY = 5.0
"""Seconds between two looks."""


async def watch(engine: Engine) -> None:
    """Until cancelled."""
    while True:
        await asyncio.sleep(EVERY)
        if engine.config.idle_after:
            try:
                await look(engine)
            except Exception as error:
                say(f"idle GPUs: {describe(error)}; going on")


async def look(engine: Engine) -> None:
    """Once, at all jobs that run."""
    await engine.watch.look()
    now = clock.ticks()
    for entry in list(engine.active.values()):
        if entry.job.state is not State.RUNNING or not entry.devices or entry.cancelled or entry is not entry.first:
            continue
        alone = not sharing.share_beside_others(engine, entry.job)
        if any(used(engine.watch.figures.get(uuid), entry.job.id, alone) for uuid in entry.devices):
            if entry.warned is not None:
                entry.warned = None
                entry.show(reason="")
            entry.idle_since = None
            continue
        if entry.idle_since is None:
            entry.idle_since = now
        idle = now - entry.idle_since
        if entry.warned is None:
            if idle >= engine.config.idle_after:
                entry.warned = now
                await _warn(engine, entry, idle)
        elif now - entry.warned >= engine.config.idle_notice:
            await _end(engine, entry, idle)


def used(figures: Figures | None, job: int, alone: bool) -> bool:
    """Whether ``job`` computes on a GPU. What is not known is taken for used. ``alone``: as in ``Figures.busy``."""
    if figures is None:
        return True
    busy = figures.busy(job, alone)
    return bool(figures.programs) if busy is None else busy > 0


async def _warn(engine: Engine, entry: LiveJob, idle: float) -> None:
    job, left = entry.job, format_duration(engine.config.idle_notice)
    text = f"{_gpus(entry)} unused for {_span(idle)}: it is ended in {left} unless it uses {'it' if job.gpu_count == 1 else 'them'}"
    entry.show(reason=text)
    engine.tell(entry, "idle")
    await engine.write(lambda db: queue.event(db, time.time(), job.id, job.attempt, "idle", text))


async def _end(engine: Engine, entry: LiveJob, idle: float) -> None:
    await stopping.end(engine, entry, f"ended by the daemon: {_gpus(entry)} unused for {_span(idle)}", None)


def _gpus(entry: LiveJob) -> str:
    count = len(entry.devices)
    return f"its {count} GPUs were" if count > 1 else "its GPU was"


def _span(seconds: float) -> str:
    return format_duration(float(round(seconds)))
