"""``box.debug`` and ``box.spawn_debug`` of ``dockless.aio``: see ``dockless._debugging``."""

from __future__ import annotations

from functools import partial

from dockless import _debugging
from dockless._async_executing import Enterable, Execution
from dockless._executing import Size, captured
from dockless._loop import in_thread
from dockless._opening import Opening
from dockless.base.paths import Argument
from dockless.base.typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._keywords import BytesDebug, TextDebug
    from dockless._result import Result
    from dockless.images.pull_policy import PullPolicy


class Debuggable(Enterable):
    """``debug`` and ``spawn_debug`` of ``dockless.Sandbox``, to be awaited."""

    @property
    def _entered(self) -> _debugging.Debuggable:
        raise NotImplementedError

    @overload
    async def debug(
        self, image: str, *argv: Argument, write: bool = False, pull: PullPolicy = "missing", check: bool = False,
        input: str | None = None, **options: Unpack[TextDebug],
    ) -> Result[str]: ...  # fmt: skip
    @overload
    async def debug(
        self, image: str, *argv: Argument, write: bool = False, pull: PullPolicy = "missing", check: bool = False,
        input: bytes | None = None, **options: Unpack[BytesDebug],
    ) -> Result[bytes]: ...  # fmt: skip
    async def debug(
        self, image: str, *argv: Argument, write: bool = False, pull: PullPolicy = "missing", check: bool = False, input: Any = None,
        **options: Any,
    ) -> Result[Any]:  # fmt: skip
        """Execute a command of another image among its processes. A cancellation ends it and all that it started."""
        look = await self._looking(image, write, pull, options)
        result: Result[Any] = await self._executed(look, argv, captured(options, input), input, check)
        return result

    @overload
    def spawn_debug(
        self, image: str, *argv: Argument, write: bool = False, pull: PullPolicy = "missing", tty: bool = False, size: Size = None,
        **options: Unpack[TextDebug],
    ) -> Opening[Execution[str]]: ...  # fmt: skip
    @overload
    def spawn_debug(
        self, image: str, *argv: Argument, write: bool = False, pull: PullPolicy = "missing", tty: bool = False, size: Size = None,
        **options: Unpack[BytesDebug],
    ) -> Opening[Execution[bytes]]: ...  # fmt: skip
    def spawn_debug(
        self, image: str, *argv: Argument, write: bool = False, pull: PullPolicy = "missing", **options: Any
    ) -> Opening[Execution[Any]]:
        """Start one and go on: to be awaited, or for ``async with``, which ends it."""

        async def spawning() -> Execution[Any]:
            return await self._spawn(await self._looking(image, write, pull, options), argv, options)

        return Opening(spawning())

    async def _looking(self, image: str, write: bool, pull: PullPolicy, options: dict[str, Any]) -> Any:
        return partial(self._entered._look, await in_thread(partial(_debugging.tools, image, pull, options)), write)
