"""Two runs of the tests on one machine do not see each other; and no test takes for ever.

A run marks itself: each of its processes, down to the jobs in sandboxes, inherits a soft RLIMIT_MSGQUEUE that no other run has, and
/proc/PID/limits shows it to everybody. getrlimit(2). Temporary files lie in a directory of the run's own.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import re
import resource
import shutil
import tempfile
import time
from pathlib import Path

TIME_LIMIT = float(
    os.environ.get("DOCKLESS_TEST_TIME_LIMIT", "180")
)  # seconds for one test, on a machine like the one they were written on
_REFERENCE = 0.015  # seconds that _work takes there
_HANG = 1.5  # times that for code in C that does not come back to Python: then the run ends, with every thread's stack
_TO_REPORT = 10.0
"""Seconds besides, for the failure to be told: on a machine that is busy with something else, whatever the limit of the test."""

_EVERYBODYS = "DOCKLESS_TEST_TMP"
"""Where all runs make their directories, also those that another run has started."""

_stderr = os.dup(2)  # pytest puts another file in its place while a test runs


def mark() -> None:
    """Make this process and everything it starts recognisable."""
    _, hard = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
    resource.setrlimit(resource.RLIMIT_MSGQUEUE, (_mark_of(os.getpid()), hard))


def _mark_of(pid: int) -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
    most = hard if hard != resource.RLIM_INFINITY else 1 << 24
    return most - 1 - pid % (most // 2)  # never what a process has that nobody marked


def _mark_on(pid: int | str) -> int | None:
    try:
        found = re.search(r"^Max msgqueue size +(\d+)", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else -1


def is_another_runs(pid: int | str) -> bool:
    """Whether a process was started by neither this run nor anything of it. False for one that is gone."""
    return _mark_on(pid) not in (None, resource.getrlimit(resource.RLIMIT_MSGQUEUE)[0])


def marked_by(pid: int) -> list[int]:
    """Every living process of the run with this pid."""
    return [int(one) for one in filter(str.isdigit, os.listdir("/proc")) if _mark_on(one) == _mark_of(pid)]


def own_temporary_directory() -> Path:
    """From now on temporary files are made in a fresh directory, everybody's as /tmp is. Its name is short: sockets lie below it."""
    os.environ.setdefault(_EVERYBODYS, tempfile.gettempdir())
    place = Path(tempfile.mkdtemp(prefix="t"))
    place.chmod(0o1777)
    tempfile.tempdir = os.environ["TMPDIR"] = str(place)
    return place


def everybodys_temporary_directory() -> Path:
    return Path(os.environ.get(_EVERYBODYS) or tempfile.gettempdir())


def remove(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)


@functools.cache
def slowness() -> float:
    """How many times slower this machine is, when it is first asked, than the one that TIME_LIMIT was made for; at least 1."""
    return max(1.0, min(_work() for _ in range(3)) / _REFERENCE)


def _work() -> float:
    start = time.perf_counter()
    total = 0
    for number in range(200_000):
        total += number & 7
    return time.perf_counter() - start


def end_the_run_after(seconds: float) -> None:
    """A watchdog without Python: also for a call that never returns or holds the interpreter's lock. ``forget_the_end`` calls it off."""
    faulthandler.dump_traceback_later(seconds * _HANG + _TO_REPORT, exit=True, file=_stderr)


def forget_the_end() -> None:
    faulthandler.cancel_dump_traceback_later()
