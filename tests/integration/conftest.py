"""For the tests of GPUs: two simulated ones, of a host of the test's own."""

from __future__ import annotations

import pytest


@pytest.fixture
def simulation(own_host) -> str:
    """What names them for other programs."""
    return own_host("2x80G")


@pytest.fixture
def uuids(simulation) -> list[str]:
    from dockless.sandbox.gpus import gpu

    return [unit.uuid for unit in gpu.inventory()]
