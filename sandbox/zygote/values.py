"""Values as they cross between a call and who asked for it: JSON with tags. Whoever reads it makes nothing but numbers, texts, bytes and
containers of it.

Both sides use this: dockless imports it, and what runs inside begins with its text (``inside.py``). So it is Python 3.8 with the standard
library alone.
"""

from __future__ import annotations

import base64

MYPY = False
if MYPY:
    from typing import Any

DEPTH = 64
"""Containers within containers."""
_INTEGER = 1 << 64
_BITS = 1 << 20
_ALIKE = 64
"""Keys that may have one hash."""
_CONTAINERS = ((tuple, "t"), (set, "s"), (frozenset, "z"))


class Unencodable(Exception):
    """A value that cannot cross: its type."""


def encode(value: Any, depth: int = 0) -> Any:
    """As JSON has it; what JSON has not is an object with one tag. Subclasses become their base. ``Unencodable``"""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int(value)
        if -_INTEGER < number < _INTEGER:
            return number
        if number.bit_length() > _BITS:
            raise Unencodable(f"an int of more than {_BITS} bits")
        return {"i": hex(number)}
    if isinstance(value, float):
        real = float(value)
        return real if real - real == 0 else {"f": repr(real)}
    if isinstance(value, complex):
        return {"c": [encode(value.real), encode(value.imag)]}
    if isinstance(value, (bytes, bytearray)):
        return {"b" if isinstance(value, bytes) else "a": base64.b64encode(value).decode("ascii")}
    if depth >= DEPTH:
        raise Unencodable(f"containers within containers, more than {DEPTH} deep")
    if isinstance(value, list):
        return [encode(each, depth + 1) for each in value]
    if isinstance(value, dict):
        return {"d": [[encode(key, depth + 1), encode(each, depth + 1)] for key, each in value.items()]}
    for kind, tag in _CONTAINERS:
        if isinstance(value, kind):
            return {tag: [encode(each, depth + 1) for each in value]}
    raise Unencodable(f"{type(value).__module__}.{type(value).__qualname__}")


def decode(coded: Any, depth: int = 0) -> Any:
    """The value. ``ValueError`` for what ``encode`` does not make."""
    if coded is None or isinstance(coded, (bool, int, float, str)):
        return coded
    if depth > DEPTH:
        raise ValueError("too deep")
    if isinstance(coded, list):
        return [decode(each, depth + 1) for each in coded]
    if not isinstance(coded, dict) or len(coded) != 1:
        raise ValueError("no tag")
    ((tag, inner),) = coded.items()
    if tag in ("i", "f", "b", "a"):
        if not isinstance(inner, str):
            raise ValueError("no text")
        if tag in "ba":
            raw = base64.b64decode(inner, validate=True)
            return raw if tag == "b" else bytearray(raw)
        if tag == "f" and inner in ("nan", "inf", "-inf"):
            return float(inner)
        if tag == "i" and inner.lstrip("-").startswith("0x") and len(inner) <= _BITS // 4 + 3:
            return int(inner, 16)
        raise ValueError("no number")
    if not isinstance(inner, list):
        raise ValueError("no list")
    if tag == "c":
        real, imaginary = (decode(each, depth + 1) for each in inner)
        if not all(isinstance(part, (int, float)) for part in (real, imaginary)):
            raise ValueError("no complex number")
        return complex(real, imaginary)
    try:
        if tag == "d":
            pairs = [(decode(key, depth + 1), decode(each, depth + 1)) for key, each in inner]
            _check_hashes([key for key, _ in pairs])
            return dict(pairs)
        for kind, known in _CONTAINERS:
            if tag == known:
                items = [decode(each, depth + 1) for each in inner]
                if kind is not tuple:
                    _check_hashes(items)
                return kind(items)
    except TypeError as error:  # not to be hashed, or no pair
        raise ValueError(str(error)) from None
    raise ValueError("an unknown tag")


def _check_hashes(keys: list[Any]) -> None:
    """Numbers can be chosen so that all have one hash: a dict of them would take for ever to make."""
    if len(keys) > _ALIKE:
        hashes = sorted(map(hash, keys))
        if any(hashes[at] == hashes[at - _ALIKE] for at in range(_ALIKE, len(hashes))):
            raise ValueError("keys of one hash")
