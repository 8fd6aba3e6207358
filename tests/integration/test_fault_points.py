"""Every operation that writes, with its disk failing at one call after the other: full, out of inodes, read-only, I/O error.

``DOCKLESS_FAULTS``: how many calls of each operation and kind (3; 0 for all of them, which ``make faults`` tries). What must
hold after each is in ``support/fault_table.py``; the whole table is docs/faults.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import requires as requirements
from support.fault_table import KINDS, OPERATIONS, scenes
from support.faults import Fault, Faulty
from support.requires import requires

pytestmark = requires("root", "userns", "overlay")
MOST = int(os.environ.get("DOCKLESS_FAULTS", "3"))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("DOCKLESS_HOME", str(tmp_path / "disk" / "h"))
    with scenes(tmp_path) as made:
        yield made


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name.replace(" ", "-"))
def test_fault_points(bench, operation):
    if operation.needs:
        requirements.check(operation.needs)
    prepared = bench(operation)
    rows = [prepared.row(kind, MOST) for kind in KINDS]
    assert not [line for row in rows for line in row.wrong], "\n".join(line for row in rows for line in row.wrong)
    assert all(row.points and row.tried for row in rows)
    assert sum(row.tried - row.not_hit for row in rows), "no call was made to fail"


@pytest.mark.parametrize("kind", KINDS)
def test_the_faults_are_faults(tmp_path: Path, kind: str):
    """What the tests above rest on: what fails fails as it should, and on a full disk what has its room is written."""

    def work() -> dict[str, int]:
        ended = {}
        for name, call in (
            ("given", lambda: os.pwrite(held, b"x" * 4096, 0)),
            ("more", lambda: os.pwrite(held, b"x" * 4096, 1 << 20)),
            ("new", lambda: os.close(os.open(tmp_path / "new", os.O_CREAT | os.O_WRONLY))),
            ("without a name", lambda: os.close(os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY))),
            ("remove", lambda: os.unlink(tmp_path / "old")),
        ):
            try:
                call()
                ended[name] = 0
            except OSError as error:
                ended[name] = error.errno or -1
        return ended

    (tmp_path / "old").touch()
    held = os.open(tmp_path / "held", os.O_CREAT | os.O_RDWR)
    try:
        os.posix_fallocate(held, 0, 4096)
        outcome = Faulty(tmp_path, Fault(kind, 1)).run(work)
    finally:
        os.close(held)
    expected = {
        "full": (0, 28, 28, 28, 0),
        "inodes": (0, 0, 28, 28, 0),
        "readonly": (30, 30, 30, 30, 30),
        "eio": (5, 0, 0, 0, 0),
    }[kind]
    assert tuple(outcome.value.values()) == expected, outcome
    assert [point.split()[0] for point in outcome.points][:3] == ["pwrite64", "pwrite64", "openat"]
