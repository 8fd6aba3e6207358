"""A call that goes on: from the sandbox that it is lent to the end of everything in it."""

from __future__ import annotations

import _thread
import contextlib
import math

from dockless.base.typing import TYPE_CHECKING
from dockless.errors import DocklessError
from dockless.sandbox.zygote.answers import Conversation, Said

if TYPE_CHECKING:
    from dockless.sandbox.zygote.server import ZygoteProcess


class Running:
    """A call. ``wait`` ends it; it is to be called once. ``kill``: from any thread."""

    def __init__(self, zygote: ZygoteProcess, request: bytes, limit: int, most: int) -> None:
        self._killed = self._over = False
        self._lock = _thread.allocate_lock()
        self.out_of_memory = False
        """Whether the kernel killed something of it for memory; known when it has ended without an answer."""
        self._zygote = zygote
        self.box = box = zygote.lend_seat()
        self._talk = Conversation(box.channel, box.status, box.output, request, limit=limit, most=most)

    def wait(self, timeout: float = math.inf) -> Said:
        """What came of it, when it and all that it has started have ended. ``BadAnswer``, ``ZygoteLost``"""
        try:
            said = self._talk.run(timeout)
            if said.outcome is None and not said.late and not self._killed:
                if said.status is None:
                    raise self._zygote.lost("while a call ran")
                group = self.box.cgroup
                self.out_of_memory = group is not None and bool(group.usage(pressure=False).oom_kills)
            return said
        finally:
            with self._lock:
                self._over = True
            self._zygote.end_seat(self.box)

    def kill(self) -> None:
        """End it now. When it is over its descriptors may be another call's by now, so nothing is done then."""
        with self._lock:
            self._killed = True
            if not self._over:
                with contextlib.suppress(DocklessError):
                    self.box.kill()
