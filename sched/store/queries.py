"""What is read from the queue: jobs, their attempts and options, and what else it remembers."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat

from dockless.base.dataclass import dataclass, many
from dockless.base.typing import Any
from dockless.sched.jobs import NO_OPTIONS, Attempt, AttemptState, Filter, Job, JobOptions, State, read_options
from dockless.sched.store.schema import LIVE

GPU_ERROR = "gpu"
_COLUMNS = (
    "id, uid, user, state, reason, name, grp, image, command, gpus, gpu_count, devices, priority, time_limit, on_reboot, submitted,"
    " started, ended, attempt, exit_code, signal, array, idx, options"
)
_FIELDS = (*_COLUMNS.replace("grp", "group").replace("idx", "index").split(", "),)
_PAGE = 200
_PART = 5_000
"""Rows of jobs that a daemon which comes back makes jobs of together."""


@dataclass(frozen=True, slots=True)
class Live:
    """A job that has not ended, with what only the daemon needs. ``boot`` and ``ticks`` (CLOCK_BOOTTIME at its start, seconds) are of
    the newest attempt. ``spec_size``: characters of its spec, which the jobs of an array share."""

    job: Job
    wanted: tuple[str, ...]
    quota_groups: tuple[str, ...]
    cancelled: bool
    boot: str = ""
    ticks: float = 0.0
    spec_size: int = 0


def queue_id(db: sqlite3.Connection) -> str:
    """The name of this very database: sandboxes carry it, so nobody adopts those of another queue."""
    return str(db.execute("SELECT value FROM meta WHERE key='queue'").fetchone()[0])


def drained(db: sqlite3.Connection) -> dict[str, str]:
    """Where nothing is started, and why: by a GPU's UUID, or ``host``."""
    found = db.execute("SELECT value FROM meta WHERE key='drained'").fetchone()
    return dict(json.loads(found[0])) if found else {}


def shutdown(db: sqlite3.Connection) -> float:
    """The last time that was noted; 0 for never."""
    found = db.execute("SELECT value FROM meta WHERE key='shutdown'").fetchone()
    return float(found[0]) if found else 0.0


def events(db: sqlite3.Connection, job: int, most: int) -> list[tuple[float, str, int, str]]:
    """The newest so many events of a job, in their order: when, what, of which attempt, and more about it. The submit is in the job's row,
    for an array has it once; so is how the job ended."""
    rows = db.execute(
        "SELECT at, event, attempt, detail FROM events WHERE job=? AND event<>'submit' ORDER BY seq DESC LIMIT ?", (job, most)
    ).fetchall()
    of = db.execute("SELECT submitted, state, ended, attempt, reason, options FROM jobs WHERE id=?", (job,)).fetchone()
    found = [(float(at), str(what), int(attempt), str(detail)) for at, what, attempt, detail in reversed(rows)]
    if of is None:
        return found
    submitted, state, ended, attempts, reason, options = of
    words = {what for _, what, _, _ in found}
    held = "hold" not in words and ("release" in words or read_options(json.loads(options)).held)
    # That of a job without an attempt is in the log.
    end = [(float(ended), str(state).lower(), 0, str(reason))] if ended and attempts else []
    return [(float(submitted), "submit", 0, "held" if held else ""), *found, *end][-most:]


def gpu_errors(db: sqlite3.Connection, job: int) -> dict[int, tuple[str, ...]]:
    """Those of each attempt of a job, in their order."""
    found: dict[int, tuple[str, ...]] = {}
    for attempt, text in db.execute("SELECT attempt, detail FROM events WHERE job=? AND event=? ORDER BY seq", (job, GPU_ERROR)):
        found[attempt] = (*found.get(attempt, ()), text)
    return found


def live(db: sqlite3.Connection, ids: Iterable[int] | None = None) -> list[Live]:
    """Jobs that have not ended, or those of ``ids``, oldest first: with what only the daemon needs."""
    where = LIVE if ids is None else "id IN (SELECT value FROM json_each(?))"
    rows = db.execute(
        f"SELECT {_COLUMNS}, wanted, quota_groups, cancelled,"
        " (SELECT boot FROM attempts a WHERE a.job=jobs.id AND a.number=jobs.attempt),"
        " (SELECT ticks FROM attempts a WHERE a.job=jobs.id AND a.number=jobs.attempt),"
        " (SELECT size FROM specs WHERE specs.id=jobs.spec_id)"
        f" FROM jobs WHERE {where} ORDER BY id",
        () if ids is None else (json.dumps([*ids]),),
    )
    found: list[Live] = []
    while part := rows.fetchmany(_PART):
        columns = list(zip(*part, strict=True))
        rest = {
            "job": many(Job, len(part), _shown(columns)), "wanted": _tuples(columns[24]), "quota_groups": _tuples(columns[25]),
            "cancelled": map(bool, columns[26]), "boot": (boot or "" for boot in columns[27]), "ticks": (at or 0.0 for at in columns[28]),
            "spec_size": (size or 0 for size in columns[29]),
        }  # fmt: skip
        found += many(Live, len(part), rest)
    return found


def jobs(db: sqlite3.Connection, numbers: Iterable[int]) -> list[Job]:
    """Those of them that are remembered, without their attempts."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE id IN (SELECT value FROM json_each(?))", (json.dumps([*numbers]),)).fetchall()
    return many(Job, len(rows), _shown(list(zip(*rows, strict=True)))) if rows else []


def _shown(columns: Sequence[tuple[Any, ...]]) -> dict[str, Iterable[Any]]:
    """Those of ``_COLUMNS`` as a job has them."""
    shown: dict[str, Iterable[Any]] = dict(zip(_FIELDS, columns, strict=False))
    return shown | {"state": map(State, columns[3]), "devices": _tuples(columns[11]), "options": _all_options(columns[23])}


def _tuples(texts: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Of JSON; the same text gives the same tuple."""
    known: dict[str, tuple[str, ...]] = {}
    for text in texts:
        found = known.get(text)
        yield known.setdefault(text, tuple(json.loads(text))) if found is None else found


@lru_cache(1000)
def _options(text: str) -> JobOptions:
    return NO_OPTIONS if text == "{}" else read_options(json.loads(text))


def options(db: sqlite3.Connection, number: int) -> JobOptions:
    """Of one job, as they stand on disk."""
    return _options(db.execute("SELECT options FROM jobs WHERE id=?", (number,)).fetchone()[0])


def _all_options(texts: tuple[str, ...]) -> Iterable[JobOptions]:
    if texts.count("{}") == len(texts):
        return repeat(NO_OPTIONS, len(texts))
    known = {text: _options(text) for text in dict.fromkeys(texts)}
    return map(known.__getitem__, texts)


def job(db: sqlite3.Connection, number: int) -> Job | None:
    """One job with its attempts."""
    row = db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE id=?", (number,)).fetchone()
    return None if row is None else _job(row, attempts(db, number))


def states(db: sqlite3.Connection, numbers: Sequence[int]) -> dict[int, State]:
    """Of those jobs that are remembered."""
    rows = db.execute(f"SELECT id, state FROM jobs WHERE id IN ({','.join('?' * len(numbers))})", numbers)
    return {number: State(state) for number, state in rows}


def arrays(db: sqlite3.Connection, numbers: Sequence[int]) -> dict[int, int]:
    """Of those jobs that are of an array, its number, which is that of its first job. Of a gang the first stands for all."""
    among = f"id IN ({','.join('?' * len(numbers))})"
    rows = db.execute(f"SELECT id, array FROM jobs WHERE {among} AND array > 0 AND json_extract(options, '$.role') IS NULL", numbers)
    return dict(rows.fetchall())


def members(db: sqlite3.Connection, array: int, most: int) -> list[int]:
    """The numbers of an array's jobs that are remembered, the first so many; empty for a job that is no array's first."""
    rows = db.execute("SELECT id, array FROM jobs WHERE id >= ? ORDER BY id LIMIT ?", (array, most)).fetchall()
    return [number for number, of in rows if of == array]


def attempts(db: sqlite3.Connection, number: int) -> tuple[Attempt, ...]:
    rows = db.execute(
        "SELECT job, number, state, sandbox, gpus, started, ended, reason, exit FROM attempts WHERE job=? ORDER BY number", (number,)
    )
    errors = gpu_errors(db, number)
    return tuple(
        Attempt(
            *(r[0], r[1], AttemptState(r[2]), r[3], tuple(json.loads(r[4])), r[5], r[6], r[7]),
            json.loads(r[8]) if r[8] else None,
            errors.get(r[1], ()),
        )
        for r in rows
    )


def ended(db: sqlite3.Connection, wanted: Filter, limit: int, before: tuple[float, int] = (math.inf, 0)) -> Iterator[Job]:
    """Jobs that have ended, newest first. Read in pages: no transaction stays open between them. ``before``: when the job before the first
    of them ended, and its number."""
    where, values = _where(wanted)
    at, number = before
    while limit > 0:
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM jobs WHERE (ended, id) < (?, ?) AND {where} ORDER BY ended DESC, id DESC LIMIT ?",
            (at, number, *values, min(limit, _PAGE)),
        ).fetchall()
        for row in rows:
            found = _job(row)
            at, number = found.ended, found.id
            yield found
        limit = limit - len(rows) if len(rows) == _PAGE else 0


def live_numbers(db: sqlite3.Connection, wanted: Filter) -> set[int]:
    """Of the jobs that have not ended those of that group and submitted until then: neither changes."""
    until = math.inf if wanted.until is None else wanted.until
    rows = db.execute(f"SELECT id FROM jobs WHERE {LIVE} AND (?1 = '' OR grp = ?1) AND submitted <= ?2", (wanted.group, until))
    return {row[0] for row in rows}


def count_ended(db: sqlite3.Connection, wanted: Filter) -> int:
    """How many jobs that have ended are remembered."""
    where, values = _where(wanted)
    return int(db.execute(f"SELECT COUNT(*) FROM jobs WHERE {where}", values).fetchone()[0])


def _where(wanted: Filter) -> tuple[str, list[Any]]:
    """As ``Filter.keeps``, of jobs that have ended."""
    asked: list[tuple[str, list[Any]]] = [("ended > 0", [])]
    if wanted.user:
        asked.append(("user = ?", [wanted.user]))
    if wanted.group:
        asked.append(("grp = ?", [wanted.group]))
    if wanted.states:
        asked.append((f"state IN ({','.join('?' * len(wanted.states))})", [str(state) for state in wanted.states]))
    if wanted.since is not None:
        asked.append(("ended >= ?", [wanted.since]))
    if wanted.until is not None:
        asked.append(("submitted <= ?", [wanted.until]))
    return " AND ".join(text for text, _ in asked), [value for _, values in asked for value in values]


def has_sandbox(db: sqlite3.Connection, name: str) -> bool:
    """Whether an attempt was ever given a sandbox of that name."""
    return db.execute("SELECT 1 FROM attempts WHERE sandbox=? LIMIT 1", (name,)).fetchone() is not None


def spec(db: sqlite3.Connection, number: int) -> str:
    """The JSON of the JobSpec as it was submitted; empty where it is not kept any more."""
    found = db.execute("SELECT body FROM specs WHERE id=(SELECT spec_id FROM jobs WHERE id=?)", (number,)).fetchone()
    return str(found[0]) if found else ""


def owners(db: sqlite3.Connection, numbers: Iterable[int]) -> dict[int, int]:
    """Whose these jobs are: user ids by job. Those that are not there are left out."""
    among = "id IN (SELECT value FROM json_each(?))"
    return dict(db.execute(f"SELECT id, uid FROM jobs WHERE {among}", (json.dumps([*numbers]),)).fetchall())


def gpu_time(db: sqlite3.Connection, after: float) -> Iterator[tuple[str, tuple[str, ...], float, float]]:
    """Of the attempts that ended after that moment: user, groups with a quota, when the last of an hour ended, and their GPU-seconds."""
    rows = db.execute(
        "SELECT user, quota_groups, MAX(a.ended), SUM(gpu_count * part * (a.ended - a.started))"
        " FROM attempts a JOIN jobs ON jobs.id = a.job"
        " WHERE a.ended > ? AND gpu_count > 0 GROUP BY user, quota_groups, CAST(a.ended / 3600 AS INTEGER)",
        (after,),
    )
    return ((user, tuple(json.loads(groups)), ended, seconds) for user, groups, ended, seconds in rows)


def _job(r: Sequence[Any], tries: tuple[Attempt, ...] = ()) -> Job:
    return Job(
        id=r[0], uid=r[1], user=r[2], state=State(r[3]), reason=r[4], name=r[5], group=r[6], image=r[7], command=r[8],
        gpus=r[9], gpu_count=r[10], devices=tuple(json.loads(r[11])), priority=r[12], time_limit=r[13], on_reboot=r[14], submitted=r[15],
        started=r[16], ended=r[17], attempt=r[18], exit_code=r[19], signal=r[20], array=r[21], index=r[22], options=_options(r[23]),
        attempts=tries,
    )  # fmt: skip
