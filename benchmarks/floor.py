"""``floor.c``, compiled and given the same image, filters and ids that dockless uses.

What it was written after is ``OPERATIONS``; where a plan has others by now, the table says so, because then the floor is not the floor
of that plan.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from benchmarks.contender import HERE, Contender
from benchmarks.scene import Scene

NAME = "floor.c"
PLAIN = "floor.c - overlay"
NOTE = "the same system calls by hand"
OPERATIONS = Counter(
    SETSID=2, OPEN_TREE=11, EXPECT_DEVICE=6, MOUNT_ATTR=9, OPEN=1, MKDIR=6, CHOWN=1, FSOPEN=9, FS_STRING=13, FS_FLAG=1, FS_CREATE=9,
    FSMOUNT=9, CLOSE=9, SETNS=1, CLONE=1, SET_IDS=2, PDEATHSIG=1, KEYRING=1, UNSHARE=1, MOVE_MOUNT=20, MKTARGET=13, WRITE=3, SYMLINK=5,
    HOSTNAME=1, LOOPBACK_UP=1, PIVOT=1, MASK=13, READONLY=5, SPAWN=1, SIGNALS=1, CHDIR=1, BOUNDING=1, CAPS=1, NO_NEW_PRIVS=1,
    SECCOMP=1, OWN_PIPES=1, UMASK=1,
)  # fmt: skip


class NoFloor(Exception):
    """It cannot be had here. The text says why."""


def floor(scene: Scene) -> Contender:
    """The compiled program, ready. ``NoFloor``"""
    return Contender(NAME, [build(scene.directory), *_arguments(scene)], note=NOTE + _drift(scene))


def plain(scene: Scene) -> Contender:
    """The same without the overlay, on what its peers use as a root. ``NoFloor``"""
    program, words = build(scene.directory), _arguments(scene)
    for name in ("proc", "sys", "dev"):
        (scene.rootfs / name).mkdir(exist_ok=True)
    return Contender(PLAIN, [program, f"@{scene.rootfs}", *words[1:]], note="root a plain directory, no overlay")


def build(directory: Path) -> Path:
    """gcc -O2 -static: no dynamic linking to pay for. ``NoFloor``"""
    if os.geteuid():
        raise NoFloor("floor.c is the floor of a start by root")
    compiler = shutil.which(os.environ.get("CC", "gcc"))
    if compiler is None:
        raise NoFloor("there is no C compiler (apt-get install gcc)")
    program = directory / "floor"
    for how in (["-static"], []):
        done = subprocess.run([compiler, "-O2", *how, "-o", program, HERE / "floor.c"], capture_output=True, text=True)
        if done.returncode == 0:
            return program
    raise NoFloor(f"floor.c does not compile: {done.stderr.strip().splitlines()[-1]}")


def _plan(scene: Scene):
    from dockless.sandbox.run.start import explain
    from dockless.sandbox.spec import Spec

    return explain(Spec(argv=("/bin/true",), image=scene.image)).plan


def _arguments(scene: Scene) -> list[str | Path]:
    from dockless.base import paths
    from dockless.base.idmaps import default_map
    from dockless.cgroups import STANDARD_DEVICES, devices, find_delegation

    plan, idmap, place = _plan(scene), default_map(None), find_delegation()
    trees = {op.slot_out: op.a for op in plan.ops if op.name == "OPEN_TREE"}
    highest_first = [trees[int(op.b.rpartition("/")[2])] for op in plan.ops if op.name == "FS_STRING" and op.a == "lowerdir+"]
    if not highest_first:
        raise NoFloor("this kernel's overlay has no lowerdir+ (Linux 6.7): floor.c knows no other way")
    seccomp = next(op.a for op in plan.ops if op.name == "SECCOMP")
    capabilities = next(op.x for op in plan.ops if op.name == "CAPS")
    (scene.directory / "seccomp").write_bytes(seccomp)
    (scene.directory / "devices").write_bytes(devices.assemble(STANDARD_DEVICES) if place.path else b"")
    uppers = paths.state() / "running"
    uppers.mkdir(mode=0o700, parents=True, exist_ok=True)
    layers = ":".join(reversed(highest_first))
    ids = [str(idmap.outside_uid(0)), str(idmap.outside_gid(0)), str(idmap.uids[0].count)]
    home = str(place.home) if place.path else "-"
    return [layers, uppers, home, scene.directory / "seccomp", scene.directory / "devices", *ids, f"{capabilities:x}"]


def _drift(scene: Scene) -> str:
    now = Counter(op.name for op in _plan(scene).ops)
    changed = [f"{now[name] - OPERATIONS[name]:+d} {name}" for name in sorted(now | OPERATIONS) if now[name] != OPERATIONS[name]]
    return f"; the plan has changed since: {', '.join(changed)}" if changed else ""
