"""A submit that comes in parts: what of it has come, and its one transaction at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

from dockless.base.findings import Findings
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import BadInput, Refused, SchedError
from dockless.sched.callers import Caller
from dockless.sched.engine.admission.admitting import of_list
from dockless.sched.engine.admission.per_user import taken
from dockless.sched.parsing import NONE_QUEUED
from dockless.sched.store import queue
from dockless.sched.store.queue import NewJob

if TYPE_CHECKING:
    import sqlite3

    from dockless.sched.engine.engine import Engine

KEPT_FOR = 60.0
"""Seconds for which parts of a submit are kept without another part, or the end."""
KEPT_AT_MOST = 600.0
"""Seconds after the first part at which all are dropped."""


class Parts:
    """The parts of one submit that have come so far. They count as jobs in the queue, so that what is kept of a user, all connections
    together, is never more than she may have there. Too old, they are dropped, whatever else their connection is used for; ``dropped`` is
    called then. Where something is wrong with one none is kept, and those that come are looked at, so that all of it is told at the end."""

    def __init__(self, engine: Engine, dropped: Callable[[], None]) -> None:
        self._engine = engine
        self._dropped = dropped
        self._too_old: asyncio.TimerHandle | None = None
        self._begun = 0.0
        self._counted = ExitStack()
        self._came = 0
        self._new: list[NewJob] = []
        self._wrong = Findings(NONE_QUEUED)
        self._given_up = False
        self._config = engine.config

    def __len__(self) -> int:
        return self._came

    def close(self) -> None:
        """Keep nothing of it."""
        self._stop_clock()
        self._came, self._wrong = 0, Findings(NONE_QUEUED)
        self._drop_jobs()

    def _drop_jobs(self) -> None:
        self._new = []
        self._counted.close()

    def give_up(self) -> None:
        """Whoever submits wants it no more: unless it is on disk already, ``submit`` queues nothing."""
        self._given_up = True

    async def add(self, caller: Caller, specs: Sequence[Any], of: int, turn: Callable[[], Awaitable[None]]) -> None:
        """The next jobs of ``of``. After an error nothing is kept. ``turn``: awaited between pieces of work."""
        try:
            await self._add(caller, specs, of, turn)
        except BaseException:
            self.close()
            raise

    def _stop_clock(self) -> None:
        if self._too_old is not None:
            self._too_old.cancel()
            self._too_old = None

    def _drop(self) -> None:
        self.close()
        self._dropped()

    async def _add(self, caller: Caller, specs: Sequence[Any], of: int, turn: Callable[[], Awaitable[None]]) -> None:
        engine, before = self._engine, len(self)
        self._stop_clock()
        self._begun = self._begun if before else engine.loop.time()
        self._config = self._config if before else engine.config
        if before + len(specs) > of:
            raise BadInput(f"more jobs came than the {of} that were announced", subject="of", hint="this is a bug in the client")
        engine.admission.refuse_too_many(caller, engine.per_user, of - before)
        with engine.per_user.coming_in_parts(caller.uid, len(specs), 0):
            new = await of_list(engine, caller, specs, turn, self._wrong, of, before=before)
            size = sum(taken(len(job.spec), job.options) for job in new)
            engine.admission.refuse_too_large(caller, engine.per_user, size)
        self._came += len(specs)
        if self._wrong.errors:
            self._drop_jobs()
        else:
            self._counted.enter_context(engine.per_user.coming_in_parts(caller.uid, len(new), size))
            self._new += new
        until = min(engine.loop.time() + KEPT_FOR, self._begun + KEPT_AT_MOST)
        self._too_old = engine.loop.call_at(until, self._drop)

    async def submit(self, of: int, turn: Callable[[], Awaitable[None]]) -> list[int]:
        """Queue them in one transaction: their numbers, in order. Nothing is kept afterwards, whatever comes of it. ``turn``: as in
        ``add``."""
        engine, new = self._engine, self._new
        self._stop_clock()
        try:
            if len(self) != of:
                raise BadInput(f"{len(self)} jobs came of {of}, so none was queued", subject="of", hint="submit them again")
            self._wrong.refuse()
            if engine.config is not self._config:  # by which the first of them were judged
                raise Refused("the settings were read again meanwhile, so none was queued", subject="submit", hint="submit them again")
            if engine.closing:
                raise SchedError("the daemon is ending", hint="try again when it is back")
            now = time.time()

            def insert(db: sqlite3.Connection) -> list[int]:
                ids = queue.insert(db, new, False, now)
                if self._given_up:
                    raise Refused("the client went away before its jobs were on disk, so none was queued", subject="submit")
                return ids

            ids: list[int] = await engine.write(insert)
            await engine.show_all(ids, new, now, 0, turn)
            return ids
        finally:
            self.close()
