"""A check of a sandbox's health, as an image has one or whoever starts it."""

from __future__ import annotations

from collections.abc import Sequence

from dockless.base.checks import check_record
from dockless.base.dataclass import dataclass, replace
from dockless.errors import BadInput

INTERVAL, TIMEOUT, RETRIES = 30.0, 30.0, 3
SHORTEST = 0.01
_LONGEST = 10**9
_MOST_RETRIES = 10**6


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A command that enters the sandbox again and again and returns 0 when all is well.

    ``argv``: the program and its arguments, no line for a shell; empty: the image's own. Seconds: ``interval`` between two checks and
    before the first, ``timeout`` after which one is killed and has failed, ``start_period`` in which failures do not count. ``retries``: so
    many failures in a row mean unhealthy. 0: the image's, or 30, 30, 0 and 3. ``disabled``: no checks, whatever the image has.
    """

    argv: Sequence[str] = ()
    interval: float = 0.0
    timeout: float = 0.0
    retries: int = 0
    start_period: float = 0.0
    disabled: bool = False

    def __post_init__(self) -> None:
        check_record(self)
        object.__setattr__(self, "argv", tuple(self.argv))
        for name, low, high in (
            ("interval", SHORTEST, _LONGEST),
            ("timeout", SHORTEST, _LONGEST),
            ("retries", 1, _MOST_RETRIES),
            ("start_period", 0, _LONGEST),
        ):
            value = getattr(self, name)
            if value and not low <= value <= high:
                hint = f"it goes from {low:g} to {high:d}, 0 is the default"
                raise BadInput(f"{name} {value} of a health check is out of range", subject=name, hint=hint)
        if self.argv and not self.argv[0]:
            raise BadInput("the command of the health check is empty", subject="health", hint="the first argument is the program")


def effective(asked: HealthCheck | None, own: HealthCheck | None) -> HealthCheck | None:
    """What is carried out where the caller ``asked`` for one and the image has its ``own``: every value that counts; None for no checks.
    ``BadInput`` where there is no command."""
    if asked is None:
        asked = HealthCheck()
        if own is None:
            return None
    if asked.disabled:
        return None
    argv = asked.argv or (own.argv if own is not None else ())
    if not argv:
        hint = "say what to run: --health-cmd COMMAND, HealthCheck([program, …])"
        raise BadInput("a health check without a command, and the image has none of its own", subject="health", hint=hint)
    own = own or HealthCheck()
    return replace(
        asked,
        argv=argv,
        interval=asked.interval or own.interval or INTERVAL,
        timeout=asked.timeout or own.timeout or TIMEOUT,
        retries=asked.retries or own.retries or RETRIES,
        start_period=asked.start_period or own.start_period,
    )
