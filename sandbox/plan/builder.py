"""How a plan is put together: three lists of operations and names for the slots."""

from __future__ import annotations

from dockless.base.dataclass import dataclass, field
from dockless.base.idmaps import IdMap
from dockless.errors import Unsupported
from dockless.images.layers.layers import Layer
from dockless.sandbox.plan.plan import SLOT_FREE, Op

# mount_setattr(2), open_tree(2), openat2(2), namespaces(7)
RDONLY, NOSUID, NODEV, NOEXEC, IDMAP = 0x1, 0x2, 0x4, 0x8, 0x100000
MOST_SLOTS = 960
"""SLOT_MAX of plan.h: every slot is an fd, and a process may usually have 1024."""
TREE_CLONE, RECURSIVE = 0x1, 0x8000
PRIVATE = 1 << 18
NO_SYMLINKS = 0x04
HOST_PROC = "/proc"
"""A directory of the root that PIVOT lets go of."""
NEW_NS = {
    "time": 0x80, "mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000,
    "net": 0x40000000,
}  # fmt: skip


@dataclass(slots=True)
class Section:
    """Operations of one process, in order."""

    ops: list[Op] = field(default_factory=list)

    def add(
        self,
        name: str,
        slot_in: int = -1,
        slot_out: int = -1,
        a: str | bytes | int = 0,
        b: str | bytes | int = 0,
        *,
        c: int = 0,
        x: int = 0,
        optional: bool = False,
    ) -> None:
        self.ops.append(Op(name, slot_in, slot_out, a, b, c, x, optional))


@dataclass(slots=True)
class Builder:
    """``mounter`` is the section whose process may mount what lies on the host: the keeper as root, init where only a user namespace
    gives the right."""

    keeper: Section = field(default_factory=Section)
    init: Section = field(default_factory=Section)
    program: Section = field(default_factory=Section)
    slots: dict[int, str] = field(default_factory=dict)
    held: dict[int, Layer] = field(default_factory=dict)
    maps: dict[int, IdMap] = field(default_factory=dict)
    next_slot: int = SLOT_FREE

    def slot(self, label: str) -> int:
        """A fresh slot; ``label`` says in plain words what will live there."""
        number = self.next_slot
        self.next_slot += 1
        if number >= MOST_SLOTS:
            raise Unsupported(
                f"a plan with more than {MOST_SLOTS} mounts, layers and devices",
                subject=label,
                hint="mount fewer things: one directory above them",
            )
        self.slots[number] = label
        return number

    def namespace(self, idmap: IdMap) -> int:
        """The slot of a user namespace with this map, for mounts only: one for each map."""
        known = next((slot for slot, other in self.maps.items() if other == idmap), -1)
        if known < 0:
            known = self.slot(f"user namespace where {idmap.uids[0].inside} is {idmap.uids[0].outside}")
            self.maps[known] = idmap
        return known

    def file_system(self, section: Section, kind: str, options: dict[str, str] | None = None, *, attributes: int, label: str = "") -> int:
        """A new file system, mounted nowhere yet: the slot of its mount."""
        context = self.slot(f"{kind} context")
        section.add("FSOPEN", slot_out=context, a=kind)
        for key, value in (options or {}).items():
            section.add("FS_STRING", context, a=key, b=value)
        section.add("FS_CREATE", context)
        mount = self.slot(label or kind)
        section.add("FSMOUNT", context, mount, x=attributes)
        section.add("CLOSE", context)
        return mount

    def clone_tree(self, section: Section, path: str, *, recursive: bool = False, attributes: int = 0, label: str = "") -> int:
        """A clone of what is mounted at a path of the host, attached nowhere yet, and no peer of it: its slot."""
        tree = self.slot(label or path)
        section.add("OPEN_TREE", slot_out=tree, a=path, x=TREE_CLONE | (RECURSIVE if recursive else 0))
        # A clone of a shared mount (systemd shares /) is its peer: what is mounted below one would appear below the other.
        section.add("MOUNT_ATTR", tree, a="", b=PRIVATE, x=attributes, c=RECURSIVE if recursive else 0)
        return tree
