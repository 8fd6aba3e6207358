"""kill -9 of the daemon and of keepers at their writes, fsyncs, renames, clones and answers, and a disk that is full at each of their
changes: nothing lost, nothing run twice, nothing left behind, no exit code lost.

``DOCKLESS_KILLS``: at how many calls of each (16; 0 for every one, which ``make crash-matrix`` tries).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.kill_matrix import FULL, ORDERS, WHOM, matrix
from support.requires import requires

pytestmark = requires("root", "userns")
MOST = int(os.environ.get("DOCKLESS_KILLS", "16"))


@pytest.mark.parametrize("whom", WHOM)
def test_killed_at_its_calls(tmp_path: Path, whom: str):
    cells = matrix(tmp_path, whom, MOST)
    assert all(cell.clean for cell in cells), "\n".join(line for cell in cells for line in cell.details)
    assert sum(cell.killed for cell in cells) >= (MOST or 1) // 2, "hardly any life came to its call"
    assert {"write", "fsync", "clone3"} <= {cell.call for cell in cells if cell.points}


def test_killed_while_jobs_are_held_requeued_and_start_together(tmp_path: Path):
    cells = matrix(tmp_path, ORDERS, MOST // 2)
    assert all(cell.clean for cell in cells), "\n".join(line for cell in cells for line in cell.details)
    assert sum(cell.killed for cell in cells) >= (MOST or 1) // 4, "hardly any life came to its call"


def test_a_disk_that_is_full_at_their_changes(tmp_path: Path):
    cells = matrix(tmp_path, FULL[0], MOST)
    assert all(cell.clean for cell in cells), "\n".join(line for cell in cells for line in cell.details)
    assert sum(cell.refused for cell in cells) > 0, "nobody was refused anything"
