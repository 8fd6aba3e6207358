"""The process of a pool with a name. It has one thread, and waits.

::

    create                      process of the pool                                   who takes
     │ what is wanted, stdin      │                                                      │
     │───────────────────────────►│ the name, the sandboxes: all wait                    │
     │◄─────────── ready, or an error, stdout                                            │
                                  │◄──────────────────────────────────── connects, and no more
                                  │ a sandbox: SCM_RIGHTS ──────────────────────────────►│ gives it its program: run.taking
                                  │ begins another one, which the launcher does by itself

Nothing that somebody sends is ever read: to connect is all there is to ask, and who asks is told by SO_PEERCRED. It sends one message to
each, which the kernel keeps until it is read or the connection is closed, so nobody can make it wait. What it hands over it does not hold
any more: a sandbox whose taker is killed ends, also when it has not even received it.

It ends when it is asked to (SIGTERM), or when nobody has taken a sandbox for so long. However it ends, nothing of what waits is left: each
has a leash.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import sys
import time
from collections.abc import Callable
from socket import AF_UNIX, SOCK_NONBLOCK, SOCK_SEQPACKET, socket

from dockless.base import json, paths, records, signal
from dockless.base.dataclass import replace
from dockless.base.descriptors import peer
from dockless.base.locks import is_locked
from dockless.base.path import Path
from dockless.base.typing import NoReturn
from dockless.errors import BadInput, DocklessError
from dockless.sandbox.run import children, named_pools
from dockless.sandbox.run.named_pools import ABOUT, STATE, About, State, Wanted
from dockless.sandbox.run.places import DOOR, at_its_door, names_stay
from dockless.sandbox.run.pool import Pool, WaitingSandbox
from dockless.sandbox.run.removal import remove_tree

_BACKLOG = 1024
_AT_ONCE = 16
"""Takers that are served before another sandbox is begun."""
_GLANCE = 0.01
"""Seconds until it is looked again for one who could not be let in."""
_AFTER_FAILURE = 1.0
"""Seconds until it is tried again to make one, where that failed."""


def main() -> NoReturn:
    """What ``named_pools.create`` starts."""
    import pickle

    if os.fork():
        os._exit(0)  # who started us has nothing to wait for
    os.umask(0o077)
    code = 0
    try:
        wanted = records.read(Wanted, json.loads(sys.stdin.buffer.read()))
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
            comm.write("dockless-pool")
        serve(wanted, _ready)
    except Exception as error:
        code = 1
        with contextlib.suppress(OSError):
            os.write(1, pickle.dumps(error))
    os._exit(code)


def _ready() -> None:
    """Tell who started us, and let go of her streams. ``BrokenPipeError`` where she has gone: nobody would know of it."""
    os.write(1, b"ready")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)


def serve(wanted: Wanted, ready: Callable[[], None]) -> None:
    """Be the process of a pool, to its end. ``ready``: called when it can be found."""
    with contextlib.ExitStack() as opened:
        directory = _occupy(wanted.name, opened)
        stock = Stock(wanted.spec, size=wanted.size, labels=wanted.labels)
        with stock:
            about, plan = stock.about(wanted)
            listener = _listen(directory, opened)
            serving = Serving(directory, about, stock, listener)
            opened.enter_context(serving)
            serving.tell()
            _write(directory, ABOUT, json.dumps(records.differences(about)).encode("ascii") + b"\0" + plan)
            ready()
            serving.until_over()


def _occupy(name: str, opened: contextlib.ExitStack) -> Path:
    """Its directory, locked for as long as we live. ``BadInput`` where another one has it."""
    directory, parent = named_pools.directory_of(name), paths.make(named_pools.place())
    with paths.writing("the directory of a pool", directory), names_stay(parent, fcntl.LOCK_EX):
        for left in os.listdir(parent):
            if not is_locked(parent / left) and (left == name or (parent / left / ABOUT).exists()):
                _remove(parent / left)
        if not paths.make_new(directory):
            raise BadInput(f"there is a pool {name} already", subject=name, hint=f"choose another name, or end it: dockless pool rm {name}")
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        opened.callback(os.close, fd)
        fcntl.flock(fd, fcntl.LOCK_EX)  # waits only for those who are just asking
        opened.callback(remove_tree, directory)
    return directory


def _remove(path: Path) -> None:
    """Of a pool whose process was killed, or what somebody put there."""
    if path.is_dir() and not path.is_symlink():
        return remove_tree(path)
    path.unlink(missing_ok=True)


def _listen(directory: Path, opened: contextlib.ExitStack) -> socket:
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK)
    opened.callback(listener.close)
    with paths.writing("the socket of a pool", directory):
        at_its_door(directory, listener.bind)
        os.chmod(directory / DOOR, 0o600)
        listener.listen(_BACKLOG)
    return listener


def _write(directory: Path, name: str, content: bytes) -> None:
    """Whole or not at all; not durable."""
    with paths.writing("what a pool says of itself", directory):
        fd = os.open(directory / f"{name}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as stream:
            stream.write(content)
        os.rename(directory / f"{name}.tmp", directory / name)


class Stock(Pool):
    """The sandboxes that wait, refilled by whoever holds it, without a thread."""

    def about(self, wanted: Wanted) -> tuple[About, bytes]:
        """What a taker must know, and the plan. All of them have the same one."""
        self._has_cgroup = next(iter(self._plans))
        ready = self._plans[self._has_cgroup]
        found = ready.resolved
        about = About(
            wanted=replace(wanted, spec=self.spec),
            made=os.urandom(8).hex(),
            pid=os.getpid(),
            created=time.time(),
            digest=self.image.digest,
            config=replace(self.image.config, labels=(), volumes=(), health=None),
            account=found.account,
            hostname=found.hostname,
            workdir=found.workdir,
            capabilities=found.capabilities,
            idmap=found.idmap,
            rootful=found.rootful,
            has_cgroup=self._has_cgroup,
        )
        return about, ready.raw()

    def boxes(self) -> tuple[WaitingSandbox, ...]:
        return tuple(self._waiting)

    def put(self, box: WaitingSandbox) -> None:
        self._waiting.append(box)

    def put_back(self, box: WaitingSandbox) -> None:
        self._waiting.appendleft(box)

    def remove(self, box: WaitingSandbox) -> None:
        self._waiting.remove(box)

    def begin(self) -> WaitingSandbox:
        box = super().begin()
        if (box.cgroup is not None) != next(iter(self._plans)):  # a taker could not know its plan
            box.__exit__(None, None, None)
            raise BadInput("the place of cgroups is another one than when the pool was made", subject="cgroup", hint="make the pool anew")
        return box


class Serving:
    """Hands out what waits, and looks after it."""

    def __init__(self, directory: Path, about: About, stock: Stock, listener: socket) -> None:
        self._directory = directory
        self._wanted = about.wanted
        self._made = about.made
        self._stock = stock
        self._listener = listener
        self._poller = select.epoll()
        self._watched: dict[int, WaitingSandbox] = {}
        self._over = False
        self._try_again = 0.0
        self._used = time.monotonic()
        self._state = State(len(stock.boxes()), 0, time.time())
        self._told: State | None = None

    def __enter__(self) -> Serving:
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # one that was taken has ended: it is ours to collect
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for fd in (self._woken, self._listener.fileno()):
            self._poller.register(fd, select.EPOLLIN)
        for box in self._stock.boxes():
            self._watch(box)
        return self

    def __exit__(self, *_: object) -> None:
        self._poller.close()

    def _end(self, *_: object) -> None:
        self._over = True

    def _watch(self, box: WaitingSandbox) -> None:
        fd = box.process.descriptors[1]
        self._watched[fd] = box
        self._poller.register(fd, select.EPOLLIN)

    def _unwatch(self, box: WaitingSandbox) -> None:
        """Before it is handed over: an epoll has what its descriptors are open on, not their numbers. epoll(7)"""
        fd = box.process.descriptors[1]
        if self._watched.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def until_over(self) -> None:
        """Until it is asked to end, or nobody has taken any for too long."""
        while not self._over:
            events = self._poller.poll(self._wait())
            for fd, _ in events:
                if fd in self._watched:
                    self._look_at(self._watched[fd])
            if any(fd == self._woken for fd, _ in events):
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                children.collect_ended()
            if not self._serve_takers():
                self._refill()
                self.tell()
            if self._ends() <= time.monotonic():
                return

    def _ends(self) -> float:
        return self._used + self._wanted.expire if self._wanted.expire else math.inf

    def _wait(self) -> float:
        """Seconds until there is something to do by itself; -1 for never."""
        due = self._ends()
        if self._too_few():
            due = min(due, self._try_again)
        return -1 if due == math.inf else min(max(0.0, due - time.monotonic()), 86400.0)

    def _too_few(self) -> bool:
        return len(self._stock.boxes()) < self._wanted.size

    def _look_at(self, box: WaitingSandbox) -> None:
        """It waits now, or has ended."""
        try:
            if not box.prepared:
                return box.await_barrier()
            self._failed("one ended while it waited")
        except DocklessError as error:
            self._failed(str(error))
        self._unwatch(box)
        self._stock.remove(box)
        box.__exit__(None, None, None)

    def _failed(self, why: str) -> None:
        self._try_again = time.monotonic() + _AFTER_FAILURE
        self._state = replace(self._state, failed=why)

    def _serve_takers(self) -> bool:
        """Whether there may be more of them."""
        for _ in range(_AT_ONCE):
            try:
                taker = self._listener.accept()[0]
            except BlockingIOError:
                return False
            except OSError:  # it has gone already, or there is no descriptor to be had
                time.sleep(_GLANCE)
                return False
            try:
                self._serve(taker)
            finally:
                taker.close()
        return True

    def _serve(self, taker: socket) -> None:
        if peer(taker) != os.geteuid():
            return
        taker.setblocking(False)
        waited = next((box for box in self._stock.boxes() if box.alive), None)
        try:
            box = waited or self._stock.begin()
        except (DocklessError, OSError) as error:
            hint = error.hint if isinstance(error, DocklessError) else ""
            with contextlib.suppress(OSError):
                taker.send(json.dumps({"error": str(error), "hint": hint}).encode("ascii"))
            return self._failed(str(error))
        if waited is not None:
            self._unwatch(box)
            self._stock.remove(box)
        try:
            box.hand_over(taker, self._made)
        except OSError:  # who asked has gone, or may have no more descriptors under way
            self._stock.put_back(box)
            self._watch(box)
            return
        self._used = time.monotonic()
        self._state = replace(self._state, taken=self._state.taken + 1, used=time.time())

    def _refill(self) -> None:
        """One more, where there are too few: it is made by itself, while we go on."""
        if not self._too_few() or time.monotonic() < self._try_again:
            return
        try:
            box = self._stock.begin()
        except (DocklessError, OSError) as error:
            return self._failed(str(error))
        self._stock.put(box)
        self._watch(box)

    def tell(self) -> None:
        """What ``dockless pool ls`` shows."""
        waiting = len(self._stock.boxes())
        full = waiting >= self._wanted.size and all(box.prepared for box in self._stock.boxes())
        self._state = replace(self._state, waiting=waiting, failed="" if full else self._state.failed)
        if self._state != self._told:
            with contextlib.suppress(DocklessError):  # the disk is full: nobody waits for it
                _write(self._directory, STATE, json.dumps(records.plain(self._state)).encode("ascii"))
                self._told = self._state
