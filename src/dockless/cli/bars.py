"""Bars on a terminal: one line per layer with a bar for the download and one for the unpacking, and a line for all of them.

::

    all of it                                           31.0/98.2 MiB  24.1 MiB/s  0:00:03
    1/3 2c4d8f9e1a2b  ━━━━━━━━━━━━━━━━ ━━━━━━━━━━━━━━━━  done
    2/3 91a0b7c2d3e4  ━━━━━━━━━━╸      ━━━━╸             12.1/30.0 MiB

Imported only where there is something to draw: rich takes longer to load than a sandbox to run.
"""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.progress import DownloadColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dockless.base.text import escaped
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.base.units import format_rate

if TYPE_CHECKING:
    from dockless.images.progress import Progress

_WIDTH = 16
_WORDS = {"done": "done", "shared": "already there", "verifying": "verifying"}


class _Two(ProgressColumn):
    """The bytes that have come, and those of them that are unpacked."""

    max_refresh = 0.1

    def render(self, task: Task) -> RenderableType:
        if task.fields["step"] is None:
            return Text("")
        both = Table.grid(padding=(0, 1))
        moving, unpacking = task.fields["moved"], task.fields["unpacked"]
        if task.fields["step"].state == "downloading":
            unpacking = unpacking or 0  # it will come to that
        values = [value for value in (moving, unpacking) if value is not None] or [0]
        width = _WIDTH if len(values) == 2 else 2 * _WIDTH + 1
        both.add_row(*(ProgressBar(task.total or None, value, width=width, pulse=not task.total) for value in values))
        return both


class _Where(ProgressColumn):
    """Bytes, or a word where they no longer matter."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = DownloadColumn(binary_units=True)

    def render(self, task: Task) -> RenderableType:
        step = task.fields["step"]
        word = _WORDS.get(step.state) if step is not None else None
        return Text(word, style="dim") if word else self._bytes.render(task)


class _Speed(ProgressColumn):
    def render(self, task: Task) -> RenderableType:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else format_rate(speed))


class _OfAll(ProgressColumn):
    """A column of the first line only."""

    def __init__(self, inner: ProgressColumn) -> None:
        super().__init__()
        self._inner = inner

    def render(self, task: Task) -> RenderableType:
        return self._inner.render(task) if task.fields["step"] is None else Text("")


class Bars:
    """Not for several threads at once."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            _Two(),
            _Where(),
            _OfAll(_Speed()),
            _OfAll(TimeRemainingColumn()),
        )
        console = Console(stderr=True)
        self._room = max(4, console.height - 3)
        self._live = Live(*columns, console=console, transient=True)
        self._live.start()
        self._all = self._live.add_task("all of it", total=None, step=None, moved=None, unpacked=None)
        self._tasks: dict[tuple[str, int], Any] = {}

    def stop(self) -> None:
        self._live.stop()

    def step(self, step: Progress) -> None:
        key = (step.image, step.layer)
        if key not in self._tasks:
            about = escaped(f"{step.layer}/{step.layers} {step.digest.partition(':')[2][:12]}")
            self._tasks[key] = self._live.add_task(about, total=step.total, step=step, moved=None, unpacked=None)
        task = self._live.tasks[self._live.task_ids.index(self._tasks[key])]
        fields: dict[str, Any] = {"step": step}
        total = step.total or task.total
        over = step.state in ("done", "shared")
        if over:
            total = total or step.done
            fields |= {name: total for name in ("moved", "unpacked") if task.fields[name] is not None} or {"moved": total}
            # Where there are more layers than lines, those that are there make room.
            fields["visible"] = len(self._tasks) < self._room
        else:
            fields["moved" if step.state in ("downloading", "uploading") else "unpacked"] = step.done
        completed = total if over and total is not None else max(task.completed, step.done)
        self._live.update(task.id, total=total, completed=completed, **fields)
        layers = [one for one in self._live.tasks if one.fields["step"] is not None and one.fields["step"].state != "shared"]
        totals = [one.total for one in layers]
        known = sum(one or 0 for one in totals) if all(one is not None for one in totals) else None
        self._live.update(self._all, completed=sum(one.completed for one in layers), total=known)
