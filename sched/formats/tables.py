"""Documents of keys and values. A format asks for each key that it knows, with a type; a key that was not asked for is an error.

What is wrong is noted, and the caller gets a default instead of the wrong value, so that reading goes on. At the end ``Source.refuse``
raises all that was noted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from dockless.base.findings import Findings
from dockless.base.later import re
from dockless.base.text import escaped, shown
from dockless.base.typing import Any
from dockless.errors import BadInput

Path = tuple[str | int, ...]
MOST = 10**9
_LISTED = 2000
"""Characters of a list of names in a hint."""


class Source(Findings):
    """The file, and what is wrong with it. ``notes``: what of the file has no effect. ``wrong_at``: the places of what is wrong."""

    def __init__(self, what: str, lines: Callable[[], Mapping[Path, int]] = dict) -> None:
        """``lines``: of values by their paths, where the format knows them; asked for once, and only for an error or a note."""
        super().__init__()
        self.what = what
        self.find_lines = lines
        self.notes: list[str] = []
        self._lines: Mapping[Path, int] | None = None
        self.wrong_at: set[Path] = set()

    def refuse(self) -> None:
        """In the order of the lines; what has none comes last."""
        self.errors.sort(key=lambda error: int(at[1]) if (at := re.match(rf"{re.escape(self.what)}:([0-9]{{1,9}})", str(error))) else MOST)
        super().refuse()

    def further(self) -> Source:
        """A copy to which more errors can be added, while this one stays as it is."""
        found = Source(self.what, self.find_lines)
        found.errors = [*self.errors]
        return found

    def line(self, path: Path) -> int:
        """The line of that value; 0 where it is not in the document, or its line is not known."""
        if self._lines is None:
            self._lines = self.find_lines()
        return self._lines.get(path, 0)

    def place(self, path: Path) -> str:
        """``file:12: a.b[0]``: the line of that value, or of what it is in."""
        line = next((line for end in range(len(path), -1, -1) if (line := self.line(path[:end]))), 0)
        return f"{self.what}{f':{line}' if line else ''}: {dotted(path)}".removesuffix(": ")

    def error(self, path: Path, why: str, hint: str) -> BadInput:
        self.wrong_at.add(path)
        return BadInput(escaped(f"{self.place(path)} {why}"), subject=escaped(dotted(path)) or self.what, hint=escaped(hint))

    def wrong(self, path: Path, why: str, hint: str) -> None:
        """Note what is wrong with a value. Of each value only the first error is noted."""
        if path not in self.wrong_at:
            self.add(self.error(path, why, hint))

    def note(self, path: Path, why: str) -> None:
        self.notes.append(f"{self.place(path)}: {why}")


def shown_value(value: object) -> str:
    """A value as a message shows it, in words of files and not of Python."""
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    return {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else shown(value)


def dotted(path: Path) -> str:
    text = ""
    for one in path:
        text += f"[{one}]" if isinstance(one, int) else f".{one[:60]}" if text else one[:60]
    return text


def _listed(names: list[str]) -> str:
    """The names as one text, cut between two names where it is too long."""
    text = ", ".join(names)
    return text if len(text) <= _LISTED else text[:_LISTED].rpartition(", ")[0] + " and others"


class Table:
    """A mapping of the document, and what was asked of it."""

    def __init__(self, source: Source, values: Any, path: Path = ()) -> None:
        self.source = source
        self.path = path
        if not isinstance(values, dict):
            what = dotted(path) or "the document"
            found = "is empty" if values is None and not path else f"is {shown_value(values)}, not a mapping"
            source.wrong(path, found, f"give {what} as keys with values")
        self.values: dict[str, Any] = values if isinstance(values, dict) else {}
        self._asked: set[str] = set()

    def wrong(self, key: str, why: str, hint: str) -> None:
        self.source.wrong(self._path(key), why, hint)

    def error(self, key: str, why: str, hint: str) -> BadInput:
        """What is wrong, to be raised where nothing can be read on."""
        return self.source.error(self._path(key), why, hint)

    def _path(self, key: str) -> Path:
        return (*self.path, *([key] if key else []))

    def note(self, key: str, why: str) -> None:
        self.source.note((*self.path, key), why)

    def has(self, key: str) -> bool:
        """Whether it says something: a null is as good as left out."""
        self._asked.add(key)
        return self.values.get(key) is not None

    def value(self, key: str) -> Any:
        self._asked.add(key)
        return self.values.get(key)

    def wrong_at(self, key: str) -> bool:
        """Whether the value was found wrong, so that a default stands for it."""
        return self._path(key) in self.source.wrong_at

    def required(self, *keys: str) -> None:
        for key in keys:
            if self.values.get(key) is None:
                self.wrong(key, "is missing", f"give {key}")

    def text(self, key: str, default: str = "", *, like: str = "", hint: str = "") -> str:
        """``like``: a pattern that all of it matches; ``hint``: what that is in words."""
        if not self.has(key):
            return default
        value = self.values[key]
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            self.wrong(key, f"is {shown_value(value)}, not a text", "put it in quotes")
            return default
        if like and not re.fullmatch(like, str(value)):
            self.wrong(key, f"{shown_value(value)} cannot be read", hint or f"it matches {like}")
        return str(value)

    def whole(self, key: str, default: int = 0, *, least: int = 0, most: int = MOST, beside: str = "") -> int:
        """``beside``: what else is possible, for the message."""
        if not self.has(key):
            return default
        value = self.values[key]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            possible = f"{beside}a whole number from {least} to {most}"
            self.wrong(key, f"is {shown_value(value)}, not {possible}", "give such a number, without quotes")
            return default
        return value

    def number(self, key: str) -> float:
        value = self.value(key)
        text = str(value)
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12}", text):
            self.wrong(key, f"is {shown_value(value)}, not a number of 0 or more", "give a number like 2 or 1.5")
            return 1.0
        found = float(text)
        assert math.isfinite(found)
        return found

    def flag(self, key: str, default: bool = False) -> bool:
        if not self.has(key):
            return default
        value = self.values[key]
        if not isinstance(value, bool):
            self.wrong(key, f"is {shown_value(value)}, not true or false", "write true or false, without quotes")
            return default
        return value

    def table(self, key: str) -> Table:
        """Empty where the document says nothing."""
        return Table(self.source, self.values[key] if self.has(key) else {}, (*self.path, key))

    def tables(self, key: str | None = None) -> Iterator[tuple[str, Table]]:
        """The mappings of a mapping, by their names; without ``key`` of this one."""
        of = self.table(key) if key is not None else self
        for name, value in of.values.items():
            of._asked.add(name)
            yield name, Table(self.source, {} if value is None else value, (*of.path, name))

    def items(self, key: str) -> list[Any]:
        """A list; empty where the document says nothing."""
        if not self.has(key):
            return []
        value = self.values[key]
        if not isinstance(value, list):
            self.wrong(key, f"is {shown_value(value)}, not a list", "give a list")
            return []
        return value

    def entries(self, key: str) -> Iterator[Table]:
        """The mappings of a list."""
        for at, item in enumerate(self.items(key)):
            yield Table(self.source, item, (*self.path, key, at))

    def texts(self, key: str) -> list[str]:
        """A list of texts, or one text alone."""
        if isinstance(self.value(key), str):
            return [self.values[key]]
        found = []
        for at, item in enumerate(self.items(key)):
            if isinstance(item, bool) or not isinstance(item, (str, int, float)):
                self.source.wrong((*self.path, key, at), f"is {shown_value(item)}, not a text", "put it in quotes")
                continue
            found.append(str(item))
        return found

    def variables(self, key: str) -> dict[str, str]:
        """Texts by their names; numbers and truth as they are written."""
        found = {}
        for name, value in self.table(key).values.items():
            if isinstance(value, (dict, list)):
                self.source.wrong((*self.path, key, name), f"is {shown_value(value)}, not a text", "put it in quotes")
                continue
            found[name] = (
                {None: "", True: "true", False: "false"}.get(value, str(value)) if isinstance(value, (bool, type(None))) else str(value)
            )
        return found

    def unused(self, keys: Mapping[str, str]) -> None:
        """What is known and has no effect here: a note each, with the reason."""
        for key, why in keys.items():
            if self.has(key):
                self.note(key, why)

    def refuse(self, keys: Mapping[str, str]) -> None:
        """Keys that are known and that dockless cannot do: an error each, with the next step."""
        for key, hint in keys.items():
            if self.has(key) and self.values[key] not in ([], {}, False, ""):
                self.wrong(key, "is not possible here", hint)

    def done_but(self, prefix: str) -> None:
        """The same as ``done``, without the keys that begin so."""
        self._asked |= {key for key in self.values if str(key).startswith(prefix)}
        self.done()

    def done(self, also: Iterable[str] = ()) -> None:
        """An error for each key that was not asked for, with the nearest known key. ``also``: known keys that were not asked for."""
        for key in self.values:
            if key not in self._asked:
                import difflib

                known = sorted({*self._asked, *also})
                near = difflib.get_close_matches(str(key), known, 1, 0.5)
                hint = f"did you mean {near[0]}?" if near else f"known are {_listed(known)}"
                self.wrong(str(key), "is unknown", hint)
