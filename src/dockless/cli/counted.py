"""How far something has come that has many like parts, on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.output import err
from dockless.cli.progress import LINE_EVERY

if TYPE_CHECKING:
    from types import TracebackType

BAR_AFTER = 0.5
"""Seconds that are worth a bar."""


class Counted:
    """``with Counted(quiet) as counted: counted("jobs sent", 500, 100_000)``."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._live: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Counted:
        self._begun = self._last = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, what: str, done: int, of: int) -> None:
        """``done`` of ``of`` parts are over. ``what``: which they are, in the plural, and what was done to them."""
        now = time.monotonic()
        if self._quiet:
            return
        if self._terminal:
            if self._live is not None or now - self._begun >= BAR_AFTER:
                self._bar(what, done, of)
        elif now - self._last >= LINE_EVERY:
            self._last = now
            err(f"{done:,} of {of:,} {what}")

    def _bar(self, what: str, done: int, of: int) -> None:
        if self._live is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._live = Progress(*columns, console=Console(stderr=True), transient=True)
            self._live.start()
        if what not in self._tasks:
            self._tasks[what] = self._live.add_task(what, total=of)
        self._live.update(self._tasks[what], completed=done)
