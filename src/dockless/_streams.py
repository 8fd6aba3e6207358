"""The three streams of something that runs: a sandbox, or a command that is executed in one.

::

    settings = StreamSettings(stdin=PIPE, stdout=PIPE, text=Text(True, None, None), on_stderr=print)   # checks, opens nothing
    stdio = settings.open()                                         # stdio.theirs: the program's fds; stdio.close() if it does not start
    streams = Streams(process, stdio, settings, "sandbox s-1")      # it runs: process has fileno() and poll()
    streams.stdin, streams.stdout, streams.communicate(…), streams.wait(…)
    streams.close()

There is no thread. What ``on_stdout`` and ``on_stderr`` are to hear is read, and they are called, while somebody waits in a method of these
streams or of their file objects; a program that writes faster waits meanwhile, as its pipe is full.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import io
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence

from dockless._exchange import READ_SIZE, Ending, Pace, PipeWriter, Reader, exchange, is_terminal, lying_in, lying_in_pipe, say
from dockless._stdio import DEVNULL, PIPE, Stdio, Stream, Text
from dockless.base.interrupts import held
from dockless.base.typing import IO, TYPE_CHECKING, Any, Generic
from dockless.base.units import parse_size
from dockless.errors import BadInput

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", str, bytes, default=bytes)
    """Text or bytes. What may be None is public as ``… | Any``, typeshed's way: whoever gave ``PIPE`` knows that it is not."""

    class Output(IO[S]):
        """Our end of stdout or stderr: a file as ``subprocess.Popen`` has it, which ends when everything inside is dead."""

        def chunks(self, size: int = 131072) -> Iterator[S]:
            """What is there, as soon as it is there, ``size`` bytes at most. Take either lines or chunks of one stream."""
            ...

else:
    from dockless.base.typing import TypeVar

    S = TypeVar("S", str, bytes)

_CHUNK = 1 << 16
_NAMES = ("stdin", "stdout", "stderr")


class StreamSettings:
    """What the streams are to be. ``max_output``: bytes kept of each for ``communicate``. ``BadInput`` for what does not go together."""

    def __init__(
        self,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        *,
        text: Text,
        bufsize: int = -1,
        max_output: str | int | None = None,
        on_stdout: Callable[[Any], object] | None = None,
        on_stderr: Callable[[Any], object] | None = None,
        tty: bool = False,
    ) -> None:
        self.text = text
        self.tty = tty
        self.bufsize = bufsize
        self.most = None if max_output is None else parse_size(max_output, "max_output")
        self.tell = (None, on_stdout, on_stderr)
        self.given = [stdin, stdout, stderr]
        if bufsize < -1 or (bufsize == 1 and not text.on):
            raise BadInput(f"bufsize is {bufsize}", subject="bufsize", hint="-1 for the usual, 0 for none, 1 for lines of text, or bytes")
        self.keep = [given == PIPE for given in self.given]
        """Whether ``communicate`` gives it back."""
        if tty:
            self._is_a_terminal()
        for number in (1, 2):
            tell = self.tell[number]
            if tty or tell is None:
                continue
            if _is_coroutine_function(tell):
                hint = "iterate over the stream where something is to be awaited"
                raise BadInput(f"on_{_NAMES[number]} is no plain function", subject=f"on_{_NAMES[number]}", hint=hint)
            if self.given[number] is None:
                self.given[number] = PIPE
            elif not self.keep[number]:
                name = _NAMES[number]
                hint = f"leave {name} out, or give {name}=PIPE to have it at the end as well"
                raise BadInput(f"on_{name} and a {name} that goes elsewhere", subject=f"on_{name}", hint=hint)

    def _is_a_terminal(self) -> None:
        """One stream both ways; standard error is in it."""
        for number, name in enumerate(_NAMES):
            if self.given[number] not in (None, PIPE):
                raise BadInput(f"{name} and a terminal together", subject=name, hint=f"leave {name} out, or tty")
        if self.tell[2] is not None:
            raise BadInput("on_stderr with a terminal", subject="on_stderr", hint="on_stdout hears all that a terminal shows")
        self.keep[1] = True

    def open(self) -> Stdio:
        """Both ends of each stream; of a terminal ours come when it is there, ``Stdio.join``."""
        return Stdio(DEVNULL, DEVNULL, DEVNULL) if self.tty else Stdio(*self.given)


def _is_coroutine_function(function: object) -> bool:
    import inspect

    return inspect.iscoroutinefunction(function)


class Ends:
    """What is the same whether one waits by blocking or in an event loop: who reads which pipe, and what ``communicate`` has so far."""

    def __init__(self, process: Ending, stdio: Stdio, settings: StreamSettings, name: str) -> None:
        stdio.started()
        self._process = process
        self._stdio = stdio
        self._settings = settings
        self._name = name
        self._writer: PipeWriter | None = None
        self._readers: list[Reader | None] = [None, None]
        self._communicating = False
        self.dropped = (0, 0)
        """Bytes of stdout and of stderr that ``communicate`` did not keep, as ``max_output`` asked."""
        for number in (1, 2):
            if settings.tell[number] is not None:
                self._readers[number - 1] = self._reader(number, stdio.take(number))

    def _reader(self, number: int, fd: int) -> Reader:
        settings, tell = self._settings, self._settings.tell[number]
        decoder = None if tell is None else settings.text.decoder()
        return Reader(fd, keep=settings.keep[number], most=settings.most, tell=tell, decoder=decoder)

    def _listening(self) -> list[Reader]:
        """Those whose functions are to hear of it."""
        return [reader for reader in self._readers if reader is not None and reader.heard]

    def _begin(self, input: Any, take: Callable[[int], int]) -> list[Reader | PipeWriter]:
        """All that moves bytes; ``take`` gives our end of a stream, -1 if it has none. A second call goes on where the first stopped."""
        if self._communicating:
            if input is not None:
                raise BadInput("input was given already", subject="input", hint="call communicate again without it")
        else:
            data = b"" if input is None else self._settings.text.encode(input)
            stdin = take(0)
            if stdin >= 0:
                self._writer = PipeWriter(stdin, data)
            elif input is not None:
                raise BadInput("input without a pipe to write it to", subject="input", hint="give stdin=PIPE")
            self._communicating = True
            for number in (1, 2):
                if self._readers[number - 1] is None and (fd := take(number)) >= 0:
                    self._readers[number - 1] = self._reader(number, fd)
        return [pump for pump in (self._writer, *self._readers) if pump is not None]

    def _finish(self) -> None:
        """Everything inside is dead: take what lies in the pipes."""
        if self._writer is not None:
            self._writer.close()
        for reader in self._readers:
            if reader is not None:
                reader.finish()
        self.dropped = (self._dropped(0), self._dropped(1))

    def _dropped(self, at: int) -> int:
        reader = self._readers[at]
        return 0 if reader is None else reader.dropped

    def _kept(self, at: int) -> bytes | None:
        reader = self._readers[at]
        data = None if reader is None else reader.data()
        return self._settings.text.whole(data) if data and self.dropped[at] else data

    def close(self) -> None:
        self._stdio.close()
        for pump in (self._writer, *self._readers):
            if pump is not None:
                pump.close()


class Streams(Ends, Generic[S]):
    """Streams for whoever waits by blocking: file objects, and ``communicate`` as ``subprocess.Popen`` has it."""

    def __init__(self, process: Ending, stdio: Stdio, settings: StreamSettings, name: str) -> None:
        super().__init__(process, stdio, settings, name)
        self._files: list[Any] = [None, None, None]
        self._raws: list[Any] = [None, None, None]
        self._turn = _thread.allocate_lock()
        self._whose = 0
        self._said: tuple[S | None, S | None] | None = None
        self._pollers: dict[tuple[int, int, int], select.poll] = {}

    @property
    def stdin(self) -> IO[S] | None:
        file: IO[S] | None = self._file(0)
        return file

    @property
    def stdout(self) -> Output[S] | None:
        file: Output[S] | None = self._file(1)
        return file

    @property
    def stderr(self) -> Output[S] | None:
        file: Output[S] | None = self._file(2)
        return file

    def _file(self, number: int) -> Any:
        """The file object, made when somebody asks for it; None where there is no pipe, or ``communicate`` has taken it."""
        if self._communicating:
            return None
        if self._files[number] is None and self._stdio.ours[number] >= 0:
            raw = (_RawOutput if number else _RawInput)(self._stdio.take(number), self._until_ready)
            self._raws[number] = raw
            self._files[number] = _opened(raw, self._settings)
        return self._files[number]

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[S | None, S | None]:
        """Feed ``input``, read stdout and stderr to their ends, wait: ``(stdout, stderr)``, None where there is no pipe.

        ``TimeoutError`` after ``timeout`` seconds; it then goes on, and what was read so far is kept for the next call.
        """
        if self._said is None:
            with held():
                self._move(self._begin(input, self._give), timeout)
        return self._collected()

    def _collected(self) -> tuple[S | None, S | None]:
        if self._said is None:
            self._finish()
            for reader in self._readers:
                if reader is not None:
                    say(reader)
            self._said = (self._answer(1), self._answer(2))
        return self._said

    @property
    def listening(self) -> bool:
        """Whether somebody is still to hear of something: then ``wait`` here, not for the process alone."""
        return bool(self._listening())

    def wait(self, timeout: float | None = None) -> None:
        """Until everything inside is dead. ``TimeoutError``. Reads what ``on_stdout`` and ``on_stderr`` are to hear, and no other pipe."""
        readers = self._listening()
        self._move(readers, timeout)
        for reader in readers:
            reader.finish()
            say(reader)

    def _move(self, pumps: Sequence[Reader | PipeWriter], timeout: float | None) -> None:
        if self._whose == _thread.get_ident():
            hint = "return from the function, and wait where the sandbox was started"
            raise BadInput("waiting in a function that is called by waiting", subject="on_stdout", hint=hint)
        began = time.monotonic()
        over = False
        if self._turn.acquire(timeout=-1 if timeout is None else timeout):
            try:
                self._whose = _thread.get_ident()
                left = None if timeout is None else max(0.0, began + timeout - time.monotonic())
                over = exchange(self._process, pumps, left)
            finally:
                self._whose = 0
                self._turn.release()
        if not over:
            raise TimeoutError(f"{self._name} still runs after {timeout} s")

    def _give(self, number: int) -> int:
        file, raw = self._files[number], self._raws[number]
        if raw is None or file is None:
            return self._stdio.take(number)
        if number == 0 and not raw.closed:
            with contextlib.suppress(BrokenPipeError):
                file.flush()
        fd: int = raw.detach()
        return fd

    def _answer(self, number: int) -> Any:
        """What was captured; whatever a file object had read ahead comes first."""
        data, file, raw = self._kept(number - 1), self._files[number], self._raws[number]
        if data is None or file is None or raw.closed:
            return None if data is None else self._settings.text.decode(data)
        raw.serve(data)
        return file.read()

    def _until_ready(self, fd: int, event: int) -> bool:
        """Wait until a pipe is ready; False: everything inside is dead before that. Meanwhile those who listen hear of theirs."""
        if not any(self._settings.tell):
            return self._until_one_is_ready(fd, event)
        while True:
            readers = [reader for reader in self._listening() if reader.fd >= 0]
            if not readers:
                return self._until_one_is_ready(fd, event)
            mine = self._turn.acquire(blocking=False)  # else another thread does, or it is they who called us
            try:
                poller = select.poll()
                poller.register(fd, event)
                end = self._process.fileno()
                poller.register(end, select.POLLIN)
                for reader in readers if mine else ():
                    if reader.fd >= 0:  # else it has ended in another thread just now
                        poller.register(reader.fd, select.POLLIN)
                ready = {number for number, _ in poller.poll(None if mine else 100)}
                if end in ready and self._process.poll() is not None:
                    return False
                if fd in ready:
                    return True
                for reader in readers if mine else ():
                    if reader.fd in ready:
                        self._whose = _thread.get_ident()
                        if not reader.step():
                            reader.close()
                        say(reader)
            finally:
                if mine:
                    self._whose = 0
                    self._turn.release()

    def _until_one_is_ready(self, fd: int, event: int) -> bool:
        """The same where nobody listens."""
        end = self._process.fileno()
        poller = self._pollers.pop((fd, event, end), None)  # two threads cannot use one
        if poller is None:
            poller = select.poll()
            poller.register(fd, event)
            poller.register(end, select.POLLIN)
        while True:
            ready = [number for number, _ in poller.poll()]
            if end in ready and self._process.poll() is not None:
                return False
            if fd in ready:
                self._pollers[fd, event, end] = poller
                return True

    def close(self) -> None:
        super().close()
        for file in self._files:
            if file is not None:
                with contextlib.suppress(BrokenPipeError, ValueError):  # what was still buffered has no reader any more, or no pipe
                    file.close()


class _Raw(io.RawIOBase):
    """One of our ends. ``ready`` waits for it: its fd and the event of poll(2) → False where everything inside is dead."""

    def __init__(self, fd: int, ready: Callable[[int, int], bool]) -> None:
        self._fd = fd
        self._ready = ready

    def fileno(self) -> int:
        if self._fd < 0:
            raise ValueError("the pipe is closed, or communicate has taken it")
        return self._fd

    def detach(self) -> int:
        """The fd, -1 if it is closed: it is the caller's from now on."""
        fd, self._fd = self._fd, -1
        return fd

    def close(self) -> None:
        super().close()
        fd = self.detach()
        if fd >= 0:
            os.close(fd)


def _into(fd: int, buffer: Any) -> int:
    """readv(2), where a terminal that nobody has open any more has ended too, as in ``_exchange.taken``."""
    try:
        return os.readv(fd, [buffer])
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return 0


class _RawInput(_Raw):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        fd = self.fileno()
        os.set_blocking(fd, False)  # not before: somebody may have given our end to another process
        while True:
            try:
                return os.write(fd, data)
            except BlockingIOError:
                if not self._ready(fd, select.POLLOUT):
                    raise BrokenPipeError("everything inside has ended") from None


class _RawOutput(_Raw):
    _sure = 0
    """Bytes that lie in the pipe, so that nobody has to wait for them."""
    _left: int | None = None
    _served: io.BytesIO | None = None

    def __init__(self, fd: int, ready: Callable[[int, int], bool]) -> None:
        super().__init__(fd, ready)
        self._pace = Pace(fd)
        self._is_a_terminal = is_terminal(fd)

    def readable(self) -> bool:
        return True

    def detach(self) -> int:
        self._sure = 0
        return super().detach()

    def serve(self, data: bytes) -> None:
        """Go on with this instead of the pipe."""
        self._served = io.BytesIO(data)

    def readinto(self, buffer: Any) -> int:
        if self._sure > 0:
            got = os.readv(self._fd, (buffer,))
            self._sure -= got
            return got
        if self._served is not None:
            return self._served.readinto(buffer)
        return self._first(buffer) if self._wait(self.fileno()) else self._rest(buffer)

    def _first(self, buffer: Any) -> int:
        got = _into(self._fd, buffer)
        if got == len(buffer) and not self._is_a_terminal:  # there may be more
            self._sure = lying_in_pipe(self._fd)
        self._pace.took(got + self._sure)
        return got

    def _wait(self, fd: int) -> bool:
        """Wait until something can be read, or the end of it. False: everything inside is dead, and what is left is known."""
        if self._left is not None:
            return False
        if self._ready(fd, select.POLLIN):
            return True
        self._left = lying_in(fd)  # of whatever somebody outside writes later, nothing is read
        os.set_blocking(fd, False)
        return False

    def _rest(self, buffer: Any) -> int:
        got = 0
        with contextlib.suppress(BlockingIOError):
            got = _into(self.fileno(), memoryview(buffer)[: self._left])
        self._left = self._left - got if self._left and got else 0
        return got

    def readall(self) -> bytes:
        if self._served is not None:
            return self._served.read()
        kept = io.BytesIO()
        with memoryview(bytearray(READ_SIZE)) as buffer:
            while got := self.readinto(buffer):
                kept.write(buffer[:got])
        return kept.getvalue()

    def chunks(self, size: int = READ_SIZE) -> Iterator[bytes]:
        while chunk := self.read(size):
            yield chunk


class _Buffered(io.BufferedReader):
    def chunks(self, size: int = READ_SIZE) -> Iterator[bytes]:
        while chunk := self.read1(size):
            yield chunk


class _TextOutput(io.TextIOWrapper):
    decoder: Any

    def chunks(self, size: int = READ_SIZE) -> Iterator[str]:
        buffer: Any = self.buffer
        for chunk in buffer.chunks(size):
            if piece := self.decoder.decode(chunk):
                yield piece
        if piece := self.decoder.decode(b"", True):
            yield piece


def _opened(raw: _Raw, settings: StreamSettings) -> Any:
    """A file object for one of our ends, as ``Popen`` gives it."""
    text, size = settings.text, settings.bufsize if settings.bufsize > 1 else _CHUNK
    buffered: Any = raw
    if settings.bufsize != 0:
        buffered = io.BufferedWriter(raw, size) if raw.writable() else _Buffered(raw, size)
    if not text.on:
        return buffered
    if raw.writable():
        return io.TextIOWrapper(buffered, encoding=text.encoding, errors=text.errors, write_through=True, line_buffering=True)
    file = _TextOutput(buffered, encoding=text.encoding, errors=text.errors)
    file.decoder = text.decoder()
    return file
