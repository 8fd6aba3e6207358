"""For the tests of files, whose sandbox is this host: ``Files`` over an agent that runs as an ordinary child, and a directory for it. For
those of the queue's engine: a launcher that starts nothing."""

from __future__ import annotations

import pytest
from support import agents
from support.stand_in import StandIn


@pytest.fixture
def place(tmp_path):
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def files():
    with agents.files() as found:
        yield found


@pytest.fixture
def launcher(tmp_path):
    return StandIn(tmp_path / "boxes")
