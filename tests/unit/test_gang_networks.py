"""The network of jobs that start together: whose it is, and what they reach besides one another."""

from __future__ import annotations

import os

import pytest

from dockless.sandbox.network import records
from dockless.sandbox.network.model import Egress, Endpoint
from dockless.sandbox.spec import Spec
from dockless.sched.engine.lifecycle import gang_networks


@pytest.fixture
def made(home, monkeypatch):
    monkeypatch.setattr(gang_networks, "can_make", lambda: True)
    return gang_networks.make(40, 1001)


def test_it_is_its_users_and_leads_nowhere(made):
    assert made == records.find("job-40") == gang_networks.make(40, 1001)
    assert made.owner == 1001 and made.internal and not made.isolated and not made.named
    assert made.patience and dict(made.labels) == {"dockless.job": "40"} and gang_networks.every() == [40]


def test_who_asked_for_no_network_reaches_the_others_alone(made):
    (address,) = gang_networks.addresses(made, 1)
    spec = gang_networks.joined(Spec(("true",)), made, address, "worker-0")
    assert (spec.network, spec.endpoints, spec.egress) == ("private", (Endpoint("job-40", (address,)),), Egress(host=False))
    assert (spec.hostname, spec.hosts) == ("worker-0", (("worker-0", address),))


@pytest.mark.parametrize("egress", [None, Egress(host=True), Egress(host=False, allow=())])
def test_who_asked_for_one_reaches_what_that_lets_it(made, egress):
    asked = Spec(("true",), network="private", endpoints=(Endpoint("lab"),), egress=egress, hostname="own", hosts=(("own", "10.1.1.1"),))
    spec = gang_networks.joined(asked, made, gang_networks.addresses(made, 2)[1], "worker-1")
    assert [one.network for one in spec.endpoints] == ["lab", "job-40"] and spec.egress == egress
    assert spec.hostname == "own" and spec.hosts == asked.hosts


def test_where_there_can_be_none(home, monkeypatch):
    monkeypatch.setattr(gang_networks, "can_make", lambda: False)
    assert gang_networks.make(40, 1001) is None and not gang_networks.has(40) and not gang_networks.every()
    assert not os.listdir(home)
