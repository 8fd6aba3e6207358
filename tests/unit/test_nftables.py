"""Requests of nftables: what the kernel has afterwards is what nft makes of the commands that they say, and of the words of a table."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from support.nets import NAME, Place, lease, network, user_namespace
from support.requires import requires

from dockless.errors import NetworkError
from dockless.sandbox.network import netlink, table, words
from dockless.sandbox.network import nftables as nft
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import Egress, Network, Port, Rule

pytestmark = requires("netns", "program:nft", "program:nsenter")


@pytest.fixture(scope="module")
def places():
    """Two empty ones."""
    with user_namespace() as user:
        ours, theirs = Place(user), Place(user)
        yield ours, theirs
        ours.close()
        theirs.close()


@pytest.fixture
def ours(places):
    yield places[0]
    places[0].run("nft", "flush", "ruleset")


NETWORKS = (network("alone", 1, isolated=True), network("friends", 2), network("inner", 3, internal=True))
FOUR = Network("four", ("10.113.4.0/24",), ("10.113.4.1",), "dl4")
RULES = (
    Rule("192.0.2.0/24", ((443, 443), (5000, 5010)), "tcp"),
    Rule("2001:db8::/33", ((53, 53),)),
    Rule("10.0.0.0/9"),
    Rule("198.51.100.7"),
    Rule("0.0.0.0/0", ((22, 22),), "udp"),
    Rule("::/0", (), "tcp"),
    Rule("x.test", ((443, 443),)),
    Rule("*.y.test"),
    Rule("z.test", ((443, 443),)),
)
PORTS = (
    Port(80, 8080),
    Port(9000, 8000, "udp", "", 10),
    Port(81, 8081, address="127.0.0.1"),
    Port(82, 8082, address="::"),
    Port(83, 8083, address="0.0.0.0"),
    Port(84, 8084, "udp", "2001:db8::1"),
)


def carry_out(place, requests):
    place.transact(requests)


def by_nft(place, requests):
    """The commands, in one transaction. nft has no word for whose address a message is about before 1.0.9."""
    lines = [request.command.removeprefix("nft ").replace("'", "") for request in requests if "icmpv6 taddr" not in request.command]
    assert len(lines) >= len(requests) - 1
    place.run("nft", "-f", "-", given="\n".join(lines))


def test_the_commands_do_the_same(places):
    """All words that a table has: each lease has one of each kind of egress and of ports."""
    ours, theirs = places
    leases = [lease(one, 10, ports=PORTS if one.name == "friends" else ()) for one in NETWORKS]
    leases += [lease(one, 11, egress=Egress(allow=RULES, host=False, log=True)) for one in NETWORKS]
    leases += [lease(NETWORKS[1], 12, egress=Egress(allow=())), lease(NETWORKS[1], 13, egress=Egress(host=False))]
    leases.append(replace(lease(NETWORKS[0], 14), network="four", addresses=("10.113.4.14",), link="dlv4x14"))
    requests = table.requests_for(NAME, (*NETWORKS, FOUR), leases)
    requests += table.allow_address(NAME, leases[3], RULES[6], "192.0.2.9", 600)
    carry_out(ours, requests)
    by_nft(theirs, requests)
    only_ours = [one for one in ours.listed() if '{"offset": 64' not in str(one).replace("'", '"') and "'offset': 64" not in str(one)]
    assert only_ours == theirs.listed() and len(only_ours) > 150
    assert len(ours.listed()) == len(only_ours) + 1
    for place in places:
        carry_out(place, table.requests_to_delete(NAME))
        assert place.listed() == []


def test_a_plain_lease_is_a_few_elements(ours):
    carry_out(ours, table.requests_for(NAME, NETWORKS, ()))
    before = ours.listed()
    one = lease(NETWORKS[1], 10)
    requests = table.requests_to_add(NAME, NETWORKS[1], one)
    assert [request.command for request in requests] == [
        "nft 'add element bridge dockless links { \"dlv2x10\" }'",
        "nft 'add element inet dockless links { \"dlv2x10\" }'",
        "nft 'add element bridge dockless senders4 { \"dlv2x10\" . 02:42:0a:71:02:0a . 10.113.2.10 }'",
        'nft \'add element bridge dockless senders6 { "dlv2x10" . 02:42:0a:71:02:0a . fd13:2::a, '
        '"dlv2x10" . 02:42:0a:71:02:0a . fe80::42:aff:fe71:20a, "dlv2x10" . 02:42:0a:71:02:0a . :: }\'',
    ]
    carry_out(ours, requests)
    assert ours.listed() != before
    carry_out(ours, table.requests_to_remove(NAME, NETWORKS[1], one))
    assert ours.listed() == before


def test_all_or_nothing_and_the_error_names_the_command(ours):
    carry_out(ours, table.requests_for(NAME, NETWORKS, ()))
    before = ours.listed()
    one = lease(NETWORKS[1], 10, ports=PORTS)
    with pytest.raises(NetworkError) as told:
        carry_out(ours, table.requests_to_add(NAME, NETWORKS[1], one) + table.requests_to_remove(NAME, NETWORKS[0], lease(NETWORKS[0], 9)))
    assert "nft 'delete element bridge dockless links { \"dlv1x9\" }'" in str(told.value) and "No such file" in str(told.value)
    assert isinstance(told.value.__cause__, FileNotFoundError)
    assert ours.listed() == before
    carry_out(ours, table.requests_to_add(NAME, NETWORKS[1], one))  # the socket's answers were read to their end


def test_what_makes_no_sense_is_refused_with_its_command(ours):
    ways = (("hook", "a"), ("a", "b"), ("b", "a"))
    loop = [nft.add_rule("inet", "t", there, *words.written((words.jump(to),))) for there, to in ways]
    made = [nft.add_table("inet", "t"), nft.add_chain("inet", "t", "a"), nft.add_chain("inet", "t", "b")]
    made.append(nft.add_hook("inet", "t", "hook", "filter", "input", 0))
    with pytest.raises(NetworkError, match="`nft 'add rule inet t b jump a'`: Too many links"):
        carry_out(ours, [*made, *loop])
    misplaced = nft.add_rule("inet", "t", "hook", *words.written((words.MASQUERADE,)))
    with pytest.raises(NetworkError, match="`nft 'add rule inet t hook masquerade'`: Operation not supported"):
        carry_out(ours, [*made, misplaced])
    assert ours.listed() == []


def test_hundreds_of_refusals(ours):
    """More answers than a socket has room for."""
    leases = [lease(NETWORKS[1], number, egress=Egress(allow=RULES, log=True)) for number in range(2, 250)]
    with pytest.raises(NetworkError):
        carry_out(ours, [request for one in leases for request in table.requests_to_add(NAME, NETWORKS[1], one)])
    carry_out(ours, table.requests_for(NAME, NETWORKS, leases))
    assert len([one for one in ours.listed() if "chain" in one]) > 500


def test_thousands_of_ports(ours):
    ports = tuple(Port(200 * number + 1, 200 * number + 1, count=200) for number in range(1, 96))
    one = lease(NETWORKS[1], 10, ports=ports)
    carry_out(ours, table.requests_for(NAME, NETWORKS, (one,)))
    found = next(one for one in ours.listed() if "map" in one and one["map"]["name"] == "ports6")
    assert len(found["map"]["elem"]) == 19_000
    carry_out(ours, table.requests_to_remove(NAME, NETWORKS[1], one))


@requires("user")
def test_without_the_right_to_it():
    with Host().netlink(netlink.NETFILTER) as asking, pytest.raises(NetworkError, match="`nft -f -`: Operation not permitted"):
        nft.carry_out(asking, table.requests_to_delete(NAME))


def test_a_fresh_table_is_intact_and_its_numbers_are_right(ours):
    for networks in ((), NETWORKS, (FOUR,), (*NETWORKS, FOUR), (replace(FOUR, internal=True), NETWORKS[0])):
        leases = [lease(one, 11, egress=Egress(allow=RULES, host=False, log=True)) for one in networks if one.name != "four"]
        carry_out(ours, table.requests_for(NAME, networks, leases))
        with ours.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as asking:
            assert table.is_intact(asking, NAME, networks)
            assert not table.is_intact(asking, NAME, (*networks, network("another", 9)))
            assert not table.is_intact(asking, "another", networks)


# ---- the table is a function of networks and leases -----------------------------------------------------------------------------------


def _egress():
    rules = some.lists(some.sampled_from(RULES), max_size=4, unique=True).map(tuple)
    return some.none() | some.builds(Egress, allow=some.none() | rules, host=some.booleans(), log=some.booleans())


def _ports(number):
    """Nobody else's: a port of the host leads to one."""
    made = [replace(port, outside=1000 * number + port.outside % 1000) for port in PORTS]
    return some.lists(some.sampled_from(made), max_size=3, unique=True).map(tuple)


@some.composite
def situations(draw):
    networks = [
        replace(one, isolated=draw(some.booleans()), internal=draw(some.booleans()))
        for one in draw(some.lists(some.sampled_from(NETWORKS), min_size=1, max_size=3, unique=True))
    ]
    numbers = draw(some.lists(some.integers(2, 50), max_size=5, unique=True))
    leases = [lease(draw(some.sampled_from(networks)), number, egress=draw(_egress()), ports=draw(_ports(number))) for number in numbers]
    return networks, leases, draw(some.lists(some.booleans(), min_size=5, max_size=5))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(situations())
def test_step_by_step_it_is_the_same_table(places, situation):
    """Whole, with those that stay; and from none, with all of them added and some of them removed again."""
    networks, leases, stays = situation
    whole, stepwise = places
    staying = [one for one, stay in zip(leases, stays, strict=False) if stay]
    by_name = {one.name: one for one in networks}
    carry_out(whole, table.requests_for(NAME, networks, staying))
    carry_out(stepwise, table.requests_for(NAME, networks, ()))
    for one in leases:
        carry_out(stepwise, table.requests_to_add(NAME, by_name[one.network], one))
    for one in leases:
        if one not in staying:
            carry_out(stepwise, table.requests_to_remove(NAME, by_name[one.network], one))
    assert whole.listed() == stepwise.listed()
    carry_out(whole, table.requests_for(NAME, networks, leases))  # in place of what is there
    for one in leases:
        if one not in staying:
            carry_out(whole, table.requests_to_remove(NAME, by_name[one.network], one))
    assert whole.listed() == stepwise.listed()
    for place in places:
        carry_out(place, table.requests_to_delete(NAME))
