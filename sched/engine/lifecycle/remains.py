"""What an ended attempt leaves: its output, which is kept, and then its sandbox, which is removed. What cannot be done at once is tried
again by every round of housekeeping and by the next daemon; until then ``logs`` reads the output where it lies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from dockless.base.typing import TYPE_CHECKING
from dockless.sched.engine import attempts
from dockless.sched.engine.attempts import Handle
from dockless.sched.engine.faults import describe, say
from dockless.sched.engine.gpus import sharing
from dockless.sched.store import queries

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine

MANY = 16
"""Removals that wait for each thread that removes."""


async def keep(engine: Engine, handle: Handle, uid: int, kept: bool = False) -> str:
    """Keep the output. Empty, or why it is not kept yet, for the job's record. ``kept``: it is, and has not been counted."""
    try:
        if not kept:
            await engine.looked_at(attempts.keep_log, handle, engine.logs / handle.id)
    except OSError as error:
        why = f"its output is not kept yet: {os.strerror(error.errno or 0)}"
        say(f"{handle.id}: {why}; trying again later")
        return why
    engine.kept.add(uid, handle.id)
    with contextlib.suppress(OSError):
        engine.kept.trim(uid, engine.config.logs_per_user)
    return ""


async def lighten(engine: Engine, handle: Handle) -> None:
    """Give back the room that its files take, where its end cannot be recorded: it may be they that filled the disk."""
    try:
        await engine.in_thread(engine.removing, handle.lighten)
    except Exception as error:
        say(f"{handle.id}: its files are not removed yet: {describe(error)}")


class Removals:
    """Sandboxes that are removed behind, by threads of ``pool``: nobody waits for one. Used in the loop. ``left``: called there with what
    cannot be removed now."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor, left: Callable[[Handle], None]) -> None:
        self._loop = loop
        self._pool = pool
        self._left = left
        self._lock = threading.Lock()
        self._waiting: deque[Handle] = deque()
        self._threads = 0
        self._begun: set[Future[None]] = set()

    def add(self, handle: Handle) -> None:
        """A thread that is at it takes this one, too. One more begins where many wait: it may be a large one that keeps them."""
        with self._lock:
            self._waiting.append(handle)
            begins = len(self._waiting) > MANY * self._threads
            self._threads += begins
        if begins:
            self._begun = {one for one in self._begun if not one.done()}
            self._begun.add(self._pool.submit(self._work))

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                handle = self._waiting.popleft()
            try:
                handle.remove()
            except Exception as error:  # whatever it is, the job's end is recorded
                say(f"{handle.id} is not removed yet: {describe(error)}")
                self._loop.call_soon_threadsafe(self._left, handle)

    async def over(self, seconds: float) -> None:
        """Until all are removed, but no longer than that."""
        if self._begun:
            await asyncio.wait([asyncio.wrap_future(one) for one in self._begun], timeout=seconds)


async def remove(engine: Engine, handle: Handle) -> None:
    """Remove the sandbox, later where that is not possible now."""
    try:
        await engine.in_thread(engine.removing, handle.remove)
    except Exception as error:  # whatever it is, the job's end is recorded
        say(f"{handle.id} is not removed yet: {describe(error)}")
        engine.left.append(handle)


async def clear(engine: Engine, handle: Handle) -> None:
    """Keep what is not kept yet, and remove. Output whose time is over anyway is not kept any more."""
    uid = _owner(engine, handle)
    if uid is not None and not _is_old(engine, handle) and await keep(engine, handle, uid):
        engine.left.append(handle)
        return
    await remove(engine, handle)


async def clear_left(engine: Engine) -> None:
    """Once more what could not be done when its job ended."""
    left, engine.left = engine.left, []
    for handle in left:
        await clear(engine, handle)


def _owner(engine: Engine, handle: Handle) -> int | None:
    number = handle.id.partition("-")[2].partition("-")[0]
    return queries.owners(engine.reader, [int(number)]).get(int(number)) if number.isdecimal() else None


def _is_old(engine: Engine, handle: Handle) -> bool:
    try:
        return os.stat(handle.directory).st_mtime < engine.config.kept_since()
    except OSError:
        return False


async def sweep(engine: Engine) -> None:
    """What an earlier daemon left of attempts that are over."""
    alive = {engine.name(entry.job.id, entry.job.attempt) for entry in engine.active.values()} | sharing.services(engine)
    known = partial(queries.has_sandbox, engine.reader)
    for handle in await engine.looked_at(attempts.orphans, engine.launcher, engine.queue_id, alive.__contains__, known):
        await clear(engine, handle)
    with contextlib.suppress(OSError):
        engine.kept.look(partial(queries.owners, engine.reader), engine.queue_id, engine.config.kept_since())
