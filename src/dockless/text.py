"""Text of others made safe to show: names, commands and messages must not drive the terminal of whoever reads them."""

from __future__ import annotations


def escaped(text: str) -> str:
    """One printable line: control characters (newlines, ESC, C1), bidirectional and zero-width ones and lone surrogates become escapes as
    in Python's source: ``\\x1b``, ``\\n``, ``\\u202e``. What is printable stays as it is."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
