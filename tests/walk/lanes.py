"""Where a call is made: in this thread, in another one, in two loops of asyncio and in one of trio.

A call is a coroutine over the names of ``dockless.aio``. Lanes without a loop give it objects with the same names whose methods block: it
never waits there, and one step brings it to its end.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import trio

import dockless
from dockless import aio

Call = Callable[["Lane"], Coroutine[Any, Any, Any]]
_AT_ONCE = frozenset(("poll", "kill", "terminate", "send_signal", "resize", "close", "watch", "as_user", "chunks", "logs", "spawn"))
"""Methods that ``dockless.aio`` does not await either."""


class Cancelled(Exception):
    """The call was cancelled, as it was asked to be."""


class Awaited:
    """An object whose methods block, with the names of ``dockless.aio``: what they give is there when it is awaited."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._made, name)
        if not callable(found):
            return Awaited(found) if name in ("files", "stdin", "stdout", "stderr") and found is not None else found
        if name in _AT_ONCE:
            return lambda *args, **options: _face(found(*args, **options))

        async def call(*args: Any, **options: Any) -> Any:
            answer = _face(found(*args, **options))
            if name == "write" and hasattr(self._made, "flush"):
                self._made.flush()
            return answer

        return call

    def __int__(self) -> int:
        return int(self._made)

    async def __aenter__(self) -> Any:
        self._made.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._made.__exit__(*error)

    async def __aiter__(self) -> AsyncIterator[Any]:
        for item in self._made:
            yield item

    async def aclose(self) -> None:
        self._made.close()


def _face(made: Any) -> Any:
    return Awaited(made) if hasattr(made, "__enter__") or hasattr(made, "__next__") else made


class Lane:
    """In this thread, at once."""

    def start(self, call: Call, cancel: float | None = None) -> Future[Any]:
        """``cancel``: after so many seconds, where the lane can."""
        done: Future[Any] = Future()
        _settle(done, partial(self._now, call))
        return done

    def _now(self, call: Call) -> Any:
        steps = call(self)
        try:
            steps.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("a call that blocks has waited")

    def handle(self, known: Any) -> Any:
        return Awaited(known.box)

    def opened(self, box: dockless.Sandbox[Any]) -> Any:
        return Awaited(box)

    def sandbox(self, *args: Any, **options: Any) -> Any:
        return Awaited(dockless.Sandbox(*args, **options))

    async def run(self, *args: Any, **options: Any) -> Any:
        return dockless.run(*args, **options)

    async def begin(self, *args: Any, **options: Any) -> Any:
        return dockless.start(*args, **options)

    async def make(self, *args: Any, **options: Any) -> Any:
        return dockless.create(*args, **options)

    async def submit(self, *args: Any, **options: Any) -> Any:
        return Awaited(dockless.submit(*args, **options))

    async def list(self) -> Any:
        return dockless.list()

    async def past(self, id: str) -> Any:
        with dockless.events(since=0, until=time.time(), ids=id) as events:
            return [*events]

    async def blocking(self, function: Callable[[], Any]) -> Any:
        """For what ``dockless.aio`` does not have."""
        return function()

    def close(self) -> None: ...


class Thread(Lane):
    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(8)

    def start(self, call: Call, cancel: float | None = None) -> Future[Any]:
        return self._pool.submit(self._now, call)

    def close(self) -> None:
        self._pool.shutdown()


class _Loop(Lane):
    def handle(self, known: Any) -> Any:
        return aio.Sandbox.of(known.handle)

    def opened(self, box: dockless.Sandbox[Any]) -> Any:
        return aio.Sandbox.of(box)

    def sandbox(self, *args: Any, **options: Any) -> Any:
        return aio.Sandbox(*args, **options)

    async def run(self, *args: Any, **options: Any) -> Any:
        return await aio.run(*args, **options)

    async def begin(self, *args: Any, **options: Any) -> Any:
        return (await aio.start(*args, **options)).box

    async def make(self, *args: Any, **options: Any) -> Any:
        return (await aio.create(*args, **options)).box

    async def submit(self, *args: Any, **options: Any) -> Any:
        return await aio.submit(*args, **options)

    async def list(self) -> Any:
        return await aio.list()

    async def past(self, id: str) -> Any:
        return [event async for event in aio.events(since=0, until=time.time(), ids=id)]

    async def blocking(self, function: Callable[[], Any]) -> Any:
        return await anyio.to_thread.run_sync(function)

    async def _whole(self, call: Call, cancel: float | None) -> Any:
        if cancel is None:
            return await call(self)
        with anyio.move_on_after(cancel) as scope:
            return await call(self)
        assert scope.cancelled_caught
        raise Cancelled


class Asyncio(_Loop):
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def start(self, call: Call, cancel: float | None = None) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(self._whole(call, cancel), self._loop)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._loop.shutdown_default_executor(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Trio(_Loop):
    def __init__(self) -> None:
        self._ready = threading.Event()
        self._over: trio.Event
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery
        self._thread = threading.Thread(target=trio.run, args=(self._main,))
        self._thread.start()
        self._ready.wait()

    async def _main(self) -> None:
        self._over, self._token = trio.Event(), trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            self._ready.set()
            await self._over.wait()

    def start(self, call: Call, cancel: float | None = None) -> Future[Any]:
        done: Future[Any] = Future()

        async def task() -> None:
            try:
                done.set_result(await self._whole(call, cancel))
            except Exception as error:
                done.set_exception(error)

        self._token.run_sync_soon(self._nursery.start_soon, task)
        return done

    def close(self) -> None:
        self._token.run_sync_soon(self._over.set)
        self._thread.join()


def _settle(done: Future[Any], function: Callable[[], Any]) -> None:
    try:
        done.set_result(function())
    except Exception as error:
        done.set_exception(error)


def lanes() -> dict[str, Lane]:
    return {"here": Lane(), "thread": Thread(), "loop 1": Asyncio(), "loop 2": Asyncio(), "trio": Trio()}
