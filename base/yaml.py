"""YAML as plain values, with the line of each: strictly, and bounded.

The core schema of YAML 1.2: ``yes``, ``on`` and ``2024-01-01`` are texts, ``22:22`` is no number, as JSON and the tools of today have it.
A key that stands twice in a mapping is an error. ``<<`` merges, YAML 1.1's type repository. What aliases stand for counts each time, so a
text of a few lines cannot become a value of gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from dockless.base.later import re
from dockless.base.text import escaped, shown
from dockless.base.typing import Any
from dockless.errors import BadInput

LONGEST = 1 << 20
"""Characters of a document."""
MOST = 50_000
"""Values of a document, those behind aliases included; a long text counts as several."""
_AS_ONE = 100
DEEPEST = 32
_WHOLE = r"[-+]?[0-9]{1,40}|0o[0-7]{1,40}|0x[0-9a-fA-F]{1,40}"
_FRACTION = r"[-+]?(\.[0-9]{1,40}|[0-9]{1,40}(\.[0-9]{0,40})?)([eE][-+]?[0-9]{1,3})?"
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_TAGS = {"str": str, "int": int, "float": float, "bool": bool, "null": type(None)}
_HINT = "correct that line"

Path = tuple[str | int, ...]


def loads(text: str, what: str) -> tuple[Any, dict[Path, int]]:
    """The one document of ``text``, and by the path of each value, keys and indices, its line. ``what``: the file, for errors.
    ``BadInput`` names the line."""
    if len(text) > LONGEST:
        raise BadInput(f"{what} has more than {LONGEST} characters", subject=what, hint="give a smaller file")
    import yaml

    reader = _Reader(what)
    try:
        return reader.document(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))), reader.lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        why = getattr(error, "problem", None) or "this is no text that YAML allows"
        raise BadInput(f"{what}{line} is not YAML: {why}", subject=what, hint=_HINT) from None
    except (UnicodeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{what} is not YAML: it has half a character", subject=what, hint="save the file as UTF-8") from None


class _Reader:
    def __init__(self, what: str) -> None:
        self.what = what
        self.lines: dict[Path, int] = {}
        self.left = MOST
        self._anchors: dict[str, tuple[Any, int]] = {}

    def document(self, events: Iterator[Any]) -> Any:
        found: list[Any] = []
        for event in events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent" and found:
                raise self.wrong(event, "there is a second document", "give one document a file")
            if kind not in ("StreamStartEvent", "StreamEndEvent", "DocumentStartEvent", "DocumentEndEvent"):
                found.append(self.value(event, events, ()))
        return found[0] if found else None

    def wrong(self, event: Any, why: str, hint: str = _HINT) -> BadInput:
        return BadInput(escaped(f"{self.what}:{event.start_mark.line + 1}: {why}"), subject=self.what, hint=hint)

    def value(self, event: Any, events: Iterator[Any], path: Path) -> Any:
        before = self.left
        self.left -= 1
        if self.left < 0 or len(path) > DEEPEST:
            many = "too deeply nested" if self.left >= 0 else f"more than {MOST} values"
            raise self.wrong(event, many, "give a smaller file, with fewer aliases")
        self.lines.setdefault(path, event.start_mark.line + 1)
        kind = type(event).__name__
        if kind == "AliasEvent":
            if event.anchor not in self._anchors:
                raise self.wrong(event, f"there is no anchor &{event.anchor} before", "an anchor stands before its aliases")
            found, size = self._anchors[event.anchor]
            self.left -= size
            return found
        if kind == "ScalarEvent":
            self.left -= len(event.value) // _AS_ONE
            found = self.scalar(event)
        elif kind == "SequenceStartEvent":
            found = []
            while type(item := next(events)).__name__ != "SequenceEndEvent":
                found.append(self.value(item, events, (*path, len(found))))
        else:
            found = self.mapping(event, events, path)
        if event.anchor is not None:
            self._anchors[event.anchor] = found, before - self.left
        return found

    def mapping(self, start: Any, events: Iterator[Any], path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[Any] = []
        while type(key := next(events)).__name__ != "MappingEndEvent":
            if type(key).__name__ != "ScalarEvent":
                raise self.wrong(key, "a key is no plain text", "write NAME: VALUE")
            if key.value == "<<" and key.implicit[0]:
                merges = self.value(next(events), events, (*path, "<<"))
                merged += merges if isinstance(merges, list) else [merges]
                continue
            if key.value in found:
                raise self.wrong(key, f"{shown(key.value)} is there twice", "remove one of them")
            self.lines[*path, key.value] = key.start_mark.line + 1
            found[key.value] = self.value(next(events), events, (*path, key.value))
        below: dict[str, Any] = {}
        for one in reversed(merged):
            if not isinstance(one, dict):
                raise self.wrong(start, "<< merges what is no mapping", "write <<: *NAME of a mapping")
            below |= one
        return {**below, **found}

    def scalar(self, event: Any) -> Any:
        text = str(event.value)
        tag = (event.tag or "").removeprefix("tag:yaml.org,2002:")
        if event.tag in (None, "!"):
            return _resolved(text) if event.implicit[0] and event.tag is None else text
        found = text if tag == "str" else _resolved(text)
        if tag == "float" and type(found) is int:
            found = float(found)
        if type(found) is not _TAGS.get(tag):
            raise self.wrong(event, f"{shown(text)} has the tag {shown(event.tag)}", "leave tags out: texts in quotes, numbers without")
        return found


def _resolved(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if text[0] in "+-.0123456789":
        if re.fullmatch(_WHOLE, text):
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
        if re.fullmatch(_FRACTION, text):
            return float(text)
    return text
