"""Sandboxes that find one another by name, on networks in a network namespace of the test's own."""

from __future__ import annotations

import pytest
from support.boxes import until
from support.networks import own_network
from support.requires import requires

import dockless
from dockless import networks
from dockless.sandbox.network import records, resolver

pytestmark = requires("root", "netns", "program:getent")


@pytest.fixture(autouse=True)
def here(home):
    with own_network() as made:
        yield made
        for network in records.every():
            resolver.stop(records.running(network.name))


@pytest.fixture
def start():
    made = []

    def start(id, network, **options):
        made.append(dockless.start(["sleep", "1000"], id=id, network=network, **options))
        return made[-1]

    yield start
    for box in made:
        box.inner.remove()


def found(box, name: str) -> list[str]:
    said = box.exec("getent", "ahostsv4", name)
    return sorted({line.split()[0] for line in said.stdout.decode().splitlines()})


def address(box) -> str:
    return box.exec("hostname", "-I").stdout.decode().split()[0]


def test_they_find_one_another_by_id_and_alias_and_no_more_when_one_has_ended(start):
    networks.create("mine")
    one, two = start("one", "mine"), start("two", "mine:alias=db")
    assert found(one, "two") == found(one, "db") == found(one, "db.mine") == found(two, "two") == [address(two)]
    assert found(two, "one") == [address(one)]
    two.kill()
    until(lambda: not found(one, "two"), "its name is gone")
    again = start("two-again", "mine:alias=db")
    assert found(one, "db") == [address(again)]


def test_one_that_is_renamed_is_found_by_its_new_name_alone(start):
    networks.create("mine")
    one, two = start("one", "mine"), start("two", "mine:alias=db", hostname="host-two")
    assert found(one, "two") == [address(two)]
    two.rename("three")
    until(lambda: found(one, "three") == [address(two)] and not found(one, "two"), "its new name is known, the old one is not")
    assert found(one, "db") == found(one, "host-two") == found(two, "three") == [address(two)]
    assert set(networks.get("mine").sandboxes[1].names) == {"three", "host-two", "db"}


def test_on_another_network_they_do_not(start):
    networks.create("mine")
    networks.create("other")
    one, two = start("one", "mine"), start("two", "other")
    assert found(one, "two") == found(two, "one") == []


def test_who_is_on_two_finds_the_names_of_both(start):
    networks.create("mine")
    networks.create("other")
    one, two, both = start("one", "mine"), start("two", "other"), start("both", ["mine", "other"])
    assert found(both, "one") == [address(one)] and found(both, "two") == found(both, "two.other") == [address(two)]
    assert found(one, "two") == [] and len(found(one, "both")) == len(found(two, "both")) == 1
    networks.disconnect("other", both.id)
    until(lambda: not found(both, "two"), "it has left")


def test_a_network_that_is_removed_takes_its_resolver_along(start):
    networks.create("mine")
    box = start("one", "mine")
    assert found(box, "one") == [address(box)]
    box.inner.remove()
    networks.remove("mine")
    networks.create("mine")
    box = start("one-again", "mine:alias=db")
    assert found(box, "db") == [address(box)]
