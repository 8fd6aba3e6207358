"""The jobs that wait, in the few columns that a daemon which comes back needs of each of a hundred thousand. The rest is read by ``live``
when somebody asks for that job."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence

from dockless.base.typing import Any
from dockless.sched.store.schema import LIVE

PART = 5_000
"""Rows that are looked at together."""
COLUMNS = (
    "id", "uid", "user", "gpus", "wanted", "groups", "options", "priority", "time_limit", "submitted", "array", "name", "spec", "cancelled",
)  # fmt: skip
_AT_ONCE = 10_000


def pending(db: sqlite3.Connection) -> Iterator[dict[str, Sequence[Any]]]:
    """Those that wait, oldest first: parts of ``COLUMNS``. ``wanted``, ``groups`` and ``options`` are JSON, and as ``name`` None where
    nothing is in them: most have none of these, and no text is made of it. ``array`` is 0 for a job alone, ``spec`` the number of its
    spec, ``cancelled`` 1 where its end is wanted."""
    rows = db.execute(
        "SELECT id, uid, user, gpu_count, NULLIF(wanted, '[]'), NULLIF(quota_groups, '[]'), NULLIF(options, '{}'), priority, time_limit,"
        " submitted, array, NULLIF(name, ''), spec_id, cancelled"
        f" FROM jobs WHERE {LIVE} AND state='PENDING' ORDER BY id"  # in the order of the index
    )
    while part := rows.fetchmany(PART):
        yield dict(zip(COLUMNS, zip(*part, strict=True), strict=True))


def others(db: sqlite3.Connection) -> list[int]:
    """The jobs that have not ended and are none of these."""
    return [row[0] for row in db.execute(f"SELECT id FROM jobs WHERE {LIVE} AND state IN ('STARTING','RUNNING')")]


def spec_sizes(db: sqlite3.Connection, specs: Collection[int]) -> Mapping[int, int]:
    """Characters of each; those that are not kept are left out."""
    found: dict[int, int] = {}
    wanted = sorted(specs)
    for start in range(0, len(wanted), _AT_ONCE):
        part = json.dumps(wanted[start : start + _AT_ONCE])
        found.update(db.execute("SELECT id, size FROM specs WHERE id IN (SELECT value FROM json_each(?))", (part,)))
    return found
