"""``box.attach()``, ``job.attach()``: back to what runs without us, a detached sandbox or a job: its terminal, or its standard streams.

::

    with box.attach() as attached:
        attached.scrollback                     what it showed before, the end of it
        attached.write(b"ls\\n")
        for row in attached: ...                what it writes from now on, until it ends

Its output is what its keeper writes down, followed while it grows; of a job the daemon sends it. What we write goes to its terminal, or
into the pipe that is its standard input, where it has one. Leaving changes nothing for it.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator
from types import TracebackType

from dockless._executing import WithTerminal
from dockless.base.checks import checked
from dockless.base.pickling import Unpicklable
from dockless.base.typing import TYPE_CHECKING, Protocol
from dockless.base.waits import readable
from dockless.errors import BadInput, DocklessError, SandboxGone

if TYPE_CHECKING:
    from dockless.sandbox.run.box import Box
    from dockless.sandbox.run.logfile import Row
    from dockless.sched import Client

_SCROLLBACK = 1 << 14
"""Bytes of what was written before that one sees again."""
_AT_ONCE = 256
"""Rows that are given together."""
_GLANCE = 15
"""Milliseconds between looks at what somebody else writes down."""


class TerminalOutput(Protocol):
    """Output that somebody else reads first. ``fd``: readable when there may be more; ``glance``: milliseconds after which one looks
    anyway, None for never. ``over``: nothing came, and nothing will."""

    fd: int
    glance: int | None
    over: bool

    def read(self) -> list[Row]: ...


class Attachment(WithTerminal, Unpicklable):
    """What runs without us, seen and typed into; made by ``attach``. Iterating gives what it writes from now on, until it has ended.

    ``scrollback``: the end of what it wrote before, 16 KiB at most. ``tty``: whether it has a terminal, whose ``resize`` takes rows and
    columns; all that it shows is then ``stdout``. ``output``: where it comes from, for who waits in a way of their own; one reads here.
    """

    def __init__(
        self,
        name: str,
        output: TerminalOutput,
        scrollback: bytes,
        into: int | DocklessError,
        used: Callable[[], object],
        opened: contextlib.ExitStack,
        *,
        tty: bool,
    ) -> None:
        """``into``: a descriptor, or why nothing can be written. ``used``: called when something is. ``opened``: what ``detach`` closes."""
        self.name, self.output, self.scrollback, self.tty, self.used = name, output, scrollback, tty, used
        self._into, self._opened = into, opened
        self._left = False
        if isinstance(into, int):
            os.set_blocking(into, False)
            self._terminal = into if tty else -1

    @property
    def into(self) -> int:
        """The descriptor to write to, not blocking and ours to use. ``BadInput`` for what reads nothing, ``SandboxGone`` where nobody in
        there has its standard input open any more."""
        self._check()
        if isinstance(self._into, DocklessError):
            raise self._into
        return self._into

    @checked
    def read(self, timeout: float | None = None) -> list[Row]:
        """What has come, at least one row; none when it has ended. ``TimeoutError`` after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (rows := self.come()):
            if self.output.over:
                break
            wait = self.pause(deadline)
            poller = select.poll()
            if self.output.fd >= 0:
                poller.register(self.output.fd, select.POLLIN)
            poller.poll(None if wait is None else wait * 1000)
        return rows

    def come(self) -> list[Row]:
        """What there is by now."""
        self._check()
        return self.output.read()

    def pause(self, deadline: float | None) -> float | None:
        """Seconds until one looks again. ``TimeoutError`` where the deadline is over."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError(f"{self.name} has written nothing meanwhile")
        glance = None if self.output.glance is None else self.output.glance / 1000
        return min((value for value in (left, glance) if value is not None), default=None)

    def __iter__(self) -> Iterator[Row]:
        while rows := self.read():
            yield from rows

    @checked
    def write(self, data: bytes) -> None:
        """All of it, as fast as the program reads. ``BrokenPipeError`` if it has ended, or reads no more; errors of ``into``."""
        rest = self.put(memoryview(data))
        while rest:
            poller = select.poll()
            poller.register(self.into, select.POLLOUT)
            poller.poll()
            rest = self.put(rest)

    def put(self, data: memoryview) -> memoryview:
        """Write what fits now; the rest comes back."""
        into = self.into
        self.used()
        try:
            return data[os.write(into, data) :]
        except BlockingIOError:
            return data
        except OSError:
            raise BrokenPipeError(f"{self.name} reads no more") from None  # EIO of a terminal that nobody has open

    def _check(self) -> None:
        if self._left:
            raise ValueError("it was detached")

    def detach(self) -> None:
        """Let go of it: it goes on."""
        self._left, self._terminal = True, -1
        self._opened.close()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.detach()


def to_box(box: Box) -> Attachment:
    """To a detached sandbox, whatever it is called meanwhile. Errors: ``BadInput`` for a foreground one, or whose output is not kept,
    ``SandboxGone`` for one that does not run."""
    from dockless.sandbox.run import door

    spec = box.spec
    if box.foreground:
        where = "on somebody's terminal" if spec.tty else "connected to the program that started it"
        raise BadInput(f"sandbox {box.id} is {where} already", subject=box.id, hint=f"dockless exec {box.id} -- sh")
    if not spec.keep_log:
        hint = f"a shell in it: dockless exec {box.id} -- sh"
        raise BadInput(f"the output of sandbox {box.id} is not kept, so there is none to show", subject=box.id, hint=hint)
    with contextlib.ExitStack() as opened:
        box = opened.enter_context(box.held())
        output = opened.enter_context(_Written(box))
        before = output.so_far()
        place = box.entrance()
        into: int | DocklessError
        try:
            into = door.terminal(place) if spec.tty else box.stdin()
            opened.callback(os.close, into)
        except (BadInput, SandboxGone) as error:
            if spec.tty:
                raise
            into = error
        return Attachment(f"sandbox {box.id}", output, before, into, door.Used(place), opened.pop_all(), tty=spec.tty)


def to_job(number: int) -> Attachment:
    """To a job that runs. Errors: ``UnknownJob``, ``NotPermitted``, ``SandboxGone``, ``DaemonUnavailable``."""
    from dockless.sched import connect

    with contextlib.ExitStack() as opened:
        queue = opened.enter_context(connect())
        kind, fd = queue.attach(number)
        if fd >= 0:
            opened.callback(os.close, fd)
        hint = "submit it with -i (from Python: interactive=True), or with a terminal: -t"
        into = fd if fd >= 0 else BadInput(f"job {number} reads nothing: it has no standard input", subject=str(number), hint=hint)
        output = _Sent(queue, number)
        before = output.so_far()
        return Attachment(f"job {number}", output, before, into, bool, opened.pop_all(), tty=kind == "terminal")


class _Written:
    """What the keeper of a detached sandbox writes down: a ``TerminalOutput``."""

    glance: int | None = _GLANCE

    def __init__(self, box: Box) -> None:
        from dockless.sandbox.run.logfile import Log, open_log

        self.fd = box.pidfd()
        self.over = False
        self._log = Log(lambda name: open_log(box.directory, name))

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        os.close(self.fd)

    def so_far(self) -> bytes:
        """The end of what there is by now."""
        return _end_of(iter(self._log.read, []))

    def read(self) -> list[Row]:
        ended = readable(self.fd, 0)
        rows = self._log.read()
        self.over = ended and not rows
        return rows


class _Sent:
    """The output of a job, from the daemon, also through its restart: a ``TerminalOutput``."""

    glance: int | None = None

    def __init__(self, queue: Client, number: int) -> None:
        self._queue, self._number = queue, number
        self.fd = -1
        self.over = False
        self._attempt = queue.job(number).attempt

    def so_far(self) -> bytes:
        position = 0

        def rows() -> Iterator[list[Row]]:
            nonlocal position
            for line in self._queue.logs(self._number, attempt=self._attempt):
                position += line.size
                yield [line.row]

        end = _end_of(rows())
        self._steps = self._queue.reading(self._number, follow=True, attempt=self._attempt, after=position)
        return end

    def read(self) -> list[Row]:
        from dockless.base.waits import Pause

        found: list[Row] = []
        if self.fd >= 0 and not readable(self.fd, 0):
            return found
        self.fd = -1
        while len(found) < _AT_ONCE:
            step = next(self._steps, None)
            if step is None:
                self.over = not found
                return found
            if not isinstance(step, Pause):
                found.append(step.row)
            elif step.fd >= 0:
                self.fd = step.fd
                return found
            else:
                time.sleep(step.seconds or 0.0)
        return found


def _end_of(parts: Iterator[list[Row]]) -> bytes:
    end = b""
    for rows in parts:
        end = (end + b"".join(row.written for row in rows))[-_SCROLLBACK:]
    return end
