"""Networks: what one adds to a start, beside podman, docker and a C program that asks the kernel for the same; sandboxes that wait on their
networks; what passes through (``through.py``); many on one bridge.

In a network namespace of its own, so that no link or rule of this host is touched.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # their networks, and their other managers of networks

import dockless
from benchmarks.report import Table
from benchmarks.scene import Scene

HERE = Path(__file__).resolve().parent
TRUE = ["/bin/true"]
WANTED_MS, WANTED_WAITING_MS = 2.0, 1.2
FLOOR = "the network alone, in C"
ATTACH, RELEASE = "of a start: namespace, lease, table, links, addresses, routes", "of an end: table, connections, lease"
Once = Callable[[], float]


def networks(scene: Scene, rounds: int, count: int, passes: int) -> Table:
    """Wanted: a bridge adds at most 2 ms to a start, and at most 1.2 to one of a sandbox that waits. ``count``: sandboxes on one bridge;
    ``passes``: over each way that packets take."""
    table = Table("networks", f"Networks: starts of `true` (medians of {rounds} in turns, milliseconds), and what passes through")
    if os.geteuid():
        table.notes.append("bridges are root's: nothing to measure for an ordinary user")
        return table
    from support.networks import beside_the_world, own_network

    from benchmarks.network_peers import docker, podman
    from benchmarks.through import through

    with own_network() as here, beside_the_world(here) as outside, contextlib.ExitStack() as opened:
        dockless.networks.create("mine")
        engine = podman(scene, table.notes)
        daemon = opened.enter_context(docker(scene, table.notes))
        commands = {}
        for name, found in (("podman", engine), ("docker", daemon)):
            if found is not None:
                table.notes.append(f"{name} {found.version}")
                commands |= {f"{name} {network}": found.start(network) for network in ("none", "bridge")}
        _starts(table, scene, rounds, commands)
        through(table, scene, outside, engine, passes)
        _many(table, count)
    return table


def _starts(table: Table, scene: Scene, rounds: int, commands: dict[str, list[str]]) -> None:
    """In turns, and what each network adds to a start without one, in pairs."""
    null = {"stdin": dockless.DEVNULL, "stdout": dockless.DEVNULL, "stderr": dockless.DEVNULL}
    script = Path(sysconfig.get_path("scripts")) / "dockless"

    def ours(**options: object) -> Once:
        return _timed(lambda: dockless.run(scene.image, TRUE, **null, **options).returncode)

    def whole(argv: list[str]) -> Once:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return _timed(lambda: subprocess.run(argv, **quiet, check=False).returncode)

    def command(network: str) -> Once:
        return whole([str(script), "run", "--network", network, scene.image, "--", *TRUE])

    with contextlib.ExitStack() as opened:
        waiting = {name: opened.enter_context(dockless.Pool(scene.image, size=2, network=name)) for name in ("none", "bridge")}
        contenders: dict[str, tuple[Once, str]] = {
            "none": (ours(network="none"), ""),
            "bridge": (ours(network="bridge"), "none"),
            "bridge, a port": (ours(network="bridge", publish=["8080:80"]), "none"),
            "a user network": (ours(network="mine"), "none"),
            FLOOR: (_floor(scene), ""),
        }
        for name, ready in waiting.items():
            contenders[f"taken, {name}"] = (_taken(ready), "" if name == "none" else "taken, none")
        for name in ("none", "bridge"):
            contenders[f"dockless run, {name}"] = (command(name), "" if name == "none" else "dockless run, none")
        for name, argv in commands.items():
            contenders[name] = (whole(argv), "" if name.endswith(" none") else name.replace(" bridge", " none"))
        with _parts() as parts:
            seen = _in_turns({name: once for name, (once, _) in contenders.items()}, rounds)
    for name, pairs in seen.items():
        took, cpu = ([pair[at] for pair in pairs] for at in (0, 1))
        table.extra[name] = {"median_ms": statistics.median(took), "best_ms": min(took), "cpu_ms": statistics.median(cpu)}
        row = f"{statistics.median(took):8.2f}  {name} (at best {min(took):.2f}, processors {statistics.median(cpu):.2f})"
        if under := contenders[name][1]:
            adds, busy = (statistics.median(a[at] - b[at] for a, b in zip(pairs, seen[under], strict=True)) for at in (0, 1))
            table.extra[name] |= {"adds_ms": adds, "adds_cpu_ms": busy}
            row += f": {adds:+.2f} over {under}, processors {busy:+.2f}"
            wanted = {"bridge": WANTED_MS, "taken, bridge": WANTED_WAITING_MS}.get(name)
            if wanted is not None:
                row += f" (wanted at most {wanted:+.1f}: {'met' if adds <= wanted else 'MISSED'})"
        table.rows.append(row)
    for name, pairs in parts.items():
        took, cpu = ([pair[at] for pair in pairs] for at in (0, 1))
        table.extra[name] = {"median_ms": statistics.median(took), "best_ms": min(took), "cpu_ms": statistics.median(cpu)}
        table.rows.append(f"{statistics.median(took):8.2f}  {name} (at best {min(took):.2f}, processors {statistics.median(cpu):.2f})")
    for over, under in (("podman bridge", "dockless run, bridge"), ("docker bridge", "dockless run, bridge"), ("bridge", FLOOR)):
        if over in seen:
            ratio = statistics.median(a[0] / b[0] for a, b in zip(seen[over], seen[under], strict=True))
            table.rows.append(f"{ratio:8.2f}  {over} / {under}, in pairs")
            table.extra[f"{over} / {under}"] = ratio


def _in_turns(contenders: dict[str, Once], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Milliseconds of each, one for each round: by the clock, and of the processors, for this process and its children. What daemons do for
    it is in the first alone."""
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for round in range(rounds + 3):
        for name in random.sample([*contenders], len(contenders)):
            before = _processors()
            took = contenders[name]()
            if round >= 3:
                seen[name].append((took * 1e3, (_processors() - before) * 1e3))
            time.sleep(0.03)  # what the kernel clears in the background is done
    return seen


@contextlib.contextmanager
def _parts() -> Iterator[dict[str, list[tuple[float, float]]]]:
    """What of these starts and ends is for networks: milliseconds by the clock, and of the processors."""
    from dockless.sandbox.network import attach

    seen: dict[str, list[tuple[float, float]]] = {ATTACH: [], RELEASE: []}
    before = {"attach": attach.attach, "release": attach.release}

    def timed(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def measured(*args: object) -> object:
            clock, busy = time.perf_counter(), time.thread_time()
            try:
                return call(*args)
            finally:
                seen[name].append(((time.perf_counter() - clock) * 1e3, (time.thread_time() - busy) * 1e3))

        return measured

    attach.attach, attach.release = timed(ATTACH, attach.attach), timed(RELEASE, attach.release)
    try:
        yield seen
    finally:
        attach.attach, attach.release = before["attach"], before["release"]


def _processors() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _taken(ready: dockless.Pool) -> Once:
    """Until the program of one that waits runs; its end, and that another one is made in its place, are not in it."""
    null = {"stdin": dockless.DEVNULL, "stdout": dockless.DEVNULL, "stderr": dockless.DEVNULL}

    def once() -> float:
        began = time.perf_counter()
        with ready.take(TRUE, **null) as box:
            took = time.perf_counter() - began
            box.wait()
        return took

    return once


def _floor(scene: Scene) -> Once:
    """``netfloor.c``, which measures itself."""
    from dockless.sandbox.network import records
    from dockless.sandbox.network.host import Host

    program = scene.directory / "netfloor"
    subprocess.run(["gcc", "-O2", "-o", program, HERE / "netfloor.c"], check=True)
    dockless.run(scene.image, TRUE, network="mine")  # which makes the bridge
    index = Host().index_of(records.find("mine").bridge)
    return lambda: int(subprocess.run([program, str(index), "1"], check=True, capture_output=True).stdout) / 1e9


def _many(table: Table, count: int) -> None:
    """Starts on one bridge, the first tenth and the last."""
    from dockless.sandbox.network import leases
    from dockless.sandbox.network.host import Host

    boxes, times, own = [], [], []
    try:
        for _ in range(count):
            began, before = time.perf_counter(), time.process_time()
            boxes.append(dockless.start(["sleep", "1000"], network="mine"))
            times.append((time.perf_counter() - began) * 1e3)
            own.append((time.process_time() - before) * 1e3)
        there = len(leases.living(Host(), "mine"))
    finally:
        for box in boxes:
            box.inner.remove()
    tenth = max(1, count // 10)
    parts = {"first": slice(0, tenth), "last": slice(-tenth, None)}
    took = {name: statistics.median(times[part]) for name, part in parts.items()}
    ours = {name: statistics.median(own[part]) for name, part in parts.items()}
    table.rows.append(
        f"{there} sandboxes on one bridge: a detached start takes {took['first']:.1f} ms at first and {took['last']:.1f} at last,"
        f" {ours['first']:.1f} and {ours['last']:.1f} of them this process"
    )
    table.extra["many"] = {"sandboxes": there, "first_ms": took["first"], "last_ms": took["last"]}
    table.extra["many"] |= {"first_own_ms": ours["first"], "last_own_ms": ours["last"]}


def _timed(run: Callable[[], int]) -> Once:
    def once() -> float:
        began = time.perf_counter()
        status = run()
        took = time.perf_counter() - began
        assert status == 0, status
        return took

    return once
