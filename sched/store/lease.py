"""A lease: these GPUs belong to this attempt, from the commit that says so to the commit that records its end.

The table's key is the GPU, so the database itself refuses to give one out twice, whatever a program above it believes.
"""

from __future__ import annotations

import sqlite3

from dockless.base.dataclass import dataclass
from dockless.errors import SchedError

SCHEMA = "CREATE TABLE leases(gpu TEXT PRIMARY KEY, job INTEGER NOT NULL, attempt INTEGER NOT NULL, since REAL NOT NULL) WITHOUT ROWID"


@dataclass(frozen=True, slots=True)
class Lease:
    """``gpus``: UUIDs; ``since``: seconds since the epoch."""

    job: int
    attempt: int
    gpus: tuple[str, ...]
    since: float


def take(db: sqlite3.Connection, lease: Lease) -> None:
    """Inside a transaction. Raises SchedError if somebody holds one of them; then nothing of the lease is taken."""
    try:
        db.executemany("INSERT INTO leases VALUES(?,?,?,?)", [(gpu, lease.job, lease.attempt, lease.since) for gpu in lease.gpus])
    except sqlite3.IntegrityError:
        holders = [h for h in held(db) if set(h.gpus) & set(lease.gpus)]
        raise SchedError(
            f"a GPU for job {lease.job} is leased already, to job {', '.join(str(h.job) for h in holders)}",
            subject=f"job {lease.job}",
            hint="this is a bug in dockless; please report it with the daemon's log",
        ) from None


def release(db: sqlite3.Connection, job: int, attempt: int) -> None:
    """Inside a transaction. Releasing twice is no error."""
    db.execute("DELETE FROM leases WHERE job=? AND attempt=?", (job, attempt))


def held(db: sqlite3.Connection) -> list[Lease]:
    """All leases, oldest first."""
    found: dict[tuple[int, int], Lease] = {}
    for gpu, job, attempt, since in db.execute("SELECT gpu, job, attempt, since FROM leases ORDER BY since, gpu"):
        old = found.get((job, attempt))
        found[job, attempt] = Lease(job, attempt, (*(old.gpus if old else ()), gpu), since)
    return list(found.values())
