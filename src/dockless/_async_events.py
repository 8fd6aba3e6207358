"""``dockless.events`` for who waits in an event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from types import TracebackType

from dockless._loop import readable, unless_cancelled
from dockless.base.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dockless.sandbox.run.events import Event, Events


class AsyncEvents:
    """For ``async for``: from the first step on. For ``async with``: from there on, so that nothing is missed of what is started inside.
    ``aclose``, or leaving the ``with``, lets go of it."""

    def __init__(self, begin: Callable[[], Events]) -> None:
        self._begin = begin
        self._steps: AsyncGenerator[Event, None] | None = None
        self._found: Events | None = None
        self._beginning = False

    async def __aenter__(self) -> AsyncEvents:
        await self._start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncEvents:
        return self

    async def __anext__(self) -> Event:
        return await anext(await self._start())

    async def _start(self) -> AsyncGenerator[Event, None]:
        async def close(made: Events) -> None:
            made.close()

        if self._beginning:
            raise RuntimeError("events are awaited by two tasks: each needs events of its own")
        if self._steps is None:
            self._beginning = True
            try:
                self._found = await unless_cancelled(self._begin, close)
            finally:
                self._beginning = False
            self._steps = _each(self._found)
        return self._steps

    async def aclose(self) -> None:
        if self._steps is not None:
            await self._steps.aclose()
        if self._found is not None:
            self._found.close()


async def _each(found: Events) -> AsyncGenerator[Event, None]:
    with found:
        over = False
        while not over:
            over = not await readable(found.fileno(), found.left())
            for event in found.read():
                yield event
