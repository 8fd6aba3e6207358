"""``dockless.Sandbox``: one sandbox with the handles of ``subprocess.Popen``, for ``with`` and for ``async with``.

::

    with Sandbox("python:3.12", ["cat"], stdin=PIPE, stdout=PIPE, text=True, memory="1G") as box:
        out, err = box.communicate("hello")

    async with Sandbox(["sleep", "1"]) as box:
        ended = await box

Entering starts it and leaving ends it: whatever happens inside the block, nothing of it is left afterwards. It is its process's: in a
child by ``os.fork`` its methods raise ``SandboxError``, and leaving the block changes nothing.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from dockless._options import image_and_args, make_spec
from dockless._pulling import present
from dockless._stdio import Reader, Stdio, Text, Writer, exchange
from dockless.base.checks import checked
from dockless.base.paths import Argument
from dockless.errors import BadInput, SandboxGone
from dockless.sandbox.spec import Spec

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._keywords import Options
    from dockless.images.progress import Progress
    from dockless.sandbox.run.attached import Sandbox as Inner
    from dockless.sandbox.run.process import Exit, Process


class Cancelled(Exception):
    """Nobody waits for the pull any more."""


class Sandbox:
    """``image``: a name, a ready ``Spec``, or arguments for the pseudo-image ``host``. ``id``: a name of your own.

    ``stdin``, ``stdout``, ``stderr``: None (ours), ``PIPE``, ``DEVNULL``, ``STDOUT``, an fd or a file. ``measure``: note what each step of
    the start takes. Everything else: see ``Options``. The attributes ``stdin``, ``stdout`` and ``stderr`` are file objects where ``PIPE``
    was given.
    """

    @checked
    def __init__(
        self,
        image: str | Spec | Sequence[Any] | None = None,  # whose items are checked as args
        args: Sequence[Argument] | None = None,
        *,
        id: str | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool | None = None,
        encoding: str | None = None,
        errors: str | None = None,
        measure: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self.gpus: tuple[str, ...] = ()
        self.simulated = False
        self._given_up = False
        if isinstance(image, Spec):
            if args is not None or options:
                raise BadInput("a ready Spec takes no further keywords", subject="spec", hint="use dataclasses.replace(spec, …)")
            self.spec = image
        else:
            name, arguments = image_and_args(image, args)
            self.spec = make_spec(name, arguments, **options)
        self._wanted_gpus = options.get("gpus")
        self._pull = options.get("pull") or "missing"
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        self._text = Text(text, encoding, errors)
        self._given = (stdin, stdout, stderr)
        self._id = id
        self._measure = measure
        self._box: Inner | None = None
        self._lease: Any = None
        self._stdio: Stdio | None = None
        self._pumps: list[Reader | Writer] = []

    # -- what it is

    @property
    def id(self) -> str:
        return self._running.id

    @property
    def pid(self) -> int:
        """The sandbox's init, as the host numbers it."""
        return self.process.pid

    @property
    def process(self) -> Process:
        return self._running.process

    @property
    def returncode(self) -> int | None:
        """As ``subprocess`` has it, None while it runs."""
        ended = self.poll()
        return None if ended is None else ended.returncode

    @property
    def warnings(self) -> tuple[str, ...]:
        """Limits that ``best_effort`` could not keep, and roundings of the kernel."""
        simulated = ("the GPUs are simulated: nothing computes on them",) if self.simulated else ()
        return (*simulated, *self._running.warnings)

    @property
    def room(self) -> Inner:
        """The object of ``dockless.sandbox``: its plan, its cgroup."""
        return self._running

    @property
    def _running(self) -> Inner:
        if self._box is None:
            raise SandboxGone("the sandbox is not running", hint="use it as a context manager: with dockless.Sandbox(…) as box")
        return self._box

    def fileno(self) -> int:
        """Readable when everything inside has ended, or ``poll`` has to see to it that it does: for select and event loops."""
        return self.process.fileno()

    # -- with

    def __enter__(self) -> Sandbox:
        self._start()
        self._open_pipes()
        return self

    def _start(self) -> None:
        """Lease, launch; our ends of the pipes stay bare fds in ``_stdio``."""
        from dockless.sandbox.run.attached import Sandbox as Inner

        if self._box is not None:
            raise BadInput("a Sandbox runs once", subject=self._box.id, hint="make another one")
        stdio = Stdio(*self._given)
        try:
            spec = self.spec
            image = present(spec.image, self._pull, self._pulling)
            if image != spec.image:
                from dataclasses import replace

                spec = replace(spec, image=image)
            if self._wanted_gpus is not None:
                from dataclasses import replace

                from dockless import _gpus as gpus

                self._lease = gpus.lease(self._wanted_gpus)
                self.gpus, self.simulated = self._lease.uuids, self._lease.simulated
                spec = replace(spec, gpus=self.gpus)
            stdin, stdout, stderr = stdio.theirs
            box = Inner(spec, id=self._id, stdin=stdin, stdout=stdout, stderr=stderr, times=self._measure)
            self._box = box.__enter__()
        except BaseException:
            stdio.close()
            self._release()
            raise
        stdio.started()
        self._stdio = stdio

    def _pulling(self, step: Progress) -> None:
        if self._given_up:
            raise Cancelled(step.image)  # ends the pull; what has come is kept

    def _open_pipes(self) -> None:
        assert self._stdio is not None
        for number, (name, mode) in enumerate((("stdin", "w"), ("stdout", "r"), ("stderr", "r"))):
            if self._stdio.ours[number] >= 0:
                setattr(self, name, self._text.open(self._stdio.take(number), mode))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self._box is not None:
                self._box.__exit__(kind, error, trace)
        finally:
            self._release()

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.close()
            self._lease = None
        if self._stdio is not None:
            self._stdio.close()
        for pump in self._pumps:
            pump.close()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # what was still buffered has no reader any more
                    stream.close()

    # -- async with

    async def __aenter__(self) -> Sandbox:
        import asyncio

        starting = asyncio.ensure_future(asyncio.to_thread(self._start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread cannot be stopped half way, only its pull: let it arrive, then end what it started. Who cancels twice waits all
            # the same.
            self._given_up = True
            while not starting.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([starting])
            if not starting.cancelled() and starting.exception() is None:
                await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self.__exit__, None, None, None)))
            raise
        self._open_pipes()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        import asyncio

        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self.__exit__, kind, error, trace)))

    def __await__(self) -> Generator[Any, None, Exit]:
        return self.wait_async().__await__()

    @checked
    async def wait_async(self, timeout: float | None = None) -> Exit:
        """``wait`` that lets the event loop go on."""
        from dockless._waiting import until

        await until(self.process, (), None, timeout)
        return self._running.wait()

    @checked
    async def communicate_async(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """``communicate`` that lets the event loop go on."""
        from dockless._waiting import until

        readers, writer = self._ends(input)
        await until(self.process, [r for r in readers if r is not None], writer, timeout)
        return self._collect(readers, writer)

    # -- what it does

    def poll(self) -> Exit | None:
        """How it ended, None while it runs."""
        return self._running.wait() if self.process.poll() is not None else None

    @checked
    def wait(self, timeout: float | None = None) -> Exit:
        """How it ended. ``TimeoutError`` after ``timeout`` seconds; it then goes on. Reads no pipe: see ``communicate``."""
        return self._running.wait(timeout)

    @checked
    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Feed ``input``, read stdout and stderr to their ends, wait: ``(stdout, stderr)``, None where there is no pipe.

        ``TimeoutError`` after ``timeout`` seconds; the sandbox then goes on, and what was read so far is lost.
        """
        readers, writer = self._ends(input)
        if not exchange(self.process, [r for r in readers if r is not None], writer, timeout):
            raise TimeoutError(f"sandbox {self.id} still runs after {timeout} s")
        return self._collect(readers, writer)

    def _ends(self, input: Any) -> tuple[list[Reader | None], Writer | None]:
        """Our ends as readers and writer; file objects over them are let go of."""
        self.process.check_owner()
        writer = None
        stdin = self._fd(0)
        if stdin >= 0:
            writer = Writer(stdin, self._text.encode(input) if input is not None else b"")
            self._pumps.append(writer)
        elif input is not None:
            raise BadInput("input without a pipe to write it to", subject="input", hint="give stdin=PIPE")
        readers = [Reader(fd) if (fd := self._fd(number)) >= 0 else None for number in (1, 2)]
        self._pumps += [reader for reader in readers if reader is not None]
        return readers, writer

    def _fd(self, number: int) -> int:
        import os

        name = ("stdin", "stdout", "stderr")[number]
        stream = getattr(self, name)
        if stream is not None:
            fd = -1 if stream.closed else os.dup(stream.fileno())
            stream.close()
            setattr(self, name, None)
            return fd
        return self._stdio.take(number) if self._stdio is not None else -1

    def _collect(self, readers: Sequence[Reader | None], writer: Writer | None) -> tuple[Any, Any]:
        if writer is not None:
            writer.close()
        self._running.wait()
        out, err = (None if reader is None else self._text.decode(reader.finish()) for reader in readers)
        return out, err

    @checked
    def send_signal(self, number: int) -> None:
        """A signal to the job's own process."""
        self._running.send_signal(number)

    def terminate(self) -> None:
        """SIGTERM to the job's own process."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to everything inside."""
        self._running.kill()
