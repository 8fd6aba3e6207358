"""``json``, quick to import: the standard module's own inner functions, without its patterns, which take longer to import than a sandbox
lives. What they do not take is given to the standard module, which says best what is wrong with it."""

from __future__ import annotations

from _json import encode_basestring_ascii, make_encoder, make_scanner
from collections.abc import Callable

from dockless.base.typing import Any

_BLANKS = " \t\n\r"


class _Standard:
    """What the scanner asks of ``json.JSONDecoder()``."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.__getitem__


_scan = make_scanner(_Standard)  # type: ignore[arg-type]  # it has what is asked for


def loads(text: str | bytes) -> Any:
    """``json.loads``. ``ValueError``, ``RecursionError``"""
    try:
        whole = (text if isinstance(text, str) else text.decode("utf-8", "surrogatepass")).strip(_BLANKS)
        value, end = _scan(whole, 0)
    except (StopIteration, ValueError):
        return _asked(text)
    return value if end == len(whole) else _asked(text)


def dumps(
    value: object, *, separators: tuple[str, str] = (", ", ": "), default: Callable[[Any], object] | None = None, sort_keys: bool = False
) -> str:
    """``json.dumps``: in one line, of ASCII alone."""
    between, behind = separators
    return "".join(make_encoder({}, default or _unknown, encode_basestring_ascii, None, behind, between, sort_keys, False, True)(value, 0))


def _asked(text: str | bytes) -> Any:
    import json

    return json.loads(text)


def _unknown(value: object) -> object:
    import json

    return json.JSONEncoder().default(value)
