"""A pull killed with SIGKILL, or whose disk fills up, at random moments: the store is sound, and the next pull goes on.

``DOCKLESS_PULL_KILLS`` says how many kills (3 in the suite; the figure of the must-show list is 100), ``DOCKLESS_PULL_FULL`` how many full
disks (1; 20). ``benchmarks/crash_pull.py`` does the same with larger blobs.
"""

from __future__ import annotations

import os

import pytest
from support import pull_crashes
from support.requires import requires

KILLS = int(os.environ.get("DOCKLESS_PULL_KILLS", "3"))
FULL = int(os.environ.get("DOCKLESS_PULL_FULL", "1"))


@pytest.fixture
def bench():
    with pull_crashes.bench(seed=11, megabytes=(4, 3), rate=20e6) as made:
        yield made


def test_killed(bench, tmp_path):
    pull_crashes.killed(bench, tmp_path, KILLS)
    assert bench.result.clean, bench.result.details
    assert bench.result.killed == KILLS


@requires("root", "program:mkfs.ext4", "loop")
def test_disk_full(bench, tmp_path):
    pull_crashes.filled(bench, tmp_path, FULL)
    assert bench.result.clean, bench.result.details
    assert bench.result.completed == FULL
