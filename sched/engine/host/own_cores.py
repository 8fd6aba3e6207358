"""Processors on which no other user's jobs run: for each user as many as her jobs have whole cores, where ``host.own_cores`` says yes.

::

    processors 0-7; Anna's jobs have 3 cores, Ben's 2.5, Carl's none
    Anna has 5-7 alone, Ben 3-4   ->   cpuset.cpus of the users' groups: Anna 0-2,5-7   Ben 0-4   Carl 0-2

Between the groups of users the kernel shares each processor by weight (``weights``), and moves what runs between processors too seldom
for that to be exact. The first processor stays everybody's. See the kernel's cgroup-v2.rst, cpuset.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Set

from dockless.base.typing import TYPE_CHECKING
from dockless.cgroups import users
from dockless.sched.engine.host.host_supplies import had
from dockless.sched.policy.supplies import CORES

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine

NOT_KNOWN: frozenset[int] = frozenset()
"""Stands for the processors of a group while it is not known which it has."""


def started(engine: Engine, uid: int) -> None:
    """One of her jobs runs, perhaps in a group that was just made: nothing is known of its processors."""
    if engine.config.has_own_cores:
        engine.confined[uid] = NOT_KNOWN
        apply(engine)


def taken_up(engine: Engine) -> None:
    """Jobs run that an earlier daemon started, perhaps with other settings: write the processors of all groups again."""
    if os.geteuid() == 0:
        engine.confined = {entry.job.uid: NOT_KNOWN for entry in engine.active.values()}
        apply(engine)


def apply(engine: Engine) -> None:
    """Divide the processors anew, after a start, an end or new settings. The groups are written in a thread: that takes milliseconds."""
    if not engine.config.has_own_cores and not engine.confined:
        return
    engine.alone = divide(_whole_cores(engine), os.sched_getaffinity(0), engine.alone) if engine.config.has_own_cores else {}
    if not engine.confining:
        engine.confining = True
        engine.spawn(_confine(engine))


def _whole_cores(engine: Engine) -> Mapping[int, int]:
    each: Counter[int] = Counter()
    for entry in engine.active.values():
        if entry is entry.first:
            each[entry.job.uid] += had(engine, entry, CORES)
    return {uid: cores // 1000 for uid, cores in each.items()}


def divide(wanted: Mapping[int, int], processors: Set[int], earlier: Mapping[int, Set[int]]) -> dict[int, frozenset[int]]:
    """The processors that each user has alone: of ``processors`` as many as ``wanted``, or, where there are not enough, as many as others
    who want more; the first is left to all. Who had some ``earlier`` keeps those that she still has a right to."""
    usable = processors - {min(processors)}
    had_some = {uid: sorted(earlier.get(uid, frozenset()) & usable) for uid in wanted}
    counts = _in_turns({uid: wanted[uid] for uid in sorted(wanted, key=lambda uid: (not had_some[uid], uid))}, len(usable))
    kept = {uid: had_some[uid][:count] for uid, count in counts.items()}
    free = sorted(usable - {number for numbers in kept.values() for number in numbers})
    for uid in sorted(counts):
        while len(kept[uid]) < counts[uid]:
            kept[uid].append(free.pop())
    return {uid: frozenset(numbers) for uid, numbers in kept.items() if numbers}


def _in_turns(wanted: Mapping[int, int], count: int) -> dict[int, int]:
    """How many of ``count`` each gets, one at a time, in the order of ``wanted``."""
    found = dict.fromkeys(wanted, 0)
    while count and (short := [uid for uid in wanted if found[uid] < wanted[uid]][:count]):
        for uid in short:
            found[uid] += 1
        count -= len(short)
    return found


async def _confine(engine: Engine) -> None:
    try:
        while differs := _differs(engine):
            engine.confined |= differs  # now: a group that is made while they are written is not known again
            try:
                await engine.in_thread(engine.looking, _write, differs)
            except BaseException:
                engine.confined |= dict.fromkeys(differs, NOT_KNOWN)
                raise
    finally:
        engine.confining = False


def _differs(engine: Engine) -> dict[int, frozenset[int]]:
    """The users whose groups are on other processors than they should be, and the right ones. Users without running jobs are forgotten."""
    here, running = frozenset(os.sched_getaffinity(0)), {entry.job.uid for entry in engine.active.values()}
    engine.confined = {uid: numbers for uid, numbers in engine.confined.items() if uid in running}
    taken = frozenset[int]().union(*engine.alone.values())
    wanted = {uid: here - taken | engine.alone.get(uid, frozenset()) for uid in running}
    return {uid: numbers for uid, numbers in wanted.items() if engine.confined.get(uid, here) != numbers}


def _write(groups: Mapping[int, frozenset[int]]) -> None:
    from dockless.cgroups.delegation import enable, find_delegation

    everywhere = os.sched_getaffinity(0)
    if any(numbers != everywhere for numbers in groups.values()):
        enable(find_delegation(), ("cpuset",))
    failed: OSError | None = None
    for uid, numbers in groups.items():
        try:
            users.confine(uid, numbers)
        except OSError as error:  # the others are kept off each other all the same
            failed = error
    if failed is not None:
        raise failed
