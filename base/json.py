"""``json``, quick to import: the standard module's own inner functions, without its patterns, which take longer to import than a sandbox
lives. What they do not take is given to the standard module, which says best what is wrong with it."""

from __future__ import annotations

from _json import encode_basestring, encode_basestring_ascii, make_encoder, make_scanner
from collections.abc import Callable

from dockless.base.typing import Any

_BLANKS = " \t\n\r"


class _Standard:
    """What the scanner asks of ``json.JSONDecoder()``."""

    strict = True
    object_hook = None
    object_pairs_hook: Any = None
    parse_float, parse_int = float, int
    parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.__getitem__


def _hooked(hook: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    context = _Standard()
    context.object_pairs_hook = hook
    return context


_scan = make_scanner(_Standard)  # type: ignore[arg-type]  # it has what is asked for


def loads(text: str | bytes, *, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """``json.loads``. ``ValueError``, ``RecursionError``"""
    scan = _scan if object_pairs_hook is None else make_scanner(_hooked(object_pairs_hook))
    try:
        whole = (text if isinstance(text, str) else text.decode("utf-8", "surrogatepass")).strip(_BLANKS)
        value, end = scan(whole, 0)
        if end == len(whole):
            return value
    except (StopIteration, ValueError, SystemError):  # SystemError: its own error is in json.decoder, which is not imported
        pass
    import json

    return json.loads(text, object_pairs_hook=object_pairs_hook)


def dumps(
    value: object, *, separators: tuple[str, str] = (", ", ": "), default: Callable[[Any], object] | None = None, ensure_ascii: bool = True
) -> str:
    """``json.dumps``, in one line."""
    between, behind = separators
    text = encode_basestring_ascii if ensure_ascii else encode_basestring
    return "".join(make_encoder({}, default or _unknown, text, None, behind, between, False, False, True)(value, 0))


def _unknown(value: object) -> object:
    import json

    return json.JSONEncoder().default(value)
