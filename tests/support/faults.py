"""A disk that fails at one chosen call: real programs, real system calls, and the kernel's own answer for the ones that fail.

``Faulty(root, fault)`` runs a function in a child whose calls that change a file below ``root`` wait for a word from here, those of all
its threads and of every process that it starts, the static launcher too: SECCOMP_RET_USER_NOTIF, seccomp(2). Everything but the chosen
call goes on in the kernel as if nobody had looked. Needs root: a filter without no_new_privs, so that setuid programs stay what they are.

Kinds of fault, from call number ``at`` on, counted from 1:

    full       ENOSPC for what takes new room: new files, and bytes beyond what a file has been given. What has its room can be written.
    inodes     ENOSPC for new files and directories only
    readonly   EROFS for every change, removals too
    eio        EIO for this one call, whatever it is
    enospc     ENOSPC for this one call, whatever it is: disks that find room late say so at an fsync or a rename, too
    kill       SIGKILL instead of this one call, for the daemon (the child itself) or for a keeper: ``Fault.whom``. Counted are their calls
               alone, also those on control groups, what they send, and the processes and threads that they start
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import pickle
import platform
import select
import signal
import socket
import stat
import struct
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dockless.errors import DocklessError

KINDS = ("full", "inodes", "readonly", "eio")
_ONCE = {"eio": errno.EIO, "enospc": errno.ENOSPC}
DEADLINE = 60.0

_X86 = {
    "write": 1, "pwrite64": 18, "writev": 20, "pwritev": 296, "pwritev2": 328, "sendfile": 40, "copy_file_range": 326, "splice": 275,
    "ftruncate": 77, "fallocate": 285, "fsync": 74, "fdatasync": 75, "syncfs": 306, "open": 2, "openat": 257, "mkdir": 83, "mkdirat": 258,
    "mknodat": 259, "symlink": 88, "symlinkat": 266, "link": 86, "linkat": 265, "rename": 82, "renameat": 264, "renameat2": 316,
    "unlink": 87, "unlinkat": 263, "rmdir": 84, "chmod": 90, "fchmod": 91, "fchmodat": 268, "fchown": 93, "fchownat": 260,
    "utimensat": 280, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
}  # fmt: skip
_ARM = {
    "write": 64, "pwrite64": 68, "writev": 66, "pwritev": 70, "pwritev2": 287, "sendfile": 71, "copy_file_range": 285, "splice": 76,
    "ftruncate": 46, "fallocate": 47, "fsync": 82, "fdatasync": 83, "syncfs": 267, "openat": 56, "mkdirat": 34, "mknodat": 33,
    "symlinkat": 36, "linkat": 37, "renameat": 38, "renameat2": 276, "unlinkat": 35, "fchmod": 52, "fchmodat": 53, "fchown": 55,
    "fchownat": 54, "utimensat": 88, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7,
}  # fmt: skip
_ARCHES = {"x86_64": (0xC000003E, _X86, 317), "aarch64": (0xC00000B7, _ARM, 277)}
# No files; counted where a process is to die.
_X86_OTHERS = {"sendto": 44, "clone": 56, "vfork": 58, "clone3": 435}
_ARM_OTHERS = {"sendto": 206, "clone": 220, "clone3": 435}
_OTHERS = {"x86_64": _X86_OTHERS, "aarch64": _ARM_OTHERS}
# Where a call names its file: an fd as its first argument, a path as argument N, a directory and a path below it.
_BY_FD = frozenset(
    "write pwrite64 writev pwritev pwritev2 sendfile ftruncate fallocate fsync fdatasync syncfs fchmod fchown fsetxattr".split()
)
_OUT_FD = {"copy_file_range": 2, "splice": 2}
_BY_PATH = dict.fromkeys(("rename", "link", "symlink"), 1)
_BY_DIR = dict.fromkeys(("linkat", "renameat", "renameat2"), (2, 3)) | {"symlinkat": (1, 2)}
_CREATING = frozenset(("mkdir", "mkdirat", "mknodat", "symlink", "symlinkat", "link", "linkat"))
_WRITING = frozenset("write pwrite64 writev pwritev pwritev2 sendfile copy_file_range splice fallocate".split()) | {
    *("setxattr", "lsetxattr", "fsetxattr")
}

_UNNAMED = os.O_TMPFILE & ~os.O_DIRECTORY
"""The bit that asks for a file without a name: it is new, though what is named is a directory that is there."""

_RECV, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_NEW_LISTENER = 8
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


@dataclass(frozen=True)
class Fault:
    """``at``: the number of the first call that fails; 0 for none. ``eio``, ``enospc`` and ``kill`` fail once. ``whom``: ``daemon`` or
    ``keeper``, of ``kill`` alone."""

    kind: str = ""
    at: int = 0
    whom: str = ""


@dataclass(frozen=True)
class Raised:
    """An error as it is told: ``ours``: a ``DocklessError``."""

    name: str
    text: str
    ours: bool
    hint: str


@dataclass
class Outcome:
    """What the function returned or raised, the calls that were counted, and the first that failed."""

    value: Any = None
    error: Raised | None = None
    trace: str = ""
    points: list[str] = field(default_factory=list)
    failed: str = ""


class Faulty:
    """One run under one fault. ``heal()`` from another thread: the disk is well again."""

    def __init__(self, root: Path, fault: Fault = Fault()) -> None:
        self.root = os.path.realpath(root)
        self.fault = fault
        self.outcome = Outcome()
        self._well = False
        self._whose: dict[int, str] = {}

    def heal(self) -> None:
        self._well = True

    def run(self, work: Callable[[], Any], *, prepare: Callable[[], None] | None = None) -> Outcome:
        """``work`` in a child of ours, forked, so that nothing has to be imported again. Its result has to be picklable."""
        self.start(work, prepare=prepare)
        return self.finish()

    def start(self, work: Callable[[], Any], *, prepare: Callable[[], None] | None = None) -> None:
        """The same without waiting; ``pidfd`` tells when the child has ended."""
        ours, theirs = os.pipe()
        here, there = socket.socketpair()
        self.child = os.fork()
        if self.child == 0:
            os.close(ours)
            here.close()
            self._inside(work, prepare, theirs, there)
        os.close(theirs)
        there.close()
        self.pidfd = os.pidfd_open(self.child)
        with here:
            # By sendmsg, which the filter lets pass: a write would wait for us already.
            self._listener = (socket.recv_fds(here, 1, 1)[1] or [-1])[0]
        stop, self._ended = os.pipe()
        self._fds = (ours, stop)
        self._thread = threading.Thread(target=self._serve, args=(self._listener, stop))
        if self._listener >= 0:
            self._thread.start()

    def finish(self, patience: float = 10.0) -> Outcome:
        """Wait for the child, and ``patience`` seconds at most for what it has left running."""
        self._patience = patience
        ours, stop = self._fds
        try:
            with open(ours, "rb") as stream:
                raw = stream.read() if select.select([ours], [], [], DEADLINE)[0] else b""
            if not raw:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        finally:
            # Processes that live on (a keeper) are served until they have ended or this is over: then the kernel lets their calls fail.
            self._drain(self._listener, self._ended, self._thread)
            for fd in (stop, self.pidfd):
                os.close(fd)
        self.outcome.value, self.outcome.error, self.outcome.trace = pickle.loads(raw) if raw else (None, None, "it did not come to an end")
        return self.outcome

    def _drain(self, listener: int, ended: int, thread: threading.Thread) -> None:
        os.close(ended)
        if listener >= 0:
            thread.join()
            os.close(listener)

    def _inside(self, work: Callable[[], Any], prepare: Callable[[], None] | None, answer: int, there: socket.socket) -> None:
        outcome: tuple[Any, Raised | None, str] = (None, None, "")
        try:
            if prepare is not None:
                prepare()
            listener = _install(self._names())
            socket.send_fds(there, [b"l"], [listener])
            os.close(listener)
            there.close()
            try:
                outcome = (work(), None, "")
            except BaseException as error:
                told = Raised(type(error).__name__, str(error), isinstance(error, DocklessError), getattr(error, "hint", ""))
                outcome = (None, told, traceback.format_exc())
            data = pickle.dumps(outcome)
            while data:
                data = data[os.write(answer, data) :]
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)

    def _names(self) -> dict[str, int]:
        _, names, _ = _ARCHES[platform.machine()]
        return names | _OTHERS[platform.machine()] if self.fault.kind == "kill" else names

    # -- the word that every call waits for

    def _serve(self, listener: int, stop: int) -> None:
        """Until nobody is left who could call; a keeper that lives on gets a while after the child's end."""
        by_number = {number: name for name, number in self._names().items()}
        poller = select.poll()
        poller.register(listener, select.POLLIN)
        poller.register(stop, select.POLLIN)
        patience = None
        while events := dict(poller.poll(patience)):
            if stop in events:
                poller.unregister(stop)
                patience = round(self._patience * 1000)
            if events.get(listener, 0) & select.POLLIN:
                self._answer(listener, by_number)
            elif listener in events:
                return

    def _answer(self, listener: int, names: dict[int, str]) -> None:
        buffer = ctypes.create_string_buffer(80)
        try:
            fcntl.ioctl(listener, _RECV, buffer)
        except OSError:
            return  # the caller was killed meanwhile
        number, pid, _, nr, _, _, *arguments = struct.unpack("<QIIiIQ6Q", buffer.raw)
        try:
            error = self._decide(pid, names[nr], arguments)
        except (OSError, ValueError):
            error = 0
        flags = 0 if error else _CONTINUE
        try:
            fcntl.ioctl(listener, _SEND, struct.pack("<QqiI", number, 0, -error, flags))
        except OSError:
            pass

    def _decide(self, pid: int, name: str, arguments: list[int]) -> int:
        """The errno for a call, 0 for let it be."""
        if self.fault.kind == "kill":
            return self._kill(pid, name, arguments)
        path = _path(pid, name, arguments)
        if path != self.root and not path.startswith(self.root + "/"):
            return 0
        opens, flags = name in ("open", "openat"), arguments[2 if name == "openat" else 1]
        new = name in _CREATING or (opens and (bool(flags & _UNNAMED) or not os.path.lexists(path)))
        if opens and not new and not flags & os.O_TRUNC:
            return 0
        self.outcome.points.append(f"{name} {path.removeprefix(self.root)}")
        at, kind = self.fault.at, self.fault.kind
        if not at or self._well or len(self.outcome.points) < at:
            return 0
        code = 0
        if kind in _ONCE:
            code = _ONCE[kind] if len(self.outcome.points) == at else 0
        elif kind == "readonly":
            code = errno.EROFS
        elif new or (kind == "full" and name in _WRITING and _grows(pid, name, arguments)):
            code = errno.ENOSPC
        if code and not self.outcome.failed:
            self.outcome.failed = self.outcome.points[-1]
        return code

    def _kill(self, thread: int, name: str, arguments: list[int]) -> int:
        """0, or the end of who calls."""
        if self._who(thread) != self.fault.whom:
            return 0
        where = ""
        if name not in _OTHERS[platform.machine()]:
            where = _path(thread, name, arguments)
            if name in ("open", "openat") and os.path.lexists(where) and not arguments[2 if name == "openat" else 1] & os.O_TRUNC:
                return 0
            if where != self.root and not where.startswith((self.root + "/", "/sys/fs/cgroup/")):
                return 0
        self.outcome.points.append(f"{name} {where.removeprefix(self.root)}".rstrip())
        if len(self.outcome.points) != self.fault.at:
            return 0
        self.outcome.failed = self.outcome.points[-1]
        os.kill(_group_leader(thread), signal.SIGKILL)
        return errno.EINTR

    def _who(self, thread: int) -> str:
        """``daemon``, ``keeper`` or nobody of these. A keeper is a program of its own from its exec on, and in the host's pid namespace."""
        known = self._whose.get(thread)
        if known is None:
            leader = _group_leader(thread)
            known = "daemon" if leader == self.child else "keeper" if _is_keeper(leader) else ""
            if known:  # what is about to become a keeper may be asked about before
                self._whose[thread] = known
        return known


def _group_leader(thread: int) -> int:
    return int(_status(thread, "Tgid")[0])


def _is_keeper(process: int) -> bool:
    return len(_status(process, "NSpid")) == 1 and "launcher" in os.readlink(f"/proc/{process}/exe")


def _status(process: int, name: str) -> list[str]:
    """The words of one line of /proc/PID/status."""
    text = Path(f"/proc/{process}/status").read_text()
    return next(line for line in text.splitlines() if line.startswith(f"{name}:")).split()[1:]


def _install(names: dict[str, int]) -> int:
    """The filter, on all threads of this process; its listener."""
    arch, _, seccomp = _ARCHES[platform.machine()]
    numbers = sorted(number for name, number in names.items() if name != "openat")
    count = len(numbers)

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("<HBBI", code, yes, no, value)

    load, equal, any_of, give = 0x20, 0x15, 0x45, 0x06
    last = count + 1  # where USER_NOTIF stands, counted from the first of the numbers; ALLOW is just before it
    program = step(load, 4) + step(equal, arch, 0, 4 + count) + step(load, 0)
    # An openat that makes nothing and cuts nothing off goes on without a word: there are many.
    program += step(equal, names["openat"], 0, 2) + step(load, 32) + step(any_of, os.O_CREAT | os.O_TRUNC | _UNNAMED, last, last - 1)
    for index, number in enumerate(numbers):
        program += step(equal, number, last - index - 1)
    program += step(give, 0x7FFF0000) + step(give, 0x7FC00000)
    code = ctypes.create_string_buffer(program, len(program))
    filter = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(code)))
    fd = int(_libc.syscall(seccomp, 1, _NEW_LISTENER, filter))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return fd


def _path(pid: int, name: str, arguments: list[int]) -> str:
    if name in _BY_FD or name in _OUT_FD:
        return os.readlink(f"/proc/{pid}/fd/{_int(arguments[_OUT_FD.get(name, 0)])}").removesuffix(" (deleted)")
    at = name.endswith(("at", "at2"))
    directory, place = _BY_DIR.get(name, (0, 1)) if at else (-1, _BY_PATH.get(name, 0))
    text = _string(pid, arguments[place])
    if os.path.isabs(text):
        return os.path.normpath(text)
    fd = _int(arguments[directory]) if directory >= 0 else -100
    base = os.readlink(f"/proc/{pid}/cwd" if fd == -100 else f"/proc/{pid}/fd/{fd}")
    return os.path.normpath(os.path.join(base, text))


def _int(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _string(pid: int, address: int) -> str:
    fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        data = b""
        while b"\0" not in data and len(data) < 4096:
            piece = os.pread(fd, 256 - (address + len(data)) % 256, address + len(data))
            if not piece:
                break
            data += piece
    finally:
        os.close(fd)
    return os.fsdecode(data.partition(b"\0")[0])


def _grows(pid: int, name: str, arguments: list[int]) -> bool:
    """Whether a write needs room that its file was not given yet."""
    if name not in ("write", "pwrite64", "writev"):
        return True
    fd = _int(arguments[0])
    found = os.stat(f"/proc/{pid}/fd/{fd}")
    if not stat.S_ISREG(found.st_mode):
        return False
    lines = Path(f"/proc/{pid}/fdinfo/{fd}").read_text().split()
    position, flags = int(lines[1]), int(lines[3], 8)
    if name == "pwrite64":
        position = arguments[3]
    elif flags & os.O_APPEND:
        position = found.st_size
    length = arguments[2] if name != "writev" else 1
    return position + length > found.st_blocks * 512
