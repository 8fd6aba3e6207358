"""Commands that are executed in a sandbox that runs: ``box.exec``, ``box.shell``, ``box.spawn``.

::

    box.exec("pip", "install", "rich", check=True)                         a Result, its output captured
    box.shell("ls | wc -l", text=True).stdout                              the sandbox's own /bin/sh, asked for by name
    with box.spawn("python", "-i", stdin=PIPE, stdout=PIPE) as command:     an Execution, with streams
        ...

What enters has the sandbox's own ids, capabilities, seccomp filter and limits, whatever the sandbox has become meanwhile. It ends with the
sandbox, at its ``timeout`` with all that it started, or when the ``with`` of its ``Execution`` is left.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType

from dockless._options import environment, given_items, unknown_keyword
from dockless._result import Result, result_of
from dockless._stdio import DEVNULL, PIPE, Stdio, Stream, Text
from dockless._streams import Ends, S, Streams, StreamSettings
from dockless.base import signal
from dockless.base.checks import check as check_type
from dockless.base.checks import checked
from dockless.base.interrupts import held
from dockless.base.paths import Argument, StrPath
from dockless.base.pickling import Unpicklable
from dockless.base.typing import IO, TYPE_CHECKING, Any, Generic, TypeVar, overload
from dockless.base.units import parse_duration
from dockless.errors import BadInput, DocklessError

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._keywords import BytesExec, TextExec
    from dockless._streams import Output
    from dockless.sandbox.enter import Entry
    from dockless.sandbox.files.files import Files
    from dockless.sandbox.run.door import Entered
    from dockless.sandbox.run.process import Exit, Process
    from dockless.sched.wire.entered import EnteredJob

R = TypeVar("R", bound="RunningCommand")
Size = tuple[int, int] | None
"""Rows and columns."""
_ARGV = Sequence[Argument]
_TEXTS = {str}
_forgotten: deque[Entered | EnteredJob] = deque()
"""Commands whose handles nobody has any more, and nobody closed."""


class WithTerminal:
    """What may have a terminal of its own."""

    _terminal = -1

    @property
    def terminal(self) -> int:
        """The descriptor of our side of its terminal, pty(7); ours to use, not to close. ``BadInput`` for one without."""
        if self._terminal < 0:
            raise BadInput("it has no terminal", subject="tty", hint="give tty=True")
        return self._terminal

    @checked
    def resize(self, rows: int, columns: int) -> None:
        """Tell it the size of its terminal. ``BadInput`` for what none can be, and for one without a terminal."""
        import termios

        from dockless.sandbox.plan.plan import check_size

        check_size(rows, columns)
        termios.tcsetwinsize(self.terminal, (rows, columns))


class RunningCommand(WithTerminal, Unpicklable):
    """A command that runs in a sandbox, without its streams."""

    _streams: Ends

    def __init__(
        self, entered: Entered | EnteredJob, args: tuple[str, ...], image: str, stdio: Stdio, settings: StreamSettings, name: str
    ) -> None:
        self.args = args
        self._entered = entered
        self._image = image
        self._terminal = entered.terminal
        self._closed = False

    def __del__(self, forgotten: deque[Entered | EnteredJob] = _forgotten) -> None:
        """What was not closed goes on, as with ``subprocess``; the next command gives back what belongs to one that has ended."""
        if not getattr(self, "_closed", True):
            forgotten.append(self._entered)

    @property
    def pid(self) -> int:
        """Of the process that waits for it, as the host numbers it."""
        return self.process.pid

    @property
    def process(self) -> Process | EnteredJob:
        return self._entered.process

    @property
    def returncode(self) -> int | None:
        """As ``subprocess`` has it, None while it runs."""
        ended = self.poll()
        return None if ended is None else ended.returncode

    def fileno(self) -> int:
        """Readable when ``poll`` has something to say: for select and event loops."""
        return self.process.fileno()

    @property
    def dropped(self) -> tuple[int, int]:
        """Bytes of stdout and of stderr that ``communicate`` did not keep, as ``max_output`` asked."""
        return self._streams.dropped

    def poll(self) -> Exit | None:
        """How it ended, None while it runs."""
        return self._entered.wait() if self.process.poll() is not None else None

    @checked
    def send_signal(self, number: int) -> None:
        """A signal to its own process."""
        self.process.send_signal(number)

    def terminate(self) -> None:
        """SIGTERM to its own process."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to it and to all that it started."""
        self._entered.kill()

    def _end(self) -> None:
        """End it, if it has not ended, and give back what belongs to it but its streams."""
        if self.process.forked:
            return  # all of it is the parent's
        if self.process.poll() is None:
            self.kill()
            self.process.wait()
        self._closed = True
        self._entered.close()

    def _result(self, out: Any, err: Any) -> Result[Any]:
        return result_of(self._entered.wait(), self.args, self._image, out, err, dropped=self.dropped)


def _close_forgotten() -> None:
    for _ in range(len(_forgotten)):
        try:
            entered = _forgotten.popleft()
        except IndexError:  # another thread closes it
            return
        with contextlib.suppress(DocklessError, OSError):
            if entered.process.forked:
                continue
            if entered.process.poll() is None:
                _forgotten.append(entered)
            else:
                entered.close()


class Execution(RunningCommand, Generic[S]):
    """A command that runs in a sandbox; made by ``box.spawn``. Leaving its ``with`` ends it and all that it started.

    ``stdin``, ``stdout``, ``stderr``, ``communicate``, ``wait``, ``poll``: as those of ``Sandbox``. ``args``: the command.
    """

    def __init__(
        self, entered: Entered | EnteredJob, args: tuple[str, ...], image: str, stdio: Stdio, settings: StreamSettings, name: str
    ) -> None:
        super().__init__(entered, args, image, stdio, settings, name)
        self._streams: Streams[S] = Streams(entered.process, stdio, settings, name)

    @property
    def stdin(self) -> IO[S] | Any:
        """Our end of it where ``PIPE`` was given or it has a terminal; None once ``communicate`` was called."""
        return self._streams.stdin

    @property
    def stdout(self) -> Output[S] | Any:
        """The same; with a terminal this is all that it shows."""
        return self._streams.stdout

    @property
    def stderr(self) -> Output[S] | Any:
        """The same for stderr; None with a terminal."""
        return self._streams.stderr

    @checked
    def wait(self, timeout: float | None = None) -> Exit:
        """How it ended. ``TimeoutError`` after ``timeout`` seconds; it then goes on."""
        if self._streams.listening:
            self._streams.wait(timeout)
        return self._entered.wait(timeout)

    @checked
    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[S | Any, S | Any]:
        """As that of ``Sandbox``."""
        return self._streams.communicate(input, timeout)

    def __enter__(self) -> Execution[S]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End it, if it has not ended, and give back what belongs to it."""
        with held():
            try:
                self._end()
            finally:
                self._streams.close()


def captured(options: dict[str, Any], input: Any) -> dict[str, Any]:
    """The keywords of ``exec`` as those of ``spawn``: what nobody takes elsewhere is captured, and nothing is read that was not given."""
    streams = dict(options)
    if input is not None:
        if streams.get("stdin") is not None:
            raise BadInput("input and stdin together", subject="input", hint="give one of them")
        streams["stdin"] = PIPE
    streams["stdin"] = DEVNULL if streams.get("stdin") is None else streams["stdin"]
    for name in ("stdout", "stderr"):
        if streams.get(name) is None and streams.get(f"on_{name}") is None:
            streams[name] = PIPE
    return streams


class Enterable:
    """What a handle of a sandbox that runs can do with commands."""

    _files: Files | None = None

    def _about(self) -> tuple[str, str]:
        """Its name, for errors, and its image."""
        raise NotImplementedError

    def _enter(self, entry: Entry, stdio: tuple[int, int, int], **how: Any) -> Any:
        """Start what enters: ``sandbox.run.door.enter``, or that of a job."""
        raise NotImplementedError

    def _enter_files(self, entry: Entry, stdio: tuple[int, int, int], *, program: int) -> Any:
        """The same for who acts on files."""
        return self._enter(entry, stdio, program=program)

    @property
    def files(self) -> Files:
        """Its files: read, write, list, copy. See ``Files``. Those of a detached sandbox also while it does not run, as a start would show
        them: until ``close`` it then cannot be started."""
        from dockless.sandbox.files.connect import files_of

        if self._files is None:
            self._files = files_of(self._enter_files)
        return self._files

    @overload
    def exec(self, *argv: Argument, check: bool = False, input: str | None = None, **options: Unpack[TextExec]) -> Result[str]: ...
    @overload
    def exec(self, *argv: Argument, check: bool = False, input: bytes | None = None, **options: Unpack[BytesExec]) -> Result[bytes]: ...
    @checked
    def exec(self, *argv: Argument, input: Any = None, check: bool = False, **options: Any) -> Result[Any]:
        """Execute a command and wait for its end. ``argv``: the program and its arguments, never a line for a shell.

        What it writes is captured unless ``stdout`` or ``stderr`` says otherwise. ``env`` is added to the sandbox's; ``workdir``: the
        sandbox's own if left out; ``user``: ``name|uid[:group|gid]``, looked up in the sandbox as it is now. ``timeout``: seconds or
        ``"5m"``, after which it and all that it started are killed, ``timed_out`` in the result. ``check``: an error unless it
        returned 0. Streams as those of ``Sandbox``.

        Errors: ``SandboxGone`` where the sandbox does not run, ``CommandNotFound``, ``CommandNotExecutable``, ``BadInput``.
        """
        return self._executed(self._enter, argv, captured(options, input), input, check)

    def _executed(
        self, enter: Callable[..., Any], argv: tuple[Argument, ...], options: dict[str, Any], input: Any, check: bool
    ) -> Result[Any]:
        with held(), self._spawn(Execution, enter, *argv, **options) as command:
            result = command._result(*command._streams.communicate(input))
        if check:
            result.check_returncode()
        return result

    @overload
    def shell(self, line: str, *, check: bool = False, input: str | None = None, **options: Unpack[TextExec]) -> Result[str]: ...
    @overload
    def shell(self, line: str, *, check: bool = False, input: bytes | None = None, **options: Unpack[BytesExec]) -> Result[bytes]: ...
    @checked
    def shell(self, line: str, **options: Any) -> Result[Any]:
        """``exec`` of the sandbox's ``/bin/sh`` with one line. Words of strangers in it run what they like."""
        return self.exec("/bin/sh", "-c", line, **options)

    @overload
    def spawn(self, *argv: Argument, tty: bool = False, size: Size = None, **options: Unpack[TextExec]) -> Execution[str]: ...
    @overload
    def spawn(self, *argv: Argument, tty: bool = False, size: Size = None, **options: Unpack[BytesExec]) -> Execution[bytes]: ...
    def spawn(self, *argv: Argument, **options: Any) -> Execution[Any]:
        """Start a command and go on: a handle with streams. ``tty``: its standard streams are a terminal of its own, ours to read and
        write by ``stdout`` and ``stdin``; ``size``: its rows and columns. Everything else, and errors: see ``exec``."""
        return self._spawned(self._enter, argv, options)

    def _spawned(self, enter: Callable[..., Any], argv: tuple[Argument, ...], options: dict[str, Any]) -> Execution[Any]:
        command: Execution[Any] | None = None
        try:
            with held():
                command = self._spawn(Execution, enter, *argv, **options)
            return command
        except KeyboardInterrupt:
            if command is not None:
                command.close()
            raise

    @checked
    def _spawn(
        self,
        kind: type[R],
        enter: Callable[..., Any],
        *argv: Argument,
        env: Mapping[str, str] | Iterable[str] = (),
        workdir: StrPath = "",
        user: str | int = "",
        timeout: str | float | None = None,
        tty: bool = False,
        size: Size = None,
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
        **others: Any,
    ) -> R:
        if _forgotten:
            _close_forgotten()
        if others:
            raise unknown_keyword(min(others), Enterable._spawn.__annotations__.keys() - {"kind", "enter", "argv", "others", "return"})
        settings = StreamSettings(
            stdin, stdout, stderr, text=Text(text, encoding, errors), bufsize=bufsize, max_output=max_output, on_stdout=on_stdout,
            on_stderr=on_stderr, tty=tty,
        )  # fmt: skip
        stdio = settings.open()
        try:
            name, image = self._about()
            entry = self._entry(argv, env, workdir, user, timeout, tty)
            entered = enter(entry, (stdio.theirs[0], stdio.theirs[1], stdio.theirs[2]), size=size)
        except BaseException:
            stdio.close()
            raise
        if tty:
            stdio.join(entered.terminal)
        return kind(entered, entry.argv, image, stdio, settings, f"the command in {name}")

    @checked
    def spawn_alone(
        self,
        *argv: Argument,
        env: Mapping[str, str] | Iterable[str] = (),
        workdir: StrPath = "",
        user: str | int = "",
        timeout: str | float | None = None,
    ) -> None:
        """Start a command and forget it: it reads and writes nothing of ours, and goes on until it, its ``timeout`` or the sandbox ends."""
        stdio = Stdio(DEVNULL, DEVNULL, DEVNULL)
        try:
            entry = self._entry(argv, env, workdir, user, timeout, False)
            self._enter(entry, (stdio.theirs[0], stdio.theirs[1], stdio.theirs[2]), alone=True).release()
        finally:
            stdio.close()

    def _entry(
        self,
        argv: tuple[Argument, ...],
        env: Mapping[str, str] | Iterable[str],
        workdir: StrPath,
        user: str | int,
        timeout: str | float | None,
        tty: bool,
    ) -> Entry:
        from dockless.sandbox.enter import Entry

        if set(map(type, argv)) != _TEXTS:
            check_type("argv", argv, _ARGV)
        account = None
        if user != "":
            from dockless.sandbox.files.connect import account_of

            account = account_of(self._enter, str(user))
        limit = 0.0 if timeout is None else parse_duration(timeout, "timeout")
        args = tuple(map(os.fsdecode, argv))
        return Entry(args, environment(given_items(env)) if env else (), os.fspath(workdir), account, limit, tty=tty)
