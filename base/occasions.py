"""When something takes place that a setting names: once, ``2026-11-24T10:00``, or each week, ``Mon,Wed 10:00``, ``Mon-Fri 08:30``, ``daily
22:00``. In the host's time zone, also where the clock is changed: a time of day that is left out is an hour later, and of one that comes
twice the first is meant.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from dockless.base.dataclass import dataclass
from dockless.base.later import re
from dockless.errors import BadInput

DAY = 86400.0
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WEEKLY = re.compile(r"([A-Za-z,-]+) +([01]?[0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True, slots=True)
class Occasion:
    """``once``: seconds since 1970, 0 for each week; then ``days``, 0 for Monday, and the time of day."""

    once: float = 0.0
    days: tuple[int, ...] = ()
    hour: int = 0
    minute: int = 0

    @property
    def every(self) -> float:
        """Seconds from one to the next, at least; 0 for what takes place once."""
        return DAY * min(((later - day) % 7 or 7 for day, later in zip(self.days, self.days[1:] + self.days[:1], strict=True)), default=0)

    def next(self, lasts: float, now: float) -> tuple[float, float] | None:
        """From when to when, in seconds since 1970, it takes place next, or does now; None if it never does again. ``lasts``: seconds, of
        what takes place each week at most ``every``."""
        if not self.days:
            return (self.once, self.once + lasts) if self.once + lasts > now else None
        today = datetime.fromtimestamp(now).replace(hour=self.hour, minute=self.minute, second=0, microsecond=0, fold=0)
        days = (today + timedelta(days=offset) for offset in range(-8, 9))
        starts = [day.timestamp() for day in days if day.weekday() in self.days]
        return next((start, start + lasts) for start in starts if start + lasts > now)


def parse(text: str) -> Occasion:
    """``BadInput``"""
    if (weekly := _WEEKLY.fullmatch(text)) is not None:
        days = {day for part in weekly[1].split(",") for day in _days(part, text)}
        return Occasion(0.0, tuple(sorted(days)), int(weekly[2]), int(weekly[3]))
    try:
        return Occasion(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError, OSError):
        raise _wrong(text) from None


def _days(part: str, text: str) -> list[int]:
    if part.lower() == "daily":
        return [*range(7)]
    first, dash, last = part.lower().partition("-")
    if first not in _DAYS or (dash and last not in _DAYS):
        raise _wrong(text)
    start, end = _DAYS.index(first), _DAYS.index(last if dash else first)
    return [number % 7 for number in range(start, end + 1 + 7 * (end < start))]


def _wrong(text: str) -> BadInput:
    return BadInput(f"{text[:60]!r} is no time", subject=text[:60], hint="write 2026-11-24T10:00, or Mon,Wed 10:00")
