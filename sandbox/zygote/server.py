"""A zygote and its calls, seen from the host.

::

    begin     a sandbox up to its BARRIER, which hands over its namespaces; the image's Python runs in it, and imports
    calls     a pool of sandboxes that wait, each with a PID namespace below the zygote's
    call      one of them, whose namespaces go to the zygote; it forks, and the child enters them            inside.py
              the child says that it is there, and we put it into the sandbox's cgroup
              the request and the answer pass between the child and us alone; then the sandbox is ended, with all that is in it
    branch    the same, and the child stays a zygote

The init of such a sandbox never leaves its BARRIER: what ends a call is the end of its sandbox.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import math
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from socket import AF_UNIX, SO_PASSCRED, SOCK_SEQPACKET, SOCK_STREAM, SOL_SOCKET, send_fds, socket, socketpair

from dockless.base.dataclass import copied
from dockless.base.descriptors import from_whom
from dockless.base.interrupts import waiting
from dockless.base.path import Path
from dockless.base.pidfds import hold
from dockless.base.typing import TYPE_CHECKING, Any, TypeVar
from dockless.base.waits import readable
from dockless.errors import BadAnswer, CgroupError, CommandNotFound, DocklessError, LaunchFailed, SandboxGone, ZygoteError, ZygoteLost
from dockless.native.userns import own_namespace
from dockless.sandbox.run.pool import Pool, WaitingSandbox
from dockless.sandbox.run.start import find_image, pins
from dockless.sandbox.zygote import answers, plans
from dockless.sandbox.zygote.answers import Conversation, Said

if TYPE_CHECKING:
    from dockless.images import Image
    from dockless.sandbox.run.prepared import Prepared
    from dockless.sandbox.spec import Spec

T = TypeVar("T")
IMPORTING = 600.0
"""Seconds that a zygote may take for its imports."""
_PATIENCE = 30.0
"""Seconds in which it takes a request: it does nothing else."""
_AHEAD = 2
"""Sandboxes that are begun while others get their processes."""
_SHOWN = 2000
"""Bytes of what it printed before it failed."""


class _Seat(WaitingSandbox):
    """A sandbox for a call, and when it is ``taken``, the process in it that waits for what it is to call."""

    has_door = False

    def take(self, node: Node) -> None:
        """Have the zygote fork into it. Errors: those of a start, ``ZygoteLost``"""
        with contextlib.ExitStack() as here:
            spaces = self.namespaces(len(node.kinds))
            for fd in spaces:
                here.callback(os.close, fd)
            self._space = _file(spaces[node.kinds.index("pid")])
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
            self.status = node.forked(b"call", spaces, theirs.fileno(), writers)
            self._stack.callback(os.close, self.status)

    def settle(self, node: Node) -> None:
        """When its process is there, put it into the sandbox's group. Errors: those of a start, ``ZygoteLost``"""
        if not node.settled(self, self.channel, self._space):
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


class _Seats(Pool):
    """Sandboxes for calls. Some have been begun, and wait at their BARRIER; ``size`` of them have their process."""

    def __init__(self, node: Node, size: int, image: Image, pin: Sequence[int]) -> None:
        super().__init__(node.spec, size=size)
        self._node = node
        self.image, self._pin = image, list(pin)
        self._closed = False
        self._begun: deque[_Seat] = deque()
        self._entering: deque[_Seat] = deque()
        self._used: deque[_Seat] = deque()
        self._ending = _thread.allocate_lock()

    def _plan(self, has_cgroup: bool) -> Prepared:
        plan = self._plans.get(has_cgroup)
        if plan is None:
            plan = self._plans[has_cgroup] = self._node.call_plan(has_cgroup)
        return plan

    def begin(self) -> _Seat:
        box = _Seat(self.spec)
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
                    box.take(self._node)
                self._entering.append(box)
                continue
            box = self._entering.popleft()
            with _ended_on_error(box):
                box.settle(self._node)
            with self._lock:
                if not self._closed:
                    self._waiting.append(box)
                    continue
            box.__exit__(None, None, None)

    def lend(self) -> _Seat:
        """One of them; the caller leaves it. Errors: those of a start, ``ZygoteLost``"""
        while (box := self.next()) is not None:
            if isinstance(box, _Seat) and box.sound:
                self._refill()
                return box
            box.__exit__(None, None, None)
        try:
            box = self.begin()
            self._refill()
            with _ended_on_error(box):
                box.take(self._node)
                box.settle(self._node)
        except LaunchFailed as error:
            if self._node.ended:  # no process is born where it was
                raise self._node.lost("when it was needed") from error
            raise
        return box

    def end(self, box: _Seat) -> None:
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
def _ended_on_error(box: _Seat) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        box.__exit__(type(error), error, error.__traceback__)
        raise


class Node:
    """A zygote: one that was begun, or a branch of another one. ``preload``: the modules that it imports beyond those of ``parent``.
    Entering begins it; leaving ends it, its calls and its branches. Safe to use from several threads."""

    def __init__(
        self, spec: Spec, preload: Sequence[str], *, size: int, parent: Node | None = None, labels: Mapping[str, str] | None = None
    ) -> None:
        plans.check(spec)
        self._labels = labels
        self.spec, self.parent = spec, parent
        self.preload = tuple(preload)
        self.branches: list[Node] = []
        self._size = size
        self._opened = contextlib.ExitStack()
        self._box: WaitingSandbox | None = None
        self._control: socket | None = None
        self._closed = False
        self._pid = os.getpid()
        self.version = ""
        self.kinds: tuple[str, ...] = ()
        """The namespaces of a sandbox for a call, in the order in which they are handed over."""
        self._space = self._status = -1

    def __enter__(self) -> Node:
        try:
            self.begin()
        except BaseException:
            self._opened.close()
            raise
        if self.parent is not None:
            self.parent.branches.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End it. No error if it is closed."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        for branch in self.branches:
            branch.close()
        if self._box is not None and self._box.prepared:
            with contextlib.suppress(DocklessError):
                self._box.kill()  # and with its PID namespace all that lie below
        self._opened.close()

    @property
    def modules(self) -> frozenset[str]:
        """All that it was to import."""
        return frozenset(self.preload) | (self.parent.modules if self.parent is not None else frozenset())

    def best(self, needs: frozenset[str]) -> Node:
        """Of this one and its branches the one with the most of these modules, and none but these beyond its own."""
        fit = [branch.best(needs) for branch in self.branches if not branch._closed and {*branch.preload} <= needs]
        return max((self, *fit), key=lambda node: len(node.modules))

    def begin(self) -> None:
        if self.parent is None:
            self.image = find_image(self.spec.image)
            self._pin = pins(self.image, self._opened)
            idmap = plans.idmap_of(self.spec, self.image)
            user = own_namespace(idmap)
            self._opened.callback(os.close, user)
            self._family = plans.Family(self.spec, self.image, user)
            above = -1
        else:
            self.image, self._pin, self._family = self.parent.image, self.parent._pin, self.parent._family
            above = self.parent._space
        spec = copied(self.spec, argv=("true",), entrypoint=())
        box = WaitingSandbox(spec, labels=self._labels)
        ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        output, printed = os.pipe2(os.O_CLOEXEC)
        with contextlib.ExitStack() as here:
            here.enter_context(theirs)
            here.callback(os.close, output)
            here.callback(os.close, printed)
            self._control = self._opened.enter_context(ours)
            box.prepare(self.image, self._pin, lambda grouped: self._family.zygote(has_cgroup=grouped, above=above))
            self._opened.push(box)
            self._box = box
            assert box.plan is not None
            self.kinds = plans.handed(box.plan)
            spaces = box.namespaces(len(self.kinds))
            for fd in spaces:
                here.callback(os.close, fd)
            self._space = os.dup(spaces[self.kinds.index("pid")])
            self._opened.callback(os.close, self._space)
            first: dict[str, Any] = {"preload": self.preload}
            if self.parent is None:
                first["settings"] = self._settings(box)
                self._run(box, (theirs.fileno(), printed, printed))
            else:
                ours.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)
                self._status = self.parent.forked(b"branch", spaces, theirs.fileno(), (printed, printed))
                self._opened.callback(os.close, self._status)
            theirs.close()
            ours.settimeout(_PATIENCE)
            if self.parent is None:
                self._send([json.dumps(first).encode()], ())
            elif self.parent.settled(box, ours, _file(self._space)):
                with contextlib.suppress(ZygoteLost):  # it has said why, or its end does
                    self._send([json.dumps(first).encode()], ())
            else:
                box.kill()
            self._await_ready(output)
        self._seats = _Seats(self, self._size, self.image, self._pin)
        self._opened.callback(self._seats.close)
        self._seats._refill()

    def call_plan(self, has_cgroup: bool) -> Prepared:
        """The plan of a sandbox for a call."""
        return self._family.call(has_cgroup=has_cgroup, above=self._space)

    def _settings(self, box: WaitingSandbox) -> dict[str, Any]:
        assert box.plan is not None and box.plan.command is not None
        call = self._family.call(has_cgroup=False, above=self._space).plan
        assert call.command is not None
        own = {*box.plan.command.envp}
        changed = dict(variable.split("=", 1) for variable in call.command.envp if variable not in own)
        return {"kinds": self.kinds, "program": plans.program(call), "env": changed}

    def _run(self, box: WaitingSandbox, stdio: tuple[int, int, int]) -> None:
        script = Path(__file__).with_name("inside.py").read_text("utf-8")
        argv = ("python3", "-c", script + "\nmain()\n")
        try:
            box.give(copied(box.spec, argv=argv, entrypoint=()), self.image, stdio)
            box.await_program(self.image)
        except CommandNotFound as error:
            hint = "use an image with Python, such as python:3.12-slim; its directory must be in the image's PATH"
            raise ZygoteError(f"the image {self.spec.image} has no python3", subject=self.spec.image, hint=hint) from error

    def _await_ready(self, output: int) -> None:
        """Until it has imported all. ``ZygoteError``, ``ZygoteLost``"""
        assert self._control is not None
        deadline, printed = time.monotonic() + IMPORTING, bytearray()
        poller = select.poll()
        for fd in (self._control.fileno(), output):
            poller.register(fd, select.POLLIN)
        ended = self._box.process.fileno() if self.parent is None and self._box is not None else self._status
        poller.register(ended, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                what = f"the imports are not done after {IMPORTING:g} seconds"
                raise ZygoteError(what, subject=", ".join(self.preload), hint=_printed(printed))
            with waiting():
                ready = {fd for fd, _ in poller.poll(math.ceil(left * 1000))}
            if output in ready:
                part = os.read(output, 1 << 16)
                printed = (printed + part)[-_SHOWN:]
                if not part:
                    poller.unregister(output)
            if self._control.fileno() in ready:
                raw = _again(partial(self._control.recv, 1 << 18))
                if raw:
                    self.version = _check_ready(raw, self.preload)
                    return
                poller.unregister(self._control.fileno())
            elif ended in ready:
                raise self.lost("before its imports were done", printed)

    @property
    def ended(self) -> bool:
        """Whether it has ended, closed or not."""
        above = self.parent is not None and self.parent.ended
        return above or self._closed or self._box is None or not self._box.alive or (self._status >= 0 and readable(self._status, 0))

    def lost(self, when: str, printed: bytes | bytearray = b"") -> ZygoteLost:
        why = ""
        if self.parent is None and self._box is not None:
            with contextlib.suppress(TimeoutError, DocklessError):
                ended = self._box.process.wait(_PATIENCE / 30)
                why = f" with signal {ended.signal}" if ended.signal else f" with exit code {ended.code}"
        elif self._status >= 0:
            with contextlib.suppress(OSError, ValueError, BadAnswer):
                os.set_blocking(self._status, False)
                why = _ending(json.loads(os.read(self._status, 4096)))
        hint = _printed(printed) or "make another one; one of its modules, or the kernel for want of memory, has ended it"
        return ZygoteLost(f"the zygote ended{why}, {when}", subject=self.spec.image, hint=hint)

    def _silent(self) -> ZygoteLost:
        hint = "a module has stopped it: make another one"
        return ZygoteLost("the zygote takes no request", subject=self.spec.image, hint=hint)

    def _send(self, data: list[bytes], fds: Sequence[int]) -> None:
        assert self._control is not None
        try:
            send_fds(self._control, data, [*fds])
        except TimeoutError:
            raise self._silent() from None
        except OSError as error:
            raise self.lost("when it was needed") from error

    def forked(self, kind: bytes, spaces: Sequence[int], channel: int, output: tuple[int, int]) -> int:
        """Have it fork into a sandbox that waits. The descriptor in which it says how that ends is the caller's."""
        status, theirs = os.pipe2(os.O_CLOEXEC)
        try:
            self._send([kind], [*spaces, channel, theirs, *output])
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(theirs)
        return status

    def settled(self, box: WaitingSandbox, channel: socket, space: tuple[int, int]) -> bool:
        """Put the process that says by ``channel`` that it is there into its sandbox's group: the zygote has no descriptor of any. Whether
        there is such a process. That is one of this PID namespace, whichever one the zygote names. ``ZygoteLost``, ``CgroupError``"""
        if not readable(channel.fileno(), _PATIENCE):
            raise self._silent()
        data, pid = _again(lambda: from_whom(channel, 1))
        channel.setsockopt(SOL_SOCKET, SO_PASSCRED, 0)  # else it gets a name, unix(7)
        if box.cgroup is None or not data or not pid:
            return bool(data) and box.cgroup is None
        try:
            process = hold(pid)
        except ProcessLookupError:
            return False
        try:
            if _file(f"/proc/{pid}/ns/pid") != space:
                return False
            box.cgroup.add(pid)
        except (CgroupError, FileNotFoundError, ProcessLookupError):
            if not readable(process, 0):
                raise
            return False
        else:
            return not readable(process, 0)  # it was the same all the time
        finally:
            os.close(process)

    def start(self, request: Mapping[str, Any], *, limit: int, most: int) -> Running:
        """Begin a call. ``limit``, ``most``: bytes of its answer, and of each of its streams. Errors: ``ZygoteLost``, those of a start."""
        if self._closed or self._control is None:
            hint = "use it as a context manager: with dockless.Zygote(…) as zygote"
            raise SandboxGone("the zygote is not open", subject=self.spec.image, hint=hint)
        if os.getpid() != self._pid:
            message = f"the zygote belongs to process {self._pid}, from which this one was forked"
            raise ZygoteError(message, subject=str(self._pid), hint="make one of your own")
        return Running(self, json.dumps({**request, "limit": limit}).encode(), limit, most)


class Running:
    """A call. ``wait`` ends it; it is to be called once. ``kill``: from any thread."""

    def __init__(self, node: Node, request: bytes, limit: int, most: int) -> None:
        self._killed = self._over = False
        self._lock = _thread.allocate_lock()
        self.out_of_memory = False
        """Whether the kernel killed something of it for memory; known when it has ended without an answer."""
        self._node = node
        self.box = box = node._seats.lend()
        self._talk = Conversation(box.channel, box.status, box.output, request, limit=limit, most=most)

    def wait(self, timeout: float = math.inf) -> Said:
        """What came of it, when it and all that it has started have ended. ``BadAnswer``, ``ZygoteLost``"""
        try:
            said = self._talk.run(timeout)
            if said.outcome is None and not said.late and not self._killed:
                if said.status is None:
                    raise self._node.lost("while a call ran")
                group = self.box.cgroup
                self.out_of_memory = group is not None and bool(group.usage(pressure=False).oom_kills)
            return said
        finally:
            with self._lock:
                self._over = True
            self._node._seats.end(self.box)

    def kill(self) -> None:
        """End it now. When it is over its descriptors may be another call's by now, so nothing is done then."""
        with self._lock:
            self._killed = True
            if not self._over:
                with contextlib.suppress(DocklessError):
                    self.box.kill()


def _again(receive: Callable[[], T]) -> T:
    """An end that closed before it had read all is an error, once; what it has sent comes next."""
    try:
        return receive()
    except ConnectionResetError:
        return receive()


def _file(of: int | str) -> tuple[int, int]:
    """By what a namespace is known."""
    found = os.stat(of)
    return found.st_dev, found.st_ino


def _check_ready(raw: bytes, preload: Sequence[str]) -> str:
    """Python's version. ``ZygoteError``"""
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise BadAnswer("what the zygote says makes no sense", subject="zygote", hint="one of its modules has written to its socket")
    if isinstance(said.get("ready"), str):
        return str(said["ready"])
    if "failed" in said:
        raise ZygoteError(
            f"the branch could not begin: {str(said['failed'])[:500]}", subject="branch", hint="'dockless doctor' checks this host"
        )
    if "import" in said:
        kind, message, trace, module = answers.texts(said["import"], "type", "message", "traceback", "module")
        hint = "is it in the image, and on its PYTHONPATH? the traceback is in the error's notes"
        failed = ZygoteError(f"the zygote cannot import {module[:200]}: {kind}: {message[:300]}", subject=module[:200], hint=hint)
        failed.add_note(trace)
        raise failed
    if "threads" in said:
        names = answers.names(said["threads"])
        hint = "a fork has none of them, and what they hold stays locked: import a module that starts threads in the call instead"
        raise ZygoteError(f"threads are running after the imports: {names}", subject=", ".join(preload), hint=hint)
    if "shared" in said:
        names = answers.names(said["shared"])
        hint = "all calls could write to it: import the module that makes it in the call instead"
        raise ZygoteError(f"memory is shared after the imports: {names}", subject=", ".join(preload), hint=hint)
    raise BadAnswer("what the zygote says makes no sense", subject="zygote", hint="one of its modules has written to its socket")


def _ending(status: Mapping[str, Any]) -> str:
    raw = status.get("status")
    if not isinstance(raw, int):
        return ""
    return ending(raw)


def ending(raw: int) -> str:
    """A raw wait status in words, wait(2)."""
    if os.WIFSIGNALED(raw):
        number = os.WTERMSIG(raw)
        try:
            return f" with signal {signal.Signals(number).name}"
        except ValueError:
            return f" with signal {number}"
    return f" with exit code {os.WEXITSTATUS(raw)}"


def _printed(text: bytes | bytearray) -> str:
    return f"it printed: {text.decode('utf-8', 'replace').strip()}" if text.strip() else ""
