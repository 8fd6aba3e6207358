"""``dockless.aio.volumes``: ``dockless.volumes``, to be awaited. A cancellation arrives when a call is over."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import ParamSpec

from dockless import volumes
from dockless._loop import in_thread
from dockless.base.typing import Any, TypeVar

__all__ = volumes.__all__

P = ParamSpec("P")
T = TypeVar("T")


def awaited(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await in_thread(partial(function, *args, **kwargs))

    return call


create = awaited(volumes.create)
get = awaited(volumes.get)
list = awaited(volumes.list)
remove = awaited(volumes.remove)
prune = awaited(volumes.prune)
