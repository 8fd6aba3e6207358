"""What a run that was killed, or whose mutant broke the clean-up, left running: its processes and their cgroups."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from support import apart


def end(pid: int) -> None:
    """End everything that the test run with this pid started, by the mark that it made; groups of ours in which it lived are removed."""
    groups: set[Path] = set()
    deadline = time.monotonic() + 10
    while (pids := apart.marked_by(pid)) and time.monotonic() < deadline:
        for one in pids:
            groups |= _groups(one)
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.02)
    for group in (*groups, *{group.parent for group in groups}):  # a user's group goes when all in it have
        with contextlib.suppress(OSError):
            group.rmdir()


def _groups(pid: int) -> set[Path]:
    from support.requires import cgroup2_mount

    top = cgroup2_mount()
    try:
        own = next((line[3:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::")), "/")
    except OSError:
        return set()
    return {top / own.lstrip("/")} if top is not None and "/dockless/" in own else set()
