"""A program in a sandbox that runs already: ``box.exec``, beside a C program, ``dockless exec`` and those of crun and podman.

The contenders take turns in a new random order every round, so that a neighbour disturbs all of them alike.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from benchmarks import peers
from benchmarks.bundle import write_bundle
from benchmarks.contender import HERE
from benchmarks.report import Table
from benchmarks.scene import Scene
from benchmarks.worker import as_process

PROGRAM = "/bin/true"
ALIVE = ["/bin/sleep", "1000"]
FLOOR, DUTIES, RELAYED, OURS = "enter.c", "enter.c, same duties", "enter.c, same processes too", "box.exec"
WANTED = {FLOOR: "≤ 1.5 x", "crun exec": "≤ 1/5 x", "podman exec": "≤ 1/20 x"}
Once = Callable[[], float]


def entering(scene: Scene, rounds: int) -> Table:
    """Wanted: ``box.exec`` in at most 1.5 times what the C program takes, a fifth of crun's, a twentieth of podman's."""
    import dockless

    table = Table("exec", f"A program in a sandbox that runs (medians of {rounds} in turns, milliseconds)")
    with ExitStack() as opened:
        box = opened.enter_context(dockless.Sandbox(scene.image, ALIVE, stdin=dockless.DEVNULL, stdout=dockless.DEVNULL))
        contenders: dict[str, Once] = {OURS: _timed(lambda: box.exec(PROGRAM, stdout=dockless.DEVNULL, stderr=dockless.DEVNULL).returncode)}
        contenders["box.exec, captured"] = _timed(lambda: box.exec(PROGRAM).returncode)
        contenders["dockless exec"] = _process([sys.executable, "-P", "-m", "dockless", "exec", "-i", box.id, "--", PROGRAM])
        for make in (_floor, _duties, _relayed, _crun, _podman):
            with suppress(Unusable):
                name, once = opened.enter_context(make(scene, box))
                contenders[name] = once
        seen: dict[str, list[float]] = {name: [] for name in contenders}
        for once in contenders.values():
            once()
        for _ in range(rounds):
            for name in random.sample([*contenders], len(contenders)):
                seen[name].append(contenders[name]())
    for name, times in seen.items():
        ratio = statistics.median(a / b for a, b in zip(seen[OURS], times, strict=True))
        beside = "" if name == OURS else f"; box.exec takes {ratio:.2f} x of it" + (f" (wanted {WANTED[name]})" if name in WANTED else "")
        table.rows.append(f"{statistics.median(times):8.2f}  {name} (at best {min(times):.2f}{beside})")
        table.extra[name] = {"median_ms": statistics.median(times), "best_ms": min(times), "ratio": ratio}
    return table


class Unusable(Exception):
    """This contender does not run here."""


def _timed(run: Callable[[], int]) -> Once:
    def once() -> float:
        before = time.perf_counter()
        if run():
            raise Unusable("it failed")
        return (time.perf_counter() - before) * 1e3

    return once


def _process(argv: list[str]) -> Once:
    return _timed(as_process(argv, ""))


@contextmanager
def _floor(scene: Scene, box) -> Iterator[tuple[str, Once]]:
    with _program(scene, box, []) as once:
        yield FLOOR, once


@contextmanager
def _duties(scene: Scene, box) -> Iterator[tuple[str, Once]]:
    """The same program with what ``box.exec`` does besides: capabilities, the sandbox's own filter, a cgroup, word of the exec."""
    with _program(scene, box, _duties_of(scene, box)) as once:
        yield DUTIES, once


@contextmanager
def _relayed(scene: Scene, box) -> Iterator[tuple[str, Once]]:
    """And with its processes: a child of somebody else, made beforehand, is asked to do it."""
    with _program(scene, box, [*_duties_of(scene, box), "relayed"]) as once:
        yield RELAYED, once


def _duties_of(scene: Scene, box) -> list[str]:
    """The words that say what it has to do."""
    program = {op.name: op for op in box.inner.plan.ops}
    (scene.directory / "filter").write_bytes(program["SECCOMP"].a)
    return [f"{program['CAPS'].x:x}", str(scene.directory / "filter"), str(box.inner.cgroup.path) if box.inner.cgroup else ""]


@contextmanager
def _program(scene: Scene, box, more: list[str]) -> Iterator[Once]:
    if os.geteuid():
        raise Unusable("it is the floor of root")
    program = scene.directory / "enter"
    built = subprocess.run(["gcc", "-O2", "-static", "-o", program, HERE / "enter.c"], capture_output=True)
    if built.returncode:
        raise Unusable("it does not compile")
    kinds = 0x10000000 | next(op.x for op in box.inner.plan.ops if op.name == "HAND_OVER")
    argv = [program, str(box.pid), f"{kinds:x}", PROGRAM, *more]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as running:
        assert running.stdin is not None and running.stdout is not None
        if running.stdout.readline() != "ready\n":
            raise Unusable("it does not begin")

        def once() -> float:
            print(file=running.stdin)
            took, status = running.stdout.readline().split()
            if status != "0":
                raise Unusable(f"it ended with {status}")
            return int(took) / 1e6

        yield once


@contextmanager
def _crun(scene: Scene, box) -> Iterator[tuple[str, Once]]:
    path = shutil.which("crun")
    if path is None:
        raise Unusable("not installed")
    bundle = scene.directory / "bundle-exec"
    shutil.copytree(write_bundle(scene), bundle)
    config = json.loads((bundle / "config.json").read_text())
    config["process"]["args"] = ALIVE
    (bundle / "config.json").write_text(json.dumps(config))
    name, base = f"bench-exec-{os.getpid()}", [path, "--root", str(scene.directory / "crun-exec"), "--cgroup-manager=disabled"]
    with _private(scene, [*base, "run", "--detach", "--bundle", str(bundle), name]) as inside, ExitStack() as opened:
        opened.callback(subprocess.run, [*inside, *base, "delete", "--force", name], capture_output=True)
        yield "crun exec", _process([*inside, *base, "exec", name, PROGRAM])


@contextmanager
def _podman(scene: Scene, box) -> Iterator[tuple[str, Once]]:
    path = shutil.which("podman")
    if path is None:
        raise Unusable("not installed")
    base = peers._podman_base(scene, path)
    words = peers._podman(scene, path, cgroup=False)
    name = f"bench-exec-{os.getpid()}"
    start = [*words[:-2], "--detach", "--name", name, words[-2], *ALIVE]
    with _private(scene, start) as inside, ExitStack() as opened:
        opened.callback(subprocess.run, [*inside, *base, "rm", "--force", "--time", "0", name], capture_output=True)
        yield "podman exec", _process([*inside, *base, "exec", name, PROGRAM])


@contextmanager
def _private(scene: Scene, start: list[str]) -> Iterator[list[str]]:
    """What the peers are started in, and the words that run another command there."""
    holder = subprocess.Popen([*scene.private_mounts, "sh", "-c", "echo; exec sleep 1000"], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        inside = [shutil.which("nsenter") or "nsenter", "--mount", f"--target={holder.pid}"] if scene.private_mounts else []
        said = scene.directory / "said"  # no pipe: what goes on in there would hold it open
        with said.open("w") as out:
            done = subprocess.run([*inside, *start], stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=60)
        if done.returncode:
            print(f"benchmarks: {start[0]}: {said.read_text().strip()[-200:]}", file=sys.stderr)
            raise Unusable(f"{start[0]} does not start one")
        yield inside
    finally:
        holder.kill()
        holder.wait()
