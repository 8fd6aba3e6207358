"""What has to be waited for before it can be used: ``p = await box.spawn(…)``, or ``async with box.spawn(…) as p``."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import TracebackType

from dockless.base.typing import Any, Generic, Protocol, TypeVar


class _Entered(Protocol):
    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


T = TypeVar("T", bound=_Entered)


class Opening(Coroutine[Any, Any, T], Generic[T]):
    """A coroutine that gives something for ``async with``, and is one itself. Who is cancelled meanwhile holds nothing."""

    def __init__(self, opening: Coroutine[Any, Any, T]) -> None:
        self._opening = opening
        self._opened: T | None = None

    async def __aenter__(self) -> T:
        self._opened = await self._opening
        return self._opened

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(kind, error, trace)

    def __await__(self) -> Generator[Any, Any, T]:
        return self._opening.__await__()

    def send(self, value: Any) -> Any:
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        return self._opening.throw(*error)

    def close(self) -> None:
        self._opening.close()
