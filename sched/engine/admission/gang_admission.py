"""Whether jobs can start together (``gangs``), when they are submitted."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dockless.base.dataclass import replace
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadInput, Refused, Unsupported
from dockless.sandbox.network.asked import CONTAINER, overlap
from dockless.sched import roles
from dockless.sched.callers import Caller
from dockless.sched.engine.gpus import seats
from dockless.sched.engine.lifecycle import gang_networks, gangs
from dockless.sched.jobs import MAX_MEMBERS, JobOptions
from dockless.sched.parsing import MAX_PORTS
from dockless.sched.policy.supplies import CORES, MEMORY
from dockless.sched.store.queue import NewJob

if TYPE_CHECKING:
    from dockless.sandbox.spec import Spec
    from dockless.sched.engine.engine import Engine

_OF_ALL = ("held", "begin", "after", "singleton", "retries", "retry_on", "notify", "notify_to")
"""What the first of them has for all."""
_WIDE = {"", "0.0.0.0", "::"}
"""Addresses of a published port that stand for others, too."""


def check_network(spec: Spec) -> None:
    """``Unsupported`` for one that cannot be where several are. One alone has a network of its own."""
    from dockless.sandbox.resolve import check_shared_network

    if spec.network.startswith(CONTAINER):
        hint = "leave --network out, or name networks that it is on besides"
        raise Unsupported("jobs that start together have a network of their own, not another sandbox's", subject="network", hint=hint)
    if spec.network == "private" and os.geteuid() != 0 and not gang_networks.can_make():
        hint = "leave --network out, or take the host's in all roles; dockless doctor says what is missing"
        raise Unsupported("here jobs that start together share one loopback and are on no network", subject="network", hint=hint)
    check_shared_network(spec)


def check_networks(specs: Sequence[Spec]) -> None:
    """``Unsupported`` for roles of which some have the host's network and others networks of their own: they would not reach each other.
    ``BadInput`` for a port of the host that two of them would have."""
    said = {spec.network for spec in specs}
    if {"host", "private"} <= said:
        hint = "give all roles the host's network, or none of them"
        raise Unsupported("some jobs that start together have the host's network, others are on networks", subject="network", hint=hint)
    taken = dict[tuple[str, int], set[str]]()
    for port in (port for spec in specs for port in spec.ports):
        for number in range(port.outside, port.outside + port.count):
            others = taken.setdefault((port.protocol, number), set())
            near = others if port.address in _WIDE else others & _WIDE
            if port.address in others or any(overlap(port, replace(port, address=other)) for other in near):
                what = f"port {number}/{port.protocol} of the host is published by several jobs that start together"
                hint = "publish it in a role of one instance (count = 1); the others are reached by their names"
                raise BadInput(what, subject="publish", hint=hint)
            others.add(port.address)


def as_gang(engine: Engine, caller: Caller, new: Sequence[NewJob]) -> list[NewJob]:
    """They can start together, and what they are to each other. ``BadInput``, ``NotEnoughGpus``, ``Refused``"""
    if len(new) > MAX_MEMBERS:
        raise BadInput(f"{len(new)} jobs cannot start together", subject="role", hint=f"at most {MAX_MEMBERS} can")
    if not all(job.options.role for job in new):
        raise BadInput("a job that starts together with others needs a role", subject="role", hint="give each its role")
    if sum(map(roles.count_ports, (job.options for job in new))) > MAX_PORTS + len(new):
        raise BadInput("the ports of all roles are too many", subject="ports", hint=f"jobs that start together have at most {MAX_PORTS}")
    if len(new) > 1 and any(job.options.gpu_share for job in new):
        new = _seated(engine, new)
    _check_gpus(engine, caller, new)
    found: list[NewJob] = []
    counts: dict[str, int] = {}
    nothing = {name: getattr(JobOptions(), name) for name in _OF_ALL}
    for job in new:
        index = counts[job.options.role] = counts.get(job.options.role, -1) + 1
        options = replace(job.options, role_index=index, members=len(new), **(nothing if found else {}))
        found.append(replace(job, options=options, priority=new[0].priority))
    return found


def _seated(engine: Engine, new: Sequence[NewJob]) -> list[NewJob]:
    """Those that ask for some memory of a GPU share GPUs with each other, see ``seats``. All of them then have GPUs of one class."""
    places, gpu_class = seats.seated([(job.options.gpu_share, job.options.gpu_class) for job in new], engine.gpus.room)
    if not any(places):
        return [replace(job, options=replace(job.options, gpu_share=0)) for job in new]
    found = []
    for job, place in zip(new, places, strict=True):
        any_whole = bool(job.gpu_count) and not job.options.gpu_class
        of = gpu_class if place or any_whole else job.options.gpu_class
        found.append(replace(job, options=replace(job.options, shared_place=place, gpu_class=of)))
    return found


def _check_gpus(engine: Engine, caller: Caller, new: Sequence[NewJob]) -> None:
    named = [gpu for job in new for gpu in job.wanted]
    total = gangs.count_gpus((job.gpu_count, job.options) for job in new)
    if len(set(named)) < len(named):
        twice = next(gpu for gpu in named if named.count(gpu) > 1)
        raise Refused(f"two of the jobs that start together want GPU {twice}", subject="gpus", hint="give each GPUs of its own")
    if named and len(named) < total:
        hint = "name the GPUs of each role, or give each a number of them"
        raise BadInput("some of the jobs that start together name their GPUs, others do not", subject="gpus", hint=hint)
    classes = {job.options.gpu_class for job in new if job.gpu_count}
    if len(classes) > 1:
        found = " and ".join(one or "any" for one in sorted(classes)[:2])
        hint = "ask for GPUs of one class, with the same memory, in all roles"
        raise BadInput(f"the jobs that start together ask for GPUs of different classes: {found}", subject="gpus", hint=hint)
    wanted = next(iter(classes), "")
    there = len(engine.gpus.may_have(wanted))
    if total > there and not named:
        hint = "ask for fewer, or submit them as jobs that run one after the other"
        raise Refused(f"the jobs that start together need {total} GPUs, and this host has {there}", subject="gpus", hint=hint)
    engine.admission.check_quota(caller, new[0].gpus, total, new[0].quota_groups, len(new))
    cores = sum(gangs.counts_for(engine.supplies, CORES, job.options.millicores, job.gpu_count) for job in new)
    memory = sum(gangs.counts_for(engine.supplies, MEMORY, job.options.memory, job.gpu_count) for job in new)
    share = new[0].options.gpu_share if len(new) == 1 else 0
    options = replace(new[0].options, gpu_class=wanted, gpu_share=share, millicores=cores, memory=memory)
    engine.admission.check_supplies(options, total, tuple(named))
