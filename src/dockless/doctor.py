"""``dockless doctor``: what this machine can do for this user, asked of the machine, and for each thing it cannot the exact next step.

Every check is a small function that returns one ``Finding``. ``ok``: it works. ``note``: dockless runs without it, less
well. ``fail``: no sandbox can run. The last check starts a real sandbox, so that the verdict is never a guess.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from dockless.base import paths
from dockless.base.dataclass import dataclass
from dockless.base.path import Path
from dockless.base.typing import TYPE_CHECKING, Literal
from dockless.base.units import format_size
from dockless.errors import BadInput, DocklessError

if TYPE_CHECKING:
    from dockless.sandbox.gpus.nodes import DeviceNode

Status = Literal["ok", "note", "fail"]
ROOM_WANTED = 5 << 30
_CONTROLLERS = ("cpu", "memory", "io", "pids", "cpuset")

PROFILE = """abi <abi/4.0>,
include <tunables/global>

profile dockless-launcher {path} flags=(unconfined) {{
  userns,
  include if exists <local/dockless-launcher>
}}
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """``what``: the state in words; ``next_step``: what to do about it, empty where there is nothing to do."""

    name: str
    status: Status
    what: str
    next_step: str = ""


def examine() -> list[Finding]:
    """All checks, in the order in which a sandbox needs them. A check that breaks is a finding itself."""
    return [_checked(name, check) for name, check in CHECKS]


def can_run(findings: list[Finding]) -> bool:
    """Whether a sandbox can run here."""
    return all(finding.status != "fail" for finding in findings)


def lines(findings: list[Finding], *, only_problems: bool = False) -> list[str]:
    """The findings as the command line prints them."""
    width = max(len(finding.name) for finding in findings)
    found = []
    for finding in findings:
        if only_problems and finding.status == "ok":
            continue
        found.append(f"{finding.status:<5} {finding.name:<{width}}  {finding.what}")
        margin = " " * (width + 8)
        first, *more = finding.next_step.splitlines() or [""]
        if first:
            found.append(f"{margin}next: {first}")
            found += [f"{margin}      {line}".rstrip() for line in more]
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    able = "can run sandboxes." if can_run(findings) else "cannot run sandboxes yet: see fail above."
    return [*found, "", f"As {who}, this machine {able}"]


def _checked(name: str, check: Callable[[], tuple[Status, str, str]]) -> Finding:
    try:
        return Finding(name, *check())
    except DocklessError as error:
        return Finding(name, "fail", str(error), error.hint)
    except Exception as error:
        return Finding(name, "fail", f"{type(error).__name__}: {error}", "this check is broken here; please report it")


def _extension() -> tuple[Status, str, str]:
    from dockless import native

    try:
        count = len(native.operations())
    except ImportError as error:
        return (
            "fail",
            f"the native extension cannot be imported: {error}",
            "install the wheel again (pip install --force-reinstall dockless), or make build",
        )
    return "ok", f"native extension with {count} operations", ""


def _kernel() -> tuple[Status, str, str]:
    from dockless.sandbox import features

    found = features.probe()
    found.require_floor()
    able = [
        name
        for name, there in (("lowerdir+ (6.7)", found.overlay_lowerdir_plus), ("layers by fd (6.15)", found.overlay_detached_layers))
        if there
    ]
    return "ok", f"Linux {found.release} on {found.machine}{', overlay with ' + ' and '.join(able) if able else ''}", ""


def _user_namespaces() -> tuple[Status, str, str]:
    from dockless.native.userns import namespace_problem
    from dockless.sandbox import features

    if features.probe().user_namespaces:
        return "ok", "can be made", ""
    problem = namespace_problem()
    return (
        "fail",
        "cannot be made by this user",
        problem or "a container or a seccomp filter around this process forbids them: run it outside",
    )


def _apparmor() -> tuple[Status, str, str]:
    from dockless.native import LAUNCHER_PATH

    try:
        with open("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") as setting:
            restricted = setting.read().strip() == "1"
    except OSError:
        return "ok", "does not restrict user namespaces here", ""
    if not restricted:
        return "ok", "lets everybody make user namespaces (kernel.apparmor_restrict_unprivileged_userns=0)", ""
    if os.geteuid() == 0:
        return "ok", "restricts user namespaces of ordinary users; root is not concerned", ""
    from dockless.sandbox import features

    if features.probe().user_namespaces:
        return "ok", f"restricts user namespaces, and has a rule for {LAUNCHER_PATH}", ""
    file = "/etc/apparmor.d/dockless-launcher"
    step = f"as root, write this to {file}, then: apparmor_parser -r {file}\n{PROFILE.format(path=LAUNCHER_PATH)}"
    return "fail", "kernel.apparmor_restrict_unprivileged_userns=1 and there is no rule for dockless", step


def _tracing() -> tuple[Status, str, str]:
    with open("/proc/sys/fs/suid_dumpable") as setting:
        value = setting.read().strip()
    if value != "1":
        return "ok", f"what changes its ids cannot be traced meanwhile (fs.suid_dumpable={value})", ""
    return "note", "fs.suid_dumpable=1: for a moment a program in a sandbox can trace what enters it", "as root: sysctl fs.suid_dumpable=0"


def _ids() -> tuple[Status, str, str]:
    from dockless.base.idmaps import default_map, range_problem

    idmap = default_map()
    count = sum(piece.count for piece in idmap.uids)
    if not idmap.single:
        return "ok", f"{count} user ids in a sandbox", ""
    problem = range_problem(os.geteuid())
    return (
        "note",
        "one user id in a sandbox: images with several users, and apt inside, will fail",
        problem or "see /etc/subuid and /etc/subgid",
    )


def _cgroups() -> tuple[Status, str, str]:
    from dockless.cgroups import find_delegation

    place = find_delegation(ask_systemd=True)
    if place.path is None:
        return "note", f"no limits and no accounts: {place.why}", place.hint
    missing = [name for name in _CONTROLLERS if name not in place.controllers]
    where = f"{place.kind} at {place.path}, controllers: {' '.join(sorted(place.controllers)) or 'none'}"
    if not missing:
        return "ok", where, ""
    problem = place.missing(missing[0])
    return "note", f"{where}; missing: {' '.join(missing)}", problem.hint or place.hint


def _device_filter() -> tuple[Status, str, str]:
    from dockless import native
    from dockless.cgroups import find_delegation

    if os.geteuid() != 0:
        return "ok", "not for ordinary users: only the device nodes that were granted are there at all", ""
    if find_delegation(ask_systemd=False).path is None:
        return "note", "no control group to attach it to", "see control groups above"
    try:
        os.close(native.bpf_prog_load_cgroup_device(b"\xb7\0\0\0\1\0\0\0\x95\0\0\0\0\0\0\0"))
    except OSError as error:
        return "note", f"no eBPF device filter: {error.strerror}", "a kernel with CONFIG_CGROUP_BPF, and no seccomp filter around dockless"
    return "ok", "eBPF programs can be loaded", ""


def _overlay() -> tuple[Status, str, str]:
    from dockless.sandbox import features

    if features.probe().overlay:
        return "ok", f"can be mounted by {'root' if os.geteuid() == 0 else 'this user'}", ""
    step = (
        "as root: modprobe overlay" if os.geteuid() == 0 else "as root: modprobe overlay; for ordinary users it needs Linux 5.11 or newer"
    )
    return "note", "cannot be mounted: only the pseudo-image `host` runs", step


def _idmapped() -> tuple[Status, str, str]:
    from dockless.sandbox import features

    if os.geteuid() != 0:
        return "ok", "not for ordinary users: their layers belong to them", ""
    if features.probe().idmapped_mounts:
        return "ok", "can be made", ""
    return "note", "this kernel has none", "boot Linux 5.12 or newer (5.19 for overlay layers)"


def _networks() -> tuple[Status, str, str]:
    if os.geteuid() != 0:
        return _networks_of_user()
    from dockless.sandbox.network import netlink, sysctls
    from dockless.sandbox.network.host import Host

    if not Host().can_bridge():
        return "note", "this kernel, or a container around this process, has no bridges: sandboxes have the host's network, or none", ""
    try:
        Host().netlink(netlink.NETFILTER).close()
    except OSError as error:
        return "note", f"this kernel has no nftables: {error.strerror}", "as root: modprobe nf_tables"
    if sysctls.forwards(4):
        return _networks_beside_others()
    step = f'as root: sysctl -w {sysctls.FORWARDING[4]}=1, or [networks] forward = "ipv4" in {paths.config_file()}'
    return "note", "bridges can be made; this host does not forward packets, so networks that lead out are an error", step


def _networks_beside_others() -> tuple[Status, str, str]:
    from dockless.sandbox.network.barriers import barriers
    from dockless.sandbox.network.host import Host
    from dockless.sandbox.network.model import DEFAULT, Network
    from dockless.sandbox.network.records import every

    # The default network before its first use has the name of its bridge already.
    networks = every() or [Network(DEFAULT, ("0.0.0.0/0",), (), "dockless0", isolated=True)]
    found = barriers(Host(), networks)
    if not found:
        return "ok", "bridges can be made, and lead out", ""
    names = sorted({one.network for one in found})
    what = f"bridges can be made; {found[0].where}, {found[0].by}, stops what leaves and reaches {', '.join(names[:5])}"
    return "note", what, f"as root: {'; '.join(dict.fromkeys(text for one in found for text in one.commands))}"


def _networks_of_user() -> tuple[Status, str, str]:
    from dockless.sandbox.network import pasta
    from dockless.sandbox.run import own_networks

    why = own_networks.why_none()
    try:
        found = pasta.installed()
    except DocklessError as error:
        left = "internal networks, the host's, or none" if not why else "the host's network, or none"
        return "note", f"{error}: a user's sandboxes have {left}", error.hint
    if why:
        return "note", f"bridge alone, by {found.path}; networks that are made are errors: {why}", ""
    if not found.drops_loopback:
        step = "for sandboxes with NET_RAW or NET_ADMIN, install passt of August 2024 or newer"
        return "ok", f"can be made, and lead out by {found.path}, which is old", step
    return "ok", f"can be made, and lead out by {found.path}", ""


def _disk() -> tuple[Status, str, str]:
    from dockless.sandbox.run import project

    if os.geteuid() != 0:
        return "ok", "only root can limit what is written to it", ""
    why = project.lacking(_existing(paths.state()))
    if not why:
        return "ok", "the kernel holds limits on it, by project quotas", ""
    step = "mount it with prjquota (docs/queue.md); until then limits of jobs are measured, and `run --disk` is an error"
    return "note", why, step


def _gpus() -> tuple[Status, str, str]:
    from dockless.sandbox.gpus import gpu

    try:
        found = gpu.inventory(links=False)
    except DocklessError as error:
        return "note", str(error), error.hint
    if not found:
        return "note", "the driver is there, GPUs are not", "nvidia-smi -L lists what the driver sees"
    models = ", ".join(sorted({f"{gpu.model}, {format_size(gpu.memory)}" for gpu in found}))
    if found[0].simulated:
        return "note", f"{len(found)} simulated GPUs ({models}): DOCKLESS_SIMULATED_GPUS is set", "unset it to see real ones"
    return _opened(f"{len(found)} ({models}), driver {gpu.driver().version}", gpu.device_nodes(found))


def _opened(what: str, nodes: Sequence[DeviceNode]) -> tuple[Status, str, str]:
    """Who may open the nodes of GPUs."""
    from dockless.sandbox import gpu_nodes

    closed = gpu_nodes.closed(nodes)
    if not closed:
        return "ok", f"{what}; every user may open their nodes without a lease (docs/security.md says how to close them)", ""
    if os.geteuid() == 0:
        return "ok", f"{what}; their nodes are closed: users get them by leases of root's daemon", ""
    return "note", f"{what}; their nodes are closed to some users ({closed[0]})", "dockless submit asks root's daemon for GPUs"


def _daemon() -> tuple[Status, str, str]:
    from dockless.sched import connect

    try:
        with connect(timeout=3.0) as queue:
            info = queue.ping()
    except DocklessError as error:
        return "note", f"{error} (only the queue needs it)", error.hint
    if info.outage:
        return "note", info.outage, "make room on the disk of the daemon's directory"
    return "ok", f"process {info.pid} at {info.socket}{', GPUs simulated' if info.simulated else ''}", ""


def _settings() -> tuple[Status, str, str]:
    from dockless.base import settings, settings_told
    from dockless.sandbox.gpus.host_classes import has_class
    from dockless.sched.engine.reading import startable

    path = paths.config_file()
    kinds = settings.load(path)["gpus.devices"]
    try:
        startable(path)
    except BadInput as error:
        return "note", f"{error} (the daemon does not start with it)", error.hint
    unknown = settings_told.without_effect(path) + settings_told.unknown_classes(has_class(kinds), path)
    if missing := settings_told.missing_driver(path):
        step = "name the directory where the driver is installed, or leave gpus.driver_root out"
        step += "; correct or remove the others: they have no effect" if unknown else ""
        return "note", "; ".join(missing + unknown), step
    if unknown:
        return "note", "; ".join(unknown), "correct or remove these: they have no effect"
    if kinds:
        from dockless.sandbox.gpus import handed_out

        if missing := handed_out.missing(kinds, handed_out.inventory(kinds)):
            return "note", "; ".join(missing), "have the vendor's tool write its file anew, or leave the kind out of gpus.devices"
        if unleased := handed_out.in_words(handed_out.unleased(kinds)):
            return "note", "; ".join(unleased), "a node that all devices of a kind have belongs into its file's own containerEdits"
    return "ok", str(path) if path.exists() else f"{path} is not there: the defaults hold", ""


def _existing(place: Path) -> Path:
    """It, or where it is going to be made."""
    return next(parent for parent in (place, *place.parents) if parent.exists())


def _store() -> tuple[Status, str, str]:
    import shutil

    place = paths.store()
    there = _existing(place)
    if not os.access(there, os.W_OK | os.X_OK):
        return "fail", f"{there} cannot be written", "set DOCKLESS_HOME to a directory of yours"
    free = shutil.disk_usage(there).free
    what = f"{place}, {format_size(free)} free"
    if free < ROOM_WANTED:
        return "note", what, "images of GPU frameworks have 5 to 20 GiB: make room, or set DOCKLESS_HOME to another disk"
    return "ok", what, ""


def _layers() -> tuple[Status, str, str]:
    from dockless.images.layers import erofs

    place = paths.store()
    there = next(parent for parent in (place, *place.parents) if parent.exists())
    if os.geteuid() != 0:
        return "ok", "written as files: only root may mount a layer from an index", ""
    why = erofs.why_not(there)
    if not why:
        return "ok", "indexed, not unpacked: this kernel mounts EROFS from files", ""
    step = "Linux 6.12 or newer with EROFS (as root: modprobe erofs), and the store on ext4, xfs or btrfs; everything works without, slower"
    return "note", f"written as files, not indexed: {why}", step


def _registries() -> tuple[Status, str, str]:
    from dockless.images.registry import Configuration, Credentials, credentials

    try:
        configuration = Configuration.load()
        readable = [path for path in Credentials.load().files if credentials.read(path) is not None]
    except DocklessError as error:
        return "note", f"no pull and no push: {error}", error.hint
    files = ", ".join(map(str, configuration.files)) or "no registries.conf"
    search = "docker.io" if configuration.search is None else " ".join(configuration.search) or "none"
    what = f"{files}; short names mean {search}; logins in {', '.join(map(str, readable)) or 'no file'}"
    if configuration.warnings:
        return "note", f"{what}; {'; '.join(configuration.warnings[:3])}", "correct these lines; they have no effect as they are"
    open_to_all = [path for path in readable if path.stat().st_mode & 0o077]
    if open_to_all:
        return "note", what, f"others can read the passwords in it: chmod 600 {open_to_all[0]}"
    return "ok", what, ""


def _leftovers() -> tuple[Status, str, str]:
    from dockless.sandbox.network.records import table_name
    from dockless.sandbox.run.reconcile import reconcile

    found = reconcile()
    table = table_name()
    removed = [name for name in found if name != table]
    said = [f"wrote the nftables table {table} anew, which another program had changed"] if table in found else []
    if removed:
        said += [f"removed what {len(removed)} killed runs had left: {', '.join(removed[:5])}{', …' if len(removed) > 5 else ''}"]
    return "ok", "; ".join(said) or "nothing lies about of runs that were killed", ""


def _trial() -> tuple[Status, str, str]:
    from dockless._call import run

    result = run(["true"], stdin=-3, stdout=-3, stderr=-3, timeout=20)
    if result.returncode == 0:
        return "ok", f"`true` ran in {result.duration * 1000:.1f} ms", ""
    return "fail", f"`true` failed in a sandbox: {result.why}", "dockless run --explain --time -- true shows each step"


CHECKS: tuple[tuple[str, Callable[[], tuple[Status, str, str]]], ...] = (
    ("extension", _extension),
    ("kernel", _kernel),
    ("user namespaces", _user_namespaces),
    ("AppArmor", _apparmor),
    ("tracing", _tracing),
    ("user ids", _ids),
    ("control groups", _cgroups),
    ("device filter", _device_filter),
    ("overlay", _overlay),
    ("idmapped mounts", _idmapped),
    ("disk limits", _disk),
    ("networks", _networks),
    ("GPUs", _gpus),
    ("settings", _settings),
    ("daemon", _daemon),
    ("image store", _store),
    ("layers", _layers),
    ("registries", _registries),
    ("leftovers", _leftovers),
    ("a sandbox", _trial),
)
