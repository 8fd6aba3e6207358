"""Jobs that start together (``sched.roles``): on all of their GPUs or not at all, and so they end.

For the policy they are one wide job, the first of them: it alone stands in line, and what is asked of it is asked of all. One whose program
has ended keeps its GPUs and its sandbox until the last has; then all end, or wait for another attempt, in one transaction. So a daemon that
comes back finds in the sandboxes what there is to know. Only why they are being ended is put down before the first of them is told.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from dockless.base.dataclass import dataclass, field, replace
from dockless.base.idmaps import default_map
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import BadInput, Refused, SchedError
from dockless.native.userns import SharedNetwork
from dockless.sandbox.spec import Spec
from dockless.sched import roles
from dockless.sched.callers import Caller
from dockless.sched.engine import again, ending, starting, stopping, weights
from dockless.sched.engine.entry import wake
from dockless.sched.jobs import MAX_MEMBERS, MAX_PORTS, JobOptions, State
from dockless.sched.policy.supplies import CORES, MEMORY, Supply
from dockless.sched.store import queue
from dockless.sched.store.lease import Lease
from dockless.sched.store.queue import NewJob
from dockless.sched.store.writer import Change

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob

_OF_ALL = ("held", "begin", "after", "singleton", "retries", "retry_on", "notify", "notify_to")
"""What the first of them has for all."""
PORTS_OF_USER = 2_500
"""Of those on the host's network that the jobs of one user may have, all of them together: a quarter."""
NO_PORTS = 30.0
"""Seconds until jobs for which there were no ports may start again."""


@dataclass(slots=True, eq=False)
class Gang:
    """``members``: by rank. ``over``: how attempts ended, by the jobs' numbers, or the change by which one waits again; ``told``: which
    jobs were told to end for the others' sake; ``apart``: their ports are those of their own network, which nobody else is in."""

    members: list[LiveJob]
    over: dict[int, ending.Ending | Change[Any]] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    settling: bool = False
    apart: bool = False
    network: SharedNetwork | None = None
    making: threading.Lock = field(default_factory=threading.Lock)

    @property
    def first(self) -> LiveJob:
        return self.members[0]

    @property
    def going_on(self) -> list[LiveJob]:
        return [member for member in self.members if member.job.id not in self.over]

    @property
    def unwanted(self) -> bool:
        """Whether what is just being launched is to end."""
        options = self.first.job.options
        back = any(not isinstance(one, ending.Ending) for one in self.over.values())
        return bool(back or self.first.cancelled or options.ending or options.requeue or options.preempted_by)

    def start(self, start: Any, spec: Spec, *, owner: int | None, **how: Any) -> Any:
        """In a thread: what does not have the host's network has the one that they share."""
        if spec.network == "host":
            return start(spec, owner=owner, **how)
        with self.making:
            if self.network is None:
                self.network = SharedNetwork(default_map(owner).with_groups(spec.host_groups))
        return start(spec, owner=owner, network=self.network, **how)

    def close(self) -> None:
        if self.network is not None:
            self.network.close()
            self.network = None


def form(entries: Iterable[LiveJob], supplies: Mapping[str, Supply]) -> None:
    """Those that belong together know each other, and the first stands for all."""
    found: dict[int, list[LiveJob]] = {}
    for entry in entries:
        if entry.job.gang:
            found.setdefault(entry.job.gang, []).append(entry)
    for members in found.values():
        gang = Gang(sorted(members, key=lambda member: member.job.index))
        why = gang.first.job.options.ending
        for member in members:
            member.gang = gang
            member.cancelled = member.cancelled or gang.first.cancelled
            if why:
                gang.told.add(member.job.id)
        waiting = [member.waiting for member in members]
        limits = [one.time_limit for one in waiting]
        gang.first.waiting = replace(
            gang.first.waiting,
            gpus=_gpus((member.job.gpu_count, member.job.options) for member in gang.members),
            share=0,
            devices=frozenset().union(*(one.devices for one in waiting)),
            time_limit=max(limits) if all(limits) else 0.0,
            gpu_class=next((one.gpu_class for one in waiting if one.gpus), ""),
            cores=sum(_counts(supplies, CORES, one.cores, one.gpus) for one in waiting),
            memory=sum(_counts(supplies, MEMORY, one.memory, one.gpus) for one in waiting),
            width=len(waiting),
        )


def _gpus(members: Iterable[tuple[int, JobOptions]]) -> int:
    """How many they have together. ``members``: the GPUs and the options of each."""
    found = [(count, options.shared_place) for count, options in members]
    return sum(count for count, place in found if not place) + len({place for _, place in found if place})


def _counts(supplies: Mapping[str, Supply], pool: str, asked: int, gpus: int) -> int:
    """What one of them counts for: without GPUs as a job alone would that does not say what it needs."""
    return asked or (supplies[pool].per_job if pool in supplies and not gpus else 0)


# -- submit


def admitted(engine: Engine, caller: Caller, new: Sequence[NewJob]) -> list[NewJob]:
    """They can start together, and what they are to each other. ``BadInput``, ``NotEnoughGpus``, ``Refused``"""
    if len(new) > MAX_MEMBERS:
        raise BadInput(f"{len(new)} jobs cannot start together", subject="role", hint=f"at most {MAX_MEMBERS} can")
    if not all(job.options.role for job in new):
        raise BadInput("a job that starts together with others needs a role", subject="role", hint="give each its role")
    if sum(map(roles.count_ports, (job.options for job in new))) > MAX_PORTS + len(new):
        raise BadInput("the ports of all roles are too many", subject="ports", hint=f"jobs that start together have at most {MAX_PORTS}")
    new = _seated(new, min(engine.gpus.shareable.values(), default=0)) if any(job.options.gpu_share for job in new) else new
    _check_gpus(engine, caller, new)
    found: list[NewJob] = []
    counts: dict[str, int] = {}
    nothing = {name: getattr(JobOptions(), name) for name in _OF_ALL}
    for job in new:
        index = counts[job.options.role] = counts.get(job.options.role, -1) + 1
        options = replace(job.options, role_index=index, members=len(new), **(nothing if found else {}))
        found.append(replace(job, options=options, priority=new[0].priority))
    return found


def _seated(new: Sequence[NewJob], capacity: int) -> list[NewJob]:
    """Those that ask for some memory of a GPU share GPUs with each other, each the first that has room for it; nobody else is there.
    ``capacity``: the MiB of a GPU. Where no two fit on one each has its own."""
    left: list[int] = []
    places = []
    for job in new:
        share = job.options.gpu_share
        at = next((at for at, room in enumerate(left) if share <= room), len(left))
        if share and at == len(left):
            left.append(capacity)
        if share:
            left[at] -= share
        places.append(at + 1 if share else 0)
    if len(left) == sum(1 for place in places if place):
        return [replace(job, options=replace(job.options, gpu_share=0)) for job in new]
    return [
        replace(job, options=replace(job.options, shared_place=place, gpu_class="" if place else job.options.gpu_class))
        for job, place in zip(new, places, strict=True)
    ]


def _check_gpus(engine: Engine, caller: Caller, new: Sequence[NewJob]) -> None:
    named = [gpu for job in new for gpu in job.wanted]
    total = _gpus((job.gpu_count, job.options) for job in new)
    if len(set(named)) < len(named):
        twice = next(gpu for gpu in named if named.count(gpu) > 1)
        raise Refused(f"two of the jobs that start together want GPU {twice}", subject="gpus", hint="give each GPUs of its own")
    if named and len(named) < total:
        hint = "name the GPUs of each role, or give each a number of them"
        raise BadInput("some of the jobs that start together name their GPUs, others do not", subject="gpus", hint=hint)
    classes = {job.options.gpu_class for job in new if job.gpu_count}
    if len(classes) > 1:
        hint = "ask for GPUs of one class in all roles"
        raise BadInput("the jobs that start together ask for GPUs of different classes", subject="gpus", hint=hint)
    wanted = next(iter(classes), "")
    there = len(engine.gpus.may_have(wanted))
    if total > there and not named:
        hint = f"this host has {there}; ask for fewer, or submit them as jobs that run one after the other"
        raise Refused(f"the jobs that start together need {total} GPUs: this could never be", subject="gpus", hint=hint)
    engine.admission.check_quota(caller, new[0].gpus, total, new[0].quota_groups, len(new))
    cores = sum(_counts(engine.supplies, CORES, job.options.millicores, job.gpu_count) for job in new)
    memory = sum(_counts(engine.supplies, MEMORY, job.options.memory, job.gpu_count) for job in new)
    options = replace(new[0].options, gpu_class=wanted, gpu_share=0, millicores=cores, memory=memory)
    engine.admission.check_supplies(options, total, tuple(named))


# -- start


def split(gang: Gang, gpus: Sequence[str]) -> Iterator[tuple[LiveJob, tuple[str, ...]]]:
    """Who of them gets which."""
    some = iter(gpus)  # all name theirs, or none does
    shared: dict[int, str] = {}
    for member in gang.members:
        place = member.job.options.shared_place
        if place and place not in shared:
            shared[place] = next(some)
        yield member, (shared[place],) if place else member.live.wanted or tuple(next(some) for _ in range(member.job.gpu_count))


def start(engine: Engine, gang: Gang, gpus: Sequence[str], now: float) -> None:
    leases = [starting.occupy(engine, member, mine, now) for member, mine in split(gang, gpus)]
    engine.spawn(_start(engine, gang, leases, now))


async def _start(engine: Engine, gang: Gang, leases: Sequence[Lease], now: float) -> None:
    try:
        ports = _ports(engine, gang)
    except Exception as error:
        gang.first.show(options=replace(gang.first.job.options, retry_at=time.time() + NO_PORTS))
        await starting.not_begun(engine, gang.members, error)
        return
    try:
        options = [replace(member.job.options, ports=ports.pop(0)) for member in gang.members]

        def begin(db: sqlite3.Connection) -> None:
            for lease, changed in zip(leases, options, strict=True):
                queue.begin_attempt(db, lease, engine.name(lease.job, lease.attempt), engine.boot, now)
                queue.set_options(db, lease.job, changed, lease.since, "ports", " ".join(map(str, changed.ports)))

        await engine.write(begin)
    except SchedError as error:
        await starting.not_begun(engine, gang.members, error)
        return
    for member, changed in zip(gang.members, options, strict=True):
        member.show(options=replace(member.job.options, ports=changed.ports))
    try:
        each = zip(gang.members, leases, strict=True)
        await asyncio.gather(*(ending.surely(engine, m, starting.launch(engine, m, lease)) for m, lease in each))
    finally:
        gang.close()


def _ports(engine: Engine, gang: Gang) -> list[tuple[int, ...]]:
    """For each of them; on the host's network those that no other job has and that nothing there listens on. ``SchedError``, ``OSError``"""
    gang.apart = not any(starting.asked_for(engine, member.job).network == "host" for member in gang.members)
    others = [e for e in engine.active.values() if e.job.options.ports and e.gang is not gang and e.gang is not None and not e.gang.apart]
    wanted = [roles.count_ports(member.job.options) for member in gang.members]
    hers = sum(len(other.job.options.ports) for other in others if other.job.uid == gang.first.job.uid)
    if not gang.apart and hers and hers + sum(wanted) > PORTS_OF_USER:
        raise SchedError(
            f"jobs of its user have {hers} of the {PORTS_OF_USER} ports that one can have on the host's network", subject="ports"
        )
    taken = {port for other in others for port in other.job.options.ports}
    every = range(roles.FIRST_PORT, roles.LAST_PORT + 1)
    free = iter(every) if gang.apart else (port for port in every if port not in taken and not _is_used(port))
    found = [tuple(islice(free, count)) for count in wanted]
    if len(found[-1]) < wanted[-1]:
        raise SchedError("no ports are left for it", subject="ports")
    return found


def _is_used(port: int) -> bool:
    with socket.socket() as trial:
        try:
            trial.bind(("", port))
        except OSError:
            return True
    return False


def told_of_the_others(gang: Gang, member: LiveJob, spec: Spec) -> Spec:
    """``spec`` with the variables of its role, and names of the others. What it says itself stays."""
    names = {name for name, _ in spec.env}
    found = roles.environment([one.job.options for one in gang.members], member.job.index, openpai="PAI_TASK_ROLE_LIST" in names)
    env = (*spec.env, *((name, value) for name, value in found.items() if name not in names))
    known = {name for name, _ in spec.hosts}
    hosts = dict.fromkeys(name for one in gang.members if (name := one.job.options.role) not in known and roles.is_host_name(name))
    return replace(spec, env=env, hosts=(*spec.hosts, *((name, roles.LOOPBACK) for name in hosts)))


# -- the end


async def over(engine: Engine, entry: LiveJob, how: ending.Ending | Change[Any]) -> None:
    """An attempt has ended, or (a change) never ran, so that they all wait again."""
    gang = entry.gang
    assert gang is not None
    gang.over[entry.job.id] = how
    stopping.over(entry)
    entry.silent = True
    wake(entry.gone)
    wake(entry.up)
    if isinstance(how, ending.Ending):
        entry.show(reason=f"its program has ended ({how.reason or 'exit code 0'}), and those that started with it go on")
    first = gang.first
    if not gang.unwanted:
        members = [roles.Member(m.job.id, m.job.options, _state(gang, m)) for m in gang.members]
        if (why := roles.ending(members)) and gang.going_on:
            options, now = replace(first.job.options, ending=why), time.time()
            first.show(options=options)
            gang.told |= {member.job.id for member in gang.going_on}
            await engine.write_surely(lambda db: queue.set_options(db, first.job.id, options, now, "ending", why))
        elif why:
            first.show(options=replace(first.job.options, ending=why))
    if gang.unwanted:
        gang.told |= {member.job.id for member in gang.going_on}
        for member in gang.going_on:
            stopping.stop(engine, member, None)
    if not gang.going_on and not gang.settling:
        gang.settling = True
        await _settle(engine, gang)


def _state(gang: Gang, member: LiveJob) -> State | None:
    how = gang.over.get(member.job.id)
    return how.state if isinstance(how, ending.Ending) else None


async def _settle(engine: Engine, gang: Gang) -> None:
    """The last of them has ended."""
    found = _wanted_again(gang)
    if found is not None:
        await _back(engine, gang, *found)
    else:
        await ending.end_jobs(engine, [(member, _final(gang, member)) for member in gang.members])


def _cause(gang: Gang) -> LiveJob | None:
    """The one whose failure ended all."""
    why = gang.first.job.options.ending
    return next((member for member in gang.members if why == f"failed:{member.job.id}"), None)


def _wanted_again(gang: Gang) -> tuple[str, JobOptions] | None:
    """Why all of them wait for another attempt, and the options of the first from then on; None where this is their end."""
    first, cause = gang.first, _cause(gang)
    options = replace(first.job.options, ending="")
    if first.cancelled:
        return None
    if options.requeue or options.preempted_by:
        why = options.requeue or f"preempted for job {options.preempted_by}"
        return why, replace(options, requeue="", preempted_by=0)
    if any(not isinstance(how, ending.Ending) for how in gang.over.values()):
        return "not all of them could start", options
    how = gang.over[cause.job.id] if cause is not None else None
    if cause is None or not isinstance(how, ending.Ending) or any(member.cancelled for member in gang.members):
        return None
    found = again.wanted(first, how.state, how.reason, how.code)
    return None if found is None else (f"{_name(cause)}: {found[0]}", replace(found[1], ending=""))


def _final(gang: Gang, member: LiveJob) -> ending.Ending:
    """How one of them ended, told from the end of all. The first has the state of all."""
    own, cause = gang.over[member.job.id], _cause(gang)
    assert isinstance(own, ending.Ending)
    how = gang.over[cause.job.id] if cause is not None else None
    if gang.first.cancelled:
        return own if member is not gang.first else replace(own, state=State.CANCELLED, reason=own.reason or "cancelled while it ran")
    if cause is None:
        if member is gang.first and own.state is not State.COMPLETED:
            return replace(own, state=State.COMPLETED, reason=f"the others are done ({own.reason})", code=0)
        if member.job.id in gang.told and own.state is not State.COMPLETED:
            return replace(own, state=State.COMPLETED, reason=f"ended when the others were done ({own.reason})")
        return own
    assert isinstance(how, ending.Ending)
    if member is gang.first and member is not cause:
        return replace(own, state=how.state, reason=f"{_name(cause)}: {how.reason}", code=how.code)
    if member is not cause and member.job.id in gang.told and own.state is not State.COMPLETED:
        return replace(own, state=State.CANCELLED, reason=f"ended because {_name(cause)} did: {how.reason}")
    return own


def _name(member: LiveJob) -> str:
    return f"job {member.job.id} ({member.job.options.role} {member.job.options.role_index})"


async def _back(engine: Engine, gang: Gang, reason: str, options: JobOptions) -> None:
    """All of them wait for another attempt."""
    now, first = time.time(), gang.first

    def change(db: sqlite3.Connection) -> None:
        for member in gang.members:
            how = gang.over[member.job.id]
            if isinstance(how, ending.Ending):
                queue.requeue(db, member.job.id, now, reason, how.record)
            else:
                how(db)
        queue.set_options(db, first.job.id, options, now, "requeue", reason)

    await engine.write_surely(change)
    for member in gang.members:
        await engine.take_down(member)
        member.silent = False
    for member in gang.members:
        engine.active.pop(member.job.id, None)
    weights.weigh(engine, first.job.uid)
    first.show(options=options)
    gang.over.clear()
    gang.told.clear()
    gang.settling = False
    if any(member.cancelled for member in gang.members):
        await ending.end_jobs(engine, [(member, ending.Ending(State.CANCELLED, "cancelled before it ran")) for member in gang.members])
        return
    engine.line_up(first)
    engine.kick()


async def withdraw(engine: Engine, gang: Gang, reason: str) -> None:
    """End them while they wait."""
    for member in gang.members:
        member.cancelled = True
    engine.step_back(gang.first)
    try:
        await ending.end_jobs(engine, [(member, ending.Ending(State.CANCELLED, reason)) for member in gang.members])
    except SchedError:
        for member in gang.members:
            member.cancelled = False
        engine.line_up(gang.first)
        raise
