"""Networks: what one adds to a start, beside a C program that asks the kernel for the same and beside podman; what passes through it.

    python benchmarks/networks.py [--rounds 40] [--many 500] [--json FILE]

Root; in a network namespace of its own, so that no link or rule of this host is touched. A minute.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from support.networks import own_network

import dockless
from benchmarks.scene import Scene, scene
from dockless import networks
from dockless.sandbox.network import leases, records
from dockless.sandbox.network.host import Host

HERE = Path(__file__).resolve().parent
TRUE = ["/bin/true"]
WANTED_MS = 2.0
Once = Callable[[], float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--many", type=int, default=500, help="sandboxes on one bridge")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "networks.json")
    options = parser.parse_args()
    document: dict[str, object] = {}
    with own_network(), scene() as place:
        networks.create("mine")
        document["starts"] = starts(place, options.rounds)
        document["through"] = through(place)
        document["many"] = many(options.many)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def starts(place: Scene, rounds: int) -> dict[str, float]:
    """Medians in milliseconds, in turns, and what each network adds to a start without one, in pairs."""
    null = {"stdin": dockless.DEVNULL, "stdout": dockless.DEVNULL, "stderr": dockless.DEVNULL}

    def ours(**options: object) -> Once:
        return _timed(lambda: dockless.run(place.image, TRUE, **null, **options).returncode)

    contenders: dict[str, Once] = {
        "none": ours(network="none"),
        "bridge": ours(network="bridge"),
        "bridge and a port": ours(network="bridge", publish=["8080:80"]),
        "a user network": ours(network="mine"),
        **_podman(place),
    }
    seen: dict[str, list[float]] = {name: [] for name in contenders}
    for round in range(rounds + 3):
        for name in random.sample([*contenders], len(contenders)):
            took = contenders[name]()
            if round >= 3:
                seen[name].append(took * 1e3)
            time.sleep(0.03)  # what the kernel clears in the background is done
    found = {name: statistics.median(times) for name, times in seen.items()}
    print(f"starts of `true`, medians of {rounds} in turns, ms")
    for name, times in seen.items():
        below = "podman none" if name.startswith("podman") else "none"
        adds = statistics.median(a - b for a, b in zip(times, seen[below], strict=True))
        found[f"{name} adds"] = adds
        wanted = f" (wanted at most {WANTED_MS}: {'met' if adds <= WANTED_MS else 'MISSED'})" if name == "bridge" else ""
        print(f"{found[name]:9.2f}  {name}" + ("" if name == below else f": adds {adds:.2f}{wanted}"))
    found["floor"] = floor(rounds)
    print(f"{found['floor']:9.2f}  the network alone, in C")
    return found


def floor(rounds: int) -> float:
    """``netfloor.c``, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/netfloor"
        subprocess.run(["gcc", "-O2", "-o", program, HERE / "netfloor.c"], check=True)
        index = Host().index_of(records.find("mine").bridge)
        said = subprocess.run([program, str(index), str(rounds)], check=True, capture_output=True, text=True).stdout
    return statistics.median(map(int, said.split())) / 1e6


def _podman(place: Scene) -> dict[str, Once]:
    path = shutil.which("podman")
    if path is None:
        print("podman: not installed (apt-get install podman)")
        return {}
    base = [path, "--root", str(place.directory / "podman"), "--runroot", str(place.directory / "podman-run"), "run", "--rm"]
    base += ["--cgroups=disabled", "--pull=never", "--rootfs"]

    def once(network: str) -> Once:
        command = [*base, str(place.rootfs), "/bin/true"]
        command[command.index("--rm") : command.index("--rm")] = ["--network", network]
        return _timed(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode)

    try:
        for network in ("none", "bridge"):
            once(network)()
    except AssertionError:
        print("podman: installed, but does not work here")
        return {}
    return {"podman none": once("none"), "podman bridge": once("bridge")}


def through(place: Scene) -> dict[str, float]:
    """From the host to a sandbox, and one byte there and back."""
    found: dict[str, float] = {}
    with _serving("nc -l -p 5001 > /dev/null", place, network="mine") as address:
        found["bridge_mb_per_s"] = _rate(address)
    with _serving("nc -l -p 5001 -e cat", place, network="mine") as address:
        found["bridge_there_and_back_us"] = _latency(address)
    with _serving("nc -l -p 5001 > /dev/null", place, network="host") as address:
        found["loopback_mb_per_s"] = _rate(address)
    print(f"through the bridge {found['bridge_mb_per_s']:.0f} MB/s, {found['bridge_there_and_back_us']:.0f} µs there and back; "
          f"the host's loopback {found['loopback_mb_per_s']:.0f} MB/s")  # fmt: skip
    return found


@contextlib.contextmanager
def _serving(command: str, place: Scene, network: str) -> Iterator[str]:
    box = dockless.start(place.image, ["sh", "-c", command], network=network)
    try:
        own = leases.of(box.inner.directory)
        time.sleep(0.3)
        yield own[0].addresses[0] if own else "127.0.0.1"
    finally:
        box.inner.remove()


def _rate(address: str, seconds: float = 2.0) -> float:
    piece, sent = bytes(1 << 20), 0
    with socket.create_connection((address, 5001)) as out:
        began = time.monotonic()
        while (took := time.monotonic() - began) < seconds:
            sent += out.send(piece)
    return sent / took / 1e6


def _latency(address: str, count: int = 2000) -> float:
    times = []
    with socket.create_connection((address, 5001)) as out:
        out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            began = time.perf_counter()
            out.sendall(b"x")
            out.recv(1)
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def many(count: int) -> dict[str, float]:
    """Starts on one bridge, the first tenth and the last."""
    boxes, times = [], []
    try:
        for _ in range(count):
            began = time.perf_counter()
            boxes.append(dockless.start(["sleep", "1000"], network="mine"))
            times.append((time.perf_counter() - began) * 1e3)
        tenth = max(1, count // 10)
        first, last = statistics.median(times[:tenth]), statistics.median(times[-tenth:])
        there = len(leases.living(Host(), "mine"))
        print(f"{there} sandboxes on one bridge: a start takes {first:.1f} ms at first and {last:.1f} ms at last")
    finally:
        for box in boxes:
            box.inner.remove()
    return {"sandboxes": there, "first_ms": first, "last_ms": last}


def _timed(run: Callable[[], int]) -> Once:
    def once() -> float:
        began = time.perf_counter()
        status = run()
        took = time.perf_counter() - began
        assert status == 0, status
        return took

    return once


if __name__ == "__main__":
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    sys.exit(main())
