"""Human units in, plain numbers out, and back: sizes, rates, cores, durations, counts, signals.

Strict on purpose: a limit that is read wrongly is worse than one that is refused. No exponents, no underscores, no guesses; what does not
match the little grammar in each docstring raises ``BadInput`` and says what would have matched.

Sizes use binary units whatever the spelling (``4G``, ``4GB`` and ``4GiB`` are all 4 x 2**30), as Docker, Podman and systemd read them.
"""

from __future__ import annotations

import math

from dockless.base import signal
from dockless.base.later import re
from dockless.base.text import shown
from dockless.base.typing import TYPE_CHECKING, NoReturn
from dockless.errors import BadInput

if TYPE_CHECKING:
    from decimal import Decimal

_NUMBER = r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_SIZE = "(?i)" + _NUMBER + r" ?(?:([kmgtpe])(i?b)?|b)?"
_CORES = _NUMBER + r"(m?)"
_COUNT = "(?i)" + _NUMBER + r" ?([kmg]?)"
_SECONDS = _NUMBER
_PARTS = rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?(?:{_NUMBER}[uµ]s)?"
_PART_SECONDS = ("86400", "3600", "60", "1", "0.001", "0.000001")
_CLOCK = r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+(?:\.[0-9]+)?)"

_POWERS = "kmgtpe"
_LARGEST = (1 << 63) - 1
_LONGEST = 64
_SIZE_HINT = "write bytes, or a number with K, M, G or T: 512M, 4G, 1.5GiB"
_DURATION_HINT = "write seconds, or 90s, 1h30m, 2:00:00, 1-12:00:00"


def _bad(what: str, value: object, hint: str) -> NoReturn:
    raise BadInput(f"{what} {shown(value)} cannot be read", subject=what, hint=hint)


def _words(what: str, value: str, hint: str) -> str:
    """Without blanks around it. No sound value has more characters, and arithmetic on a longer one could take long."""
    text = value.strip(" ")
    if len(text) > _LONGEST:
        _bad(what, value, hint)
    return text


def _decimal(number: str | int) -> Decimal:
    from decimal import Decimal  # not needed before somebody writes a unit

    return Decimal(number)


def _whole(what: str, value: Decimal, given: object, hint: str) -> int:
    if value > _LARGEST:
        raise BadInput(f"{what} {shown(given)} is more than any kernel counts (2**63-1)", subject=what, hint=hint)
    return int(value)


def parse_size(value: str | int, what: str = "size") -> int:
    """Bytes. ``NUMBER[K|M|G|T|P|E][B|iB]`` or an int; fractions are cut to whole bytes. Raises ``BadInput``."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        _bad(what, value, _SIZE_HINT)
    if isinstance(value, int):
        if value < 0:
            _bad(what, value, _SIZE_HINT)
        return _whole(what, _decimal(value), value, _SIZE_HINT)
    match = re.fullmatch(_SIZE, _words(what, value, _SIZE_HINT))
    if match is None:
        _bad(what, value, _SIZE_HINT)
    number, unit = _decimal(match[1]), match[2]
    return _whole(what, number * (1024 ** (_POWERS.index(unit.lower()) + 1) if unit else 1), value, _SIZE_HINT)


def parse_rate(value: str | int, what: str = "rate") -> int:
    """Bytes per second: a size, with or without ``/s``. Raises ``BadInput``."""
    hint = "write bytes per second: 50MB/s, 1G/s, 1048576"
    if isinstance(value, str):
        try:
            return parse_size(_words(what, value, hint).removesuffix("/s"), what)
        except BadInput:
            _bad(what, value, hint)
    return parse_size(value, what)


def parse_count(value: str | int, what: str = "count") -> int:
    """A number of things, with decimal ``k``, ``M``, ``G``: ``10k`` is 10000. Raises ``BadInput``."""
    hint = "write a whole number: 500, 10k"
    if isinstance(value, bool) or not isinstance(value, str | int) or (isinstance(value, int) and value < 0):
        _bad(what, value, hint)
    if isinstance(value, int):
        return _whole(what, _decimal(value), value, hint)
    match = re.fullmatch(_COUNT, _words(what, value, hint))
    if match is None:
        _bad(what, value, hint)
    number = _decimal(match[1]) * (1000 ** (_POWERS.index(match[2].lower()) + 1) if match[2] else 1)
    if number != number.to_integral_value():
        _bad(what, value, hint)
    return _whole(what, number, value, hint)


def parse_cores(value: str | float, what: str = "cpus") -> float:
    """Cores: ``2``, ``1.5``, ``500m`` (thousandths), more than 0. Raises ``BadInput``."""
    hint = "write cores: 2, 0.5, 1.5 or 500m"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        _bad(what, value, hint)
    if isinstance(value, str):
        match = re.fullmatch(_CORES, _words(what, value, hint))
        if match is None:
            _bad(what, value, hint)
        value = float(_decimal(match[1]) / (1000 if match[2] else 1))
    try:
        cores = float(value)
    except OverflowError:
        _bad(what, value, hint)
    if not math.isfinite(cores) or cores <= 0:
        raise BadInput(f"{what} {cores:g}: a sandbox needs some processor time", subject=what, hint=hint)
    return cores


def parse_duration(value: str | float, what: str = "duration") -> float:
    """Seconds. A number, parts from ``d h m s ms us`` in that order (``1h30m``), or a clock ``[D-][H:]M:S``. Raises ``BadInput``."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        _bad(what, value, _DURATION_HINT)
    if isinstance(value, str):
        return _parse_duration_text(_words(what, value, _DURATION_HINT), what)
    try:
        seconds = float(value)
    except OverflowError:
        _bad(what, value, _DURATION_HINT)
    if not math.isfinite(seconds) or seconds < 0:
        _bad(what, value, _DURATION_HINT)
    return seconds


def _parse_duration_text(text: str, what: str) -> float:
    total: Decimal | None = None
    if re.fullmatch(_SECONDS, text):
        total = _decimal(text)
    elif match := re.fullmatch(_CLOCK, text):
        days, hours, minutes, seconds = (_decimal(part or 0) for part in match.groups())
        # The leading field may be any size; below it, 61 minutes is a slip of the pen.
        inner = [seconds] if match[2] is None else [seconds, minutes]
        if all(part < 60 for part in inner) and (match[1] is None or match[2] is not None) and (match[1] is None or hours < 24):
            total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    elif text and (match := re.fullmatch(_PARTS, text)):
        total = sum(
            (_decimal(part) * _decimal(unit) for part, unit in zip(match.groups(), _PART_SECONDS, strict=True) if part), _decimal(0)
        )
    if total is None:
        _bad(what, text, _DURATION_HINT)
    return float(total)


_SIGNAL_HINT = "write a name like TERM, INT or RTMIN+3, or a number from 1 to 64"
NOT_FOR_STOP = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT, signal.SIGCHLD})
"""Signals that stop or continue a process or are the kernel's own word: none of them asks a program to end."""


def parse_signal(value: str | int, what: str = "signal") -> int:
    """``SIGTERM``, ``term``, ``15``, ``RTMIN+3`` or ``SIGRTMAX-1`` as a number; 0 for an empty text and for 0."""
    if value == "" or (value == 0 and not isinstance(value, bool)):
        return 0
    text = str(value).upper().removeprefix("SIG")
    base, shift = (text[:5], text[5:]) if text[:5] in ("RTMIN", "RTMAX") else (text, "")
    number = 0
    if base.isdecimal() and base.isascii() and len(base) < 4:
        number = int(base)
    elif base.isalnum():
        number = int(getattr(signal, f"SIG{base}", 0))
    if shift:
        # glibc keeps two real-time signals to itself, so SIGRTMIN is 34 in every image as it is here.
        number = number + int(shift) if re.fullmatch(r"[+-][0-9]{1,2}", shift) else 0
    if not 1 <= number <= 64:
        _bad(what, value, _SIGNAL_HINT)
    return number


def format_size(size: float) -> str:
    """``0 B``, ``1.5 KiB``, ``4 GiB``: three figures at most, readable by ``parse_size``."""
    sign, amount = ("-", -size) if size < 0 else ("", size)
    if amount < 1024:
        return f"{sign}{amount:.0f} B"
    power = 0
    while amount >= 1023.5 and power < len(_POWERS):
        amount /= 1024
        power += 1
    digits = 2 if amount < 9.995 else 1 if amount < 99.95 else 0
    number = f"{amount:.{digits}f}"
    return f"{sign}{number.rstrip('0').rstrip('.') if digits else number} {_POWERS[power - 1].upper()}iB"


def exact_size(size: int) -> str:
    """``80G``, ``1500M``, ``1234``: bytes in the largest unit that they are a whole number of, for ``parse_size`` and beside a limit."""
    return next((f"{size >> bits}{unit}" for bits, unit in ((30, "G"), (20, "M")) if size % (1 << bits) == 0), str(size))


def format_rate(rate: float) -> str:
    """Bytes per second as ``50 MiB/s``."""
    return f"{format_size(rate)}/s"


def format_duration(seconds: float) -> str:
    """``42us``, ``350ms``, ``1.5s``, ``1m30s``, ``2h``, ``1d4h30m``: readable by ``parse_duration``."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 0.0009995:
        return f"{seconds * 1e6:.0f}us" if seconds else "0s"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g}ms"
    if seconds < 59.95:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + "s"
    whole = round(seconds)
    parts = []
    for name, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, length)
        if count:
            parts.append(f"{count}{name}")
    return "".join(parts)


def parse_time(value: str | float, what: str = "time") -> float:
    """Seconds since 1970 of such seconds, an RFC 3339 time (without a zone: UTC; also ``2026-01-31 08:00``), or ``+2h`` from now. Raises
    ``BadInput``."""
    hint = "write +2h for two hours from now, a time like 2026-01-31T12:00:00Z, or seconds since 1970"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        _bad(what, value, hint)
    if isinstance(value, str):
        text = _words(what, value, hint)
        if text.startswith("+"):
            import time

            return time.time() + parse_duration(text[1:], what)
        at = float(text) if re.fullmatch(r"[0-9]{9,11}(\.[0-9]{1,9})?", text) else time_of(text)
        if at is None:
            _bad(what, value, hint)
        return at
    if not 0 <= value < 1e11:
        _bad(what, value, hint)
    return float(value)


def time_of(text: str) -> float | None:
    """Seconds since 1970 of an RFC 3339 time, without a zone in UTC; None for what is none."""
    import datetime

    try:
        at = datetime.datetime.fromisoformat(re.sub(r"(\.[0-9]{6})[0-9]*", r"\1", text.replace("Z", "+00:00")))
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp()
