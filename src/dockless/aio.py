"""``dockless`` for programs with an event loop, asyncio's or trio's (also by way of anyio): the same names, to be awaited.

::

    from dockless import PIPE, aio

    result = await aio.run("python:3.12", ["python", "-V"], capture_output=True, text=True)

    async with aio.Sandbox(["cat"], stdin=PIPE, stdout=PIPE, text=True) as box:
        await box.stdin.write("a line\\n")
        async for line in box.stdout: ...

    job = await aio.submit(["python3", "train.py"], gpus=1); await job.wait()

Streams and ends are waited for by the loop itself, without threads; what only blocks for a moment, like a start, is called in one. Whoever
is cancelled ends what it started: nothing is left when the cancellation arrives.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial, wraps
from types import TracebackType
from typing import Concatenate, ParamSpec

from dockless import _async_volumes as volumes
from dockless import _box, _call, _committing, _events, _executing, _finding, _submitting
from dockless._async_attaching import Attachment, Stdin, attaching, opening_stdin, stepped
from dockless._async_events import AsyncEvents
from dockless._async_streams import AsyncInput, AsyncOutput, AsyncStreams
from dockless._call import box_for, result_from
from dockless._executing import RunningCommand, Size, captured
from dockless._loop import in_thread, pause, readable, unless_cancelled
from dockless._opening import Opening
from dockless._stdio import Stdio
from dockless._streams import S, StreamSettings
from dockless.base.checks import checked
from dockless.base.paths import Argument
from dockless.base.pickling import Unpicklable
from dockless.base.typing import TYPE_CHECKING, Any, Generic, TypeVar, overload
from dockless.errors import SandboxGone

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._async_files import Files
    from dockless._box import Arguments
    from dockless._box import Image as ImageOrArguments
    from dockless._keywords import AnySandbox, BytesExec, BytesSandbox, ExecOptions, TextExec, TextSandbox
    from dockless._result import Result
    from dockless.base.waits import Pause
    from dockless.images import Image
    from dockless.images.archive.diff import Change
    from dockless.images.progress import Progress
    from dockless.images.pull_policy import PullPolicy
    from dockless.sandbox.run.door import Entered
    from dockless.sandbox.run.health import Health
    from dockless.sandbox.run.logfile import Row
    from dockless.sandbox.run.process import Exit
    from dockless.sandbox.spec import Spec
    from dockless.sandbox.state import State
    from dockless.sched import Client, Job, LogLine
    from dockless.sched.wire.entered import EnteredJob

__all__ = [
    "Attachment", "Execution", "Sandbox", "Submitted", "commit", "create", "diff", "events", "list", "pull", "run", "start", "submit",
    "volumes",
]  # fmt: skip

P = ParamSpec("P")
T = TypeVar("T")
_list = list


def _method(function: Callable[Concatenate[_box.Sandbox[Any], P], T]) -> Callable[Concatenate[Sandbox[Any], P], Coroutine[Any, Any, T]]:
    """A method of ``dockless.Sandbox`` that blocks for a moment, to be awaited. A cancellation arrives when it has returned."""

    @wraps(function)
    async def call(self: Sandbox[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await in_thread(partial(function, self.box, *args, **kwargs))

    return call


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
        async with await self._spawn(argv, captured(options, input)) as command:
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
        return Opening(self._spawn(argv, options))

    async def _spawn(self, argv: tuple[Argument, ...], options: dict[str, Any]) -> Execution[Any]:
        return await unless_cancelled(partial(self._entered._spawn, Execution, *argv, **options), Execution.close)

    @wraps(_executing.Enterable.spawn_alone)
    async def spawn_alone(self, *argv: Argument, **options: Unpack[ExecOptions]) -> None:
        await in_thread(partial(self._entered.spawn_alone, *argv, **options))


class Sandbox(Enterable, Unpicklable, Generic[S]):
    """``dockless.Sandbox`` for ``async with``; its keywords are the same. ``await box`` waits for its end.

    ``stdin``, where ``PIPE`` was given: ``await box.stdin.write(data)``, ``box.stdin.close()``. ``stdout``, ``stderr``: ``async for line in
    box.stdout``, ``async for chunk in box.stdout.chunks()``, ``await box.stdout.read()``. ``on_stdout`` and ``on_stderr`` are plain
    functions, called by the loop. ``box``: the same sandbox for functions that block.
    """

    @overload
    def __init__(self: Sandbox[str], image: ImageOrArguments = None, args: Arguments = None, **options: Unpack[TextSandbox]) -> None: ...
    @overload
    def __init__(self: Sandbox[bytes], image: ImageOrArguments = None, args: Arguments = None, **options: Unpack[BytesSandbox]) -> None: ...
    @overload
    def __init__(self: Sandbox[Any], image: ImageOrArguments = None, args: Arguments = None, **options: Unpack[AnySandbox]) -> None: ...
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

    async def fork(self, n: int = 1) -> _list[Sandbox[bytes]]:
        """As that of ``dockless.Sandbox``. Who is cancelled meanwhile has none of them left."""

        async def remove(made: _list[_box.Sandbox[bytes]]) -> None:
            for box in made:
                await in_thread(partial(box.rm, force=True))

        return [Sandbox.of(box) for box in await unless_cancelled(partial(self.box.fork, n), remove)]

    @wraps(_box.Sandbox.update)
    async def update(self, *, restart: str | None = None, **limits: Any) -> None:
        await in_thread(partial(self.box.update, restart=restart, **limits))


def _awaited(run: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """``dockless.run`` with its overloads, to be awaited."""

    @wraps(run)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await _run(*args, **kwargs)  # type: ignore[arg-type]
        return result

    return call


async def _run(image: Any = None, args: Any = None, *, input: Any = None, check: bool = False, **options: Any) -> Any:
    async with box_for(Sandbox, image, args, input=input, **options) as box:
        out, err = await box.communicate(input)
        result = result_from(box, out, err)
    if check:
        result.check_returncode()
    return result


run = _awaited(_call.run)
arun = run
"""Its name in ``dockless``."""


def _found(start: Callable[P, _box.Sandbox[bytes]]) -> Callable[P, Opening[Sandbox[bytes]]]:
    """A function that gives a handle, to be awaited, or for ``async with``, which lets go of it. Who is cancelled meanwhile leaves no
    sandbox that nobody has a handle of."""

    @wraps(start)
    def call(*args: P.args, **kwargs: P.kwargs) -> Opening[Sandbox[bytes]]:
        return Opening(unless_cancelled(lambda: Sandbox.of(start(*args, **kwargs)), partial(Sandbox.rm, force=True)))

    return call


create = _found(_finding.create)
start = _found(_finding.start)


@wraps(_committing.diff)
async def diff(sandbox: str | Sandbox[Any], *, pause: bool = True) -> Sequence[Change]:
    return await in_thread(partial(_committing.diff, _blocking(sandbox), pause=pause))


@wraps(_committing.commit)
async def commit(sandbox: str | Sandbox[Any], reference: str | None = None, **options: Any) -> Image:
    return await in_thread(partial(_committing.commit, _blocking(sandbox), reference, **options))


def _blocking(sandbox: str | Sandbox[Any]) -> str | _box.Sandbox[Any]:
    return sandbox.box if isinstance(sandbox, Sandbox) else sandbox


async def list(*, labels: Mapping[str, str | None] | None = None, state: str | Iterable[str] | None = None) -> Sequence[Sandbox[bytes]]:
    """The sandboxes of this user: see ``dockless.list``."""
    return [Sandbox.of(box) for box in await in_thread(partial(_finding.list, labels=labels, state=state))]


async def pull(
    image: str, *, platform: str | None = None, policy: PullPolicy = "always", progress: Callable[[Progress], None] | None = None
) -> Image:
    """Bring an image into the store: see ``Store.pull``. A cancellation ends it; what has come is kept. A thread calls ``progress``."""
    given_up = threading.Event()

    def told(step: Progress) -> None:
        if given_up.is_set():
            raise _box.Cancelled(image)
        if progress is not None:
            progress(step)

    def bring() -> Image:
        from dockless.images import Store

        return Store().pull(image, platform=platform, policy=policy, progress=told)

    return await in_thread(bring, given_up.set)


def events(
    *,
    since: float | None = None,
    until: float | None = None,
    kinds: str | Iterable[str] = (),
    ids: str | Iterable[str] = (),
    images: str | Iterable[str] = (),
    labels: Mapping[str, str | None] | None = None,
) -> AsyncEvents:
    """As ``dockless.events``, for ``async for`` or ``async with``: from the first step or from the ``with`` on, until it is closed."""
    return AsyncEvents(partial(_events.events, since=since, until=until, kinds=kinds, ids=ids, images=images, labels=labels))


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


def _submitted(submit: Callable[P, _submitting.Submitted]) -> Callable[P, Coroutine[Any, Any, Submitted]]:
    """``dockless.submit``, to be awaited. A cancellation meanwhile cancels the job, too."""

    @wraps(submit)
    async def call(*args: P.args, **kwargs: P.kwargs) -> Submitted:
        return await unless_cancelled(lambda: Submitted(submit(*args, **kwargs).id), partial(Submitted.cancel, grace=0))

    return call


submit = _submitted(_submitting.submit)
