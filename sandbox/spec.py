"""What a caller asks for: one frozen record, JSON in and out, no side effects.

A ``Spec`` is complete in itself: with an image, the features of a kernel and the ids of a user it compiles to exactly one plan
(``sandbox.compile``). Sizes are bytes, times are seconds, processors are cores.
"""

from __future__ import annotations

import os
import posixpath

from dockless.base import device_names, signal
from dockless.base.checks import check_record
from dockless.base.dataclass import dataclass, field
from dockless.base.healthcheck import HealthCheck
from dockless.base.later import re
from dockless.base.paths import StrPath
from dockless.base.text import shown
from dockless.base.typing import Literal
from dockless.base.units import NOT_FOR_STOP
from dockless.cgroups import Limits
from dockless.errors import BadInput
from dockless.sandbox.hosts import check_hosts, check_name
from dockless.sandbox.names import check_id
from dockless.sandbox.network.model import Egress, Endpoint, Port

Profile = Literal["default", "untrusted", "privileged"]
RootMode = Literal["disk", "tmpfs", "readonly"]
Share = Literal["new", "host"]

_RLIMITS = "cpu fsize data stack core rss nproc nofile memlock as locks sigpending msgqueue nice rtprio rttime"
RLIMITS = {name: number for number, name in enumerate(_RLIMITS.split())}
"""Resource limits by name, getrlimit(2)."""

GRACE = 10.0
"""Seconds between the stop signal of whoever ends it and SIGKILL, where neither they nor its spec say."""
_MAX_BYTES = 2**63 - 1
_MAX_SECONDS = 10**9  # some 31 years
_MAX_ID = 2**31 - 1
_OF_NETWORKS = ("endpoints", "ports", "dns", "dns_search", "dns_options", "egress")
_UNITS = {
    **dict.fromkeys(("shm_size", "log_size", "root_size", "disk", "size of a tmpfs"), " bytes"),
    **dict.fromkeys(("timeout", "grace", "time_offset", "idle_timeout", "ttl"), " seconds"),
}


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
    noexec: bool = False
    uid: int = 0
    gid: int = 0

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


def Tmpfs(target: StrPath, *, size: int = 0, mode: int = 0o1777, noexec: bool = False, uid: int = 0, gid: int = 0) -> Mount:
    """A private memory file system. ``size``: bytes, 0 for the kernel's default of half the memory. ``uid``, ``gid``: whose its root
    directory is, as the sandbox numbers them. tmpfs(5)"""
    return Mount("tmpfs", _path(target), size=size, mode=mode, noexec=noexec, uid=uid, gid=gid)


def Volume(name: str, target: StrPath, *, readonly: bool = False) -> Mount:
    """A named directory that dockless keeps between sandboxes."""
    return Mount("volume", _path(target), name, readonly)


@dataclass(frozen=True, slots=True)
class HostDevice:
    """A device node of the host, or a directory of them, and where it is shown inside, below /dev. ``access``: letters of ``rwm``: to read,
    to write, to make such nodes; empty: it is there, and cannot be opened."""

    source: str
    target: str
    access: str = "rw"

    def __post_init__(self) -> None:
        check_record(self)
        hint = "write /dev/SOURCE, /dev/SOURCE:/dev/TARGET or /dev/SOURCE:/dev/TARGET:rw"
        shown = f"device {self.source[:60]!r}"
        if not self.source.startswith("/"):
            hint += "; a described device is VENDOR/CLASS=NAME, a number of leased ones VENDOR/CLASS:NUMBER"
            raise BadInput(f"{shown} is not an absolute path", subject="devices", hint=hint)
        if not self.target.startswith("/dev/") or posixpath.normpath(self.target) != self.target:
            raise BadInput(f"{shown}: {self.target[:60]!r} is not below /dev", subject="devices", hint=hint)
        if set(self.access) - set("rwm") or len(set(self.access)) < len(self.access) or self.access == "m":
            raise BadInput(f"{shown}: {self.access[:20]!r} is not r, w or rw, with or without m", subject="devices", hint=hint)


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
    GPUs, and the names of leased devices, ``amd.com/gpu=0``, never a wish. ``cdi``: other devices by their names of the Container
    Device Interface.
    ``time_offset``: seconds added to the monotonic and boot clocks of a new time namespace. ``seccomp``: path of a
    profile in the format that Docker and Podman share, ``unconfined``, or empty for dockless's own.
    ``host_groups``: of the host's groups, by their numbers, those that it keeps of the user for whom root starts it.
    ``hosts``: names and addresses of /etc/hosts besides its own, ``host-gateway`` for the host itself. ``sysctls``: settings of the kernel
    that are its own namespaces'.
    ``network``: ``none`` (loopback alone), ``host``, ``private``: on the networks of ``endpoints``, or ``container:ID``: that of another
    sandbox. ``ports``: of the host, that lead into a private one. ``dns``, ``dns_search``, ``dns_options``: for its /etc/resolv.conf.
    ``egress``: where it may connect to beyond its networks; None: everywhere, with the profile untrusted not to the host.
    ``disk``: how many bytes its private layer may take on disk, 0 for any number (``run.project``).
    ``log_size``: how many bytes of a detached sandbox's output are kept, the newest; 0 for 128 MiB, or for the setting
    ``logs.size`` on the command line and in the queue. ``keep_log`` False: none of it is. ``tty``: its standard streams are a
    pseudo-terminal of its own, pty(7).
    ``interactive``: a detached one's standard input is a pipe that stays open, for who attaches; else there is nothing to read.
    ``idle_timeout``: seconds without anybody after which it ends, ``ttl``: seconds until an end that can be moved; 0 for none.
    ``health``: the check of its health, None for the image's own.
    """

    argv: tuple[str, ...] = ()
    image: str = "host"
    entrypoint: tuple[str, ...] | None = None
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # holds secrets, and a repr ends in somebody's log
    workdir: str = ""
    user: str = ""
    groups: tuple[int | str, ...] = ()
    host_groups: tuple[int, ...] = ()
    hostname: str = ""
    domainname: str = ""
    hosts: tuple[tuple[str, str], ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()
    profile: Profile = "default"
    root: RootMode = "disk"
    root_size: int = 0
    disk: int = 0
    mounts: tuple[Mount, ...] = ()
    shm_size: int = 0
    devices: tuple[HostDevice, ...] = ()
    cdi: tuple[str, ...] = ()
    network: str = "none"
    endpoints: tuple[Endpoint, ...] = ()
    ports: tuple[Port, ...] = ()
    dns: tuple[str, ...] = ()
    dns_search: tuple[str, ...] = ()
    dns_options: tuple[str, ...] = ()
    egress: Egress | None = None
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
    keep_log: bool = True
    tty: bool = False
    interactive: bool = False
    idle_timeout: float = 0.0
    ttl: float = 0.0
    health: HealthCheck | None = None

    def __post_init__(self) -> None:
        check_record(self)
        _check(self)

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(name for name in self.gpus if not device_names.is_device(name))

    @property
    def leased_devices(self) -> tuple[str, ...]:
        return tuple(name for name in self.gpus if device_names.is_device(name))


def check_beginning(env: tuple[tuple[str, str], ...], workdir: str, timeout: float) -> None:
    """Of a sandbox's own program and of any other: its variables, its directory, its time. ``BadInput``"""
    for name, _ in env:
        if not name or "=" in name:
            raise BadInput(f"environment name {shown(name)} is empty or contains '='", subject=name[:60], hint="write NAME=value")
    if workdir and not workdir.startswith("/"):
        raise BadInput(f"working directory {shown(workdir)} is not absolute", subject=workdir[:60], hint="start it with '/'")
    _in_range("timeout", timeout, 0, _MAX_SECONDS)


def _check(spec: Spec) -> None:
    check_beginning(spec.env, spec.workdir, spec.timeout)
    for name in spec.cdi:
        if not re.match(rf"{device_names.KIND}={device_names.NAME}\Z", name):
            raise BadInput(
                f"device {name[:60]!r} is not VENDOR/CLASS=NAME", subject="devices", hint="write amd.com/gpu=0, or a path below /dev"
            )
        if name.startswith("nvidia.com/gpu="):
            wanted = name.partition("=")[2]
            hint = f'ask for it: --gpus device={wanted} (gpus="device={wanted}")'
            raise BadInput(f"device {name[:60]} is a GPU, and GPUs are leased", subject="devices", hint=hint)
    for mount in spec.mounts:
        if not mount.target.startswith("/"):
            raise BadInput(
                f"mount target {shown(mount.target)} is not an absolute path", subject=mount.target[:60], hint="start it with '/'"
            )
        if mount.kind == "volume":
            check_id(mount.source, "volume name")
        if posixpath.normpath(mount.target).strip("/") == "":
            raise BadInput("nothing can be mounted on the root itself", subject=mount.target, hint="mount below it, or run another image")
    if spec.domainname:
        check_name(spec.domainname, "domain name")
        if len(spec.domainname) > 64:
            raise BadInput("the domain name is longer than 64 bytes", subject="domainname", hint="setdomainname(2) takes no more")
    if spec.network not in ("none", "host") or any(getattr(spec, name) for name in _OF_NETWORKS):
        from dockless.sandbox.network.asked import check_network

        check_network(spec)
    if spec.hosts:
        from dockless.sandbox.network.asked import reaches_host

        check_hosts(spec.hosts, has_network=reaches_host(spec))
    if spec.sysctls:
        from dockless.sandbox.network.asked import whose
        from dockless.sandbox.sysctls import check_sysctls

        check_sysctls(spec.sysctls, shared={"network": whose(spec.network), "ipc": "the host's" if spec.namespaces.ipc == "host" else ""})
    _check_numbers(spec)


def _in_range(what: str, number: float | None, low: int, high: int) -> None:
    if number is not None and not low <= number <= high:
        unit = _UNITS.get(what, "")
        raise BadInput(f"{what} {number}{unit} is out of range", subject=what, hint=f"it goes from {low} to {high:d}{unit}")


def _check_numbers(spec: Spec) -> None:
    """Numbers that no kernel takes, said in words before anything is made."""
    for what, number, low, high in (
        ("umask", spec.umask, 0, 0o777),
        ("oom_score_adj", spec.oom_score_adj, -1000, 1000),
        ("shm_size", spec.shm_size, 0, _MAX_BYTES),
        ("log_size", spec.log_size, 0, _MAX_BYTES),
        ("root_size", spec.root_size, 0, _MAX_BYTES),
        ("disk", spec.disk, 0, _MAX_BYTES),
        ("grace", spec.grace, 0, _MAX_SECONDS),
        ("idle_timeout", spec.idle_timeout, 0, _MAX_SECONDS),
        ("ttl", spec.ttl, 0, _MAX_SECONDS),
        ("stop_signal", spec.stop_signal, 0, signal.SIGRTMAX),
        ("time_offset", spec.time_offset, -_MAX_SECONDS, _MAX_SECONDS),
        *(("host_groups", group, 1, _MAX_ID) for group in spec.host_groups),
        *(("groups", group, 0, _MAX_ID) for group in spec.groups if isinstance(group, int)),
        *(("size of a tmpfs", mount.size, 0, _MAX_BYTES) for mount in spec.mounts),
        *(("mode of a tmpfs", mount.mode, 0, 0o7777) for mount in spec.mounts),
        *((f"limit {limit.name}", value, -1, _MAX_BYTES) for limit in spec.rlimits for value in (limit.soft, limit.hard)),
    ):
        _in_range(what, number, low, high)
    if spec.stop_signal in NOT_FOR_STOP:
        raise BadInput(
            f"{signal.Signals(spec.stop_signal).name} ends no program, so it is no stop signal",
            subject="stop_signal",
            hint="use TERM, INT, QUIT, HUP or a signal that the program listens to; KILL ends it at once",
        )
    for limit in spec.rlimits:
        if limit.hard != -1 and not 0 <= limit.soft <= limit.hard:
            raise BadInput(f"limit {limit.name}: soft {limit.soft} is above hard {limit.hard}", subject=limit.name, hint="-1 is infinity")
