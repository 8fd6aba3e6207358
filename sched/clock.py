"""The kernel's clock and its name for this boot."""

from __future__ import annotations

import time


def boot_id() -> str:
    """The kernel's name for this boot; proc(5)."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def ticks() -> float:
    """Seconds since boot, suspend included: time limits are judged by a clock that nobody can set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
