"""Calls of a zygote that has imported numpy, beside cold starts of a Python that imports it, in turns.

The image is the host's Python with numpy, which pip brings.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.report import Table
from benchmarks.scene import REPOSITORY, Scene

IMAGE = "dockless-bench-python:latest"
CODE = "import numpy\nfloat(numpy.hypot(3, 4))"
WANTED_PART, WANTED_RATE = 1 / 20, 500
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
    with dockless.Zygote(IMAGE, ["numpy"], size=8) as ready:
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
        _rate(table, ready, calls)
        _memory(table, ready)
    return table


def _rate(table: Table, ready: object, calls: int) -> None:
    from dockless import Zygote

    assert isinstance(ready, Zygote)
    best = 0.0
    for count in (1, 2, 4, 8):
        each = calls // count

        def work(each: int = each) -> None:
            for _ in range(each):
                ready.run_code(CODE)

        threads = [threading.Thread(target=work) for _ in range(count)]
        before, began = _processor(), time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - began
        rate, cost = each * count / took, (_processor() - before) / (each * count) * 1e3
        best = max(best, rate)
        table.rows.append(
            f"{rate:8.0f}  calls per second from {count} threads ({cost:.2f} ms of processor time each, without what its process takes)"
        )
        table.extra[f"rate_{count}"] = {"per_second": rate, "processor_ms": cost}
    table.rows.append(f"{best:8.0f}  at best (wanted {WANTED_RATE} on two cores: {'met' if best >= WANTED_RATE else 'MISSED'})")


def _processor() -> float:
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def _memory(table: Table, ready: object) -> None:
    from dockless import Zygote

    assert isinstance(ready, Zygote)
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
