"""What a group has used, read from its files or from copies of them.

``Usage.from_files`` takes the raw text, so that an exit record written by a program that knows nothing of Python gives the same numbers as
the living group. A file that is absent (no such controller, older kernel) leaves its numbers ``None``: unknown is not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dockless.base.dataclass import dataclass
from dockless.base.typing import Any

#: The files that ``Usage.from_files`` understands, in the order of their worth.
USAGE_FILES = (
    "cpu.stat",
    "memory.current",
    "memory.peak",
    "memory.events",
    "memory.swap.current",
    "io.stat",
    "pids.current",
    "pids.peak",
    "pids.events",
    "cpu.pressure",
    "memory.pressure",
    "io.pressure",
)


@dataclass(frozen=True, slots=True)
class Pressure:
    """One PSI file: per cent of wall time in which some (or all) tasks waited, over 10, 60 and 300 s, and the sum in seconds.

    Documentation/accounting/psi.rst
    """

    some_avg10: float = 0.0
    some_avg60: float = 0.0
    some_avg300: float = 0.0
    some_total: float = 0.0
    full_avg10: float = 0.0
    full_avg60: float = 0.0
    full_avg300: float = 0.0
    full_total: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Pressure:
        """The text of ``*.pressure``. Raises ValueError."""
        values: dict[str, float] = {}
        for line in text.splitlines():
            kind, *pairs = line.split()
            for pair in pairs:
                key, _, value = pair.partition("=")
                values[f"{kind}_{key}"] = float(value) / 1e6 if key == "total" else float(value)
        return cls(**{key: value for key, value in values.items() if key in _PRESSURE_FIELDS})


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds, bytes and counts since the group was made; ``None`` where this host does not count it.

    oom_kills: processes of the group killed for memory (with memory.oom.group the kernel may count its first choice twice);
    memory_limit_hits: times memory.max was reached (reclaim may have helped); pids_refused: forks refused by pids.max. io sums all
    disks.
    """

    cpu_seconds: float | None = None
    user_seconds: float | None = None
    system_seconds: float | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_seconds: float | None = None
    memory_current: int | None = None
    memory_peak: int | None = None
    swap_current: int | None = None
    memory_limit_hits: int | None = None
    oom_kills: int | None = None
    io_read_bytes: int | None = None
    io_write_bytes: int | None = None
    io_read_ops: int | None = None
    io_write_ops: int | None = None
    pids_current: int | None = None
    pids_peak: int | None = None
    pids_refused: int | None = None
    cpu_pressure: Pressure | None = None
    memory_pressure: Pressure | None = None
    io_pressure: Pressure | None = None

    @classmethod
    def from_files(cls, files: Mapping[str, str]) -> Usage:
        """The numbers in ``{"cpu.stat": text, …}``. Unknown files and torn lines are passed over, never guessed at."""
        known: dict[str, Any] = {}
        for name, text in files.items():
            if name in _PARSED:
                known |= _PARSED[name](text)
        return cls(**known)


def parse_flat(text: str) -> dict[str, int]:
    """A flat keyed file (``key number`` per line), such as cgroup.events and memory.events."""
    out: dict[str, int] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if value.isdecimal():
            out[key] = int(value)
    return out


def _sum_io(text: str) -> dict[str, int]:
    sums = {"rbytes": 0, "wbytes": 0, "rios": 0, "wios": 0}
    for line in text.splitlines():
        for pair in line.split()[1:]:
            key, _, value = pair.partition("=")
            if key in sums and value.isdecimal():
                sums[key] += int(value)
    return sums


def _cpu(text: str) -> dict[str, Any]:
    cpu = parse_flat(text)
    return {
        "cpu_seconds": _seconds(cpu.get("usage_usec")),
        "user_seconds": _seconds(cpu.get("user_usec")),
        "system_seconds": _seconds(cpu.get("system_usec")),
        "periods": cpu.get("nr_periods"),
        "throttled_periods": cpu.get("nr_throttled"),
        "throttled_seconds": _seconds(cpu.get("throttled_usec")),
    }


def _memory_events(text: str) -> dict[str, Any]:
    events = parse_flat(text)
    return {"memory_limit_hits": events.get("max"), "oom_kills": events.get("oom_kill")}


def _io(text: str) -> dict[str, Any]:
    io = _sum_io(text)
    return {
        "io_read_bytes": io["rbytes"],
        "io_write_bytes": io["wbytes"],
        "io_read_ops": io["rios"],
        "io_write_ops": io["wios"],
    }


def _number(text: str | None) -> int | None:
    text = text.strip() if text else ""
    return int(text) if text.isdecimal() else None


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6


def _pressure(text: str | None) -> Pressure | None:
    if not text:
        return None
    try:
        return Pressure.parse(text)
    except ValueError:
        return None


_PRESSURE_FIELDS = frozenset(Pressure.__match_args__)
_PARSED: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "cpu.stat": _cpu,
    "memory.current": lambda text: {"memory_current": _number(text)},
    "memory.peak": lambda text: {"memory_peak": _number(text)},
    "memory.events": _memory_events,
    "memory.swap.current": lambda text: {"swap_current": _number(text)},
    "io.stat": _io,
    "pids.current": lambda text: {"pids_current": _number(text)},
    "pids.peak": lambda text: {"pids_peak": _number(text)},
    "pids.events": lambda text: {"pids_refused": parse_flat(text).get("max")},
    "cpu.pressure": lambda text: {"cpu_pressure": _pressure(text)},
    "memory.pressure": lambda text: {"memory_pressure": _pressure(text)},
    "io.pressure": lambda text: {"io_pressure": _pressure(text)},
}
