"""Whoever else brings images to disk: how each is asked to, into a place of its own, and what it costs it less or more than dockless.

None of them flushes what it has written; dockless does before a layer counts, and that is in its time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contender import ContenderFailed
from benchmarks.image_runs import Job, Whole, plain

_POLICY = {"default": [{"type": "insecureAcceptAnything"}]}
_WAIT = 15.0


@dataclass(frozen=True, slots=True)
class Peer:
    """``program``, of Debian's ``package``; ``how``: from the place for all runs and the image to what it does in a fresh directory."""

    name: str
    program: str
    package: str
    how: Callable[[Path, str], Callable[[Path], AbstractContextManager[Job]]]
    note: str = ""


def find(peers: Sequence[Peer], place: Path, image: str, only: Sequence[str] = ()) -> tuple[list[Whole], list[str]]:
    """The contenders, and a line for each that is absent."""
    found, absent = [], []
    for peer in peers:
        if only and not any(name in peer.name for name in only):
            continue
        if shutil.which(peer.program) is None:
            absent.append(f"{peer.name}: not installed (apt-get install {peer.package})")
        elif os.geteuid() and peer.program != "umoci":
            absent.append(f"{peer.name}: measured as root only")
        else:
            found.append(Whole(peer.name, place, peer.how(place, image), peer.note))
    return found, absent


def versions() -> dict[str, str]:
    """What is installed of them, by program."""
    found = {}
    for program in sorted({peer.program for peer in (*LOCAL, *PULL)} | {"docker-registry", "mmdebstrap"}):
        if (path := shutil.which(program)) is not None:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
            said = (done.stdout or done.stderr).strip().splitlines()[0].split()
            found[program] = next((word for word in reversed(said) if word[:1].isdigit() or word[:1] == "v"), " ".join(said))
    return found


def _umoci(place: Path, image: str) -> Callable[[Path], AbstractContextManager[Job]]:
    rootless = ["--rootless"] if os.geteuid() else []
    return plain(lambda fresh: ["umoci", "unpack", *rootless, "--image", image, fresh / "bundle"])


_PRIVATE = ["unshare", "--mount", "--propagation", "private"]
"""These mount their directory on itself and leave it so."""


def _skopeo(driver: str, source: str) -> Callable[[Path, str], Callable[[Path], AbstractContextManager[Job]]]:
    def how(place: Path, image: str) -> Callable[[Path], AbstractContextManager[Job]]:
        @contextmanager
        def job(fresh: Path) -> Iterator[Job]:
            conf = fresh / "storage.conf"
            conf.write_text(f'[storage]\ndriver = "{driver}"\nrunroot = "{fresh}/run"\ngraphroot = "{fresh}/root"\n')
            words = ["skopeo", "--insecure-policy", "copy", "--quiet", f"{source}{image}", "containers-storage:bench:1"]
            if source.startswith("docker"):
                words.insert(4, "--src-tls-verify=false")
            yield Job([*_PRIVATE, *words], {"CONTAINERS_STORAGE_CONF": str(conf)})

        return job

    return how


def _skopeo_decompress(place: Path, image: str) -> Callable[[Path], AbstractContextManager[Job]]:
    words = ["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-decompress", f"oci:{image}"]
    return plain(lambda fresh: [*words, f"dir:{fresh / 'dir'}"])


def _podman(driver: str, source: str) -> Callable[[Path, str], Callable[[Path], AbstractContextManager[Job]]]:
    def how(place: Path, image: str) -> Callable[[Path], AbstractContextManager[Job]]:
        policy = place / "policy.json"
        policy.write_text(json.dumps(_POLICY))
        base = ["--events-backend", "none", "--cgroup-manager", "cgroupfs", "--storage-driver", driver]
        tail = [
            "pull",
            "--quiet",
            "--signature-policy",
            str(policy),
            *(["--tls-verify=false"] if source != "oci:" else []),
            f"{source}{image}",
        ]

        def argv(fresh: Path) -> list[str | Path]:
            places = ["--root", fresh / "root", "--runroot", fresh / "run", "--tmpdir", fresh / "tmp"]
            return [*_PRIVATE, "podman", *places, *base, *tail]

        return plain(argv)

    return how


def _containerd(place: Path, image: str) -> Callable[[Path], AbstractContextManager[Job]]:
    """A daemon of its own for every run, ready before the clock starts."""

    @contextmanager
    def job(fresh: Path) -> Iterator[Job]:
        # The kubelet's part needs plugins that nothing here does.
        (fresh / "toml").write_text(
            f'version = 2\nroot = "{fresh}/root"\nstate = "{fresh}/state"\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{fresh}/sock"\n[ttrpc]\naddress = "{fresh}/sock.ttrpc"\n'
        )
        with open(fresh / "log", "wb") as log:
            daemon = subprocess.Popen([*_PRIVATE, "containerd", "--config", fresh / "toml"], stdout=log, stderr=log)
        try:
            until = time.monotonic() + _WAIT
            while b"successfully booted" not in (fresh / "log").read_bytes():
                if daemon.poll() is not None or time.monotonic() > until:
                    raise ContenderFailed("containerd does not start: " + (fresh / "log").read_text().strip()[-200:])
                time.sleep(0.05)
            words = ["ctr", "--address", fresh / "sock", "images", "pull", "--plain-http", image]
            yield Job(words, others=(daemon.pid,))
        finally:
            daemon.terminate()
            daemon.wait(30)

    return job


UMOCI, SKOPEO, PODMAN, CONTAINERD = "umoci unpack", "skopeo → storage", "podman pull", "containerd"
DECOMPRESS = "skopeo: decompress only"

LOCAL = (
    Peer(UMOCI, "umoci", "umoci", _umoci, "one directory of files, and a list of them (mtree)"),
    Peer(SKOPEO, "skopeo", "skopeo", _skopeo("overlay", "oci:"), "containers-storage, overlay"),
    Peer(PODMAN, "podman", "podman", _podman("overlay", "oci:"), "containers-storage, overlay"),
    Peer(DECOMPRESS, "skopeo", "skopeo", _skopeo_decompress, "dir: with --dest-decompress: nothing is unpacked, tars are written"),
)
VFS = (
    Peer(f"{SKOPEO}, vfs", "skopeo", "skopeo", _skopeo("vfs", "oci:"), "each layer holds a copy of those below"),
    Peer(f"{PODMAN}, vfs", "podman", "podman", _podman("vfs", "oci:"), "each layer holds a copy of those below"),
)
PULL = (
    Peer(SKOPEO, "skopeo", "skopeo", _skopeo("overlay", "docker://"), "containers-storage, overlay"),
    Peer(PODMAN, "podman", "podman", _podman("overlay", ""), "containers-storage, overlay"),
    Peer(CONTAINERD, "ctr", "containerd", _containerd, "ctr images pull; overlayfs snapshots; its daemon runs already"),
)
