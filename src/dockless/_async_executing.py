"""``box.exec``, ``box.spawn`` and their relatives of ``dockless.aio``: commands in a sandbox that runs, to be awaited."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial, wraps
from types import TracebackType

from dockless import _executing
from dockless._async_streams import AsyncInput, AsyncOutput, AsyncStreams
from dockless._executing import RunningCommand, Size, captured
from dockless._loop import in_thread, unless_cancelled
from dockless._opening import Opening
from dockless._stdio import Stdio
from dockless._streams import S, StreamSettings
from dockless.base.checks import checked
from dockless.base.paths import Argument
from dockless.base.typing import TYPE_CHECKING, Any, Generic, overload

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._async_files import Files
    from dockless._keywords import BytesExec, ExecOptions, TextExec
    from dockless._result import Result
    from dockless.sandbox.run.door import Entered
    from dockless.sandbox.run.process import Exit
    from dockless.sched.wire.entered import EnteredJob


class Execution(RunningCommand, Generic[S]):
    """``dockless.Execution``, to be awaited: a command in a sandbox, made by ``box.spawn``. Leaving its ``async with`` ends it."""

    def __init__(
        self, entered: Entered | EnteredJob, args: tuple[str, ...], image: str, stdio: Stdio, settings: StreamSettings, name: str
    ) -> None:
        super().__init__(entered, args, image, stdio, settings, name)
        self._streams: AsyncStreams[S] = AsyncStreams(entered.process, stdio, settings, name)

    @property
    def stdin(self) -> AsyncInput[S] | Any:
        return self._streams.stdin

    @property
    def stdout(self) -> AsyncOutput[S] | Any:
        return self._streams.stdout

    @property
    def stderr(self) -> AsyncOutput[S] | Any:
        return self._streams.stderr

    def __await__(self) -> Generator[Any, None, Exit]:
        return self.wait().__await__()

    @checked
    async def wait(self, timeout: float | None = None) -> Exit:
        """How it ended. ``TimeoutError`` after ``timeout`` seconds; it then goes on."""
        await self._streams.wait(timeout)
        return self._entered.wait()

    @checked
    async def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[S | Any, S | Any]:
        """As that of ``Sandbox``."""
        return await self._streams.communicate(input, timeout)

    async def __aenter__(self) -> Execution[S]:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """End it, if it has not ended, and give back what belongs to it."""
        try:
            if not self.process.forked and self.process.poll() is None:
                self.kill()  # at once, though all threads are busy
            await in_thread(self._end)
        finally:
            self._streams.close()


class Enterable:
    """``exec``, ``shell``, ``spawn``, ``spawn_alone`` and ``files`` of ``dockless.Sandbox`` and ``dockless.Submitted``, to be awaited."""

    @property
    def _entered(self) -> _executing.Enterable:
        """The same for functions that block."""
        raise NotImplementedError

    @property
    def files(self) -> Files:
        """As those of ``dockless.Sandbox``, to be awaited."""
        from dockless._async_files import Files

        return Files(self._entered.files)

    @overload
    async def exec(self, *argv: Argument, check: bool = False, input: str | None = None, **options: Unpack[TextExec]) -> Result[str]: ...
    @overload
    async def exec(
        self, *argv: Argument, check: bool = False, input: bytes | None = None, **options: Unpack[BytesExec]
    ) -> Result[bytes]: ...
    async def exec(self, *argv: Argument, check: bool = False, input: Any = None, **options: Any) -> Result[Any]:
        """Execute a command and wait for its end. A cancellation ends it and all that it started."""
        return await self._executed(self._entered._enter, argv, captured(options, input), input, check)

    async def _executed(
        self, enter: Callable[..., Any], argv: tuple[Argument, ...], options: dict[str, Any], input: Any, check: bool
    ) -> Result[Any]:
        async with await self._spawn(enter, argv, options) as command:
            result = command._result(*await command.communicate(input))
        if check:
            result.check_returncode()
        return result

    @overload
    async def shell(self, line: str, *, check: bool = False, input: str | None = None, **options: Unpack[TextExec]) -> Result[str]: ...
    @overload
    async def shell(self, line: str, *, check: bool = False, input: bytes | None = None, **options: Unpack[BytesExec]) -> Result[bytes]: ...
    async def shell(self, line: str, **options: Any) -> Result[Any]:
        """``exec`` of the sandbox's ``/bin/sh`` with one line. Words of strangers in it run what they like."""
        result: Result[Any] = await self.exec("/bin/sh", "-c", line, **options)
        return result

    @overload
    def spawn(self, *argv: Argument, tty: bool = False, size: Size = None, **options: Unpack[TextExec]) -> Opening[Execution[str]]: ...
    @overload
    def spawn(self, *argv: Argument, tty: bool = False, size: Size = None, **options: Unpack[BytesExec]) -> Opening[Execution[bytes]]: ...
    def spawn(self, *argv: Argument, **options: Any) -> Opening[Execution[Any]]:
        """Start a command and go on: a handle with streams, to be awaited, or for ``async with``, which ends it."""
        return Opening(self._spawn(self._entered._enter, argv, options))

    async def _spawn(self, enter: Callable[..., Any], argv: tuple[Argument, ...], options: dict[str, Any]) -> Execution[Any]:
        return await unless_cancelled(partial(self._entered._spawn, Execution, enter, *argv, **options), Execution.close)

    @wraps(_executing.Enterable.spawn_alone)
    async def spawn_alone(self, *argv: Argument, **options: Unpack[ExecOptions]) -> None:
        await in_thread(partial(self._entered.spawn_alone, *argv, **options))
