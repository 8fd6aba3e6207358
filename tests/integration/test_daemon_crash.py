"""kill -9 of the daemon at random moments under load: nothing lost, nothing run twice, no exit code lost.

``DOCKLESS_CRASHES``: how many moments (12); ``python benchmarks/crash_matrix.py`` does 200.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.scheduling import crash_matrix

pytestmark = pytest.mark.requires("userns")


def test_killed_at_random_moments(home: Path):
    kills = int(os.environ.get("DOCKLESS_CRASHES", "12"))
    result = crash_matrix(home, kills, seed=int(os.environ.get("DOCKLESS_SEED", "1")))
    assert result.clean, "\n".join([str(result), *result.details])
    assert result.kills == kills and result.jobs > 0
