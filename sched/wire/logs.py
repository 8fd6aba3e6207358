"""What a job wrote, served to its owner: read and followed without polling and without trusting a path.

A running attempt's output lies in its sandbox's directory (``log``, and ``log.1`` once it was rotated), an ended one's in the daemon's own
(``job-7-1.log``). Both are opened and read by ``dockless.sandbox.run.logfile``.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path

from dockless.sandbox.run.logfile import Log, Row, open_log

_IN_MODIFY, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE, _IN_DELETE_SELF = 0x2, 0x80, 0x100, 0x200, 0x400
_IN_NONBLOCK, _IN_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC


async def ended(base: Path, after: int = 0) -> AsyncIterator[list[Row]]:
    """The kept output of an ended attempt. ``base``: as given to ``attempts.keep_log``; ``after``: bytes of output not to repeat."""
    log = Log(lambda name: open_log(base.parent, f"{base.name}.{name}"), after)
    try:
        while rows := log.read():
            yield rows
    finally:
        log.close()


async def running(directory: Path, base: Path, done: asyncio.Future[None] | None, after: int = 0) -> AsyncIterator[list[Row]]:
    """The output of a live attempt. ``done``: follow until it is resolved, and read what is left then; None: only what there is now.
    ``base``: where its files go when it has ended, which may happen between any two steps here."""
    watch = DirectoryWatch(directory) if done is not None else None
    log = Log(lambda name: _either(directory, base, name), after)
    try:
        while True:
            over = done is None or done.done()
            while rows := log.read():
                yield rows
            if over:
                return
            if watch is not None and done is not None:
                await watch.wait(done)
    finally:
        log.close()
        if watch is not None:
            watch.close()


def _either(directory: Path, base: Path, name: str) -> int | None:
    fd = open_log(directory, name)
    return fd if fd is not None else open_log(base.parent, f"{base.name}.{name}")


class DirectoryWatch:
    """Wakes when a file of a directory changes; inotify(7), by way of libc, as Python has none of its own."""

    def __init__(self, directory: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
        mask = _IN_MODIFY | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_DELETE_SELF
        if self._fd >= 0 and libc.inotify_add_watch(self._fd, os.fsencode(directory), ctypes.c_uint32(mask)) < 0:
            os.close(self._fd)
            self._fd = -1

    async def wait(self, done: asyncio.Future[None]) -> None:
        """Until something changed or ``done``; a quarter of a second where the user's inotify instances are used up."""
        if self._fd < 0:
            await asyncio.wait([done], timeout=0.25)
            return
        loop = asyncio.get_running_loop()
        changed: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not changed.done():
                changed.set_result(None)

        loop.add_reader(self._fd, wake)
        try:
            await asyncio.wait([done, changed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(self._fd)
        try:
            while len(os.read(self._fd, 4096)) >= struct.calcsize("iIII"):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
