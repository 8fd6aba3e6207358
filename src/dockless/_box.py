"""``dockless.Sandbox``: one sandbox with the handles of ``subprocess.Popen``, for ``with``. For ``async with``: ``dockless.aio.Sandbox``.

::

    with Sandbox("python:3.12", ["cat"], stdin=PIPE, stdout=PIPE, text=True, memory="1G") as box:
        out, err = box.communicate("hello")

    with Sandbox(["make"], stdout=PIPE, text=True, on_stderr=print) as box:
        for line in box.stdout: ...

Entering starts it and leaving ends it: whatever happens inside the block, nothing of it is left afterwards. It is its process's: in a
child by ``os.fork`` its methods raise ``SandboxError``, and leaving the block changes nothing.

``Sandbox.open``, ``dockless.start`` and ``dockless.list`` give the same class for sandboxes that this ``with`` does not hold. They have no
streams, and leaving a ``with`` of one lets go of the handle alone: the sandbox goes on.
"""

from __future__ import annotations

import _thread
import contextlib
import os
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from types import TracebackType

from dockless._debugging import Debuggable
from dockless._executing import WithTerminal
from dockless._gpus import leased
from dockless._life import LifeCycle, check_labels, refuse_job
from dockless._options import gpus_wanted, image_and_args, make_spec
from dockless._pulling import present
from dockless._stdio import Stdio, Stream, Text
from dockless._streams import S, Streams, StreamSettings
from dockless.base import signal
from dockless.base.checks import checked
from dockless.base.dataclass import replace
from dockless.base.interrupts import held, waiting
from dockless.base.paths import Argument
from dockless.base.pickling import Unpicklable
from dockless.base.typing import IO, TYPE_CHECKING, Any, Generic, TypeVar, cast, overload
from dockless.base.units import parse_duration
from dockless.errors import BadInput, SandboxGone, Unsupported
from dockless.sandbox.spec import Spec

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._attaching import Attachment
    from dockless._keywords import AnySandbox, BytesSandbox, Options, TextSandbox
    from dockless._streams import Output
    from dockless.images.progress import Progress
    from dockless.sandbox.enter import Entry
    from dockless.sandbox.run.box import Box
    from dockless.sandbox.run.door import Entered, Entrance
    from dockless.sandbox.run.foreground import ForegroundSandbox as Inner
    from dockless.sandbox.run.mounted import Guest, Mounted
    from dockless.sandbox.run.process import Exit, Process
    from dockless.sandbox.state import State

    Image = str | Spec | Sequence[Argument] | None
    Arguments = Sequence[Argument] | None

T = TypeVar("T")


class Cancelled(Exception):
    """Nobody waits for the pull any more."""


class Sandbox(Debuggable, LifeCycle, WithTerminal, Unpicklable, Generic[S]):
    """``image``: a name, a ready ``Spec``, or arguments for the pseudo-image ``host``. ``id``: a name of your own.

    ``stdin``, ``stdout``, ``stderr``: None (ours), ``PIPE``, ``DEVNULL``, ``STDOUT``, an fd or a file. ``measure``: note what each step of
    the start takes. ``size``: rows and columns of its terminal, where it has one. Everything else: see ``Options``. The attributes
    ``stdin``, ``stdout`` and ``stderr`` are file objects where ``PIPE`` was given, or it has a terminal.
    """

    _simulated = False
    _spec: Spec | None = None
    _box: Inner | None = None
    _opened: Box | None = None
    _ends: IO[bytes] | None = None
    _mounted: Mounted | None = None
    _streams: Streams[S] | None = None
    _known: tuple[Hashable, Entrance, str] | None = None
    """Of one run of it."""

    @overload
    def __init__(self: Sandbox[str], image: Image = None, args: Arguments = None, **options: Unpack[TextSandbox]) -> None: ...
    @overload
    def __init__(self: Sandbox[bytes], image: Image = None, args: Arguments = None, **options: Unpack[BytesSandbox]) -> None: ...
    @overload
    def __init__(self: Sandbox[Any], image: Image = None, args: Arguments = None, **options: Unpack[AnySandbox]) -> None: ...
    @checked
    def __init__(
        self,
        image: str | Spec | Sequence[Any] | None = None,  # whose items are checked as args
        args: Sequence[Argument] | None = None,
        *,
        id: str | None = None,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        text: bool | None = None,
        encoding: str | None = None,
        errors: str | None = None,
        bufsize: int = -1,
        max_output: str | int | None = None,
        on_stdout: Callable[[Any], object] | None = None,
        on_stderr: Callable[[Any], object] | None = None,
        measure: bool = False,
        size: tuple[int, int] | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._size = size
        self._given_up = False
        if isinstance(image, Spec):
            if args is not None or options:
                raise BadInput("a ready Spec takes no further keywords", subject="spec", hint="use dataclasses.replace(spec, …)")
            self._spec = image
        else:
            name, arguments = image_and_args(image, args)
            self._spec = make_spec(name, arguments, **options)
        self._labels = check_labels(options.get("labels"))
        self._wanted_gpus = gpus_wanted(options)
        self._pull = options.get("pull") or "missing"
        self._platform = options.get("platform")
        self._settings = StreamSettings(
            stdin, stdout, stderr, text=Text(text, encoding, errors), bufsize=bufsize, max_output=max_output, on_stdout=on_stdout,
            on_stderr=on_stderr, tty=self.spec.tty,
        )  # fmt: skip
        self._id = id
        self._measure = measure
        self._held = contextlib.ExitStack()
        self._rename_lock = _thread.allocate_lock()

    @classmethod
    @checked
    def open(cls, id: str) -> Sandbox[bytes]:
        """A sandbox of this user by its id, detached or of another program, running or ended. ``SandboxGone``, ``BadInput``"""
        from dockless.sandbox.run import box

        return Sandbox.of(box.get(id))

    @classmethod
    def of(cls, box: Box) -> Sandbox[bytes]:
        """The same for one that was found already."""
        made: Sandbox[bytes] = Sandbox.__new__(Sandbox)
        made._held = contextlib.ExitStack()
        made._rename_lock = _thread.allocate_lock()
        made._opened = box
        return made

    # -- what it is

    @property
    def spec(self) -> Spec:
        """What was asked for. ``SandboxGone`` for a handle whose sandbox is gone."""
        return self._spec if self._spec is not None else self._found.spec

    def __repr__(self) -> str:
        known = self._opened or self._box
        return f"<dockless.Sandbox {known.id if known is not None else 'not started'}>"

    @property
    def id(self) -> str:
        return self._opened.id if self._opened is not None else self._running.id

    @property
    def state(self) -> State:
        if self._box is not None and self._box.process.poll() is not None:
            return "exited"
        return super().state

    @property
    def labels(self) -> dict[str, str]:
        """Those that it was started with. ``SandboxGone``"""
        return super().labels if self._opened is not None else self._labels

    @property
    def _found(self) -> Box:
        return self._opened if self._opened is not None else self._running.box

    @property
    def _renaming(self) -> _thread.LockType:
        return self._rename_lock

    def _acted_on(self) -> contextlib.AbstractContextManager[Inner | Box]:
        """``inner`` for one call, as ``_now``."""
        return contextlib.nullcontext(self._running) if self._opened is None else self._now()

    def _renamed(self, box: Box) -> None:
        self._opened = box
        self._mounted = None

    def _let_go(self) -> None:
        if self._files is not None:
            self._files.close()

    @property
    def pid(self) -> int:
        """The sandbox's init, as the host numbers it."""
        if self._opened is None:
            return self.process.pid
        with self._now() as box:
            return box.init_pid

    @property
    def process(self) -> Process:
        """The process of one that this program started and holds. ``Unsupported`` for a handle."""
        if self._opened is not None:
            hint = "use the methods of the handle itself"
            raise Unsupported(f"sandbox {self.id} is not held by this program", subject=self.id, hint=hint)
        return self._running.process

    @property
    def returncode(self) -> int | None:
        """As ``subprocess`` has it, None while it runs."""
        ended = self.poll()
        return None if ended is None else ended.returncode

    @property
    def simulated(self) -> bool:
        """Whether its GPUs are simulated."""
        if self._opened is None:
            return self._simulated
        with contextlib.suppress(SandboxGone):
            return self._opened.labels.get("gpus") == "simulated"
        return False

    @property
    def warnings(self) -> tuple[str, ...]:
        """Limits that ``best_effort`` could not keep, and roundings of the kernel."""
        simulated: tuple[str, ...] = ("the GPUs are simulated: nothing computes on them",) if self.simulated else ()
        return (*simulated, *self.inner.warnings)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of its GPUs."""
        return self.inner.spec.gpus if self._opened is not None or self._box is not None else ()

    @property
    def inner(self) -> Inner | Box:
        """The object of ``dockless.sandbox``: of one that this program holds with its plan and its cgroup."""
        return self._opened if self._opened is not None else self._running

    @property
    def held(self) -> bool:
        """Whether it is, or will be, this object's ``with`` that starts and ends it; else it is a handle alone."""
        return self._opened is None

    @property
    def _running(self) -> Inner:
        if self._box is None:
            raise SandboxGone("the sandbox is not running", hint="use it as a context manager: with dockless.Sandbox(…) as box")
        return self._box

    @property
    def _streaming(self) -> Streams[S]:
        self._running  # noqa: B018 - says so if it has not been started
        assert self._streams is not None
        return self._streams

    @property
    def stdin(self) -> IO[S] | Any:
        """Our end of it where ``PIPE`` was given, a file as ``subprocess.Popen`` has it; None once ``communicate`` was called."""
        return None if self._streams is None else self._streams.stdin

    @property
    def stdout(self) -> Output[S] | Any:
        """The same: ``for line in box.stdout``, ``for chunk in box.stdout.chunks()``, ``read``. Ends when everything inside is dead."""
        return None if self._streams is None else self._streams.stdout

    @property
    def stderr(self) -> Output[S] | Any:
        """The same for stderr."""
        return None if self._streams is None else self._streams.stderr

    def open_stdin(self) -> IO[bytes]:
        """A file to write to the standard input of a detached one that was started with ``interactive=True``; close it. That input stays
        open for others. ``BadInput`` for one without, ``SandboxGone``"""
        fd = self._stdin()
        os.set_blocking(fd, True)
        return open(fd, "wb", buffering=0)

    def _stdin(self) -> int:
        with self._now() as box:
            return box.stdin()

    def attach(self) -> Attachment:
        """Back to a detached one that runs: what it writes from now on, and its terminal or standard input. Leaving the ``with`` of it
        leaves the sandbox running. ``BadInput`` for one that is attached, or whose output is not kept; ``SandboxGone``"""
        from dockless._attaching import to_box

        with self._now() as box:
            return to_box(box)

    def fileno(self) -> int:
        """Readable when everything inside has ended, or ``poll`` has to see to it that it does: for select and event loops."""
        if self._opened is None:
            return self.process.fileno()
        if self._ends is None:
            with self._now() as box:
                self._ends = open(box.pidfd(), "rb", buffering=0)  # noqa: SIM115 - closed when the handle is let go of
        return self._ends.fileno()

    # -- with

    def __enter__(self) -> Sandbox[S]:
        if self._opened is None:
            image = self._prepare()
            try:
                with held():
                    self._streams = self._start(image, Streams)
            except KeyboardInterrupt:
                self.__exit__(None, None, None)
                raise
        return self

    def _prepare(self) -> str:
        """The name of its image, which the store has then: what takes long."""
        if self._box is not None:
            raise BadInput("a Sandbox runs once", subject=self._box.id, hint="make another one")
        with waiting():
            return present(self.spec.image, self._pull, self._pulling, self._platform)

    def _start(self, image: str, streams: Callable[..., Any]) -> Any:
        """Lease, launch; then ``streams`` makes its streams."""
        stdio = self._settings.open()
        try:
            self._box = box = self._launch(image, stdio)
        except BaseException:
            stdio.close()
            self._release()
            raise
        try:
            if self.spec.tty:
                stdio.join(self._open_terminal(box))
            return streams(box.process, stdio, self._settings, f"sandbox {box.id}")
        except BaseException as error:
            stdio.close()
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def _launch(self, image: str, stdio: Stdio) -> Inner:
        from dockless.sandbox.run.foreground import ForegroundSandbox as Inner

        named = self.spec if image == self.spec.image else replace(self.spec, image=image)
        spec, lease = self._held.enter_context(leased(named, self._wanted_gpus))
        labels = self._labels
        if lease is not None:
            self._simulated = lease.simulated
            labels = labels | ({"gpus": "simulated"} if lease.simulated else {})
        stdin, stdout, stderr = stdio.theirs
        box = Inner(
            spec, id=self._id, stdin=stdin, stdout=stdout, stderr=stderr, times=self._measure, labels=labels, size=self._size,
            leased=lease.sockets if lease else (),
        )  # fmt: skip
        box.__enter__()
        if lease is not None:
            lease.close()  # its keeper has it now
        return box

    def _give_up(self) -> None:
        """Nobody waits for the start any more: the pull, which is the long part of it, ends."""
        self._given_up = True

    def _open_terminal(self, box: Inner) -> int:
        from dockless.sandbox.run import door

        try:
            self._terminal = door.terminal(box.entrance())
        except SandboxGone:  # it has ended already, and what it showed is gone
            self._terminal = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        return self._terminal

    def _about(self) -> tuple[str, str]:
        with self._acted_on() as box:
            return f"sandbox {self.id}", self._place(box)[1]

    def _enter(self, entry: Entry, stdio: tuple[int, int, int], **how: Any) -> Entered:
        from dockless.sandbox.run import door

        return self._through(partial(door.enter, entry=entry, stdio=stdio, **how))

    def _look(self, image: str, write: bool, entry: Entry, stdio: tuple[int, int, int], **how: Any) -> Entered:
        from dockless.sandbox.run import debug

        return self._through(partial(debug.enter, target=self.spec, image=image, entry=entry, stdio=stdio, write=write, **how))

    def _through(self, enter: Callable[[Entrance], T]) -> T:
        while True:
            with self._acted_on() as box:
                place = self._place(box)[0]
                try:
                    return enter(place)
                except SandboxGone:
                    if self._opened is None or cast("Box", box).present.directory == place.directory:
                        raise
                    # it was renamed just now

    def _place(self, box: Inner | Box) -> tuple[Entrance, str]:
        """Where it is entered, and its image, both of the run that goes on. ``SandboxGone``"""
        run = self._running.id if self._opened is None else cast("Box", box).this_run()
        if self._known is None or self._known[0] != run:
            self._known = run, box.entrance(), (self._spec or box.spec).image
        return self._known[1:]

    def _enter_files(self, entry: Entry, stdio: tuple[int, int, int], *, program: int) -> Entered | Guest:
        """Also into one that does not run, if it keeps its files."""
        if self._opened is None:
            return self._enter(entry, stdio, program=program)
        with self._now() as box:
            runs, named = box.foreground or box.alive, box.present
        if runs:
            return self._enter(entry, stdio, program=program)
        if self._mounted is None:
            from dockless.sandbox.run.mounted import Mounted

            self._mounted = Mounted(named)
        return self._mounted.enter(entry, stdio, program=program)

    def _pulling(self, step: Progress) -> None:
        if self._given_up:
            raise Cancelled(step.image)  # ends the pull; what has come is kept

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with held():
            try:
                self._let_go()
            finally:
                try:
                    if self._box is not None:
                        self._box.__exit__(kind, error, trace)
                finally:
                    self._release()

    def _release(self) -> None:
        self._held.close()
        if self._streams is not None:
            self._streams.close()
        if self._ends is not None:
            self._ends.close()
            self._ends = None

    # -- what it does

    def poll(self) -> Exit | None:
        """How it ended, None while it runs. ``SandboxGone`` for a handle of one that vanished, or was removed at its end."""
        if self._opened is not None:
            with self._now() as box:
                return box.poll()
        return self._running.wait() if self.process.poll() is not None else None

    @checked
    def wait(self, timeout: float | None = None) -> Exit:
        """How it ended. ``TimeoutError`` after ``timeout`` seconds, at once for 0 and less; it then goes on. One with a restart policy: how
        this run ended, ``restarting`` where another follows. Reads no pipe but those that ``on_stdout`` and ``on_stderr`` hear of: see
        ``communicate``."""
        if self._opened is not None:
            with self._now() as box:
                return box.wait(timeout)
        if self._streaming.listening:
            self.process.check_owner()
            self._streaming.wait(timeout)
            timeout = None
        return self._running.wait(timeout)

    @checked
    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[S | Any, S | Any]:
        """Feed ``input``, read stdout and stderr to their ends, wait: ``(stdout, stderr)``, None where there is no pipe.

        ``TimeoutError`` after ``timeout`` seconds; the sandbox then goes on, and what was read so far is kept for the next call.
        """
        self.process.check_owner()
        return self._streaming.communicate(input, timeout)

    @property
    def dropped(self) -> tuple[int, int]:
        """Bytes of stdout and of stderr that ``communicate`` did not keep, as ``max_output`` asked."""
        return self._streaming.dropped

    @checked
    def send_signal(self, number: int) -> None:
        """A signal to the program itself."""
        with self._acted_on() as box:
            box.send_signal(number)

    def terminate(self) -> None:
        """SIGTERM to the program itself."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to everything inside."""
        with self._acted_on() as box:
            box.kill()

    @checked
    def stop(self, grace: str | float | None = None) -> None:
        """The image's stop signal, and after ``grace`` SIGKILL to everything inside. Left out it is the sandbox's own grace, or 10 seconds.
        Returns when it has ended. ``NotEnded`` where it does not."""
        seconds = None if grace is None else parse_duration(grace, "grace")
        if self._opened is None:
            return self._running.stop(seconds)
        with self._now() as box:
            refuse_job(box)
            box.stop(seconds)
