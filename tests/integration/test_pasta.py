"""Sandboxes of an ordinary user on the default network, by pasta, with real traffic: each on a host of its own, see support/pasta.py."""

from __future__ import annotations

import pytest
from support import pasta
from support.requires import requires

pytestmark = requires("pasta")


@pytest.mark.parametrize(
    "case",
    [
        "out_and_back",
        "host_is_closed",
        "untrusted_and_the_host",
        "written_by_hand",
        "not_traced",
        "names",
        "only_allowed",
        "chosen",
        "for_root",
        "host_gateway",
        "refusals",
        "missing",
        "no_tun",
        "ends_with_its_sandbox",
        "ends_with_its_starter",
        "ends_with_its_own_keeper",
        "outlives_its_starter",
        "holds_nothing_of_its_starter",
    ],
)
def test_with_a_network_beside(home, case):
    pasta.run(home, case)


def test_without_a_network(home):
    pasta.run(home, "no_network", network=False)
