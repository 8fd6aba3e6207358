"""The live picture of ``dockless top`` on a terminal.

Imported only where there is something to draw: rich takes longer to load than a sandbox to run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dockless.base.text import escaped
from dockless.base.typing import TYPE_CHECKING
from dockless.base.units import format_size
from dockless.cli import overview
from dockless.cli.output import age

if TYPE_CHECKING:
    from dockless.sched.wire.top import GpuUse, Top

_WIDTH = 16


def show(look: Callable[[], Top], every: float) -> None:
    """Until Ctrl-C; looks again every so many seconds."""
    console = Console()
    try:
        with Live(picture(look()), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(picture(look()), refresh=True)
    except KeyboardInterrupt:
        pass


def picture(top: Top) -> RenderableType:
    """All of it; what does not fit on the terminal is cut off at its end, so what matters most comes first."""
    parts: list[RenderableType] = [_text(overview.headline(top), "bold"), _text("")]
    if top.gpus:
        parts += [_gpus(top.gpus), _text("")]
    for heads, rows in (overview.job_table(top.jobs), overview.user_table(top.users)):
        if rows:
            parts += [_table(heads, rows), _text("")]
    return Group(*parts, *(_text(line, "yellow") for line in overview.remarks(top)))


def _gpus(gpus: Sequence[GpuUse]) -> Table:
    found = _heads(("GPU", "MODEL", "BUSY", "", "MEMORY", "", "TEMP", "POWER", "HOLDER", "USER", "SINCE"))
    _, rows = overview.gpu_table(gpus)
    for gpu, (index, model, busy, _, degrees, watts, holder, user, _) in zip(gpus, rows, strict=True):
        used = "" if gpu.used is None else f"{format_size(gpu.used)} of {format_size(gpu.memory)}"
        style = "red" if gpu.trouble else "green" if holder == "free" else "yellow" if gpu.outside else ""
        found.add_row(
            *(_text(str(index)), _text(str(model)), _bar(gpu.busy), _text(str(busy))),
            *(_bar(None if gpu.used is None or not gpu.memory else gpu.used / gpu.memory), _text(used)),
            *(_text(str(degrees)), _text(str(watts)), _text(str(holder), style), _text(str(user)), _text(age(gpu.since))),
        )
    return found


def _bar(part: float | None) -> RenderableType:
    return _text("") if part is None else ProgressBar(1.0, min(part, 1.0), width=_WIDTH)


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    found = _heads(heads)
    for row in rows:
        found.add_row(*(_text(str(cell)) for cell in row))
    return found


def _heads(heads: Sequence[str]) -> Table:
    found = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        found.add_column(head, no_wrap=True)
    return found


def _text(text: str, style: str = "") -> Text:
    """Escaped as all that is printed: names are other people's words."""
    return Text(escaped(text), style, no_wrap=True, overflow="ellipsis")
