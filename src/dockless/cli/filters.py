"""``--filter KEY=VALUE``, which may be given several times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dockless.cli.parser import Parser
from dockless.errors import BadInput


def filter_option(parser: Parser, keys: str, *also: str) -> None:
    """``keys``: as the help shows them. ``also``: other names of the option."""
    about = f"only those: {keys}; of one key any, of several all"
    parser.add_argument(*also, "--filter", action="append", default=[], metavar="KEY=VALUE", help=about)


def filters(texts: Sequence[str], keys: Mapping[str, str], values: Mapping[str, Sequence[str]] | None = None) -> dict[str, list[str]]:
    """What is asked for, by what it filters. ``keys``: what each key filters, several perhaps the same; ``values``: what that can be, where
    not everything. ``BadInput``"""
    wanted: dict[str, list[str]] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key not in keys or not value:
            raise unreadable(text, f"write KEY=VALUE; keys are {', '.join(keys)}")
        known = (values or {}).get(keys[key])
        if known is not None and value not in known:
            raise unreadable(text, f"write KEY=VALUE; {key} is one of {', '.join(known)}")
        wanted.setdefault(keys[key], []).append(value)
    return wanted


def labels(values: Sequence[str]) -> list[tuple[str, str | None]]:
    """Values of the key ``label``, ``NAME[=VALUE]``: None for any value."""
    pairs = [value.partition("=") for value in values]
    return [(name, value if equals else None) for name, equals, value in pairs]


def unreadable(text: str, hint: str) -> BadInput:
    return BadInput(f"--filter {text[:60]!r} cannot be read", subject="--filter", hint=hint)
