"""``dockless.aio.Pool``: ``dockless.Pool``, to be awaited."""

from __future__ import annotations

from types import TracebackType

from dockless import _pool
from dockless._async_box import Sandbox
from dockless._call import result_from
from dockless._loop import in_thread
from dockless.base.pickling import Unpicklable
from dockless.base.typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._keywords import AnyTake, AnyTakeRun, BytesTake, BytesTakeRun, Options, TextTake, TextTakeRun
    from dockless._pool import Arguments
    from dockless._result import Result


class Pool(Unpicklable):
    """``dockless.Pool`` for ``async with``; its keywords are the same. ``pool``: the same pool for functions that block."""

    _instead = "make another one there"

    def __init__(self, image: str | None = None, *, size: int = 4, expire: str | float | None = None, **options: Unpack[Options]) -> None:
        self.pool = _pool.Pool(image, size=size, expire=expire, **options)

    @property
    def waiting(self) -> int:
        return self.pool.waiting

    async def __aenter__(self) -> Pool:
        try:
            await in_thread(self.pool.__enter__)
        except BaseException:
            await self.close()  # who is cancelled meanwhile has none of them left
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """As that of ``dockless.Pool``."""
        await in_thread(self.pool.close)

    @overload
    def take(self, args: Arguments = None, **options: Unpack[TextTake]) -> Sandbox[str]: ...
    @overload
    def take(self, args: Arguments = None, **options: Unpack[BytesTake]) -> Sandbox[bytes]: ...
    @overload
    def take(self, args: Arguments = None, **options: Unpack[AnyTake]) -> Sandbox[Any]: ...
    def take(self, args: Arguments = None, **options: Any) -> Sandbox[Any]:
        """As that of ``dockless.Pool``, for ``async with``."""
        return Sandbox.of(_pool.Taken(self.pool, args, **options))

    @overload
    async def run(self, args: Arguments = None, **options: Unpack[TextTakeRun]) -> Result[str]: ...
    @overload
    async def run(self, args: Arguments = None, **options: Unpack[BytesTakeRun]) -> Result[bytes]: ...
    @overload
    async def run(self, args: Arguments = None, **options: Unpack[AnyTakeRun]) -> Result[Any]: ...
    async def run(self, args: Arguments = None, *, input: Any = None, check: bool = False, **options: Any) -> Result[Any]:
        """As that of ``dockless.Pool``. A cancellation kills everything inside."""
        async with Sandbox.of(self.pool._box_for(args, input=input, **options)) as box:
            out, err = await box.communicate(input)
            result = result_from(box, out, err)
        if check:
            result.check_returncode()
        return result
