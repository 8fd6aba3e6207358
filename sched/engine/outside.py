"""GPU time outside the queue: that of leases of a ``dockless run`` or of a user's own daemon, which is in no job's attempt.

The table of leases is read every few seconds. A lease that a user has at two readings in a row counts for the time between them; a lease
that begins and ends between two readings does not count, so no GPU counts for more time than there was. The sums are written to the rows
of the day once a minute and when the daemon ends. A daemon that is killed loses up to a minute. While no daemon of root's runs nothing is
counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections import defaultdict
from functools import partial

from dockless.base.dataclass import dataclass
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import SchedError
from dockless.sched import clock
from dockless.sched.callers import default_group
from dockless.sched.engine import queue_state
from dockless.sched.engine.faults import describe, say
from dockless.sched.engine.gpus import sharing
from dockless.sched.store import usage

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine

EVERY = 5.0
"""Seconds between two looks."""
WRITE_EVERY = 60.0
"""Seconds between two changes of the day's rows, at least."""


@dataclass(frozen=True, slots=True)
class Spell:
    """What a user had of the GPUs between two moments, seconds since 1970. ``group``: that her jobs without a label count for. ``gpus``: by
    UUID, and how much of each: 1 for all of it."""

    uid: int
    user: str
    group: str
    began: float
    ended: float
    gpus: tuple[tuple[str, float], ...]

    @property
    def count(self) -> float:
        return sum(part for _, part in self.gpus)


class Outside:
    """``unwritten``: what is not on disk yet."""

    def __init__(self) -> None:
        self.unwritten: list[Spell] = []
        self._had: dict[tuple[int, str], float] = {}  # by user id and GPU, how much of it
        self._looked = 0.0
        self._written = -math.inf

    async def look(self, engine: Engine) -> None:
        """Read the leases, and count those that were there at the last reading, too."""
        from dockless.sandbox.gpus.lease import NOBODY

        await engine.gpus.see_leases()
        now, wall = clock.ticks(), time.time()
        has: dict[tuple[int, str], float] = defaultdict(float)
        for uuid, uid, share in queue_state.elsewhere(engine):
            owner = engine.callers.owner(uid)
            if uid != NOBODY and os.geteuid() in (0, owner):
                has[owner, uuid] += sharing.part(engine, uuid, share)
        found: dict[int, list[tuple[str, float]]] = defaultdict(list)
        for (uid, uuid), part in has.items():
            if had := self._had.get((uid, uuid)):
                found[uid].append((uuid, min(1.0, part, had)))
        for uid, gpus in found.items():
            user, groups = engine.callers.quota_of(uid)
            spell = Spell(uid, user, default_group(groups), wall - (now - self._looked), wall, tuple(gpus))
            self.unwritten.append(spell)
            if engine.past is not None:
                engine.past.add(user, groups, spell.count, self._looked, now)
        self._had, self._looked = has, now

    async def write(self, engine: Engine) -> None:
        """Add what is not on disk yet to the days' rows. Where that fails, it is tried again at the next call."""
        spells = self.unwritten
        if not spells:
            return
        self.unwritten, self._written = [], clock.ticks()
        rows = [(one.uid, one.user, one.group, one.began, one.ended, one.gpus) for one in spells]
        try:
            await engine.write(partial(usage.count_outside, spells=rows))
        except BaseException:
            self.unwritten = spells + self.unwritten
            raise

    @property
    def due(self) -> bool:
        return clock.ticks() - self._written >= WRITE_EVERY


async def watch(engine: Engine) -> None:
    """Until cancelled."""
    outside = engine.outside
    try:
        while True:
            await asyncio.sleep(EVERY)
            if not engine.gpus.uuids:
                continue
            try:
                await outside.look(engine)
                if outside.due:
                    await outside.write(engine)
            except SchedError as error:
                say(f"GPU time outside the queue: {describe(error)}; going on")
    finally:
        if not engine.outage.text:
            with contextlib.suppress(SchedError):
                await outside.write(engine)
