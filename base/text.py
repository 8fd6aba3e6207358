"""Text of others made safe to show: names, commands and messages must not drive the terminal of whoever reads them; values in messages."""

from __future__ import annotations

_ALNUM = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def is_name(text: str, also: str, most: int) -> bool:
    """Whether it begins with an ASCII letter or digit and goes on with such and with ``also``, ``most`` characters in all. What a pattern
    would say, without importing ``re``."""
    return 0 < len(text) <= most and text[0] in _ALNUM and _ALNUM.union(also).issuperset(text)


def escaped(text: str) -> str:
    """One printable line: control characters (newlines, ESC, C1), bidirectional and zero-width ones and lone surrogates become escapes as
    in Python's source: ``\\x1b``, ``\\n``, ``\\u202e``. What is printable stays as it is."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: object) -> str:
    """A value as a message shows it: short, and of no type whose representation could be anything."""
    if value is None or isinstance(value, (bool, float)):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if abs(value) < 10**20 else "a number of more than 20 digits"
    if isinstance(value, (str, bytes)):
        return repr(value) if len(value) <= 60 else repr(value[:57]) + "..."
    return f"of type {type(value).__name__}"
