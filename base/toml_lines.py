"""The line of each key of a TOML document. Python's ``tomllib`` keeps no positions, so the text is read once more to find them."""

from __future__ import annotations

from collections.abc import Iterator

from dockless.base.later import re

Path = tuple[str | int, ...]
_TEXT = r'"(?:[^"\\\n]|\\.)*"|' r"'[^'\n]*'"
_KEY = rf"[ \t]*(?:{_TEXT}|[A-Za-z0-9_-]+)[ \t]*"
_BLANK = r"(?:[ \t\r\n]|#[^\n]*)*"
_HEAD = rf"(\[{{0,2}})({_KEY}(?:\.{_KEY})*)(?:\]{{1,2}}|=)"
_PIECE = r'"""(?:[^"\\]|\\[\s\S]|"(?!""))*"{3,5}|' r"'''(?:[^']|'(?!''))*'{3,5}|" rf"{_TEXT}|#[^\n]*|[\[\]{{}}\n]|[^\"'#\[\]{{}}\n]+|."
"""Texts, comments, what a value ends with, and all else."""


def lines_of(text: str) -> dict[Path, int]:
    """The line of each key, by its path: where the first statement begins that sets it. Keys within ``{ }`` are not among them. ``text``:
    valid TOML."""
    found: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    for line, brackets, keys in _statements(text):
        names = _names(keys)
        if brackets:
            table = path = _table(names, counts, new=brackets == "[[")
        else:
            path = (*table, *names)
        for end in range(1, len(path) + 1):
            found.setdefault(path[:end], line)
    return found


def _table(names: Path, counts: dict[Path, int], *, new: bool) -> Path:
    """Where the keys below a header are: in the newest table of a list. ``new``: it begins another one."""
    path: Path = ()
    for at, name in enumerate(names, 1):
        path = (*path, name)
        if new and at == len(names):
            counts[path] = counts.get(path, -1) + 1
        path = (*path, counts[path]) if path in counts else path
    return path


def _statements(text: str) -> Iterator[tuple[int, str, str]]:
    """Of each the line, the brackets before its keys, and the keys as they are written."""
    blank, head, piece = re.compile(_BLANK), re.compile(_HEAD), re.compile(_PIECE)
    at, line = 0, 1
    while True:
        start = blank.match(text, at)
        assert start is not None
        line += text.count("\n", at, start.end())
        match = head.match(text, start.end())
        if match is None:
            return
        yield line, match[1], match[2]
        at, depth = match.end(), 0
        for found in piece.finditer(text, at):
            if found[0] == "\n" and not depth:
                break
            depth += (found[0] in ("[", "{")) - (found[0] in ("]", "}"))
            at = found.end()
        line += text.count("\n", match.start(), at)


def _names(keys: str) -> Path:
    return tuple(_plain(match[0].strip(" \t")) for match in re.finditer(_KEY, keys))


def _plain(name: str) -> str:
    if name[:1] != '"':
        return name.strip("'")
    import tomllib

    return str(tomllib.loads(f"x = {name}")["x"])
