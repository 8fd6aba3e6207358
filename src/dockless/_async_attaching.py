"""``box.attach()`` and ``box.open_stdin()`` of ``dockless.aio``, and what comes step by step: waited for by the loop itself."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from functools import partial
from types import TracebackType

from dockless import _attaching
from dockless._loop import checkpoint, in_thread, pause, readable, unless_cancelled, writable
from dockless._opening import Opening
from dockless.base.checks import checked
from dockless.base.pickling import Unpicklable
from dockless.base.typing import TYPE_CHECKING, TypeVar
from dockless.base.waits import Pause

if TYPE_CHECKING:
    from dockless.sandbox.run.logfile import Row

T = TypeVar("T")


class Attachment(Unpicklable):
    """``dockless.Attachment``, to be awaited: ``async for row in it``. Leaving its ``async with`` leaves the program running.

    ``attached``: the same for functions that block.
    """

    def __init__(self, made: _attaching.Attachment) -> None:
        self.attached = made

    @property
    def name(self) -> str:
        return self.attached.name

    @property
    def tty(self) -> bool:
        return self.attached.tty

    @property
    def scrollback(self) -> bytes:
        return self.attached.scrollback

    @property
    def terminal(self) -> int:
        return self.attached.terminal

    def resize(self, rows: int, columns: int) -> None:
        self.attached.resize(rows, columns)

    def detach(self) -> None:
        """Let go of it: it goes on."""
        self.attached.detach()

    @checked
    async def read(self, timeout: float | None = None) -> list[Row]:
        """What has come, at least one row; none when it has ended. ``TimeoutError`` after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (rows := await in_thread(self.attached.come)):
            output = self.attached.output
            if output.over:
                break
            wait = self.attached.pause(deadline)
            await (readable(output.fd, wait) if output.fd >= 0 else pause(wait or 0.0))
        return rows

    async def __aiter__(self) -> AsyncIterator[Row]:
        while rows := await self.read():
            for row in rows:
                yield row

    @checked
    async def write(self, data: bytes) -> None:
        """All of it, as fast as the program reads; after a cancellation a part was written. Errors as those of ``dockless.Attachment``."""
        await checkpoint()
        rest = await in_thread(partial(self.attached.put, memoryview(data)))
        while rest:
            await writable(self.attached.into)
            rest = await in_thread(partial(self.attached.put, rest))

    async def __aenter__(self) -> Attachment:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.detach()


def attaching(attach: Callable[[], _attaching.Attachment]) -> Opening[Attachment]:
    """What ``attach`` gives."""

    async def detach(made: _attaching.Attachment) -> None:
        made.detach()

    async def opening() -> Attachment:
        return Attachment(await unless_cancelled(attach, detach))

    return Opening(opening())


def opening_stdin(opening: Callable[[], int]) -> Opening[Stdin]:
    """The descriptor that ``opening`` gives."""

    async def close(fd: int) -> None:
        os.close(fd)

    async def opened() -> Stdin:
        return Stdin(await unless_cancelled(opening, close))

    return Opening(opened())


class Stdin:
    """The standard input of a detached sandbox, which stays open for others; made by ``box.open_stdin``, for ``async with``."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        if self._fd < 0:
            raise ValueError("it is closed")
        return self._fd

    @checked
    async def write(self, data: bytes) -> None:
        """Write all of it, as fast as the program reads. ``BrokenPipeError`` if it reads no more; after a cancellation a part was
        written."""
        await checkpoint()
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self.fileno(), rest) :]
            except BlockingIOError:
                await writable(self.fileno())

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    async def __aenter__(self) -> Stdin:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


async def stepped(steps: Iterator[T | Pause]) -> AsyncGenerator[T, None]:
    """What the steps of a call give. A step is made in a thread, what it waits for is waited for by the loop."""
    while (step := await in_thread(partial(next, steps, None))) is not None:
        if not isinstance(step, Pause):
            yield step
        elif step.fd < 0:
            await pause(step.seconds or 0.0)
        else:
            await readable(step.fd, step.seconds)
