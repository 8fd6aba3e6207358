"""Jobs that start together (``sched.roles``): on all of their GPUs or not at all, and so they end.

For the policy they are one wide job, the first of them: it alone stands in line, and what is asked of it is asked of all. Whether they can
start together at all: ``gang_admission``; how they end: ``gang_ends``.
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
from dockless.errors import NetworkError, SchedError, Unwritable
from dockless.native.userns import SharedNetwork
from dockless.sandbox.network.model import Network
from dockless.sandbox.spec import Spec
from dockless.sched import roles
from dockless.sched.engine.lifecycle import ending, gang_networks, starting
from dockless.sched.jobs import JobOptions
from dockless.sched.policy.supplies import CORES, MEMORY, Supply
from dockless.sched.store import queue
from dockless.sched.store.lease import Lease
from dockless.sched.store.writer import Change

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob

PORTS_OF_USER = 2_500
"""Of those on the host's network that the jobs of one user may have, all of them together: a quarter."""
NO_PORTS = 30.0
"""Seconds until jobs for which there were no ports may start again."""


@dataclass(slots=True, eq=False)
class Gang:
    """``members``: by rank. ``over``: how attempts ended, by the jobs' numbers, or the change by which one waits again; ``told``: which
    jobs were told to end for the others' sake; ``apart``: their ports are those of their own network, which nobody else is in. ``own``:
    the network that was made for them, see ``gang_networks``; where there is none ``network``, while they are being started."""

    members: list[LiveJob]
    over: dict[int, ending.Ending | Change[Any]] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    settling: bool = False
    apart: bool = False
    own: Network | None = None
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
        """Called in a thread. A job that does not have the host's network gets the network that the gang shares; a gang of one job has its
        own."""
        if spec.network == "host" or len(self.members) == 1 or self.own is not None:
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
            gpus=count_gpus((member.job.gpu_count, member.job.options) for member in gang.members),
            share=gang.first.waiting.share if len(members) == 1 else 0,
            devices=frozenset().union(*(one.devices for one in waiting)),
            time_limit=max(limits) if all(limits) else 0.0,
            gpu_class=next((one.gpu_class for one in waiting if one.gpus), ""),
            cores=sum(counts_for(supplies, CORES, one.cores, one.gpus) for one in waiting),
            memory=sum(counts_for(supplies, MEMORY, one.memory, one.gpus) for one in waiting),
            width=len(waiting),
        )


def count_gpus(members: Iterable[tuple[int, JobOptions]]) -> int:
    """How many they have together. ``members``: the GPUs and the options of each."""
    found = [(count, options.shared_place) for count, options in members]
    return sum(count for count, place in found if not place) + len({place for _, place in found if place})


def counts_for(supplies: Mapping[str, Supply], pool: str, asked: int, gpus: int) -> int:
    """What one of them counts for: without GPUs as a job alone would that does not say what it needs."""
    return supplies[pool].counts(asked, has_gpus=gpus > 0) if pool in supplies else asked


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
        if gang.apart and len(gang.members) > 1:
            gang.own = await asyncio.to_thread(gang_networks.make, gang.first.job.id, gang.first.job.uid)
        options = [replace(member.job.options, ports=ports.pop(0)) for member in gang.members]

        def begin(db: sqlite3.Connection) -> None:
            for lease, changed in zip(leases, options, strict=True):
                queue.begin_attempt(db, lease, engine.name(lease.job, lease.attempt), engine.boot, now)
                queue.set_options(db, lease.job, changed, lease.since, "ports", " ".join(map(str, changed.ports)))

        await engine.write(begin)
    except (NetworkError, SchedError, Unwritable) as error:
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
    options, rank = [one.job.options for one in gang.members], member.job.index
    places = [roles.LOOPBACK] * len(options) if gang.own is None else gang_networks.addresses(gang.own, len(options))
    named = [roles.host_name(one) for one in options]
    known = {name for name, _ in spec.hosts}
    hosts: dict[str, str] = {}
    for one, place in zip(options, places, strict=True):
        for name in (one.role, f"{one.role}-{one.role_index}"):
            if name not in known and roles.is_host_name(name):
                hosts.setdefault(name, place)
    if gang.own is not None:
        spec = gang_networks.joined(spec, gang.own, places[rank], named[rank] or f"rank-{rank}")
        reached = [name if hosts.get(name) == place else place for name, place in zip(named, places, strict=True)]
    else:
        reached = places
    names = {name for name, _ in spec.env}
    found = roles.environment(options, rank, reached, places, openpai="PAI_TASK_ROLE_LIST" in names)
    env = (*spec.env, *((name, value) for name, value in found.items() if name not in names))
    return replace(spec, env=env, hosts=(*spec.hosts, *hosts.items()))
