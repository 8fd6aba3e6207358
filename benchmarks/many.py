"""Many at a time: sandboxes that run at once, forks of one, commands in one from one loop of asyncio. What they take, and what is left.

::

    many        n detached sandboxes: memory of each, a start among them, a list of them, the end of all
    forks       n forks of one with some files
    together    n commands in one sandbox from one loop
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.machine import available_memory
from benchmarks.report import Table
from benchmarks.scene import Scene

SLEEP = ["/bin/sleep", "1000"]
WANTED_KIB = 49
FILES, FILE_SIZE = 100, 10_000


def many(scene: Scene, count: int) -> Table:
    """Wanted: at most 49 KiB of PSS each beside the job's own; a start, a list and an end cost each sandbox the same however many run."""
    import dockless

    table = Table("many", f"{count} detached sandboxes at once")
    dockless.start(scene.image, SLEEP).rm(force=True)
    before, memory = left(), available_memory()
    boxes, starts = [], []
    listed: dict[int, tuple[float, float]] = {}
    try:
        for number in range(count):
            began = time.perf_counter()
            boxes.append(dockless.start(scene.image, SLEEP, id=f"many-{number}"))
            starts.append(time.perf_counter() - began)
            if number + 1 in (1, count // 10, count):
                listed[number + 1] = (_best(dockless.list), _best(_command("ps", "-q")))
        each = (memory - available_memory()) / count / 1024
        tenth = max(1, count // 10)
        for name, some in (("first", starts[:tenth]), ("last", starts[-tenth:])):
            median, least = statistics.median(some) * 1e3, min(some) * 1e3
            table.rows.append(f"a start among the {name} {tenth}: {median:.2f} ms (at best {least:.2f})")
            table.extra[f"{name}_starts_ms"] = {"median": median, "least": least}
        table.extra["memory_kb"] = each
        for running, (here, command) in listed.items():
            table.rows.append(f"{running:5} running: dockless.list() {here * 1e3:.1f} ms, dockless ps {command * 1e3:.0f} ms")
            table.extra[f"list_of_{running}_ms"], table.extra[f"ps_of_{running}_ms"] = here * 1e3, command * 1e3
        _memory(table, [box.inner.pid for box in boxes], each)
    finally:
        began = time.perf_counter()
        ids = [box.id for box in boxes]
        for verb in (["stop", "-q", "-t", "5"], ["rm", "-q", "-f"]):
            subprocess.run([sys.executable, "-P", "-m", "dockless", *verb, *ids], check=True)
            took = time.perf_counter() - began
            table.rows.append(f"dockless {verb[0]} of all: {took:.2f} s, {took / count * 1e3:.2f} ms each")
            table.extra[f"{verb[0]}_all_s"] = took
            began = time.perf_counter()
    _say_left(table, before)
    return table


def _memory(table: Table, keepers: list[int], each: float) -> None:
    """PSS of all keepers and inits: what they share is counted once, whatever is looked at."""
    if os.geteuid():
        table.notes.append("only root may read what a keeper holds")
        return
    sizes: dict[str, list[int]] = {}
    for keeper in keepers:
        for pid in [keeper, *_children(keeper)]:
            sizes.setdefault(Path(f"/proc/{pid}/comm").read_text().strip(), []).append(_pss(pid))
    of_one = {name: sum(of) / len(keepers) for name, of in sizes.items()}
    total = sum(of_one.values())
    parts = ", ".join(f"{name} {size:.1f}" for name, size in of_one.items())
    verdict = "met" if total <= WANTED_KIB else "MISSED"
    table.rows.append(
        f"memory of each: {total:.1f} KiB PSS ({parts}; wanted at most {WANTED_KIB}: {verdict}), {each:.0f} KiB of the machine's"
    )
    table.extra |= {"pss_kb": total, "pss_kb_of": of_one}


def forks(scene: Scene, count: int) -> Table:
    """Nothing is wanted: what a fork takes of time and disk."""
    import dockless

    table = Table("forks", f"fork({count}) of a sandbox with {FILES} files of {FILE_SIZE} bytes")
    before, made = left(), []
    files = f"mkdir /files; for i in $(seq {FILES}); do head -c {FILE_SIZE} /dev/urandom >/files/$i; done; exec sleep 1000"
    box = dockless.start(scene.image, ["sh", "-c", files])
    try:
        while box.exec("test", "-e", f"/files/{FILES}").returncode:
            time.sleep(0.1)
        for n in (1, count):
            os.sync()
            disk, began = _disk(scene.directory), time.perf_counter()
            some = box.fork(n)
            took = time.perf_counter() - began
            made += some
            os.sync()
            disk = (_disk(scene.directory) - disk) // 1024
            table.rows.append(f"fork({n}): {took * 1e3:.1f} ms, {took / n * 1e3:.2f} each; {disk} KiB of disk, {disk / n:.0f} each")
            table.extra[f"fork_{n}"] = {"ms": took * 1e3, "disk_kb": disk}
    finally:
        began = time.perf_counter()
        for one in [*made, box]:
            one.rm(force=True)
        table.rows.append(f"rm of all: {(time.perf_counter() - began) / (len(made) + 1) * 1e3:.2f} ms each")
        dockless.Store().prune()
    _say_left(table, before)
    return table


def together(scene: Scene, count: int) -> Table:
    """Wanted: no thread for each, and no byte of one in another's stream."""
    from dockless import aio

    table = Table("together", f"{count} commands in one sandbox from one loop of asyncio")
    before = left()

    async def once(box: aio.Sandbox, number: int) -> bool:
        ran = await box.exec("cat", input=(sent := b"%d\n" % number * 1000))
        return bool(ran.stdout == sent and ran.stderr == b"")

    async def all_of_them() -> tuple[float, int, int]:
        async with aio.Sandbox(scene.image, SLEEP) as box:
            assert await once(box, 0)
            threads, began = threading.active_count(), time.perf_counter()
            tasks = [asyncio.create_task(once(box, number)) for number in range(count)]
            most = threads
            while not all(task.done() for task in tasks):
                most = max(most, threading.active_count())
                await asyncio.sleep(0.005)
            took = time.perf_counter() - began
            return took, most - threads, sum(not task.result() for task in tasks)

    took, more, wrong = asyncio.run(all_of_them())
    table.rows.append(f"{took:.2f} s, {count / took:.0f} a second; {more} more threads meanwhile; {wrong} wrong streams")
    table.extra |= {"seconds": took, "threads": more, "wrong": wrong}
    _say_left(table, before)
    return table


def left() -> dict[str, set[str]]:
    """What a sandbox is made of, as far as it is there now."""
    import dockless
    from dockless.cgroups import find_delegation
    from dockless.sandbox.run.box import DETACHED, FOREGROUND, root
    from dockless.sandbox.run.host_names import directory_of

    dockless.list()  # collects what has ended
    home = find_delegation(ask_systemd=False)
    return {
        "directories": {str(path) for kind in (DETACHED, FOREGROUND) for path in root(kind).glob("*")},
        "cgroups": {path.name for path in home.home.glob("*") if directory_of(path.name, root(DETACHED))} if home.path else set(),
        "mounts": {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()},
        "processes": {str(pid) for pid in _ours()},
        "descriptors": {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")},
    }


def _say_left(table: Table, before: dict[str, set[str]]) -> None:
    deadline = time.monotonic() + 10
    while (
        more := {kind: len(there - before[kind]) for kind, there in left().items() if there - before[kind]}
    ) and time.monotonic() < deadline:
        time.sleep(0.1)
    table.rows.append("left: " + (", ".join(f"{count} {kind}" for kind, count in more.items()) or "nothing"))
    table.extra["left"] = more


def _ours() -> list[int]:
    """Children of this process, and theirs."""
    return [below for pid in _children(os.getpid()) for below in (pid, *_children(pid))]


def _children(pid: int) -> list[int]:
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        found += [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    return found


def _pss(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _disk(place: Path) -> int:
    found = os.statvfs(place)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _best(once: Callable[[], object]) -> float:
    """The least of five, in seconds."""
    took = []
    for _ in range(5):
        began = time.perf_counter()
        once()
        took.append(time.perf_counter() - began)
    return min(took)


def _command(*words: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-P", "-m", "dockless", *words], stdout=subprocess.DEVNULL, check=True)
