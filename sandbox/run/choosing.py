"""Who starts a sandbox, restarts it, or mounts its files while it does not run: one at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time
from collections.abc import Iterator

from dockless.base.path import Path
from dockless.errors import BadInput
from dockless.sandbox.run.process import gone

_PATIENCE = 10.0
"""Seconds to wait for whoever starts the same sandbox, or acts on its files."""
_LOOK = 0.01
"""Seconds between looks at that lock."""


def choose(directory: Path) -> int:
    """A lock for who starts it again, or mounts its files while it does not run: one at a time. It lasts until all copies of the descriptor
    are closed. ``BadInput`` where somebody else has it for long, ``SandboxGone``"""
    id = directory.name
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise gone(id) from None
    deadline = time.monotonic() + _PATIENCE
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            if time.monotonic() > deadline:
                hint = "try again when that has ended; in Python: box.files.close()"
                raise BadInput(f"somebody acts on the files of sandbox {id}, or starts it", subject=id, hint=hint)
            select.select([], [], [], _LOOK)
    except BaseException:
        os.close(fd)
        raise


@contextlib.contextmanager
def chosen(directory: Path) -> Iterator[None]:
    fd = choose(directory)
    try:
        yield
    finally:
        os.close(fd)
