"""pytest's directories are closed to other users. For a test in which they come in, the way is open, and closed again afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def passable(directory: Path) -> Iterator[None]:
    """Everybody may pass it and list it, and those above it."""
    before = {one: one.stat().st_mode & 0o7777 for one in (directory, *directory.parents)}
    closed = {one: mode for one, mode in before.items() if mode & 0o55 != 0o55}
    try:
        for one, mode in closed.items():
            one.chmod(mode | 0o55)
        yield
    finally:
        for one, mode in closed.items():
            one.chmod(mode)
