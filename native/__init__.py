"""The C part, typed: start a launcher, resolve a path inside a root, load a device filter. ``OSError`` where the kernel refuses.

The extension is imported at the first call, not with the module.
"""

from __future__ import annotations

import _thread
import errno
import functools
import math
import os
import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType

from dockless.base import signal
from dockless.base.dataclass import dataclass
from dockless.base.typing import Any

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

_lock = _thread.allocate_lock()
_launcher_fd = -1
_agent_fd = -1


class Launched:
    """A launcher that has been exec'd. The caller owns ``pidfd``, and reaps the process if it is its ``child``."""

    __slots__ = ("child", "pid", "pidfd")

    def __init__(self, pid: int, pidfd: int, child: bool = True) -> None:
        self.pid, self.pidfd, self.child = pid, pidfd, child


@dataclass(frozen=True, slots=True)
class Shape:
    """What the validator demands of an operation's arguments: one letter each, see ``plan.h``."""

    name: str
    code: int
    slot_in: str
    slot_out: str
    a: str
    b: str


@functools.cache
def _extension() -> ModuleType:
    try:
        from dockless.native import _native  # type: ignore[attr-defined]
    except ImportError as error:
        raise ImportError(f"dockless's C extension is not built ({error}); run 'make build' or install a wheel") from error
    return _native  # type: ignore[no-any-return]


def _lib() -> Any:
    return _extension().lib


def _check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
    return result


def openat2(dirfd: int, path: str | bytes, flags: int, mode: int = 0, resolve: int = 0) -> int:
    """openat2(2): a new close-on-exec fd of ``path`` below ``dirfd``, resolved as the ``RESOLVE_`` flags say."""
    raw = os.fsencode(path)
    if b"\0" in raw:
        raise OSError(errno.EINVAL, "openat2: NUL byte in the path", path)
    fd: int = _lib().shim_openat2(dirfd, raw, flags | os.O_CLOEXEC, mode, resolve)
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd), os.fsdecode(raw))
    return fd


def syscall(number: int, *arguments: int | bytes | bytearray) -> int:
    """One raw system call: the result, or a negative errno. Bytes are passed as a pointer to a NUL-terminated copy, a bytearray as one to
    itself."""
    native = _extension()

    def passed(value: int | bytes | bytearray) -> object:
        if isinstance(value, bytes):
            return native.ffi.new("char[]", value)
        return native.ffi.from_buffer(value) if isinstance(value, bytearray) else value

    kept = [passed(value) for value in arguments]
    words = [value if isinstance(value, int) else int(native.ffi.cast("intptr_t", value)) for value in kept]
    result: int = native.lib.shim_syscall(number, *[*words, 0, 0, 0, 0, 0, 0][:6])
    return result


def timer(seconds: float, fd: int = -1) -> int:
    """A timer that becomes readable in ``seconds``, ``math.inf`` for never: a new fd, or the one given, set again. timerfd_create(2)"""
    nanoseconds = 0 if seconds == math.inf else max(1, min(int(seconds * 1e9), (1 << 62)))
    return _check(_lib().shim_timer(fd, nanoseconds), "timerfd_create")


def bpf_prog_load_cgroup_device(insns: bytes) -> int:
    """The fd of a loaded BPF_PROG_TYPE_CGROUP_DEVICE program. ``OSError`` carries the verifier's log."""
    native = _extension()
    log = native.ffi.new("char[]", 65536)
    fd: int = native.lib.shim_bpf_load(insns, len(insns) // 8, log, len(log))
    if fd < 0:
        text = native.ffi.string(log).decode(errors="replace").strip()
        raise OSError(-fd, f"bpf(BPF_PROG_LOAD): {os.strerror(-fd)}{': ' + text if text else ''}")
    return fd


def bpf_prog_attach(cgroup_fd: int, prog_fd: int, flags: int = 0) -> None:
    """Attach a device program to a cgroup. bpf(2), BPF_PROG_ATTACH"""
    _check(_lib().shim_bpf_attach(cgroup_fd, prog_fd, flags), "bpf(BPF_PROG_ATTACH)")


@functools.cache
def operations() -> dict[str, Shape]:
    """Every operation of the plan by name, as ``plan.h`` defines it."""
    native = _extension()
    shapes = {}
    for code in range(1, native.lib.shim_op_count()):
        raw = native.lib.shim_op_name(code)
        if raw == native.ffi.NULL:
            continue
        letters = native.ffi.new("char[4]")
        native.lib.shim_op_shape(code, letters)
        name = native.ffi.string(raw).decode()
        slot_in, slot_out, a, b = native.ffi.unpack(letters, 4).decode()
        shapes[name] = Shape(name, code, slot_in, slot_out, a, b)
    return shapes


def validate(plan: bytes) -> tuple[bool, int]:
    """Whether the launcher would accept the plan, and the index of the operation that it objects to (-1: the header)."""
    native = _extension()
    bad = native.ffi.new("int *")
    buffer = native.ffi.new("uint64_t[]", len(plan) // 8 + 1)
    native.ffi.memmove(buffer, plan, len(plan))
    return native.lib.plan_validate(buffer, len(plan), bad) == 0, bad[0]


def launcher() -> int:
    """The launcher's program as an fd, made once per process: a sealed memfd, or the installed file where AppArmor lets only
    programs of a known path make user namespaces (Ubuntu 23.10 and newer)."""
    global _launcher_fd
    if _launcher_fd < 0:
        with _lock:
            if _launcher_fd < 0:
                _launcher_fd = _installed_launcher() if _apparmor_wants_a_path() else _check(_lib().shim_launcher_memfd(), "memfd_create")
    return _launcher_fd


def agent() -> int:
    """The program that acts on files inside a sandbox, as an fd of a sealed memfd, made once per process: ``agent/agent.c``."""
    global _agent_fd
    with _lock:
        if _agent_fd < 0:
            _agent_fd = _check(_lib().shim_agent_memfd(), "memfd_create")
    return _agent_fd


LAUNCHER_PATH = os.path.join(os.path.dirname(__file__), "dockless-launcher")


def _installed_launcher() -> int:
    """A descriptor of the installed launcher. ``Unsupported`` where others than root can change it: what runs inside could, through
    /proc/self/exe and with the rights of this user (CVE-2019-5736)."""
    fd = os.open(LAUNCHER_PATH, os.O_RDONLY | os.O_CLOEXEC)
    found = os.fstat(fd)
    if found.st_uid == 0 and not found.st_mode & 0o022:
        return fd
    os.close(fd)
    from dockless.errors import Unsupported

    raise Unsupported(
        f"the launcher {LAUNCHER_PATH} does not belong to root, and a sandbox could change it",
        subject=LAUNCHER_PATH,
        hint="have root install dockless, or as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    )


def _apparmor_wants_a_path() -> bool:
    if os.geteuid() == 0:
        return False
    try:
        with open("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") as setting:
            return setting.read().strip() == "1"
    except OSError:
        return False


def launch(fds: Mapping[int, int], *, name: str = "dockless", cgroup_fd: int = -1, namespaces: int = 0) -> Launched:
    """Start a launcher whose only open files are ``fds``: slot → fd of ours. Slot 3 is its plan. ``namespaces``: flags of those
    that are new. clone3(2)"""
    native = _extension()
    slots = sorted(fds)
    pidfd = native.ffi.new("int *")
    pid = native.lib.shim_launch(launcher(), name.encode(), len(slots), [fds[s] for s in slots], slots, cgroup_fd, namespaces, pidfd)
    return Launched(_check(pid, "clone3"), pidfd[0])


def start_apart(path: str, arguments: Sequence[str], fds: Mapping[int, int]) -> None:
    """Start a program that outlives us, in a session of its own: nobody here has to wait for it. It has no environment, and its only open
    files are ``fds``: slot → fd of ours. ``OSError`` where it cannot be executed."""
    native = _extension()
    slots = sorted(fds)
    texts = [native.ffi.new("char[]", os.fsencode(text)) for text in arguments]
    error = native.lib.shim_start_apart(os.fsencode(path), [*texts, native.ffi.NULL], len(slots), [fds[s] for s in slots], slots)
    if error:
        raise OSError(-error, os.strerror(-error), path)


def door(path: str) -> int:
    """A socket for requests to enter a sandbox, bound at ``path``: for slot 15 of its keeper. unix(7)"""
    return _check(_lib().shim_door(os.fsencode(path)), "bind")


def enter(path: str, keeper: int, fds: Mapping[int, int]) -> Launched:
    """Have the keeper whose door is at ``path``, and of whom ``keeper`` is a pidfd, start what enters with these fds: slot → fd of ours."""
    native = _extension()
    slots = sorted(fds)
    pidfd = native.ffi.new("int *")
    pid = native.lib.shim_enter(os.fsencode(path), keeper, len(slots), [*map(fds.__getitem__, slots)], slots, pidfd)
    return Launched(_check(pid, "enter"), pidfd[0], False)


def extend(path: str, keeper: int, nanoseconds: int) -> None:
    """Tell a keeper that somebody is there, and unless 0, in how many nanoseconds its sandbox shall end."""
    _check(_lib().shim_extend(os.fsencode(path), keeper, nanoseconds), "extend")


def terminal(path: str, keeper: int) -> int:
    """Our side of the sandbox's terminal, pty(7); the caller closes it. ``OSError``: ENOTTY for one that has none."""
    return enter(path, keeper, {}).pidfd


_NEWUSER, _NEWNET = 0x10000000, 0x40000000


@dataclass(frozen=True, slots=True)
class NamespaceHolder:
    """A tiny process in a new user namespace without id maps; it is ours to write."""

    pid: int


@contextmanager
def hold_userns(*, network: bool = False) -> Iterator[NamespaceHolder]:
    """A new user namespace, kept alive by a process for as long as the block runs; ``network``: and a network namespace that belongs to it.
    user_namespaces(7)"""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            launched = launch({3: read_end}, name="dockless-userns", namespaces=_NEWUSER | (_NEWNET if network else 0))
        finally:
            os.close(read_end)
        try:
            yield NamespaceHolder(launched.pid)
        finally:
            os.close(write_end)
            write_end = -1
            reap(launched.pidfd)
            os.close(launched.pidfd)
    finally:
        if write_end >= 0:
            os.close(write_end)


def reap(pidfd: int) -> None:
    """Wait for a child of ours by its pidfd; somebody else may have reaped it before. It is about to end: one that somebody stopped is
    woken."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    while not poller.poll(1000):
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | 0x40000000)
    except ChildProcessError:
        pass
