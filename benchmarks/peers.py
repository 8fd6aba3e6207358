"""The peers: how to find each, which Debian package has it, what it is asked to do, and how that differs from what dockless does.

Every one is told to do no more than dockless does; where it can only do less, the note says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.bundle import write_bundle
from benchmarks.contender import Contender, ContenderFailed, worker
from benchmarks.scene import Scene

Words = list[str]


@dataclass(frozen=True, slots=True)
class Peer:
    """``command``: the arguments for one start, from the scene and the program's path. ``engine``: it manages images itself, so it is
    measured beside ``dockless run``. ``private``: it needs ``Scene.private_mounts``. ``undo``: takes away what it left behind."""

    name: str
    program: str
    package: str
    note: str
    command: Callable[[Scene, str], Words]
    engine: bool = False
    private: bool = False
    reads_seccomp: bool = False
    undo: Callable[[Scene, str], None] | None = None


@dataclass(slots=True)
class Found:
    """The peers that take part, and one line for each that does not."""

    contenders: list[Contender]
    absent: list[str]
    undo: list[Callable[[], None]]

    def close(self) -> None:
        for contender in self.contenders:
            contender.close()
        for step in self.undo:
            step()


def find(scene: Scene, *, engines: bool, only: Sequence[str] = ()) -> Found:
    """Start a contender for every peer that is installed and works here."""
    found = Found([], [], [])
    for peer in PEERS:
        if peer.engine != engines or (only and peer.name not in only):
            continue
        path = shutil.which(peer.program) or shutil.which(peer.program, path="/usr/sbin:/sbin")
        if path is None:
            found.absent.append(f"{peer.name}: not installed (apt-get install {peer.package})")
            continue
        try:
            options: list[str | Path] = (
                ["--file", scene.directory / "seccomp"] if peer.reads_seccomp and (scene.directory / "seccomp").exists() else []
            )
            command = peer.command(scene, path)
            prefix = scene.private_mounts if peer.private else ()
            if peer.undo is not None:
                found.undo.append(partial(peer.undo, scene, path))
            found.contenders.append(worker(peer.name, "whole", *options, "--", *command, prefix=prefix, note=peer.note))
        except (ContenderFailed, Unusable) as error:
            found.absent.append(f"{peer.name}: installed, but does not work here ({error})")
    return found


class Unusable(Exception):
    """An installed peer that cannot run here."""


def _crun(scene: Scene, path: str, *, cgroup: bool) -> Words:
    manager = "cgroupfs" if cgroup else "disabled"
    root = scene.directory / "crun"
    return [path, "--root", str(root), f"--cgroup-manager={manager}", "run", "--bundle", str(write_bundle(scene)), f"bench-{os.getpid()}"]


def _runc(scene: Scene, path: str) -> Words:
    return [path, "--root", str(scene.directory / "runc"), "run", "--bundle", str(write_bundle(scene)), f"bench-{os.getpid()}"]


def _bwrap(scene: Scene, path: str) -> Words:
    bundle = write_bundle(scene)
    etc = [word for name in ("hostname", "hosts", "resolv.conf") for word in ("--ro-bind", str(bundle / name), f"/etc/{name}")]
    unshare = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup"]
    seccomp = ["--seccomp", "9"] if (scene.directory / "seccomp").exists() else []
    return [
        path, *unshare, "--uid", "0", "--gid", "0", "--hostname", "dockless", "--new-session", "--die-with-parent",
        "--bind", str(scene.rootfs), "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm", "--mqueue", "/dev/mqueue",
        "--ro-bind", "/sys", "/sys", *etc, "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--cap-drop", "ALL", *seccomp, "/bin/true",
    ]  # fmt: skip


_WITH_OVERLAY = """
mkdir "$1" "$1/upper" "$1/work" "$1/root" && chown "$3:$3" "$1/upper" &&
mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work,volatile" overlay "$1/root" || exit 125
shift 3
"$@"; status=$?
umount "$root" && rm -rf "$home"; exit $status
"""


def _bwrap_overlay(scene: Scene, path: str) -> Words:
    """What whoever uses bwrap for this has to write around it: bwrap mounts overlays itself only since 0.11."""
    if os.geteuid():
        raise Unusable("it needs root")
    home = scene.directory / "bwrap"
    words = [str(home / "root") if word == str(scene.rootfs) else word for word in _bwrap(scene, path)]
    owner = str(scene.rootfs.stat().st_uid)
    script = f"home={home} root={home}/root{_WITH_OVERLAY}"
    return [shutil.which("sh") or "/bin/sh", "-c", script, "sh", str(home), str(scene.rootfs), owner, *words]


def _unshare(scene: Scene, path: str) -> Words:
    kinds = ["--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--user", "--map-root-user", "--cgroup"]
    return [path, *kinds, f"--root={scene.rootfs}", "/bin/true"]


def _firejail(scene: Scene, path: str) -> Words:
    return [path, "--quiet", "--noprofile", "--net=none", "--private-dev", "--caps.drop=all", "--seccomp", "--", "/bin/true"]


def _nspawn(scene: Scene, path: str) -> Words:
    if os.geteuid():
        raise Unusable("it needs root")
    return [path, "--quiet", "--register=no", "--keep-unit", "--private-network", "--as-pid2", f"--directory={scene.rootfs}", "/bin/true"]


def _podman_base(scene: Scene, path: str) -> Words:
    home = scene.directory / "podman"
    return [
        path,
        "--root",
        f"{home}/root",
        "--runroot",
        f"{home}/run",
        "--tmpdir",
        f"{home}/tmp",
        "--cgroup-manager",
        "cgroupfs",
        "--events-backend",
        "none",
    ]


def _podman(scene: Scene, path: str, *, cgroup: bool) -> Words:
    """Its own store, in our directory. The limits are those that it would otherwise try to raise."""
    base = _podman_base(scene, path)
    loaded = _said([*scene.private_mounts, *base, "load", "--quiet", "--input", str(scene.layout)])
    image = loaded.rpartition("Loaded image:")[2].strip().splitlines()[0]
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    return [*base, "run", "--rm", "--network", "none", *([] if cgroup else ["--cgroups=disabled"]), *limits, image, "/bin/true"]


def _podman_undo(scene: Scene, path: str) -> None:
    """The cgroups of its own name that it leaves, once its monitors have ended: empty ones alone can be removed."""
    parents = list(Path("/sys/fs/cgroup").glob("*/libpod_parent"))
    until = time.monotonic() + 5
    while parents and time.monotonic() < until:
        for parent in parents:
            for group in sorted((found for found in parent.rglob("*/") if found.is_dir()), reverse=True):
                _try_rmdir(group)
            _try_rmdir(parent)
        parents = [parent for parent in parents if parent.exists()]
        if parents:
            time.sleep(0.1)


def _try_rmdir(path: Path) -> None:
    try:
        path.rmdir()
    except OSError:
        pass


def _docker(scene: Scene, path: str) -> Words:
    """The user's own daemon: the image is loaded for the measurement and removed after it."""
    from benchmarks.scene import make_image

    _said([path, "info"])
    builder = make_image()
    archive = scene.directory / "docker.tar"
    builder.make_docker_archive(archive, [builder.Built(layers=[builder.rootfs_entries()], config={}, tags=[f"{scene.image}:bench"])])
    _said([path, "load", "--quiet", "--input", str(archive)])
    return [path, "run", "--rm", "--network", "none", f"{scene.image}:bench", "/bin/true"]


def _docker_undo(scene: Scene, path: str) -> None:
    subprocess.run([path, "rmi", f"{scene.image}:bench"], capture_output=True, timeout=60)


def _said(argv: Words) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        raise Unusable("it does not answer within a minute") from None
    if done.returncode:
        raise Unusable((done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:200])
    return done.stdout


_PLAIN_ROOT = "root a plain directory, no overlay"
_ENGINE = "whole process; --network none"
PEERS: tuple[Peer, ...] = (
    Peer("bwrap", "bwrap", "bubblewrap", f"whole process; {_PLAIN_ROOT}, no cgroup, no masks", _bwrap, reads_seccomp=True),
    Peer("bwrap + overlay", "bwrap", "bubblewrap", "shell script: overlay on disk, bwrap on it", _bwrap_overlay, reads_seccomp=True),
    Peer("crun", "crun", "crun", f"whole process; {_PLAIN_ROOT}, told to make no cgroup", partial(_crun, cgroup=False), private=True),
    Peer("crun + cgroup", "crun", "crun", f"whole process; {_PLAIN_ROOT}", partial(_crun, cgroup=True), private=True),
    Peer("runc", "runc", "runc", f"whole process; {_PLAIN_ROOT}", _runc),
    Peer("unshare", "unshare", "util-linux", "whole process; namespaces and chroot alone", _unshare),
    Peer("systemd-nspawn", "systemd-nspawn", "systemd-container", f"whole process; {_PLAIN_ROOT}, no user namespace", _nspawn),
    Peer("firejail", "firejail", "firejail", "whole process; the host's own root", _firejail),
    Peer("podman", "podman", "podman", _ENGINE, partial(_podman, cgroup=True), engine=True, private=True, undo=_podman_undo),
    Peer("podman - cgroup", "podman", "podman", _ENGINE, partial(_podman, cgroup=False), engine=True, private=True),
    Peer("docker", "docker", "docker.io", f"{_ENGINE}, and its daemon", _docker, engine=True, undo=_docker_undo),
)
