"""Many threads of one process that start at the same time: how many starts a second, and what a start takes of the processors.

The contenders take turns of a second each, in a new random order every round, so that a neighbour disturbs all of them alike.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import statistics
import threading
import time
from collections.abc import Callable

from benchmarks import peers
from benchmarks.report import Table
from benchmarks.scene import Scene
from benchmarks.worker import as_process

THREADS = (1, 2, 8, 32)
TURN = 1.0
BWRAP = "bwrap"


def threads(scene: Scene, rounds: int) -> Table:
    """Wanted: from 8 and from 32 threads no fewer starts than of bwrap, which mounts no overlay."""
    table = Table("threads", f"Threads that start at the same time: starts a second (medians of {rounds} turns of {TURN:g} s)")
    contenders = {"dockless": _sandbox(scene, "disk"), "dockless, read-only root": _sandbox(scene, "readonly")}
    if path := shutil.which("bwrap"):
        argv = peers._bwrap(scene, path)
        filter_file = scene.directory / "seccomp"
        contenders[BWRAP] = as_process([str(word) for word in argv], str(filter_file) if filter_file.exists() else "")
    for once in contenders.values():
        if once():
            table.notes.append("a contender does not run")
            return table
    for count in THREADS:
        turns: dict[str, list[tuple[float, float, float]]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name in random.sample([*contenders], len(contenders)):
                turns[name].append(_turn(contenders[name], count))
        for name, seen in turns.items():
            rate, ours, childrens = (statistics.median(column) for column in zip(*seen, strict=True))
            beside = ""
            if BWRAP in turns and name != BWRAP:
                beside = f", {statistics.median(a[0] / b[0] for a, b in zip(seen, turns[BWRAP], strict=True)):.2f} x bwrap"
            table.rows.append(
                f"{count:3} threads: {rate:5.0f}  {name}{beside} (processor time of a start: {ours:.2f} ms here, {childrens:.2f} ms inside)"
            )
            table.extra[f"{name}, {count}"] = {"rate": rate, "here_ms": ours, "inside_ms": childrens}
    return table


def _sandbox(scene: Scene, root: str) -> Callable[[], int]:
    from dockless.sandbox.run.foreground import ForegroundSandbox
    from dockless.sandbox.spec import Spec

    spec, null = Spec(argv=("/bin/true",), image=scene.image, root=root), os.open(os.devnull, os.O_RDWR)

    def once() -> int:
        with ForegroundSandbox(spec, stdin=null, stdout=null) as box:
            return box.wait().exit_code

    return once


def _turn(once: Callable[[], int], count: int) -> tuple[float, float, float]:
    """Starts a second; milliseconds of processor time for each, of this process and of its children."""
    made = [0] * count
    until = time.monotonic() + TURN

    def work(number: int) -> None:
        while time.monotonic() < until:
            once()
            made[number] += 1

    before = [_used(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    began = time.monotonic()
    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took, starts = time.monotonic() - began, sum(made)
    ours, childrens = (_used(who) - then for who, then in zip((resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN), before, strict=True))
    return starts / took, ours / starts * 1e3, childrens / starts * 1e3


def _used(who: int) -> float:
    found = resource.getrusage(who)
    return found.ru_utime + found.ru_stime
