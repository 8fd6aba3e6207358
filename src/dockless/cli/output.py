"""Tables, ages and JSON for people and scripts. No colours, no libraries."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dockless.units import format_duration


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], *, indent: str = "") -> None:
    """Left-aligned columns, two blanks between them; the last one is as wide as it likes."""
    cells = [list(heads), *([clean(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    for row in cells:
        print(indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def clean(text: str) -> str:
    """Without control characters: names and commands of other people must not drive this terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def age(since: float) -> str:
    """``3m``, ``2h``: the two largest parts of the time since then."""
    return span(time.time() - since) if since else ""


def span(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole >= 86400:
        whole -= whole % 3600
    elif whole >= 3600:
        whole -= whole % 60
    return format_duration(whole)


def print_json(value: Any, *, indent: int | None = None) -> None:
    import json

    json.dump(plain(value), sys.stdout, indent=indent, separators=(",", ": ") if indent else (", ", ": "), default=str)
    sys.stdout.write("\n")


def plain(value: Any) -> Any:
    """Records as dicts, all the way down."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value


def warn(text: str) -> None:
    print(f"dockless: {text}", file=sys.stderr)


def each(items: Iterable[Any], do: Callable[[Any], None], *, as_json: bool = False) -> int:
    """Do it for every item: one that fails is reported and the others go on. The exit code of the first failure, 0 without one."""
    from dockless.cli import report
    from dockless.errors import DocklessError

    code = 0
    for item in items:
        try:
            do(item)
        except (DocklessError, OSError) as error:
            failed = report(error, as_json=as_json)
            code = code or failed
    return code


def short(digest: str) -> str:
    """The beginning of a digest, as people copy it."""
    return digest.partition(":")[2][:12]


def confirmed(question: str) -> bool:
    """Ask on the terminal. Where there is none, whoever wrote the script has decided."""
    if sys.stdin is None or not sys.stdin.isatty():
        return True
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
