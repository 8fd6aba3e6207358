"""Jobs that share a GPU by memory: how they start, and what keeps each to its share.

Where it can be had the driver's own limit does (``limits``), or that of its Multi-Process Service where the settings want it (``mps``); an
allocation beyond the share fails then. Everywhere the memory of each job's processes is looked at once a second, and a job that has more
than its share is ended. The driver tells it for each process, contexts of CUDA and of graphics included. A look can be too late for a
neighbour that wants its memory at that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterable, Mapping
from functools import partial

from dockless.base.dataclass import replace
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.base.units import format_size
from dockless.errors import DocklessError
from dockless.sandbox.spec import Spec
from dockless.sched.engine import stopping
from dockless.sched.engine.attempts import Handle, Launcher
from dockless.sched.engine.faults import describe, say
from dockless.sched.engine.gpus.mps import SERVICE_MEMORY, has_limit
from dockless.sched.jobs import Job, State
from dockless.sched.policy.supplies import MEMORY
from dockless.sched.store import queue

if TYPE_CHECKING:
    from dockless.sandbox.gpus.lease import Company, Ours
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob

_NONE: dict[str, str] = {}
EVERY = 1.0
"""Seconds between two looks."""


class SharingLauncher:
    """Starts sandboxes that have ``memory`` MiB of their one GPU, of which all who share it have ``capacity`` together. ``ours``: as
    ``leased``. ``enforced_by``: what keeps the last one to it."""

    def __init__(self, launcher: Launcher, memory: int, capacity: int, company: Company, ours: Ours = ()) -> None:
        self.launcher = launcher
        self.memory, self.capacity, self.company, self.ours = memory, capacity, company, ours
        self.enforced_by = ""

    def start(self, spec: Spec, *, id: str, owner: int | None = None, labels: dict[str, str] = _NONE, **how: Any) -> Handle:
        """As ``Launcher.start``."""
        from dockless.sandbox.gpus import lease, limits

        (uuid,) = spec.gpus
        share = lease.Share(uuid, self.memory, self.company, lease.share_number(id))
        with contextlib.ExitStack() as held:
            sockets = lease.take_share(share, self.capacity, self.ours)
            for socket in sockets:
                held.enter_context(socket)  # its keeper has it once it runs
            more: Mapping[str, Any] = {**how, "leased": sockets, "controllers": limits.CONTROLLERS}
            handle = self.launcher.start(spec, id=id, owner=owner, labels=labels, **more)
        otherwise = "mps" if has_limit(spec) else "watchdog"
        self.enforced_by = "driver" if _limited(handle, uuid, self.memory) else otherwise
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


def share_beside_others(engine: Engine, job: Job) -> int:
    """As ``share``, but 0 for a job that shares its GPU only with those that it starts together with: the GPU is theirs alone."""
    return 0 if job.options.shared_place else share(engine, job)


def part(engine: Engine, uuid: str, memory: int) -> float:
    """The fraction of a GPU that so many MiB are. 1 for 0 MiB, which stands for the whole GPU, and for a GPU that cannot be shared."""
    whole = engine.gpus.shareable.get(uuid, 0) + engine.gpus.kept if uuid in engine.gpus.shareable else 0
    return min(1.0, memory / whole) if memory and whole else 1.0


def part_of(engine: Engine, entry: LiveJob) -> float:
    """How much of each of its GPUs a job has. Those that start together have the GPUs that they share for themselves, in equal parts."""
    if entry.gang is not None and (place := entry.job.options.shared_place):
        return 1.0 / sum(1 for one in entry.gang.members if one.job.options.shared_place == place)
    memory = share(engine, entry.job) if engine.config.share != "no" else 0
    return part(engine, entry.job.devices[0], memory) if memory else 1.0


def launcher(engine: Engine, job: Job) -> Launcher:
    """What starts this job, after ``with_service``."""
    memory = share(engine, job)
    if not memory:
        return engine.launcher
    company: Company = "all" if engine.config.share == "all" else "user"
    return SharingLauncher(engine.launcher, memory, _capacity(engine, job), company, leased(engine))


def _capacity(engine: Engine, job: Job) -> int:
    """MiB of its GPU for all who share it."""
    return engine.gpus.shareable.get(job.devices[0], 0) + engine.gpus.kept


def _room(engine: Engine) -> int:
    """Bytes that a Multi-Process Service and its jobs may have in common: together those of all GPUs have half of the jobs' memory."""
    return max(1 << 20, engine.supplies[MEMORY].total // 2 // (len(engine.gpus.whole) or 1))


async def with_service(engine: Engine, job: Job, spec: Spec, owner: int | None, user: int | None) -> Spec:
    """``spec``, of a job that starts, with the Multi-Process Service where it can have that. ``owner``, ``user``: as in
    ``Launcher.start``. One that hangs keeps its own jobs alone: each has a turn of its own, and its start none of the threads that start
    jobs."""
    memory = share(engine, job)
    if not memory or not engine.config.has_mps:
        return spec
    async with _turn(engine, engine.mps.name(job.uid, job.devices[0])):
        what = job.uid, job.devices[0], memory, _capacity(engine, job), _room(engine), owner, user, leased(engine)
        joined: Spec = await engine.in_thread(engine.serving, engine.mps.join, spec, *what)
        return joined


def _turn(engine: Engine, name: str) -> asyncio.Lock:
    """Held by who starts, ends or looks at that service."""
    return engine.mps_turns.setdefault(name, asyncio.Lock())


def enforced_by(engine: Engine, job: Job, launcher: Launcher | None = None) -> str | None:
    """What keeps a job that runs now to its memory of a GPU, as in ``JobOptions``; None where its record says so already. ``launcher``:
    what started it, None where the driver keeps nobody."""
    how = "watchdog" if share(engine, job) else ""
    if isinstance(launcher, SharingLauncher):
        how = launcher.enforced_by
    if job.devices and engine.gpus.not_whole.issuperset(job.devices) and engine.gpus.memory_of(job.gpus):
        how = "slice"
    return how if how != job.options.enforced_by else None


def taken_over(engine: Engine, job: Job, handle: Any) -> str | None:
    """``enforced_by`` of a job that an earlier daemon was just starting: whether its limit was set nobody knows, so it is set again.
    Blocking."""
    memory = share(engine, job)
    if not memory:
        return enforced_by(engine, job)
    otherwise = "mps" if has_limit(handle.document.spec) else "watchdog"
    how = "driver" if _limited(handle, job.devices[0], memory) else otherwise
    return how if how != job.options.enforced_by else None


def runs(entry: LiveJob, enforced_by: str | None) -> None:
    """Its program runs, and is kept to its memory by that."""
    entry.show(state=State.RUNNING)
    if enforced_by is not None:
        entry.show(options=replace(entry.job.options, enforced_by=enforced_by))


def leased(engine: Engine) -> set[tuple[str, int, str]]:
    """The GPU, the MiB and the number of each share that this queue has given, those of the Multi-Process Service with them."""
    from dockless.sandbox.gpus.lease import share_number

    jobs = [(entry.job, memory) for entry in engine.active.values() if (memory := share(engine, entry.job))]
    found = {(job.devices[0], memory, share_number(engine.name(job.id, job.attempt))) for job, memory in jobs}
    names = {(job.devices[0], engine.mps.name(job.uid, job.devices[0])) for job, _ in jobs}
    return found | {(uuid, SERVICE_MEMORY, share_number(name)) for uuid, name in names if name in engine.mps.known}


def services(engine: Engine) -> set[str]:
    """The control daemons that the jobs that run are for, if they are there; without jobs whose end is being written down."""
    jobs = (entry.job for entry in engine.active.values() if not entry.silent and share(engine, entry.job))
    return {engine.mps.name(job.uid, job.devices[0]) for job in jobs}


async def take_up(engine: Engine) -> None:
    """What an earlier daemon left of the Multi-Process Service: that of jobs that run goes on."""
    try:
        await engine.in_thread(engine.removing, engine.mps.take_up)
    except Exception as error:
        say(f"MPS is not looked after: {describe(error)}; trying again")
    await end_services(engine, engine.mps.known)


async def end_services_of(engine: Engine, jobs: Iterable[Job]) -> None:
    """End the services of jobs whose end is being written down, if no other has them. They wait for it, so that others can have their GPU
    then."""
    await end_services(engine, {engine.mps.name(job.uid, job.devices[0]) for job in jobs if share(engine, job)})


async def end_services(engine: Engine, names: Collection[str]) -> None:
    """End those of these services that no job has any more."""
    unwanted = engine.mps.known.intersection(names) - services(engine)
    await asyncio.gather(*(_end_service(engine, name) for name in unwanted))


async def _end_service(engine: Engine, name: str) -> None:
    async with _turn(engine, name):
        if name not in engine.mps.known or name in services(engine):
            return
        try:
            await engine.in_thread(engine.serving, engine.mps.end, name)
        except Exception as error:
            say(f"MPS is not ended: {describe(error)}; trying again")


async def look_after_services(engine: Engine) -> None:
    """Once: end those that nobody needs, and take note of those that have ended before their jobs. A program that used one gets errors of
    CUDA then; one that begins after that has no limit but the watchdog's. Those that are just started or ended are passed over."""
    names = {name for name in engine.mps.known if not _turn(engine, name).locked()}
    wanted = services(engine)
    for name in names - wanted:
        engine.spawn(_end_service(engine, name))
    for name in names & wanted:
        async with _turn(engine, name):
            if not await engine.in_thread(engine.looking, engine.mps.lost, name):
                continue
        say(f"{name} has ended: its jobs get errors of CUDA, and are watched")
        for entry in list(engine.active.values()):
            job = entry.job
            if job.options.enforced_by == "mps" and engine.mps.name(job.uid, job.devices[0]) == name:
                options = replace(job.options, enforced_by="watchdog")
                entry.show(options=options)
                await engine.write(
                    partial(queue.set_options, job=job.id, options=options, now=time.time(), what="mps", detail="it has ended")
                )


async def watch(engine: Engine) -> None:
    """Until cancelled."""
    while True:
        await asyncio.sleep(EVERY)
        try:
            await look_after_services(engine)
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
