"""Disks without room, for tests."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
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


@contextlib.contextmanager
def small(place: Path, options: str) -> Iterator[Path]:
    """A disk of its own at ``place``, which is made. ``options``: size and more, as mount(8) takes them for tmpfs."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


MKFS = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-O", "quota,project", "-E", "quotatype=prjquota"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
"""What makes a file system that can have project quotas."""


@contextlib.contextmanager
def with_quotas(place: Path, kind: str) -> Iterator[Path]:
    """A disk of its own with project quotas at ``place``, which is made: some 300 MiB in a sparse file beside it."""
    place.mkdir(parents=True, exist_ok=True)
    image = place.with_name(f"{place.name}.img")
    with open(image, "wb") as stream:
        stream.truncate(320 << 20)
    subprocess.run([*MKFS[kind], image], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["mount", "-o", "loop,prjquota", image, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
        image.unlink()
