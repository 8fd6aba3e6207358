"""Sandboxes that outlive whoever started them: one directory each, a lock that says whether it lives, a record that says how it ended.

::

    <state>/sandboxes/<id>/
        spec.json      what was asked, with labels, the boot and the cgroup
        lock           locked by the keeper for as long as it lives; pids can be reused, locks cannot
        started        the keeper's and init's pids, once they exist
        log, log.1     the job's output
        image          a link to the image's lease: it stays in the store as long as this directory
        exit           raw wait status, outcome and the kernel's accounts: written by the keeper, whole or not at all
        upper/ work/   the private upper, where the root is on disk

No process of Python stays behind. Whoever comes next (a daemon after a crash, another shell) finds the directory and reads.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dockless import paths
from dockless.cgroups import Cgroup, Usage, find_delegation
from dockless.errors import BadInput, DocklessError, SandboxGone
from dockless.sandbox import process, sandbox
from dockless.sandbox.locks import is_locked
from dockless.sandbox.plan import SLOT_LOCK, SLOT_STATE, SLOT_STDERR, SLOT_STDOUT, personal
from dockless.sandbox.prepared import prepared
from dockless.sandbox.process import Exit
from dockless.sandbox.reconcile import end
from dockless.sandbox.resolve import stop_signal
from dockless.sandbox.spec import Spec, check_id

if TYPE_CHECKING:
    import msgspec

    from dockless.images import Image

State = Literal["starting", "running", "exited", "vanished"]


@dataclass(frozen=True, slots=True)
class Document:
    """``spec.json``. ``cgroup``: its path, empty for none. ``image``: the digest of what ``spec.image`` named when it started.
    ``stop_signal``: the caller's or the image's."""

    spec: Spec
    boot_id: str
    created: float
    owner: int
    cgroup: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    image: str = ""
    stop_signal: int = int(signal.SIGTERM)


_decoder_lock = threading.Lock()
_decoders: list[msgspec.json.Decoder[Document]] = []


def _decoder() -> msgspec.json.Decoder[Document]:
    """Made once, by one thread: msgspec crashes when two look at a new dataclass at the same time (seen: SIGSEGV of a daemon that started
    jobs in parallel)."""
    with _decoder_lock:
        if not _decoders:
            import msgspec

            _decoders.append(msgspec.json.Decoder(Document))
        return _decoders[0]


@dataclass(frozen=True, slots=True)
class Detached:
    """A sandbox by its directory. Cheap to make; every question is answered by the file system."""

    id: str
    directory: Path

    @property
    def document(self) -> Document:
        """What ``spec.json`` says. ``SandboxGone`` if the directory is gone, or was left before it was whole."""
        import msgspec

        try:
            return _decoder().decode((self.directory / "spec.json").read_bytes())
        except (FileNotFoundError, msgspec.MsgspecError):
            raise _gone(self.id) from None

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
        """``starting``: no program has been exec'd yet, ``vanished``: it ended without a record (a reboot, a killed keeper), or never
        began."""
        alive = is_locked(self.directory / "lock")
        if (self.directory / "exit").exists():
            return "exited"
        if not alive:
            return "exited" if (self.directory / "exit").exists() else "vanished"
        return "running" if (self.directory / "started").exists() else "starting"

    def exit(self) -> Exit | None:
        """How it ended, from the record; None without one."""
        try:
            return parse_exit((self.directory / "exit").read_text())
        except FileNotFoundError:
            return None

    @property
    def pid(self) -> int:
        """The keeper's pid; 0 before it has one."""
        return self._pids().get("keeper", 0)

    def _pids(self) -> dict[str, int]:
        try:
            lines = (self.directory / "started").read_text().splitlines()
        except FileNotFoundError:
            return {}
        return {key: int(value) for key, _, value in (line.partition(" ") for line in lines)}

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
            if is_locked(self.directory / "lock"):
                return fd
            os.close(fd)
            self._collect()
        raise _gone(self.id)

    def _collect(self) -> None:
        """A keeper that has written its record and was our own child does not stay a zombie. As long as it is one its pid is nobody
        else's."""
        pid = self.pid
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                command = stream.read().rstrip(b"\0").decode()
            with open(f"/proc/{pid}/stat") as stream:
                name, _, rest = stream.read().partition(" (")[2].rpartition(") ")
        except OSError:
            return
        parent = int(rest.split()[1])
        if (name, parent) == ("dockless-keeper", os.getpid()) and command in ("", f"dockless {self.id}"):  # a zombie has no command line
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
        ended = self.exit()
        if ended is None:
            raise _gone(self.id)
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
        Returns when it has ended."""
        with contextlib.suppress(TimeoutError, DocklessError, OSError):
            self.send_stop()
            self.wait(grace)
        if self.state() in ("starting", "running"):
            self.kill()
            with contextlib.suppress(SandboxGone):
                self.wait()

    def kill(self) -> None:
        """SIGKILL to everything inside; the keeper records it. No error if it has ended."""
        # By its cgroup and by its init: whichever fails, the other is tried.
        failed: Exception | None = None
        try:
            group = self._cgroup()
            if group is not None:
                with contextlib.closing(group):  # not removed: the keeper reads its accounts first
                    group.kill()
        except (DocklessError, OSError) as error:
            failed = error
        try:
            killed = self._signal("init", signal.SIGKILL)
            self._signal("keeper", signal.SIGCONT)  # somebody may have stopped it
        except OSError as error:
            failed, killed = failed or error, False
        if failed is not None and not killed and self.state() in ("starting", "running"):
            raise failed

    def _signal(self, whom: Literal["init", "keeper"], number: int) -> bool:
        """To one of its two processes of ours; False where that is not there any more."""
        pid = self._pids().get(whom, 0)
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
        document = self.document
        if not document.cgroup or document.boot_id != boot_id() or not os.path.isdir(document.cgroup):
            return None
        return Cgroup.open(document.cgroup)

    def remove(self) -> None:
        """End it if it still runs, and remove everything of it: processes, cgroup, upper, logs, records."""
        try:
            document: Document | None = self.document
        except SandboxGone:
            document = None
        if document is not None:
            if self.state() in ("starting", "running"):
                self.kill()
                try:
                    self.wait(10)
                except (SandboxGone, TimeoutError):
                    pass
            self._collect()
        group = self._cgroup() if document is not None else _unnamed_cgroup(self.directory)
        if group is not None:
            with group:
                end(group)
        sandbox.remove_tree(self.directory)


def _unnamed_cgroup(directory: Path) -> Cgroup | None:
    """The cgroup of a start that was killed before its document named one."""
    place = find_delegation(ask_systemd=False)
    path = place.home / _group_name(directory) if place.path is not None else None
    return Cgroup.open(path) if path is not None and path.is_dir() else None


def _group_name(directory: Path) -> str:
    """Ids are unique in one state directory, cgroups on the host: two programs with homes of their own may both have a sandbox ``box``."""
    return f"{directory.name}.{zlib.crc32(os.fsencode(directory.parent)):08x}"


def _gone(id: str) -> SandboxGone:
    return SandboxGone(f"sandbox {id} is not running", subject=id, hint="'dockless ps --all' lists what there is")


def _reap(pidfd: int) -> None:
    from dockless import native

    native.reap(pidfd)


def boot_id() -> str:
    """Changes at every boot: a pid or a cgroup of another boot is nobody's."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def parse_exit(text: str) -> Exit:
    """The keeper's exit record: numbers, then the cgroup's files as they stood."""
    head, *sections = text.split("\n[")
    numbers = {key: int(value) for key, _, value in (line.partition(" ") for line in head.splitlines() if line)}
    files = {}
    for section in sections:
        name, _, body = section.partition("]\n")
        files[name] = body + "\n"
    user, system = numbers["user_us"] / 1e6, numbers["system_us"] / 1e6
    own = Usage(cpu_seconds=user + system, user_seconds=user, system_seconds=system)
    ended = process.exit_of(
        numbers["status"],
        numbers["outcome"],
        started=numbers["started_ns"] / 1e9,
        ended=numbers["ended_ns"] / 1e9,
        max_rss=numbers["max_rss_kb"] * 1024,
        usage=own,
    )
    return sandbox.with_usage(ended, Usage.from_files(files)) if files else ended


def _root(state_root: Path | None) -> Path:
    return (state_root or paths.state()) / "sandboxes"


def find(id: str, state_root: Path | None = None) -> Detached | None:
    """The sandbox of that id, if its directory exists."""
    directory = _root(state_root) / check_id(id)
    return Detached(id, directory) if directory.is_dir() else None


def list_all(state_root: Path | None = None) -> list[Detached]:
    """Every detached sandbox of this state directory, by id."""
    root = _root(state_root)
    return [Detached(path.name, path) for path in sorted(root.iterdir()) if path.is_dir()] if root.is_dir() else []


def start(
    spec: Spec, *, id: str | None = None, owner: int | None = None, labels: Mapping[str, str] | None = None, state_root: Path | None = None
) -> Detached:
    """Start a sandbox that goes on without us. Returns when its program has been exec'd; on an error nothing is left behind.

    ``owner``: the host user it runs for (root only). Errors: ``BadInput`` if the id is taken, and all of ``Sandbox``'s.
    """
    id = check_id(id) if id else sandbox.new_id()
    image = sandbox.find_image(spec.image)
    directory = _root(state_root) / id
    paths.make(directory.parent, 0o711)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        raise BadInput(f"there is a sandbox {id} already", subject=id, hint=f"remove it first: dockless rm {id}") from None
    made = Detached(id, directory)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Waits only for those who are just asking (a shared lock, for microseconds): nobody else ever takes this one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        _start(spec, made, image, lock, owner, labels or {})
    except BaseException:
        os.close(lock)
        made.remove()
        raise
    os.close(lock)
    return made


def _start(spec: Spec, made: Detached, image: Image, lock: int, owner: int | None, labels: Mapping[str, str]) -> None:
    group = sandbox.make_cgroup(spec, _group_name(made.directory))
    fds: list[int] = []
    opened = contextlib.ExitStack()
    try:
        slots = sandbox.hold_image(image, opened)
        ready = prepared(spec, image, owner=owner, has_cgroup=group is not None)
        warnings = sandbox.warnings_of(spec, group) + ready.resolved.warnings + _keep_image(image, made.directory)
        place = str(group.path) if group else ""
        document = Document(
            spec, boot_id(), time.time(), owner or os.geteuid(), place, dict(labels), warnings, image.digest, stop_signal(spec, image)
        )
        _write_document(made.directory, document)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        out_reader, out = os.pipe2(os.O_CLOEXEC)
        err_reader, err = os.pipe2(os.O_CLOEXEC)
        state = os.open(made.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fds += [null, out_reader, out, err_reader, err, state]
        slots |= {0: null, 1: out, 2: err, SLOT_LOCK: lock, SLOT_STATE: state, SLOT_STDOUT: out_reader, SLOT_STDERR: err_reader}
        slots |= ready.slots(group, opened)
        raw = personal(ready.raw(detached=True), directory=str(made.directory))
        running = process.start(ready.plan, raw, slots, name=f"dockless {made.id}")
        try:
            # The keeper writes the same, but in its own time: whoever asks right after us must find it.
            _publish(made.directory, "started", f"keeper {running.keeper_pid}\ninit {running.pid}\n".encode())
        finally:
            running.release()
    finally:
        opened.close()
        for fd in fds:
            os.close(fd)
        if group is not None:
            group.close()


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
    import msgspec

    _publish(directory, "spec.json", msgspec.json.encode(document), sync=True)


def _publish(directory: Path, name: str, content: bytes, *, sync: bool = False) -> None:
    """A file that is there whole or not at all."""
    temporary = directory / f"{name}.host"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as stream:
        stream.write(content)
        if sync:
            stream.flush()
            os.fsync(stream.fileno())
    os.rename(temporary, directory / name)
