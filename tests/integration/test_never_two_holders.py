"""Nobody has what another has: several ask at the same moment, and daemons, programs and keepers are killed meanwhile.

Who has what is read from the programs themselves, not from leases: each has the names in its environment (proc(5)), in whatever daemon's or
user's sandbox it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import random
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.boxes import until
from support.described import KIND, describe
from support.requires import requires
from support.scheduling import SOURCE, DaemonProcess

from dockless.errors import DocklessError
from dockless.sandbox.gpus import gpu, lease
from dockless.sandbox.run import box as run_box
from dockless.sandbox.run import detached

pytestmark = requires("userns")

ROUNDS, AT_ONCE = 5, 8
LINGERS = 1.0
"""Seconds that a program may take to be gone after its keeper was killed: much less than each has what it got."""
STARTER = """
import json, os, sys
import dockless
from dockless.errors import DaemonUnavailable, NotEnoughGpus
from dockless.sandbox.gpus import gpu, lease
from dockless.sandbox.spec import Spec
from dockless.sched import Client, JobSpec

how, argv, environment, asks = json.loads(sys.argv[1])
lease.holders([unit.uuid for unit in gpu.units(gpu.inventory())])  # what is imported late is there
print("ready", flush=True)
os.read(0, 1)
try:
    if how == "submit":
        Client("daemon.sock").submit(JobSpec(Spec(argv=tuple(argv), env=tuple(environment.items())), **asks))
    else:
        getattr(dockless, how)("host", argv, env=environment, **asks)
except (DaemonUnavailable, NotEnoughGpus):
    pass
"""
SLICE = "2g.26gb"
RUN = ({"gpus": 1}, {"gpus": 1}, {"gpus": 2}, {"gpus": 1, "gpu_class": SLICE}, {"devices": [f"{KIND}:1"]}, {"devices": [f"{KIND}:2"]})
SUBMIT = (
    *({"gpus": "1"}, {"gpus": "memory=30G"}, {"gpus": "memory=30G"}, {"gpus": "memory=50G"}),
    *({"gpus": f"1,class={SLICE}"}, {"gpus": f"2,class={KIND}"}),
)


@dataclass
class User:
    """``starters``: programs of hers that start sandboxes, in the place ``home`` of her own; ``asked``: the daemons that she asks."""

    uid: int
    python: str
    home: Path
    asked: tuple[DaemonProcess, ...]


@dataclass(frozen=True)
class Holder:
    """A program inside. ``memory``: MiB of what may be shared, 0 for all."""

    names: frozenset[str]
    memory: int


class Host:
    """All that has to do with the same GPUs and devices. ``capacity``: MiB of each GPU and slice, by name."""

    def __init__(self, token: str, environment: Mapping[str, str], capacity: Mapping[str, int]) -> None:
        self.token, self.environment, self.capacity = token, environment, capacity
        self.starters: list[subprocess.Popen[bytes]] = []
        self.seen: set[str] = set()
        self.count = 0

    def start(self, user: User, how: str, asks: Mapping[str, Any], barrier: int, rng: random.Random) -> None:
        """A program that waits at the ``barrier``, then starts or submits."""
        said = str(asks.get("gpus", ""))
        memory = int(said[7:-1]) << 10 if said.startswith("memory=") else 0
        inside = {"HOLDS": f"{self.token}:{memory}"}
        order = json.dumps((how, ["sleep", f"{rng.uniform(2, 4):.2f}"], inside, asks))
        place = rng.choice(user.asked).socket.parent if how == "submit" else Path("/")
        as_whom: dict[str, Any] = {} if user.uid == os.geteuid() else {"user": user.uid, "group": user.uid, "extra_groups": []}
        starter = subprocess.Popen(
            [user.python, "-P", "-c", STARTER, order],
            env={**self.environment, "DOCKLESS_HOME": str(user.home)},
            cwd=place,
            stdin=barrier,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **as_whom,
        )
        self.starters.append(starter)

    def holders(self) -> dict[int, Holder]:
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "comm").read_text() != "sleep\n":
                    continue
                inside = dict(one.partition("=")[::2] for one in (process / "environ").read_text().split("\0"))
                token, _, memory = inside.get("HOLDS", "").partition(":")
                if token == self.token and (names := inside.get("DOCKLESS_GPUS")):
                    found[int(process.name)] = Holder(frozenset(names.split(",")), int(memory))
        return found

    def check_apart(self) -> None:
        """No two have the same now: of those that do one is about to end."""
        found, end = self.holders(), time.monotonic() + LINGERS
        self.count = max(self.count, len(found))
        self.seen |= {self._kind(name, holder) for holder in found.values() for name in holder.names}
        while wrong := self._wrong(found):
            assert time.monotonic() < end, wrong
            time.sleep(0.02)
            there = self.holders()
            found = {pid: holder for pid, holder in found.items() if pid in there}

    def _wrong(self, found: Mapping[int, Holder]) -> dict[str, dict[int, int]]:
        """What too many have: their process numbers, and how much of it."""
        of: dict[str, dict[int, int]] = defaultdict(dict)
        for pid, holder in found.items():
            for name in holder.names:
                of[name][pid] = holder.memory
        return {
            name: having
            for name, having in of.items()
            if len(having) > 1 and (0 in having.values() or sum(having.values()) > self.capacity.get(name, 0))
        }

    def _kind(self, name: str, holder: Holder) -> str:
        if "=" in name:
            return "device"
        return "slice" if name.startswith("MIG-") else "share" if holder.memory else "whole"

    def end(self) -> list[str]:
        """What the starters say that failed otherwise than for want of GPUs or of a daemon."""
        starters, self.starters = self.starters, []
        for starter in starters:
            starter.kill()
        said = [(starter, starter.communicate()[1]) for starter in starters]
        return [text.decode() for starter, text in said if starter.returncode not in (0, -signal.SIGKILL)]


@pytest.fixture
def hers() -> Iterator[Path]:
    """A place of another user's, which she comes to."""
    with tempfile.TemporaryDirectory(prefix="dockless-never-two-", dir="/var/tmp", ignore_cleanup_errors=True) as place:
        os.chmod(place, 0o755)
        yield Path(place)


def python_of(uid: int, environment: Mapping[str, str]) -> str:
    """One that this user may run, and that has what we have; empty if there is none."""
    for python in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        with contextlib.suppress(OSError):
            tried = subprocess.run(
                [python, "-P", "-c", "import dockless.sched.daemon, pynvml"],
                **{"env": environment, "cwd": "/", "user": uid, "group": uid, "extra_groups": [], "stderr": subprocess.DEVNULL},
            )
            if tried.returncode == 0:
                return python
    return ""


@pytest.mark.parametrize("seed", range(2))
def test_never_two_have_one(seed, own_host, home, tmp_path, hers):
    """Whole GPUs, shares, MIG slices and leased devices, of two daemons with a state of their own. As root also another user: with jobs in
    root's queues, with ``run``, and with a daemon of her own."""
    rng = random.Random(seed)
    gpus = own_host("4x80G,mig=3")
    (hers / "cdi").mkdir()
    settings = describe(hers / "cdi") + 'share = "{}"\n'
    places = os.pathsep.join((str(SOURCE), *site.getsitepackages()))
    environment = {**os.environ, "PYTHONPATH": places, "PYTHONSAFEPATH": "1", "DOCKLESS_SIMULATED_GPUS": gpus}
    capacity = {unit.uuid: unit.memory >> 20 for unit in gpu.units(gpu.inventory())}
    homes = [home, tmp_path / "g"]
    homes[1].mkdir(mode=0o700)
    daemons = [
        DaemonProcess(one, gpus=gpus, settings=settings.format(company)) for one, company in zip(homes, ("all", "user"), strict=True)
    ]
    users = [User(os.geteuid(), sys.executable, home, tuple(daemons))]
    anna = pwd.getpwnam("daemon").pw_uid
    if os.geteuid() == 0 and (python := python_of(anna, environment)):
        own = hers / "h"
        own.mkdir(mode=0o700)
        daemons.append(DaemonProcess(own, gpus=gpus, settings=settings.format("user"), python=python, user=anna))
        daemons[-1].environment["PYTHONPATH"] = places
        os.chown(own, anna, anna)
        users.append(User(anna, python, own, tuple(daemons)))
    host = Host(f"{os.getpid()}-{seed}-{rng.getrandbits(32)}", environment, capacity)
    try:
        for daemon in daemons:
            daemon.start()
        for _ in range(ROUNDS):
            one_round(host, users, daemons, homes, rng)
        assert host.seen == {"whole", "share", "slice", "device"} and host.count > 3, (host.seen, host.count)
        assert not host.end()
    finally:
        host.end()
        for daemon in daemons:
            daemon.end()
        until(lambda: not host.holders(), "all have ended", 30)
        for one in homes:
            for box in detached.list_all(one / "state"):
                box.remove()
        until(lambda: not lease.holders(), "nothing is leased", 30)


def one_round(host: Host, users: list[User], daemons: list[DaemonProcess], homes: list[Path], rng: random.Random) -> None:
    """Several ask at the same moment, and one thing happens at that moment, too."""
    reader, writer = os.pipe()
    for _ in range(AT_ONCE):
        how = rng.choice(("run", "start", "submit", "submit"))
        host.start(rng.choice(users), how, rng.choice(SUBMIT if how == "submit" else RUN), reader, rng)
    os.close(reader)
    for starter in host.starters[-AT_ONCE:]:
        assert starter.stdout is not None and starter.stdout.readline() == b"ready\n", starter.args
    happens, until_then = rng.randrange(4), time.monotonic() + 2
    os.close(writer)
    match happens:
        case 0:
            daemon = rng.choice(daemons)
            daemon.kill9()
            daemon.start()
        case 1:
            rng.choice(host.starters).kill()
        case 2:
            alive = [one for place in homes for one in detached.list_all(place / "state") if one.alive]
            if alive:
                kill(rng.choice(alive))
        case 3:
            number = str(rng.randrange(3))
            with daemons[0].client() as queue:
                queue.drain([number])
                host.check_apart()
                queue.undrain([number])
    while time.monotonic() < until_then:
        host.check_apart()
        time.sleep(0.02)


def kill(box: run_box.Box) -> None:
    """Its keeper, by which everything of it ends."""
    with contextlib.suppress(DocklessError, ProcessLookupError), os.fdopen(box.pidfd()) as fd:
        signal.pidfd_send_signal(fd.fileno(), signal.SIGKILL)
