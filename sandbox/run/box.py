"""A sandbox that is found by its directory: detached, or in the foreground of a program of this user, this one or another.

::

    <state>/sandboxes/<id>/      detached: kept until it is removed
        spec.json      what was asked and what it was resolved to; labels, the boot, the cgroup
        lock           locked by the keeper for as long as it lives; pids can be reused, locks cannot
        started        the keeper's and init's pids, once they exist
        plan           what its launcher carried out, for who enters it: sandbox/plan/plan.py
        door           a socket of its keeper, for who enters it; dead when it has ended
        stdin          the standard input of an interactive one, a FIFO
        log, log.1     the program's output
        image          a link to the image's pin: it stays in the store as long as this directory
        health         what the last check of its health said, where there are checks: run.health
        exit           raw wait status, outcome and the kernel's accounts: written by the keeper, whole or not at all
        *.tmp          the room of ``started`` and ``exit`` until then: a disk that has filled up meanwhile loses neither
        health.tmp     the room of the next ``health``; both change places
        restart        there while its restart policy is in force, locked by the restarter: run.restarting
        asked-stop, asked-kill    the last signal that somebody asked for, and when: run.asked
        files/         the door of who acts on its files while it does not run: run.mounted
        upper/ work/   the private upper, where the root is on disk

    <state>/running/<id>/        foreground: locked itself, and removed by the keeper
        spec.json      the same, the pids, and behind a NUL the plan; not durable
        door, asked-stop, asked-kill    the same
        waits          there while it waits for its program: run.pool
        exit.tmp       made where somebody waits for its end, or listens: the keeper then says there how it ended
        upper/ work/

    <state>/events/              what is left for who listens: run.listening

Whoever comes next (a daemon after a crash, another shell) finds the directory and reads. What it finds may be torn or garbage, whatever the
disk did: such a sandbox has ``vanished``, with a reason, and nothing else is disturbed by it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import select
import time
from collections.abc import Callable, Iterator
from functools import partial

from dockless.base import paths
from dockless.base.dataclass import dataclass, replace
from dockless.base.locks import is_locked
from dockless.base.path import Path
from dockless.base.pidfds import hold
from dockless.base.typing import TypeVar
from dockless.base.waits import Pause, blocking
from dockless.cgroups import Cgroup, Limits, Usage
from dockless.errors import BadInput, CgroupError, DocklessError, SandboxGone, Unsupported
from dockless.sandbox.names import check_id, is_job
from dockless.sandbox.plan.plan import Plan, decode
from dockless.sandbox.run import children, documents, ending, output, records, restarting
from dockless.sandbox.run.choosing import chosen
from dockless.sandbox.run.documents import Document, Run, boot_id
from dockless.sandbox.run.door import Entrance
from dockless.sandbox.run.ending import GLANCE, STDIN
from dockless.sandbox.run.host_names import is_keeper, keeper_by_name
from dockless.sandbox.run.logfile import Row
from dockless.sandbox.run.places import (
    DESCRIPTORS,
    DETACHED,
    FOREGROUND,
    WAITS,
    by_name,
    leaving,
    names_stay,
    open_directory,
    root,
    taken,
)
from dockless.sandbox.run.process import ENDS_WITH_IT, Exit, gone, missing
from dockless.sandbox.run.removal import unnamed_cgroup
from dockless.sandbox.run.waiting import Waiting
from dockless.sandbox.spec import Spec
from dockless.sandbox.state import ALIVE, State

T = TypeVar("T")


def find(id: str, state_root: Path | None = None) -> Box | None:
    """The sandbox of that id, if its directory exists; None for a job's number. ``BadInput`` for what is no id."""
    if is_job(id):
        return None
    check_id(id)
    places = (root(kind, state_root) / id for kind in (DETACHED, FOREGROUND))
    return next((Box(id, place) for place in places if place.is_dir() and place not in leaving), None)


def get(id: str) -> Box:
    """The sandbox of that id. ``BadInput`` for what is no id, a job's number among it; ``SandboxGone`` where there is none."""
    if is_job(id):
        hint = f"dockless cancel {id} ends it; dockless queue {id} shows it and its sandboxes: job-{id}-… of `dockless ps --all`"
        raise BadInput(f"{id} is the number of a job, not a sandbox", subject=id, hint=hint)
    found = find(id)
    if found is None:
        raise missing(id)
    return found


def everything(state_root: Path | None = None, *, kinds: tuple[str, ...] = (DETACHED, FOREGROUND)) -> Iterator[Box]:
    """Every sandbox of this state directory, by kind and id."""
    children.collect_ended()
    for kind in kinds:
        place = root(kind, state_root)
        with contextlib.suppress(FileNotFoundError):
            names = (name for name in sorted(os.listdir(place)) if os.path.isdir(place / name))
            yield from (Box(name, place / name) for name in names if kind == DETACHED or not _hidden(place / name))


def _hidden(directory: Path) -> bool:
    return directory in leaving or os.path.lexists(directory / WAITS)


@dataclass(frozen=True, slots=True)
class Box:
    """A sandbox by its directory. Cheap to make; every question is answered by the file system."""

    id: str
    directory: Path
    held_as: Path | None = None
    """The name that its directory had when ``held`` opened it, which ``directory`` is then by its descriptor."""

    @contextlib.contextmanager
    def held(self) -> Iterator[Box]:
        """The same for one call, which then means this sandbox to its end, whatever it is called meanwhile. ``SandboxGone``"""
        if self.foreground:  # it keeps its name
            yield self
            return
        try:
            fd = open_directory(self.directory, os.O_PATH)
        except FileNotFoundError:
            raise missing(self.id) from None
        try:
            yield Box(self.id, Path(f"{DESCRIPTORS}/{fd}"), self.held_as or self.directory)
        finally:
            os.close(fd)

    @property
    def present(self) -> Box:
        """A held one by the name that it has now."""
        if self.held_as is None:
            return self
        name = by_name(self.directory).name
        return Box(name, self.held_as.parent / name)

    @property
    def document(self) -> Document:
        """What ``spec.json`` says. ``SandboxGone`` if the directory is gone, was left before it was whole, or holds no sound one."""
        return self._said(documents.parse)

    @property
    def last_run(self) -> Run:
        """What of it is needed to end it. As ``document``."""
        return self._said(documents.parse_run)

    def _said(self, parse: Callable[[bytes], T]) -> T:
        try:
            return parse(records.read(self.directory / documents.NAME))
        except FileNotFoundError:
            raise self._missing() from None
        except (ValueError, RecursionError) as error:
            raise gone(self.id, f"its spec.json cannot be read: {error}") from None

    def change(self, changed: Callable[[Document], Document]) -> Document:
        """Write down something else, from what is there; others who do wait. ``SandboxGone``, ``Unwritable``"""
        with self._alone():
            plan = documents.plan_behind(records.read(self.directory / documents.NAME))
            document = changed(self.document)
            documents.write(self.directory, document, plan)
            return document

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else changes it, or pauses or unpauses it. Waits for who does. ``SandboxGone``"""
        try:
            with documents.changing(self.directory):
                yield
        except FileNotFoundError:
            raise self._missing() from None

    @property
    def foreground(self) -> bool:
        """Whether it ends with the program that started it."""
        return self.directory.parent.name == FOREGROUND

    @property
    def lock(self) -> Path:
        """What its keeper holds locked for as long as it lives."""
        return self.directory if self.foreground else self.directory / "lock"

    @property
    def spec(self) -> Spec:
        return self.document.spec

    @property
    def labels(self) -> dict[str, str]:
        return self.document.labels

    @property
    def warnings(self) -> tuple[str, ...]:
        """What its start warned of."""
        return self.document.warnings

    def logs(self, *, follow: bool = False) -> Iterator[Row]:
        """What it wrote; with ``follow`` until it has ended. ``Unsupported`` for a foreground one."""
        return blocking(self.reading(follow=follow))

    def last_rows(self, count: int) -> list[Row] | None:
        """The last ones of ``logs``, None where they cannot be told without the rest of it. ``Unsupported`` for a foreground one."""
        self.check_logged()
        return output.last_rows(self, count)

    def reading(self, *, follow: bool = False) -> Iterator[Row | Pause]:
        """``logs`` for who waits in a way of their own."""
        self.check_logged()
        return output.rows(self, follow)

    def check_logged(self) -> None:
        """``Unsupported`` for one whose output is not kept, ``SandboxGone`` for one that was removed."""
        output.check_logged(self)

    def state(self) -> State:
        """By its records: never ``paused``, see there. ``vanished``: ``why_vanished``."""
        alive = is_locked(self.lock)
        ended = self.exit()
        if ended is not None and not ended.restarting:
            return "exited"
        if not alive or ended is not None:
            if not self.foreground and restarting.waits(self.directory):
                return "restarting"
            return "exited" if ended is not None else "vanished" if self._begun() else "created"
        return "running" if os.path.lexists(self.directory / (documents.NAME if self.foreground else "started")) else "starting"

    def _begun(self) -> bool:
        with contextlib.suppress(SandboxGone):
            return self.last_run.begun
        return True

    @property
    def alive(self) -> bool:
        """Whether it has not ended, or is to be restarted."""
        return self.state() in ALIVE

    def paused(self, known: Document | None = None) -> bool:
        """Whether it is paused. ``known``: what is written down about it."""
        group = self.cgroup(known)
        if group is None:
            return False
        with contextlib.closing(group):
            try:
                return group.frozen
            except CgroupError:
                if os.path.isdir(group.path):
                    raise
                return False  # it has ended since

    def exit(self) -> Exit | None:
        """How it ended, from the record; None without a sound one."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return self._record()
        return None

    def why_vanished(self) -> str:
        """Why nobody can say how a vanished one ended; empty where it can be said."""
        return self.recorded()[1]

    def trouble(self) -> str:
        """What keeps its restart policy from restarting it; empty where nothing does."""
        if self.foreground or not restarting.holds(self.directory):
            return ""
        if why := restarting.reason(self.directory):
            return f"it could not be restarted: {why}"
        ended = self.exit()
        lost = ended is not None and ended.restarting and not restarting.waits(self.directory)
        return "it was to be restarted, and what waited for that was killed" if lost else ""

    def recorded(self) -> tuple[Exit | None, str]:
        """How it ended, by its record; or None, and why nobody can say."""
        try:
            return self._record(), ""
        except FileNotFoundError:
            return None, self._unrecorded()
        except ValueError as error:
            return None, f"its exit record cannot be read: {error}"

    def _record(self) -> Exit:
        return records.parse_exit(records.read(self.directory / "exit"))

    def _unrecorded(self) -> str:
        try:
            rebooted = self.document.boot_id != boot_id()
        except SandboxGone as error:
            return str(error)
        if rebooted:
            return "the host was rebooted while it ran"
        if self.foreground:
            return "it ended together with the program that started it"
        if not os.path.lexists(self.directory / "started"):
            return "it was ended before its program began"
        return "its keeper was killed, or could not write its exit record"

    @property
    def pid(self) -> int:
        """The keeper's pid; 0 before it has one."""
        return self._pids().get("keeper", 0)

    @property
    def init_pid(self) -> int:
        """Its PID 1, as the host numbers it; 0 before it has one."""
        return self._pids().get("init", 0)

    def keeper(self) -> int:
        """The keeper's pid, also of one whose ``started`` is gone; 0 if there is none."""
        return self.pid or keeper_by_name(self.directory)

    def _pids(self) -> dict[str, int]:
        if self.foreground:
            with contextlib.suppress(SandboxGone):
                known = self.document
                return {"keeper": known.keeper, "init": known.init}
            return {}
        try:
            return records.parse_started(records.read(self.directory / "started"))
        except FileNotFoundError:
            return {}
        except ValueError:
            return {"keeper": keeper_by_name(self.directory)}

    def pidfd(self) -> int:
        """A pidfd of the keeper, readable when it has ended; the caller closes it. ``SandboxGone`` if it has already.

        The lock is looked at after the pidfd is open: if it is still held, the pid was not reused in between.
        """
        return self._pidfd(self.pid)

    def _pidfd(self, pid: int) -> int:
        """The same of one whose keeper's pid is known, 0 for none."""
        if pid:
            try:
                fd = hold(pid)
            except ProcessLookupError:
                raise self._gone() from None
            try:
                held = is_locked(self.lock)
            except OSError:
                os.close(fd)
                raise
            if held:
                return fd
            os.close(fd)
            self.collect(pid)
        raise self.not_running()

    def collect(self, pid: int) -> None:
        """A keeper that has written its record and was our own child does not stay a zombie. As long as it is one its pid is nobody
        else's."""
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                command = stream.read().rstrip(b"\0")
            with open(f"/proc/{pid}/stat") as stream:
                name, _, rest = stream.read().partition(" (")[2].rpartition(") ")
            ours = not command or is_keeper(command, self.directory)  # a zombie has no command line
        except OSError:  # it is gone; or its directory is, and the next who lists sandboxes collects it
            return
        parent = int(rest.split()[1])
        if (name, parent) == ("dockless-keeper", os.getpid()) and ours:
            children.collect(pid)

    def poll(self) -> Exit | None:
        """How it ended, None while it runs. ``SandboxGone`` if it vanished without a record, or was removed at its end; ``BadInput`` for
        one that was never started."""
        ended, why = self.recorded()
        if ended is None and not self.alive:
            ended, why = self.recorded()
            if ended is None:
                raise self.no_exit(why)
        return ended

    def no_exit(self, why: str) -> DocklessError:
        """The error of one of which nobody can say how it ended."""
        try:
            begun = self.document.begun
        except SandboxGone as error:
            return error
        if begun:
            return gone(self.id, why)
        return BadInput(f"sandbox {self.id} was never started", subject=self.id, hint=f"dockless start {self.id}")

    def not_running(self) -> SandboxGone:
        """The error for who needs it to run, with how it is started."""
        try:
            known = self.last_run
        except SandboxGone as error:
            return error
        start = f"dockless start {self.id}, or box.start() in Python"
        if not known.begun:
            return SandboxGone(f"sandbox {self.id} was never started", subject=self.id, hint=f"start it: {start}")
        if not self.foreground and not known.removed and self.state() != "restarting":
            return gone(self.id, hint=f"start it again: {start}")
        return self._gone()

    def _missing(self) -> SandboxGone:
        return self._gone() if self.foreground else missing(self.id)

    def _gone(self) -> SandboxGone:
        return gone(self.id, hint=ENDS_WITH_IT if self.foreground else "")

    def waiting(self) -> Waiting:
        """For who waits in a way of its own."""
        return Waiting(self)

    def wait(self, timeout: float | None = None) -> Exit:
        """Until it has ended. ``TimeoutError`` after ``timeout`` seconds; ``SandboxGone`` if it vanished without a record, ``BadInput``
        for one that was never started."""
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while True:
            ended = None
            with contextlib.suppress(TimeoutError):
                ended = self.wait_for_run(None if timeout is None else max(0.0, deadline - time.monotonic()))
            if ended is not None:
                return ended
            if time.monotonic() > deadline:
                raise TimeoutError(f"sandbox {self.id} still runs after {timeout} s")
            select.select([], [], [], GLANCE)  # it is just being restarted

    def wait_for_run(self, timeout: float | None) -> Exit | None:
        """As ``wait``; None where it is just being restarted."""
        with self.waiting() as waiting:
            waiting.wait(timeout)
            return waiting.result()

    def this_run(self) -> tuple[Box, int, int]:
        """Equal as long as it goes on and has not been started anew. ``SandboxGone``"""
        try:
            begun = os.stat(self.directory / (documents.NAME if self.foreground else "started"))
        except OSError:
            raise self.not_running() from None
        return self.present, begun.st_ino, begun.st_mtime_ns

    def entrance(self) -> Entrance:
        """What ``sandbox.run.door`` needs while ``this_run`` goes on. ``SandboxGone``, ``Unsupported`` for one that an earlier version
        started."""
        known = self.document
        if not self.alive:
            raise self.not_running()
        if known.identity is None:
            hint = "start it again with this version"
            raise Unsupported(f"sandbox {self.id} was started by an earlier version and cannot be entered", subject=self.id, hint=hint)
        named, keeper = self.present, self.pid
        return Entrance(
            named.id, named.directory, self._plan(), known.identity, known.cgroup, keeper, partial(named._pidfd, keeper), named._gone
        )

    def _plan(self) -> Plan:
        try:
            if self.foreground:
                return decode(documents.plan_behind(records.read(self.directory / documents.NAME)))
            return decode(records.read(self.directory / documents.PLAN))
        except (FileNotFoundError, ValueError) as error:
            raise gone(self.id, f"its plan cannot be read: {error}") from None

    def stdin(self) -> int:
        """A descriptor to write to the standard input of one that was started with ``interactive``, not blocking; the caller closes it.
        ``BadInput`` for one that reads nothing, ``SandboxGone`` where nobody in there has it open any more."""
        try:
            fd = os.open(self.directory / STDIN, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            hint = "start it with -i (from Python: interactive=True), or with a terminal: -t"
            raise BadInput(f"sandbox {self.id} reads nothing: it has no standard input", subject=self.id, hint=hint) from None
        except PermissionError:
            hint = "attach without it: its output can be read"
            raise BadInput(f"sandbox {self.id} lets nobody write to its standard input", subject=self.id, hint=hint) from None
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            raise SandboxGone(f"nobody in sandbox {self.id} reads its standard input any more", subject=self.id) from None
        return fd

    def send_signal(self, number: int) -> None:
        """To the program itself. ``BadInput`` for one that cannot be passed on. After the stop signal no restart policy holds."""
        ending.send_signal(self, number)

    def send_stop(self) -> None:
        """The stop signal of the spec or the image, to the program itself."""
        self.send_signal(self.document.stop_signal)

    def stop(self, grace: float | None = None) -> None:
        """The stop signal, and after ``grace`` seconds the end of everything inside, or at once where the signal cannot be sent. None: the
        spec's own grace, or 10. One that is paused goes on first. Returns when it has ended. ``NotEnded`` where it does not."""
        ending.stop(self, grace)

    def stopping(self, grace: float | None = None) -> Iterator[None]:
        """The same in two steps: the stop signal, and the rest. Who takes the first of several before the second of any stops all at
        once."""
        return ending.stopping(self, grace)

    def kill(self) -> None:
        """SIGKILL to everything inside; the keeper records it. No error if it has ended. Its restart policy holds no more."""
        ending.kill(self)

    def lighten(self) -> None:
        """Remove the private layer of one that has ended: it keeps its records and its output. ``SandboxError`` while it runs."""
        ending.lighten(self)

    def remove(self) -> None:
        """End it if it still runs, and remove everything of it: processes, cgroup, upper, logs, records. ``NotEnded`` where it does not
        end; it then stays."""
        ending.remove(self)

    def pause(self) -> None:
        """Stop every process inside where it stands, by cgroup.freeze of cgroup v2. ``Unsupported`` without a cgroup, ``SandboxGone``"""
        with contextlib.closing(self._running_cgroup("paused")) as group, self._alone():
            group.freeze()

    def resume(self) -> None:
        """Let them go on."""
        with contextlib.closing(self._running_cgroup("resumed")) as group, self._alone():
            group.thaw()

    def usage(self) -> Usage | None:
        """The kernel's accounts of it as they stand, None where it has no cgroup."""
        group = self.cgroup()
        if group is None:
            return None
        with contextlib.closing(group):
            return group.usage(pressure=False)

    def update(self, limits: Limits) -> None:
        """Other limits while it runs; what ``limits`` leaves out stays as it is. ``LimitUnavailable``, ``Unsupported``, ``SandboxGone``"""
        changed = {name: value for name in limits.__slots__ if (value := getattr(limits, name)) != getattr(Limits(), name)}

        def updated(known: Document) -> Document:
            with contextlib.closing(self._running_cgroup("given other limits")) as group:
                group.set(limits)
            return replace(known, spec=replace(known.spec, limits=replace(known.spec.limits, **changed)))

        self.change(updated)

    def _running_cgroup(self, done: str) -> Cgroup:
        if not self.alive:
            raise self.not_running()
        group = self.cgroup()
        if group is None:
            raise Unsupported(
                f"sandbox {self.id} cannot be {done}: it has no cgroup of its own",
                subject=self.id,
                hint="this needs cgroup v2 and a place in it: dockless doctor",
            )
        return group

    def rename(self, name: str) -> Box:
        """Another id, also while it runs; this object then names nothing. ``BadInput`` where it is taken, ``Unsupported`` for one whose
        keeper removes it by its name; ``SandboxGone`` for one that somebody removes or renames meanwhile, ``Unwritable``."""
        check_id(name)
        if self.foreground or self.document.removed:
            kind = "in the foreground" if self.foreground else "removed at its end"
            raise Unsupported(f"sandbox {self.id} is {kind}, and keeps its name", subject=self.id, hint="name it when you start it: --name")
        with chosen(self.directory), names_stay(self.directory.parent, fcntl.LOCK_EX):
            if name == self.id:
                return self
            if not os.path.lexists(self.directory):
                raise gone(self.id)
            made = Box(name, self.directory.with_name(name))
            if os.path.lexists(self.directory.parent.with_name(FOREGROUND) / name) or not paths.make_new(made.directory):
                raise taken(name)
            try:
                with paths.writing("the directory of a sandbox", made.directory):
                    os.rename(self.directory, made.directory)  # in the place of the empty one, which nobody else can have made
            except DocklessError:
                with contextlib.suppress(OSError):
                    os.rmdir(made.directory)
                if not os.path.lexists(self.directory):  # removed by hand
                    raise gone(self.id) from None
                raise
            from dockless.sandbox.run.joining import rename_leases

            rename_leases(made)
            return made

    def cgroup(self, known: Document | Run | None = None) -> Cgroup | None:
        """The cgroup of its last start, which the caller closes; None where there is none any more. ``known``: as for ``paused``."""
        try:
            known = known or self.last_run
        except SandboxGone:
            return unnamed_cgroup(self.directory)
        if not known.cgroup or known.boot_id != boot_id() or not os.path.isdir(known.cgroup):
            return None
        try:
            return Cgroup.open(known.cgroup)
        except CgroupError:  # it has gone just now, or the document names something else
            return None
