"""What a client can ask for, by the words of the protocol, and the answers. Those that hold their connection for longer, to follow a log or
to enter a job, are the server's."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from itertools import islice

from dockless.base import paths
from dockless.base.records import plain
from dockless.base.typing import Any
from dockless.errors import BadInput, NotPermitted, Refused
from dockless.sched.callers import Caller
from dockless.sched.engine import reading
from dockless.sched.engine.admission.exceeded import exceeded
from dockless.sched.engine.engine import Engine
from dockless.sched.engine.gpus import draining, slicing
from dockless.sched.engine.lifecycle import again
from dockless.sched.engine.waiting import holding
from dockless.sched.jobs import Job
from dockless.sched.parsing import MAX_ARRAY
from dockless.sched.store import queries
from dockless.sched.used import BY
from dockless.sched.wire.answers import Answers
from dockless.sched.wire.fields import MOST_SECONDS, integer, job_filter, job_id, job_ids, seconds, words
from dockless.sched.wire.listed import Listed
from dockless.sched.wire.pacing import Pacing
from dockless.sched.wire.picture import Picture
from dockless.sched.wire.protocol import MAX_JOBS_PER_SUBMIT, DaemonInfo

Request = dict[str, Any]
Answer = dict[str, Any]
Verb = Callable[[Caller, Request], Awaitable[Answer]]

AT_ONCE = 100
"""Jobs of an answer that are encoded before somebody else's turn."""
MAX_LISTED = 100_000
MAX_GPUS = 1000
"""GPUs that one request may name."""
MAX_SLICES = 256
"""Slices of GPUs that one request may make or remove."""


class Verbs:
    """``about``: what the daemon says of itself to a caller. ``shutdown``: called when an administrator asks for the end."""

    def __init__(
        self,
        engine: Engine,
        answers: Answers,
        picture: Picture,
        pacing: Pacing,
        about: Callable[[Caller], DaemonInfo],
        shutdown: Callable[[], None],
    ) -> None:
        self._engine, self._answers, self._picture, self._pacing = engine, answers, picture, pacing
        self._about, self._shut_down = about, shutdown

    def table(self) -> dict[str, Verb]:
        return {
            "ping": self._ping,
            "submit": self._submit,
            "queue": self._queue,
            "job": self._job,
            "spec": self._spec,
            "why": self._why,
            "events": self._events,
            "cancel": self._cancel,
            "hold": partial(self._each, partial(holding.hold, self._engine)),
            "release": self._release,
            "requeue": self._requeue,
            "drain": self._drain,
            "undrain": self._drain,
            "mig_create": self._create_slices,
            "mig_remove": self._remove_slices,
            "wait": self._wait,
            "info": self._info,
            "quotas": self._quotas,
            "exceeded": self._exceeded,
            "top": self._top,
            "usage": self._usage,
            "reload": self._reload,
            "shutdown": self._shutdown,
        }

    async def _ping(self, caller: Caller, request: Request) -> Answer:
        return {"daemon": self._about(caller).as_dict()}

    async def _submit(self, caller: Caller, request: Request) -> Answer:
        jobs = request.get("jobs")
        if not isinstance(jobs, list) or not 1 <= len(jobs) <= MAX_JOBS_PER_SUBMIT:
            raise BadInput(f"'jobs' is not a list of 1 to {MAX_JOBS_PER_SUBMIT}", subject="jobs", hint="submit in parts")
        array = integer(request, "array", 1, MAX_ARRAY)
        turn = partial(self._pacing.turn, caller.uid)
        ids = await self._engine.submit(caller, jobs, array, gang=request.get("gang") is True, turn=turn)
        return {"first": ids[0]} if array is not None else {"ids": ids}

    async def _queue(self, caller: Caller, request: Request) -> Answer:
        limit = integer(request, "limit", 0, MAX_LISTED) or 0
        listed = Listed(self._answers, job_filter(request), bool(request.get("ended")), limit, partial(self._pacing.turn, caller.uid))
        if request.get("pages"):
            return {"listed": listed}

        async def viewed() -> AsyncIterator[list[Job]]:
            async for part in listed.parts():
                yield [self._answers.view(caller, job) for job in part.jobs]

        return {"jobs": viewed()}

    async def _job(self, caller: Caller, request: Request) -> Answer:
        return {"job": self._answers.job(caller, job_id(request.get("job"))).as_dict()}

    async def _why(self, caller: Caller, request: Request) -> Answer:
        await self._engine.decided()
        found = await self._answers.why(caller, job_id(request.get("job")), partial(self._pacing.turn, caller.uid))
        return {"why": found.as_dict()}

    async def _events(self, caller: Caller, request: Request) -> Answer:
        return {"events": plain(self._answers.events(caller, job_id(request.get("job"))))}

    async def _cancel(self, caller: Caller, request: Request) -> Answer:
        grace = seconds(request, "grace", 3600.0)

        async def work(number: int, caller: Caller) -> None:
            await self._engine.cancel(number, caller.user, grace)

        return await self._each(work, caller, request)

    async def _drain(self, caller: Caller, request: Request) -> Answer:
        gpus, reason = _gpus(request), request.get("reason") or ""
        if not isinstance(reason, str):
            raise BadInput("'reason' is no text", subject="reason", hint="say it in words")
        everything = bool(request.get("all"))
        if bool(gpus) == everything:
            message = "some GPUs are named, and all" if gpus else "no GPUs are named"
            raise BadInput(message, subject="gpus", hint="name some, or the whole host: --all")
        if request["op"] == "drain":
            await draining.drain(self._engine, caller, gpus, everything, reason)
        else:
            await draining.undrain(self._engine, caller, gpus, everything)
        return {}

    async def _create_slices(self, caller: Caller, request: Request) -> Answer:
        index = integer(request, "gpu", 0, MAX_GPUS)
        profiles = words(request, "profiles", MAX_SLICES)
        if index is None:
            raise BadInput("'gpu' is missing", subject="gpu", hint="give its index, the first column of `dockless gpu list`")
        return {"created": await slicing.create(self._engine, caller, index, profiles)}

    async def _remove_slices(self, caller: Caller, request: Request) -> Answer:
        await slicing.remove(self._engine, caller, words(request, "slices", MAX_SLICES))
        return {}

    async def _release(self, caller: Caller, request: Request) -> Answer:
        answer = await self._each(partial(holding.release, self._engine), caller, request)
        await self._engine.decided()
        return answer

    async def _requeue(self, caller: Caller, request: Request) -> Answer:
        grace, turn = seconds(request, "grace", 3600.0), partial(self._pacing.turn, caller.uid)

        new: dict[int, int] = {}
        asked: dict[int, asyncio.Future[int]] = {}  # by the job that stands for those that start together: once, however many are named

        async def work(number: int, caller: Caller) -> None:
            first = again.stands_for(self._engine, number)
            if first not in asked:
                asked[first] = asyncio.ensure_future(again.ask(self._engine, number, caller.user, grace, turn))
            new[number] = await asked[first]

        await self._each(work, caller, request)
        await self._engine.decided()
        numbers = job_ids(request)
        return {
            "jobs": _some_at_a_time(self._answers.all_of(caller, [new[number] for number in numbers])),
            "new": [new[number] for number in numbers],
        }

    async def _spec(self, caller: Caller, request: Request) -> Answer:
        """What was asked for, with its variables: for those alone who could enter it."""
        number = job_id(request.get("job"))
        self._answers.enterable(caller, number)
        body = queries.spec(self._engine.reader, number)
        if not body:
            hint = "only the newest are kept; dockless queue ID shows what is known of it"
            raise Refused(f"what job {number} asked for is not kept any more", subject=str(number), hint=hint)
        return {"spec": json.loads(body)}

    async def _each(self, work: Callable[[int, Caller], Awaitable[None]], caller: Caller, request: Request) -> Answer:
        """``work`` on each of the caller's jobs that are named."""
        numbers, turn = job_ids(request), partial(self._pacing.turn, caller.uid)
        await self._answers.all_own(caller, numbers, turn)
        await self._engine.each(numbers, lambda number: work(number, caller), turn)
        return {"jobs": _some_at_a_time(self._answers.all_of(caller, numbers))}

    async def _wait(self, caller: Caller, request: Request) -> Answer:
        numbers, timeout = job_ids(request), seconds(request, "timeout", 1e9)
        request.clear()  # a waiting client costs the daemon these numbers and no more
        left = await self._answers.wait(caller, numbers, timeout, partial(self._pacing.turn, caller.uid))
        return {"timeout": True, "left": left} if left else {"jobs": _some_at_a_time(self._answers.all_of(caller, numbers))}

    async def _info(self, caller: Caller, request: Request) -> Answer:
        await self._engine.gpus.look()
        return {"info": self._answers.info().as_dict()}

    async def _quotas(self, caller: Caller, request: Request) -> Answer:
        await self._engine.gpus.look()
        return {"quotas": plain(self._answers.quotas())}

    async def _exceeded(self, caller: Caller, request: Request) -> Answer:
        return {"exceeded": plain(await exceeded(self._engine, caller.uid, _gpus(request)))}

    async def _top(self, caller: Caller, request: Request) -> Answer:
        return {"top": (await self._picture.seen_by(caller)).as_dict()}

    async def _usage(self, caller: Caller, request: Request) -> Answer:
        now = time.time()
        since, until = (seconds(request, name, MOST_SECONDS) for name in ("since", "until"))
        if (by := request.get("by", "user")) not in BY:
            raise BadInput(f"use is not reported by {str(by)[:40]!r}", subject="by", hint=f"use {', '.join(BY)}")
        found = await self._engine.used(now - 30 * 86400 if since is None else since, now if until is None else until, by)
        return {"used": plain(found)}

    async def _reload(self, caller: Caller, request: Request) -> Answer:
        if not caller.admin:
            raise NotPermitted("only an administrator may have the settings read again", subject=caller.user, hint="ask one")
        keys, later = await reading.reload(self._engine)
        return {"file": os.fspath(paths.config_file()), "changed": keys, "next_start": later}

    async def _shutdown(self, caller: Caller, request: Request) -> Answer:
        if not caller.admin:
            raise NotPermitted("only an administrator may end the daemon", subject=caller.user, hint="ask one")
        asyncio.get_running_loop().call_soon(self._shut_down)
        return {}


def _gpus(request: Request) -> list[str]:
    gpus = request.get("gpus") or []
    if not isinstance(gpus, list) or len(gpus) > MAX_GPUS or not all(isinstance(name, str) for name in gpus):
        raise BadInput("'gpus' is not a list of names", subject="gpus", hint="`dockless info` lists the GPUs")
    return gpus


async def _some_at_a_time(jobs: Iterator[Job]) -> AsyncIterator[list[Job]]:
    while part := list(islice(jobs, AT_ONCE)):
        yield part
