"""``dockless.aio.Sandbox``: ``dockless.Sandbox``, to be awaited."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import aclosing
from functools import partial, wraps
from types import TracebackType
from typing import Concatenate, ParamSpec

from dockless import _box
from dockless._async_attaching import Attachment, Stdin, attaching, opening_stdin, stepped
from dockless._async_debugging import Debuggable
from dockless._async_streams import AsyncInput, AsyncOutput, AsyncStreams
from dockless._loop import in_thread, pause, readable, unless_cancelled
from dockless._opening import Opening
from dockless._streams import S
from dockless.base.checks import checked
from dockless.base.pickling import Unpicklable
from dockless.base.typing import TYPE_CHECKING, Any, Generic, TypeVar, overload
from dockless.errors import SandboxGone

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._box import Arguments, Image
    from dockless._keywords import AnySandbox, BytesSandbox, TextSandbox
    from dockless.sandbox.run.health import Health
    from dockless.sandbox.run.logfile import Row
    from dockless.sandbox.run.process import Exit
    from dockless.sandbox.spec import Spec
    from dockless.sandbox.state import State

P = ParamSpec("P")
T = TypeVar("T")


def _method(function: Callable[Concatenate[_box.Sandbox[Any], P], T]) -> Callable[Concatenate[Sandbox[Any], P], Coroutine[Any, Any, T]]:
    """A method of ``dockless.Sandbox`` that blocks for a moment, to be awaited. A cancellation arrives when it has returned."""

    @wraps(function)
    async def call(self: Sandbox[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await in_thread(partial(function, self.box, *args, **kwargs))

    return call


class Sandbox(Debuggable, Unpicklable, Generic[S]):
    """``dockless.Sandbox`` for ``async with``; its keywords are the same. ``await box`` waits for its end.

    ``stdin``, where ``PIPE`` was given: ``await box.stdin.write(data)``, ``box.stdin.close()``. ``stdout``, ``stderr``: ``async for line in
    box.stdout``, ``async for chunk in box.stdout.chunks()``, ``await box.stdout.read()``. ``on_stdout`` and ``on_stderr`` are plain
    functions, called by the loop. ``box``: the same sandbox for functions that block.
    """

    @overload
    def __init__(self: Sandbox[str], image: Image = None, args: Arguments = None, **options: Unpack[TextSandbox]) -> None: ...
    @overload
    def __init__(self: Sandbox[bytes], image: Image = None, args: Arguments = None, **options: Unpack[BytesSandbox]) -> None: ...
    @overload
    def __init__(self: Sandbox[Any], image: Image = None, args: Arguments = None, **options: Unpack[AnySandbox]) -> None: ...
    def __init__(self, image: Any = None, args: Any = None, **options: Any) -> None:
        self.box: _box.Sandbox[S] = _box.Sandbox(image, args, **options)
        self._streams: AsyncStreams[S] | None = None

    @classmethod
    def of(cls, box: _box.Sandbox[S]) -> Sandbox[S]:
        """The same as a handle that was found by functions that block."""
        made: Sandbox[S] = Sandbox.__new__(Sandbox)
        made.box, made._streams = box, None
        return made

    @classmethod
    def open(cls, id: str) -> Opening[Sandbox[bytes]]:
        """A sandbox of this user by its id, detached or of another program, running or ended: to be awaited, or for ``async with``, which
        lets go of it. ``SandboxGone``, ``BadInput``"""

        async def opening() -> Sandbox[bytes]:
            return Sandbox.of(await in_thread(partial(_box.Sandbox.open, id)))

        return Opening(opening())

    # -- async with

    async def __aenter__(self) -> Sandbox[S]:
        if self.box.held:
            try:
                await in_thread(self._start, self.box._give_up)
            except BaseException as error:
                if self._streams is not None:  # it was cancelled when it had started
                    await self.__aexit__(type(error), error, error.__traceback__)
                raise
        return self

    def _start(self) -> None:
        self._streams = self.box._start(self.box._prepare(), AsyncStreams)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self._streams is not None and self.box.process.poll() is None:
                self.box.kill()  # at once, though all threads are busy
            await in_thread(partial(self.box.__exit__, kind, error, trace))
        finally:
            if self._streams is not None:
                self._streams.close()

    # -- what it is

    @property
    def id(self) -> str:
        return self.box.id

    @property
    def name(self) -> str:
        return self.box.name

    @property
    def labels(self) -> dict[str, str]:
        return self.box.labels

    @property
    def health(self) -> Health | None:
        return self.box.health

    @property
    def state(self) -> State:
        return self.box.state

    @property
    def spec(self) -> Spec:
        return self.box.spec

    @property
    def pid(self) -> int:
        return self.box.pid

    @property
    def gpus(self) -> tuple[str, ...]:
        return self.box.gpus

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.box.warnings

    @property
    def simulated(self) -> bool:
        return self.box.simulated

    @property
    def returncode(self) -> int | None:
        return self.box.returncode

    @property
    def terminal(self) -> int:
        return self.box.terminal

    def resize(self, rows: int, columns: int) -> None:
        self.box.resize(rows, columns)

    @property
    def dropped(self) -> tuple[int, int]:
        return self._streaming.dropped

    @property
    def stdin(self) -> AsyncInput[S] | Any:
        return None if self._streams is None else self._streams.stdin

    @property
    def stdout(self) -> AsyncOutput[S] | Any:
        return None if self._streams is None else self._streams.stdout

    @property
    def stderr(self) -> AsyncOutput[S] | Any:
        return None if self._streams is None else self._streams.stderr

    @property
    def _entered(self) -> _box.Sandbox[S]:
        return self.box

    @property
    def _streaming(self) -> AsyncStreams[S]:
        if self._streams is None:
            raise SandboxGone("the sandbox is not running", hint="use it as a context manager: async with dockless.aio.Sandbox(…) as box")
        return self._streams

    # -- what it does

    def poll(self) -> Exit | None:
        return self.box.poll()

    def send_signal(self, number: int) -> None:
        self.box.send_signal(number)

    def terminate(self) -> None:
        self.box.terminate()

    def kill(self) -> None:
        self.box.kill()

    def __await__(self) -> Generator[Any, None, Exit]:
        return self.wait().__await__()

    @checked
    async def wait(self, timeout: float | None = None) -> Exit:
        """How it ended. ``TimeoutError`` after ``timeout`` seconds, at once for 0 and less; it then goes on. One with a restart policy: how
        this run ended, ``restarting`` where another follows. Reads no pipe but those that ``on_stdout`` and ``on_stderr`` hear of: see
        ``communicate``."""
        if self.box.held:
            await self._streaming.wait(timeout)
            return self.box.inner.wait()
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while True:
            with self.box._now() as found, found.waiting() as waiting:
                left = None if timeout is None else max(0.0, deadline - time.monotonic())
                if not waiting.over and not await readable(waiting.fileno(), left):
                    raise waiting.too_long(timeout)
                if (ended := waiting.result()) is not None:
                    return ended
                if time.monotonic() > deadline:
                    raise waiting.too_long(timeout)
            await pause(0.001)  # it is just being restarted

    @checked
    async def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[S | Any, S | Any]:
        """Feed ``input``, read stdout and stderr to their ends, wait: ``(stdout, stderr)``, None where there is no pipe.

        ``TimeoutError`` after ``timeout`` seconds; the sandbox then goes on, and what was read so far is kept for the next call, as it is
        when this one is cancelled.
        """
        return await self._streaming.communicate(input, timeout)

    @checked
    async def wait_healthy(self, timeout: float | None = None) -> Health:
        """As that of ``dockless.Sandbox``, waited for by the loop itself."""
        from dockless.sandbox.run.health import HealthWatch

        deadline = None if timeout is None else time.monotonic() + timeout
        with self.box._now() as box, HealthWatch(box) as watch:
            while (found := watch.look()) is None:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not await readable(watch.fileno(), left):
                    raise watch.late(timeout)
        return found

    extend = _method(_box.Sandbox.extend)
    stop = _method(_box.Sandbox.stop)
    pause = _method(_box.Sandbox.pause)
    resume = _method(_box.Sandbox.resume)
    start = _method(_box.Sandbox.start)
    restart = _method(_box.Sandbox.restart)
    rename = _method(_box.Sandbox.rename)
    rm = _method(_box.Sandbox.rm)
    inspect = _method(_box.Sandbox.inspect)
    snapshot = _method(_box.Sandbox.snapshot)

    def attach(self) -> Opening[Attachment]:
        """As that of ``dockless.Sandbox``: to be awaited, or for ``async with``."""
        return attaching(self.box.attach)

    def open_stdin(self) -> Opening[Stdin]:
        """As that of ``dockless.Sandbox``: to be awaited, or for ``async with``."""
        return opening_stdin(self.box._stdin)

    async def logs(self, *, follow: bool = False) -> AsyncIterator[Row]:
        """What a detached one wrote; with ``follow`` until it has ended. ``Unsupported``"""
        async with aclosing(stepped(self.box._reading(follow))) as rows:
            async for row in rows:
                yield row

    async def fork(self, n: int = 1) -> list[Sandbox[bytes]]:
        """As that of ``dockless.Sandbox``. Who is cancelled meanwhile has none of them left."""

        async def remove(made: list[_box.Sandbox[bytes]]) -> None:
            for box in made:
                await in_thread(partial(box.rm, force=True))

        return [Sandbox.of(box) for box in await unless_cancelled(partial(self.box.fork, n), remove)]

    @wraps(_box.Sandbox.update)
    async def update(self, *, restart: str | None = None, **limits: Any) -> None:
        await in_thread(partial(self.box.update, restart=restart, **limits))
