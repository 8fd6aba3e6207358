"""Who starts a sandbox, restarts it, renames it, or mounts its files while it does not run: one at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time
from collections.abc import Iterator

from dockless.base.path import Path
from dockless.errors import BadInput
from dockless.sandbox.run.places import by_name
from dockless.sandbox.run.process import gone

_PATIENCE = 10.0
"""Seconds to wait for whoever starts the same sandbox, or acts on its files."""
_PATIENCE_WITH_FILES = 2.0
"""The same for a start while somebody has the files mounted: that may be a program that keeps them open for as long as it runs."""
FILES = "files"
"""The directory in a sandbox's own of who has its files mounted."""
_LOOK = 0.01
"""Seconds between looks at that lock."""


def choose(directory: Path, *, patience: float | None = None) -> int:
    """A lock for who starts it again, renames it, or mounts its files while it does not run: one at a time. It lasts until all copies of
    the descriptor are closed. ``BadInput`` where somebody else has it for long, ``SandboxGone`` where it was removed or
    renamed meanwhile."""
    id = by_name(directory).name
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise gone(id) from None
    deadline = time.monotonic() + (_PATIENCE if patience is None else patience)
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(fd), os.stat(directory)):
                    raise gone(id)
                return fd
            if time.monotonic() > deadline:
                hint = "try again when that has ended; in Python: box.files.close()"
                raise BadInput(f"{_holder(fd)} acts on the files of sandbox {id}, or starts it", subject=id, hint=hint)
            select.select([], [], [], _LOOK)
    except FileNotFoundError:
        os.close(fd)
        raise gone(id) from None
    except BaseException:
        os.close(fd)
        raise


def _holder(directory: int) -> str:
    """Who has the lock, as proc_locks(5) has it."""
    found = os.fstat(directory)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with contextlib.suppress(OSError, ValueError), open("/proc/locks") as locks:
        for line in locks:
            words = line.split()
            if words[1] == "FLOCK" and words[5] == place and int(words[4]) > 0:
                with open(f"/proc/{words[4]}/comm", errors="replace") as name:
                    return f"process {words[4]} ({name.read().strip()})"
    return "somebody"


@contextlib.contextmanager
def chosen(directory: Path) -> Iterator[None]:
    """For who starts it, renames it or ends its restarting."""
    fd = choose(directory, patience=_PATIENCE_WITH_FILES if os.path.lexists(directory / FILES) else None)
    try:
        yield
    finally:
        os.close(fd)
