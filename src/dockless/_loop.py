"""What this package needs of an event loop, asyncio's or trio's: wait for a descriptor, let others run, call what blocks in a thread.

Programs of anyio run on one of the two. Nothing but ``sys.modules`` says which: trio is imported by whoever uses it.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Coroutine

from dockless.base.typing import Any, TypeVar

T = TypeVar("T")


def _trio() -> Any:
    """The module, if we are called from a task of trio's."""
    trio = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_task() else None


async def checkpoint() -> None:
    """Let other tasks run, and be cancelled here."""
    trio = _trio()
    await (trio.lowlevel.checkpoint() if trio else asyncio.sleep(0))


async def pause(seconds: float) -> None:
    """Wait."""
    trio = _trio()
    await (trio or asyncio).sleep(seconds)


async def readable(fd: int, timeout: float | None = None) -> bool:
    """Wait until a descriptor is readable. False after ``timeout`` seconds. One task at a time for each descriptor."""
    return await _ready(fd, False, timeout)


async def writable(fd: int) -> None:
    """The same for writing."""
    await _ready(fd, True, None)


async def _ready(fd: int, writing: bool, timeout: float | None) -> bool:
    trio = _trio()
    if trio:
        with trio.move_on_after(float("inf") if timeout is None else timeout):
            await (trio.lowlevel.wait_writable if writing else trio.lowlevel.wait_readable)(fd)
            return True
        return False
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[bool] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    add(fd, _tell, ready, True)
    timer = None if timeout is None else loop.call_later(timeout, _tell, ready, False)
    try:
        return await ready
    finally:
        remove(fd)
        if timer is not None:
            timer.cancel()


def _tell(ready: asyncio.Future[bool], value: bool) -> None:
    if not ready.done():
        ready.set_result(value)


async def in_thread(function: Callable[[], T], cancelled: Callable[[], object] = bool) -> T:
    """Call what blocks, to its end: whoever is cancelled meanwhile, or twice, waits all the same. ``cancelled`` is called at once then."""
    trio = _trio()
    if trio:
        return await _in_trio_thread(trio, function, cancelled)
    loop = asyncio.get_running_loop()
    called = loop.run_in_executor(None, contextvars.copy_context().run, function)
    stopped = None
    while not called.done():
        try:
            await asyncio.wait([called])
        except asyncio.CancelledError as error:
            if stopped is None:
                stopped = error
                cancelled()
    if stopped is not None:
        if not called.cancelled():
            called.exception()  # nobody asks for it any more
        raise stopped
    return called.result()


async def _in_trio_thread(trio: Any, function: Callable[[], T], cancelled: Callable[[], object]) -> T:
    result: list[T] = []
    failed: list[BaseException] = []

    async def watch() -> None:
        try:
            await trio.sleep_forever()
        finally:
            if not result and not failed:
                cancelled()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            with trio.CancelScope(shield=True):
                result.append(await trio.to_thread.run_sync(function))
        except BaseException as error:
            failed.append(error)
        nursery.cancel_scope.cancel()
    await trio.lowlevel.checkpoint_if_cancelled()
    if failed:
        raise failed[0]
    return result[0]


async def unless_cancelled(make: Callable[[], T], undo: Callable[[T], Coroutine[Any, Any, object]]) -> T:
    """What ``make`` gives, called in a thread. It is called to its end: who is cancelled meanwhile has it undone."""
    made: list[T] = []
    try:
        await in_thread(lambda: made.append(make()))
    except BaseException:
        for one in made:
            await undo(one)
        raise
    return made[0]
