"""Sandboxes that are made before anybody needs them: all of them but the program, which each is given once.

::

    fill     ``size`` launchers carry out the plan up to its BARRIER, by themselves         native/launcher/barrier.c
    take     one of them gets a command, variables, a directory and three streams: the exec is all that is left
    leave    everything in it is dead; who took it goes on
    refill   what was left is removed, and another one begins

Of the pool's own there is no process, and a thread only while one begins or is removed: a launcher that has been started needs nobody. Each
has a leash, so nothing is left of a pool whose owner is killed. One that nobody takes in time ends by its own clock.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import stat
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType

from dockless.base import json
from dockless.base.dataclass import replace
from dockless.base.descriptors import received, send
from dockless.base.path import Path
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import DocklessError, SandboxError, SandboxGone, Unsupported
from dockless.sandbox.command import directory
from dockless.sandbox.plan.plan import Op, Plan, encode, in_memory
from dockless.sandbox.resolve import command_of
from dockless.sandbox.run import children, documents, listening
from dockless.sandbox.run.foreground import ForegroundSandbox
from dockless.sandbox.run.joining import join, leave_at_end
from dockless.sandbox.run.places import WAITS, leaving
from dockless.sandbox.run.prepared import Prepared, waiting, with_program
from dockless.sandbox.run.start import StartInputs, find_image, held_open, pins, prepare
from dockless.sandbox.spec import Spec

if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable

    from dockless.images import Image

_ASIDE = 0.003
"""Seconds that whoever takes one has for herself before another begins: Python lets one thread go on at a time, and beginning one takes as
long as a short program with its start and its end."""
_NOBODY = ("true",)
"""The command of a plan that is given another."""


class WaitingSandbox(ForegroundSandbox):
    """One without its program. ``prepare`` begins, ``give`` and ``await_program`` run a program in it, once."""

    _owner: socket | None = None
    _ready: Prepared | None = None
    hidden = True
    """Whether no list has it while it waits."""
    prepared = False
    """Whether it has been seen to wait."""
    later: Callable[[WaitingSandbox, Callable[[], None]], None] | None = None
    """Has what is left of one that has ended removed by somebody else; it is in no list any more."""

    def prepare(self, image: Image, pin: Sequence[int], ready: Callable[[bool], Prepared]) -> None:
        """Everything but its program, which the launcher does by itself: returns at once. ``pin``: keeps the image in the store. ``ready``:
        gives the plan of one that has a cgroup, or has none."""
        from socket import AF_UNIX, SOCK_SEQPACKET, socketpair

        try:
            with contextlib.ExitStack() as opened:
                null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                opened.callback(os.close, null)
                place = self._occupy(image, opened)
                if not place.slots:
                    raise Unsupported("a sandbox that waits needs a state directory", subject=self.id, hint="set DOCKLESS_HOME")
                if self.hidden:
                    documents.note(self.directory, WAITS, b"")
                self._ready = plan = ready(self._cgroup is not None)
                self._planned(plan)
                self._owner, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
                self._stack.callback(self._owner.close)
                opened.enter_context(theirs)
                own = join(plan, place.directory, None, opened)
                held = (*pin, *own.held) if own is not None else pin
                slots = {0: null, 1: null, 2: null, plan.owner: theirs.fileno()} | place.slots | held_open(held, opened)
                slots |= plan.slots(self._cgroup, opened, own)
                self._process = prepare(StartInputs(place, plan, slots, self._cgroup), f"dockless {self.id}", cgroup=self._group_name)
            self._stack.callback(self._process.close)
            leave_at_end(self._stack, own)
        except BaseException:
            self._stack.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether it has not ended, and nobody has removed its directory. It may just be about to."""
        return self.process.waits and self.directory.exists()

    def await_barrier(self) -> None:
        """Until it waits for its program. Errors: those of a start."""
        if not self.prepared:
            self.process.await_barrier()
            self.prepared = True

    def namespaces(self, count: int) -> list[int]:
        """Descriptors of its namespaces, once, of one whose plan hands them over; the caller closes them. It waits then."""
        assert self._owner is not None
        self.await_barrier()
        return received(self._owner, count, count)[1]

    def give(self, spec: Spec, image: Image, stdio: Sequence[int]) -> None:
        """Have it run the program of ``spec``; returns at once. ``SandboxGone`` where it does not wait any more, ``BadInput``"""
        assert self._ready is not None and self._owner is not None
        self.spec = spec
        workdir, command = self._workdir, command_of(self._ready.resolved, spec, image)
        beginning = in_memory(encode(Plan((Op("CHDIR", a=workdir),), command), take=True), sealed=True)
        try:
            self.give_away(stdio)
            self.process.give(self._owner, beginning, stdio)
        finally:
            os.close(beginning)
            self._owner.close()

    def give_away(self, stdio: Sequence[int]) -> None:
        """Pipes belong to the program's user, as OWN_PIPES has it; of one that root prepared, the launcher that waits has no right to
        that."""
        assert self._ready is not None
        owner = next((op.x for op in self._ready.plan.ops if op.name == "OWN_PIPES"), None)
        if owner is None or not self._ready.resolved.rootful:
            return
        for fd in {*stdio}:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.fchown(fd, owner & 0xFFFFFFFF, owner >> 32)

    def await_program(self, image: Image) -> None:
        """Until it runs. ``CommandNotFound`` and its relatives, and then it is used up; ``SandboxGone``, and nothing has run."""
        assert self._ready is not None
        ready = with_program(self._ready, self.spec, image, self._workdir)
        self.plan, self.identity = ready.plan, ready.resolved.identity
        self._note(ready)  # while it begins: nobody lists it as long as it waits
        with listening.told(self.directory, lambda: self._document(ready).encode("ascii")):
            self.process.await_given(ready.plan)
        with contextlib.suppress(OSError):
            os.unlink(self.directory / WAITS)

    def hand_over(self, to: socket, pool: str) -> None:
        """Send it to a process that gives it its program: ``taking.TakenSandbox``. It is that one's, and no longer ours; ``OSError``, and
        it still is. ``pool``: ``About.made``."""
        assert self._owner is not None
        cgroup = () if self._cgroup is None else (self._cgroup.fd,)
        about = {
            "made": pool,
            "id": self.id,
            "keeper": self.process.keeper_pid,
            "init": self.process.pid,
            "cgroup": self._cgroup.text if self._cgroup else "",
            "prepared": self.prepared,
            "warnings": self.warnings,
        }
        send(to, json.dumps(about).encode("ascii"), [self._owner.fileno(), *self.process.descriptors, *cgroup])
        children.collect_later(self.process.keeper_pid)
        self._stack.pop_all()
        self._owner.close()
        self.process.release()
        if self._cgroup is not None:
            self._cgroup.close()

    def _undo(self) -> None:
        if self.later is None or self._process is None or not self._process.ended:
            return super()._undo()
        rest, stack = self._process.apart(), self._stack.pop_all()
        stack.callback(rest.close)
        self._cgroup = None
        self.later(self, stack.close)
        return None

    @property
    def _workdir(self) -> str:
        assert self._ready is not None
        return directory(self.spec.workdir) if self.spec.workdir else self._ready.resolved.workdir


def _remove(directory: Path, remove: Callable[[], None]) -> None:
    try:
        remove()
    finally:
        leaving.discard(directory)


class Pool:
    """``size`` sandboxes of one spec that wait. Its image stays what it was when the pool was made. ``expire``: seconds after which one
    that nobody has taken ends, 0 for never. Safe to use from several threads. Entering fills it; leaving ends all that wait, and none that
    was taken; what those that have ended left is gone then. ``Unsupported`` for a spec with GPUs, published ports or addresses that it
    names."""

    def __init__(self, spec: Spec, *, size: int, expire: float = 0.0, labels: Mapping[str, str] | None = None) -> None:
        if spec.gpus or spec.cdi:
            hint = "start what needs them by itself: dockless.run(…, gpus=1)"
            raise Unsupported("sandboxes that wait hold no GPUs, which others could use", subject="gpus", hint=hint)
        if spec.ports or any(endpoint.addresses or endpoint.mac for endpoint in spec.endpoints):
            hint = "start what needs it by itself, or leave it out"
            raise Unsupported("sandboxes that wait cannot all have one port or address", subject="network", hint=hint)
        self.spec = spec
        self.size = size
        self._expire = expire
        self._labels = dict(labels or {})
        self._plans: dict[bool, Prepared] = {}
        self._waiting: deque[WaitingSandbox] = deque()
        self._left: deque[Callable[[], None]] = deque()
        self._closed = True
        self._pid = os.getpid()
        self._lock = _thread.allocate_lock()
        self._filling = _thread.allocate_lock()
        self._opened = contextlib.ExitStack()

    @property
    def waiting(self) -> int:
        """How many wait, or are about to."""
        return sum(box.alive for box in tuple(self._waiting))

    def __enter__(self) -> Pool:
        self.image = find_image(self.spec.image)
        self._pin = pins(self.image, self._opened)
        self._closed = False
        try:
            with self._filling:
                self._fill()
            for box in self._waiting:
                box.await_barrier()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def take(self, spec: Spec, stdio: Sequence[int]) -> WaitingSandbox:
        """One in which the program of ``spec`` runs; the caller leaves it, as a ``with`` does. Where none waits, one is made meanwhile.
        ``spec``: the pool's, with another command, variables and directory. Errors: those of a start."""
        if os.getpid() != self._pid:
            message = f"the pool belongs to process {self._pid}, from which this one was forked"
            raise SandboxError(message, subject=str(self._pid), hint="make a pool of your own")
        while True:
            found = self.next()
            box = self.begin() if found is None else found
            try:
                box.await_barrier()
                box.give(spec, self.image, stdio)
                self._refill()
                box.await_program(self.image)
            except BaseException as error:
                box.__exit__(type(error), error, error.__traceback__)
                if found is not None and isinstance(error, SandboxGone if box.prepared else DocklessError):
                    continue  # it had waited for too long, or could not be made, of which the next one says why
                raise
            box.later = self._leave
            return box

    def next(self) -> WaitingSandbox | None:
        """The one that has waited the longest, of those that have not ended."""
        while True:
            with self._lock:
                if self._closed:
                    raise SandboxGone(
                        "the pool is closed", subject="pool", hint="use it as a context manager: with dockless.Pool(…) as pool"
                    )
                box = self._waiting.popleft() if self._waiting else None
            if box is None or box.alive:
                return box
            box.__exit__(None, None, None)

    def _refill(self) -> None:
        """In a thread that ends when there are enough: beginning one takes a moment in which the program runs already."""
        if self._filling.acquire(blocking=False):
            try:
                _thread.start_new_thread(self._fill_aside, ())
            except RuntimeError:  # no thread is to be had: at the next take
                self._filling.release()

    def _fill_aside(self) -> None:
        full = False
        try:
            time.sleep(_ASIDE)
            self._remove_left()
            with contextlib.suppress(DocklessError, OSError):  # the next take says it, if it cannot be had then either
                self._fill()
                full = True
        finally:
            self._filling.release()
        if self._left or (full and not self._closed and len(self._waiting) < self.size):  # one was taken, or left, just now
            self._refill()

    def _leave(self, box: WaitingSandbox, remove: Callable[[], None]) -> None:
        """Have what is left of one removed. Where that would be of more than the pool's size, whoever left the last one does it."""
        leaving.add(box.directory)
        self._left.append(partial(_remove, box.directory, remove))
        if self._closed or len(self._left) > self.size:
            self._remove_left()
        else:
            self._refill()

    def _remove_left(self) -> None:
        """What cannot be removed now is left to ``reconcile``, as what is left by a program that was killed."""
        while True:
            try:
                remove = self._left.popleft()
            except IndexError:
                return
            with contextlib.suppress(DocklessError, OSError):
                remove()

    def _fill(self) -> None:
        """Begin as many as there are too few."""
        while not self._closed and len(self._waiting) < self.size:
            self._have_wait(self.begin())

    def _have_wait(self, box: WaitingSandbox) -> None:
        """One that comes when the pool is closed is ended."""
        with self._lock:
            if not self._closed:
                self._waiting.append(box)
                return
        box.__exit__(None, None, None)

    def begin(self) -> WaitingSandbox:
        """One more, which nobody has yet."""
        box = WaitingSandbox(self.spec, labels=self._labels)
        box.prepare(self.image, self._pin, self._plan)
        return box

    def _plan(self, has_cgroup: bool) -> Prepared:
        plan = self._plans.get(has_cgroup)
        if plan is None:
            spec = replace(self.spec, argv=_NOBODY, entrypoint=())
            plan = self._plans[has_cgroup] = waiting(spec, self.image, self._expire, has_cgroup=has_cgroup)
        return plan

    def close(self) -> None:
        """End all that wait. No error if it is closed."""
        with self._lock:
            boxes, self._closed = tuple(self._waiting), True
            self._waiting.clear()
        if os.getpid() != self._pid:
            return  # all of it is the parent's
        with self._filling:
            pass  # whoever fills it has seen that it is closed
        for box in boxes:
            box.kill()
        with contextlib.ExitStack() as all_of_them:
            all_of_them.push(self._opened)
            all_of_them.callback(self._remove_left)
            for box in boxes:
                all_of_them.push(box)
