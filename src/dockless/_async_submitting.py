"""``dockless.aio.Submitted``: ``dockless.Submitted``, to be awaited."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import aclosing
from functools import partial

from dockless import _submitting
from dockless._async_attaching import Attachment, attaching, stepped
from dockless._async_executing import Enterable
from dockless._loop import in_thread
from dockless._opening import Opening
from dockless.base.typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dockless.base.waits import Pause
    from dockless.sched import Client, Job, LogLine

T = TypeVar("T")


class Submitted(Enterable):
    """``dockless.Submitted``, to be awaited: a job in the queue, by its id. Equal to another handle of the same job."""

    def __init__(self, id: int) -> None:
        self.job = _submitting.Submitted(id)

    @property
    def id(self) -> int:
        return self.job.id

    @property
    def _entered(self) -> _submitting.Submitted:
        return self.job

    def __repr__(self) -> str:
        return f"Submitted(id={self.id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Submitted) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __int__(self) -> int:
        return self.id

    async def status(self) -> Job:
        """The job as it stands, with the reason for which it waits and its attempts."""
        return await in_thread(self.job.status)

    async def cancel(self, *, grace: float | None = None) -> Job:
        """End it: a waiting one at once, a running one by its stop signal and ``grace`` seconds later by force."""
        return await in_thread(partial(self.job.cancel, grace=grace))

    async def hold(self) -> Job:
        """Keep it from starting until it is released. ``Refused`` if it does not wait."""
        return await in_thread(self.job.hold)

    async def release(self) -> Job:
        """Let it start when its turn comes. ``Refused`` if it does not wait, ``NotPermitted`` if an administrator holds it."""
        return await in_thread(self.job.release)

    async def requeue(self, *, grace: float | None = None) -> Job:
        """End its running attempt, as ``cancel`` does; then it waits for another. One that has ended is submitted again: the job that
        comes back has another number. ``Refused`` if it waits already."""
        return await in_thread(partial(self.job.requeue, grace=grace))

    def __await__(self) -> Generator[Any, None, Job]:
        return self.wait().__await__()

    async def wait(self, timeout: float | None = None) -> Job:
        """Until it has ended. ``TimeoutError`` after ``timeout`` seconds."""
        async with aclosing(_asked(lambda queue: queue.waiting([self.id], timeout=timeout))) as found:
            return (await anext(found))[0]

    async def logs(self, *, follow: bool = False) -> AsyncIterator[LogLine]:
        """What it wrote; with ``follow`` until it has ended."""
        async with aclosing(_asked(lambda queue: queue.reading(self.id, follow=follow))) as lines:
            async for line in lines:
                yield line

    def attach(self) -> Opening[Attachment]:
        """As that of ``dockless.Submitted``: to be awaited, or for ``async with``."""
        return attaching(self.job.attach)


async def _asked(begin: Callable[[Client], Iterator[T | Pause]]) -> AsyncGenerator[T, None]:
    """What the steps of a call to the daemon give."""
    with _submitting._connect() as queue:
        async for found in stepped(begin(queue)):
            yield found
