"""On which line of a JSON document each value stands: the standard reader keeps no positions."""

from __future__ import annotations

from collections.abc import Iterator

from dockless.base.later import re

Path = tuple[str | int, ...]
DEEPEST = 32
"""What is nested deeper is found by what it is in: so the places of a document do not take a thousand times its room."""
_PIECE = r'"(?:[^"\\\n]|\\.)*"|[\[\]{}:,\n]|[^\s"\[\]{}:,]+'


def lines_of(text: str) -> dict[Path, int]:
    """The line of each key, or of what stands in a list, by its path. ``text``: a document that json reads."""
    found: dict[Path, int] = {}
    for path, line, _ in _places(text):
        found.setdefault(path, line)
    return found


def twice(text: str) -> int:
    """The line of the first key that its object has already, 0 for none."""
    seen: set[Path] = set()
    for path, line, is_key in _places(text):
        if is_key and path in seen:
            return line
        if is_key:
            seen.add(path)
    return 0


def _places(text: str) -> Iterator[tuple[Path, int, bool]]:
    """Each value's path and line, and whether a key is what is told."""
    import json

    path: list[str | int] = []  # the last of it: the key or the place of what comes next; "" in an object before its next key
    line, name = 1, ""
    for match in re.finditer(_PIECE, text):
        piece = match[0]
        if piece == "\n":
            line += 1
        elif piece in ("{", "["):
            if len(path) <= DEEPEST:
                yield tuple(path), line, False
            path.append("" if piece == "{" else 0)
        elif piece in ("}", "]"):
            path.pop()
        elif piece == ":":
            path[-1] = json.loads(name)
            if len(path) <= DEEPEST:
                yield tuple(path), line, True
        elif piece == ",":
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else ""
        else:
            name = piece
            if path and isinstance(path[-1], int) and len(path) <= DEEPEST:
                yield tuple(path), line, False
