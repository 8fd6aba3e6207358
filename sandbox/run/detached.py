"""Sandboxes that outlive whoever started them: one directory each, a lock that says whether it lives, a record that says how it ended.

::

    <state>/sandboxes/<id>/
        spec.json      what was asked and what it was resolved to; labels, the boot, the cgroup
        lock           locked by the keeper for as long as it lives; pids can be reused, locks cannot
        started        the keeper's and init's pids, once they exist
        log, log.1     the job's output
        image          a link to the image's lease: it stays in the store as long as this directory
        exit           raw wait status, outcome and the kernel's accounts: written by the keeper, whole or not at all
        *.tmp          the room of ``started`` and ``exit`` until then: a disk that has filled up meanwhile loses neither
        upper/ work/   the private upper, where the root is on disk

No process of Python stays behind. Whoever comes next (a daemon after a crash, another shell) finds the directory and reads. What it finds
may be torn or garbage, whatever the disk did: such a sandbox has ``vanished``, with a reason, and nothing else is disturbed by it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dockless.base import paths, settings
from dockless.base.locks import is_locked
from dockless.cgroups import Cgroup, find_delegation
from dockless.errors import BadInput, CgroupError, DocklessError, SandboxError, SandboxGone
from dockless.sandbox.features import probe
from dockless.sandbox.plan.plan import SLOT_LOCK, SLOT_STATE, SLOT_STDERR, SLOT_STDOUT, filled_in
from dockless.sandbox.resolve import stop_signal
from dockless.sandbox.resolved import Identity
from dockless.sandbox.run import attached, process, records
from dockless.sandbox.run.prepared import prepared
from dockless.sandbox.run.process import Exit
from dockless.sandbox.run.reconcile import end
from dockless.sandbox.spec import Spec, check_id, is_job

if TYPE_CHECKING:
    from dockless.images import Image

_GLANCE = 0.0005
"""Seconds between looks for a file that is there already nearly always."""
_LATEST = 1 << 40
"""Seconds since 1970 that a sandbox may say it was made at: any later, infinite or not a number is damage."""
State = Literal["starting", "running", "exited", "vanished"]


@dataclass(frozen=True, slots=True)
class Document:
    """``spec.json``. ``cgroup``: its path, empty for none. ``image``: the digest of what ``spec.image`` named when it started.
    ``stop_signal``: the caller's or the image's. ``identity``: None in the record of an earlier version."""

    spec: Spec
    boot_id: str
    created: float
    owner: int
    cgroup: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    image: str = ""
    stop_signal: int = int(signal.SIGTERM)
    identity: Identity | None = None


_converting = threading.Lock()


def _document_of(raw: bytes) -> Document:
    """One thread at a time: msgspec crashes when two look at a new dataclass at the same time (seen: SIGSEGV of a daemon that started jobs
    in parallel)."""
    import json

    import msgspec

    data = json.loads(raw)
    with _converting:
        document = msgspec.convert(data, Document)
    if not 0 <= document.created < _LATEST:
        raise ValueError(f"{document.created} is no time of creation")
    return document


@dataclass(frozen=True, slots=True)
class Detached:
    """A sandbox by its directory. Cheap to make; every question is answered by the file system."""

    id: str
    directory: Path

    @property
    def document(self) -> Document:
        """What ``spec.json`` says. ``SandboxGone`` if the directory is gone, was left before it was whole, or holds no sound one."""
        import msgspec

        try:
            return _document_of(records.read(self.directory / "spec.json"))
        except FileNotFoundError:
            raise _gone(self.id) from None
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise _gone(self.id, f"its spec.json cannot be read: {error}") from None

    @property
    def spec(self) -> Spec:
        return self.document.spec

    @property
    def labels(self) -> dict[str, str]:
        return self.document.labels

    @property
    def log_paths(self) -> tuple[Path, ...]:
        """The older part of the log and the newer, those that exist."""
        return tuple(p for p in (self.directory / "log.1", self.directory / "log") if p.exists())

    def state(self) -> State:
        """``starting``: no program has been exec'd yet, ``vanished``: it ended without a sound record, or never began; see ``loss``."""
        alive = is_locked(self.directory / "lock")
        if self.exit() is not None:
            return "exited"
        if not alive:
            return "vanished"
        return "running" if os.path.lexists(self.directory / "started") else "starting"

    def exit(self) -> Exit | None:
        """How it ended, from the record; None without a sound one."""
        return self._ended()[0]

    def loss(self) -> str:
        """Why nobody can say how a vanished one ended; empty where it can be said."""
        return self._ended()[1]

    def _ended(self) -> tuple[Exit | None, str]:
        try:
            return records.parse_exit(records.read(self.directory / "exit")), ""
        except FileNotFoundError:
            return None, self._unrecorded()
        except ValueError as error:
            return None, f"its exit record cannot be read: {error}"

    def _unrecorded(self) -> str:
        try:
            rebooted = self.document.boot_id != boot_id()
        except SandboxGone as error:
            return str(error)
        if rebooted:
            return "the host was rebooted while it ran"
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

    def _keeper(self) -> int:
        """The keeper's pid, also of one whose ``started`` is gone; 0 if there is none."""
        return self.pid or _keeper_by_name(self.directory)

    def _pids(self) -> dict[str, int]:
        try:
            return records.parse_started(records.read(self.directory / "started"))
        except FileNotFoundError:
            return {}
        except ValueError:
            return {"keeper": _keeper_by_name(self.directory)}

    def pidfd(self) -> int:
        """A pidfd of the keeper, readable when it has ended; the caller closes it. ``SandboxGone`` if it has already.

        The lock is looked at after the pidfd is open: if it is still held, the pid was not reused in between.
        """
        pid = self.pid
        if pid:
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                raise _gone(self.id) from None
            try:
                held = is_locked(self.directory / "lock")
            except OSError:
                os.close(fd)
                raise
            if held:
                return fd
            os.close(fd)
            self._collect(pid)
        raise _gone(self.id)

    def _collect(self, pid: int) -> None:
        """A keeper that has written its record and was our own child does not stay a zombie. As long as it is one its pid is nobody
        else's."""
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                command = stream.read().rstrip(b"\0").decode()
            with open(f"/proc/{pid}/stat") as stream:
                name, _, rest = stream.read().partition(" (")[2].rpartition(") ")
        except OSError:
            return
        parent = int(rest.split()[1])
        ours = ("", _keeper_name(self.directory))  # a zombie has no command line
        if (name, parent) == ("dockless-keeper", os.getpid()) and command in ours:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, pid, os.WEXITED)

    def wait(self, timeout: float | None = None) -> Exit:
        """Until it has ended. ``TimeoutError`` after ``timeout`` seconds; ``SandboxGone`` if it vanished without a record."""
        try:
            fd = self.pidfd()
        except SandboxGone:
            pass
        else:
            try:
                if not select.select([fd], [], [], timeout)[0]:
                    raise TimeoutError(f"sandbox {self.id} still runs after {timeout} s")
                _reap(fd)
            finally:
                os.close(fd)
        ended, why = self._ended()
        if ended is None:
            raise _gone(self.id, why)
        return ended

    def send_signal(self, number: int) -> None:
        """To the job's own process. ``BadInput`` for one that cannot be passed on."""
        process.check_signal(number)
        if number == signal.SIGKILL:
            return self.kill()
        fd = self.pidfd()
        try:
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            raise _gone(self.id) from None
        finally:
            os.close(fd)

    def send_stop(self) -> None:
        """The stop signal of the spec or the image, to the job's own process."""
        self.send_signal(self.document.stop_signal)

    def stop(self, grace: float = 10.0) -> None:
        """The stop signal, and after ``grace`` seconds the end of everything inside, or at once where the signal cannot be sent.
        Returns when it has ended. ``NotEnded`` where it does not."""
        with contextlib.suppress(TimeoutError, DocklessError, OSError):
            self.send_stop()
            self.wait(grace)
        self._end()

    def _end(self) -> None:
        """End it where it has not ended, its keeper too if that does not see to it. ``NotEnded`` for what survives both."""
        if self.state() not in ("starting", "running"):
            return
        keeper = self._keeper()
        with contextlib.suppress(SandboxGone):
            self.kill()
            try:
                self.wait(process.KILLED_FOR)
            except TimeoutError:
                self._signal(keeper, signal.SIGKILL)
                try:
                    self.wait(process.AT_LAST)
                except TimeoutError:
                    raise process.not_ended(f"sandbox {self.id}", keeper) from None

    def kill(self) -> None:
        """SIGKILL to everything inside; the keeper records it. No error if it has ended."""
        # By its cgroup and by its init: whichever fails, the other is tried.
        failed: Exception | None = None
        group = None
        try:
            group = self._cgroup()
            if group is not None:
                with contextlib.closing(group):  # not removed: the keeper reads its accounts first
                    group.kill()
        except (DocklessError, OSError) as error:
            failed = error
        try:
            init = self.init_pid
            killed = self._signal(init, signal.SIGKILL)
            if init or group is not None:
                self._signal(self.pid, signal.SIGCONT)  # somebody may have stopped the keeper
            else:
                self._signal(self._keeper(), signal.SIGKILL)  # its records are no use: init goes with its keeper
        except OSError as error:
            failed, killed = failed or error, False
        if failed is not None and not killed and self.state() in ("starting", "running"):
            raise failed

    def _signal(self, pid: int, number: int) -> bool:
        """To its init or its keeper; False where that is not there any more."""
        if not pid:
            return False
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            if not is_locked(self.directory / "lock"):
                return False
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True

    def _cgroup(self) -> Cgroup | None:
        try:
            document = self.document
        except SandboxGone:
            return _unnamed_cgroup(self.directory)
        if not document.cgroup or document.boot_id != boot_id() or not os.path.isdir(document.cgroup):
            return None
        try:
            return Cgroup.open(document.cgroup)
        except CgroupError:  # it has gone just now, or the document names something else
            return None

    def lighten(self) -> None:
        """Remove the private layer of one that has ended: it keeps its records and its output. ``SandboxError`` while it runs."""
        if self.state() in ("starting", "running"):
            raise SandboxError(f"sandbox {self.id} still runs", subject=self.id, hint=f"dockless stop {self.id}")
        for name in ("upper", "work"):
            attached.remove_tree(self.directory / name)

    def remove(self) -> None:
        """End it if it still runs, and remove everything of it: processes, cgroup, upper, logs, records. ``NotEnded`` where it does not
        end; it then stays."""
        keeper = self._keeper()
        self._end()
        self._collect(keeper)
        group = self._cgroup()
        if group is not None:
            with group:
                end(group)
        attached.remove_tree(self.directory)


def _unnamed_cgroup(directory: Path) -> Cgroup | None:
    """The cgroup of a start that was killed before its document named one."""
    place = find_delegation(ask_systemd=False)
    path = place.home / _group_name(directory) if place.path is not None else None
    return Cgroup.open(path) if path is not None and path.is_dir() else None


def _group_name(directory: Path) -> str:
    """Ids are unique in one state directory, cgroups on the host: two programs with homes of their own may both have a sandbox ``box``."""
    return f"{directory.name}.{zlib.crc32(os.fsencode(directory.parent)):08x}"


def _keeper_name(directory: Path) -> str:
    """What the host shows as the keeper's command line."""
    return f"dockless {_group_name(directory)}"


def _gone(id: str, why: str = "") -> SandboxGone:
    what = f"sandbox {id} has vanished: {why}" if why else f"sandbox {id} is not running"
    return SandboxGone(what, subject=id, hint="'dockless ps --all' lists what there is")


def _keeper_by_name(directory: Path) -> int:
    """The living keeper of a sandbox whose ``started`` is no use, by the name that the host gave it; 0 if there is none."""
    name = _keeper_name(directory).encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0") == name and os.stat(f"/proc/{pid}").st_uid in (os.geteuid(), 0):
                return int(pid)
    return 0


def _reap(pidfd: int) -> None:
    from dockless import native

    native.reap(pidfd)


def boot_id() -> str:
    """Changes at every boot: a pid or a cgroup of another boot is nobody's."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _root(state_root: Path | None) -> Path:
    return (state_root or paths.state()) / "sandboxes"


def find(id: str, state_root: Path | None = None) -> Detached | None:
    """The sandbox of that id, if its directory exists; None for a job's number. ``BadInput`` for what is no id."""
    if is_job(id):
        return None
    directory = _root(state_root) / check_id(id)
    return Detached(id, directory) if directory.is_dir() else None


def get(id: str) -> Detached:
    """The sandbox of that id. ``BadInput`` for what is no id, a job's number among it; ``SandboxGone`` where there is none."""
    if is_job(id):
        hint = f"dockless cancel {id} ends it; dockless queue {id} shows it and its sandboxes"
        raise BadInput(f"{id} is the number of a job, not a sandbox", subject=id, hint=hint)
    found = find(id)
    if found is None:
        raise SandboxGone(f"there is no sandbox {id}", subject=id, hint="'dockless ps --all' lists them")
    return found


def list_all(state_root: Path | None = None) -> list[Detached]:
    """Every detached sandbox of this state directory, by id."""
    root = _root(state_root)
    return [Detached(path.name, path) for path in sorted(root.iterdir()) if os.path.isdir(path)] if root.is_dir() else []


def start(
    spec: Spec, *, id: str | None = None, owner: int | None = None, labels: Mapping[str, str] | None = None, state_root: Path | None = None
) -> Detached:
    """Start a sandbox that goes on without us. Returns when its program has been exec'd; on an error nothing is left behind.

    Reads no settings: 128 MiB of output are kept where the spec does not say. ``owner``: the host user it runs for (root only).
    Errors: ``BadInput`` if the id is taken, and all of ``Sandbox``'s.
    """
    id = check_id(id) if id else attached.new_id()
    spec = replace(spec, log_size=spec.log_size or settings.DEFAULTS["logs.size"])
    image = attached.find_image(spec.image)
    probe()  # before anything is made that a process would be needed to remove
    directory = _root(state_root) / id
    made = Detached(id, directory)
    if not paths.make_new(directory):
        raise BadInput(f"there is a sandbox {id} already", subject=id, hint=f"remove it first: dockless rm {id}")
    lock = -1
    try:
        with paths.writing("the records of a sandbox", directory):
            lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Waits only for those who are just asking (a shared lock, for microseconds): nobody else ever takes this one.
            fcntl.flock(lock, fcntl.LOCK_EX)
            records.reserve(directory)
        _start(spec, made, image, lock, owner, labels or {})
    except BaseException as error:
        if lock >= 0:
            os.close(lock)
        try:
            made.remove()
        except Exception as cleanup:
            error.add_note(f"while cleaning up: {cleanup}")
        raise
    os.close(lock)
    return made


def _start(spec: Spec, made: Detached, image: Image, lock: int, owner: int | None, labels: Mapping[str, str]) -> None:
    group = attached.make_cgroup(spec, _group_name(made.directory))
    fds: list[int] = []
    opened = contextlib.ExitStack()
    try:
        slots = attached.hold_image(image, opened)
        ready = prepared(spec, image, owner=owner, has_cgroup=group is not None)
        warnings = attached.warnings_of(spec, group) + ready.resolved.warnings + _keep_image(image, made.directory)
        place = str(group.path) if group else ""
        document = Document(
            spec,
            boot_id(),
            time.time(),
            owner or os.geteuid(),
            place,
            dict(labels),
            warnings,
            image.digest,
            stop_signal(spec, image),
            ready.resolved.identity,
        )
        _write_document(made.directory, document)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        out_reader, out = os.pipe2(os.O_CLOEXEC)
        err_reader, err = os.pipe2(os.O_CLOEXEC)
        state = os.open(made.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fds += [null, out_reader, out, err_reader, err, state]
        slots |= {0: null, 1: out, 2: err, SLOT_LOCK: lock, SLOT_STATE: state, SLOT_STDOUT: out_reader, SLOT_STDERR: err_reader}
        slots |= ready.slots(group, opened)
        raw = filled_in(ready.raw(detached=True), directory=str(made.directory))
        running = process.start(ready.plan, raw, slots, name=_keeper_name(made.directory))
        try:
            _await_started(made, running)
        finally:
            running.release()
    finally:
        opened.close()
        for fd in fds:
            os.close(fd)
        if group is not None:
            group.close()


def _await_started(made: Detached, running: process.Process) -> None:
    """Until the keeper has written ``started``, which it does while its sandbox is being made: whoever asks right after us must find it."""
    started = made.directory / "started"
    while not started.exists():
        if running.poll() is not None and not started.exists():
            raise paths.unwritable("the records of a sandbox", made.directory)
        select.select([running], [], [], _GLANCE)


def _keep_image(image: Image, directory: Path) -> tuple[str, ...]:
    """The image stays in the store until the sandbox is removed; a warning where it cannot."""
    if image.is_host:
        return ()
    from dockless import images

    try:
        images.Store().keep(image, directory / "image")
    except OSError as error:
        return (f"after its end its image may be removed, and it can be committed no more: {error.strerror}",)
    return ()


def _write_document(directory: Path, document: Document) -> None:
    """``spec.json``, whole or not at all, and durable. JSON by the standard library, in its ASCII form: what is not UTF-8 travels as lone
    surrogates, which msgspec's own refuses."""
    import json

    import msgspec

    content = json.dumps(msgspec.to_builtins(document), separators=(",", ":")).encode("ascii")
    temporary = directory / "spec.tmp"
    with paths.writing("the records of a sandbox", directory):
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(temporary, directory / "spec.json")


def gpus() -> frozenset[str]:
    """GPUs of the detached sandboxes of this state directory that have not ended."""
    found: set[str] = set()
    for box in list_all():
        with contextlib.suppress(SandboxGone):
            if box.state() in ("starting", "running"):
                found.update(box.spec.gpus)
    return frozenset(found)
