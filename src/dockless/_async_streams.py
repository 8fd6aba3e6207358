"""The streams of something that runs, for whoever waits in an event loop: the same ends, moved by the same steps."""

from __future__ import annotations

import io
import os
import select
import time
from collections.abc import AsyncIterator, Sequence

from dockless._exchange import AT_ONCE, READ_SIZE, Ending, Exchange, Pace, PipeWriter, Reader, Splitter, lying_in, say, taken
from dockless._loop import checkpoint, readable
from dockless._stdio import Stdio, Text
from dockless._streams import Ends, S, StreamSettings
from dockless.base.typing import Any, Generic
from dockless.errors import BadInput

_CHUNK = 1 << 16


async def ended(end: Ending, pumps: Sequence[Reader | PipeWriter] = (), timeout: float | None = None) -> bool:
    """Move bytes until everything inside is dead. False if ``timeout`` seconds passed before that."""
    if end.poll() is not None:  # its descriptor may be closed by now
        return True
    deadline = None if timeout is None else time.monotonic() + timeout
    moving = Exchange(end, pumps)
    try:
        while await readable(moving.fileno(), None if deadline is None else max(0.0, deadline - time.monotonic())):
            over = moving.step()
            for pump in pumps:
                say(pump)
            if over:
                return True
    finally:
        moving.close()
    return False


class AsyncStreams(Ends, Generic[S]):
    """``stdin``, ``stdout``, ``stderr`` where there is a pipe; ``communicate`` and ``wait`` as in ``Streams``."""

    def __init__(self, process: Ending, stdio: Stdio, settings: StreamSettings, name: str) -> None:
        super().__init__(process, stdio, settings, name)
        self.stdin: AsyncInput[S] | None = None
        self.stdout: AsyncOutput[S] | None = None
        self.stderr: AsyncOutput[S] | None = None
        self._said: tuple[S | None, S | None] | None = None
        if stdio.ours[0] >= 0:
            self.stdin = AsyncInput(stdio.take(0), self)
        if stdio.ours[1] >= 0:
            self.stdout = AsyncOutput(stdio.take(1), self)
        if stdio.ours[2] >= 0:
            self.stderr = AsyncOutput(stdio.take(2), self)

    async def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[S | None, S | None]:
        """Feed ``input``, read stdout and stderr to their ends, wait: ``(stdout, stderr)``, None where there is no pipe.

        ``TimeoutError`` after ``timeout`` seconds; it then goes on, and what was read so far is kept for the next call, as it is when
        this one is cancelled.
        """
        if self._said is None:
            await self._move(self._begin(input, self._give), timeout)
            self._finish()
            for reader in self._readers:
                if reader is not None:
                    say(reader)
            self._said = (self._answer(0, self.stdout), self._answer(1, self.stderr))
        return self._said

    async def wait(self, timeout: float | None = None) -> None:
        """Until everything inside is dead. ``TimeoutError``. Reads what ``on_stdout`` and ``on_stderr`` are to hear, and no other pipe."""
        readers = self._listening()
        await self._move(readers, timeout)
        for reader in readers:
            reader.finish()
            say(reader)

    async def _move(self, pumps: Sequence[Reader | PipeWriter], timeout: float | None) -> None:
        if not await ended(self._process, pumps, timeout):
            raise TimeoutError(f"{self._name} still runs after {timeout} s")

    async def until_ready(self, fd: int, event: int) -> bool:
        """Wait until a pipe is ready; False: everything inside is dead before that. Meanwhile those who listen hear of theirs."""
        listening = self._listening()
        moving = Exchange(self._process, listening, (fd, event))
        try:
            while True:
                await readable(moving.fileno())
                if moving.step():
                    return False
                for reader in listening:
                    say(reader)
                if moving.ready:
                    return True
        finally:
            moving.close()

    @property
    def text(self) -> Text:
        return self._settings.text

    @property
    def over(self) -> bool:
        """Whether everything inside is dead."""
        return self._process.poll() is not None

    def _give(self, number: int) -> int:
        end = (self.stdin, self.stdout, self.stderr)[number]
        return -1 if end is None else end.detach()

    def _answer(self, at: int, output: AsyncOutput[S] | None) -> Any:
        """What was captured; what was read ahead of it comes first."""
        data = self._kept(at)
        if data is None:
            return None
        return self._settings.text.decode(data) if output is None else output.with_rest(data)

    def close(self) -> None:
        super().close()
        for end in (self.stdin, self.stdout, self.stderr):
            if end is not None:
                end.close()


class _End:
    def __init__(self, fd: int, streams: AsyncStreams[Any]) -> None:
        self._fd = fd
        self._streams = streams
        self._busy = False

    def fileno(self) -> int:
        if self._fd < 0:
            raise ValueError("the pipe is closed, or communicate has taken it")
        return self._fd

    async def _until(self, event: int) -> bool:
        """False: everything inside is dead."""
        if self._busy:
            raise BadInput("two tasks wait for one stream", subject="stream", hint="let one task read it, or one write it, at a time")
        self._busy = True
        try:
            return await self._streams.until_ready(self.fileno(), event)
        finally:
            self._busy = False

    def detach(self) -> int:
        """The fd, -1 if it is closed: it is the caller's from now on."""
        fd, self._fd = self._fd, -1
        return fd

    def close(self) -> None:
        """Close our end. The program reads the end of its input, or hears of it when it writes."""
        fd = self.detach()
        if fd >= 0:
            os.close(fd)


class AsyncInput(_End, Generic[S]):
    """Our end of stdin."""

    async def write(self, data: S) -> None:
        """Write all of it, as fast as the program reads. ``BrokenPipeError`` if it reads no more. When cancelled, a part was written."""
        rest = memoryview(self._streams.text.encode(data, "data"))
        await checkpoint()
        while rest:
            fd = self.fileno()
            os.set_blocking(fd, False)
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:
                if not await self._until(select.EPOLLOUT):
                    raise BrokenPipeError("everything inside has ended") from None


class AsyncOutput(_End, Generic[S]):
    """Our end of stdout or stderr: ``async for line in it``. Ends when everything inside is dead. Several tasks may take turns."""

    def __init__(self, fd: int, streams: AsyncStreams[Any]) -> None:
        super().__init__(fd, streams)
        self._splitter = Splitter(streams.text.decoder())
        self._pace = Pace(fd)
        self._reads = 0
        self._left: int | None = None

    def __aiter__(self) -> AsyncIterator[S]:
        return self

    async def __anext__(self) -> S:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line

    async def readline(self) -> S:
        """A line with its end, what there is of it at the end of everything, then nothing. A very long line comes in pieces."""
        while (line := self._splitter.line()) is None:
            await self._more()
        return line  # type: ignore[no-any-return]

    async def chunks(self, size: int = READ_SIZE) -> AsyncIterator[S]:
        """What is there, as soon as it is there, ``size`` bytes or characters at most."""
        while chunk := await self._piece(size):
            yield chunk

    async def read(self, size: int = -1) -> S:
        """``size`` bytes or characters, or everything to the end; fewer only at the end."""
        parts: Any = io.StringIO(newline="") if self._streams.text.on else io.BytesIO()
        left = size
        while left and (part := await self._piece(left if left > 0 else 1 << 30)):
            parts.write(part)
            left -= len(part) if left > 0 else 0
        return parts.getvalue()  # type: ignore[no-any-return]

    async def _piece(self, size: int) -> Any:
        while (piece := self._splitter.piece(size)) is None:
            await self._more(min(size, self._pace.size))
        return piece

    async def _more(self, size: int = _CHUNK) -> None:
        """Feed what is there, or wait until there is something."""
        self._reads += 1
        if self._reads % AT_ONCE == 1:
            await checkpoint()
        while True:
            fd = self.fileno()
            os.set_blocking(fd, False)
            if self._left is None and self._streams.over:
                self._left = lying_in(fd)  # of whatever somebody outside writes later, nothing is read
            try:
                chunk = taken(fd, size if self._left is None else min(size, self._left))
            except BlockingIOError:
                if self._left is None:
                    await self._until(select.EPOLLIN)
                    continue
                chunk = b""
            if self._left is not None:
                self._left = self._left - len(chunk) if chunk else 0
            self._pace.took(len(chunk))
            self._splitter.feed(chunk)
            return

    def with_rest(self, data: bytes) -> Any:
        """What was read ahead, and this."""
        for chunk in (data, b"") if data else (b"",):
            self._splitter.feed(chunk)
        pieces = []
        while piece := self._splitter.piece(1 << 62):
            pieces.append(piece)
        return self._splitter.nothing.join(pieces)
