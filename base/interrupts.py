"""Ctrl-C while something is half made.

Python raises ``KeyboardInterrupt`` between any two steps of the main thread, also after a process was started and before anybody has
written down its number. So where something is made or undone the interrupt is held back, and it is raised where we wait::

    with held():
        …                           what is made has no owner yet: an interrupt waits, for milliseconds
        with waiting():
            poll                    for the image's pull, the program's exec, the streams: an interrupt is raised
        …                           what was made is undone
"""

from __future__ import annotations

import sys
from types import FrameType, TracebackType

from dockless.base import signal

_current: held | None = None
"""The main thread's."""


def _in_main_thread() -> bool:
    threading = sys.modules.get("threading")  # which takes a millisecond, and without which there is no other
    return (
        threading is None or threading.get_ident() == threading.main_thread().ident
    )  # one that _thread began has no object, and gets none


class held:
    """``KeyboardInterrupt`` comes where ``waiting`` says or at the end of the block, a second one at once. Only Python's own handler is
    held back: a program that has another one decides for itself. signal(7)

    The end of the block can raise, so the block stands in the ``try`` that undoes what was made in it.
    """

    __slots__ = ("_comes", "_ours", "_waits")

    def __init__(self) -> None:
        self._ours = False
        self._waits = False  # for Ctrl-C
        self._comes = False  # it has come, and was not raised

    def __enter__(self) -> None:
        global _current
        if _current is not None:
            return  # the block is in one of these already, or in another thread
        if _in_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            _current = self
            signal.signal(signal.SIGINT, self._note)
            self._ours = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._waits or self._comes:
            self._waits = self._comes = False
            raise KeyboardInterrupt
        self._comes = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        global _current
        if not self._ours:
            return
        _current = None
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._comes and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt

    def wait(self) -> None:
        """From here on an interrupt is raised, also one that has come."""
        self._waits = True
        if self._comes:
            self._waits = self._comes = False
            raise KeyboardInterrupt

    def hold(self) -> None:
        """No more."""
        self._waits = False


class waiting:
    """``KeyboardInterrupt`` is raised in the block at once: all that was made so far has an owner."""

    __slots__ = ("_held",)

    def __enter__(self) -> None:
        self._held = _current if _current is not None and _in_main_thread() else None
        if self._held is not None:
            self._held.wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._held is not None:
            self._held.hold()
