"""Sandboxes of an ordinary user on networks of hers: neither the host's loopback nor the namespace of the bridges is theirs."""

from __future__ import annotations

import pytest
from support import pasta
from support.requires import requires

pytestmark = requires("pasta")


@pytest.mark.parametrize("case", ["host_is_closed", "another_sandbox_of_hers", "addresses_of_others"])
def test_on_a_host_of_its_own(home, case):
    pasta.run(home, case, cases="own_networks_cases")
