"""The plans of a zygote's sandboxes: of its own, and of those for calls.

All are in one user namespace, which nothing else is in. A PID namespace can be entered from those above it alone, so that of a call lies
below the zygote's: nobody in it sees the zygote, or another call. pid_namespaces(7)
"""

from __future__ import annotations

import base64
import errno
import struct

from dockless.base.dataclass import dataclass, replace
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import Unsupported
from dockless.sandbox import capabilities, features
from dockless.sandbox.command import directory
from dockless.sandbox.compile import ABOVE_LABEL, USERNS_LABEL
from dockless.sandbox.plan.builder import NEW_NS
from dockless.sandbox.plan.plan import Plan
from dockless.sandbox.resolve import resolve
from dockless.sandbox.run.prepared import Prepared
from dockless.sandbox.spec import Spec, Tmpfs

if TYPE_CHECKING:
    from dockless.base.idmaps import IdMap
    from dockless.images import Image
    from dockless.sandbox.resolved import Resolved

KINDS = ("mount", "cgroup", "uts", "ipc", "pid", "net")
"""In the order in which they are handed over, native/launcher/door.c."""
_WRITABLE = ("/tmp", "/var/tmp")
"""For modules that write while they are imported. Else the zygote's root is read-only: /proc/self/exe of a call leads into it."""
RIGHTS = ("SYS_ADMIN", "SYS_CHROOT", "SETUID", "SETGID", "SETPCAP")
"""What entering the namespaces of a call takes, setns(2), and becoming its user."""
_CLONE_PARENT = 0x8000
_NO_LIMIT = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Family:
    """What the sandboxes of a zygote have in common. ``user``: a descriptor of their user namespace."""

    spec: Spec
    image: Image
    user: int

    def zygote(self, *, has_cgroup: bool, above: int = -1) -> Prepared:
        """Of one in which a zygote runs. ``above``: a descriptor of the PID namespace in which it is born, -1 for the host's."""
        mounts = self.spec.mounts + tuple(
            Tmpfs(path) for path in _WRITABLE if not any(directory(mount.target) == path for mount in self.spec.mounts)
        )
        spec = replace(
            self.spec, user="0:0", groups=(), rlimits=(), timeout=0.0, idle_timeout=0.0, ttl=0.0, root="readonly", mounts=mounts
        )  # fmt: skip
        found = resolve(spec, self.image, features.probe(), has_cgroup=has_cgroup)
        mask = found.capabilities | capabilities.mask(RIGHTS)
        return self._prepared(replace(found, capabilities=mask, seccomp=_filter(found)), above)

    def call(self, *, has_cgroup: bool, above: int) -> Prepared:
        """Of one for a call, whose program section its process carries out itself: ``program``."""
        return self._prepared(resolve(self.spec, self.image, features.probe(), has_cgroup=has_cgroup), above)

    def _prepared(self, found: Resolved, above: int) -> Prepared:
        ready = Prepared(replace(found, waits=0.0, hands_over=True, below=above >= 0, health=None))
        given = {USERNS_LABEL: self.user, ABOVE_LABEL: above}
        ready.shared = {slot: given[label] for slot, label in ready.plan.slots.items() if label in given}
        return ready


def check(spec: Spec) -> None:
    """``Unsupported`` for what a call cannot be held in, or a zygote cannot have."""
    spaces = spec.namespaces
    wrong = (
        (spec.gpus or spec.cdi or spec.devices, "devices", "start what needs them by itself: dockless.run(…, gpus=1)"),
        (spec.profile == "privileged" or spec.seccomp, "seccomp", "use the profile 'default' or 'untrusted', with their own filters"),
        (spaces.user != "new" or spaces.pid != "new" or spaces.ipc != "new", "namespaces", "leave the user, PID and IPC namespaces new"),
        (spec.network not in ("none", "host"), "network", "give it no network, or the host's"),
        (spaces.time == "new", "time namespace", "leave the time namespace to the host's"),
        (spec.tty or spec.interactive, "tty", "its output is captured, and it has no input"),
        (spec.idle_timeout or spec.ttl or spec.grace, "ttl, idle_timeout, grace", "give it a timeout, or each call its own"),
        (spec.health is not None and not spec.health.disabled, "health", "call what says whether it works"),
        (spec.cap_add, "cap_add", "a call has at most the capabilities of its profile"),
    )
    for asked, subject, hint in wrong:
        if asked:
            raise Unsupported(f"a zygote with this cannot be made: {subject}", subject=subject, hint=hint)


def handed(plan: Plan) -> tuple[str, ...]:
    """The namespaces that such a sandbox hands over."""
    types = next(op.x for op in plan.ops if op.name == "HAND_OVER")
    return tuple(kind for kind in KINDS if types & NEW_NS[kind])


def program(plan: Plan) -> list[dict[str, Any]]:
    """Its program section, for the script inside. sandbox/zygote/inside.py"""
    names = [op.name for op in plan.ops]
    return [{"name": op.name, "x": op.x, "c": op.c, **_arguments(op.name, op.a, op.b)} for op in plan.ops[names.index("SPAWN") + 1 :]]


def _arguments(name: str, a: str | bytes | int, b: str | bytes | int) -> dict[str, Any]:
    if name == "RLIMIT":
        assert isinstance(a, bytes)
        return {"a": [-1 if value == _NO_LIMIT else value for value in struct.unpack("<QQ", a)]}
    if name == "AFFINITY":
        assert isinstance(a, bytes)
        mask = int.from_bytes(a, "little")
        return {"a": [cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1]}
    if name == "SECCOMP":
        assert isinstance(a, bytes)
        return {"a": base64.b64encode(a).decode("ascii")}
    if name == "SET_IDS":
        raw = b if isinstance(b, bytes) else b""
        return {"a": a, "b": list(struct.unpack(f"<{len(raw) // 4}I", raw))}
    return {"a": a}


def _filter(found: Resolved) -> bytes:
    """Of the default profile without CAP_SYS_ADMIN, and setns(2) for what a call enters. It holds for calls as well, besides their own.
    What they start must be theirs, not the zygote's: a child that nobody collects keeps a PID namespace, pid_namespaces(7)."""
    from dockless.sandbox.seccomp import seccomp

    default = seccomp.default_profile()
    enter = {
        "names": ["setns"],
        "action": "SCMP_ACT_ALLOW",
        "args": [{"index": 1, "value": NEW_NS[kind], "op": "SCMP_CMP_EQ"} for kind in KINDS],
    }
    sibling = {
        "names": ["clone"],
        "action": "SCMP_ACT_ERRNO",
        "errnoRet": errno.EPERM,
        "args": [{"index": 0, "value": _CLONE_PARENT, "valueTwo": _CLONE_PARENT, "op": "SCMP_CMP_MASKED_EQ"}],
    }
    profile = {**default, "syscalls": [enter, sibling, *default["syscalls"]]}
    return seccomp.compile_profile(profile, capabilities.PROFILES["default"], found.features.machine)


def idmap_of(spec: Spec, image: Image) -> IdMap:
    """``Unsupported`` where there is none."""
    idmap = resolve(spec, image, features.probe()).idmap
    if idmap is None:
        raise Unsupported("a zygote needs a user namespace", subject="user namespace", hint="use the profile 'default' or 'untrusted'")
    return idmap
