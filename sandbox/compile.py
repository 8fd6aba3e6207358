"""From a resolved spec to a plan. Pure: the same input gives the same plan, on any machine.

::

    keeper   in the host's namespaces: sources of mounts, as root also the root file system; the user namespace
    CLONE    the new namespaces, straight into the cgroup
    init     identity, root file system, /proc /sys /dev, mounts, hostname, loopback, pivot_root, masks
    SPAWN
    program  limits, directory, ids, capabilities, no_new_privs, seccomp
    EXEC
"""

from __future__ import annotations

import struct

from dockless.base.dataclass import replace
from dockless.sandbox import rootfs
from dockless.sandbox.plan.builder import NEW_NS, PRIVATE, RDONLY, RECURSIVE, Builder, Section
from dockless.sandbox.plan.plan import PTMX, SLOT_CGROUP, SLOT_DOOR, Check, Op, Plan
from dockless.sandbox.resolved import Resolved
from dockless.sandbox.spec import RLIMITS

USERNS_LABEL = "user namespace"
NETWORK_LABEL = "network that several sandboxes share"
OWNER_LABEL = "who says what runs"
ABOVE_LABEL = "zygote's PID namespace"
_SIGKILL = 9
_ALL_CAPS = (1 << 64) - 1


def compile_plan(r: Resolved) -> Plan:
    """The plan of one sandbox. The slots labelled ``USERNS_LABEL``, ``NETWORK_LABEL``, ``OWNER_LABEL`` and ``ABOVE_LABEL``, if there are
    such, and those of ``Plan.held`` and ``Plan.maps`` are for the caller to fill. Errors: ``Unsupported``."""
    r.features.require_floor()
    b = Builder()
    userns = b.slot(USERNS_LABEL) if r.idmap is not None else -1
    mounter = b.keeper if r.rootful else b.init

    b.keeper.add("SETSID")
    if not r.rootful:
        _enter(b, r, userns)
    if r.waits is None or r.rootful:
        _own_pipes(mounter, r)
    sources = rootfs.bind_sources(b, mounter, r, userns)
    host = rootfs.host_sources(b, mounter, r)
    nodes = rootfs.device_sources(b, mounter, r)
    driver = rootfs.driver_sources(b, mounter, r)
    root = rootfs.root_mount(b, mounter, r, userns)
    if r.rootful:
        _enter(b, r, userns)

    b.init.add("MOVE_MOUNT", root, a="/")
    if not r.layers:
        rootfs.host_skeleton(b.init, r, root, host)
    scratch, empty = rootfs.scratch_mount(b, root)
    rootfs.network_files(b, r, root, scratch)
    rootfs.driver_files(b, r, root, driver)
    rootfs.requested_mounts(b, r, root, sources, empty)
    rootfs.kernel_file_systems(b, r, root)
    rootfs.driver_proc(b, r, root, driver)
    dev = rootfs.devices(b, r, root, nodes)
    rootfs.requested_devices(b, r, dev, sources)
    if r.idmap is None and r.waits is None:
        b.init.add("NULL_STREAMS", dev, a="null")
    if r.workdir != "/":
        b.init.add("MKDIR", root, a=r.workdir, x=0o755)
    _names(b, r)
    if r.spec.root == "readonly":
        b.init.add("MOUNT_ATTR", root, a="", x=RDONLY)
    rootfs.let_go(b)
    b.init.add("PIVOT", root)
    rootfs.masks(b, r, empty, nodes[0][0])
    if r.waits is not None:
        _wait(b, r, r.waits, dev)
    if r.spec.tty:
        b.init.add("TERMINAL", SLOT_DOOR, a=PTMX, x=r.account.uid | r.account.gid << 32)
    _program(b, r)
    ops = (*b.keeper.ops, *b.init.ops, Op("SPAWN"), *b.program.ops)
    plan = Plan(
        ops, r.command, {**b.slots, SLOT_CGROUP: "cgroup"}, r.spec.timeout, r.spec.grace, r.stop_signal, r.log_limit, b.held, b.maps,
        r.spec.idle_timeout, r.spec.ttl,
    )  # fmt: skip
    return plan if r.health is None else replace(plan, health=_check(plan, r))


def _check(plan: Plan, r: Resolved) -> Check:
    assert r.health is not None
    from dockless.sandbox.enter import Entry, compile_entry

    entry = Entry(tuple(r.health.argv), timeout=r.health.timeout, ends=True)
    return Check(compile_entry(plan, entry, has_cgroup=r.has_cgroup), r.health.interval, r.health.start_period, r.health.retries)


def _wait(b: Builder, r: Resolved, seconds: float, dev: int) -> None:
    """Until somebody says what runs, and on which streams."""
    owner = _owner(b)
    if r.lends_root:
        b.init.add("HAND_ROOT", owner)
    b.init.add("BARRIER", owner, x=int(seconds * 1e9))
    if not r.rootful:  # else whoever takes it gives the pipes away: their owner is not in the user namespace
        _own_pipes(b.init, r)
    if r.idmap is None:
        b.init.add("NULL_STREAMS", dev, a="null")


def _owner(b: Builder) -> int:
    known = next((slot for slot, label in b.slots.items() if label == OWNER_LABEL), -1)
    return b.slot(OWNER_LABEL) if known < 0 else known


def _own_pipes(mounter: Section, r: Resolved) -> None:
    """Where the ids are: of the host, in the keeper as root; of the user namespace, in init."""
    uid: int | None = r.account.uid
    gid: int | None = r.account.gid
    if r.idmap is not None and r.rootful:
        uid, gid = r.idmap.outside_uid(r.account.uid), r.idmap.outside_gid(r.account.gid)
    if uid is not None and gid is not None and (uid or gid):
        mounter.add("OWN_PIPES", x=uid | gid << 32)


def _enter(b: Builder, r: Resolved, userns: int) -> None:
    """Into the namespaces: the user namespace first, because it owns the others."""
    ns, score = r.spec.namespaces, r.spec.oom_score_adj
    if score is not None and score < 0:
        b.keeper.add("WRITE", a="/proc/self/oom_score_adj", b=str(score))  # only real root may lower it
    if r.spec.seccomp or r.seccomp is None:
        # dockless's own filter refuses keyctl(2), so the caller's keys are out of reach; and a user may have 200 keyrings only.
        b.keeper.add("KEYRING")
    if userns >= 0:
        b.keeper.add("SETNS", userns, x=NEW_NS["user"])
    if ns.time == "new":
        b.keeper.add("UNSHARE", x=NEW_NS["time"])
        if r.spec.time_offset:
            offsets = f"monotonic {r.spec.time_offset} 0\nboottime {r.spec.time_offset} 0\n"
            b.keeper.add("WRITE", a="/proc/self/timens_offsets", b=offsets)
    kinds = ["mount"] + [kind for kind in ("pid", "uts", "ipc") if getattr(ns, kind) == "new"]
    joins = r.shared_network and r.spec.network != "host"
    if joins:
        b.keeper.add("SETNS", b.slot(NETWORK_LABEL), x=NEW_NS["net"])
    elif r.spec.network != "host":
        kinds.append("net")
    above = b.slot(ABOVE_LABEL) if r.below else -1
    b.keeper.add("CLONE", SLOT_CGROUP if r.has_cgroup else -1, above, x=sum(NEW_NS[kind] for kind in kinds))
    if joins:
        kinds.append("net")
    if score is not None and score >= 0:
        b.init.add("WRITE", a="/proc/self/oom_score_adj", b=str(score))
    b.init.add("SET_IDS", a=int(r.setgroups_denied))
    b.init.add("PDEATHSIG", x=_SIGKILL)
    if ns.pid != "new":
        b.init.add("SUBREAPER")
    if ns.cgroup == "new":
        b.init.add("UNSHARE", x=NEW_NS["cgroup"])
        kinds.append("cgroup")
    b.init.add("HAND_OVER", x=sum(NEW_NS[kind] for kind in kinds))
    if r.hands_over:
        b.init.add("HAND_OVER", _owner(b), x=sum(NEW_NS[kind] for kind in kinds))
    b.init.add("MOUNT_ATTR", a="/", b=PRIVATE, c=RECURSIVE)


def _names(b: Builder, r: Resolved) -> None:
    if r.spec.namespaces.uts == "new":
        b.init.add("HOSTNAME", a=r.hostname)
        if r.spec.domainname:
            b.init.add("DOMAINNAME", a=r.spec.domainname)
    if r.spec.network == "none":
        b.init.add("LOOPBACK_UP")


def _program(b: Builder, r: Resolved) -> None:
    """What only the program itself gets. Everything that needs a right comes before the right is dropped."""
    program, spec = b.program, r.spec
    program.add("SIGNALS")
    program.add("SETSID", x=int(spec.tty))
    if spec.cpus:
        mask = sum(1 << cpu for cpu in spec.cpus)
        program.add("AFFINITY", a=mask.to_bytes((mask.bit_length() + 63) // 64 * 8, "little"))
    program.add("UMASK", x=0o022 if spec.umask is None else spec.umask)
    program.add("CHDIR", a=r.workdir)
    for limit in spec.rlimits:  # after what opens a file: it is the program's limit, not ours
        values = struct.pack("<QQ", limit.soft & _ALL_CAPS, limit.hard & _ALL_CAPS)
        program.add("RLIMIT", a=values, c=RLIMITS[limit.name])
    program.add("BOUNDING", x=r.capabilities)
    account = r.account
    groups = b"".join(g.to_bytes(4, "little") for g in account.groups)
    program.add("SET_IDS", a=int(r.setgroups_denied), b=groups, x=account.uid | account.gid << 32)
    if spec.namespaces.pid != "new":
        program.add("PDEATHSIG", x=_SIGKILL)
    program.add("CAPS", x=r.capabilities if account.uid == 0 else 0)
    if spec.profile != "privileged":
        program.add("NO_NEW_PRIVS")
    if r.seccomp:
        program.add("SECCOMP", a=r.seccomp)
