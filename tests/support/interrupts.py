"""Ctrl-C at a chosen step: the signal is raised where Python would see it, after each call and at the begin of each function."""

from __future__ import annotations

import dis
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import dockless

_OURS = (str(Path(dockless.__file__).parent), "contextlib.py")
_SEEN_AFTER = frozenset(number for name, number in dis.opmap.items() if name.startswith("CALL") or name == "RESUME")


def interrupted(work: Callable[[], Any], at: int) -> int:
    """Run ``work`` with SIGINT at step ``at``, 0 for none: how many steps there were. ``KeyboardInterrupt`` where that was raised."""
    steps = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        name = frame.f_code.co_filename
        if not (name.startswith(_OURS[0]) or name.endswith(_OURS[1])):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and _before(frame) in _SEEN_AFTER:
            steps += 1
            if steps == at:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return steps


def _before(frame: FrameType) -> int:
    """The instruction that has just been carried out, without what only helps the interpreter."""
    code, at = frame.f_code.co_code, frame.f_lasti - 2
    while at >= 0 and code[at] == 0:  # CACHE
        at -= 2
    return code[at] if at >= 0 else -1


def children() -> set[int]:
    """Processes of ours, the dead ones that nobody waited for too."""
    return {int(word) for task in os.listdir("/proc/self/task") for word in Path(f"/proc/self/task/{task}/children").read_text().split()}
