"""When a sandbox whose program has ended is restarted: Docker's restart policies."""

from __future__ import annotations

from dockless.base.checks import check_record
from dockless.base.dataclass import dataclass
from dockless.base.typing import Literal
from dockless.errors import BadInput

_HINT = "it is no, on-failure, on-failure:N, unless-stopped or always"
_MOST = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Restart:
    """``most``: how many times at most, of ``on-failure`` alone; 0 for no bound."""

    when: Literal["no", "on-failure", "unless-stopped", "always"] = "no"
    most: int = 0

    def __post_init__(self) -> None:
        check_record(self)

    def __bool__(self) -> bool:
        return self.when != "no"

    def __str__(self) -> str:
        return f"{self.when}:{self.most}" if self.most else self.when


def parse_restart(text: str, name: str = "restart") -> Restart:
    """A policy as people write it. ``BadInput``"""
    when, colon, number = text.partition(":")
    most = int(number) if number.isascii() and number.isdecimal() and len(number) < 12 else 0
    if when not in ("no", "on-failure", "unless-stopped", "always") or (colon and (when != "on-failure" or not 0 < most <= _MOST)):
        raise BadInput(f"{name} {text[:60]!r} is no restart policy", subject=name, hint=_HINT)
    return Restart(when, most)  # type: ignore[arg-type]


def check_policy(policy: Restart, *, removed: bool, ttl: float | str | None, idle_timeout: float | str | None) -> None:
    """``BadInput`` for a policy of what is removed at its end, or ends by a limit that each start would begin anew."""
    for name, limit in (("ttl", ttl), ("idle_timeout", idle_timeout)):
        if policy and limit:
            raise BadInput(
                f"a restart policy and {name}, which each start would begin anew", subject="restart", hint="leave one of them out"
            )
    if policy and removed:
        raise BadInput("restart and remove (--rm) exclude each other", subject="restart", hint="leave one of them out")
