"""The queue on disk: SQLite in WAL mode with synchronous=FULL, so a committed transaction survives kill -9 and power loss.

One table per noun (jobs, attempts, leases) and a log of events. What must never happen is refused by the database itself:

- an id given out twice: ``AUTOINCREMENT``, sqlite.org/autoinc.html;
- two live attempts of a job: a partial unique index;
- a GPU leased twice: the key of ``leases``;
- a state change that ``jobs.ALLOWED`` does not know: every update names the state it comes from.

Here are the changes. Each runs inside a transaction that the caller opened (``writer.QueueWriter`` gathers several callers into one). The
tables are those of ``schema``, and what only reads is in ``queries``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate

from dockless.base.dataclass import dataclass, field, replace
from dockless.base.records import differences
from dockless.base.typing import Any
from dockless.errors import SchedError
from dockless.sched.jobs import ALLOWED, NO_OPTIONS, AttemptState, JobOptions, State
from dockless.sched.store import lease as leases
from dockless.sched.store import usage
from dockless.sched.store.lease import Lease
from dockless.sched.store.queries import GPU_ERROR, drained, gpu_errors, options
from dockless.sched.store.schema import LIVE

_PAGE = 200
_LAST_ALONE = ("hold", "release")
"""Events that can come as often as somebody likes; all others come with an attempt, and each of these is remembered, too."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that passed admission. ``wanted``: UUIDs it insists on; ``quota_groups``: groups it counts against; ``spec``: JSON;
    ``in_array``: the number of its array and its index there, where it is one of an older array."""

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
    in_array: tuple[int, int] = (0, 0)


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
                *(plain(j.quota_groups), j.priority, j.time_limit, j.on_reboot, now, *((first, i) if array else j.in_array)),
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
        "INSERT INTO attempts(job, number, state, sandbox, gpus, boot, started, ticks, part) VALUES(?,?,'STARTING',?,?,?,?,?,?)",
        (lease.job, lease.attempt, sandbox, json.dumps(lease.gpus), boot, lease.since, ticks, lease.part),
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


def requeue(db: sqlite3.Connection, job: int, now: float, reason: str, exit_record: dict[str, Any] | None = None) -> None:
    """STARTING or RUNNING → PENDING: the job waits for another attempt. This one ends with ``exit_record``, and is LOST without."""
    attempt = db.execute("SELECT attempt FROM jobs WHERE id=?", (job,)).fetchone()[0]
    _move(db, job, _state(db, job), State.PENDING, "", started=0.0, devices="[]")
    _end_attempt(db, job, attempt, AttemptState.LOST if exit_record is None else AttemptState.ENDED, now, reason, exit_record)


def set_options(db: sqlite3.Connection, job: int, options: JobOptions, now: float, what: str, detail: str) -> None:
    """Other options from now on. ``what`` and ``detail``: for the log of events, which keeps the last ``hold`` and ``release`` of a job
    alone, so that it does not grow with them."""
    db.execute("UPDATE jobs SET options=? WHERE id=?", (json.dumps(differences(options)), job))
    if what in _LAST_ALONE:
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
        event(db, now, job, attempt, GPU_ERROR, text)


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
