"""What was used: a row a day for each user, group and model of GPU, in the transaction that ends an attempt.

Jobs are forgotten after a while, this is not: it is what reports, and shares of what went before, are made of. A day is one of UTC. Times
are whole milliseconds, so that sums are exact; an attempt counts from the lease of its GPUs to the end of its program. Who shares
a GPU has as much of its time as of its memory, so that a GPU never counts for more than itself. GPU time of leases outside the queue has
rows of its own.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dockless.base.dataclass import dataclass
from dockless.base.typing import Any
from dockless.sched.used import By, Used

DAY = 86_400_000
"""Milliseconds."""
SCHEMA = (
    """CREATE TABLE usage(
        day INTEGER NOT NULL, uid INTEGER NOT NULL, user TEXT NOT NULL, grp TEXT NOT NULL, model TEXT NOT NULL,
        gpu_ms INTEGER NOT NULL, cpu_ms INTEGER NOT NULL, attempts INTEGER NOT NULL, jobs INTEGER NOT NULL,
        PRIMARY KEY(day, uid, user, grp, model)) WITHOUT ROWID""",
    "CREATE TABLE gpu_models(uuid TEXT PRIMARY KEY, model TEXT NOT NULL) WITHOUT ROWID",
)
SINCE_0_1 = (
    """CREATE TABLE IF NOT EXISTS outside(
        day INTEGER NOT NULL, uid INTEGER NOT NULL, user TEXT NOT NULL, model TEXT NOT NULL, gpu_ms INTEGER NOT NULL,
        PRIMARY KEY(day, uid, user, model)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS outside_by_group(
        day INTEGER NOT NULL, uid INTEGER NOT NULL, user TEXT NOT NULL, grp TEXT NOT NULL, model TEXT NOT NULL, gpu_ms INTEGER NOT NULL,
        PRIMARY KEY(day, uid, user, grp, model)) WITHOUT ROWID""",
)
"""Tables that a queue got later, and that an older daemon passes over. It writes to ``outside``, which knows no groups."""
_OUTSIDE = (
    "(SELECT day, uid, user, '' AS grp, model, gpu_ms FROM outside"
    " UNION ALL SELECT day, uid, user, grp, model, gpu_ms FROM outside_by_group)"
)
_RUNNING = (
    "SELECT a.job, a.number, a.started, a.gpus, a.part, j.uid, j.user, j.grp FROM attempts a JOIN jobs j ON j.id = a.job"
    " WHERE a.state='RUNNING'"
)
_COLUMNS = {"user": "user", "group": "grp", "gpu": "model"}


@dataclass(frozen=True, slots=True)
class _Row:
    day: int
    model: str
    gpu_ms: int
    cpu_ms: int
    attempts: int
    jobs: int


def know(db: sqlite3.Connection, models: Mapping[str, str]) -> None:
    """Of which model each GPU is: what a later daemon finds used may be there no more."""
    known = dict(db.execute("SELECT uuid, model FROM gpu_models"))
    new = [(uuid, model) for uuid, model in models.items() if known.get(uuid) != model]
    if new:
        db.executemany("INSERT OR REPLACE INTO gpu_models VALUES(?,?)", new)


def count(db: sqlite3.Connection, job: int, number: int) -> None:
    """Add an attempt that has run and ended, inside the transaction that says so."""
    started, ended, gpus, part, *owner, again = db.execute(
        "SELECT a.started, a.ended, a.gpus, a.part, j.uid, j.user, j.grp, EXISTS(SELECT 1 FROM attempts b WHERE b.job=a.job"
        " AND b.number < a.number AND b.state != 'VOID') FROM attempts a JOIN jobs j ON j.id = a.job WHERE a.job=? AND a.number=?",
        (job, number),
    ).fetchone()
    rows = _rows(started, ended, _models(db, json.loads(gpus)), part, not again)
    db.executemany(
        "INSERT INTO usage VALUES(?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET gpu_ms=gpu_ms+excluded.gpu_ms,"
        " cpu_ms=cpu_ms+excluded.cpu_ms, attempts=attempts+excluded.attempts, jobs=jobs+excluded.jobs",
        [(row.day, *owner, row.model, row.gpu_ms, row.cpu_ms, row.attempts, row.jobs) for row in rows],
    )


def count_all(db: sqlite3.Connection) -> None:
    """Those of a queue that did not count yet."""
    for job, number in db.execute("SELECT job, number FROM attempts WHERE state IN ('ENDED','LOST')").fetchall():
        count(db, job, number)


def count_outside(db: sqlite3.Connection, spells: Iterable[tuple[int, str, str, float, float, Sequence[tuple[str, float]]]]) -> None:
    """Add GPU time that no attempt accounts for: whose, the user's name and group, from when to when, and how much of which GPUs."""
    found: Counter[tuple[int, int, str, str, str]] = Counter()
    for uid, user, group, began, ended, gpus in spells:
        for day, length in _days(_milliseconds(began), _milliseconds(ended)):
            for uuid, part in gpus:
                (model,) = _models(db, [uuid])
                found[day, uid, user, group, model] += round(length * part)
    db.executemany(
        "INSERT INTO outside_by_group VALUES(?,?,?,?,?,?) ON CONFLICT DO UPDATE SET gpu_ms=gpu_ms+excluded.gpu_ms",
        [(*row, length) for row, length in found.items()],
    )


def outside(db: sqlite3.Connection, since: float, now: float) -> Iterator[tuple[int, float, float]]:
    """GPU time since that day that no attempt accounts for, as ``forgotten`` has it."""
    first = _milliseconds(since) // DAY
    for uid, day, had in db.execute(f"SELECT uid, day, SUM(gpu_ms) FROM {_OUTSIDE} WHERE day >= ? GROUP BY uid, day", (first,)):
        yield uid, min((day + 1) * DAY / 1000, now), had / 1000


def report(db: sqlite3.Connection, since: float, until: float, now: float, by: By) -> list[Used]:
    """The days from that of ``since`` to that of ``until``, seconds since 1970; what runs counts until ``now``. Most GPU time first, or,
    by time, the oldest. Reads the database as it is at one moment."""
    first, last = _milliseconds(since) // DAY, _milliseconds(until) // DAY + 1
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])

    def add(day: int, user: str, group: str, model: str, *values: int) -> None:
        sums = found[_key(by, day, user, group, model)]
        for place, value in enumerate(values):
            sums[place] += value

    db.execute("BEGIN")
    try:
        for row in db.execute(
            "SELECT day, user, grp, model, SUM(gpu_ms), SUM(cpu_ms), SUM(jobs), SUM(attempts) FROM usage WHERE day >= ? AND day < ?"
            f" GROUP BY {_COLUMNS.get(by, 'day')}",
            (first, last),
        ):
            add(*row)
        others = f"SELECT day, user, grp, model, gpu_ms FROM {_OUTSIDE} WHERE day >= ? AND day < ?"
        for day, user, group, model, had in db.execute(others, (first, last)):
            add(day, user, group, model, had, 0, 0, 0, had)
        for job, number, started, gpus, part, _uid, user, group in db.execute(_RUNNING).fetchall():
            for one in _rows(started, now, _models(db, json.loads(gpus)), part, _is_first(db, job, number)):
                if first <= one.day < last:
                    add(one.day, user, group, one.model, one.gpu_ms, one.cpu_ms, one.jobs, one.attempts)
    finally:
        db.execute("COMMIT")
    rows = [Used(key, gpu / 1000, cpu / 1000, jobs, tries, had / 1000) for key, (gpu, cpu, jobs, tries, had) in found.items()]
    in_time = by in ("day", "week", "month")
    return sorted(rows, key=lambda used: (used.key,) if in_time else (-used.gpu_seconds, -used.cpu_seconds, used.key))


def forgotten(db: sqlite3.Connection, since: float, now: float) -> Iterator[tuple[int, float, float]]:
    """GPU time since that day, of attempts that are not remembered any more: the user id, when it was over at the latest, and GPU-seconds;
    for each user and day."""
    first = _milliseconds(since) // DAY
    kept: Counter[tuple[int, int]] = Counter()
    attempts = "FROM attempts a JOIN jobs j ON j.id = a.job WHERE a.state IN ('ENDED','LOST') AND gpu_count > 0 AND a.ended >= ? AND"
    day_of, at = "CAST(a.{} / 86400 AS INTEGER)", (first * DAY / 1000,)
    same, spent = f"{day_of.format('started')} = {day_of.format('ended')}", "gpu_count * a.part * (a.ended - a.started)"
    for uid, day, seconds in db.execute(f"SELECT uid, {day_of.format('ended')}, SUM({spent}) {attempts} {same} GROUP BY 1, 2", at):
        kept[uid, day] += _milliseconds(seconds)
    for uid, gpus, started, ended in db.execute(f"SELECT uid, gpu_count * a.part, a.started, a.ended {attempts} NOT {same}", at):
        for day, length in _days(_milliseconds(started), _milliseconds(ended)):
            kept[uid, day] += round(gpus * length)
    for uid, day, used in db.execute("SELECT uid, day, SUM(gpu_ms) FROM usage WHERE day >= ? GROUP BY uid, day", (first,)):
        if (left := used - kept[uid, day]) > 1000:  # less is what was rounded
            yield uid, min((day + 1) * DAY / 1000, now), left / 1000


def _key(by: By, day: int, user: str, group: str, model: str) -> str:
    if by in _COLUMNS:
        return {"user": user, "group": group, "gpu": model}[by]
    import datetime

    date = datetime.date.fromordinal(datetime.date(1970, 1, 1).toordinal() + day)
    if by == "week":
        year, week, _ = date.isocalendar()
        return f"{year}-W{week:02}"
    return date.isoformat()[: 7 if by == "month" else 10]


def _rows(started: float, ended: float, models: Mapping[str, int], part: float, first: bool) -> Iterator[_Row]:
    """One for each day and model that an attempt has to do with; without GPUs the model is empty. ``part``: how much it has of each GPU."""
    for at, (day, length) in enumerate(_days(_milliseconds(started), _milliseconds(ended))):
        for place, model in enumerate(sorted(models) or [""]):
            begun = at == place == 0
            yield _Row(day, model, int(length * models.get(model, 0) * part), 0 if models else length, begun, begun and first)


def _days(start: int, end: int) -> Iterator[tuple[int, int]]:
    """The days that a time lies in, and how much of it, milliseconds; the day of its beginning at least. A clock that was set back takes
    nothing away."""
    yield start // DAY, max(0, min(end, (start // DAY + 1) * DAY) - start)
    for day in range(start // DAY + 1, -(-end // DAY)):
        yield day, min(end, (day + 1) * DAY) - day * DAY


def _models(db: sqlite3.Connection, gpus: Iterable[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for uuid in gpus:
        row: Any = db.execute("SELECT model FROM gpu_models WHERE uuid=?", (uuid,)).fetchone()
        found[row[0] if row else "unknown"] += 1
    return found


def _is_first(db: sqlite3.Connection, job: int, number: int) -> bool:
    """Whether it is the first attempt of its job that ran."""
    return db.execute("SELECT 1 FROM attempts WHERE job=? AND number<? AND state != 'VOID' LIMIT 1", (job, number)).fetchone() is None


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
