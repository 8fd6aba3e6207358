"""What the driver reports of the GPUs, by jobs: an Xid error is written down for those that have the GPU when it comes.

Which program caused it NVML does not tell, so jobs that share a GPU all get it. An attempt keeps the first few, each once, however many
come.
"""

from __future__ import annotations

import time
from functools import partial

from dockless.base.typing import TYPE_CHECKING
from dockless.errors import SchedError
from dockless.sched.engine.faults import describe, say
from dockless.sched.store import queue

if TYPE_CHECKING:
    from dockless.sandbox.gpus.watch import Report
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob

MOST = 5
"""Errors that are written down for an attempt."""


def reported(engine: Engine, report: Report) -> None:
    """The driver has reported that: a GPU that it leaves unfit for use goes out of service."""
    if report.unfit:
        engine.gpus.failed(report.uuid, report.why)
    for unit in engine.gpus.met(report.uuid, report.gi):
        if report.xid:
            engine.xids[unit.uuid, report.xid] += 1
        for entry in engine.active.values():
            if unit.uuid in entry.job.devices:
                _note(engine, entry, f"GPU {unit.index}: {report.why}")


def _note(engine: Engine, entry: LiveJob, text: str) -> None:
    attempt = entry.job.attempt
    own = [number for number, _ in entry.gpu_errors if number == attempt]
    if len(own) < MOST and (attempt, text) not in entry.gpu_errors:
        entry.gpu_errors += ((attempt, text),)
        engine.spawn(_write(engine, entry.job.id, attempt, text))


async def _write(engine: Engine, job: int, attempt: int, text: str) -> None:
    try:
        await engine.write(partial(queue.note_gpu_error, job=job, attempt=attempt, now=time.time(), text=text, most=MOST))
    except SchedError as error:
        say(f"what GPUs have reported of job {job} is not written down: {describe(error)}")
