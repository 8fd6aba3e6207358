"""A zygote and its calls, seen from the host.

::

    begin     a sandbox up to its BARRIER, which hands over its namespaces; the image's Python runs in it, and imports
    calls     a pool of sandboxes that wait, each with a PID namespace below the zygote's                     seats.py
    call      one of them, whose namespaces go to the zygote; it forks, and the child enters them            inside.py
              the child says that it is there, and we put it into the sandbox's cgroup
              the request and the answer pass between the child and us alone                                 running.py, answers.py
              then the sandbox is ended, with all that is in it
    branch    the same, and the child stays a zygote

The init of such a sandbox never leaves its BARRIER: what ends a call is the end of its sandbox.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from socket import AF_UNIX, SO_PASSCRED, SOCK_SEQPACKET, SOL_SOCKET, send_fds, socket, socketpair

from dockless.base.dataclass import copied
from dockless.base.descriptors import from_whom
from dockless.base.interrupts import waiting
from dockless.base.path import Path
from dockless.base.pidfds import hold
from dockless.base.typing import TYPE_CHECKING, Any, TypeVar
from dockless.base.waits import readable
from dockless.errors import BadAnswer, CgroupError, CommandNotFound, DocklessError, SandboxGone, ZygoteError, ZygoteLost
from dockless.native.userns import own_namespace
from dockless.sandbox.run.pool import WaitingSandbox
from dockless.sandbox.run.start import find_image, pins
from dockless.sandbox.zygote import answers, plans
from dockless.sandbox.zygote.running import Running
from dockless.sandbox.zygote.seats import Seat, Seats, namespace_id

if TYPE_CHECKING:
    from dockless.sandbox.run.prepared import Prepared
    from dockless.sandbox.spec import Spec

T = TypeVar("T")
IMPORTING = 600.0
"""Seconds that a zygote may take for its imports."""
_PATIENCE = 30.0
"""Seconds in which it takes a request: it does nothing else."""
_SHOWN = 2000
"""Bytes of what it printed before it failed."""


class ZygoteProcess:
    """A zygote's process in its sandbox, and the sandboxes for its calls: what ``dockless.Zygote`` opens. ``parent``: it is a branch of
    that one, else the image's Python is started. ``preload``: the modules that it imports beyond those of ``parent``. ``size``: how many
    sandboxes wait for calls. Entering begins it; leaving ends it, its calls and its branches. Safe to use from several threads."""

    def __init__(
        self, spec: Spec, preload: Sequence[str], *, size: int, parent: ZygoteProcess | None = None, labels: Mapping[str, str] | None = None
    ) -> None:
        plans.check(spec)
        self._labels = labels
        self.spec, self.parent = spec, parent
        self.preload = tuple(preload)
        self.branches: list[ZygoteProcess] = []
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

    def __enter__(self) -> ZygoteProcess:
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

    def best(self, needs: frozenset[str]) -> ZygoteProcess:
        """Of this one and its branches the one with the most of these modules, and none but these beyond its own."""
        fit = [branch.best(needs) for branch in self.branches if not branch._closed and {*branch.preload} <= needs]
        return max((self, *fit), key=lambda one: len(one.modules))

    def begin(self) -> None:
        """Returns when it has imported all, and the sandboxes for its calls begin."""
        above = self._find_family()
        ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        ours.settimeout(_PATIENCE)
        output, printed = os.pipe2(os.O_CLOEXEC)
        with contextlib.ExitStack() as here:
            here.enter_context(theirs)
            here.callback(os.close, output)
            here.callback(os.close, printed)
            self._control = self._opened.enter_context(ours)
            box, spaces = self._make_sandbox(above, here)
            if self.parent is None:
                self._start_python(box, theirs, printed)
            else:
                self._branch_off(self.parent, box, spaces, theirs, printed)
            self._await_imports(output)
        self._begin_seats()

    def _find_family(self) -> int:
        """What it has in common with the sandboxes for its calls, a branch with its parent. A descriptor of the PID namespace in which it
        is born, -1 for the host's."""
        if self.parent is None:
            self.image = find_image(self.spec.image)
            self._pin = pins(self.image, self._opened)
            idmap = plans.idmap_of(self.spec, self.image)
            user = own_namespace(idmap)
            self._opened.callback(os.close, user)
            self._family = plans.Family(self.spec, self.image, user)
            return -1
        self.image, self._pin, self._family = self.parent.image, self.parent._pin, self.parent._family
        return self.parent._space

    def _make_sandbox(self, above: int, here: contextlib.ExitStack) -> tuple[WaitingSandbox, list[int]]:
        """Its own, which waits at the BARRIER, and descriptors of its namespaces, which ``here`` closes."""
        box = WaitingSandbox(copied(self.spec, argv=("true",), entrypoint=()), labels=self._labels)
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
        return box, spaces

    def _start_python(self, box: WaitingSandbox, control: socket, printed: int) -> None:
        """The image's, and tell it what to import and how a call's process becomes an ordinary one. ``control`` is closed."""
        settings = self._settings(box)
        self._run(box, (control.fileno(), printed, printed))
        control.close()
        self._send([json.dumps({"preload": self.preload, "settings": settings}).encode()], ())

    def _branch_off(self, parent: ZygoteProcess, box: WaitingSandbox, spaces: Sequence[int], control: socket, printed: int) -> None:
        """Have ``parent`` fork into the sandbox, and tell the fork what to import. ``control`` is closed."""
        assert self._control is not None
        self._control.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)
        self._status = parent.forked(b"branch", spaces, control.fileno(), (printed, printed))
        self._opened.callback(os.close, self._status)
        control.close()
        if parent.settled(box, self._control, namespace_id(self._space)):
            with contextlib.suppress(ZygoteLost):  # it has said why, or its end does
                self._send([json.dumps({"preload": self.preload}).encode()], ())
        else:
            box.kill()

    def _begin_seats(self) -> None:
        self._seats = Seats(self, self._size, self.image, self._pin)
        self._opened.callback(self._seats.close)
        self._seats._refill()

    def lend_seat(self) -> Seat:
        """A sandbox with a process that waits for a call; ``end_seat`` takes it back. Errors: those of a start, ``ZygoteLost``"""
        return self._seats.lend()

    def end_seat(self, seat: Seat) -> None:
        """Kill all that is in it; it is removed aside."""
        self._seats.end(seat)

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
        argv = ("python3", "-c", script() + "\nmain()\n")
        try:
            box.give(copied(box.spec, argv=argv, entrypoint=()), self.image, stdio)
            box.await_program(self.image)
        except CommandNotFound as error:
            hint = "use an image with Python, such as python:3.12-slim; its directory must be in the image's PATH"
            raise ZygoteError(f"the image {self.spec.image} has no python3", subject=self.spec.image, hint=hint) from error

    def _await_imports(self, output: int) -> None:
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
        there is such a process. That is one of this PID namespace, whichever one the zygote names. ``ZygoteLost``, ``ZygoteError``,
        ``CgroupError``"""
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
            if namespace_id(f"/proc/{pid}/ns/pid") != space:
                return False
            box.cgroup.add(pid)
        except (CgroupError, OSError) as error:
            if readable(process, 0):
                return False
            if isinstance(error, OSError):
                hint = "a procfs that hides processes (hidepid, proc(5)) must show you those of your own sandboxes"
                raise ZygoteError(f"cannot look at the process of a call: {error.strerror}", subject=f"/proc/{pid}", hint=hint) from error
            raise
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


def script() -> str:
    """What runs inside, as one text: how values cross, and the zygote. One ``from __future__`` holds for all of it, at its beginning."""
    values, inside = (Path(__file__).with_name(name).read_text("utf-8") for name in ("values.py", "inside.py"))
    return values + inside.replace("from __future__ import annotations\n", "", 1)


def _again(receive: Callable[[], T]) -> T:
    """An end that closed before it had read all is an error, once; what it has sent comes next."""
    try:
        return receive()
    except ConnectionResetError:
        return receive()


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
