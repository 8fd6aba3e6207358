"""What the GPUs' driver reports by itself, such as Xid errors: heard by a thread, for NVML can only be waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from dockless.base.typing import TYPE_CHECKING
from dockless.errors import DocklessError
from dockless.sched.engine.faults import describe, say

if TYPE_CHECKING:
    from dockless.sandbox.gpus.watch import Report

EVERY = 0.25
"""Seconds after which the thread looks whether the daemon ends."""


async def listen(uuids: Sequence[str], told: Callable[[Report], None]) -> None:
    """Until cancelled. ``uuids``: of whole GPUs; ``told``: called in the loop with each report."""
    if not uuids:
        return
    loop, over = asyncio.get_running_loop(), threading.Event()
    # A daemon thread: a driver that hangs keeps no daemon from ending.
    thread = threading.Thread(
        target=_hear, args=(uuids, over, lambda report: _tell(loop, told, report)), name="dockless-gpus", daemon=True
    )  # fmt: skip
    thread.start()
    try:
        await asyncio.Event().wait()
    finally:
        over.set()
        await asyncio.to_thread(thread.join, 4 * EVERY)


def _hear(uuids: Sequence[str], over: threading.Event, tell: Callable[[Report], None]) -> None:
    from dockless.sandbox.gpus import gpu, watch

    try:
        with gpu.session() as nvml:
            for found in watch.failures(nvml, uuids, EVERY):
                if over.is_set():
                    return
                if found is not None:
                    tell(found)
    except DocklessError as error:
        say(f"nothing is heard of failures of GPUs: {describe(error)}")


def _tell(loop: asyncio.AbstractEventLoop, told: Callable[[Report], None], report: Report) -> None:
    try:
        loop.call_soon_threadsafe(told, report)
    except RuntimeError:  # the daemon has ended
        pass
