"""What the GPUs do and for which jobs: read through NVML by threads (``asking``), at most once a second however many ask.

A process on a GPU is a job's if the job's keeper is above it: all that runs in a sandbox descends from its keeper. NVML knows processes by
the host's numbers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial

from dockless.base.dataclass import dataclass
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import DocklessError

if TYPE_CHECKING:
    from dockless.sandbox.gpus.gpu import Gpu
    from dockless.sandbox.gpus.watch import Reading
    from dockless.sched.engine.attempts import Handle
    from dockless.sched.engine.engine import Engine

FRESH = 1.0
"""Seconds for which what was read is good enough."""


@dataclass(frozen=True, slots=True)
class Program:
    """A process that uses a GPU. ``pid``: as the host numbers it; ``uid``: whose it is there, -1 where it has ended; ``job`` 0: of none
    that runs here. ``memory``: bytes of the GPU; ``busy``: the share of the last second in which it computed there, 0 to 1; None where that
    is not told."""

    pid: int
    uid: int
    job: int
    memory: int | None
    busy: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one GPU."""

    reading: Reading
    programs: tuple[Program, ...]

    def busy(self, job: int, alone: bool) -> float | None:
        """The share of time in which ``job`` computes on this GPU, 0 to 1; None where the driver does not say. ``alone``: nobody else has
        the GPU."""
        if alone:
            return self.reading.busy
        told = [program.busy for program in self.programs if program.job == job]
        found = None if None in told else min(1.0, sum(busy or 0.0 for busy in told))
        if not found and any(program.busy for program in self.programs if not program.job):
            return None  # a server of MPS computes for its clients
        return found


class Watch:
    """``figures``: what was read last, by UUID, of those whose driver answers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.figures: Mapping[str, Figures] = {}
        self._read = -FRESH
        self._reading: asyncio.Future[None] | None = None

    async def look(self) -> None:
        """Read again what is older than a second."""
        if not self.engine.gpus.gpus or time.monotonic() - self._read < FRESH:
            return
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._take())
        await asyncio.shield(self._reading)  # who asked may go away, and others wait for it, too

    async def _take(self) -> None:
        gpus, active = self.engine.gpus, self.engine.active.values()
        handles = {entry.job.id: entry.handle for entry in active if entry.job.devices and entry.handle}
        try:
            answers = await gpus.asker.ask({whole: partial(read, units, handles) for whole, units in gpus.by_whole.items()})
            self.figures = {uuid: one for found in answers.values() for uuid, one in found.items()}
        except DocklessError:
            self.figures = {}
        finally:
            self._read, self._reading = time.monotonic(), None


def read(gpus: Sequence[Gpu], handles: Mapping[int, Handle]) -> dict[str, Figures]:
    """Blocking. ``handles``: the sandboxes of jobs. Errors: as ``gpu.session``."""
    from dockless.sandbox.gpus import gpu, watch
    from dockless.sandbox.run import seen

    with gpu.session() as nvml:
        readings = watch.readings(nvml, [unit.uuid for unit in gpus])
        units = gpu.refresh(tuple(gpus))
        computing = {unit.uuid: watch.computing(nvml, unit.uuid) for unit in units}
    keepers = {pid: job for job, handle in handles.items() if (pid := handle.pid) > 0}
    found = seen.whose({process.pid for unit in units for process in unit.processes}, keepers)
    return {
        unit.uuid: Figures(
            reading,
            tuple(Program(p.pid, *found[p.pid], p.memory, None if now is None else now.get(p.pid, 0.0)) for p in unit.processes),
        )
        for unit, reading, now in zip(units, readings, map(computing.__getitem__, [unit.uuid for unit in units]), strict=True)
    }
