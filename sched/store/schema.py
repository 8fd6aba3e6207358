"""The queue's database: its tables, their versions, and how it is opened."""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from dockless.base import paths
from dockless.base.typing import Any
from dockless.errors import SchedError
from dockless.sched.store import lease as leases
from dockless.sched.store import usage

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
        part REAL NOT NULL DEFAULT 1, PRIMARY KEY(job, number)) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX one_live_attempt ON attempts(job) WHERE state IN ('STARTING','RUNNING')",
    leases.SCHEMA,
    """CREATE TABLE events(seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, job INTEGER NOT NULL, attempt INTEGER NOT NULL,
        event TEXT NOT NULL, detail TEXT NOT NULL DEFAULT '')""",
    *SINCE_2,
    *usage.SCHEMA,
    *usage.SINCE_0_1,
)
LIVE = "state IN ('PENDING','STARTING','RUNNING')"
"""As the index has it, which SQLite uses where it finds these very words."""


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
        if 0 < have <= VERSION:
            _complete(db)
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


def _complete(db: sqlite3.Connection) -> None:
    """What was added in a way that an older daemon passes over. Attempts of before have had all of their GPUs."""
    for statement in usage.SINCE_0_1:
        db.execute(statement)
    if "part" not in [column[1] for column in db.execute("PRAGMA table_info(attempts)")]:
        db.execute("ALTER TABLE attempts ADD COLUMN part REAL NOT NULL DEFAULT 1")


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
