"""What passes through a network: TCP from another host to a published port, each way, and one byte there and back.

The other host is a network namespace beside that of the measurement. The same program (``netpeer.c``) listens on the host itself, in a
sandbox on a bridge of ours and in one of an ordinary user by pasta, and in podman's. They take turns, half a second each.
"""

from __future__ import annotations

import contextlib
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from support.nets import HOST, Place

import dockless
from benchmarks.network_peers import Podman
from benchmarks.report import Table
from benchmarks.scene import Scene

HERE = Path(__file__).resolve().parent
DIRECT, OURS, PODMANS = "the host itself", "our bridge", "podman's bridge"
OUR_PASTA, PODMANS_PASTA = "our pasta", "pasta as podman 5 calls it"
SENT, FETCHED, THERE = "sent, MB/s", "fetched, MB/s", "there and back, µs"
SECONDS, TRIPS, PIECE = 0.5, 500, 1 << 20
# In a mount namespace of its own there is a /dev/net/tun for everybody. Root outside is user 1001 inside, who has no rights here.
_AS_USER = """mount -t tmpfs tmpfs /dev/net && mknod -m 666 /dev/net/tun c 10 200 &&
exec unshare --user --map-user=1001 --map-group=1001 -- "$@" """
_PASTA = """unshare --user --map-root-user --net --fork sh -c 'ip link set lo up; exec "$0" {inside} >&2' "$1" &
own=$!; until inner=$(pgrep -P $own) && [ "$(readlink /proc/$inner/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
pasta --config-net {options} --no-map-gw --quiet $inner && echo ready; cat; kill $inner"""
_LIKE_PODMAN = "--dns-forward 169.254.1.1 -u none -T none -U none"


def through(table: Table, scene: Scene, outside: Place, podman: Podman | None, rounds: int) -> None:
    """Rows and figures for the table, and what podman's ways have of ours and ours of podman's."""
    program = compiled(scene)
    seen: dict[str, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as opened:
        ways: dict[str, int] = {}
        for name, port, make in _ways(scene, program, podman):
            try:
                opened.enter_context(make(port))
                _await(outside, port)
                ways[name] = port
                seen[name] = {SENT: [], FETCHED: [], THERE: []}
            except (OSError, dockless.DocklessError, subprocess.CalledProcessError) as error:
                table.notes.append(f"through {name}: not measured: {error}")
        for _ in range(rounds):
            for name in random.sample([*ways], len(ways)):
                try:
                    found = _measured(outside, ways[name])
                except OSError as error:
                    table.notes.append(f"through {name}: given up: {error}")
                    ways.pop(name)
                    seen.pop(name)
                    continue
                for what, figure in found.items():
                    seen[name][what].append(figure)
    if podman is None:
        table.notes.append("through podman's bridge: not measured")
    for name, figures in seen.items():
        medians = {what: statistics.median(values) for what, values in figures.items()}
        against = {OURS: PODMANS, OUR_PASTA: PODMANS_PASTA}.get(name, "")
        row = ", ".join(f"{value:.0f} {what}" for what, value in medians.items())
        if against in seen:
            ratios = {what: statistics.median(a / b for a, b in zip(figures[what], seen[against][what], strict=True)) for what in figures}
            medians |= {f"{what} / {against}": ratio for what, ratio in ratios.items()}
            row += f"; of {against}: " + ", ".join(f"{ratio:.2f}" for ratio in ratios.values())
        table.rows.append(f"through {name}: {row}")
        table.extra[f"through {name}"] = medians


def compiled(scene: Scene) -> Path:
    """``netpeer``, which needs no library of whatever root it runs in."""
    program = scene.directory / "netpeer"
    if not program.exists():
        subprocess.run(["gcc", "-O2", "-static", "-o", program, HERE / "netpeer.c"], check=True)
    return program


Opened = Callable[[int], contextlib.AbstractContextManager[object]]


def _ways(scene: Scene, program: Path, podman: Podman | None) -> Iterator[tuple[str, int, Opened]]:
    """Each with its own ports of the host: three from that on."""
    yield DIRECT, 5001, lambda port: _process([str(program), *map(str, range(port, port + 3))])
    yield OURS, 5011, lambda port: _sandbox(program, port)
    if podman is not None:
        yield PODMANS, 5021, lambda port: podman.serving(program, port)
    child = [sys.executable, "-P", str(HERE / "network_user.py"), str(program)]
    yield OUR_PASTA, 5031, lambda port: _process(["unshare", "--mount", "sh", "-c", _AS_USER, "sh", *child, str(port)])
    yield PODMANS_PASTA, 5041, lambda port: _process(_pasta(program, port))


def _pasta(program: Path, port: int) -> list[str]:
    script = _PASTA.format(inside="5001 5002 5003", options=f"-t {port}:5001 -t {port + 1}:5002 -t {port + 2}:5003 {_LIKE_PODMAN}")
    return ["unshare", "--mount", "sh", "-c", _AS_USER, "sh", "sh", "-c", script, "sh", str(program)]


@contextlib.contextmanager
def _process(argv: list[str]) -> Iterator[None]:
    """A program that says ``ready`` and ends with its standard input, or else is ended."""
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout is not None and started.stderr is not None and started.stdin is not None
        try:
            if b"ready" not in started.stdout.readline():
                raise OSError((started.stderr.read().decode(errors="replace").strip().splitlines() or ["it has ended"])[-1][:200])
            yield
        finally:
            started.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(2)
            started.terminate()


@contextlib.contextmanager
def _sandbox(program: Path, port: int) -> Iterator[None]:
    box = dockless.start(["/netpeer"], mounts=[f"{program}:/netpeer:ro"], network="mine", publish=[f"{port}-{port + 2}:5001-5003"])
    try:
        yield
    finally:
        box.inner.remove()


def _await(outside: Place, port: int) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            _connected(outside, port + 2).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def _connected(outside: Place, port: int) -> socket.socket:
    made = outside.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.settimeout(10)
        made.connect((HOST[0], port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        made.close()
        raise
    return made


def _measured(outside: Place, port: int) -> dict[str, float]:
    return {SENT: _sent(outside, port), FETCHED: _fetched(outside, port + 1), THERE: _there_and_back(outside, port + 2)}


def _sent(outside: Place, port: int) -> float:
    piece, sent = bytes(PIECE), 0
    with _connected(outside, port) as out:
        began = time.monotonic()
        while (took := time.monotonic() - began) < SECONDS:
            sent += out.send(piece)
    return sent / took / 1e6


def _fetched(outside: Place, port: int) -> float:
    room, got = bytearray(PIECE), 0
    with _connected(outside, port) as into:
        into.sendall(b"x")  # pasta of Debian 12 makes a connection when its client has said something
        began = time.monotonic()
        while (took := time.monotonic() - began) < SECONDS:
            got += into.recv_into(room)
    return got / took / 1e6


def _there_and_back(outside: Place, port: int) -> float:
    times = []
    with _connected(outside, port) as both:
        for _ in range(TRIPS):
            began = time.perf_counter()
            both.sendall(b"x")
            both.recv(1)
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6
