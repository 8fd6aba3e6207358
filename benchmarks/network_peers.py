"""Podman and Docker as they start a container with a network: their own stores, sockets and directories, in the network namespace of the
measurement."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from support import managers

from benchmarks.scene import Scene

# What they would try to raise.
_LIMITS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]


class Podman:
    """Of Debian's package ``podman`` with ``netavark`` and ``crun``: without a cgroup, and the root a plain directory."""

    def __init__(self, scene: Scene, path: str) -> None:
        self._scene = scene
        home = scene.directory / "podman"
        home.mkdir()
        (home / "containers.conf").write_text('[network]\nnetwork_backend = "netavark"\n[engine]\nevents_logger = "none"\n')
        conf = f"CONTAINERS_CONF={home}/containers.conf"
        base = [path, "--root", f"{home}/root", "--runroot", f"{home}/run", "--tmpdir", f"{home}/tmp", "--cgroup-manager", "cgroupfs"]
        self._words = [*scene.private_mounts, "env", conf, *base]
        self.version = said([*self._words, "--version"]).split()[-1]

    def start(self, network: str) -> list[str]:
        """The words that start ``true`` there."""
        return [*self._run(network), "--rm", "--rootfs", str(self._scene.rootfs), "/bin/true"]

    def _run(self, network: str) -> list[str]:
        return [*self._words, "run", "--cgroups=disabled", *_LIMITS, "--network", network]

    @contextlib.contextmanager
    def serving(self, program: Path, port: int) -> Iterator[None]:
        shutil.copy(program, self._scene.rootfs / "netpeer")
        words = ["-d", "--name", "netpeer", "-p", f"{port}-{port + 2}:5001-5003", "--rootfs", str(self._scene.rootfs), "/netpeer"]
        said([*self._run("bridge"), *words])
        try:
            yield
        finally:
            said([*self._words, "rm", "-f", "-t", "0", "netpeer"])


def podman(scene: Scene, absent: list[str]) -> Podman | None:
    """One that starts containers here; why there is none goes to ``absent``."""
    path = shutil.which("podman")
    if path is None:
        absent.append("podman: not installed (apt-get install podman netavark crun)")
        return None
    try:
        found = Podman(scene, path)
        for network in ("none", "bridge"):
            said(found.start(network))
    except Unusable as error:
        absent.append(f"podman: installed, but does not work here ({error})")
        return None
    return found


class Docker:
    """Of Debian's package ``docker.io``: a daemon for the measurement, and its command."""

    def __init__(self, scene: Scene, manager: managers.Manager) -> None:
        self._manager = manager
        tar = scene.directory / "docker-root.tar"
        said(["tar", "-C", str(scene.rootfs), "-cf", str(tar), "."])
        manager.do("import", str(tar), "bench")
        self.version = manager.do("version", "--format", "{{.Server.Version}}").strip()
        for network in ("none", "bridge"):
            said(self.start(network))

    def start(self, network: str) -> list[str]:
        return [*self._manager.words, "run", "--rm", *_LIMITS[:2], "--network", network, "bench", "/bin/true"]


@contextlib.contextmanager
def docker(scene: Scene, absent: list[str]) -> Iterator[Docker | None]:
    """As ``podman``. The empty cgroups that it leaves are removed."""
    if shutil.which("dockerd") is None or shutil.which("docker") is None:
        absent.append("docker: no daemon is installed (apt-get install docker.io)")
        yield None
        return
    before = set(Path("/sys/fs/cgroup").glob("**/docker"))
    with tempfile.TemporaryDirectory(prefix="bench-") as place, contextlib.ExitStack() as running:
        try:
            found = Docker(scene, running.enter_context(managers.docker(Path(place))))
        except (AssertionError, Unusable) as error:
            absent.append(f"docker: installed, but does not work here ({str(error)[:200]})")
            yield None
        else:
            yield found
    for group in set(Path("/sys/fs/cgroup").glob("**/docker")) - before:
        with contextlib.suppress(OSError):
            group.rmdir()


class Unusable(Exception):
    """A program that cannot do it here."""


def said(argv: Sequence[str]) -> str:
    """What a command says. ``Unusable`` where it fails."""
    try:
        ran = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        raise Unusable("it does not answer within a minute") from None
    if ran.returncode:
        raise Unusable((ran.stderr.strip().splitlines() or [f"exit {ran.returncode}"])[-1][:200])
    return ran.stdout
