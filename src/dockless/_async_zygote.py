"""``dockless.aio.Zygote``: ``dockless.Zygote``, to be awaited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType

from dockless import _zygote
from dockless._loop import in_thread
from dockless._zygote import Called
from dockless.base.pickling import Unpicklable
from dockless.base.typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._keywords import Options
    from dockless.sandbox.zygote.running import Running


class Zygote(Unpicklable):
    """``dockless.Zygote`` for ``async with``; its keywords are the same. ``zygote``: the same one for functions that block."""

    _instead = "make another one there"

    def __init__(self, image: str | None = None, preload: Iterable[str] = (), *, size: int = 4, **options: Unpack[Options]) -> None:
        self.zygote = _zygote.Zygote(image, preload, size=size, **options)

    async def __aenter__(self) -> Zygote:
        try:
            await in_thread(self.zygote.__enter__)
        except BaseException:
            await self.close()  # who is cancelled meanwhile has none of it left
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """As that of ``dockless.Zygote``."""
        await in_thread(self.zygote.close)

    def branch(self, preload: Iterable[str], *, size: int = 4) -> Zygote:
        """As that of ``dockless.Zygote``, for ``async with``."""
        other = Zygote.__new__(Zygote)
        other.zygote = self.zygote.branch(preload, size=size)
        return other

    async def call(
        self, function: str, /, *args: Any, timeout: str | float | None = None, needs: Iterable[str] | None = None, **kwargs: Any
    ) -> Called:
        """As that of ``dockless.Zygote``. A cancellation kills everything inside."""
        return await self._called(_zygote._function(function, args, kwargs), timeout, needs)

    async def run_code(
        self,
        source: str,
        variables: Mapping[str, Any] | None = None,
        *,
        timeout: str | float | None = None,
        needs: Iterable[str] | None = None,
    ) -> Called:
        """As that of ``dockless.Zygote``. A cancellation kills everything inside."""
        return await self._called(_zygote._code(source, variables), timeout, needs)

    async def _called(self, request: Mapping[str, Any], timeout: str | float | None, needs: Iterable[str] | None) -> Called:
        running: list[Running] = []
        cancelled: list[bool] = []

        def call() -> Called:
            running.append(self.zygote._begin(request, needs))
            if cancelled:
                running[0].kill()
            return self.zygote._called(running[0], timeout)

        def cancel() -> None:
            cancelled.append(True)
            for one in running:
                one.kill()

        return await in_thread(call, cancel)
