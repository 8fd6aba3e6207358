"""User namespaces that have a given id map. user_namespaces(7), newuidmap(1)

``namespace_fd`` makes a namespace, fills its maps and keeps a descriptor of it, so that each start is one setns(2). Who has the same ids
and is in the same user namespace may trace each other, and has the same keyring: so those who could reach others get one of
``own_namespace`` (attack A78).

newuidmap and newgidmap are set-user-id programs that we run while an attacker may own the environment: ``idmaps.find_tool`` takes those
of fixed places that belong to root, and they run here with an empty environment in ``/`` (attacks A33, A34).
"""

from __future__ import annotations

import _thread
import errno
import os
import time

from dockless.base import idmaps
from dockless.base.idmaps import IdMap
from dockless.errors import IdMapError

_TOOL_TIMEOUT = 10.0  # seconds
_SETTLE = 0.2  # seconds


def namespace_problem() -> str | None:
    """The setting that forbids new user namespaces, as the next thing to do; None if no setting does."""
    if _sysctl("user/max_user_namespaces") == 0:
        return "user namespaces are switched off; as root: sysctl -w user.max_user_namespaces=15000"
    if os.geteuid() != 0 and _sysctl("kernel/unprivileged_userns_clone") == 0:
        return "user namespaces are for root only here; as root: sysctl -w kernel.unprivileged_userns_clone=1"
    if os.geteuid() != 0 and _sysctl("kernel/apparmor_restrict_unprivileged_userns") == 1:
        return (
            "AppArmor forbids unprivileged user namespaces to programs without a rule; "
            "as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or install a rule for the launcher"
        )
    return None


_kept: dict[IdMap, tuple[int, tuple[int, int]]] = {}  # map → descriptor and its identity
_lock = _thread.allocate_lock()


def _after_fork() -> None:
    """The descriptors are the child's as well; a lock that another thread held is not going to be released here."""
    global _lock
    _lock = _thread.allocate_lock()


os.register_at_fork(after_in_child=_after_fork)


def namespace_fd(idmap: IdMap) -> int:
    """A descriptor (close-on-exec) of a user namespace with this map. It belongs to this module: use it, do not close it.

    Made once per process and map, by whichever thread comes first. Root writes the maps, a user writes a single one herself and
    has newuidmap and newgidmap write the others.
    Errors: ``IdMapError``.
    """
    with _lock:
        kept = _kept.get(idmap)
        if kept is not None and _identity(kept[0]) == kept[1]:
            return kept[0]
        (fd,) = _make(idmap, "ns/user")
        identity = _identity(fd)
        assert identity is not None
        _kept[idmap] = fd, identity
        return fd


def own_namespace(idmap: IdMap) -> int:
    """The same of a new user namespace, which nothing else is in: the caller's to close. Some 0.3 ms as root. Errors: ``IdMapError``."""
    (fd,) = _make(idmap, "ns/user")
    return fd


def _identity(fd: int) -> tuple[int, int] | None:
    """Device and inode of a descriptor, None if it is closed: someone who closes all descriptors must not make us use another's."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class SharedNetwork:
    """A network namespace with nothing in it but its loopback interface, which several sandboxes of one user enter, and the user namespace
    that it belongs to: who has no rights there cannot enter it. It lasts as long as it is open here or something is in it.

    Errors: ``IdMapError``."""

    def __init__(self, idmap: IdMap) -> None:
        self.user, self.network = _make(idmap, "ns/user", "ns/net")

    def close(self) -> None:
        for fd in (self.user, self.network):
            os.close(fd)


def _make(idmap: IdMap, *names: str) -> list[int]:
    """Descriptors of what is called so below /proc/PID."""
    from dockless import native

    try:
        with native.hold_userns(network="ns/net" in names) as holder:
            if os.geteuid() == 0 or idmap.single:
                _write_maps(holder.pid, idmap)
            else:
                _run_tools(holder.pid, idmap)
            return [_open_of(holder.pid, name, os.O_RDONLY) for name in names]
    except OSError as error:
        raise IdMapError(f"cannot make a user namespace: {error.strerror}", subject="user namespace", hint=_why(error)) from error


def _open_of(pid: int, name: str, flags: int) -> int:
    """A file of the holder's in /proc.

    Its exec has begun when we get here, but may not be over: for some microseconds the new program is as closed as ours is
    (PR_SET_DUMPABLE, which a change of ids clears). So a refusal is final only after a while.
    """
    deadline = time.monotonic() + _SETTLE
    while True:
        try:
            return os.open(f"/proc/{pid}/{name}", flags | os.O_CLOEXEC)
        except PermissionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.0005)


def _why(error: OSError) -> str:
    problem = namespace_problem()
    if problem:
        return problem
    if error.errno == errno.ENOSPC:
        return "too many user namespaces, or nested too deep; see sysctl user.max_user_namespaces"
    if error.errno == errno.EAGAIN:
        from dockless.base.paths import HINTS

        return HINTS[errno.EAGAIN]
    if error.errno == errno.EPERM:
        return "a container, seccomp filter or security module around this process forbids it"
    return "dockless doctor checks user namespaces"


def _write_maps(pid: int, idmap: IdMap) -> None:
    """Gid before uid, each map in one write(2) or not at all. A user may map her own id alone, and only after giving up setgroups(2)."""
    if os.geteuid() != 0:
        fd = _open_of(pid, "setgroups", os.O_WRONLY)
        try:
            os.write(fd, b"deny")
        finally:
            os.close(fd)
    for kind, text in (("gid", idmap.gid_text()), ("uid", idmap.uid_text())):
        fd = _open_of(pid, f"{kind}_map", os.O_WRONLY)
        try:
            os.write(fd, text.encode())
        except OSError as error:
            raise IdMapError(
                f"the kernel refused this {kind} map: {error.strerror}",
                subject=" ".join(text.split("\n")[0].split()),
                hint="the ids must exist in the caller's own user namespace (/proc/self/uid_map) and must not overlap",
            ) from error
        finally:
            os.close(fd)


def _run_tools(pid: int, idmap: IdMap) -> None:
    for tool, path, ranges in (("newgidmap", idmaps.SUBGID, idmap.gids), ("newuidmap", idmaps.SUBUID, idmap.uids)):
        program = idmaps.find_tool(tool)
        if program is None:
            raise IdMapError(
                f"{tool} is not installed, or not set-user-id root",
                subject=tool,
                hint="apt install uidmap (Fedora, Arch: shadow-utils, shadow); without it a sandbox has a single id",
            )
        _run_tool(program, [str(pid), *(str(n) for r in ranges for n in (r.inside, r.outside, r.count))], path)


def _run_tool(program: str, arguments: list[str], path: str) -> None:
    import subprocess

    try:
        done = subprocess.run(
            [program, *arguments],
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_TOOL_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise IdMapError(f"{program} did not end within {_TOOL_TIMEOUT:g} seconds", subject=program) from error
    if done.returncode != 0:
        said = done.stderr[:400].decode("utf-8", "replace").strip()
        uid = os.getuid()
        hint = idmaps.range_problem(uid) or f"the ranges asked for are not all {idmaps.user_name(uid) or uid}'s in {path}"
        raise IdMapError(f"{program} refused the id map: {said or f'exit code {done.returncode}'}", subject=program, hint=hint)


def _sysctl(name: str) -> int | None:
    try:
        with open(f"/proc/sys/{name}") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
