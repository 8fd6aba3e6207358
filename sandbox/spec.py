"""What a caller asks for: one frozen record, JSON in and out, no side effects.

A ``Spec`` is complete in itself: with an image, the features of a kernel and the ids of a user it compiles to exactly one plan
(``sandbox.compile``). Sizes are bytes, times are seconds, processors are cores.
"""

from __future__ import annotations

import os
import posixpath
import re
import signal
from dataclasses import dataclass, field
from typing import Literal

from dockless.base.checks import check_record
from dockless.base.paths import StrPath
from dockless.base.units import NOT_FOR_STOP
from dockless.cgroups import Limits
from dockless.errors import BadInput

Profile = Literal["default", "untrusted", "privileged"]
Network = Literal["none", "host"]
RootMode = Literal["disk", "tmpfs", "readonly"]
Share = Literal["new", "host"]

_RLIMITS = "cpu fsize data stack core rss nproc nofile memlock as locks sigpending msgqueue nice rtprio rttime"
RLIMITS = {name: number for number, name in enumerate(_RLIMITS.split())}
"""Resource limits by name, getrlimit(2)."""

_MAX_BYTES = 2**63 - 1
_MAX_SECONDS = 10**9  # some 31 years
_MAX_ID = 2**31 - 1
_UNITS = {
    **dict.fromkeys(("shm_size", "log_size", "root_size", "size of a tmpfs"), " bytes"),
    **dict.fromkeys(("timeout", "grace", "time_offset"), " seconds"),
}
_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class Mount:
    """Something mounted inside; made by ``Bind``, ``Tmpfs`` and ``Volume``. One record for all three, so that it travels as JSON."""

    kind: Literal["bind", "tmpfs", "volume"]
    target: str
    source: str = ""
    readonly: bool = False
    recursive: bool = True
    idmap: bool | None = None
    size: int = 0
    mode: int = 0o1777

    def __post_init__(self) -> None:
        check_record(self)


def _path(value: StrPath) -> str:
    return value if isinstance(value, str) or not isinstance(value, os.PathLike) else os.fspath(value)


def Bind(
    source: StrPath,
    target: StrPath,
    *,
    readonly: bool = False,
    recursive: bool = True,
    idmap: bool | None = None,
) -> Mount:
    """A host file or directory shown inside. ``idmap`` True: owners on disk are ids of the inside, so that the sandbox's root is root
    there (needs root, Linux 5.12); False: nothing is mapped; None: as root what is safe, see ``sandbox.binds``."""
    return Mount("bind", _path(target), _path(source), readonly, recursive, idmap)


def Tmpfs(target: StrPath, *, size: int = 0, mode: int = 0o1777) -> Mount:
    """A private memory file system. ``size``: bytes, 0 for the kernel's default of half the memory."""
    return Mount("tmpfs", _path(target), size=size, mode=mode)


def Volume(name: str, target: StrPath, *, readonly: bool = False) -> Mount:
    """A named directory that dockless keeps between sandboxes."""
    return Mount("volume", _path(target), name, readonly)


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Which namespaces are new (the default) and which are the caller's own. namespaces(7)"""

    mount: Literal["new"] = "new"
    pid: Share = "new"
    uts: Share = "new"
    ipc: Share = "new"
    user: Share = "new"
    cgroup: Share = "new"
    time: Share = "host"

    def __post_init__(self) -> None:
        check_record(self)


@dataclass(frozen=True, slots=True)
class Rlimit:
    """One resource limit, getrlimit(2). ``name`` without ``RLIMIT_``, lower case: ``nofile``, ``core`` …; -1 is infinity."""

    name: str
    soft: int
    hard: int

    def __post_init__(self) -> None:
        check_record(self)


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything about one sandbox.

    ``argv`` empty: the image's Entrypoint and Cmd. ``env`` is added to the image's. ``user``: ``name|uid[:group|gid]``, looked up
    inside the image; empty: the image's. ``timeout``: seconds of wall time after which the whole tree is killed, 0 for none;
    ``stop_signal``: asks the program to end, 0 for the image's; ``grace``: seconds between it and SIGKILL. ``gpus``: UUIDs of leased
    GPUs, never a wish. ``time_offset``: seconds added to the monotonic and boot clocks of a new time namespace. ``seccomp``: path of a
    profile in the format that Docker and Podman share, ``unconfined``, or empty for dockless's own.
    ``log_size``: how many bytes of a detached sandbox's output are kept, the newest; 0 for 128 MiB, or for the setting
    ``logs.size`` on the command line and in the queue.
    """

    argv: tuple[str, ...] = ()
    image: str = "host"
    entrypoint: tuple[str, ...] | None = None
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # holds secrets, and a repr ends in somebody's log
    workdir: str = ""
    user: str = ""
    groups: tuple[int, ...] = ()
    hostname: str = ""
    profile: Profile = "default"
    root: RootMode = "disk"
    root_size: int = 0
    mounts: tuple[Mount, ...] = ()
    shm_size: int = 0
    network: Network = "none"
    namespaces: Namespaces = field(default_factory=Namespaces)
    limits: Limits = field(default_factory=Limits)
    best_effort: bool = False
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()
    seccomp: str = ""
    rlimits: tuple[Rlimit, ...] = ()
    umask: int | None = None
    oom_score_adj: int | None = None
    cpus: tuple[int, ...] = ()
    time_offset: int = 0
    stop_signal: int = 0
    timeout: float = 0.0
    grace: float = 0.0
    gpus: tuple[str, ...] = ()
    log_size: int = 0

    def __post_init__(self) -> None:
        check_record(self)
        _check(self)


def is_job(name: str) -> bool:
    """Whether a name means a job of the queue, never a sandbox: jobs have numbers."""
    return name.isascii() and name.isdecimal() and len(name) < 19


def check_id(value: str, what: str = "sandbox id") -> str:
    """``value`` if it can name a directory and a cgroup safely (attack A37) and, for a sandbox, is no job's number; else ``BadInput``."""
    if not _ID.match(value):
        raise BadInput(
            f"{what} {value[:80]!r} is not usable as a name",
            subject=value[:80],
            hint="use up to 64 letters, digits, '_', '.' and '-', starting with a letter or digit",
        )
    if what == "sandbox id" and is_job(value):
        raise BadInput(f"{value} as a name would mean a job", subject=value, hint="begin the name with a letter")
    return value


def _check(spec: Spec) -> None:
    for name, _ in spec.env:
        if not name or "=" in name:
            raise BadInput(f"environment name {name!r} is empty or contains '='", subject=name, hint="write NAME=value")
    if spec.workdir and not spec.workdir.startswith("/"):
        raise BadInput(f"working directory {spec.workdir!r} is not absolute", subject=spec.workdir, hint="start it with '/'")
    for mount in spec.mounts:
        if not mount.target.startswith("/"):
            raise BadInput(f"mount target {mount.target!r} is not an absolute path", subject=mount.target, hint="start it with '/'")
        if mount.kind == "volume":
            check_id(mount.source, "volume name")
        if posixpath.normpath(mount.target).strip("/") == "":
            raise BadInput("nothing can be mounted on the root itself", subject=mount.target, hint="mount below it, or run another image")
    _check_numbers(spec)


def _check_numbers(spec: Spec) -> None:
    """Numbers that no kernel takes, said in words before anything is made."""
    for what, number, low, high in (
        ("umask", spec.umask, 0, 0o777),
        ("oom_score_adj", spec.oom_score_adj, -1000, 1000),
        ("shm_size", spec.shm_size, 0, _MAX_BYTES),
        ("log_size", spec.log_size, 0, _MAX_BYTES),
        ("root_size", spec.root_size, 0, _MAX_BYTES),
        ("timeout", spec.timeout, 0, _MAX_SECONDS),
        ("grace", spec.grace, 0, _MAX_SECONDS),
        ("stop_signal", spec.stop_signal, 0, signal.SIGRTMAX),
        ("time_offset", spec.time_offset, -_MAX_SECONDS, _MAX_SECONDS),
        *(("groups", group, 0, _MAX_ID) for group in spec.groups),
        *(("size of a tmpfs", mount.size, 0, _MAX_BYTES) for mount in spec.mounts),
        *(("mode of a tmpfs", mount.mode, 0, 0o7777) for mount in spec.mounts),
        *((f"limit {limit.name}", value, -1, _MAX_BYTES) for limit in spec.rlimits for value in (limit.soft, limit.hard)),
    ):
        if number is not None and not low <= number <= high:
            unit = _UNITS.get(what, "")
            raise BadInput(f"{what} {number}{unit} is out of range", subject=what, hint=f"it goes from {low} to {high:d}{unit}")
    if spec.stop_signal in NOT_FOR_STOP:
        raise BadInput(
            f"{signal.Signals(spec.stop_signal).name} ends no program, so it is no stop signal",
            subject="stop_signal",
            hint="use TERM, INT, QUIT, HUP or a signal that the program listens to; KILL ends it at once",
        )
    for limit in spec.rlimits:
        if limit.hard != -1 and not 0 <= limit.soft <= limit.hard:
            raise BadInput(f"limit {limit.name}: soft {limit.soft} is above hard {limit.hard}", subject=limit.name, hint="-1 is infinity")
