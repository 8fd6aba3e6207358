"""Sandboxes that wait for their programs: a take and its program beside the plain exec of the same program and beside a start from nothing.

The contenders take turns in a new random order every round, so that a neighbour disturbs all of them alike. A take includes what a thread
does meanwhile to begin the next one.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.machine import available_memory
from benchmarks.many import _children, _pss
from benchmarks.report import Table
from benchmarks.scene import Scene

PROGRAM = ["/bin/true"]
PLAIN, RUN, TAKE, COLD = "plain exec", "pool.run", "pool.take, until it runs", "dockless.run"
WANTED_MS = 1.0
RUN_COMMAND, TAKE_COMMAND, NOTHING = "dockless run", "dockless run --pool", "dockless version"
Once = Callable[[], float]


def pool(scene: Scene, rounds: int, waiting: int) -> Table:
    """Wanted: a take and ``true`` in at most a millisecond more than ``true`` alone. ``waiting``: of how many the memory is measured."""
    import dockless

    table = Table("pool", f"Sandboxes that wait for a program (medians of {rounds} in turns, milliseconds)")
    null = {"stdin": dockless.DEVNULL, "stdout": dockless.DEVNULL, "stderr": dockless.DEVNULL}
    with dockless.Pool(scene.image, size=4) as ready:

        def take() -> float:
            began = time.perf_counter()
            with ready.take(PROGRAM, **null) as box:
                took = time.perf_counter() - began
                box.wait()
            return took

        contenders: dict[str, Once] = {
            PLAIN: _timed(lambda: _plain(scene.rootfs)),
            RUN: _timed(lambda: ready.run(PROGRAM, **null).returncode),
            TAKE: take,
            COLD: _timed(lambda: dockless.run(scene.image, PROGRAM, **null).returncode),
        }
        seen: dict[str, list[float]] = {name: [] for name in contenders}
        for round in range(rounds + 3):
            for name in random.sample([*contenders], len(contenders)):
                took = contenders[name]()
                if round >= 3:
                    seen[name].append(took * 1e3)
                time.sleep(0.01)  # what it has begun in the background is done
    for name, times in seen.items():
        over = statistics.median(a - b for a, b in zip(times, seen[PLAIN], strict=True))
        beside = "" if name == PLAIN else f"; {over:+.2f} over {PLAIN}"
        if name == RUN:
            beside += f" (wanted at most {WANTED_MS:+.2f}: {'met' if over <= WANTED_MS else 'MISSED'})"
        table.rows.append(f"{statistics.median(times):8.2f}  {name} (at best {min(times):.2f}{beside})")
        table.extra[name] = {"median_ms": statistics.median(times), "best_ms": min(times), "over_plain_ms": over}
    _memory(table, scene, waiting)
    _whole_commands(table, scene, max(10, rounds // 3))
    return table


def _timed(run: Callable[[], int]) -> Once:
    def once() -> float:
        began = time.perf_counter()
        assert run() == 0
        return time.perf_counter() - began

    return once


def _plain(rootfs: Path) -> int:
    """The quickest that Python has: posix_spawn(3)."""
    pid = os.posix_spawn(f"{rootfs}{PROGRAM[0]}", PROGRAM, {})
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _memory(table: Table, scene: Scene, count: int) -> None:
    """What sandboxes cost that wait."""
    import dockless

    with dockless.Pool(scene.image, size=1):
        before, descriptors = available_memory(), len(os.listdir("/proc/self/fd"))
        began = time.perf_counter()
        with dockless.Pool(scene.image, size=count) as many:
            took = (time.perf_counter() - began) / count * 1e3
            each, descriptors = (before - available_memory()) / count / 1024, len(os.listdir("/proc/self/fd")) - descriptors
            keepers = [box.process.keeper_pid for box in many._waiting._waiting]
            pids = [pid for keeper in keepers for pid in [keeper, *_children(keeper)]]
            mounts = sum(len(Path(f"/proc/{_children(keeper)[0]}/mountinfo").read_text().splitlines()) for keeper in keepers)
            row = f"{count} that wait, each: {len(pids) / count:.0f} processes, {each:.0f} KiB of memory, {mounts / count:.0f} mounts"
            if not os.geteuid():
                pss = sum(map(_pss, pids)) / count
                row += f", {pss:.0f} KiB PSS"
                table.extra["pss_kb"] = pss
            table.rows.append(f"{row}, {descriptors / count:.1f} descriptors of their owner's; made in {took:.2f} ms")
            table.extra |= {"memory_kb": each, "mounts": mounts / count, "descriptors": descriptors / count, "made_ms": took}


def _whole_commands(table: Table, scene: Scene, rounds: int) -> None:
    """The command line from its exec to its end, Python's own start among it; and what the process of a pool takes."""
    from dockless.sandbox.run import named_pools

    command = [sys.executable, "-P", "-m", "dockless"]
    subprocess.run([*command, "pool", "create", "-q", "bench", "--size", "4", scene.image], check=True)
    try:
        lines = {
            RUN_COMMAND: ["run", scene.image, "--", *PROGRAM],
            TAKE_COMMAND: ["run", "--pool", "bench", "--", *PROGRAM],
            NOTHING: ["version"],
        }
        null = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        seen: dict[str, list[float]] = {name: [] for name in lines}
        for round in range(rounds + 3):
            for name in random.sample([*lines], len(lines)):
                took = _timed(lambda line=lines[name]: subprocess.run([*command, *line], **null).returncode)()  # type: ignore[misc]
                if round >= 3:
                    seen[name].append(took * 1e3)
                time.sleep(0.02)
        less = statistics.median(a - b for a, b in zip(seen[RUN_COMMAND], seen[TAKE_COMMAND], strict=True))
        for name, times in seen.items():
            beside = f"; {less:.2f} less than {RUN_COMMAND}" if name == TAKE_COMMAND else ""
            table.rows.append(f"{statistics.median(times):8.2f}  whole command: {name} (at best {min(times):.2f}{beside})")
            table.extra[f"whole {name}"] = {"median_ms": statistics.median(times), "best_ms": min(times)}
        table.extra["pool_command_saves_ms"] = less
        (found,) = named_pools.list_all()
        of_kernel = f", {_pss(found.pid)} KiB PSS" if not os.geteuid() else ""
        table.rows.append(f"the process of a pool of 4: {found.memory // 1024} KiB in memory (RSS){of_kernel}")
        table.extra["pool_process_kb"] = found.memory / 1024
    finally:
        subprocess.run([*command, "pool", "rm", "-q", "bench"], check=True)
