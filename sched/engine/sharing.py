"""Jobs that share a GPU by memory: how they start, and what keeps each to its share.

Where it can be had the driver's own limit does (``limits``); an allocation beyond the share fails then. Everywhere the memory of each job's
processes is looked at once a second, and a job that has more than its share is ended. The driver tells it for each process, contexts of
CUDA included. A look can be too late for a neighbour that wants its memory at that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from dockless.base.dataclass import replace
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.base.units import format_size
from dockless.errors import DocklessError
from dockless.sandbox.spec import Spec
from dockless.sched.engine import stopping
from dockless.sched.engine.attempts import Handle, Launcher
from dockless.sched.engine.faults import describe, say
from dockless.sched.jobs import Job, State

if TYPE_CHECKING:
    from dockless.sandbox.gpus.lease import Company
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob

_NONE: dict[str, str] = {}
EVERY = 1.0
"""Seconds between two looks."""


class SharingLauncher:
    """Starts sandboxes that have ``memory`` MiB of their one GPU, of which all who share it have ``capacity`` together. ``enforced_by``:
    what keeps the last one to it."""

    def __init__(self, launcher: Launcher, memory: int, capacity: int, company: Company) -> None:
        self.launcher = launcher
        self.memory, self.capacity, self.company = memory, capacity, company
        self.enforced_by = ""

    def start(self, spec: Spec, *, id: str, owner: int | None = None, labels: dict[str, str] = _NONE) -> Handle:
        """As ``Launcher.start``."""
        from dockless.sandbox.gpus import lease

        (uuid,) = spec.gpus
        share = lease.Share(uuid, self.memory, self.company, lease.share_number(id))
        with contextlib.ExitStack() as held:
            sockets = lease.take_share(share, self.capacity)
            for socket in sockets:
                held.enter_context(socket)  # its keeper has it once it runs
            how: Mapping[str, Any] = {"leased": sockets}
            handle = self.launcher.start(spec, id=id, owner=owner, labels=labels, **how)
        self.enforced_by = "driver" if _limited(handle, uuid, self.memory) else "watchdog"
        return handle

    def find(self, id: str) -> Handle | None:
        return self.launcher.find(id)

    def list_all(self) -> list[Any]:
        return self.launcher.list_all()


def _limited(handle: Any, uuid: str, memory: int) -> bool:
    from dockless.sandbox.gpus.limits import set_limit

    try:
        group = handle.document.cgroup
        return bool(group) and set_limit(uuid, group, memory << 20)
    except DocklessError:
        return False


def share(engine: Engine, job: Job) -> int:
    """The MiB of its GPU that a job has; 0 where that is its own, also as a slice."""
    can = job.options.gpu_share and job.devices and job.devices[0] in engine.gpus.shareable
    return job.options.gpu_share if can else 0


def launcher(engine: Engine, job: Job) -> Launcher:
    """What starts this job."""
    memory = share(engine, job)
    if not memory:
        return engine.launcher
    company: Company = "all" if engine.config.share == "all" else "user"
    return SharingLauncher(engine.launcher, memory, engine.gpus.shareable.get(job.devices[0], 0), company)


def enforced_by(engine: Engine, job: Job, launcher: Launcher | None = None) -> str | None:
    """What keeps a job that runs now to its memory of a GPU, as in ``JobOptions``; None where its record says so already. ``launcher``:
    what started it, None where nobody knows what the driver was told."""
    how = "watchdog" if share(engine, job) else ""
    if isinstance(launcher, SharingLauncher):
        how = launcher.enforced_by
    if "memory=" in job.gpus and engine.gpus.slices.issuperset(job.devices):
        how = "slice"
    return how if how != job.options.enforced_by else None


def runs(entry: LiveJob, enforced_by: str | None) -> None:
    """Its program runs, and is kept to its memory by that."""
    entry.show(state=State.RUNNING)
    if enforced_by is not None:
        entry.show(options=replace(entry.job.options, enforced_by=enforced_by))


def leased(engine: Engine) -> set[tuple[str, int, str]]:
    """The GPU, the MiB and the number of each share that this queue has given."""
    from dockless.sandbox.gpus.lease import share_number

    jobs = ((entry.job, share(engine, entry.job)) for entry in engine.active.values())
    return {(job.devices[0], memory, share_number(engine.name(job.id, job.attempt))) for job, memory in jobs if memory}


async def watch(engine: Engine) -> None:
    """Until cancelled."""
    while True:
        await asyncio.sleep(EVERY)
        try:
            await look(engine)
        except Exception as error:
            say(f"shared GPUs: {describe(error)}; going on")


async def look(engine: Engine) -> None:
    """Once, at all jobs that share a GPU."""
    sharing = [entry for entry in engine.active.values() if share(engine, entry.job) and entry.job.state is State.RUNNING]
    if not sharing:
        return
    await engine.watch.look()
    for entry in sharing:
        used = sum(
            program.memory or 0
            for uuid in entry.job.devices
            if (figures := engine.watch.figures.get(uuid)) is not None
            for program in figures.programs
            if program.job == entry.job.id
        )
        if used > entry.job.options.gpu_share << 20 and not entry.cancelled and entry.job.state is State.RUNNING:
            own = format_size(entry.job.options.gpu_share << 20)
            why = f"ended by the daemon: it had {format_size(used)} of a shared GPU, of which {own} were its own"
            await stopping.end(engine, entry, why, 0.0)
