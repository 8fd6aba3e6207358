"""The queue on disk: SQLite in WAL mode with synchronous=FULL, so a committed transaction survives kill -9 and power loss.

One table per noun (jobs, attempts, leases) and a log of events. What must never happen is refused by the database itself:

- an id given out twice: ``AUTOINCREMENT``, sqlite.org/autoinc.html;
- two live attempts of a job: a partial unique index;
- a GPU leased twice: the key of ``leases``;
- a state change that ``jobs.ALLOWED`` does not know: every update names the state it comes from.

Functions here run inside a transaction that the caller opened (``writer.QueueWriter`` gathers several callers into one) or only read.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, repeat
from pathlib import Path

from dockless.base import paths
from dockless.base.dataclass import dataclass, field, many, replace
from dockless.base.records import differences
from dockless.base.typing import Any
from dockless.errors import SchedError
from dockless.sched.jobs import ALLOWED, NO_OPTIONS, Attempt, AttemptState, Filter, Job, JobOptions, State, read_options
from dockless.sched.store import lease as leases
from dockless.sched.store import usage
from dockless.sched.store.lease import Lease

VERSION = 3

# A spec is there once for all jobs that were submitted with it, and as long as one of them is remembered, or until ``shed``.
SINCE_2 = (
    "CREATE TABLE specs(id INTEGER PRIMARY KEY, size INTEGER NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX jobs_spec ON jobs(spec_id) WHERE spec_id > 0",
    "CREATE INDEX jobs_of ON jobs(uid, ended) WHERE ended > 0",
    "CREATE INDEX events_of ON events(job)",
)
SCHEMA = (
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE jobs(
        id INTEGER PRIMARY KEY AUTOINCREMENT, uid INTEGER NOT NULL, user TEXT NOT NULL, state TEXT NOT NULL,
        reason TEXT NOT NULL DEFAULT '', name TEXT NOT NULL, grp TEXT NOT NULL, image TEXT NOT NULL, command TEXT NOT NULL,
        gpus TEXT NOT NULL, gpu_count INTEGER NOT NULL, wanted TEXT NOT NULL, quota_groups TEXT NOT NULL, priority INTEGER NOT NULL,
        time_limit REAL NOT NULL, on_reboot TEXT NOT NULL, submitted REAL NOT NULL, started REAL NOT NULL DEFAULT 0,
        ended REAL NOT NULL DEFAULT 0, attempt INTEGER NOT NULL DEFAULT 0, exit_code INTEGER, signal INTEGER, array INTEGER NOT NULL,
        idx INTEGER NOT NULL, devices TEXT NOT NULL DEFAULT '[]', cancelled INTEGER NOT NULL DEFAULT 0,
        spec_id INTEGER NOT NULL DEFAULT 0, options TEXT NOT NULL DEFAULT '{}')""",
    "CREATE INDEX jobs_live ON jobs(state) WHERE state IN ('PENDING','STARTING','RUNNING')",
    "CREATE INDEX jobs_ended ON jobs(ended) WHERE ended > 0",
    """CREATE TABLE attempts(
        job INTEGER NOT NULL, number INTEGER NOT NULL, state TEXT NOT NULL, sandbox TEXT NOT NULL, gpus TEXT NOT NULL, boot TEXT NOT NULL,
        started REAL NOT NULL, ticks REAL NOT NULL, ended REAL NOT NULL DEFAULT 0, reason TEXT NOT NULL DEFAULT '', exit TEXT,
        PRIMARY KEY(job, number)) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX one_live_attempt ON attempts(job) WHERE state IN ('STARTING','RUNNING')",
    leases.SCHEMA,
    """CREATE TABLE events(seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, job INTEGER NOT NULL, attempt INTEGER NOT NULL,
        event TEXT NOT NULL, detail TEXT NOT NULL DEFAULT '')""",
    *SINCE_2,
    *usage.SCHEMA,
)

_GPU_ERROR = "gpu"
_COLUMNS = (
    "id, uid, user, state, reason, name, grp, image, command, gpus, gpu_count, devices, priority, time_limit, on_reboot, submitted,"
    " started, ended, attempt, exit_code, signal, array, idx, options"
)
_FIELDS = (*_COLUMNS.replace("grp", "group").replace("idx", "index").split(", "),)
_PAGE = 200
_PART = 5_000
"""Rows of jobs that a daemon which comes back makes jobs of together."""
LIVE = "state IN ('PENDING','STARTING','RUNNING')"
"""As the index has it, which SQLite uses where it finds these very words."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that passed admission. ``wanted``: UUIDs it insists on; ``quota_groups``: groups it counts against; ``spec``: JSON; ``place``:
    the number of its array and its index there, where it is one of an older array."""

    uid: int
    user: str
    name: str
    group: str
    image: str
    command: str
    gpus: str
    gpu_count: int
    wanted: tuple[str, ...]
    quota_groups: tuple[str, ...]
    priority: int
    time_limit: float
    on_reboot: str
    spec: str = field(repr=False)
    options: JobOptions = NO_OPTIONS
    place: tuple[int, int] = (0, 0)


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


def open_queue(path: Path) -> sqlite3.Connection:
    """The database, made if it is not there, readable by its owner alone. Raises SchedError for a newer schema or a damaged file."""
    # O_NOFOLLOW and the mode before SQLite sees it: a queue holds environments, and environments hold secrets.
    with paths.writing("the queue", path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    try:
        db = connect(path)
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")  # first: a file that has a page already changes only by VACUUM
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute(f"PRAGMA journal_size_limit={16 << 20}")
        have = int(db.execute("PRAGMA user_version").fetchone()[0])
        if have == 0:
            db.execute("BEGIN IMMEDIATE")
            for statement in SCHEMA:
                db.execute(statement)
            db.execute("INSERT INTO meta VALUES('queue', ?)", (uuid.uuid4().hex,))
            db.execute(f"PRAGMA user_version={VERSION}")
            db.execute("COMMIT")
        if have == 1:
            _upgrade_1(db)
        if have in (1, 2):
            _upgrade_2(db)
    except sqlite3.DatabaseError as error:
        raise SchedError(f"the queue {path} cannot be opened: {error}", subject=str(path), hint="restore it, or move it away") from error
    if have > VERSION:
        raise SchedError(
            f"the queue {path} has schema {have}, this dockless knows {VERSION}",
            subject=str(path),
            hint="run the newer dockless that wrote it",
        )
    return db


def _upgrade_1(db: sqlite3.Connection) -> None:
    """Each job had a copy of its spec, for ever. What has ended loses it, an array shares one; then the file shrinks to what is left."""
    db.execute("BEGIN IMMEDIATE")
    db.execute("ALTER TABLE jobs ADD COLUMN spec_id INTEGER NOT NULL DEFAULT 0")
    for statement in SINCE_2:
        db.execute(statement)
    shared = f"SELECT MIN(id), array FROM jobs WHERE {LIVE} GROUP BY CASE WHEN array > 0 THEN -array ELSE id END"
    for first, array in db.execute(shared).fetchall():
        db.execute("INSERT INTO specs(id, size, body) SELECT id, length(spec), spec FROM jobs WHERE id=?", (first,))
        db.execute(f"UPDATE jobs SET spec_id=? WHERE {LIVE} AND (id=? OR (array=? AND array > 0))", (first, first, array))
    db.execute("ALTER TABLE jobs DROP COLUMN spec")
    db.execute("PRAGMA user_version=2")
    db.execute("COMMIT")
    try:
        db.execute("VACUUM")
    except sqlite3.OperationalError:
        pass  # no room for a copy: the file keeps its size, and its room is used again


def _upgrade_2(db: sqlite3.Connection) -> None:
    """Jobs had no options, and nobody counted what was used."""
    db.execute("BEGIN IMMEDIATE")
    db.execute("ALTER TABLE jobs ADD COLUMN options TEXT NOT NULL DEFAULT '{}'")
    for statement in usage.SCHEMA:
        db.execute(statement)
    usage.count_all(db)
    db.execute("PRAGMA user_version=3")
    db.execute("COMMIT")


def connect(path: Path) -> sqlite3.Connection:
    """One more connection to the same queue, for reading."""
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0, factory=_Connection)


def storable(text: str) -> str:
    """``text`` as SQLite takes it: a byte that is not UTF-8 is written as ``\\xff``. What has to come back as it was is stored as JSON."""
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte
        raw = text.encode("utf-8", "backslashreplace")
    return raw.decode("utf-8", "backslashreplace")


class _Connection(sqlite3.Connection):
    """Stores any text: an error that names a user's strange path must not keep the end of her job from being recorded."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        try:
            return super().execute(sql, parameters)
        except UnicodeEncodeError:  # nothing was done: values come before the first step
            return super().execute(sql, _storable_row(parameters))

    def executemany(self, sql: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        return super().executemany(sql, map(_storable_row, rows))


def _storable_row(values: Sequence[Any]) -> Sequence[Any]:
    return tuple(storable(value) if isinstance(value, str) and not value.isascii() else value for value in values)


def queue_id(db: sqlite3.Connection) -> str:
    """The name of this very database: sandboxes carry it, so nobody adopts those of another queue."""
    return str(db.execute("SELECT value FROM meta WHERE key='queue'").fetchone()[0])


def drained(db: sqlite3.Connection) -> dict[str, str]:
    """Where nothing is started, and why: by a GPU's UUID, or ``host``."""
    found = db.execute("SELECT value FROM meta WHERE key='drained'").fetchone()
    return dict(json.loads(found[0])) if found else {}


# -- changes, each inside the caller's transaction


def change_drained(db: sqlite3.Connection, more: Mapping[str, str], less: Collection[str]) -> dict[str, str]:
    """Drain ``more`` and no longer ``less``; what is drained then."""
    now = {name: why for name, why in (drained(db) | dict(more)).items() if name not in less}
    db.execute("INSERT OR REPLACE INTO meta VALUES('drained', ?)", (json.dumps(now),))
    return now


def insert(db: sqlite3.Connection, jobs: Sequence[NewJob], array: bool, now: float) -> list[int]:
    """Queue ``jobs`` in order; their ids, one after the other. ``array``: they are one array, in order of their index."""
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name='jobs'").fetchone()
    first = (int(row[0]) if row else 0) + 1
    encoded: dict[tuple[str, ...], str] = {}

    def plain(values: tuple[str, ...]) -> str:
        return encoded.get(values) or encoded.setdefault(values, json.dumps(values))

    options = {found: json.dumps(differences(found)) for found in {new.options for new in jobs}}
    specs: dict[str, int] = {}
    for new in jobs:
        if new.spec not in specs:
            specs[new.spec] = int(db.execute("INSERT INTO specs(size, body) VALUES(?,?)", (len(new.spec), new.spec)).lastrowid or 0)
    db.executemany(
        "INSERT INTO jobs(id, uid, user, state, name, grp, image, command, gpus, gpu_count, wanted, quota_groups, priority, time_limit,"
        " on_reboot, submitted, array, idx, spec_id, options) VALUES(?,?,?,'PENDING',?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        (
            (
                *(first + i, j.uid, j.user, j.name, j.group, j.image, j.command, j.gpus, j.gpu_count, plain(j.wanted)),
                *(plain(j.quota_groups), j.priority, j.time_limit, j.on_reboot, now, *((first, i) if array else j.place)),
                specs[j.spec],
                options[j.options],
            )
            for i, j in enumerate(jobs)
        ),
    )
    event(db, now, first, 0, "submit", "" if len(jobs) == 1 else f"{len(jobs)} jobs, to {first + len(jobs) - 1}")
    return list(range(first, first + len(jobs)))


def begin_attempt(db: sqlite3.Connection, lease: Lease, sandbox: str, boot: str, ticks: float) -> None:
    """PENDING → STARTING, with the attempt's row and its lease: from here on the GPUs are taken, whatever dies."""
    _move(db, lease.job, State.PENDING, State.STARTING, "", attempt=lease.attempt, started=lease.since, devices=json.dumps(lease.gpus))
    leases.take(db, lease)
    db.execute(
        "INSERT INTO attempts(job, number, state, sandbox, gpus, boot, started, ticks) VALUES(?,?,'STARTING',?,?,?,?,?)",
        (lease.job, lease.attempt, sandbox, json.dumps(lease.gpus), boot, lease.since, ticks),
    )
    event(db, lease.since, lease.job, lease.attempt, "start", " ".join(lease.gpus))


def set_running(db: sqlite3.Connection, job: int, attempt: int, now: float, detail: str = "", enforced_by: str | None = None) -> None:
    """STARTING → RUNNING: the program was exec'd. ``enforced_by``: as in ``JobOptions``, None where that stays."""
    _move(db, job, State.STARTING, State.RUNNING, "")
    db.execute("UPDATE attempts SET state='RUNNING' WHERE job=? AND number=?", (job, attempt))
    if enforced_by is not None:
        found = replace(options(db, job), enforced_by=enforced_by)
        db.execute("UPDATE jobs SET options=? WHERE id=?", (json.dumps(differences(found)), job))
    event(db, now, job, attempt, "running", detail)


def void_attempt(db: sqlite3.Connection, job: int, attempt: int, now: float, reason: str) -> None:
    """STARTING → PENDING: this attempt never ran."""
    _move(db, job, State.STARTING, State.PENDING, "", started=0.0, devices="[]")
    _end_attempt(db, job, attempt, AttemptState.VOID, now, reason, None)


def note_shutdown(db: sqlite3.Connection, now: float) -> None:
    """When the host began to go down, in seconds since 1970."""
    db.execute("INSERT OR REPLACE INTO meta VALUES('shutdown', ?)", (repr(now),))


def shutdown(db: sqlite3.Connection) -> float:
    """The last time that was noted; 0 for never."""
    found = db.execute("SELECT value FROM meta WHERE key='shutdown'").fetchone()
    return float(found[0]) if found else 0.0


def requeue(db: sqlite3.Connection, job: int, now: float, reason: str, exit_record: dict[str, Any] | None = None) -> None:
    """STARTING or RUNNING → PENDING: the job waits for another attempt. This one ends with ``exit_record``, and is LOST without."""
    attempt = db.execute("SELECT attempt FROM jobs WHERE id=?", (job,)).fetchone()[0]
    _move(db, job, _state(db, job), State.PENDING, "", started=0.0, devices="[]")
    _end_attempt(db, job, attempt, AttemptState.LOST if exit_record is None else AttemptState.ENDED, now, reason, exit_record)


def set_options(db: sqlite3.Connection, job: int, options: JobOptions, now: float, what: str, detail: str) -> None:
    """Other options from now on. ``what`` and ``detail``: for the log of events, which keeps the newest of each ``what`` of a job, so that
    it does not grow with holds and releases."""
    db.execute("UPDATE jobs SET options=? WHERE id=?", (json.dumps(differences(options)), job))
    db.execute("DELETE FROM events WHERE job=? AND event=?", (job, what))
    event(db, now, job, 0, what, detail)


def finish(
    db: sqlite3.Connection,
    job: int,
    attempt: int,
    state: State,
    now: float,
    reason: str,
    exit_record: dict[str, Any] | None,
    exit_code: int | None = None,
) -> None:
    """The end of a job and of its attempt, and the GPUs are free: one transaction."""
    signal = exit_record.get("signal") if exit_record else None
    _move(db, job, _state(db, job), state, reason, ended=now, exit_code=exit_code, signal=signal)
    if attempt:
        _end_attempt(db, job, attempt, AttemptState.LOST if state is State.LOST else AttemptState.ENDED, now, reason, exit_record)
    else:
        event(db, now, job, 0, str(state).lower(), reason)


def set_quota_groups(db: sqlite3.Connection, groups: Mapping[str, tuple[str, ...]]) -> None:
    """The groups that the jobs of these users count against which have not ended."""
    db.executemany(f"UPDATE jobs SET quota_groups=? WHERE {LIVE} AND user=?", [(json.dumps(of), user) for user, of in groups.items()])


def want_cancel(db: sqlite3.Connection, job: int, now: float, who: str) -> None:
    """The wish to end a job that has an attempt; a daemon that comes back still knows it."""
    db.execute("UPDATE jobs SET cancelled=1 WHERE id=?", (job,))
    event(db, now, job, 0, "cancel", who)


def forget(db: sqlite3.Connection, before: float, keep: int, most: int) -> tuple[int, list[str]]:
    """Remove jobs that ended before that moment, and of each user's ended ones the oldest above ``keep``; at most so many at once. How
    many went, and the names of their sandboxes."""
    gone = [row[0] for row in db.execute("SELECT id FROM jobs WHERE ended > 0 AND ended < ? ORDER BY ended LIMIT ?", (before, most))]
    for uid, count in db.execute("SELECT uid, COUNT(*) FROM jobs WHERE ended > 0 GROUP BY uid HAVING COUNT(*) > ?", (keep,)).fetchall():
        over = min(count - keep, most - len(gone))
        oldest = db.execute("SELECT id FROM jobs WHERE uid=? AND ended > 0 ORDER BY ended, id LIMIT ?", (uid, over))
        gone += [row[0] for row in oldest if row[0] not in set(gone)]
    marks = ",".join("?" * len(gone))
    specs = [row[0] for row in db.execute(f"SELECT DISTINCT spec_id FROM jobs WHERE spec_id > 0 AND id IN ({marks})", gone)]
    names = [row[0] for row in db.execute(f"SELECT sandbox FROM attempts WHERE job IN ({marks})", gone)]
    for table, column in (("events", "job"), ("attempts", "job"), ("jobs", "id")):
        db.execute(f"DELETE FROM {table} WHERE {column} IN ({marks})", gone)
    _drop_unused(db, specs)
    return len(gone), names


def shed(db: sqlite3.Connection, uid: int, most: int) -> None:
    """Of the specs of a user's ended jobs keep the newest so many characters."""
    rows = db.execute(
        "SELECT spec_id, size FROM jobs JOIN specs ON specs.id=spec_id WHERE uid=? AND ended > 0 ORDER BY ended DESC, jobs.id DESC", (uid,)
    )
    kept = [*dict.fromkeys(rows)]
    over = [spec for (spec, _), sum in zip(kept, accumulate(size for _, size in kept), strict=True) if sum > most]
    for start in range(0, len(over), _PAGE):
        part = over[start : start + _PAGE]
        db.execute(f"UPDATE jobs SET spec_id=0 WHERE ended > 0 AND uid=? AND spec_id IN ({','.join('?' * len(part))})", (uid, *part))
        _drop_unused(db, part)


def _drop_unused(db: sqlite3.Connection, specs: Sequence[int]) -> None:
    db.executemany(
        "DELETE FROM specs WHERE id=? AND NOT EXISTS (SELECT 1 FROM jobs WHERE spec_id=specs.id AND spec_id > 0)", [(one,) for one in specs]
    )


def give_back(db: sqlite3.Connection, pages: int) -> bool:
    """Return so many free pages of the file to the disk; whether there are more."""

    def free() -> int:
        return int(db.execute("PRAGMA freelist_count").fetchone()[0])

    before = free()
    for _ in range(min(pages, before)):
        db.execute("PRAGMA incremental_vacuum(1)")  # by Python's module only a page a call
    return 0 < free() < before


def event(db: sqlite3.Connection, now: float, job: int, attempt: int, what: str, detail: str = "") -> None:
    db.execute("INSERT INTO events(at, job, attempt, event, detail) VALUES(?,?,?,?,?)", (now, job, attempt, what, detail))


def note_gpu_error(db: sqlite3.Connection, job: int, attempt: int, now: float, text: str, most: int) -> None:
    """What the driver has reported of a GPU of an attempt: once, and of one attempt so many at most."""
    known = gpu_errors(db, job).get(attempt, ())
    if len(known) < most and text not in known:
        event(db, now, job, attempt, _GPU_ERROR, text)


def gpu_errors(db: sqlite3.Connection, job: int) -> dict[int, tuple[str, ...]]:
    """Those of each attempt of a job, in their order."""
    found: dict[int, tuple[str, ...]] = {}
    for attempt, text in db.execute("SELECT attempt, detail FROM events WHERE job=? AND event=? ORDER BY seq", (job, _GPU_ERROR)):
        found[attempt] = (*found.get(attempt, ()), text)
    return found


def _end_attempt(
    db: sqlite3.Connection, job: int, attempt: int, state: AttemptState, now: float, reason: str, record: dict[str, Any] | None
) -> None:
    db.execute(
        "UPDATE attempts SET state=?, ended=MAX(started, MIN(?, ?)), reason=?, exit=? WHERE job=? AND number=?",
        # What a daemon finds when it comes back has ended before.
        (str(state), now, (record or {}).get("ended") or now, reason, None if record is None else json.dumps(record), job, attempt),
    )
    if state is not AttemptState.VOID:
        usage.count(db, job, attempt)
    leases.release(db, job, attempt)
    event(db, now, job, attempt, str(state).lower(), reason)


def _state(db: sqlite3.Connection, job: int) -> State:
    row = db.execute("SELECT state FROM jobs WHERE id=?", (job,)).fetchone()
    if row is None:
        raise SchedError(f"job {job} is not in the queue", subject=f"job {job}")
    return State(row[0])


def _move(db: sqlite3.Connection, job: int, old: State, new: State, reason: str, **columns: Any) -> None:
    if new not in ALLOWED[old]:
        raise SchedError(f"job {job} cannot go from {old} to {new}", subject=f"job {job}")
    extra = "".join(f", {name}=?" for name in columns)
    done = db.execute(
        f"UPDATE jobs SET state=?, reason=?{extra} WHERE id=? AND state=?", (str(new), reason, *columns.values(), job, str(old))
    )
    if done.rowcount != 1:
        raise SchedError(f"job {job} is not {old} any more", subject=f"job {job}")


# -- reading


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


def owners(db: sqlite3.Connection, numbers: Sequence[int] | None = None) -> dict[int, int]:
    """Whose these jobs are, or all: user ids by job. Those that are not there are left out."""
    where = "" if numbers is None else f" WHERE id IN ({','.join('?' * len(numbers))})"
    return dict(db.execute(f"SELECT id, uid FROM jobs{where}", numbers or ()).fetchall())


def gpu_time(db: sqlite3.Connection, after: float) -> Iterator[tuple[str, tuple[str, ...], float, float]]:
    """Of the attempts that ended after that moment: user, groups with a quota, when the last of an hour ended, and their GPU-seconds."""
    rows = db.execute(
        "SELECT user, quota_groups, MAX(a.ended), SUM(gpu_count * (a.ended - a.started)) FROM attempts a JOIN jobs ON jobs.id = a.job"
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


def boot_id() -> str:
    """The kernel's name for this boot; proc(5)."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def ticks() -> float:
    """Seconds since boot, suspend included: time limits are judged by a clock that nobody can set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
