"""``WWW-Authenticate``: what a registry wants to see before it answers (behaviour R2).

One header may hold several challenges and one challenge may be spread over several headers; parameters hold commas and escaped quotes;
schemes that nobody here speaks may come first. A malformed rest is dropped, what was understood before it stays.

https://www.rfc-editor.org/rfc/rfc9110#section-11.6.1
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dockless.base.dataclass import dataclass

HEADER_MAX = 16 << 10
"""Characters that are looked at, all headers together."""

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rf'({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))', re.DOTALL)
_TOKEN68 = re.compile(r"[A-Za-z0-9._~+/-]+=*[ \t]*(?=,|\Z)")
_SCHEME = re.compile(rf"({_TOKEN})(?:[ \t]+|(?=,)|\Z)")
_GAP = re.compile(r"[\s,]*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Challenge:
    """One challenge; the scheme and the parameters' names are in lower case. The first of two equal names counts."""

    scheme: str
    parameters: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str:
        return next((value for key, value in self.parameters if key == name), "")


def parse(headers: Iterable[str]) -> tuple[Challenge, ...]:
    """Every challenge of these header values, in their order."""
    # Several fields of one name mean the same as one, joined by commas. (RFC 9110, 5.3)
    text = ", ".join(headers)[:HEADER_MAX]
    found: list[Challenge] = []
    scheme, parameters = "", list[tuple[str, str]]()
    at = _end(_GAP, text, 0)
    while at < len(text):
        parameter = _PARAMETER.match(text, at)
        if parameter is not None and scheme:
            value = _ESCAPE.sub(r"\1", parameter[2]) if parameter[2] is not None else parameter[3]
            parameters.append((parameter[1].lower(), value))
            at = _end(_GAP, text, parameter.end())
            continue
        start = _SCHEME.match(text, at)
        if start is None or parameter is not None:
            break
        if scheme:
            found.append(Challenge(scheme, tuple(parameters)))
        scheme, parameters = start[1].lower(), []
        at = start.end()
        if _PARAMETER.match(text, at) is None:
            # "Negotiate YII=": a value that has no name. A comma here means the next challenge.
            at = _end(_GAP, text, _end(_TOKEN68, text, at))
    if scheme:
        found.append(Challenge(scheme, tuple(parameters)))
    return tuple(found)


def supported(challenges: Iterable[Challenge]) -> Challenge | None:
    """The challenge to answer: a Bearer one that names its realm before a Basic one, None where neither is there."""
    known: dict[str, Challenge] = {}
    for challenge in challenges:
        if challenge.scheme == "basic" or (challenge.scheme == "bearer" and challenge.get("realm")):
            known.setdefault(challenge.scheme, challenge)
    return known.get("bearer") or known.get("basic")


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()
