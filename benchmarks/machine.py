"""What it ran on, and how busy that was meanwhile."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any


def describe(directory: Path) -> dict[str, Any]:
    """Kernel, processor, memory, the file system of ``directory``, how Python was built."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _first("/proc/cpuinfo", "model name"),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "disk": _file_system(directory),
        "python": platform.python_version(),
        "root": os.geteuid() == 0,
        "cgroups": "v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1 or hybrid",
    }


def available_memory() -> int:
    """Bytes that can be had without swapping."""
    return int(_first("/proc/meminfo", "MemAvailable").split()[0]) * 1024


def _first(path: str, key: str) -> str:
    try:
        with open(path) as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
    except OSError:
        return ""


def _file_system(directory: Path) -> str:
    best, kind = "", ""
    with open("/proc/self/mounts") as lines:
        for line in lines:
            _, place, found, *_ = line.split()
            if (str(directory) + "/").startswith(place.rstrip("/") + "/") and len(place) >= len(best):
                best, kind = place, found
    return kind


class Noise:
    """How busy the machine was while something was measured: a context manager that fills ``figures``."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}

    def __enter__(self) -> Noise:
        self._before, self._clock, self._load = _ticks(), time.monotonic(), os.getloadavg()[0]
        return self

    def __exit__(self, *_: object) -> None:
        after = [b - a for a, b in zip(self._before, _ticks(), strict=True)]
        total = max(1, sum(after))
        self.figures = {
            "seconds": round(time.monotonic() - self._clock, 1),
            "load_before": round(self._load, 2),
            "load_after": round(os.getloadavg()[0], 2),
            "busy": round(1 - (after[3] + after[4]) / total, 2),
            "waiting_for_disk": round(after[4] / total, 2),
            "stolen": round(after[7] / total, 3),
        }


def _ticks() -> list[int]:
    with open("/proc/stat") as lines:
        return [int(word) for word in lines.readline().split()[1:9]]
