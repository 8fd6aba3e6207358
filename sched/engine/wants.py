"""Failures that say nothing about a job: the host had no descriptors, no memory or no processes left for us, or no room for a start. They
are waited out."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

from dockless.base.locks import CANNOT_TELL
from dockless.base.typing import TypeVar
from dockless.errors import LaunchFailed
from dockless.sched.engine.faults import describe, say

T = TypeVar("T")

_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
AGAIN = 1.0
"""Seconds until the next try."""


def is_the_hosts(error: BaseException | None) -> bool:
    """Whether this, or what it was made from, is such a failure. An operation in a sandbox may have met the job's own limits of memory and
    processes: of those only descriptors count."""
    while error is not None:
        number = getattr(error, "errno", None)
        wants: tuple[int, ...] = CANNOT_TELL
        if isinstance(error, LaunchFailed):
            wants = _DESCRIPTORS if error.index >= 0 else (*CANNOT_TELL, errno.EAGAIN)
        if isinstance(error, MemoryError) or number in wants:
            return True
        error = error.__cause__
    return False


def lacks_room(error: BaseException | None, *, inside: bool = False) -> bool:
    """Whether this, or what it was made from, is a disk without room. ``inside``: also the failure of an operation in a sandbox, which may
    have met the size of one of the job's own file systems."""
    while error is not None:
        if getattr(error, "errno", None) == errno.ENOSPC:
            return inside or not (isinstance(error, LaunchFailed) and error.index >= 0)
        error = error.__cause__
    return False


async def waited_out(
    work: Callable[[], Awaitable[T]],
    what: str,
    go_on: Callable[[], bool],
    tries: int | None = None,
    again: Callable[[], Awaitable[T]] | None = None,
    full: Callable[[BaseException], bool] | None = None,
) -> T:
    """``work``, again while only the host's want is in its way and ``go_on``; ``tries`` times at most. ``what``: for the log, said once.
    ``again``: instead of ``work`` from the second try on. ``full``: whether an error comes of the daemon's disk; asked until it does not,
    and meanwhile nothing is tried. Without it a disk that has no room is an error like others."""
    tried = 0
    while True:
        try:
            return await (again if again is not None and tried else work)()
        except Exception as error:
            tried += 1
            is_full = full is not None and full(error)
            waits = is_full or is_the_hosts(error) or (full is not None and lacks_room(error))
            if not waits or not go_on() or tried == tries:
                raise
            if tried == 1:
                say(f"{what}: {describe(error)}; trying again")
            await asyncio.sleep(AGAIN)
            while full is not None and is_full:
                if not go_on():
                    raise
                is_full = full(error)
                await asyncio.sleep(AGAIN)
