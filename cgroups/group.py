"""One group: made, limited, watched, killed, removed.

Without limits a group costs four system calls: mkdir and an open to make it, close and rmdir to remove it. Everything else is
relative to that directory fd, so a group never turns into another one of the same name. ``kill`` (cgroup.kill, Linux 5.14) reaches every
process in it, whatever they do; ``remove`` then only waits for the last of them to be gone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from types import TracebackType

from dockless.base import signal
from dockless.base.path import Path
from dockless.base.pidfds import hold
from dockless.base.text import is_name
from dockless.cgroups import devices, users
from dockless.cgroups.apply import apply, present
from dockless.cgroups.delegation import HOME, Delegation, enable, find_delegation, forget
from dockless.cgroups.limits import Limits, Rounding, Write
from dockless.cgroups.usage import USAGE_FILES, Usage, parse_flat
from dockless.cgroups.watch import GroupWatch, wait_empty, wait_for
from dockless.errors import BadInput, CgroupError, LimitUnavailable

_UNLIMITED = Limits()
_ROUNDS = 100  # of killing what was forked meanwhile by those that cgroup.kill does not reach
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class Cgroup:
    """A group that we made. As a context manager it kills what is left in it and removes it.

    path; text: the same; fd: a directory fd for clone3(CLONE_INTO_CGROUP); warnings: limits that ``best_effort`` let pass; readback: where
    the kernel keeps another value than the one asked for.
    """

    __slots__ = ("counted", "fd", "readback", "text", "warnings")

    def __init__(self, path: str, fd: int) -> None:
        self.text = path
        self.fd = fd
        self.warnings: tuple[str, ...] = ()
        self.readback: tuple[Rounding, ...] = ()
        self.counted: tuple[str, ...] = USAGE_FILES
        """The files that may be there for ``usage``."""

    @property
    def path(self) -> Path:
        return Path(self.text)

    # -- making ------------------------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        name: str,
        limits: Limits = _UNLIMITED,
        *,
        delegation: Delegation | None = None,
        best_effort: bool = False,
        user: int | None = None,
        controllers: Iterable[str] = (),
    ) -> Cgroup:
        """Make ``dockless/<name>`` with its limits in force, or leave nothing behind. ``user``: in that user's group, ``cgroups.users``.
        ``controllers``: what it has besides those of its limits, where this host has them.

        Raises ``BadInput`` (impossible limit or name), ``LimitUnavailable`` (names the controller; with ``best_effort`` a line in
        ``warnings`` instead), ``CgroupError`` (no place, the name is taken, the kernel refuses).
        """
        check_name(name)
        writes = _checked_writes(limits)
        place = delegation if delegation is not None else find_delegation()
        if not best_effort:
            for write in writes:
                if place.path is None or write.controller not in place.controllers:
                    raise place.missing(write.controller, write.file)
        home = str(place.home)
        inside = home if user is None else f"{home}/{users.group_of(user)}"
        path = f"{inside}/{name}"
        for left in range(1 if user is None else users.TRIES, -1, -1):
            have = enable(place, {write.controller for write in writes}.union(controllers))
            try:
                if user is not None:
                    have = users.make(inside, have)
                os.mkdir(path, 0o755)
                break
            except FileNotFoundError as error:
                if not left:
                    raise _mkdir_error(path, error) from error
                forget(place)  # somebody tidied up; once more from the start
            except OSError as error:
                raise _mkdir_error(path, error) from error
        return _limited(path, writes, have, place, best_effort)

    @classmethod
    def open(cls, path: str | Path) -> Cgroup:
        """A group made earlier, by this process or another. Only groups below a ``dockless`` directory: others are not ours to touch."""
        text = os.fspath(path)
        _check_ours(text)
        try:
            fd = os.open(text, _OPEN)
        except OSError as error:
            raise CgroupError(f"cannot open the group {text}: {error.strerror}", subject=text, hint="it may be gone already") from error
        if not present(fd, "cgroup.kill"):
            os.close(fd)
            raise CgroupError(f"{text} is not a cgroup v2 group", subject=text, hint="this needs Linux 5.14 (cgroup.kill)")
        return cls(text, fd)

    @classmethod
    def below(cls, path: str, name: str) -> Cgroup:
        """A group without limits of its own, in one made earlier that holds processes. In such a place the kernel counts the time of
        processors and nothing else. cgroup-v2.rst, "No Internal Process Constraint". Raises like ``open``."""
        _check_ours(f"{path}/{name}")
        _mkdir(f"{path}/{name}")
        group = _opened(f"{path}/{name}")
        group.counted = ("cpu.stat",)
        return group

    def child(self, name: str, limits: Limits = _UNLIMITED, *, best_effort: bool = False) -> Cgroup:
        """A group inside this one. With limits this group passes controllers on and so can hold no process of its own."""
        check_name(name)
        writes = _checked_writes(limits)
        inside = self._as_place()
        have = frozenset(self._read("cgroup.subtree_control").split())
        wanted = ({write.controller for write in writes} & inside.controllers) - have
        if wanted and self.pids():
            # The kernel refuses most controllers here; the threaded ones (cpu, pids) it takes, and then no child can hold a process.
            raise CgroupError(
                f"{self.path.name} has processes of its own and cannot limit groups below it",
                subject=str(self.path),
                hint="move them into a group inside it first: only leaves may hold processes",
            )
        for controller in wanted:
            self._write("cgroup.subtree_control", f"+{controller}", "only leaves may hold processes")
            have |= {controller}
        path = f"{self.path}/{name}"
        _mkdir(path)
        return _limited(path, writes, have, inside, best_effort)

    def set(self, limits: Limits, *, best_effort: bool = False) -> None:
        """Change limits while processes run. What ``limits`` leaves out stays as it is. Raises like ``create``."""
        writes = _checked_writes(limits)
        place = self._as_place()
        warnings, readback = apply(self.fd, writes, place.controllers, place, best_effort)
        self.warnings += tuple(warnings)
        self.readback += tuple(readback)

    def _as_place(self) -> Delegation:
        host, have = find_delegation(ask_systemd=False), frozenset(self._read("cgroup.controllers").split())
        return Delegation(self.path, have, have | host.available, "subtree", "a group of ours", host.elsewhere)

    # -- what is in it -----------------------------------------------------------------------------------------------------

    def add(self, pid: int) -> None:
        """Move a process (with all its threads) in; 0 is the caller. Better: start it inside, with CLONE_INTO_CGROUP."""
        self._write("cgroup.procs", str(pid), "the process must exist, and both groups must be this user's")

    def pids(self) -> tuple[int, ...]:
        """Processes in the group itself, without those in groups below."""
        return tuple(int(pid) for pid in self._read("cgroup.procs").split())

    @property
    def frozen(self) -> bool:
        """Whether all processes here and below are frozen."""
        return parse_flat(self._read("cgroup.events")).get("frozen", 0) == 1

    def usage(self, *, pressure: bool = True) -> Usage:
        """The accounts as they stand. ``pressure=False`` leaves out how long the group waited, half of the work and of no use for one
        that has ended."""
        return Usage.from_files(self.usage_files(pressure=pressure))

    def usage_files(self, *, pressure: bool = True) -> dict[str, str]:
        """The raw text of the files behind ``usage``, those that exist."""
        files = {}
        for name in self.counted:
            if name.endswith(".pressure") and not pressure:
                continue
            try:
                fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd)
            except OSError:
                continue
            try:
                files[name] = os.read(fd, 65536).decode()
            except OSError:
                pass  # PSI switched off: EOPNOTSUPP
            finally:
                os.close(fd)
        return files

    def events(self) -> GroupWatch:
        """Out-of-memory kills, populated and frozen, from now on: see ``GroupWatch``."""
        return GroupWatch(self.fd)

    def wait_empty(self, timeout: float | None = None) -> bool:
        """Wait until no process is left here or below; False after ``timeout`` seconds."""
        return wait_empty(self.fd, timeout)

    # -- power over it -----------------------------------------------------------------------------------------------------

    def freeze(self, timeout: float = 10.0) -> None:
        """Stop every process where it stands, and wait until all are. Raises ``CgroupError`` after ``timeout`` seconds, thawed again."""
        self._write("cgroup.freeze", "1")
        if not wait_for(self.fd, "frozen", 1, timeout):
            self._write("cgroup.freeze", "0")
            raise CgroupError(
                f"{self.path.name} did not freeze in {timeout:g} s",
                subject=str(self.path),
                hint="a process sits in an uninterruptible wait",
            )

    def thaw(self, timeout: float = 10.0) -> None:
        """Let them go on."""
        self._write("cgroup.freeze", "0")
        if not wait_for(self.fd, "frozen", 0, timeout):
            raise CgroupError(f"{self.path.name} did not thaw", subject=str(self.path), hint="is a group above it frozen?")

    def kill(self) -> None:
        """SIGKILL to every process here and below, also frozen ones and those being forked. Returns before they are gone. Harmless where
        somebody has removed the group: nobody lives in it."""
        killed: set[int] = set()
        for _ in range(_ROUNDS):
            try:
                self._write("cgroup.kill", "1", "cgroup.kill needs Linux 5.14")
            except CgroupError:
                if os.path.isdir(self.path):
                    raise
            new = [pid for path in _tree(self.text) for pid in _kill_listed(path, killed)]
            if not new:
                return
            killed.update(new)

    def allow_devices(self, rules: Iterable[devices.DeviceRule], *, flags: int = devices.ALLOW_MULTI) -> None:
        """Let the group open these devices and no others. See ``devices.attach``; a second call can only narrow the first."""
        devices.attach(self.fd, rules, flags=flags)

    # -- the end -----------------------------------------------------------------------------------------------------------

    def remove(self, timeout: float = 5.0) -> None:
        """Remove the group and the groups below it, waiting up to ``timeout`` seconds for dying processes. Harmless twice.

        Kills nobody: a group with living processes is a ``CgroupError`` that names them.
        """
        try:
            os.rmdir(self.path)
        except FileNotFoundError:
            pass
        except OSError:
            self._remove_slowly(time.monotonic() + timeout)
        self.close()

    def _remove_slowly(self, deadline: float) -> None:
        while True:
            if not wait_empty(self.fd, max(0.0, deadline - time.monotonic())):
                pids = [str(pid) for path in _tree(str(self.path)) for pid in _pids_in(path)]
                raise CgroupError(
                    f"{self.path.name} still has processes: {' '.join(pids[:16]) or 'dying ones'}",
                    subject=str(self.path),
                    hint="kill() first",
                )
            error = None
            for path in _tree(str(self.path)):
                try:
                    os.rmdir(path)
                except FileNotFoundError:
                    continue
                except OSError as caught:
                    error = caught
            if error is None:
                return
            if time.monotonic() >= deadline:
                raise CgroupError(
                    f"cannot remove {self.path}: {error.strerror}",
                    subject=str(self.path),
                    hint="a process was added meanwhile: kill() first",
                ) from error

    def close(self) -> None:
        """Forget the group without removing it (a detached sandbox lives on). Harmless twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Cgroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.fd < 0:
            return
        try:
            os.rmdir(self.path)  # the usual case: everything ended by itself
        except FileNotFoundError:
            pass
        except OSError:
            try:
                self.kill()
                self.remove()
            except CgroupError as problem:
                if error is None:
                    raise
                error.add_note(f"and the group could not be cleaned up: {problem}")
        finally:
            self.close()

    def __repr__(self) -> str:
        return f"Cgroup({str(self.path)!r})"

    # -- files -------------------------------------------------------------------------------------------------------------

    def _read(self, name: str) -> str:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd)
            try:
                return os.read(fd, 65536).decode()
            finally:
                os.close(fd)
        except OSError as error:
            raise self._error(f"cannot read {name}", error) from error

    def _write(self, name: str, value: str, hint: str = "") -> None:
        try:
            fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=self.fd)
            try:
                os.write(fd, value.encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise self._error(f"cannot write {value} to {name}", error, hint) from error

    def _error(self, what: str, error: OSError, hint: str = "") -> CgroupError:
        if self.fd < 0 or not os.path.isdir(self.path):
            hint = "the group is gone"
        hint = hint or "see Documentation/admin-guide/cgroup-v2.rst"
        return CgroupError(f"{self.path.name}: {what}: {error.strerror}", subject=str(self.path), hint=hint)


def check_name(name: str) -> str:
    """A name for one directory in cgroupfs, or ``BadInput``."""
    if not is_name(name, "_.:@+-", 127) or name.startswith("cgroup."):
        raise BadInput(
            f"{name[:80]!r} cannot name a group",
            subject=name[:80],
            hint="use letters, digits and '_.:@+-', starting with a letter or digit",
        )
    return name


def unavailable(limits: Limits, delegation: Delegation) -> tuple[LimitUnavailable, ...]:
    """The limits that ``delegation`` cannot enforce, one error per controller, without making anything. For doctors and dry runs."""
    seen: dict[str, LimitUnavailable] = {}
    for write in limits.writes():
        if delegation.path is None or write.controller not in delegation.controllers:
            seen.setdefault(write.controller, delegation.missing(write.controller, write.file))
    return tuple(seen.values())


def _checked_writes(limits: Limits) -> tuple[Write, ...]:
    if limits == _UNLIMITED:
        return ()
    limits.check_host()
    return limits.writes()


def _check_ours(path: str) -> None:
    above = path.rstrip("/.").rpartition("/")[0]
    if HOME not in above.split("/") or ".." in path.split("/"):
        raise CgroupError(f"{path} was not made by dockless", subject=path, hint=f"only groups below a '{HOME}' directory are touched")


def _mkdir(path: str) -> None:
    try:
        os.mkdir(path, 0o755)
    except OSError as error:
        raise _mkdir_error(path, error) from error


def _mkdir_error(path: str, error: OSError) -> CgroupError:
    hint = "cgroup.max.descendants or cgroup.max.depth above it may be exhausted"
    if isinstance(error, FileExistsError):
        hint = "another group has this name: use another, or Cgroup.open it and remove it"
    return CgroupError(f"cannot make the group {path}: {error.strerror}", subject=path, hint=hint)


def _opened(path: str) -> Cgroup:
    try:
        return Cgroup(path, os.open(path, _OPEN))
    except OSError as error:
        os.rmdir(path)
        raise CgroupError(f"cannot open the new group {path}: {error.strerror}", subject=path, hint="raise ulimit -n") from error


def _limited(path: str, writes: tuple[Write, ...], have: frozenset[str], place: Delegation, best_effort: bool) -> Cgroup:
    group = _opened(path)
    if writes:
        try:
            warnings, readback = apply(group.fd, writes, have, place, best_effort)
        except BaseException:
            group.remove()
            raise
        group.warnings, group.readback = tuple(warnings), tuple(readback)
    return group


def _tree(path: str) -> list[str]:
    """The group and those below it, deepest first."""
    try:
        with os.scandir(path) as entries:
            below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        below = []
    return [*(deeper for child in below for deeper in _tree(child)), path]


def _kill_listed(path: str, but: set[int]) -> list[int]:
    """cgroup.kill signals the first thread of each process; where that has ended and others go on, nobody gets it (as of Linux 6.18).
    So what a group still lists is killed as a process. A number may be another's by now: it is held, and signalled if it is listed still.
    """
    held: dict[int, int] = {}
    try:
        for pid in _pids_in(path):
            if pid and pid not in but:
                with contextlib.suppress(ProcessLookupError):
                    held[pid] = hold(pid)
        for pid in held.keys() & set(_pids_in(path)) if held else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):  # a user's own mapped ids are not hers to signal
                signal.pidfd_send_signal(held[pid], signal.SIGKILL)
        return list(held)
    finally:
        for fd in held.values():
            os.close(fd)


def _pids_in(path: str) -> list[int]:
    try:
        with open(f"{path}/cgroup.procs") as file:
            return [int(pid) for pid in file.read().split()]
    except (OSError, ValueError):
        return []
