"""What this kernel can do for us, asked of the kernel and never read from its version.

A ``Features`` is data: tests make up other kernels and compare the plans that come out.
"""

from __future__ import annotations

import errno
import functools
import os
import struct

from dockless import native
from dockless.base.dataclass import dataclass
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import Unsupported

if TYPE_CHECKING:
    from dockless.sandbox.plan.plan import Op

_MACHINE_SUPPORTED = ("x86_64", "aarch64")
_NR_OPEN_TREE, _NR_FSOPEN, _NR_FSCONFIG, _NR_CLONE3, _NR_CLOSE_RANGE, _NR_OPENAT2, _NR_MOUNT_SETATTR = 428, 430, 431, 435, 436, 437, 442
_CAP_SYS_ADMIN = 21
_HERE, _EMPTY_PATH = -100, 0x1000
_CLONE = 0x80001
"""OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC"""
_IDMAP = 0x100000
"""MOUNT_ATTR_IDMAP"""
_FLOOR = (
    (_NR_CLONE3, "clone3", "5.3"),
    (_NR_OPENAT2, "openat2", "5.6"),
    (_NR_CLOSE_RANGE, "close_range", "5.9"),
    (_NR_MOUNT_SETATTR, "mount_setattr", "5.12"),
)


@dataclass(frozen=True, slots=True)
class Features:
    """``overlay_lowerdir_plus``: layers are added one by one (6.7), not in one string of at most a page. ``overlay_detached_layers``: a
    layer may be a mount
    that is nowhere attached (6.15). ``idmapped_mounts``: mount_setattr knows MOUNT_ATTR_IDMAP. ``sys_admin``: we may mount in the host's
    namespaces.
    """

    release: str
    machine: str
    missing: tuple[tuple[str, str], ...] = ()
    overlay: bool = True
    overlay_lowerdir_plus: bool = True
    overlay_detached_layers: bool = True
    detached_clones: bool = True
    idmapped_mounts: bool = True
    user_namespaces: bool = True
    time_namespace: bool = True
    sys_admin: bool = True
    capabilities: int = (1 << 41) - 1

    def require_floor(self) -> None:
        """``Unsupported`` if this kernel lacks what every sandbox needs (Linux 5.14)."""
        if self.machine not in _MACHINE_SUPPORTED:
            raise Unsupported(f"dockless does not run on {self.machine}", subject=self.machine, hint="use x86-64 or 64-bit Arm")
        if self.missing:
            names = ", ".join(f"{name} (Linux {since})" for name, since in self.missing)
            raise Unsupported(
                f"Linux {self.release} lacks {names}", subject=names, hint="dockless needs Linux 5.14 or newer: boot a newer kernel"
            )


_FILES = 64
"""Files that a start may have open: the slots of its plan are descriptors of these numbers."""


_NO = (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EUSERS, errno.ENOSYS, errno.EINVAL)
"""How a kernel, or a security module, says that this user may make no user namespace. clone(2), user_namespaces(7)"""


def _capabilities() -> int:
    """The effective set of this process, capabilities(7)."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    return 0


def _overlay_accepts_lowerdir_plus() -> tuple[bool, bool]:
    """Whether there is overlay, and whether it takes layers one by one. Needs CAP_SYS_ADMIN; nothing is mounted.

    Before Linux 6.5 overlay had no parameters of its own and anything was accepted at this point, even what no overlay knows.
    """
    context = native.syscall(_NR_FSOPEN, b"overlay", 1)
    if context < 0:
        return context != -errno.ENODEV, True
    try:
        accepted = [native.syscall(_NR_FSCONFIG, context, 1, key, b"/", 0) == 0 for key in (b"no such key", b"lowerdir+")]
        return True, accepted == [False, True]
    finally:
        os.close(context)


def _accepts_detached_layers() -> bool:
    """A trial overlay over clones of two directories, attached nowhere and never written; it disappears with its fds."""
    fds: list[int] = []
    try:
        overlay = native.syscall(_NR_FSOPEN, b"overlay", 1)
        if overlay < 0:
            return False
        fds.append(overlay)
        for path in (b"/usr", b"/etc"):
            tree = native.syscall(_NR_OPEN_TREE, _HERE, path, _CLONE)
            if tree < 0:
                return False
            fds.append(tree)
            if native.syscall(_NR_FSCONFIG, overlay, 1, b"lowerdir+", f"/proc/self/fd/{tree}".encode(), 0) != 0:
                return False
        return native.syscall(_NR_FSCONFIG, overlay, 6, 0, 0, 0) == 0
    finally:
        for fd in reversed(fds):
            os.close(fd)


def _clones_detached_mounts() -> bool:
    """A clone of a clone, attached nowhere either."""
    tree = native.syscall(_NR_OPEN_TREE, _HERE, b"/", _CLONE)
    if tree < 0:
        return False
    try:
        again = native.syscall(_NR_OPEN_TREE, tree, b"", _CLONE | _EMPTY_PATH)
        if again >= 0:
            os.close(again)
        return again >= 0
    finally:
        os.close(tree)


def _accepts_idmap() -> bool:
    """MOUNT_ATTR_IDMAP on no mount at all: a kernel that knows it objects to the fd, an older one to the flag."""
    return native.syscall(_NR_MOUNT_SETATTR, -1, b"", _EMPTY_PATH, *_idmapped(0x7FFFFFFE)) == -errno.EBADF


def _idmapped(userns: int) -> tuple[bytes, int]:
    """A struct mount_attr and its size: owners mapped by a user namespace, a descriptor. mount_setattr(2)"""
    attributes = struct.pack("<QQQQ", _IDMAP, 0, 0, userns)
    return attributes, len(attributes)


def accepts_idmap(path: str, userns: int) -> bool:
    """Whether what lies at a path of the host can be mounted with its owners mapped: tried on a clone that is attached nowhere. False,
    too, where it cannot be opened."""
    tree = native.syscall(_NR_OPEN_TREE, _HERE, os.fsencode(path), _CLONE)
    if tree < 0:
        return False
    try:
        return native.syscall(_NR_MOUNT_SETATTR, tree, b"", _EMPTY_PATH, *_idmapped(userns)) == 0
    finally:
        os.close(tree)


def _user_namespaces_work() -> bool:
    try:
        with native.hold_userns():
            return True
    except OSError as error:
        if error.errno in _NO:
            return False
        from dockless.sandbox.plan.failure import not_started

        raise not_started(error) from error  # no answer, and the next one may be another


@functools.cache
def probe() -> Features:
    """The features of the running kernel for this user; asked once per process. ``Unsupported`` where too few files may be open,
    ``LaunchFailed`` where not even a launcher can be started."""
    allowed = os.sysconf("SC_OPEN_MAX")
    if 0 <= allowed < _FILES:
        raise Unsupported(f"{allowed} files may be open at once, a sandbox needs {_FILES}", subject="RLIMIT_NOFILE", hint="raise ulimit -n")
    uname = os.uname()
    missing = tuple((name, since) for number, name, since in _FLOOR if native.syscall(number, -1, 0, 0, 0) == -errno.ENOSYS)
    capabilities = _capabilities()
    sys_admin = bool(capabilities >> _CAP_SYS_ADMIN & 1)
    user_namespaces = _user_namespaces_work()
    overlay, plus = _overlay_accepts_lowerdir_plus() if sys_admin else _ask_inside() if user_namespaces else (False, False)
    return Features(
        release=uname.release,
        machine=uname.machine,
        missing=missing,
        overlay=overlay,
        overlay_lowerdir_plus=plus,
        overlay_detached_layers=sys_admin and plus and _accepts_detached_layers(),
        detached_clones=sys_admin and not missing and _clones_detached_mounts(),
        idmapped_mounts=sys_admin and not missing and _accepts_idmap(),
        user_namespaces=user_namespaces,
        time_namespace=os.path.exists("/proc/self/ns/time"),
        sys_admin=sys_admin,
        capabilities=capabilities,
    )


def _ask_inside() -> tuple[bool, bool]:
    """The same questions where only a user namespace gives the right to mount: plans whose failing operation is the answer."""
    from dockless.sandbox.plan.plan import Op

    begin = Op("FSOPEN", slot_out=16, a="overlay")
    last = Op("FS_STRING", 16, a="lowerdir+", b="/")
    if _fails_at((begin, last)) < 2:
        return _fails_at((begin,)) > 0, False
    return True, _fails_at((begin, Op("FS_STRING", 16, a="no such key", b="/"))) < 2


def _fails_at(operations: tuple[Op, ...]) -> int:
    """The index of the first operation that fails in a new user and mount namespace; their number if none does."""
    from dockless.sandbox.plan.plan import Command, Op, Plan, encode, in_memory

    new_user_mount_pid = 0x10000000 | 0x20000 | 0x20000000
    trial = (Op("CLONE", x=new_user_mount_pid), *operations, Op("SPAWN"))
    plan = in_memory(encode(Plan(trial, Command(("/nonexistent",), ("-",), ()))))
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            launched = native.launch({3: plan, 4: writer})
        finally:
            os.close(writer)
        failed_at: int
        _, failed_at, _, _ = struct.unpack("<HHiQ", os.read(reader, 16).ljust(16, b"\0"))
        native.reap(launched.pidfd)
        os.close(launched.pidfd)
        return min(max(failed_at - 1, 0), len(operations))
    finally:
        os.close(plan)
        os.close(reader)
