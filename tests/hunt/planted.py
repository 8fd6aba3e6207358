"""Does the hunt find a hole? Each mend below is taken out of a copy of the tree, which is built and hunted in until the hole is found.

``python -P tests/hunt/planted.py [--seconds 300] [--seed planted] [NAME …]``. Run it as root and as a user. Exit status 1: a
hole was not found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
BUILT = ("*.so", "*.o", "__pycache__", "_native.c", ".git", ".venv", "build", ".hypothesis", ".*_cache", "*.egg-info", "dockless-*")


@dataclass(frozen=True)
class Planted:
    """``edits``: file, what is there, what comes in its place. ``finding``: a regular expression for its name. ``root``: nobody else can
    have the hole."""

    edits: tuple[tuple[str, str, str], ...]
    finding: str
    root: bool = False


_OPEN_AT_EXEC = (
    (
        "native/launcher/launcher.c",
        "    plan->phase = PHASE_PROGRAM;\n    close_from(3, plan);\n",
        "    plan->phase = PHASE_PROGRAM;\n    sys(NR_close_range, 3, ~0u, 4 /* CLOEXEC */);\n",
    ),
    ("native/launcher/launcher.c", "    sys(NR_close_range, SLOT_PLAN, SLOT_PLAN, 0);\n    close_from(SLOT_DOOR, plan);\n", ""),
)

PLANTED = {
    "exec": Planted(_OPEN_AT_EXEC, r"exe: |disclosed: (?:home|neighbour)|door: "),
    # Nothing but an open descriptor leads to a layer: the two mends stand one behind the other, and only without both is there a hole.
    "layers": Planted(
        (
            *_OPEN_AT_EXEC,
            (
                "sandbox/rootfs.py",
                '        section.add("MOUNT_ATTR", slot, userns, a="", x=RDONLY | IDMAP)\n    else:\n'
                '        section.add("MOUNT_ATTR", slot, a="", x=RDONLY)\n',
                '        section.add("MOUNT_ATTR", slot, userns, a="", x=IDMAP)\n',
            ),
        ),
        "changed: h/store/layers",
    ),
    "volumes": Planted(
        (
            (
                "sandbox/volumes.py",
                '    check_id(name, "volume name")\n',
                """    check_id(name, "volume name")
    folder = paths.make(paths.state() / "volumes" / str(owner or os.geteuid()))
    if not (folder / name).exists():
        paths.make(folder / name, 0o755)
        if os.geteuid() == 0:
            os.chown(folder / name, default_map(owner).outside_uid(0) or 0, default_map(owner).outside_gid(0) or 0)
            os.chown(folder, owner or 0, 0)
    return str(folder / name)
""",
            ),
        ),
        r"changed: home/",
        root=True,
    ),
    "links": Planted(
        (
            ("sandbox/compile.py", "    rootfs.requested_mounts(b, r, root, sources, empty)\n", ""),
            (
                "sandbox/compile.py",
                "    dev = rootfs.devices(b, r, root, nodes)\n",
                "    dev = rootfs.devices(b, r, root, nodes)\n    rootfs.requested_mounts(b, r, root, sources, 0)\n",
            ),
            ("sandbox/rootfs.py", '    for path in ("/proc", "/sys", "/dev"):\n        place', "    for path in ():\n        place"),
        ),
        r"covered: /",
    ),
    "nodes": Planted(
        (("sandbox/rootfs.py", "device.source, attributes=RDONLY | NOSUID | NOEXEC, label", "device.source, label"),),
        "changed: a device node",
        root=True,
    ),
    "owners": Planted((("sandbox/rootfs.py", "        if r.owners_hidden:\n", "        if False:\n"),), "disclosed: /", root=True),
}


def hunted(name: str, seconds: float, seed: str) -> tuple[bool, str]:
    """Whether the hole was found, and where."""
    planted = PLANTED[name]
    with tempfile.TemporaryDirectory(prefix="dockless-planted.", dir="/var/tmp") as place:
        tree = Path(place, "tree")
        shutil.copytree(TOP, tree, symlinks=True, ignore=shutil.ignore_patterns(*BUILT))
        for file, old, new in planted.edits:
            path = tree / file
            text = path.read_text()
            if text.count(old) != 1:
                return False, f"{file} does not say once what is to be taken out: {old.strip().splitlines()[0]}"
            path.write_text(text.replace(old, new))
        places = [str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(places), "PYTHONSAFEPATH": "1"}
        built = subprocess.run(
            [sys.executable, "-W", "ignore", "setup.py", "--quiet", "build_ext", "--inplace"],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
        )
        if built.returncode:
            return False, f"it does not build: {built.stderr[-500:]}"
        command = [sys.executable, "-P", str(tree / "tests/hunt/run.py"), "--whole", "--seed", seed, "--keep", f"{place}/found"]
        done = subprocess.run(
            [*command, "--seconds", str(seconds), "--until", planted.finding], env=environment, capture_output=True, text=True
        )
        found = re.search(rf"^FOUND (.*(?:{planted.finding}).*)\n  (after .*)$", done.stdout, re.MULTILINE)
        return bool(found), f"{found[1]}, {found[2]}" if found else done.stdout[-500:] + done.stderr[-500:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"{' '.join(PLANTED)} (default: all)")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", default="planted")
    options = parser.parse_args()
    if unknown := set(options.names) - set(PLANTED):
        parser.error(f"unknown: {' '.join(sorted(unknown))}")
    missed = 0
    for name in options.names or PLANTED:
        if PLANTED[name].root and os.geteuid() != 0:
            print(f"{name}: only root can have it", flush=True)
            continue
        began = time.monotonic()
        found, words = hunted(name, options.seconds, options.seed)
        missed += not found
        print(f"{name}: {'found' if found else 'NOT FOUND'} ({time.monotonic() - began:.0f} s with the build): {words}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
