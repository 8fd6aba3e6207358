"""An OCI runtime bundle that asks crun and runc for what dockless does by default: same namespaces, ids, capabilities, masks, system call
rules.

Not the same: the root is the plain unpacked directory, shared and writable, so there is no overlay to mount and no upper to make and
remove, which is in the peer's favour (an engine above it would do that). The system call rules are dockless's profile; the runtime
compiles them itself each time.
"""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from benchmarks.scene import Scene

_PLAIN = ["nosuid", "noexec", "nodev"]
_MOUNTS = [
    ("/proc", "proc", "proc", _PLAIN),
    ("/dev", "tmpfs", "tmpfs", ["nosuid", "noexec", "strictatime", "mode=755", "size=65536k"]),
    ("/dev/pts", "devpts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
    ("/dev/shm", "tmpfs", "shm", [*_PLAIN, "mode=1777", "size=1073741824"]),
    ("/dev/mqueue", "mqueue", "mqueue", _PLAIN),
    ("/sys", "sysfs", "sysfs", [*_PLAIN, "ro"]),
]


def write_bundle(scene: Scene) -> Path:
    """The bundle's directory."""
    from dockless.sandbox.capabilities import DEFAULT
    from dockless.sandbox.rootfs import MASKED, READONLY

    caps = sorted(name if name.startswith("CAP_") else f"CAP_{name.upper()}" for name in DEFAULT)
    bundle = scene.directory / "bundle"
    bundle.mkdir(exist_ok=True)
    mounts = [{"destination": d, "type": t, "source": s, "options": o} for d, t, s, o in _MOUNTS] + _etc(scene, bundle)
    config = {
        "ociVersion": "1.0.2",
        "root": {"path": str(scene.rootfs)},
        "hostname": "dockless",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": ["/bin/true"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME=dockless", "HOME=/root"],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), caps),
            "noNewPrivileges": True,
        },
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount", "user", "cgroup")],
            **_id_map(),
            "maskedPaths": list(MASKED),
            "readonlyPaths": list(READONLY),
            "seccomp": _seccomp(frozenset(caps)),
        },
    }
    (bundle / "config.json").write_text(json.dumps(config, indent=1))
    return bundle


def _etc(scene: Scene, bundle: Path) -> list[dict[str, Any]]:
    """hostname, hosts and resolv.conf, bound in as an engine would. Their mount points are made beforehand."""
    texts = {"hostname": "dockless\n", "hosts": "127.0.0.1\tlocalhost\n", "resolv.conf": ""}
    mounts = []
    for name, text in texts.items():
        (bundle / name).write_text(text)
        (scene.rootfs / "etc" / name).touch()
        mounts.append({"destination": f"/etc/{name}", "type": "bind", "source": str(bundle / name), "options": ["bind", "rw"]})
    return mounts


def _id_map() -> dict[str, Any]:
    if os.geteuid():
        uids, gids = (os.geteuid(), 1), (os.getegid(), 1)
    else:
        from dockless.base.idmaps import default_map

        idmap = default_map(None)
        uids, gids = (idmap.outside_uid(0) or 0, idmap.uids[0].count), (idmap.outside_gid(0) or 0, idmap.gids[0].count)
    return {key: [{"containerID": 0, "hostID": o, "size": n}] for key, (o, n) in (("uidMappings", uids), ("gidMappings", gids))}


def _seccomp(caps: frozenset[str]) -> dict[str, Any]:
    """The profile as Docker and Podman hand it down: its conditions on capabilities and architecture already decided."""
    from dockless.sandbox.seccomp.seccomp import ARCHES, default_profile

    profile, (_, arch) = default_profile(), ARCHES[platform.machine()]

    def holds(condition: dict[str, Any], empty: bool) -> bool:
        wanted = [name in caps for name in condition.get("caps", ())]
        if condition.get("arches"):
            wanted.append(arch in condition["arches"])
        return any(wanted) if wanted else empty

    rules = []
    for rule in profile["syscalls"]:
        if not holds(rule.get("includes") or {}, True) or holds(rule.get("excludes") or {}, False):
            continue
        kept = {key: rule[key] for key in ("names", "action", "errnoRet", "args") if rule.get(key)}
        if kept["action"] == profile["defaultAction"] and kept.get("errnoRet") == profile.get("defaultErrnoRet"):
            continue
        rules.append(kept)
    scmp = {"amd64": "SCMP_ARCH_X86_64", "arm64": "SCMP_ARCH_AARCH64"}[arch]
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile.get("defaultErrnoRet", 1),
        "architectures": [scmp],
        "syscalls": rules,
    }
