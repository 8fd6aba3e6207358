"""Into a sandbox that runs: its door, and a program that enters by it.

The door is a socket in the sandbox's own directory, which nobody else can reach. Its keeper starts what enters (native/launcher/door.c),
in a cgroup below the sandbox's where there is one, so that it can be ended with all that it started.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import time
from collections.abc import Callable, Hashable, Mapping
from functools import partial

from dockless import native
from dockless.base import signal
from dockless.base.dataclass import dataclass, field, replace
from dockless.base.path import Path
from dockless.base.typing import TypeVar
from dockless.base.waits import readable
from dockless.cgroups import Cgroup
from dockless.cgroups.usage import parse_flat
from dockless.errors import BadInput, CgroupError, LaunchFailed, SandboxError, SandboxGone
from dockless.sandbox.enter import Entry, compile_look, compile_way, same_way, with_command
from dockless.sandbox.plan.builder import NEW_NS
from dockless.sandbox.plan.plan import (
    SLOT_CGROUP,
    SLOT_LEASH,
    SLOT_PROGRAM,
    SLOT_ROOT,
    SLOT_TERMINAL,
    Plan,
    Rows,
    encode,
    filled_in,
    rows_of,
)
from dockless.sandbox.resolved import Identity
from dockless.sandbox.run import exec_notes, process
from dockless.sandbox.run.places import at_its_door
from dockless.sandbox.run.process import Process
from dockless.sandbox.run.removal import remove_cgroup

T = TypeVar("T")
_BEGINNING = 10.0
"""Seconds in which a program has to begin, for whoever enters."""
_LOOK = 0.005
"""Seconds until its keeper is asked again."""
_AT_THE_END = (0, errno.ENOMEM, errno.ENODEV)
"""Errors of what enters while everything inside is killed: it is killed, too, or its PID namespace or cgroup is no more. clone(2)"""
_KILLED = 128 + signal.SIGKILL
_WAYS = 64
"""How many ways to enter one sandbox are kept: by directories and users."""
_MOMENT = 1.0
"""Seconds until a keeper whose init was killed has ended."""


@dataclass(frozen=True, slots=True)
class Entrance:
    """A sandbox that can be entered. ``plan``, ``identity``: what it was started with. ``group``: the path of its cgroup, empty for none.
    ``pidfd``: a new pidfd of its keeper, or ``SandboxGone``. ``gone``: the error when it has ended. ``ways``: what was compiled for those
    who entered before."""

    id: str
    directory: Path
    plan: Plan
    identity: Identity
    group: str
    keeper_pid: int
    pidfd: Callable[[], int]
    gone: Callable[[], SandboxGone]
    ways: dict[Hashable, tuple[Plan, Rows]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Tools:
    """Of another sandbox, for who looks into this one: see ``run.debug``. ``plan``, ``identity``: what it was started with. ``root``: a
    descriptor of its root. ``group``: the path of its cgroup, empty for none. ``write``: the files of the sandbox can be changed."""

    plan: Plan
    identity: Identity
    root: int
    group: str
    write: bool


class Entered:
    """A program that has entered. ``close`` ends it if it still runs, and removes its cgroup."""

    def __init__(self, running: Process, terminal: int, group: Cgroup | None, used: Used, box_group: str = "", oom_kills: int = 0) -> None:
        """``box_group``: the path of the sandbox's own cgroup, ``oom_kills``: what it had counted before this one entered. ``used``: to be
        called when it is, where it is an agent that waits for calls."""
        self._noted, self._place = "", -1
        self.used = used
        self.process = running
        self.terminal = terminal
        """Our side of its terminal, -1 if it has none; whoever takes it closes it."""
        self._group = group
        self._box_group, self._oom_kills = box_group, oom_kills
        self._exit: process.Exit | None = None
        self.needs = contextlib.ExitStack()
        """What is undone when it is closed."""

    def wait(self, timeout: float | None = None) -> process.Exit:
        """How it ended, with its cgroup's account where there is one. ``TimeoutError`` if it still runs after ``timeout`` seconds."""
        if self._exit is None:
            self._exit = ended = self.process.wait(timeout)
            failed = ended.code != 0 and not ended.timed_out and not ended.killed and not ended.lost
            if failed and _oom_kills(self._box_group) > self._oom_kills:
                self._exit = replace(self._exit, oom_killed=True)
            self._note_end(self._exit.exit_code)
        return self._exit

    def note(self, directory: Path, argv: tuple[str, ...]) -> None:
        """For who listens to events: that it was started, and by ``wait`` or ``close`` how it ends."""
        self._noted = os.urandom(5).hex()
        self._place = exec_notes.note_start(directory, self._noted, argv)

    def _note_end(self, exit_code: int | None) -> None:
        """None: nobody will know."""
        place, self._place = self._place, -1
        if place < 0:
            return
        if exit_code is not None:
            exec_notes.note_end(place, self._noted, exit_code)
        os.close(place)

    def kill(self) -> None:
        """SIGKILL to it and to all that it started."""
        self.process.kill()
        if self._group is not None:
            self._group.kill()

    def release(self) -> None:
        """Let it go on by itself."""
        self._note_end(None)
        self.process.release()
        if self._group is not None:
            self._group.close()

    def close(self) -> None:
        ended = None
        try:
            ended = self.process.poll()
            self.process.close()
        finally:
            self._note_end(_KILLED if ended is None else ended.exit_code)
            if self._group is not None:
                group, self._group = self._group, None
                self.needs.callback(remove_cgroup if ended is None or ended.killed or ended.lost or ended.timed_out else leave, group)
            self.needs.close()


def leave(group: Cgroup) -> None:
    """Of what has ended by itself. What it started and left running goes on in there, until the sandbox ends: nothing is moved by its
    number, which might be another's by then."""
    try:
        os.rmdir(group.text)
    except OSError:
        pass
    group.close()


def _oom_kills(group: str) -> int:
    """Of the whole sandbox: its group holds processes, so that one below it has no account of its memory. cgroup-v2.rst, memory.events"""
    try:
        fd = os.open(f"{group}/memory.events", os.O_RDONLY | os.O_CLOEXEC) if group else -1
    except OSError:
        return 0
    if fd < 0:
        return 0
    with open(fd) as file:
        return parse_flat(file.read()).get("oom_kill", 0)


def terminal(box: Entrance) -> int:
    """Our side of the terminal of a sandbox that has one; the caller closes it. Whoever reads from it takes the output away from others.
    ``SandboxGone``, ``BadInput`` for one without."""
    try:
        return _ask(box, native.terminal)
    except OSError as error:
        if error.errno != errno.ENOTTY:
            raise
        raise BadInput(f"sandbox {box.id} has no terminal", subject=box.id, hint="start it with a terminal: dockless run -t") from None


class Used:
    """Call it when somebody uses a sandbox otherwise than by entering: its keeper, who ends one that is idle for too long, does not see
    that. It is called eight times in that span at most, and only where there is such a deadline."""

    def __init__(self, box: Entrance) -> None:
        self._box = box
        self._pause = box.plan.idle / 8
        self._last = -math.inf

    def __call__(self) -> None:
        if not self._pause:
            return
        now = time.monotonic()
        if now - self._last >= self._pause:
            self._last = now
            with contextlib.suppress(SandboxError):  # it ends
                extend(self._box, 0)


def extend(box: Entrance, seconds: float) -> None:
    """Its end moves to ``seconds`` from now; 0: it does not, but it is known that somebody is there. ``SandboxGone``"""
    _ask(box, lambda path, keeper: native.extend(path, keeper, int(seconds * 1e9)))


def enter(
    box: Entrance,
    entry: Entry,
    stdio: tuple[int, int, int],
    *,
    program: int = -1,
    size: tuple[int, int] | None = None,
    alone: bool = False,
    within: float = math.inf,
    tools: Tools | None = None,
) -> Entered:
    """Start what enters; returns when its program has been exec'd. ``program``: a descriptor of it, where the entry says so. ``size``: rows
    and columns of its terminal. ``alone``: it goes on without us, until it or the sandbox ends. ``within``: seconds after which it is
    given up. ``tools``: what it is a program of, if not of this sandbox.

    Errors: ``SandboxGone`` for a sandbox that does not run, ``CommandNotFound`` and its relatives as at a start.
    """
    entered = _enter(box, entry, stdio, program, size, alone, within, tools)
    if program < 0:  # what acts on its files is ours
        entered.note(box.directory, entry.argv)
    return entered


def _enter(
    box: Entrance,
    entry: Entry,
    stdio: tuple[int, int, int],
    program: int,
    size: tuple[int, int] | None,
    alone: bool,
    within: float,
    tools: Tools | None,
) -> Entered:
    above = box.group if tools is None else tools.group
    group = _group_in(box, above)
    used, account = Used(box), (above, _oom_kills(above))
    try:
        plan, rows = _compiled(box, entry, group is not None, tools)
        fds = dict(enumerate(stdio))
        if tools is not None:
            fds[SLOT_ROOT] = tools.root
        if group is not None:
            fds[SLOT_CGROUP] = group.fd
        if program >= 0:
            fds[SLOT_PROGRAM] = program
        _own_pipes(box.identity if tools is None else tools.identity, entry, stdio)
        raw = filled_in(
            encode(plan, enters=True, alone=alone, rows=rows), cgroup=group.text.rpartition("/")[2] if group else "", terminal=size
        )
        counted = process.nobody if group is None else partial(group.usage, pressure=False)
        if entry.tty and not entry.handed:
            running, ours = _with_terminal(box, plan, raw, fds, alone, counted)
            if group is None:
                running.last_resort = partial(_end, box)
            return Entered(running, ours, group, used, *account)
        if entry.tty:
            fds[SLOT_TERMINAL], fds[0] = fds[0], fds[1]
        running = process.start(plan, raw, fds, partial(_launch, box, alone), within, counted)
        if group is None:
            running.last_resort = partial(_end, box)
        return Entered(running, -1, group, used, *account)
    except BaseException as error:
        if group is not None:
            remove_cgroup(group)
        if isinstance(error, LaunchFailed) and error.errno in _AT_THE_END and _ends(box):
            raise box.gone() from error
        raise


def _compiled(box: Entrance, entry: Entry, has_cgroup: bool, tools: Tools | None = None) -> tuple[Plan, Rows]:
    """Its plan, and the operations of that encoded: mostly those of the one before."""
    if tools is not None:
        look = compile_look(box.plan, tools.plan, entry, has_cgroup=has_cgroup, write=tools.write)
        return look, rows_of(look.ops)
    which = same_way(entry, has_cgroup)
    known = box.ways.get(which)
    if known is None:
        way = compile_way(box.plan, entry, has_cgroup=has_cgroup)
        assert way.command is not None
        known = way, rows_of(way.ops, way.command.envp)
        if len(box.ways) >= _WAYS:
            box.ways.clear()
        box.ways[which] = known
    return with_command(known[0], entry), known[1]


def _end(box: Entrance) -> bool:
    """End the sandbox by killing its keeper. Needed where a command's keeper was killed before it could end all that the command had
    started. When the sandbox's keeper ends, the kernel ends its init, and with that all processes of the PID namespace. False, and nothing
    is done, where the sandbox has the host's PID namespace."""
    if not any(op.name == "CLONE" and op.x & NEW_NS["pid"] for op in box.plan.ops):
        return False
    with contextlib.suppress(SandboxError, ProcessLookupError):
        keeper = box.pidfd()
        try:
            signal.pidfd_send_signal(keeper, signal.SIGKILL)
        finally:
            os.close(keeper)
    return True


def _ends(box: Entrance) -> bool:
    """Whether its keeper ends within a moment."""
    keeper = box.pidfd()
    try:
        return readable(keeper, _MOMENT)
    finally:
        os.close(keeper)


def _with_terminal(
    box: Entrance, plan: Plan, raw: bytearray, fds: dict[int, int], alone: bool, counted: process.Counted
) -> tuple[Process, int]:
    """What runs, and our side of its terminal."""
    import socket

    from dockless.base.descriptors import received

    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with mine, theirs:
        running = process.start(plan, raw, {**fds, SLOT_TERMINAL: theirs.fileno()}, partial(_launch, box, alone), counted=counted)
        ours = received(mine, 1)[1][0]
    return running, ours


def _group_in(box: Entrance, above: str) -> Cgroup | None:
    if not above:
        return None
    try:
        return Cgroup.below(above, f"exec-{os.urandom(5).hex()}")
    except CgroupError as error:
        if not os.path.isdir(above):
            raise box.gone() from error
        raise


def _launch(box: Entrance, alone: bool, given: Mapping[int, int]) -> native.Launched:
    fds = {slot: fd for slot, fd in given.items() if slot != SLOT_LEASH} if alone else given
    return _ask(box, lambda path, keeper: native.enter(path, keeper, fds))


def _ask(box: Entrance, request: Callable[[str, int], T]) -> T:
    """What its keeper answers. One that a policy restarts has a keeper before its program runs: for that one waits."""
    keeper = box.pidfd()
    until = time.monotonic() + _BEGINNING
    try:
        while True:
            try:
                return at_its_door(box.directory, lambda path: request(path, keeper))
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET):
                    raise box.gone() from error
                if error.errno == errno.ETIMEDOUT:
                    hint = f"its keeper does not answer: has somebody stopped process {box.keeper_pid}?"
                    raise SandboxError(f"sandbox {box.id} cannot be entered", subject=box.id, hint=hint) from error
                if error.errno != errno.EAGAIN:
                    raise
                if time.monotonic() >= until:
                    what = f"sandbox {box.id} cannot be entered: its program does not run yet, or has ended"
                    raise SandboxError(what, subject=box.id, hint="wait until it has started") from error
            if readable(keeper, _LOOK):
                raise box.gone()
    finally:
        os.close(keeper)


def _own_pipes(identity: Identity, entry: Entry, stdio: tuple[int, int, int]) -> None:
    """As root we own the pipes, and the keeper has no rights over them: a program of another user could write to them, but not open
    /dev/stdout."""
    pipes = [fd for fd in set(stdio) if stat.S_ISFIFO(os.fstat(fd).st_mode)] if os.geteuid() == 0 else []
    if not pipes:
        return
    uid, gid = (identity.uid, identity.gid) if entry.account is None else (entry.account.uid, entry.account.gid)
    idmap = identity.idmap
    owner = (uid, gid) if idmap is None else (idmap.outside_uid(uid), idmap.outside_gid(gid))
    if owner[0] is None or owner[1] is None:
        return  # no id of the sandbox's: SET_IDS says so
    for fd in pipes:
        os.fchown(fd, owner[0], owner[1])
