"""From a spec to a resolved spec: the image's configuration, the account inside, the id map, capabilities, seccomp, files, devices.

Reads the host and the image; changes nothing but what a named volume needs, and the layer of a GPU's driver in the store.
"""

from __future__ import annotations

import functools
import os
import time

from dockless.base import paths, signal
from dockless.base.dataclass import replace
from dockless.base.healthcheck import effective
from dockless.base.idmaps import IdMap, default_map
from dockless.base.path import Path
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadInput, SandboxError, Unsupported
from dockless.images.files import make_private
from dockless.images.layers.layers import Layer
from dockless.sandbox import binds, capabilities
from dockless.sandbox.accounts import Account, find_gid, resolve_user
from dockless.sandbox.command import DEFAULT_PATH, candidates, directory
from dockless.sandbox.features import Features
from dockless.sandbox.gpus.environment import UNSET_IN_SANDBOX, asks_for_files_alone, environment
from dockless.sandbox.hosts import hosts_file
from dockless.sandbox.plan.plan import Command
from dockless.sandbox.resolved import STANDARD_DEVICES, Device, HostEntry, Owner, Resolved
from dockless.sandbox.seccomp.default import default_filter
from dockless.sandbox.spec import RLIMITS, Mount, Spec, Tmpfs
from dockless.sandbox.volumes import volume_path

if TYPE_CHECKING:
    from dockless.images import Image
    from dockless.sandbox.gpus.cdi import Given
    from dockless.sandbox.gpus.injection import Injection

UNTRUSTED_PIDS = 512
_MAX_CLOCK = 2**62 // 10**9  # seconds; half of what a clock of nanoseconds holds, time_namespaces(7)
_HOST_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt")


def resolve(spec: Spec, image: Image, features: Features, *, owner: int | None = None, has_cgroup: bool = False) -> Resolved:
    """Look up everything that the plan of ``spec`` needs. ``owner``: the host user for whom root starts it. Errors: ``DocklessError``."""
    image.check_runnable()
    rootful = features.sys_admin and os.geteuid() == 0
    _refuse(spec, features, rootful, owner)
    idmap = _id_map(spec, features, owner)
    account = _account(spec, image, idmap)
    if spec.host_groups:
        idmap, account = _with_groups(spec, owner, idmap, account)
    for mount in spec.mounts:
        if idmap is not None and mount.kind == "tmpfs":
            idmap.require(mount.uid, mount.gid)
    kept = capabilities.resolve(spec.profile, spec.cap_add, spec.cap_drop)
    hostname = spec.hostname or "dockless"
    gpu_nodes, gpu_links, gpu_environment, driver = _gpus(spec, image, idmap, account, rootful)
    named = _named(spec, image, owner, _own_layers(driver))
    if named is not None and named.gids and idmap is None:
        account = replace(account, groups=tuple(dict.fromkeys((*account.groups, *named.gids))))
    command = _command(spec, image, account, hostname, (dict(named.env) if named is not None else {}) | gpu_environment)
    granted = binds.grants(spec, owner)
    other_devices = _devices(spec, idmap, kept, named, rootful=rootful, filtered=rootful and has_cgroup)
    taken = {device.target for device in other_devices}  # who asks for /dev/dri has it
    return Resolved(
        spec=_hardened(spec),
        features=features,
        account=account,
        command=command,
        layers=(Layer(_skeleton()), *_layers(image, features, rootful), *_own_layers(driver, named)) if image.layers else (),
        host_entries=_host_entries() if image.is_host else (),
        idmap=idmap,
        shared_network=_hardened(spec).network not in ("none", "host"),
        rootful=rootful,
        owner=on_behalf(owner),
        capabilities=capabilities.mask(kept) & (features.capabilities if idmap is None else -1),
        seccomp=_filter(spec, kept, features),
        workdir=directory(spec.workdir or image.config.working_dir or "/"),
        hostname=hostname,
        files=_files(spec, hostname, image),
        mounts=_mounts(spec, image, owner),
        bind_maps={index: found.idmap for index, found in enumerate(granted) if found.idmap is not None},
        warnings=(*(found.warning for found in granted if found.warning), *(driver.warnings if driver is not None else ())),
        devices=(
            *STANDARD_DEVICES,
            *other_devices,
            *(node for node in gpu_nodes if node.target not in taken),
        ),
        device_links=gpu_links,
        driver_files=(*(driver.files if driver is not None else ()), *(named.files if named is not None else ())),
        driver_proc=driver.proc if driver is not None else (),
        driver_proc_files=driver.proc_files if driver is not None else (),
        has_cgroup=has_cgroup,
        stop_signal=stop_signal(spec, image),
        log_limit=max(spec.log_size * 4 // 9, 4096) if spec.keep_log else 0,  # of each of two files; one may grow by an eighth more
        health=effective(spec.health, image.config.health),
    )


def with_command(like: Resolved, spec: Spec, image: Image) -> Resolved:
    """What ``resolve`` says of ``spec``, where that differs from the spec of ``like`` in its arguments, entry point and variables alone,
    and has no devices. ``BadInput``"""
    return replace(like, spec=_hardened(spec), command=command_of(like, spec, image))


def command_of(like: Resolved, spec: Spec, image: Image) -> Command:
    """Its command alone. ``BadInput``"""
    return _command(spec, image, like.account, like.hostname, environment(()))


@functools.cache
def _skeleton_in(store: Path) -> Path:
    with paths.writing("the image store", store):
        make_private(store)
        for folder in ("etc", "proc", "sys", "dev"):
            paths.make(store / "skeleton" / folder, 0o755, 0o755)
        for name in ("hostname", "hosts", "resolv.conf"):
            os.close(os.open(store / "skeleton" / "etc" / name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
    return store / "skeleton"


def stop_signal(spec: Spec, image: Image) -> int:
    """What asks the program to end: the caller's word, else the image's, else SIGTERM."""
    return spec.stop_signal or image.config.stop_signal or int(signal.SIGTERM)


def _skeleton() -> Path:
    """A lowest layer with the places that every sandbox mounts on, so that making them costs no copy-up and shows in no upper."""
    return _skeleton_in(paths.store())


def _layers(image: Image, features: Features, rootful: bool) -> tuple[Layer, ...]:
    """One index of all of them, where there is one and this process can hold its mount."""
    merged = image.merged if rootful and features.detached_clones else None
    return image.layers if merged is None else (merged,)


def check_shared_network(spec: Spec) -> None:
    """``Unsupported`` for one that cannot enter a network that several share: that belongs to the user namespace that they share as well,
    and who sees the host's processes has one of its own."""
    if spec.namespaces.pid == "host" and spec.namespaces.user != "host" and spec.profile != "privileged" and spec.network != "host":
        raise Unsupported(
            "what sees the host's processes cannot share a network with others",
            subject="pid namespace",
            hint="leave the PID namespace new, or ask for the host's network as well",
        )


def _refuse(spec: Spec, features: Features, rootful: bool, owner: int | None) -> None:
    if spec.profile == "privileged" and (not rootful or owner):
        raise Unsupported("the privileged profile is for root only", subject="privileged", hint="use the default profile, or run as root")
    if spec.egress is not None and spec.egress.rate:
        admin = spec.profile == "privileged" or "CAP_NET_ADMIN" in capabilities.resolve(spec.profile, spec.cap_add, spec.cap_drop)
        if admin:
            hint = "leave NET_ADMIN or the rate out"
            raise Unsupported("a rate does not hold what may set links up as it likes, with NET_ADMIN", subject="net_rate", hint=hint)
    if spec.profile == "untrusted" and any(mount.idmap for mount in spec.mounts):
        raise Unsupported(
            "the untrusted profile gives no rights over a host directory",
            subject="idmap",
            hint="leave ':idmap' out, or use the default profile",
        )
    if spec.namespaces.user == "host" and (not rootful or owner):
        raise Unsupported("only root can do without a user namespace", subject="user namespace", hint="leave the user namespace new")
    if not rootful and not features.user_namespaces:
        from dockless.native.userns import namespace_problem

        raise Unsupported(
            "this user may not make user namespaces", subject="user namespace", hint=namespace_problem() or "run 'dockless doctor'"
        )
    if spec.namespaces.time == "new" and not features.time_namespace:
        raise Unsupported("this kernel has no time namespaces", subject="time namespace", hint="leave the time namespace to the host's")
    if spec.time_offset and spec.namespaces.time != "new":
        raise BadInput("a time offset needs a time namespace of its own", subject="time_offset", hint="ask for a new time namespace")
    if spec.time_offset and not 0 <= time.clock_gettime(time.CLOCK_MONOTONIC) + spec.time_offset <= _MAX_CLOCK:
        raise BadInput(
            f"a time offset of {spec.time_offset} s moves the clock out of its range",
            subject="time_offset",
            hint="no clock goes before the boot",
        )
    if owner and spec.seccomp not in ("", "unconfined"):
        raise Unsupported("only root can name a seccomp profile for another user's sandbox", subject=spec.seccomp, hint="leave it out")
    for limit in spec.rlimits:
        if limit.name not in RLIMITS:
            raise BadInput(f"unknown resource limit {limit.name!r}", subject=limit.name, hint=f"one of {', '.join(sorted(RLIMITS))}")
    available = os.sched_getaffinity(0)
    if not set(spec.cpus) <= available:
        raise BadInput(
            f"no such processor: {sorted(set(spec.cpus) - available)}", subject="cpus", hint=f"this host has {sorted(available)}"
        )
    for label in spec.hostname.split("."):
        if len(spec.hostname) > 64 or (spec.hostname and not all(c.isalnum() or c in "-_" for c in label)):
            raise BadInput(
                f"hostname {spec.hostname[:80]!r} is not usable", subject=spec.hostname[:80], hint="use up to 64 letters, digits and '-'"
            )


def _hardened(spec: Spec) -> Spec:
    """What a profile implies: ``untrusted`` has a read-only root, and no network but a private one that was asked for, from which it does
    not reach the host."""
    if spec.profile != "untrusted":
        return spec
    spec = replace(spec, root="readonly" if spec.root == "disk" else spec.root)
    if spec.network == "private":
        from dockless.sandbox.network.asked import what_may_leave

        return replace(spec, egress=what_may_leave(spec))
    return replace(spec, network="none", dns=(), dns_search=(), dns_options=())


def _id_map(spec: Spec, features: Features, owner: int | None) -> IdMap | None:
    if spec.namespaces.user == "host" or spec.profile == "privileged":
        return None
    if not features.user_namespaces:
        raise Unsupported("user namespaces are off on this host", subject="user namespace", hint="run 'dockless doctor'")
    return default_map(owner)


def _account(spec: Spec, image: Image, idmap: IdMap | None) -> Account:
    known = image.read_file("/etc/group")
    account = resolve_user(spec.user or image.config.user, image.read_file("/etc/passwd"), known)
    asked = [group if isinstance(group, int) else find_gid(group, known) for group in spec.groups]
    account = replace(account, groups=tuple(dict.fromkeys((*account.groups, *asked))))
    if idmap is not None:
        if idmap.single:
            idmap.require(account.uid, account.gid, asked)
            account = replace(account, groups=())
        idmap.require(account.uid, account.gid, account.groups)
    return account


def _with_groups(spec: Spec, owner: int | None, idmap: IdMap | None, account: Account) -> tuple[IdMap, Account]:
    """Those groups of the host that the owner is in herself, as supplementary groups of the program."""
    user = on_behalf(owner)
    if user is None or idmap is None:
        raise Unsupported("groups of the host are kept for another user alone", subject="host_groups", hint="leave host_groups out")
    strange = sorted({*spec.host_groups} - {user.gid, *user.groups})
    if strange:
        raise SandboxError(f"uid {user.uid} is not in group {strange[0]} of this host", subject="host_groups", hint="see id(1)")
    idmap = idmap.with_groups(spec.host_groups)
    if spec.profile == "untrusted":  # they are in its map, which jobs that start together share
        return idmap, account
    inside = (number for gid in spec.host_groups if (number := idmap.inside_gid(gid)) is not None)
    return idmap, replace(account, groups=tuple(dict.fromkeys((*account.groups, *inside))))


def on_behalf(uid: int | None) -> Owner | None:
    """The host user for whom root starts a sandbox, with her groups as they are now."""
    if not uid:
        return None
    import pwd

    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Owner(uid, uid)
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return Owner(uid, entry.pw_gid, tuple(g for g in groups if g != entry.pw_gid))


def _command(spec: Spec, image: Image, account: Account, hostname: str, extra: dict[str, str]) -> Command:
    config = image.config
    variables = {"PATH": DEFAULT_PATH, "HOSTNAME": hostname, "HOME": account.home}
    if spec.tty:
        variables["TERM"] = "xterm"
    variables |= dict(config.env)
    variables |= dict(spec.env)
    for name in UNSET_IN_SANDBOX:
        variables.pop(name, None)
    variables |= extra
    entrypoint = config.entrypoint if spec.entrypoint is None else spec.entrypoint
    arguments = spec.argv if spec.argv or spec.entrypoint is not None else config.cmd
    argv = (*entrypoint, *arguments)
    if not argv:
        raise BadInput(f"image {image.name} names no command", subject=image.name, hint="say what to run: dockless run IMAGE -- COMMAND")
    if not argv[0]:
        raise BadInput("the command is empty", hint="the first argument is the program to run")
    return Command(candidates(argv[0], variables.get("PATH", "")), argv, tuple(f"{k}={v}" for k, v in variables.items()))


def _filter(spec: Spec, kept: frozenset[str], features: Features) -> bytes | None:
    if spec.seccomp == "unconfined" or (spec.profile == "privileged" and not spec.seccomp):
        return None
    if not spec.seccomp:
        return default_filter(spec.profile == "untrusted", kept, features.machine)
    from dockless.sandbox.seccomp import seccomp

    return seccomp.compile_profile(spec.seccomp, kept, features.machine)


def _files(spec: Spec, hostname: str, image: Image) -> tuple[tuple[str, str], ...]:
    files = (
        ("/etc/hostname", hostname + "\n"),
        ("/etc/hosts", _hosts(spec, hostname)),
        ("/etc/resolv.conf", _resolv_conf(_hardened(spec))),
    )
    if not image.is_host:
        return files
    if spec.hosts and not os.path.isfile("/etc/hosts"):
        hint = "make an empty one on the host, or use an image"
        raise Unsupported("this host has no /etc/hosts, so its image `host` has none either", subject="add_hosts", hint=hint)
    # The host's /etc is read-only: nothing can be made there to mount on, but a link in it may lead to a place that is ours, such as /run.
    return tuple((os.path.realpath(path), text) for path, text in files if os.path.isfile(path))


def _hosts(spec: Spec, hostname: str) -> str:
    if spec.network != "private":
        return hosts_file(hostname, spec.domainname, spec.hosts)
    from dockless.sandbox.network.nameservers import gateway, knows

    known = bool(spec.hostname) and knows(spec)
    return hosts_file("" if known else hostname, spec.domainname, spec.hosts, gateway(spec))


def _resolv_conf(spec: Spec) -> str:
    if spec.network == "none":
        return ""
    from dockless.sandbox.network.nameservers import text_for

    return text_for(spec)


def _mounts(spec: Spec, image: Image, owner: int | None) -> tuple[Mount, ...]:
    """Named volumes get their paths. An image's VOLUMEs lie in the private upper like everything else; below a read-only root they get
    memory."""
    mounts: list[Mount] = []
    for mount in spec.mounts:
        target = directory(mount.target)
        if paths.is_the_sandboxs(target):
            hint = f"{paths.SANDBOXS_OWN} are the sandbox's own"
            raise BadInput(f"nothing can be mounted at {mount.target}", subject=mount.target, hint=hint)
        if mount.kind == "volume":
            mounts.append(replace(mount, source=volume_path(mount.source, owner), target=target, idmap=False))
        elif mount.kind == "bind" and not mount.source.startswith("/"):
            raise BadInput(
                f"mount source {mount.source!r} is not absolute", subject=mount.source, hint="start it with '/', or use a named volume"
            )
        else:
            mounts.append(replace(mount, target=target))
    taken: set[str] = set()
    for mount in mounts:
        if mount.target in taken:
            raise BadInput(f"two mounts at {mount.target}", subject="mounts", hint="the second would cover the first: leave one out")
        taken.add(mount.target)
    if _hardened(spec).root == "readonly":
        mounts += [
            Tmpfs(path, mode=0o755)
            for path in image.config.volumes
            if path not in taken and not paths.is_the_sandboxs(directory(path)) and not path.startswith("/dev/")
        ]
    return tuple(mounts)


def _host_entries() -> tuple[HostEntry, ...]:
    entries = []
    for path in _HOST_DIRECTORIES:
        if os.path.islink(path):
            entries.append(HostEntry(path, os.readlink(path)))
        elif os.path.isdir(path):
            entries.append(HostEntry(path))
    return tuple(entries)


def _devices(
    spec: Spec, idmap: IdMap | None, kept: frozenset[str], named: Given | None, *, rootful: bool, filtered: bool
) -> tuple[Device, ...]:
    given = named.devices if named is not None else ()
    if not spec.devices and not given:
        return ()
    from dockless.sandbox import devices

    makes_nodes = idmap is None and "CAP_MKNOD" in kept
    return devices.given(spec, idmap, given, rootful=rootful, filtered=filtered, makes_nodes=makes_nodes)


def _gpus(
    spec: Spec, image: Image, idmap: IdMap | None, account: Account, rootful: bool
) -> tuple[tuple[Device, ...], tuple[tuple[str, str], ...], dict[str, str], Injection | None]:
    uuids, devices = spec.uuids, spec.leased_devices
    if not uuids:
        alone = None
        if asks_for_files_alone((*image.config.env, *spec.env)):
            from dockless.sandbox.gpus.injection import inject_files_alone

            alone = inject_files_alone(image, dict(spec.env))
        return (), (), environment((), devices), alone
    from dockless.sandbox import gpu_nodes
    from dockless.sandbox.gpus import beside, gpu, injection

    with gpu.session():
        leased = gpu.find(uuids, gpu.inventory(processes=False, links=False, only=uuids))
        variables = dict((*image.config.env, *spec.env))
        there = gpu.device_nodes(leased, graphics="graphics" in injection.wanted_capabilities(variables))
        nodes = gpu_nodes.given((*there, *beside.device_nodes(variables)), idmap, account, rootful=rootful)
        driver = injection.inject(image, dict(spec.env), leased)
    return nodes, gpu.links(leased, there), environment(leased, devices), driver


def _named(spec: Spec, image: Image, owner: int | None, below: tuple[Layer, ...]) -> Given | None:
    """What devices by names bring, those that are leased and those of ``spec.cdi``. ``BadInput``, ``Unsupported`` for a sandbox that can
    have no devices, and asks for some."""
    if spec.cdi or spec.devices:
        from dockless.sandbox.devices import refuse

        refuse(spec, owner)
    names = (*spec.leased_devices, *spec.cdi)
    if not names:
        return None
    from dockless.sandbox.gpus import cdi

    return cdi.given(names, image, below)


def _own_layers(*found: Injection | Given | None) -> tuple[Layer, ...]:
    return tuple(one.layer for one in found if one is not None and one.layer is not None)
