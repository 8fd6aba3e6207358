"""What people say of networks: names, ports, rules; what a spec may say of them together; the way back into words."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless._networks import egress_of, egress_words, network_words, parse_endpoint, parse_published, parse_rule, port_words
from dockless._options import make_spec
from dockless.base.records import differences, read
from dockless.cli import parser_of
from dockless.cli.sandbox_options import keywords
from dockless.errors import BadInput
from dockless.sandbox.hosts import hosts_file
from dockless.sandbox.network.asked import overlap
from dockless.sandbox.network.model import Egress, Endpoint, Port, Rule
from dockless.sandbox.network.resolv_conf import of_host
from dockless.sandbox.resolve import _hardened
from dockless.sandbox.spec import Spec

BRIDGE = (Endpoint(),)


def private(**more):
    return Spec(("true",), "img", network="private", endpoints=more.pop("endpoints", BRIDGE), **more)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("lab", Endpoint("lab")),
        ("bridge", Endpoint("bridge")), ("default", Endpoint("bridge")), ("private", Endpoint("bridge")),
        ("lab:ip=10.1.0.5", Endpoint("lab", ("10.1.0.5",))),
        ("lab:ip=10.1.0.5,ip6=fd00::5,mac=02:42:0a:01:00:05,alias=a,alias=b",
         Endpoint("lab", ("10.1.0.5", "fd00::5"), "02:42:0a:01:00:05", ("a", "b"))),
        ("name=lab,alias=web,mac-address=02:42:0a:01:00:05,ip=10.1.0.5", Endpoint("lab", ("10.1.0.5",), "02:42:0a:01:00:05", ("web",))),
    ],
)  # fmt: skip
def test_a_network_by_name(text, endpoint):
    assert parse_endpoint(text) == endpoint
    made = make_spec("img", network=text)
    assert (made.network, made.endpoints) == ("private", (endpoint,))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("lab:", ""), ("", "write NAME"), ("lab:color=red", "write NAME"), ("lab:ip", "write NAME"), ("lab:ip=", "write NAME"),
        ("lab:mac=02:42:0a:01:00:05,mac=02:42:0a:01:00:06", "write NAME"), ("name=a,name=b", "write NAME"), ("ip=10.0.0.1", "write NAME"),
        ("pasta", "--network bridge"), ("slirp4netns:mtu=1", "--network bridge"), ("ns:/run/netns/x", "container:ID"),
    ],
)  # fmt: skip
def test_what_names_no_network(text, hint):
    if text == "lab:":  # nothing more is said
        assert parse_endpoint(text) == Endpoint("lab")
        return
    with pytest.raises(BadInput) as caught:
        parse_endpoint(text)
    assert caught.value.subject == "network" and hint in caught.value.hint


@pytest.mark.parametrize(
    ("value", "network", "endpoints"),
    [
        ("none", "none", ()), ("host", "host", ()), ("container:web", "container:web", ()), (["host"], "host", ()), ([], "none", ()),
        (["a", Endpoint("b")], "private", (Endpoint("a"), Endpoint("b"))), (Endpoint("b"), "private", (Endpoint("b"),)),
        (iter(["a", "b"]), "private", (Endpoint("a"), Endpoint("b"))),
    ],
)  # fmt: skip
def test_networks_of_a_sandbox(value, network, endpoints):
    made = make_spec("img", network=value)
    assert (made.network, made.endpoints) == (network, endpoints)


@pytest.mark.parametrize(
    "value", [["host", "a"], ["a", "none"], ["container:x", "a"], ["a", "a"], "container:", "container:../x", "-a", "a/b"]
)
def test_networks_that_do_not_go_together(value):
    with pytest.raises(BadInput) as caught:
        make_spec("img", network=value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("8080:80", Port(80, 8080)), ("53:53/udp", Port(53, 53, "udp")), ("127.0.0.1:80:8080/tcp", Port(8080, 80, "tcp", "127.0.0.1")),
        ("[::1]:80:80", Port(80, 80, "tcp", "::1")), ("5000-5005:6000-6005", Port(6000, 5000, "tcp", "", 6)), ("65535:1", Port(1, 65535)),
        ("0.0.0.0:1-2:3-4/udp", Port(3, 1, "udp", "0.0.0.0", 2)),
    ],
)  # fmt: skip
def test_a_port(text, port):
    assert parse_published(text) == port
    assert parse_published(port_words(port)) == port


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("80", "8080:80"), ("80/udp", "8080:80/udp"), ("5000-5002", "5000-5002:5000-5002"), ("::80", "ADDRESS"), (":80:80", "ADDRESS"),
        ("a:80:80", "ADDRESS"), ("1.2.3:80:80", "ADDRESS"), ("[1.2.3.4]:80:80", "ADDRESS"), ("::1:80:80", "ADDRESS"), ("80:80/sctp", "tcp"),
        ("80-81:80", "same length"), ("81-80:81-80", "same length"), ("8000-8001:80-82", "same length"), ("0:80", "1 to 65535"),
        ("80:0", "1 to 65535"), ("65536:1", "1 to 65535"), ("65535-65536:1-2", "1 to 65535"), ("1-2000:1-2000", "1 to "),
        ("80:80/TCP", ""), ("", ""), ("80:80\n", ""), ("８０:80", ""),
    ],
)  # fmt: skip
def test_what_is_no_port(text, hint):
    with pytest.raises(BadInput) as caught:
        parse_published(text)
    assert caught.value.subject in ("publish", "ports") and hint in caught.value.hint


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (Port(80, 80), Port(81, 80), True), (Port(80, 80), Port(80, 80, "udp"), False), (Port(80, 80), Port(80, 81), False),
        (Port(80, 80, count=5), Port(90, 84), True), (Port(80, 80, count=5), Port(90, 85), False),
        (Port(80, 80, address="127.0.0.1"), Port(80, 80), True),
        (Port(80, 80, address="127.0.0.1"), Port(80, 80, address="127.0.0.2"), False),
        (Port(80, 80, address="127.0.0.1"), Port(80, 80, address="0.0.0.0"), True),
        (Port(80, 80, address="127.0.0.1"), Port(80, 80, address="::"), False),
        (Port(80, 80, address="::1"), Port(80, 80, address="::"), True),
    ],
)  # fmt: skip
def test_two_ports_of_one_host(one, other, both):
    assert overlap(one, other) is overlap(other, one) is both
    if both:
        with pytest.raises(BadInput, match="published twice"):
            private(ports=(one, other))
    else:
        assert private(ports=(one, other)).ports == (one, other)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("10.0.0.0/8", Rule("10.0.0.0/8")), ("10.0.0.1", Rule("10.0.0.1")), ("10.0.0.0/8:443", Rule("10.0.0.0/8", ((443, 443),))),
        ("10.0.0.0/8:443/tcp", Rule("10.0.0.0/8", ((443, 443),), "tcp")), ("fd00::/8", Rule("fd00::/8")), ("::1", Rule("::1")),
        ("[fd00::/8]:80,8000-8080/udp", Rule("fd00::/8", ((80, 80), (8000, 8080)), "udp")), ("[fd00::1]", Rule("fd00::1")),
        ("PyPI.org:443", Rule("pypi.org", ((443, 443),))), ("*.pypi.org", Rule("*.pypi.org")),
        ("0.0.0.0/0:53/udp", Rule("0.0.0.0/0", ((53, 53),), "udp")),
    ],
)  # fmt: skip
def test_a_rule(text, rule):
    assert parse_rule(text) == rule
    made = make_spec("img", network="bridge", allow_out=[text])
    assert made.egress == Egress((rule,), host=False)
    again = make_spec("img", network="bridge", **egress_words(made.egress, "default"))
    assert again == made


@pytest.mark.parametrize(
    "text",
    [
        "", ":443", "10.0.0.0/33", "fd00::/129", "10.0.0/8", "a b", "a..b", "pypi.org:0", "pypi.org:65536", "pypi.org:5-3", "pypi.org:x",
        "pypi.org:", "pypi.org/tcp", "[fd00::/8", "fd00::/8]:1", "*", "*.*.org", "a.*.org", "10.0.0.0/8:1,", "fd00::/x", "10.0.0.1/",
        "pypi.org:٣",
    ],
)  # fmt: skip
def test_what_is_no_rule(text):
    with pytest.raises(BadInput) as caught:
        make_spec("img", network="bridge", allow_out=[text])
    assert caught.value.hint


@pytest.mark.parametrize(
    ("said", "egress"),
    [
        ({}, None),
        ({"allow_out": []}, Egress((), host=False)),
        ({"allow_out": ["10.0.0.0/8"], "allow_host": True}, Egress((Rule("10.0.0.0/8"),), host=True)),
        ({"allow_host": False}, Egress(host=False)),
        ({"net_rate": "10M"}, Egress(rate=10 << 20)),
        ({"log_denied": True, "profile": "untrusted"}, Egress(host=False, log=True)),
        ({"allow_host": True, "profile": "untrusted"}, Egress()),
        ({"egress": Egress(rate=5)}, Egress(rate=5)),
    ],
)
def test_what_leaves_a_sandbox(said, egress):
    assert make_spec("img", network="bridge", **said).egress == egress
    if egress is not None:
        profile = said.get("profile", "default")
        assert egress_of({**egress_words(egress, profile), "profile": profile}) == egress


def test_to_allow_the_host_where_nothing_is_allowed_is_refused():
    with pytest.raises(BadInput, match="has no effect") as caught:
        make_spec("img", network="bridge", allow_out=[], allow_host=True)
    assert caught.value.subject == "allow_host"


def test_the_profile_untrusted_has_the_network_that_it_asks_for_and_never_the_host():
    made = make_spec("img", profile="untrusted", network="lab")
    assert made.egress is None and _hardened(made).egress == Egress(host=False)
    assert _hardened(make_spec("img", profile="untrusted")).network == "none"
    for network in ("host", "container:web"):
        assert _hardened(Spec(profile="untrusted", network=network)).network == "none"
        with pytest.raises(BadInput, match="not possible with the profile untrusted"):
            make_spec("img", profile="untrusted", network=network)
        with pytest.raises(BadInput, match="not possible with the profile untrusted"):
            make_spec("img", profile="untrusted", network=[network])
    assert _hardened(Spec(profile="untrusted", network="host", dns=("10.0.0.1",))).dns == ()


@pytest.mark.parametrize(
    ("fields", "subject"),
    [
        ({"network": "lab"}, "network"), ({"network": "private"}, "network"), ({"network": "none", "endpoints": BRIDGE}, "network"),
        ({"network": "host", "endpoints": BRIDGE}, "network"), ({"ports": (Port(80, 80),)}, "publish"),
        ({"network": "host", "ports": (Port(80, 80),)}, "publish"), ({"network": "container:a", "ports": (Port(80, 80),)}, "publish"),
        ({"egress": Egress()}, "allow_out"), ({"network": "host", "egress": Egress()}, "allow_out"),
        ({"dns": ("10.0.0.1",)}, "dns"), ({"dns_search": ("a",)}, "dns"), ({"dns_options": ("ndots:2",)}, "dns"),
        ({"network": "container:a", "dns": ("10.0.0.1",)}, "dns"), ({"network": "container:a", "hostname": "h"}, "hostname"),
        ({"network": "container:a", "domainname": "h"}, "domainname"),
        ({"network": "container:a", "hosts": (("a", "10.0.0.1"),)}, "add_hosts"),
        ({"network": "container:a", "sysctls": (("net.core.somaxconn", "1"),)}, "sysctls"),
    ],
)  # fmt: skip
def test_fields_that_do_not_belong_together(fields, subject):
    with pytest.raises(BadInput) as caught:
        Spec(**fields)
    assert caught.value.subject == subject and caught.value.hint and str(caught.value).isprintable()


@pytest.mark.parametrize(
    "fields",
    [
        {"endpoints": (Endpoint("a"), Endpoint("a"))}, {"endpoints": (Endpoint("host"),)}, {"endpoints": (Endpoint("a b"),)},
        {"endpoints": (Endpoint("a", ("10.0.0.1", "10.0.0.2")),)}, {"endpoints": (Endpoint("a", ("10.0.0.0/24",)),)},
        {"endpoints": (Endpoint("a", ("10.0.0.1",)), Endpoint("b", ("10.0.0.1",)))}, {"endpoints": (Endpoint("bridge", aliases=("x",)),)},
        {"endpoints": (Endpoint("a", aliases=("x y",)),)}, {"endpoints": (Endpoint("a", aliases=("x",) * 101),)},
        {"ports": (Port(80, 80, address="nowhere"),)}, {"dns": ("a",)}, {"dns": ("10.0.0.1",) * 4}, {"dns_search": ("a b",)},
        {"dns_search": ("a",) * 101}, {"dns_options": ("ndots:2\nnameserver 6.6.6.6",)}, {"dns_options": ("",)},
        {"egress": Egress(rate=-1)}, {"egress": Egress((Rule("10.0.0.0/8"),) * 101)}, {"egress": Egress((Rule("x", ((5, 3),)),))},
    ],
)  # fmt: skip
def test_values_that_cannot_be(fields):
    with pytest.raises(BadInput) as caught:
        private(**fields)
    assert caught.value.hint and str(caught.value).isprintable()


def test_what_a_private_network_may_have_of_its_own():
    made = private(
        endpoints=(Endpoint("a", ("10.0.0.1", "fd00::1"), aliases=("db",)), Endpoint("b")), hosts=(("up", "host-gateway"),),
        dns_search=(".",), sysctls=(("net.core.somaxconn", "1"),), hostname="h", dns_options=("ndots:2", "use-vc", "edns0"),
    )  # fmt: skip
    assert made.endpoints[0].aliases == ("db",)
    for closed in ({"egress": Egress(host=False)}, {"profile": "untrusted"}):
        with pytest.raises(BadInput, match="the host cannot be reached"):
            private(hosts=(("up", "host-gateway"),), **closed)
    assert private(hosts=(("up", "host-gateway"),), profile="untrusted", egress=Egress(host=True)).hosts
    assert hosts_file("", "", (("up", "host-gateway"),), "10.112.0.1").splitlines()[-1] == "10.112.0.1\tup"


def test_a_record_of_before_is_read():
    old = differences(Spec(("true",), network="host"))
    assert old == {"argv": ["true"], "network": "host"} and read(Spec, old) == Spec(("true",), network="host")
    whole = private(ports=(Port(80, 8080),), egress=Egress((Rule("a.org", ((1, 2),)),), False, 5, True), dns=("10.0.0.1",))
    assert read(Spec, differences(whole)) == whole


def test_the_hosts_own_servers_for_names_and_those_that_are_said():
    text = "# made\nsearch a b\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions ndots:5 rotate\n"
    host = Spec(network="host")
    assert of_host(text, host) == text
    said = of_host(text, dataclasses.replace(host, dns=("10.9.9.9",)))
    assert said == "nameserver 10.9.9.9\nsearch a b\noptions ndots:5 rotate\n"
    said = of_host(text, dataclasses.replace(host, dns_search=("c",), dns_options=("ndots:1",)))
    assert said == "nameserver 10.0.0.1\nnameserver 10.0.0.2\nsearch c\noptions ndots:1\n"


LINES = [
    ("--network lab", {"network": "lab"}),
    ("--network a --network b:alias=x", {"network": ["a", "b:alias=x"]}),
    ("--net host", {"network": "host"}),
    ("--network lab --ip 10.0.0.5 --ip6 fd00::5 --mac-address 02:42:0a:01:00:05 --network-alias db --net-alias sql",
     {"network": "lab:ip=10.0.0.5,ip=fd00::5,mac=02:42:0a:01:00:05,alias=db,alias=sql"}),
    ("--network lab:alias=a --ip 10.0.0.5", {"network": "lab:alias=a,ip=10.0.0.5"}),
    ("--network bridge -p 80:80 -p 53:53/udp", {"network": "bridge", "publish": ["80:80", "53:53/udp"]}),
    ("--network bridge --dns 10.0.0.1 --dns-search a --dns-opt ndots:2 --dns-option use-vc",
     {"network": "bridge", "dns": ["10.0.0.1"], "dns_search": ["a"], "dns_options": ["ndots:2", "use-vc"]}),
    ("--network bridge --allow-out 10.0.0.0/8 --allow-out a.org:443", {"network": "bridge", "allow_out": ["10.0.0.0/8", "a.org:443"]}),
    ("--network bridge --deny-out", {"network": "bridge", "allow_out": []}),
    ("--network bridge --allow-host --net-rate 1M --log-denied",
     {"network": "bridge", "allow_host": True, "net_rate": "1M", "log_denied": True}),
    ("--network bridge --deny-host", {"network": "bridge", "allow_host": False}),
    ("", {}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "same"), LINES)
@pytest.mark.parametrize("verb", ["run", "create", "submit"])
def test_options_mean_the_same_as_keywords(verb, line, same):
    assert make_spec("img", (), **keywords(parser_of(verb).parse([*line.split(), "img"]))) == make_spec("img", (), **same)


@pytest.mark.parametrize(
    "line",
    [
        "--ip 10.0.0.5",
        "--network a --network b --ip 10.0.0.5",
        "--network host --ip6 fd00::5",
        "--network container:a --mac-address x",
        "--network none --network-alias a",
        "--allow-host --deny-host --network bridge",
        "--allow-out 10.0.0.0/8 --deny-out --network bridge",
        "--deny-out --allow-out a.org --network bridge",
    ],
)
def test_options_of_a_network_that_is_not_named(line):
    with pytest.raises(BadInput) as caught:
        make_spec("img", (), **keywords(parser_of("run").parse([*line.split(), "img"])))
    assert caught.value.hint


ADDRESS = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
NAME = st.from_regex(r"[a-z][a-z0-9_.-]{0,20}", fullmatch=True).filter(
    lambda name: name not in ("none", "host", "private", "container", "pasta", "default", "slirp4netns", "ns")
)
ENDPOINTS = st.builds(
    Endpoint, NAME, st.lists(ADDRESS, max_size=2).map(tuple), st.sampled_from(("", "02:42:0a:01:00:05")),
    st.lists(st.from_regex(r"[a-z][a-z0-9]{0,9}", fullmatch=True), max_size=3).map(tuple),
)  # fmt: skip


@given(ENDPOINTS)
def test_every_endpoint_has_words(endpoint):
    assert parse_endpoint(*network_words("private", (endpoint,))) == endpoint


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    for parse in (parse_endpoint, parse_published, parse_rule):
        try:
            parse(text)
        except BadInput as error:
            assert error.hint is not None and str(error).isprintable()
