"""A spec with every name looked up: what the compiler needs to know of the image, the user, the host. Made by ``resolve``, or by a test
out of thin air."""

from __future__ import annotations

from dockless.base.dataclass import dataclass, field
from dockless.base.healthcheck import HealthCheck
from dockless.base.idmaps import IdMap
from dockless.images.layers.layers import Layer
from dockless.sandbox.accounts import Account
from dockless.sandbox.features import Features
from dockless.sandbox.plan.plan import Command
from dockless.sandbox.spec import Mount, Spec

DRIVER_LAYER = "driver-"
"""How the name of the layer with the host's GPU driver begins, in the store."""


@dataclass(frozen=True, slots=True)
class Owner:
    """On whose behalf host paths are opened when root starts a sandbox for a user. Numbers of the host."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One top-level entry of the pseudo-image ``host``: a link (``link`` is its target) or a directory shown read-only."""

    path: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """A device node shown inside: ``target`` there, ``source`` here, the number it must have, and what the device filter allows."""

    target: str
    source: str
    major: int
    minor: int
    block: bool = False
    access: str = "rw"


@dataclass(frozen=True, slots=True)
class HostFile:
    """A file, a socket or a directory that a device needs: ``source`` here, ``target`` there. ``recursive``: with what is mounted
    below."""

    source: str
    target: str
    readonly: bool = True
    noexec: bool = False
    recursive: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """What a sandbox stays with from its start to its removal, whatever becomes of the host's files: in its record, for who commits it or
    looks at it later. ``argv``: with the image's entry point. Users and groups by their numbers inside. ``idmap`` None: the user
    namespace of whoever started it."""

    argv: tuple[str, ...]
    uid: int
    gid: int
    groups: tuple[int, ...]
    workdir: str
    hostname: str
    capabilities: int
    idmap: IdMap | None


STANDARD_DEVICES = tuple(
    Device(f"/dev/{name}", f"/dev/{name}", major, minor)
    for name, major, minor in (("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0))
)


@dataclass(frozen=True, slots=True)
class Resolved:
    """``layers``: bottom to top; empty for the pseudo-image ``host``, which has ``host_entries``. ``idmap`` None: the caller's user
    namespace. ``shared_network``: it enters one. ``waits``: for its program, so many seconds at most, 0 for ever; None: it does not.
    ``lends_root``: whoever made one that waits gets a clone of its root, see ``run.debug``. ``hands_over``: it gets its namespaces.
    ``below``: its PID namespace lies below another one. See ``sandbox.zygote``.
    ``rootful``: the keeper may mount in the host's namespaces. ``bind_maps``: index in
    ``mounts`` → what its owners are mapped by, where the caller left that open. ``device_links``: of /dev, and what each leads to.
    ``driver_proc``: files of /proc/driver with their text; ``driver_proc_files``: what of the host's shows there besides."""

    spec: Spec
    features: Features
    account: Account
    command: Command
    layers: tuple[Layer, ...] = ()
    host_entries: tuple[HostEntry, ...] = ()
    idmap: IdMap | None = None
    shared_network: bool = False
    waits: float | None = None
    lends_root: bool = False
    hands_over: bool = False
    below: bool = False
    rootful: bool = True
    owner: Owner | None = None
    capabilities: int = 0
    seccomp: bytes | None = None
    workdir: str = "/"
    hostname: str = "dockless"
    files: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    bind_maps: dict[int, IdMap] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    devices: tuple[Device, ...] = STANDARD_DEVICES
    device_links: tuple[tuple[str, str], ...] = ()
    driver_files: tuple[HostFile, ...] = ()
    driver_proc: tuple[tuple[str, str], ...] = ()
    driver_proc_files: tuple[HostFile, ...] = ()
    has_cgroup: bool = False
    stop_signal: int = 15
    log_limit: int = 64 << 20
    health: HealthCheck | None = None

    @property
    def identity(self) -> Identity:
        account = self.account
        return Identity(
            self.command.argv, account.uid, account.gid, account.groups, self.workdir, self.hostname, self.capabilities, self.idmap
        )  # fmt: skip

    @property
    def owners_hidden(self) -> bool:
        """Whether the pseudo-image ``host`` is shown to the host's own root, who could read every file of it."""
        return self.rootful and self.idmap is None and bool(self.host_entries)

    @property
    def reaches_others(self) -> bool:
        """Whether it could reach others of the same ids that are in its user namespace: among the host's processes; in a procfs that lies
        in what is bound, and what a path leads to may change until it is bound, so any bind counts; by the keyring of a user, which
        dockless's own filter keeps from it. ptrace(2), user-keyring(7)"""
        finds = self.spec.namespaces.pid == "host" or any(mount.kind == "bind" for mount in self.mounts)
        return finds or bool(self.spec.seccomp) or self.seccomp is None

    @property
    def setgroups_denied(self) -> bool:
        """A user who maps her own id alone has to give up setgroups(2). user_namespaces(7)"""
        return self.idmap is not None and self.idmap.single and not self.rootful
