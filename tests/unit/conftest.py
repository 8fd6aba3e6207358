"""For the tests of files, whose sandbox is this host: ``Files`` over an agent that runs as an ordinary child, and a directory for it."""

from __future__ import annotations

import pytest
from support import agents


@pytest.fixture
def place(tmp_path):
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def files():
    with agents.files() as found:
        yield found
