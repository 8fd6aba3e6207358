"""What a call waits for, apart from the waiting: a program without an event loop blocks, one with a loop lets it wait."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Iterator

from dockless.base.dataclass import dataclass
from dockless.base.typing import TypeVar

T = TypeVar("T")
_LONGEST = 86400.0
"""Seconds of one poll(2), whose argument has 31 bits of milliseconds."""


def readable(fd: int, timeout: float | None = None) -> bool:
    """Whether it becomes readable within ``timeout`` seconds; None or infinity: wait for as long as it takes. Any descriptor: those of
    select(2) end at 1,023."""
    poller = select.poll()  # one for each caller: a poll object refuses a second thread
    poller.register(fd, select.POLLIN)
    if timeout is None or timeout == math.inf:
        return bool(poller.poll())
    end = time.monotonic() + timeout
    while True:
        left = max(0.0, end - time.monotonic())
        if poller.poll(math.ceil(min(left, _LONGEST) * 1000)):
            return True
        if left <= _LONGEST:
            return False


@dataclass(frozen=True, slots=True)
class Pause:
    """Until ``fd`` is readable, but no longer than ``seconds``; -1 is no descriptor."""

    fd: int
    seconds: float | None


def blocking(steps: Iterator[T | Pause]) -> Iterator[T]:
    """What the steps give, each pause made by blocking."""
    for step in steps:
        if not isinstance(step, Pause):
            yield step
        elif step.fd < 0:
            time.sleep(step.seconds or 0.0)
        else:
            readable(step.fd, step.seconds)
