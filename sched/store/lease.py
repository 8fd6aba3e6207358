"""A lease: these GPUs belong to this attempt, from the commit that says so to the commit that records its end.

The table's key is the GPU, so the database itself refuses to give one out twice, whatever a program above it believes. A share of a GPU
has a key of its own below the GPU's; a GPU is leased whole or in shares.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from dockless.base.dataclass import dataclass
from dockless.errors import SchedError

SCHEMA = "CREATE TABLE leases(gpu TEXT PRIMARY KEY, job INTEGER NOT NULL, attempt INTEGER NOT NULL, since REAL NOT NULL) WITHOUT ROWID"
_SHARE = "/share/"


@dataclass(frozen=True, slots=True)
class Lease:
    """``gpus``: UUIDs; ``since``: seconds since the epoch; ``shared``: it has a share of its one GPU; ``part``: how much of each GPU counts
    as used by it, which the table of leases does not keep."""

    job: int
    attempt: int
    gpus: tuple[str, ...]
    since: float
    shared: bool = False
    part: float = 1.0

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(f"{gpu}{_SHARE}{self.job}" for gpu in self.gpus) if self.shared else self.gpus


def take(db: sqlite3.Connection, lease: Lease) -> None:
    """Inside a transaction. Raises SchedError if somebody holds one of them; then the transaction has to be rolled back."""
    try:
        db.executemany("INSERT INTO leases VALUES(?,?,?,?)", [(key, lease.job, lease.attempt, lease.since) for key in lease.keys])
    except sqlite3.IntegrityError:
        raise _twice(lease, held(db)) from None
    if any(_is_leased(db, gpu, whole=lease.shared) for gpu in lease.gpus):
        raise _twice(lease, [one for one in held(db) if one.job != lease.job])


def _is_leased(db: sqlite3.Connection, gpu: str, whole: bool) -> bool:
    """Whole, or else in shares."""
    if whole:
        found = db.execute("SELECT 1 FROM leases WHERE gpu=?", (gpu,))
    else:  # the keys that begin so are between these
        found = db.execute("SELECT 1 FROM leases WHERE gpu>=? AND gpu<? LIMIT 1", (gpu + _SHARE, f"{gpu}{_SHARE}:"))
    return found.fetchone() is not None


def _twice(lease: Lease, all: Iterable[Lease]) -> SchedError:
    holders = [h for h in all if set(h.gpus) & set(lease.gpus)]
    return SchedError(
        f"a GPU for job {lease.job} is leased already, to job {', '.join(str(h.job) for h in holders)}",
        subject=f"job {lease.job}",
        hint="this is a bug in dockless; please report it with the daemon's log",
    )


def release(db: sqlite3.Connection, job: int, attempt: int) -> None:
    """Inside a transaction. Releasing twice is no error."""
    db.execute("DELETE FROM leases WHERE job=? AND attempt=?", (job, attempt))


def held(db: sqlite3.Connection) -> list[Lease]:
    """All leases, oldest first."""
    found: dict[tuple[int, int], Lease] = {}
    for gpu, job, attempt, since in db.execute("SELECT gpu, job, attempt, since FROM leases ORDER BY since, gpu"):
        old = found.get((job, attempt))
        uuid, shared, _ = gpu.partition(_SHARE)
        found[job, attempt] = Lease(job, attempt, (*(old.gpus if old else ()), uuid), since, bool(shared))
    return list(found.values())
