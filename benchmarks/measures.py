"""The measurements. Each returns one table; each says in its first line what is asked of it."""

from __future__ import annotations

import os
import statistics
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import floor, machine, peers
from benchmarks.contender import Contender, ContenderFailed, worker
from benchmarks.race import BURST, Result, paired, race
from benchmarks.report import Comparison, Table
from benchmarks.scene import Scene

HERE, FRONT = "dockless", "dockless.run"
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Effort:
    """How many ``starts`` of what takes milliseconds, ``slow_starts`` of what takes tenths of seconds; ``limit``: seconds for one race,
    ``patience`` of these for quiet moments. ``at_once``: sandboxes."""

    starts: int = 300
    slow_starts: int = 40
    burst: int = BURST
    limit: float = 110.0
    patience: float = 60.0
    resident: int = 8 * GIB
    at_once: int = 1000
    only_peers: tuple[str, ...] = ()


def start(scene: Scene, effort: Effort) -> Table:
    """Wanted: at most 1.5 times floor.c, and faster than bwrap and crun as whole processes."""
    table = Table("start", "Start to exit of /bin/true: all namespaces, overlay on disk")
    contenders: list[Contender] = []
    for name, kind, note in ((HERE, "sandbox", "Sandbox(spec).wait()"), (FRONT, "run", "the front door")):
        try:
            contenders.append(worker(name, kind, scene.image, note=f"in one Python process: {note}"))
        except ContenderFailed as error:
            table.notes.append(f"{name} does not run: {error}")
    try:
        contenders += [floor.floor(scene), floor.plain(scene)]
    except floor.NoFloor as error:
        table.notes.append(f"no floor: {error}")
    found = peers.find(scene, engines=False, only=effort.only_peers)
    table.notes += found.absent
    try:
        table.results = race(
            table.key, [*contenders, *found.contenders], effort.starts, burst=effort.burst, limit=effort.limit, patience=effort.patience
        )
    finally:
        _close(contenders)
        found.close()
    wanted = {floor.NAME: 1.5, "bwrap": 1.0, "crun": 1.0}
    table.comparisons = _against(table.results, HERE, wanted) + _against(table.results, FRONT, {floor.NAME: 1.5}, only=(floor.NAME, HERE))
    return table


def memory(scene: Scene, effort: Effort) -> Table:
    """Wanted: a Python process that holds 8 GB starts at most 1.1 times as slowly as one that holds nothing."""
    table = Table("memory", "The same from a Python process that holds much memory")
    room = machine.available_memory() - 3 * GIB
    size = min(effort.resident, room // GIB * GIB)
    if size < GIB:
        table.notes.append(f"only {room / GIB + 3:.1f} GiB of memory are available: nothing to compare")
        return table
    if size < effort.resident:
        table.notes.append(f"{size // GIB} GiB instead of {effort.resident // GIB}: no more is available here")
    names = ("0 GiB", f"{size // GIB} GiB")
    contenders: list[Contender] = []
    try:
        for name, resident in zip(names, (0, size), strict=True):
            contenders.append(worker(name, "sandbox", scene.image, "--resident", str(resident), note=""))
            contenders[-1].note = f"{_resident(contenders[-1].pid) / GIB:.2f} GiB resident"
        table.results = race(table.key, contenders, effort.starts, burst=effort.burst, limit=effort.limit, patience=effort.patience)
    finally:
        _close(contenders)
    table.comparisons = _against(table.results, names[1], {names[0]: 1.1})
    return table


def command(scene: Scene, effort: Effort) -> Table:
    """Wanted: ``dockless run host -- true`` takes at most 1/3 of podman's time."""
    table = Table("command", "The command line as a whole process")
    name = "dockless run host"
    script = Path(sysconfig.get_path("scripts")) / "dockless"
    words: Sequence[str | Path] = [script] if script.exists() else [sys.executable, "-m", "dockless"]
    contenders: list[Contender] = []
    # As after an installation: compiled once, whatever this shell says. Our own place for it leaves the sources alone.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | {
        "PYTHONPYCACHEPREFIX": str(scene.directory / "pycache")
    }
    try:
        for label, tail in ((name, ["run", "host", "--", "true"]), ("dockless run image", ["run", scene.image, "--", "true"])):
            contenders.append(worker(label, "whole", "--", *words, *tail, note=" ".join(("dockless", *tail)), env=env))
        contenders.append(worker("python -c pass", "whole", "--", sys.executable, "-c", "pass", note="the interpreter alone", env=env))
    except ContenderFailed as error:
        table.notes.append(f"the command line does not run: {error}")
    found = peers.find(scene, engines=True, only=effort.only_peers)
    table.notes += found.absent
    try:
        table.results = race(
            table.key, [*contenders, *found.contenders], effort.slow_starts, burst=1, limit=effort.limit, patience=effort.patience
        )
    finally:
        _close(contenders)
        found.close()
    table.comparisons = _against(table.results, name, {"podman": 1 / 3})
    return table


def keeper(scene: Scene, effort: Effort) -> Table:
    """Wanted: at most 1 MB of PSS per running sandbox over the program's own."""
    from dockless.sandbox.run import detached
    from dockless.sandbox.spec import Spec

    table = Table("keeper", "Memory of a running detached sandbox, over the program's own")
    if os.geteuid():
        table.notes.append("only root may read what a keeper holds: /proc/PID/smaps_rollup of a process that nobody may trace")
        return table
    for count in (1, 20):
        boxes = []
        try:
            for number in range(count):
                boxes.append(detached.start(Spec(argv=("/bin/sleep", "600"), image=scene.image), id=f"bench-{count}-{number}"))
            sizes = [_overhead(box.pid) for box in boxes]
        finally:
            for box in boxes:
                box.kill()
                box.wait(10)
                box.remove()
        kilobytes = {key: statistics.median(size[key] for size in sizes) for key in sizes[0]}
        table.extra[f"pss_kb_of_{count}"] = kilobytes
        total = kilobytes["keeper"] + kilobytes["init"]
        verdict = "met" if total <= 1024 else "MISSED"
        table.rows.append(
            f"{count:3} running: keeper {kilobytes['keeper']:.0f} KiB + init {kilobytes['init']:.0f} KiB = {total:.0f} KiB PSS each"
            f" (the program, busybox sleep: {kilobytes['program']:.0f})   wanted at most 1024: {verdict}"
        )
    return table


def _overhead(keeper_pid: int) -> dict[str, int]:
    """PSS in KiB of a keeper, of its child (init) and of that one's child (the program)."""
    sizes, pid = {}, keeper_pid
    for name in ("keeper", "init", "program"):
        sizes[name] = _rollup(pid, "Pss")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pid = int(children[0]) if children else 0
    return sizes


def _rollup(pid: int, key: str) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def _resident(pid: int) -> int:
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def _against(results: Sequence[Result], name: str, wanted: dict[str, float], *, only: Sequence[str] = ()) -> list[Comparison]:
    """``name`` over every other contender that it shared rounds with."""
    by_name = {r.name: r for r in results}
    mine = by_name.get(name)
    if mine is None or not mine.seconds:
        return []
    comparisons = []
    for other in results:
        if other is mine or not other.seconds or (only and other.name not in only):
            continue
        comparisons.append(Comparison(name, other.name, paired(mine, other), paired(mine, other, min), wanted.get(other.name)))
    return comparisons


def _close(contenders: Sequence[Contender]) -> None:
    for contender in contenders:
        contender.close()


def detail(scene: Scene, effort: Effort) -> Table:
    """Nothing is wanted: where the time of a start goes."""
    from benchmarks.detail import detail as measure

    return measure(scene, min(effort.starts, 200))


def threads(scene: Scene, effort: Effort) -> Table:
    """Wanted: no fewer starts than of bwrap from the same threads."""
    from benchmarks.threads import threads as measure

    return measure(scene, max(3, min(9, effort.starts // 30)))


def entering(scene: Scene, effort: Effort) -> Table:
    """A program in a sandbox that runs."""
    from benchmarks.entering import entering as measure

    return measure(scene, max(20, effort.starts // 3))


def pool(scene: Scene, effort: Effort) -> Table:
    """Sandboxes that wait for a program."""
    from benchmarks.pool import pool as measure

    return measure(scene, max(20, effort.starts // 3), min(effort.at_once, 100))


def zygote(scene: Scene, effort: Effort) -> Table:
    """Calls in a Python that has imported numpy."""
    from benchmarks.zygote import zygote as measure

    return measure(scene, max(10, effort.slow_starts // 2), max(200, effort.starts))


def networks(scene: Scene, effort: Effort) -> Table:
    """What a network adds to a start, what passes through it, and how many it holds."""
    from benchmarks.networks import networks as measure

    return measure(scene, max(8, effort.slow_starts), effort.at_once // 2, max(3, effort.slow_starts // 8))


def many(scene: Scene, effort: Effort) -> Table:
    """Sandboxes that run at once."""
    from benchmarks.many import many as measure

    return measure(scene, effort.at_once)


def forks(scene: Scene, effort: Effort) -> Table:
    """Forks of one."""
    from benchmarks.many import forks as measure

    return measure(scene, effort.at_once // 10)


def together(scene: Scene, effort: Effort) -> Table:
    """Commands in one sandbox from one loop."""
    from benchmarks.many import together as measure

    return measure(scene, effort.at_once // 5)


def streams(scene: Scene, effort: Effort) -> Table:
    """Wanted: each way of reading a sandbox's output at 0.9 of the rate of ``subprocess``, at least."""
    from benchmarks.streams import streams as measure

    return measure(scene, max(3, effort.slow_starts // 4), 1 << 28)


def driver(scene: Scene, effort: Effort) -> Table:
    """The driver's files for a start with a GPU."""
    from benchmarks.driver import driver as measure

    return measure(scene, 50)


MEASURES: dict[str, Callable[[Scene, Effort], Table]] = {
    "start": start,
    "memory": memory,
    "command": command,
    "keeper": keeper,
    "detail": detail,
    "threads": threads,
    "exec": entering,
    "pool": pool,
    "zygote": zygote,
    "networks": networks,
    "many": many,
    "forks": forks,
    "together": together,
    "streams": streams,
    "driver": driver,
}
