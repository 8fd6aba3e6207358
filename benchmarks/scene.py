"""What the contenders start: one small image, loaded by dockless and laid out for its peers, and a dockless home that is nobody else's.

All of it lies below one directory on a real disk (uppers on a tmpfs would flatter), which is removed at the end.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).resolve().parent.parent
IMAGE = "dockless-bench"
HYBRID = Path("/sys/fs/cgroup/unified")


@dataclass(frozen=True, slots=True)
class Scene:
    """``layout``: the image as an OCI layout. ``rootfs``: its files in a plain directory, owned by the id map's root."""

    directory: Path
    layout: Path
    rootfs: Path
    image: str = IMAGE

    @property
    def private_mounts(self) -> list[str]:
        """What to put before a peer's command, so that its mounts end with it and cgroups look to it as on its usual hosts: crun refuses
        a hybrid hierarchy."""
        if os.geteuid() or not shutil.which("unshare"):
            return []
        hide = f"umount {HYBRID} 2>/dev/null; " if HYBRID.is_dir() else ""
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", hide + 'exec "$@"', "sh"]


def make_image() -> ModuleType:
    """The tests' image builder; there is no second one."""
    path = REPOSITORY / "tests/support/make_image.py"
    spec = importlib.util.spec_from_file_location("make_image", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_image"] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def scene() -> Iterator[Scene]:
    """The scene, with ``DOCKLESS_HOME`` pointing into it for us and our children."""
    directory = Path(f"/var/tmp/dockless-bench-{os.urandom(4).hex()}")  # podman makes an image's name of it: no '_' as mkdtemp has
    directory.mkdir(mode=0o755)
    before = os.environ.get("DOCKLESS_HOME")
    os.environ["DOCKLESS_HOME"] = str(directory / "home")
    try:
        layout = make_image().busybox_image(directory)
        yield Scene(directory, layout, _load(layout, directory))
    finally:
        if before is None:
            del os.environ["DOCKLESS_HOME"]
        else:
            os.environ["DOCKLESS_HOME"] = before
        _remove(directory)


def _load(layout: Path, directory: Path) -> Path:
    from dockless.base.idmaps import default_map
    from dockless.images import Store

    image = Store(index=False).load(layout, name=IMAGE)[0]
    rootfs = directory / "rootfs"
    for layer in image.layers:
        shutil.copytree(layer.path, rootfs, symlinks=True, dirs_exist_ok=True)
    if os.geteuid() == 0:
        idmap = default_map(None)
        uid, gid = idmap.outside_uid(0) or 0, idmap.outside_gid(0) or 0
        for folder, folders, files in os.walk(rootfs):
            for name in (".", *folders, *files):
                os.chown(os.path.join(folder, name), uid, gid, follow_symlinks=False)
    return rootfs


def _remove(directory: Path) -> None:
    """Also what peers left unreadable. A mount below it would be somebody's: stop there."""
    with open("/proc/self/mounts") as mounts:
        if any(line.split()[1].startswith(f"{directory}/") for line in mounts):
            print(f"benchmarks: {directory} holds mounts, left as it is", file=sys.stderr)
            return

    def force(function: object, path: str, error: object) -> None:
        parent = os.path.dirname(path)
        os.chmod(parent, 0o700)
        if not os.path.islink(path):
            os.chmod(path, 0o700)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    shutil.rmtree(directory, onerror=force)
