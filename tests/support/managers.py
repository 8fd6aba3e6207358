"""Other managers of networks, run for a test beside nobody: in the network namespace of the calling thread, with files and directories of
their own in a mount namespace of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.boxes import until

# Their places are the test's: what they write there nobody else reads. A hybrid hierarchy of cgroups is none that crun knows.
_PRIVATE = """
for dir in /run /etc/docker /etc/firewalld /etc/containers /etc/cni /var/lib; do [ ! -d $dir ] || mount -t tmpfs tmpfs $dir; done
umount /sys/fs/cgroup/unified 2>/dev/null; mkdir -p /run/lock /run/dbus /run/firewalld /var/lib/containers
exec "$@"
"""
_BUS = """<busconfig><type>system</type><listen>unix:path={socket}</listen><auth>EXTERNAL</auth><policy context="default"><allow user="*"/>
<allow own="*"/><allow send_type="method_call"/><allow send_type="signal"/><allow send_destination="*"/><allow receive_type="method_call"/>
<allow receive_type="method_return"/><allow receive_type="error"/><allow receive_type="signal"/></policy></busconfig>"""


class Manager:
    """One that runs. ``do`` has a program of its kind ask it something; ``words`` is that program."""

    def __init__(self, started: subprocess.Popen[bytes], words: Sequence[str], env: dict[str, str]) -> None:
        self.started, self._env = started, env
        self.words = [*words]

    def do(self, *argv: str, check: bool = True) -> str:
        ran = subprocess.run(
            ["nsenter", f"--mount=/proc/{self.started.pid}/ns/mnt", *self.words, *argv],
            env=os.environ | self._env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0 or not check, ran.stderr + ran.stdout
        return ran.stdout

    def answers(self, *argv: str) -> bool:
        assert self.started.poll() is None, "it has ended"
        return bool(self.do(*argv, check=False).strip())


@contextlib.contextmanager
def _running(place: Path, argv: Sequence[str], words: Sequence[str], env: dict[str, str]) -> Iterator[Manager]:
    with open(place / "manager.log", "ab") as log:
        started = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _PRIVATE, "sh", *argv],
            env=os.environ | env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield Manager(started, words, env)
    finally:
        started.terminate()
        started.wait(30)


@contextlib.contextmanager
def docker(place: Path) -> Iterator[Manager]:
    """dockerd, without a container."""
    socket = f"unix://{place}/docker.sock"
    argv = ["dockerd", "--data-root", f"{place}/data", "--exec-root", f"{place}/exec", "--pidfile", f"{place}/pid", "-H", socket]
    with _running(place, [*argv, "--storage-driver", "vfs"], ["docker", "-H", socket], {}) as found:
        until(lambda: found.answers("version", "--format", "{{.Server.Version}}"), "dockerd answers", 60)
        yield found


@contextlib.contextmanager
def firewalld(place: Path) -> Iterator[Manager]:
    """firewalld, with a bus of its own, and every link in its default zone."""
    env = {"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={place}/bus"}
    (place / "bus.conf").write_text(_BUS.format(socket=place / "bus"))
    # By Debian's own interpreter: another one that is first in $PATH does not have its modules.
    bus = f"dbus-daemon --config-file={place}/bus.conf --nopidfile --nofork & bus=$!; until [ -S {place}/bus ]; do sleep 0.01; done; "
    itself = f"/usr/bin/python3 /usr/sbin/firewalld --nofork --nopid --log-target file --log-file {place}/firewalld.log & itself=$!; "
    script = bus + itself + "trap 'kill $itself; wait $itself; kill $bus' TERM; wait $itself; wait $bus"
    with _running(place, ["sh", "-c", script], ["/usr/bin/python3", "/usr/bin/firewall-cmd"], env) as found:
        until(lambda: "running" in found.do("--state", check=False), "firewalld answers", 60)
        yield found


@contextlib.contextmanager
def podman(place: Path) -> Iterator[Manager]:
    """Whoever asks it something does all of it; what waits here has its mounts."""
    words = ["podman", "--root", f"{place}/root", "--runroot", "/run/podman", "--tmpdir", "/run/podman-tmp", "--cgroup-manager", "cgroupfs"]
    (place / "containers.conf").write_text('[network]\nnetwork_backend = "netavark"\n[engine]\nevents_logger = "none"\n')
    env = {"CONTAINERS_CONF": str(place / "containers.conf")}
    with _running(place, ["sleep", "1000"], words, env) as found:
        until(lambda: found.answers("--version"), "podman is there")
        yield found
