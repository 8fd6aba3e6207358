"""Waiting for a foreground sandbox while signals come in.

The program has a session of its own, so a terminal's Ctrl-C reaches only us: the first one is passed on as SIGINT, the second one kills
everything inside. SIGTERM, SIGHUP and a few others are passed on. Whatever happens, leaving the ``with`` of the sandbox cleans up.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator
from types import FrameType, TracebackType

from dockless.base import signal
from dockless.base.typing import TYPE_CHECKING, Any, Protocol
from dockless.errors import SandboxGone

if TYPE_CHECKING:
    from dockless._box import Sandbox
    from dockless._executing import Execution
    from dockless.sandbox.run.process import Exit

PASSED_ON = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH") if hasattr(signal, name)
)


def on_terminals() -> bool:
    """Whether all three of our standard streams are terminals."""
    return all(map(os.isatty, range(3)))


class Signals:
    """Collects signals from its ``with`` on, before the sandbox exists: none is lost, none kills us half way."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._interrupts = 0
        self._running = False
        self._before: dict[int, Any] = {}
        self._wake = self.woken = -1

    def __enter__(self) -> Signals:
        self.woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in PASSED_ON:
            self._before[number] = signal.signal(number, self._note)
        self._before_wake = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._before_wake)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.woken)
        os.close(self._wake)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1 and not self._running:
                raise KeyboardInterrupt  # a start that hangs
        self._waiting.append(number)

    def wait(self, box: Sandbox[Any] | Execution[Any]) -> Exit:
        """Until everything inside has ended."""
        self._running = True
        poller = select.poll()
        poller.register(box.fileno(), select.POLLIN)
        poller.register(self.woken, select.POLLIN)
        passed = 0
        while True:
            for number in self._taken():
                passed += number == signal.SIGINT
                if passed > 1:
                    box.kill()
                else:
                    _pass_on(box, number)
            poller.poll()
            if (ended := box.poll()) is not None:
                return ended

    def pass_on(self, box: Receiver) -> None:
        """All that has come, to one that is not ours to end."""
        self._running = True
        for number in self._taken():
            _pass_on(box, number)

    def _taken(self) -> Iterator[int]:
        """What has come since."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.woken, 4096)
        while self._waiting:
            yield self._waiting.pop(0)


class Receiver(Protocol):
    """A sandbox, or a command in one."""

    def send_signal(self, number: int) -> None: ...


def _pass_on(box: Receiver, number: int) -> None:
    try:
        box.send_signal(number)
    except SandboxGone:  # it is just ending
        pass
