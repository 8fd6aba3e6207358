"""The line of each value of a JSON document. Python's ``json`` keeps no positions, so the text is read once more to find them."""

from __future__ import annotations

from collections.abc import Iterator

from dockless.base.later import re

Path = tuple[str | int, ...]
DEEPEST = 32
"""Values that are nested deeper have no line of their own; the line of what they are in is told. A path for each of them could take a
thousand times as much memory as the document."""
_PIECE = r'"(?:[^"\\\n]|\\.)*"|[\[\]{}:,\n]|[^\s"\[\]{}:,]+'


def lines_of(text: str) -> dict[Path, int]:
    """The line of each key and of each item of a list, by its path. ``text``: valid JSON."""
    found: dict[Path, int] = {}
    for path, line, _ in _places(text):
        found.setdefault(path, line)
    return found


def twice(text: str) -> int:
    """The line of the first key that is in the same object twice: that of the second one. 0 where there is none."""
    seen: set[Path] = set()
    for path, line, is_key in _places(text):
        if is_key and path in seen:
            return line
        if is_key:
            seen.add(path)
    return 0


def _places(text: str) -> Iterator[tuple[Path, int, bool]]:
    """The path and the line of each value, and whether it is a key."""
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
