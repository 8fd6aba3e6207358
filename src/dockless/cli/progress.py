"""What a pull, push, load or save tells while it runs, on standard error: bars on a terminal, lines elsewhere, nothing when quiet.

The drawing itself (and with it rich) is imported at the first event on a terminal, so a verb that has nothing to do pays nothing.
"""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dockless.base.exit_codes import INTERRUPTED
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.base.units import format_duration, format_size
from dockless.cli.output import err

if TYPE_CHECKING:
    from types import TracebackType

    from dockless.images.progress import Progress

LINE_EVERY = 15.0
"""Seconds between two lines about a layer that takes long, where there is no terminal."""
SUMMARY_FROM, SUMMARY_AFTER = 1 << 20, 1.0
"""Bytes and seconds that are worth a line about the speed."""
WRITTEN_FROM = 64 << 20
"""Bytes of a layer whose copying to a file is worth a line."""


class ProgressLine:
    """``with ProgressLine(quiet) as progress: store.load(…, progress=progress)``. One for each image or file."""

    def __init__(self, quiet: bool, *, verb: str = "read") -> None:
        self._quiet = quiet
        self._verb = verb
        self._lock = _thread.allocate_lock()
        self._bars: Any = None
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._over: set[tuple[str, int]] = set()
        self._moved: dict[tuple[str, int], int] = {}
        self._before: dict[tuple[str, int], int] = {}

    def __enter__(self) -> Callable[[Progress], None] | None:
        self._begun = self._last = time.monotonic()
        return None if self._quiet else self._step

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()
        moved, seconds = sum(self._moved.values()), time.monotonic() - self._begun
        if kind is None and moved >= SUMMARY_FROM and seconds >= SUMMARY_AFTER:
            err(f"{format_size(moved)} {self._verb} in {format_duration(round(seconds, 1))}, {format_size(moved / seconds)}/s")

    def _step(self, step: Progress) -> None:
        with self._lock:  # layers report from threads of their own
            key = (step.image, step.layer)
            if step.state != "shared":
                # What an earlier try had brought is not what this one did.
                before = self._before.setdefault(key, step.done if step.state == "downloading" and step.done > SUMMARY_FROM else 0)
                self._moved[key] = max(self._moved.get(key, 0), step.done - before)
            if not self._terminal:
                self._line(step, key)
                return
            if self._bars is None:
                from dockless.cli.bars import Bars

                self._bars = Bars()
            self._bars.step(step)

    def _line(self, step: Progress, key: tuple[str, int]) -> None:
        now = time.monotonic()
        if step.state in ("done", "shared"):
            if key in self._over:
                return
            self._over.add(key)
            if step.state == "done" and self._verb == "written" and step.done < WRITTEN_FROM:
                return
            what = "already there" if step.state == "shared" else f"done, {format_size(step.done)} {self._verb}"
        elif now - self._last < LINE_EVERY:
            return
        else:
            of = f" of {format_size(step.total)}" if step.total else ""
            what = f"{step.state}, {format_size(step.done)}{of}"
        self._last = now
        noun = "blob" if self._verb == "sent" else "layer"
        err(f"{step.image}: {noun} {step.layer}/{step.layers} {step.digest.partition(':')[2][:12]}: {what}")


@contextmanager
def resumable(doing: str) -> Iterator[None]:
    """An interrupt inside ends the program with one line instead of a traceback: nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        err(f"dockless: interrupted; what has come is kept: run the same command to go on with {doing}")
        raise SystemExit(INTERRUPTED) from None
