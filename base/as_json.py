"""Values as JSON in ASCII, without importing ``json``, whose reader takes longer to import than a sandbox lives."""

from __future__ import annotations

from _json import encode_basestring_ascii, make_encoder  # what the standard encoder calls
from collections.abc import Callable


def as_json(value: object, default: Callable[[object], object]) -> str:
    """What ``json.dumps`` gives without blanks. ``default``: what stands for a value that JSON does not have."""
    encode = make_encoder({}, default, encode_basestring_ascii, None, ":", ",", False, False, True)
    return "".join(encode(value, 0))
