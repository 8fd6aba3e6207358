"""Where the time of a start goes: the phases in Python by their clocks, the operations in the launcher by the flight recorder.

The phases are functions of the sandbox package, wrapped for the occasion. One that no longer exists is left out and named.
"""

from __future__ import annotations

import functools
import importlib
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.report import Table
from benchmarks.scene import Scene

PHASES = (
    ("find the image", "dockless.sandbox.run.foreground", "find_image"),
    ("make the cgroup", "dockless.sandbox.run.foreground", "make_cgroup"),
    ("the plan, ready or made", "dockless.sandbox.run.start", "prepared"),
    ("fds for its slots", "dockless.sandbox.run.prepared", "Prepared.slots"),
    ("  attach the device filter", "dockless.cgroups.group", "Cgroup.allow_devices"),
    ("make the directory", "dockless.sandbox.run.foreground", "occupy"),
    ("fill in a plan", "dockless.sandbox.run.start", "filled_in"),
    ("start to READY", "dockless.sandbox.run.process", "start"),
    ("  clone3 and exec", "dockless.native", "launch"),
    ("wait for STATUS", "dockless.sandbox.run.process", "Process.wait"),
    ("read the accounts", "dockless.cgroups.group", "Cgroup.usage"),
    ("close, reap", "dockless.sandbox.run.process", "Process.close"),
    ("remove the directory", "dockless.sandbox.run.foreground", "remove_tree"),
    ("remove the cgroup", "dockless.cgroups.group", "Cgroup.remove"),
)
SHOWN = 20


def detail(scene: Scene, rounds: int) -> Table:
    """Both halves, medians over ``rounds`` starts each."""
    table = Table("detail", f"Where a start goes (medians of {rounds}, microseconds; measuring costs some itself)")
    _python(table, scene, rounds)
    _launcher(table, scene, rounds)
    return table


def _spec(scene: Scene):
    from dockless.sandbox.spec import Spec

    return Spec(argv=("/bin/true",), image=scene.image)


def _python(table: Table, scene: Scene, rounds: int) -> None:
    from dockless.sandbox.run.foreground import ForegroundSandbox

    spec, null = _spec(scene), os.open(os.devnull, os.O_RDWR)
    starts: list[dict[str, float]] = []
    with _clocks() as (spent, missing):
        for number in range(rounds + 3):
            spent.clear()
            before = time.perf_counter()
            with ForegroundSandbox(spec, stdin=null, stdout=null) as box:
                box.wait()
            total = time.perf_counter() - before
            rest = total - sum(seconds for name, seconds in spent.items() if not name.startswith("  "))
            if number >= 3:  # the first ones import and compile
                starts.append({**spent, "the rest": rest, "total": total})
    os.close(null)
    labels = [label for label, _, _ in PHASES if label in starts[-1]] + ["the rest", "total"]
    table.rows += ["", "in Python: median, least"]
    for label in labels:
        seconds = [start[label] for start in starts if label in start]
        table.rows.append(f"{statistics.median(seconds) * 1e6:8.0f} {min(seconds) * 1e6:8.0f}  {label}")
        table.extra.setdefault("python_us", {})[label.strip()] = round(statistics.median(seconds) * 1e6, 1)
    if missing:
        table.notes.append(f"phases that are no more: {', '.join(missing)}")


@contextmanager
def _clocks() -> Iterator[tuple[dict[str, float], list[str]]]:
    """Every phase with a clock around it: its seconds, added up by name until somebody clears them."""
    spent: dict[str, float] = {}
    undo, missing = [], []
    for label, module_name, path in PHASES:
        owner = importlib.import_module(module_name)
        *between, last = path.split(".")
        try:
            for part in between:
                owner = getattr(owner, part)
            original = getattr(owner, last)
        except AttributeError:
            missing.append(f"{module_name}.{path}")
            continue
        undo.append((owner, last, original))
        setattr(owner, last, _clocked(original, label, spent))
    try:
        yield spent, missing
    finally:
        for owner, last, original in undo:
            setattr(owner, last, original)


def _clocked(function, label: str, spent: dict[str, float]):
    @functools.wraps(function)
    def clocked(*args, **kwargs):
        before = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[label] = spent.get(label, 0.0) + time.perf_counter() - before

    return clocked


def _launcher(table: Table, scene: Scene, rounds: int) -> None:
    from dockless.sandbox.plan import explain
    from dockless.sandbox.run.foreground import ForegroundSandbox

    spec, null = _spec(scene), os.open(os.devnull, os.O_RDWR)
    spent: dict[int, list[float]] = {}
    rows = []
    for _ in range(rounds):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        with ForegroundSandbox(spec, stdin=null, stdout=null, times=True) as box:
            box.wait()
            assert box.plan is not None
            rows = explain.rows(box.plan, box.process.record().times, before)
        for row in rows:
            spent.setdefault(row.index, []).append(row.seconds or 0.0)
    os.close(null)
    # The first one counts from before Python began.
    medians = [(statistics.median(spent[row.index]) * 1e6, min(spent[row.index]) * 1e6, row) for row in rows[1:]]
    by_actor: dict[str, float] = {}
    for value, _, row in medians:
        by_actor[row.actor] = by_actor.get(row.actor, 0.0) + value
    table.rows += ["", f"in the launcher: the {SHOWN} dearest of {len(rows)} operations: median, least"]
    for value, least, row in sorted(medians, key=lambda found: -found[0])[:SHOWN]:
        table.rows.append(f"{value:8.1f} {least:8.1f}  {row.actor:6} {row.operation:12} {row.words[:90]}")
    table.rows += [f"{value:8.0f}  {actor}, all of its operations" for actor, value in by_actor.items()]
    table.extra["launcher_us"] = [{"actor": r.actor, "operation": r.operation, "words": r.words, "us": round(v, 1)} for v, _, r in medians]
