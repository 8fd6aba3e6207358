"""Waiting for an attached sandbox while signals come in.

The job has a session of its own, so a terminal's Ctrl-C reaches only us: the first one is passed on to the job as SIGINT, the second one
kills everything inside. SIGTERM, SIGHUP and a few others are passed on. Whatever happens, leaving the ``with`` of the sandbox cleans up.
"""

from __future__ import annotations

import os
import select
import signal
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from dockless.errors import SandboxGone

if TYPE_CHECKING:
    from dockless._box import Sandbox
    from dockless.sandbox.run.process import Exit

PASSED_ON = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH") if hasattr(signal, name)
)


class Signals:
    """Collects signals from its ``with`` on, before the sandbox exists: none is lost, none kills us half way."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._interrupts = 0
        self._running = False
        self._before: dict[int, Any] = {}
        self._wake = self._woken = -1

    def __enter__(self) -> Signals:
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in PASSED_ON:
            self._before[number] = signal.signal(number, self._note)
        self._before_wake = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._before_wake)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._woken)
        os.close(self._wake)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1 and not self._running:
                raise KeyboardInterrupt  # a start that hangs
        self._waiting.append(number)

    def wait(self, box: Sandbox) -> Exit:
        """Until everything inside has ended."""
        self._running = True
        poller = select.poll()
        poller.register(box.fileno(), select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        passed = 0
        while True:
            while self._waiting:
                number = self._waiting.pop(0)
                passed += number == signal.SIGINT
                if passed > 1:
                    box.kill()
                else:
                    _pass_on(box, number)
            ready = {fd for fd, _ in poller.poll()}
            if self._woken in ready:
                os.read(self._woken, 4096)
            if (ended := box.poll()) is not None:
                return ended


def _pass_on(box: Sandbox, number: int) -> None:
    try:
        box.send_signal(number)
    except SandboxGone:  # it is just ending
        pass
