"""Sandboxes that wait for calls, and in each of them a process that the zygote has forked there: a call begins without a fork.

::

    begin     a sandbox up to its BARRIER, which hands over its namespaces
    take      the zygote forks into it
    settle    the process is there, and is put into the sandbox's cgroup; then it waits for what it is to call
    lend      it is a call's; another one begins
    end       everything in it is killed; what is left of it is removed by a thread
"""

from __future__ import annotations

import _thread
import contextlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from socket import AF_UNIX, SO_PASSCRED, SOCK_STREAM, SOL_SOCKET, socketpair

from dockless.base.typing import TYPE_CHECKING
from dockless.base.waits import readable
from dockless.errors import DocklessError, LaunchFailed
from dockless.sandbox.run.pool import Pool, WaitingSandbox

if TYPE_CHECKING:
    from dockless.images import Image
    from dockless.sandbox.run.prepared import Prepared
    from dockless.sandbox.zygote.server import ZygoteProcess

_AHEAD = 2
"""Sandboxes that are begun while others get their processes."""


class Seat(WaitingSandbox):
    """A sandbox for a call, and when it is ``taken``, the process in it that waits for what it is to call."""

    has_door = False

    def take(self, zygote: ZygoteProcess) -> None:
        """Have the zygote fork into it. Errors: those of a start, ``ZygoteLost``"""
        with contextlib.ExitStack() as here:
            spaces = self.namespaces(len(zygote.kinds))
            for fd in spaces:
                here.callback(os.close, fd)
            self._space = namespace_id(spaces[zygote.kinds.index("pid")])
            self.channel, theirs = socketpair(AF_UNIX, SOCK_STREAM)
            self._stack.enter_context(self.channel)
            here.enter_context(theirs)
            pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
            for mine, its in pipes:
                self._stack.callback(os.close, mine)
                here.callback(os.close, its)
            self.output = pipes[0][0], pipes[1][0]
            writers = pipes[0][1], pipes[1][1]
            self.give_away(writers)
            self.channel.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)
            self.status = zygote.forked(b"call", spaces, theirs.fileno(), writers)
            self._stack.callback(os.close, self.status)

    def settle(self, zygote: ZygoteProcess) -> None:
        """When its process is there, put it into the sandbox's group. Errors: those of a start, ``ZygoteLost``"""
        if not zygote.settled(self, self.channel, self._space):
            self.process.kill()  # there is none, which the zygote then says; or that of another sandbox

    def finish(self) -> None:
        """Wait for its end. Nobody asks what it has used."""
        self._exit = self.process.wait()

    @property
    def there(self) -> bool:
        """Whether its process, or the zygote, has said something."""
        return readable(self.channel.fileno(), 0)

    @property
    def sound(self) -> bool:
        """Whether its process still waits."""
        return self.alive and not readable(self.status, 0) and not readable(self.channel.fileno(), 0)


class Seats(Pool):
    """Sandboxes for calls. Some have been begun, and wait at their BARRIER; ``size`` of them have their process."""

    def __init__(self, zygote: ZygoteProcess, size: int, image: Image, pin: Sequence[int]) -> None:
        super().__init__(zygote.spec, size=size)
        self._zygote = zygote
        self.image, self._pin = image, list(pin)
        self._closed = False
        self._begun: deque[Seat] = deque()
        self._entering: deque[Seat] = deque()
        self._used: deque[Seat] = deque()
        self._ending = _thread.allocate_lock()

    def _plan(self, has_cgroup: bool) -> Prepared:
        plan = self._plans.get(has_cgroup)
        if plan is None:
            plan = self._plans[has_cgroup] = self._zygote.call_plan(has_cgroup)
        return plan

    def begin(self) -> Seat:
        box = Seat(self.spec)
        box.prepare(self.image, self._pin, self._plan)
        return box

    def _fill(self) -> None:
        while not self._closed and len(self._waiting) < self.size:
            while len(self._begun) < _AHEAD:
                self._begun.append(self.begin())
            one_there = bool(self._entering) and self._entering[0].there
            if not one_there and len(self._waiting) + len(self._entering) < self.size:
                box = self._begun.popleft()
                with _ended_on_error(box):
                    box.take(self._zygote)
                self._entering.append(box)
                continue
            box = self._entering.popleft()
            with _ended_on_error(box):
                box.settle(self._zygote)
            self._have_wait(box)

    def lend(self) -> Seat:
        """One of them; the caller leaves it. Errors: those of a start, ``ZygoteLost``"""
        while (box := self.next()) is not None:
            if isinstance(box, Seat) and box.sound:
                self._refill()
                return box
            box.__exit__(None, None, None)
        try:
            box = self.begin()
            self._refill()
            with _ended_on_error(box):
                box.take(self._zygote)
                box.settle(self._zygote)
        except LaunchFailed as error:
            if self._zygote.ended:  # no process is born where it was
                raise self._zygote.lost("when it was needed") from error
            raise
        return box

    def end(self, box: Seat) -> None:
        """Kill all that is in one that was lent. That it is over, and gone from the disk, nobody waits for here."""
        with contextlib.suppress(DocklessError):
            box.process.kill()  # its keeper ends the group, too
        self._used.append(box)
        if self._ending.acquire(blocking=False):
            try:
                _thread.start_new_thread(self._end_aside, ())
            except RuntimeError:  # no thread is to be had: with the next one, or at the end
                self._ending.release()

    def _end_aside(self) -> None:
        try:
            self._end_used()
        finally:
            self._ending.release()

    def _end_used(self) -> None:
        while True:
            try:
                box = self._used.popleft()
            except IndexError:
                return
            with contextlib.suppress(DocklessError, OSError):  # what is left of it is found at the next start of anything
                box.finish()
                box.__exit__(None, None, None)

    def close(self) -> None:
        """End all that wait, and wait for the end of all that were lent and given back."""
        super().close()
        if os.getpid() == self._pid:
            for boxes in (self._begun, self._entering):
                while boxes:
                    boxes.popleft().__exit__(None, None, None)
            with self._ending:
                self._end_used()


@contextlib.contextmanager
def _ended_on_error(box: Seat) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        box.__exit__(type(error), error, error.__traceback__)
        raise


def namespace_id(of: int | str) -> tuple[int, int]:
    """By what the kernel knows a namespace: of a descriptor or a path in procfs, device and inode. namespaces(7)"""
    found = os.stat(of)
    return found.st_dev, found.st_ino
