"""What holds for every parser of strangers' bytes: it refuses in words that can be shown, in bounded time, or it was right."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from dockless.errors import DocklessError

SECONDS_MAX = 2.0
"""Processor time that one input may take at most; the slowest sound one takes milliseconds."""

Target = Callable[[bytes], None]


class Broken(AssertionError):
    """A property of a parser that does not hold for an input."""


def hold(truth: object, what: str) -> None:
    if not truth:
        raise Broken(what)


def bounded(target: Target) -> Target:
    """``target`` with its refusals looked at and its time measured."""

    def run(data: bytes) -> None:
        start = time.thread_time()
        try:
            target(data)
        except DocklessError as error:
            speakable(error)
        spent = time.thread_time() - start
        hold(spent < SECONDS_MAX, f"{len(data)} bytes took {spent:.1f} s")

    run.__name__ = target.__name__
    return run


def speakable(error: DocklessError) -> None:
    """What an error says can be shown on a terminal, written to a log and sent as JSON."""
    for part in (str(error), error.subject, error.hint):
        hold(isinstance(part, str), f"{type(error).__name__} says {part!r}")
        text(part, f"{type(error).__name__}'s words")
    for said in (str(error), error.hint):
        hold(not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", said), f"control characters in the words {said!r}")
    hold(len(str(error)) < 4096, f"a message of {len(str(error))} characters")


def text(value: str, what: str) -> None:
    """Names may hold bytes that are no UTF-8 (surrogateescape), but nothing that has no bytes at all."""
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise Broken(f"{what}: {value!r} cannot be encoded: {error}") from None


def decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
