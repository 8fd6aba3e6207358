"""A submit of more jobs than fit into one request: they are sent in parts on one connection, and queued in one transaction at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from dockless.base.typing import Any, TypeVar
from dockless.errors import BadInput
from dockless.sched.callers import Caller
from dockless.sched.engine.admission.parts import Parts
from dockless.sched.wire.fields import integer
from dockless.sched.wire.protocol import MAX_JOBS_IN_PARTS, MAX_JOBS_PER_SUBMIT

T = TypeVar("T")


def is_one(request: dict[str, Any]) -> bool:
    """Whether the request is a part, or the end of parts."""
    return request.get("op") == "part" or (request.get("op") == "submit" and request.get("of") is not None)


async def answer(
    parts: Parts,
    caller: Caller,
    request: dict[str, Any],
    turn: Callable[[], Awaitable[None]],
    reader: asyncio.StreamReader,
    ahead: bytearray,
) -> dict[str, Any]:
    """The answer to a part, or to the end of parts. After an error the caller closes ``parts``. ``turn``: awaited between pieces of work.
    ``ahead``: bytes of the next request that were read are added to it."""
    of = integer(request, "of", 1, MAX_JOBS_IN_PARTS)
    jobs = request.get("jobs")
    if request["op"] == "submit":
        first = (await _watched(reader, parts.submit(of or 0, turn), parts.give_up, ahead))[0]
        return {"first": first}
    if of is None or not isinstance(jobs, list) or not 1 <= len(jobs) <= MAX_JOBS_PER_SUBMIT:
        why = f"a part needs 'jobs', a list of 1 to {MAX_JOBS_PER_SUBMIT}, and 'of', the number of all jobs"
        raise BadInput(why, subject="jobs", hint="send smaller parts, each with 'of'")
    await parts.add(caller, jobs, of, turn)
    return {"kept": len(parts)}


async def _watched(reader: asyncio.StreamReader, work: Awaitable[T], gone: Callable[[], None], ahead: bytearray) -> T:
    """``work`` to its end. ``gone``: called if the client hangs up before. ``ahead``: as in ``answer``."""

    def read(task: asyncio.Future[bytes]) -> None:
        if task.cancelled():
            return
        if task.exception() is None and task.result():
            ahead.extend(task.result())  # it does not wait for the answer: that is no end
        else:
            gone()

    watching = asyncio.ensure_future(reader.read(1))
    watching.add_done_callback(read)
    try:
        return await work
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await watching
