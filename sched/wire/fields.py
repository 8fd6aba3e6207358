"""The fields of a request, read and checked: whatever a client sends. All raise ``BadInput``."""

from __future__ import annotations

from array import array

from dockless.base.typing import Any
from dockless.errors import BadInput
from dockless.sched.jobs import Filter, State
from dockless.sched.wire.protocol import MAX_JOBS_PER_REQUEST

MOST_SECONDS = 1e11
"""A moment of long after, as seconds since 1970 that ``date`` knows."""
_STATES = tuple(map(str, State))


def integer(request: dict[str, Any], name: str, least: int, most: int) -> int | None:
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadInput(f"{name!r} is not a whole number from {least} to {most}", subject=name, hint=f"use {least} to {most}")
    return value


def seconds(request: dict[str, Any], name: str, most: float) -> float | None:
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise BadInput(f"{name!r} is not a number of seconds", subject=name, hint=f"use 0 to {most:g}")
    return float(value)


def words(request: dict[str, Any], name: str, most: int) -> list[str]:
    value = request.get(name)
    if not isinstance(value, list) or not 1 <= len(value) <= most or not all(isinstance(word, str) for word in value):
        raise BadInput(f"{name!r} is not a list of 1 to {most} words", subject=name)
    return value


def job_filter(request: dict[str, Any]) -> Filter:
    said = {name: request.get(name) or "" for name in ("user", "group")}
    for name, value in said.items():
        if not isinstance(value, str):
            raise BadInput(f"{name!r} is not a name", subject=name)
    states = request.get("states") or []
    if not isinstance(states, list) or not all(isinstance(state, str) and state in _STATES for state in states):
        raise BadInput("'states' is not a list of states", subject="states", hint=f"use {', '.join(_STATES)}")
    since, until = (seconds(request, name, MOST_SECONDS) for name in ("since", "until"))
    return Filter(said["user"], said["group"], tuple(State(state) for state in dict.fromkeys(states)), since, until)


def job_ids(request: dict[str, Any]) -> array[int]:
    wanted = request.get("jobs")
    if not isinstance(wanted, list) or len(wanted) > MAX_JOBS_PER_REQUEST:
        raise BadInput(f"'jobs' is not a list of up to {MAX_JOBS_PER_REQUEST} job ids", subject="jobs", hint="ask in parts")
    return array("q", dict.fromkeys(map(job_id, wanted)))


def job_id(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 62:
        raise BadInput(f"{str(value)[:40]!r} is not a job id", subject="job", hint="`dockless queue` lists them")
    return value
