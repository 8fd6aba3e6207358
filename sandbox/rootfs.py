"""The operations that make a root file system: where it comes from, what is writable, what is mounted in it.

::

    /            overlay: image layers (read-only, owners shifted by the id map) + a private upper
                 host:    an empty tmpfs with the host's system directories read-only
    /proc /sys   fresh ones of the new namespaces
    /dev         tmpfs with a few device nodes bound in, devpts, mqueue, shm
    /etc/…       hostname, hosts, resolv.conf
    driver       with a GPU: the files of its driver, read-only, and a /proc/driver that knows this GPU alone
    mounts       what the caller asked for
"""

from __future__ import annotations

from dockless.base.idmaps import NOBODY
from dockless.errors import Unsupported
from dockless.images.layers.layers import INDEX_FILE, MERGED_FILE, Layer
from dockless.sandbox.plan.builder import (
    HOST_PROC,
    IDMAP,
    NEW_NS,
    NO_SYMLINKS,
    NODEV,
    NOEXEC,
    NOSUID,
    PRIVATE,
    RDONLY,
    RECURSIVE,
    TREE_CLONE,
    Builder,
    Section,
)
from dockless.sandbox.plan.plan import DIRECTORY
from dockless.sandbox.resolved import DRIVER_LAYER, Device, HostFile, Resolved
from dockless.sandbox.spec import Mount

O_PATH = 0x200000
O_CREAT = 0x40

MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi",
    "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware", "/sys/fs/selinux",
)  # fmt: skip
READONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
LINKS = (
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/ptmx", "pts/ptmx"),
)
SHM_DEFAULT = 1 << 30
HELD_MAX = 40
"""Layers of one sandbox that are clones of mounts which this process holds: the launcher takes 64 descriptors. What lies above them is
mounted anew."""


def host_identity(section: Section, r: Resolved, *, on: bool) -> None:
    """Open files as the owner of the sandbox, or as root again."""
    if r.owner is None:
        return
    who = r.owner if on else None
    uid, gid, groups = (who.uid, who.gid, who.groups) if who else (0, 0, ())
    section.add("FS_IDS", b=b"".join(g.to_bytes(4, "little") for g in groups), x=uid | gid << 32)


def bind_sources(b: Builder, section: Section, r: Resolved, userns: int) -> dict[int, int]:
    """Clones of everything that is going to be bound in, opened with the rights of whoever asked: index in ``r.mounts`` → slot. A volume
    is opened with our own: it lies where she cannot go."""
    slots = {}

    def clone(kind: str) -> None:
        for index, mount in enumerate(r.mounts):
            if mount.kind != kind:
                continue
            attributes = NODEV | NOSUID | (RDONLY if mount.readonly else 0)
            tree = b.clone_tree(section, mount.source, recursive=mount.recursive, attributes=attributes, label=f"{kind} {mount.source}")
            slots[index] = tree
            if mount.idmap:
                if not r.rootful or r.owner is not None or userns < 0:
                    raise Unsupported(
                        f"cannot map owners of {mount.source}",
                        subject=mount.source,
                        hint="an idmapped bind needs root and a user namespace of the sandbox's own",
                    )
                section.add("MOUNT_ATTR", tree, userns, a="", x=IDMAP, c=RECURSIVE if mount.recursive else 0)
            elif (found := r.bind_maps.get(index)) is not None:
                section.add("MOUNT_ATTR", tree, userns if found == r.idmap else b.namespace(found), a="", x=IDMAP)

    clone("volume")
    host_identity(section, r, on=True)
    clone("bind")
    host_identity(section, r, on=False)
    return slots


def root_mount(b: Builder, section: Section, r: Resolved, userns: int) -> int:
    """The root file system, attached nowhere yet: its slot."""
    if not r.layers:
        return _empty_root(b, section, r)
    attach = not r.features.overlay_detached_layers
    if attach and r.rootful:
        section.add("UNSHARE", x=NEW_NS["mount"])
        section.add("MOUNT_ATTR", a="/", b=PRIVATE, c=RECURSIVE)
    lowers = [_layer(b, section, r, layer, userns, attach) for layer in r.layers]
    directory = b.slot("the sandbox's directory")
    section.add("OPEN", slot_out=directory, a=DIRECTORY, x=O_PATH)
    upper, work = _upper(b, section, r, directory, attach)
    options = {"upperdir": f"/proc/self/fd/{upper}", "workdir": f"/proc/self/fd/{work}"}
    if r.rootful:
        # Whatever this kernel's defaults are: an upper says all that it changes, so that it can become a layer.
        options |= {"redirect_dir": "off", "metacopy": "off"}
    flags = [] if r.rootful else ["userxattr"]
    if r.spec.root == "disk":
        flags.append("volatile")
    if r.features.overlay_lowerdir_plus:
        context = b.slot("overlay context")
        section.add("FSOPEN", slot_out=context, a="overlay")
        for lower in reversed(lowers):
            section.add("FS_STRING", context, a="lowerdir+", b=f"/proc/self/fd/{lower}")
        for key, value in options.items():
            section.add("FS_STRING", context, a=key, b=value)
        for flag in flags:
            section.add("FS_FLAG", context, a=flag)
        section.add("FS_CREATE", context)
        root = b.slot("root")
        section.add("FSMOUNT", context, root, x=NODEV)
        section.add("CLOSE", context)
        return root
    options = {"lowerdir": ":".join(f"/proc/self/fd/{lower}" for lower in reversed(lowers)), **options}
    section.add("MKDIR", directory, a="root", x=0o700)
    section.add("OVERLAY", a=",".join([f"{k}={v}" for k, v in options.items()] + flags), b=f"/proc/self/fd/{directory}/root")
    root = b.slot("root")
    section.add("OPEN_TREE", directory, root, a="root", x=1)
    section.add("MOUNT_ATTR", root, a="", x=NODEV)
    return root


def _layer(b: Builder, section: Section, r: Resolved, layer: Layer, userns: int, attach: bool) -> int:
    path = str(layer.path)
    name = layer.path.parent.name if layer.path.name in ("fs", INDEX_FILE, MERGED_FILE) else layer.path.name
    label = "the driver's layer" if name.startswith(DRIVER_LAYER) else f"layer {name:.12}"
    if layer.tar is not None:
        slot = _indexed(b, section, r, layer, label)
        path = str(layer.path.parent)
    else:
        slot = b.slot(label)
        section.add("OPEN_TREE", slot_out=slot, a=path, x=TREE_CLONE)
    if r.rootful and r.idmap is not None:
        section.add("MOUNT_ATTR", slot, userns, a="", x=RDONLY | IDMAP)
    else:
        section.add("MOUNT_ATTR", slot, a="", x=RDONLY)
    if attach:
        section.add("MOVE_MOUNT", slot, a=path)
    return slot


def _indexed(b: Builder, section: Section, r: Resolved, layer: Layer, label: str) -> int:
    """A layer that was never unpacked: the kernel reads its tree from an index, its files' data from the tar. Setuid files stay setuid, as
    in a layer that was. Where the kernel can, it is a clone of the mount that this process holds and shares its page cache with all
    others."""
    if not r.rootful:
        raise Unsupported(
            f"{label} was not unpacked, and only root can mount it so",
            subject=str(layer.path),
            hint="load the image as this user: then it is unpacked",
        )
    if not layer.others and (not r.features.detached_clones or len(b.held) >= HELD_MAX):
        options = {"source": str(layer.path), "device": str(layer.tar)}
        return b.file_system(section, "erofs", options, attributes=RDONLY | NODEV, label=label)
    held = b.slot(f"held {label}")
    b.held[held] = layer
    slot = b.slot(label)
    section.add("OPEN_TREE", held, slot, a="", x=TREE_CLONE)
    section.add("CLOSE", held)
    return slot


def _upper(b: Builder, section: Section, r: Resolved, directory: int, attach: bool) -> tuple[int, int]:
    """The private upper and its work directory: on disk below the sandbox's directory, or in memory."""
    upper, work = b.slot("upper"), b.slot("work")
    home = directory
    if r.spec.root != "disk":
        size = {"size": str(r.spec.root_size)} if r.spec.root_size else {}
        home = b.file_system(section, "tmpfs", {"mode": "0700", **size}, attributes=NODEV, label="upper in memory")
        if attach or not r.rootful:
            section.add("MKDIR", directory, a="root", x=0o700)
            section.add("MOVE_MOUNT", home, directory, a="root")
    section.add("MKDIR", home, upper, a="upper", x=0o755)
    section.add("MKDIR", home, work, a="work", x=0o700)
    if r.rootful and r.idmap is not None:
        section.add("CHOWN", home, a="upper", x=_inside_root(r))
    return upper, work


def _inside_root(r: Resolved) -> int:
    """The sandbox's root as the host knows it: uid | gid << 32."""
    assert r.idmap is not None
    uid, gid = r.idmap.root()
    return uid | gid << 32


def _empty_root(b: Builder, section: Section, r: Resolved) -> int:
    """The pseudo-image ``host``: a tmpfs, then the host's system directories below it, read-only."""
    options = {"mode": "0755"}
    if r.spec.root_size:
        options["size"] = str(r.spec.root_size)
    if r.rootful and r.idmap is not None:
        uid, gid = r.idmap.root()
        options |= {"uid": str(uid), "gid": str(gid)}
    return b.file_system(section, "tmpfs", options, attributes=NODEV, label="root")


def host_sources(b: Builder, section: Section, r: Resolved) -> list[tuple[int, str]]:
    """Read-only clones of the host's system directories: slots and where they go. Where the sandbox has the host's ids, every file is
    mapped to nobody: then its root, too, may read what everybody may read, whatever the host does to its files meanwhile."""
    attributes = RDONLY | NOSUID | NODEV
    clones = []
    for entry in r.host_entries:
        if entry.link:
            continue
        tree = b.clone_tree(section, entry.path, recursive=True, attributes=attributes, label=f"host {entry.path}")
        if r.owners_hidden:
            section.add("MOUNT_ATTR", tree, b.namespace(NOBODY), a="", x=IDMAP, c=RECURSIVE)
        clones.append((tree, entry.path))
    return clones


def host_skeleton(section: Section, r: Resolved, root: int, sources: list[tuple[int, str]]) -> None:
    """The pseudo-image's tree: links, system directories, and the empty places every program expects."""
    for entry in r.host_entries:
        if entry.link:
            section.add("SYMLINK", root, a=entry.path, b=entry.link)
    for slot, path in sources:
        section.add("MKTARGET", root, slot, a=path)
        section.add("MOVE_MOUNT", slot, root, a=path, c=NO_SYMLINKS)
    for path, mode in (
        ("/root", 0o700),
        ("/home", 0o755),
        ("/var/tmp", 0o1777),
        ("/run", 0o755),
        ("/tmp", 0o1777),
        ("/mnt", 0o755),
        ("/srv", 0o755),
    ):
        section.add("MKDIR", root, a=path, x=mode)


def attach(section: Section, tree: int, root: int, target: str, *, resolve: int = 0, unless: int = 0) -> None:
    """Mount a tree at a path of the root, which is made if it is missing. ``unless``: a slot whose file the target must not turn out to
    be."""
    section.add("MKTARGET", root, tree, a=target)
    section.add("MOVE_MOUNT", tree, root, a=target, b=unless, c=resolve)


def kernel_file_systems(b: Builder, r: Resolved, root: int) -> None:
    """/proc, /sys and the cgroup tree. A target that is a link is refused: an image could aim it elsewhere (CVE-2019-19921,
    CVE-2026-41579)."""
    section = b.init
    ns = r.spec.namespaces
    if ns.pid == "new":
        proc = b.file_system(section, "proc", attributes=NOSUID | NODEV | NOEXEC)
    else:
        proc = b.clone_tree(section, "/proc", recursive=True, label="the host's /proc")
    attach(section, proc, root, "/proc", resolve=NO_SYMLINKS)
    for name, value in r.spec.sysctls:
        section.add("SYSCTL", proc, a="sys/" + name.replace(".", "/"), b=f"{value}\n")
    privileged = r.spec.profile == "privileged"
    if r.spec.network != "host" or r.idmap is None:
        attributes = NOSUID | NODEV | NOEXEC | (0 if privileged else RDONLY)
        sysfs = b.file_system(section, "sysfs", attributes=attributes)
    else:
        sysfs = b.clone_tree(section, "/sys", recursive=True, attributes=RDONLY | NOSUID | NODEV | NOEXEC, label="the host's /sys")
    attach(section, sysfs, root, "/sys", resolve=NO_SYMLINKS)
    if r.has_cgroup and ns.cgroup == "new":
        cgroup = b.file_system(section, "cgroup2", attributes=NOSUID | NODEV | NOEXEC | (0 if privileged else RDONLY))
        section.add("MOVE_MOUNT", cgroup, root, a="/sys/fs/cgroup", c=NO_SYMLINKS)


def device_sources(b: Builder, section: Section, r: Resolved) -> list[tuple[int, Device]]:
    """Clones of the host's device nodes, each checked to be the device that its name says (CVE-2025-31133)."""
    slots = []
    for device in r.devices:
        # Read-only: its data is written all the same, its owner and mode, which are the host's, are not.
        tree = b.clone_tree(section, device.source, attributes=RDONLY | NOSUID | NOEXEC, label=device.source)
        section.add("EXPECT_DEVICE", tree, c=int(device.block), x=_rdev(device))
        slots.append((tree, device))
    return slots


def driver_sources(b: Builder, section: Section, r: Resolved) -> dict[HostFile, int]:
    """Clones of the files of a GPU's driver, which are root's: the slot of each."""
    slots = {}
    for file in (*r.driver_files, *r.driver_proc_files):
        attributes = NOSUID | NODEV | (RDONLY if file.readonly else 0) | (NOEXEC if file.noexec else 0)
        label = f"the driver's {file.target}"
        slots[file] = b.clone_tree(section, file.source, recursive=file.recursive, attributes=attributes, label=label)
    return slots


def driver_files(b: Builder, r: Resolved, root: int, sources: dict[HostFile, int]) -> None:
    """On the empty files that the driver's layer has for them. There a link can only be the program's own, from before a restart."""
    for file in r.driver_files:
        attach(b.init, sources[file], root, file.target, resolve=NO_SYMLINKS)


def driver_proc(b: Builder, r: Resolved, root: int, sources: dict[HostFile, int]) -> None:
    """/proc/driver: a read-only tmpfs of our own, where the host's would show every GPU and let the driver make device nodes."""
    if not r.driver_proc:
        return
    section = b.init
    tree = b.file_system(section, "tmpfs", {"mode": "0755", "size": "1m"}, attributes=NOSUID | NODEV | NOEXEC, label="/proc/driver")
    for folder in dict.fromkeys(path.rpartition("/")[0] for path, _ in r.driver_proc):
        section.add("MKDIR", tree, a=folder, x=0o755)
    for path, text in r.driver_proc:
        section.add("WRITE", tree, a=path, b=text, x=O_CREAT)
    for file in r.driver_proc_files:
        attach(section, sources[file], tree, file.target, resolve=NO_SYMLINKS)
    section.add("MOVE_MOUNT", tree, root, a="/proc/driver", c=NO_SYMLINKS)
    section.add("MOUNT_ATTR", tree, a="", x=RDONLY)


def _rdev(device: Device) -> int:
    return (device.minor & 0xFF) | (device.major & 0xFFF) << 8 | (device.minor & ~0xFF) << 12


def devices(b: Builder, r: Resolved, root: int, sources: list[tuple[int, Device]]) -> int:
    """/dev: a tmpfs of our own, the nodes bound in, terminals, shared memory, message queues. Its slot."""
    section = b.init
    dev = b.file_system(section, "tmpfs", {"mode": "0755", "size": "65536k"}, attributes=NOSUID | NOEXEC, label="/dev")
    for path, target in LINKS:
        section.add("SYMLINK", dev, a=path[5:], b=target)
    for directory in ("pts", "shm", "mqueue"):
        section.add("MKDIR", dev, a=directory, x=0o755)
    attach(section, dev, root, "/dev", resolve=NO_SYMLINKS)
    for tree, device in sources:
        attach(section, tree, dev, device.target.removeprefix("/dev/"))
    for directory in dict.fromkeys(path[5:].rpartition("/")[0] for path, _ in r.device_links):
        section.add("MKDIR", dev, a=directory, x=0o755)
    for path, target in r.device_links:
        section.add("SYMLINK", dev, a=path[5:], b=target)
    gid = {"gid": "5"} if r.idmap is None or r.idmap.maps_gid(5) else {}
    pts = b.file_system(section, "devpts", {"ptmxmode": "0666", "mode": "0620", **gid}, attributes=NOSUID | NOEXEC, label="/dev/pts")
    section.add("MOVE_MOUNT", pts, dev, a="pts")
    shm = b.file_system(
        section,
        "tmpfs",
        {"mode": "1777", "size": str(r.spec.shm_size or SHM_DEFAULT)},
        attributes=NOSUID | NODEV | NOEXEC,
        label="/dev/shm",
    )
    section.add("MOVE_MOUNT", shm, dev, a="shm")
    if r.spec.namespaces.ipc == "new":
        mqueue = b.file_system(section, "mqueue", attributes=NOSUID | NODEV | NOEXEC, label="/dev/mqueue")
        section.add("MOVE_MOUNT", mqueue, dev, a="mqueue")
    return dev


def scratch_mount(b: Builder, root: int) -> tuple[int, int]:
    """A small tmpfs for what is ours: its slot, and that of an empty directory in it. It is mounted at /proc, where the real one will cover
    it, because older kernels clone only from mounts that are attached."""
    section = b.init
    scratch = b.file_system(section, "tmpfs", {"mode": "0755", "size": "1m"}, attributes=NOSUID | NODEV | NOEXEC, label="scratch")
    attach(section, scratch, root, "/proc", resolve=NO_SYMLINKS)
    empty = b.slot("an empty directory")
    section.add("MKDIR", scratch, empty, a="empty", x=0o555)
    return scratch, empty


def network_files(b: Builder, r: Resolved, root: int, scratch: int) -> None:
    """/etc/hostname, /etc/hosts and /etc/resolv.conf, bound in so that they are no part of the image's upper."""
    section = b.init
    for path, text in r.files:
        name = path.rsplit("/", 1)[-1]
        section.add("WRITE", scratch, a=name, b=text, x=O_CREAT)
        tree = b.slot(f"our {path}")
        section.add("OPEN_TREE", scratch, tree, a=name, x=1)
        attach(section, tree, root, path)


def requested_mounts(b: Builder, r: Resolved, root: int, sources: dict[int, int], empty: int) -> None:
    """The caller's own mounts, those above before those below; what she wants below /dev comes later.

    A link of the image may lead them anywhere in its root, but not onto /proc, /sys, /dev or the root itself: a read-only empty directory
    stands for each of the three until the real ones cover it, and MOVE_MOUNT refuses it as a target.
    """
    wanted = [(index, mount) for index, mount in _from_above(r) if not _in_dev(mount)]
    if not wanted:
        return
    for path in ("/proc", "/sys", "/dev"):
        place = b.slot(f"a place for {path}")
        b.init.add("OPEN_TREE", empty, place, a="", x=TREE_CLONE)
        b.init.add("MOUNT_ATTR", place, a="", x=RDONLY)
        attach(b.init, place, root, path, resolve=NO_SYMLINKS)
    for index, mount in wanted:
        attach(b.init, _requested(b, mount, index, sources), root, mount.target, unless=empty)


def requested_devices(b: Builder, r: Resolved, dev: int, sources: dict[int, int]) -> None:
    """The caller's own mounts below /dev, where no link is but ours."""
    for index, mount in _from_above(r):
        if _in_dev(mount):
            attach(b.init, _requested(b, mount, index, sources), dev, mount.target.removeprefix("/dev/"))


def _from_above(r: Resolved) -> list[tuple[int, Mount]]:
    """With their indexes. A mount never covers one that was asked for below it."""
    return sorted(enumerate(r.mounts), key=lambda item: item[1].target.count("/"))


def _in_dev(mount: Mount) -> bool:
    return mount.target.startswith("/dev/")


def _requested(b: Builder, mount: Mount, index: int, sources: dict[int, int]) -> int:
    if mount.kind != "tmpfs":
        return sources[index]
    numbers = {"size": mount.size, "uid": mount.uid, "gid": mount.gid}
    options = {"mode": f"{mount.mode:04o}"} | {name: str(value) for name, value in numbers.items() if value}
    attributes = NOSUID | NODEV | (NOEXEC if mount.noexec else 0)
    return b.file_system(b.init, "tmpfs", options, attributes=attributes, label=f"tmpfs {mount.target}")


def let_go(b: Builder) -> None:
    """Attach what only the overlay needed to the root that PIVOT lets go of, so that all of it goes at once: for each mount that was never
    attached the kernel waits for every processor when its descriptor is closed (an RCU grace period)."""
    ops = (*b.keeper.ops, *b.init.ops)
    attached = {op.slot_in for op in ops if op.name == "MOVE_MOUNT"}
    for op in ops:
        if (op.name == "FSMOUNT" or (op.name == "OPEN_TREE" and op.x & TREE_CLONE)) and op.slot_out not in attached:
            b.init.add("MOVE_MOUNT", op.slot_out, a=HOST_PROC, c=NO_SYMLINKS)


def masks(b: Builder, r: Resolved, empty: int, null: int) -> None:
    """What of procfs and sysfs a sandbox does not see, or sees read-only. After pivot: these are paths of the new root."""
    if r.spec.profile == "privileged":
        return
    for path in MASKED:
        b.init.add("MASK", null, empty, a=path, optional=True)
    for path in READONLY:
        b.init.add("READONLY", a=path, optional=True)
