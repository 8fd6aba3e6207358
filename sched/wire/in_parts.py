"""A submit of more jobs than fit into a request: parts on one connection, and one transaction at the end."""

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

KEPT_FOR = 60.0
"""Seconds for which parts are kept without another request on their connection."""


def is_one(request: dict[str, Any]) -> bool:
    """Whether the request is a part, or the end of parts."""
    return request.get("op") == "part" or (request.get("op") == "submit" and request.get("of") is not None)


async def answer(parts: Parts, caller: Caller, request: dict[str, Any], reader: asyncio.StreamReader) -> dict[str, Any]:
    """The answer to such a request."""
    of = integer(request, "of", 1, MAX_JOBS_IN_PARTS)
    jobs = request.get("jobs")
    if request["op"] == "submit":
        first = (await _watched(reader, parts.submit(of or 0), parts.give_up))[0]
        return {"first": first}
    if of is None or not isinstance(jobs, list) or not 1 <= len(jobs) <= MAX_JOBS_PER_SUBMIT:
        parts.close()
        raise BadInput(f"'jobs' is not a list of 1 to {MAX_JOBS_PER_SUBMIT}, or 'of' not said", subject="jobs", hint="send smaller parts")
    await parts.add(caller, jobs, of)
    return {"kept": len(parts)}


async def _watched(reader: asyncio.StreamReader, work: Awaitable[T], gone: Callable[[], None]) -> T:
    """``work`` to its end. ``gone``: called if the client hangs up before."""
    # It waits for the answer and sends nothing, so whatever there is to read is its end.
    watching = asyncio.ensure_future(reader.read(1))
    watching.add_done_callback(lambda task: None if task.cancelled() else gone())
    try:
        return await work
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await watching
