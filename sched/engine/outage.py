"""While the queue, or what a start needs on its disk, cannot be written: said once, shown to whoever asks, looked at every second, and said
again when it is over.

Jobs go on meanwhile. What has ended is recorded, and what waits is started, as soon as there is room.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

from dockless.base.typing import Any
from dockless.errors import SchedError
from dockless.sched.engine.faults import describe, say
from dockless.sched.engine.wants import lacks_room

LOOK = 1.0
"""Seconds between two looks."""
ROOM = 256 << 10
"""Bytes that must be free: less is gone with the next few changes."""


class Outage:
    """``directory``: of jobs.db. ``write``: commits a change. ``over``: called when the queue can be written again. ``text``: what is
    wrong, empty while nothing is."""

    def __init__(self, directory: Path, write: Callable[[Any], Awaitable[Any]], over: Callable[[], None]) -> None:
        self.text = ""
        self._directory = directory
        self._write = write
        self._over = over
        self._well = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    def begins(self, error: SchedError) -> None:
        """A change could not be committed."""
        if self._watch is None:
            self.text = describe(error)
            self._well.clear()
            say(f"{self.text}: ends are recorded and jobs are started when that is possible again")
            self._watch = asyncio.get_running_loop().create_task(self._until_well())

    def full(self, error: BaseException) -> bool:
        """Whether a start failed, or cannot be tried again, because the queue's disk has no room. It begins by that."""
        if self._watch is None and lacks_room(error, inside=True):
            try:
                _room(self._directory)
            except OSError as cause:
                self.begins(SchedError(f"the daemon's disk has no room: {cause.strerror}"))
        return self._watch is not None and lacks_room(error, inside=True)

    async def over(self) -> None:
        """Return when it is."""
        if self._watch is not None:
            await self._well.wait()

    def close(self) -> None:
        """Look no more."""
        if self._watch is not None:
            self._watch.cancel()

    async def _until_well(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            with contextlib.suppress(OSError, SchedError):
                _room(self._directory)
                await self._write(_touch)
                break
        self.text = ""
        self._watch = None
        say("the queue can be written again")
        self._well.set()
        self._over()


def _room(directory: Path) -> None:
    """``OSError`` unless there is room for some changes, or the file system cannot be asked so (NFS). open(2), O_TMPFILE"""
    try:
        fd = os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR):
            return
        raise
    try:
        os.posix_fallocate(fd, 0, ROOM)
    finally:
        os.close(fd)


def _touch(db: sqlite3.Connection) -> None:
    """A change that changes nothing and is written all the same."""
    db.execute("UPDATE meta SET value = value WHERE key = 'queue'")
