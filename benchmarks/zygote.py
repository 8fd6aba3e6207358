"""Calls of a zygote that has imported numpy, beside cold starts of a Python that imports it, in turns.

The image is the host's Python with numpy, which pip brings.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Table
from benchmarks.scene import REPOSITORY, Scene

if TYPE_CHECKING:
    from dockless import Zygote

IMAGE = "dockless-bench-python:latest"
CODE = "import numpy\nfloat(numpy.hypot(3, 4))"
WANTED_PART, WANTED_RATE = 1 / 20, 500
TURNS = 3
_PSS = """
import numpy, time
numpy.hypot(3, 4)
time.sleep(seconds)
[int(line.split()[1]) for line in open('/proc/self/smaps_rollup') if line.startswith(('Pss:', 'Rss:', 'Private_C', 'Private_D'))]
"""


def zygote(scene: Scene, rounds: int, calls: int) -> Table:
    """Wanted: a call takes at most a twentieth of a cold start, and 500 of them fit into a second on two cores."""
    import dockless

    table = Table("zygote", f"Calls of a zygote with numpy (medians of {rounds} in turns, milliseconds)")
    why = _image(scene)
    if why:
        table.rows.append(why)
        return table
    null = {"stdin": dockless.DEVNULL, "stdout": dockless.DEVNULL, "stderr": dockless.DEVNULL}
    with (
        _account() as used,
        dockless.Zygote(IMAGE, ["numpy"], size=8) as ready,
        dockless.Zygote(IMAGE, ["numpy"], size=8, root="tmpfs") as in_memory,
    ):
        cold, warm = [], []
        for _ in range(rounds + 2):
            began = time.perf_counter()
            assert dockless.run(IMAGE, ["python3", "-c", CODE], **null).returncode == 0
            cold.append(time.perf_counter() - began)
            time.sleep(0.05)  # what is begun in the background is done
            began = time.perf_counter()
            assert ready.run_code(CODE).value == 5.0
            warm.append(time.perf_counter() - began)
            time.sleep(0.05)
        part = statistics.median(b / a for a, b in zip(cold[2:], warm[2:], strict=True))
        for name, times in (("dockless.run of a Python that imports numpy", cold[2:]), ("zygote.run_code", warm[2:])):
            table.rows.append(f"{statistics.median(times) * 1e3:8.2f}  {name} (at best {min(times) * 1e3:.2f})")
            table.extra[name] = {"median_ms": statistics.median(times) * 1e3, "best_ms": min(times) * 1e3}
        table.rows.append(f"{part:8.3f}  of the cold start (wanted at most {WANTED_PART}: {'met' if part <= WANTED_PART else 'MISSED'})")
        table.extra["part"] = part
        _rates(table, {"root on disk": ready, "root='tmpfs'": in_memory}, calls, used)
        _memory(table, ready)
    return table


@contextlib.contextmanager
def _account() -> Iterator[Callable[[], float] | None]:
    """Milliseconds of processor time that we and all that we have started since have taken, by a group of cgroup v1 that counts nothing
    else; None where there is no such hierarchy."""
    place = Path("/sys/fs/cgroup/cpuacct")
    if os.geteuid() or not (place / "cpuacct.usage").exists():
        yield None
        return
    groups = Path("/proc/self/cgroup").read_text().splitlines()
    before = next((line.split(":", 2)[2] for line in groups if ":cpuacct:" in line), "/")
    own = place / f"zygote-{os.getpid()}"
    own.mkdir()
    try:
        (own / "cgroup.procs").write_text("0")
        yield lambda: int((own / "cpuacct.usage").read_text()) / 1e6
    finally:
        Path(f"{place}{before}", "cgroup.procs").write_text("0")
        for _ in range(100):
            with contextlib.suppress(OSError):  # what was ended is still ending
                own.rmdir()
                break
            time.sleep(0.05)


def _rates(table: Table, zygotes: Mapping[str, Zygote], calls: int, used: Callable[[], float] | None) -> None:
    """Each zygote by each number of threads, in turns."""
    best = 0.0
    seen: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(TURNS):
        for count in (1, 2, 4, 8):
            for name, one in zygotes.items():
                seen.setdefault((name, count), []).append(_rate(one, count, calls, used or _processor))
    for (name, count), found in seen.items():
        rate, cost = (statistics.median(column) for column in zip(*found, strict=True))
        best = max(best, *(each for each, _ in found))
        whose = "in all" if used is not None else "without what its process takes"
        table.rows.append(f"{rate:8.0f}  calls per second, {name}, {count} threads ({cost:.2f} ms of processor time each, {whose})")
        table.extra[f"rate_{count}_{name}"] = {"per_second": rate, "processor_ms": cost}
    table.rows.append(f"{best:8.0f}  at best (wanted {WANTED_RATE} on two cores: {'met' if best >= WANTED_RATE else 'MISSED'})")


def _rate(one: Zygote, count: int, calls: int, used: Callable[[], float]) -> tuple[float, float]:
    each = calls // count

    def work() -> None:
        for _ in range(each):
            one.run_code(CODE)

    threads = [threading.Thread(target=work) for _ in range(count)]
    time.sleep(0.2)  # what was begun in the background is done
    before, began = used(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    time.sleep(0.5)
    return each * count / took, (used() - before) / (each * count)


def _processor() -> float:
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both) * 1e3


def _memory(table: Table, ready: Zygote) -> None:
    seen: list[list[int]] = []
    threads = [threading.Thread(target=lambda: seen.append(ready.run_code(_PSS, {"seconds": 3}).value)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rss, pss, clean, dirty = (statistics.median(column) for column in zip(*seen, strict=True))
    table.rows.append(f"{pss:8.0f}  KiB PSS of a call's process among {len(seen)} ({rss:.0f} RSS, {clean + dirty:.0f} of its own)")
    table.extra["memory_kb"] = {"pss": pss, "rss": rss, "private": clean + dirty}


def _image(scene: Scene) -> str:
    """Why there is none."""
    sys.path.append(str(REPOSITORY / "tests"))
    from support import python_images

    packages = Path(scene.directory, "packages")
    wanted = ["--no-deps", "--only-binary=:all:", "--python-version", python_images.version().removeprefix("python"), "numpy"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--retries", "1", "--target", str(packages), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        return f"no numpy to be had: {last[:200]}"
    python_images.load(Path(scene.directory), IMAGE, packages)
    return ""
