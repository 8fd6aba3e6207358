"""Disks without room, for tests."""

from __future__ import annotations

from pathlib import Path


def fill(disk: Path) -> Path:
    """A file that takes what is left."""
    ballast = disk / "ballast"
    with open(ballast, "ab", buffering=0) as stream:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    stream.write(bytes(size))
            except OSError:
                continue
    return ballast
