"""What is written of a job, read: ``ok:12,singleton``, ``0-99%4``, ``USR1@2m``, ``http:2``, ``start,end``."""

from __future__ import annotations

from collections.abc import Sequence

from dockless.base.later import re
from dockless.base.units import parse_duration, parse_signal
from dockless.errors import BadInput

MAX_AFTER = 1000
"""Jobs that one may wait for."""
MAX_ARRAY = 10_000
"""Jobs of an array."""
MAX_PORTS = 1000
"""Ports that jobs which start together may have, beside one for each."""
_LABEL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._~-")
_SLURM_WORDS = {"afterok": "ok", "afternotok": "not-ok", "afterany": "any"}
EVENTS = ("start", "end", "fail", "preempt", "idle")
"""What an owner can be told of: ``end`` is any, ``fail`` one that nobody asked for and that is not COMPLETED; ``idle`` that the job leaves
its GPUs unused and is about to be ended for it."""
NONE_QUEUED = "none of the jobs was queued"


def place_in_list(number: int, count: int) -> str:
    """The beginning of an error about one job of a list. ``number``: its place, counted from 1."""
    return f"job {number} of {count}: "


def with_line(text: str, path: str) -> str:
    """An error with the file's line instead of the ``place_in_list``: each line of ``path`` is a job."""
    return re.sub(r"\Ajob ([0-9]{1,9}) of [0-9]{1,9}: ", lambda at: f"{path}:{at[1]}: ", text)


def is_label(text: str) -> bool:
    """Whether it can name a role, or a role's ports."""
    return 0 < len(text) <= 64 and _LABEL.issuperset(text)


def parse_port(text: str) -> tuple[str, int]:
    """A label and how many ports it stands for, of ``http:2``. ``BadInput``"""
    label, _, count = text.partition(":")
    if not is_label(label) or not (count.isascii() and count.isdecimal() and len(count) < 5 and 0 < int(count) <= MAX_PORTS):
        raise BadInput(f"ports {text[:60]!r} cannot be read", subject="ports", hint=f"write LABEL:COUNT, of 1 to {MAX_PORTS} ports")
    return label, int(count)


def parse_warning(text: str) -> tuple[int, float]:
    """The signal and the seconds of ``USR1@2m``, 60 where only a signal is said; zeros of an empty text. ``BadInput``"""
    name, at, before = text.partition("@")
    if not text:
        return 0, 0.0
    return parse_signal(name or "?", "warn"), parse_duration(before, "warn") if at else 60.0


def parse_dependency(text: str) -> tuple[int, str]:
    """The job that ``ok:12``, ``not-ok:12`` or ``any:12`` names, and the word. ``BadInput``"""
    how, _, number = text.partition(":")
    if how not in ("ok", "not-ok", "any") or not (number.isascii() and number.isdecimal() and 0 < len(number) < 19):
        raise BadInput(f"after {text[:60]!r} cannot be read", subject="after", hint="write ok:12, not-ok:12 or any:12")
    return int(number), how


def parse_after(text: str) -> tuple[tuple[str, ...], bool]:
    """What a job waits for, and whether it is a singleton: ``ok:12,any:13:14,singleton``, ``ok:20-29``; Slurm's ``afterok:12:13``,
    ``afternotok``, ``afterany``. ``BadInput``"""
    found: list[str] = []
    singleton = False
    for part in filter(None, text.split(",")):
        word, *numbers = part.split(":")
        if part == "singleton":
            singleton = True
            continue
        how = _SLURM_WORDS.get(word, word)
        if "?" in part or how not in ("ok", "not-ok", "any") or not numbers:
            hint = "write ok:12, not-ok:12 or any:12, several with commas; ok:12-20 for a range; or singleton"
            raise BadInput(f"after {part[:60]!r} cannot be read", subject="after", hint=hint)
        for number in numbers:
            first, dash, last = number.partition("-")
            start = parse_dependency(f"{how}:{first}")[0]
            end = parse_dependency(f"{how}:{last}")[0] if dash else start
            if not start <= end < start + MAX_AFTER:
                raise BadInput(f"{number} is no range of at most {MAX_AFTER} jobs", subject="after", hint="write it like 12-20")
            found += [f"{how}:{each}" for each in range(start, end + 1)]
    return tuple(found), singleton


class ArrayCount(int):
    """Jobs of an array; ``limit``: how many of them may run at once, 0 for any number."""

    limit = 0


def parse_array(value: str | int) -> ArrayCount:
    """Of ``100``, ``100%4`` or ``0-99%4``. ``BadInput``"""
    count, sign, limit = ("" if isinstance(value, bool) else str(value)).partition("%")
    numbers = (count.removeprefix("0-"), limit if sign else "1")
    if all(number.isascii() and number.isdecimal() and len(number) < 19 for number in numbers):
        found = ArrayCount(int(numbers[0]) + count.startswith("0-"))
        found.limit = int(numbers[1])
        if found > MAX_ARRAY:
            hint = f"an array has {MAX_ARRAY} at most; submit several"
            raise BadInput(f"array {str(value)[:60]!r} is {found} jobs, which are too many", subject="array", hint=hint)
        if found and found.limit:
            found.limit *= bool(sign)
            return found
    hint = "write 100 or 0-99, with %4 for at most four at once"
    raise BadInput(f"array {str(value)[:60]!r} is not a whole number of jobs, 1 or more", subject="array", hint=hint)


def parse_events(text: str | Sequence[str]) -> tuple[str, ...]:
    """``start,end``: each once, in the order of ``EVENTS``; ``all`` for all. ``BadInput``"""
    words = [word.strip() for word in text.split(",")] if isinstance(text, str) else [*text]
    for word in words:
        if word not in (*EVENTS, "all"):
            raise BadInput(f"{word[:60]!r} is no event of a job", subject="notify", hint=f"write some of {','.join(EVENTS)}, or all")
    return tuple(event for event in EVENTS if event in words or "all" in words)
