"""How long to wait before the next try (behaviours R5, R6): exponential with jitter, or what the registry asks for, within bounds."""

from __future__ import annotations

import time
from collections.abc import Callable

from dockless.base.dataclass import dataclass, field
from dockless.images.registry import deadline

TRIES = 5
"""Requests made in all before the last answer counts."""
WAIT_MAX = 60.0
"""Seconds that one wait may take."""
TOTAL_MAX = 120.0
"""Seconds that the waits of one request may take together. A registry that asks for more gets its error at once."""
_FIRST = 0.5
RETRIED = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(slots=True)
class Patience:
    """What is left of one request's tries and waits."""

    tries: int = TRIES
    total: float = TOTAL_MAX
    pause: Callable[[float], None] = time.sleep
    _made: int = field(default=0, init=False)

    def may_wait(self, asked: float | None = None) -> bool:
        """Is there another try, and does the wait before it fit? ``asked``: seconds a ``Retry-After`` wants."""
        longest = min(WAIT_MAX, self.total, deadline.remaining())
        return self._made + 1 < self.tries and (self._backoff() if asked is None else asked) <= longest

    def wait(self, asked: float | None = None) -> None:
        """Wait before the next try. Jitter keeps a thousand clients, sent away together, from coming back together."""
        import random

        backoff = self._backoff()
        seconds = backoff * random.uniform(0.5, 1.0) if asked is None else asked + random.uniform(0.0, 0.25) * min(backoff, 4.0)
        self._made += 1
        self.total -= seconds
        self.pause(seconds)

    def again(self) -> bool:
        """``wait`` where it may."""
        if not self.may_wait():
            return False
        self.wait()
        return True

    def _backoff(self) -> float:
        return float(min(WAIT_MAX, _FIRST * 2.0**self._made))


def retry_after(value: str | None, now: Callable[[], float] = time.time) -> float | None:
    """Seconds a ``Retry-After`` asks for, from now: a number or an HTTP date; None where it says nothing that can be understood."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    if not text or len(text) > 64:
        return None
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
