"""Failures that say nothing about a job: the host had no descriptors, no memory or no processes left for us. They are waited out."""

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


async def waited_out(
    work: Callable[[], Awaitable[T]],
    what: str,
    go_on: Callable[[], bool],
    tries: int | None = None,
    again: Callable[[], Awaitable[T]] | None = None,
) -> T:
    """``work``, again while only the host's want is in its way and ``go_on``; ``tries`` times at most. ``what``: for the log, said once.
    ``again``: instead of ``work`` from the second try on."""
    tried = 0
    while True:
        try:
            return await (again if again is not None and tried else work)()
        except Exception as error:
            tried += 1
            if not is_the_hosts(error) or not go_on() or tried == tries:
                raise
            if tried == 1:
                say(f"{what}: {describe(error)}; trying again")
        await asyncio.sleep(AGAIN)
