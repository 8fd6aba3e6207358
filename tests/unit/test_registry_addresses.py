"""Which addresses a registry may send us to, and which requests go through a proxy."""

from __future__ import annotations

import _socket
import ipaddress

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from dockless.errors import BadInput, UnsafeRequest
from dockless.images.registry.addresses import LOOPBACK, NEVER, PRIVATE, PUBLIC, AddressGuard, address, classify
from dockless.images.registry.proxies import Proxies


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("8.8.8.8", PUBLIC),
        ("2606:4700::1111", PUBLIC),
        ("10.1.2.3", PRIVATE),
        ("172.31.0.1", PRIVATE),
        ("192.168.1.1", PRIVATE),
        ("100.64.0.1", PRIVATE),
        ("fc00::1", PRIVATE),
        ("fd12:3456::1", PRIVATE),
        ("198.18.0.1", PRIVATE),
        ("127.0.0.1", LOOPBACK),
        ("127.255.255.254", LOOPBACK),
        ("::1", LOOPBACK),
        ("169.254.169.254", NEVER),
        ("169.254.170.2", NEVER),
        ("fe80::1", NEVER),
        ("0.0.0.0", NEVER),
        ("0.1.2.3", NEVER),
        ("::", NEVER),
        ("224.0.0.1", NEVER),
        ("ff02::1", NEVER),
        ("255.255.255.255", NEVER),
        ("240.0.0.1", NEVER),
        ("168.63.129.16", NEVER),
        ("100.100.100.200", NEVER),
        ("fd00:ec2::254", NEVER),
        # IPv4 in IPv6's clothes
        ("::ffff:127.0.0.1", LOOPBACK),
        ("::ffff:169.254.169.254", NEVER),
        ("::ffff:10.0.0.1", PRIVATE),
        ("::ffff:8.8.8.8", PUBLIC),
        ("2002:7f00:1::", LOOPBACK),
        ("2002:a9fe:a9fe::1", NEVER),
        ("64:ff9b::a9fe:a9fe", NEVER),
        ("64:ff9b::7f00:1", LOOPBACK),
        ("64:ff9b::808:808", PUBLIC),
    ],
)
def test_classes(text, kind):
    assert classify(text) == kind


@pytest.mark.parametrize(
    ("home", "allowed", "refused"),
    [
        ("8.8.8.8", ["1.1.1.1", "8.8.8.8"], ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1", "0.0.0.0"]),
        ("10.0.0.1", ["1.1.1.1", "10.9.9.9", "192.168.0.1", "fd00::1"], ["127.0.0.1", "169.254.169.254", "100.100.100.200"]),
        ("127.0.0.1", ["1.1.1.1", "127.0.0.1", "::1"], ["10.0.0.1", "169.254.169.254"]),
        ("169.254.0.9", ["1.1.1.1", "169.254.0.9"], ["169.254.169.254", "127.0.0.1", "10.0.0.1"]),
        (None, ["1.1.1.1"], ["127.0.0.1", "10.0.0.1", "169.254.169.254"]),
    ],
)
def test_where_a_registry_may_send_us(home, allowed, refused):
    guard = AddressGuard("r.test")
    if home is not None:
        guard.check("r.test", home)  # what the user named is reached wherever it is
        guard.connected("r.test", home)
    for text in allowed:
        guard.check("other.test", text)
    for text in refused:
        with pytest.raises(UnsafeRequest) as caught:
            guard.check("other.test", text)
        assert "registries.conf" in caught.value.hint and text in str(caught.value)


def test_hosts_of_the_configuration_are_the_users_word():
    guard = AddressGuard("r.test", frozenset({"store.lan"}))
    guard.check("store.lan", "10.0.0.1")
    with pytest.raises(UnsafeRequest):
        guard.check("other.lan", "10.0.0.1")


def test_a_registry_that_moves_to_another_class():
    guard = AddressGuard("r.test")
    guard.connected("r.test", "8.8.8.8")
    guard.check("r.test", "9.9.9.9")
    for text in ("127.0.0.1", "10.0.0.1", "169.254.169.254"):
        with pytest.raises(UnsafeRequest, match="was at a public"):
            guard.check("r.test", text)


def test_behind_a_proxy_names_are_judged_as_far_as_we_can(monkeypatch):
    guard = AddressGuard("r.test")
    known = {"inside.test": "10.0.0.1", "outside.test": "8.8.8.8", "2130706433": "127.0.0.1"}

    def resolve(name, *_args, **_options):
        host = name.decode()
        if host not in known:
            raise _socket.gaierror(-2, "Name or service not known")
        return [(_socket.AF_INET, _socket.SOCK_STREAM, 6, "", (known[host], 0))]

    monkeypatch.setattr(_socket, "getaddrinfo", resolve)
    guard.check_name("r.test")
    guard.check_name("outside.test")
    guard.check_name("known-to-the-proxy-only.test")
    for host in ("inside.test", "2130706433", "127.0.0.1", "[::1]", "169.254.169.254"):
        with pytest.raises(UnsafeRequest):
            guard.check_name(host)


def test_literals():
    assert address("[::1]") == "::1" and address("fe80::1%eth0") == "fe80::1" and address("r.test") is None


@example("0177.0.0.2")
@example("1.2.3.4.")
@example("::ffff:127.0.0.1")
@example("2606:0:0:0:0:0:0:1")
@given(some.ip_addresses().flatmap(lambda where: some.sampled_from((str(where), where.exploded))) | some.text("012579af.:", max_size=20))
def test_an_address_is_what_the_standard_module_takes_for_one(text):
    try:
        expected = ipaddress.ip_address(text)
    except ValueError:
        expected = None
    found = address(text)
    assert (found and ipaddress.ip_address(found)) == expected


# ---- proxies -----------------------------------------------------------------------------------------------------------------------------

ENV = {"http_proxy": "http://p.test:3128", "HTTPS_PROXY": "q.test:3129"}


def test_no_proxy_at_all():
    assert Proxies({}).choose("https", "r.test", 443) == ""


def test_one_for_each_scheme():
    proxies = Proxies(ENV)
    assert proxies.choose("http", "r.test", 80) == "http://p.test:3128"
    assert proxies.choose("https", "r.test", 443) == "http://q.test:3129"
    assert Proxies({"ALL_PROXY": "http://a.test"}).choose("https", "r.test", 443) == "http://a.test"
    assert Proxies({"https_proxy": "http://a.test", "HTTPS_PROXY": "http://b.test"}).choose("https", "r.test", 443) == "http://a.test"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "x.localhost", "127.5.5.5"])
def test_loopback_goes_through_no_proxy(host):
    assert Proxies(ENV).choose("http", host, 5000) == ""


@pytest.mark.parametrize(
    ("no_proxy", "host", "port", "direct"),
    [
        ("*", "r.test", 443, True),
        ("r.test", "r.test", 443, True),
        ("r.test", "a.r.test", 443, True),
        ("r.test", "bar.test", 443, False),
        (".r.test", "a.r.test", 443, True),
        (".r.test", "r.test", 443, False),
        ("*.r.test", "a.r.test", 443, True),
        ("R.Test", "r.test", 443, True),
        ("r.test:443", "r.test", 443, True),
        ("r.test:444", "r.test", 443, False),
        ("x.test, r.test", "r.test", 443, True),
        ("x.test r.test", "r.test", 443, True),
        ("10.0.0.0/8", "10.1.2.3", 443, True),
        ("10.0.0.0/8", "11.1.2.3", 443, False),
        ("10.0.0.1", "10.0.0.1", 443, True),
        ("10.0.0.1:5000", "10.0.0.1", 443, False),
        ("fd00::/8", "fd00::1", 443, True),
        ("[fd00::1]:443", "fd00::1", 443, True),
        ("", "r.test", 443, False),
        (",,", "r.test", 443, False),
    ],
)
def test_no_proxy(no_proxy, host, port, direct):
    assert (Proxies({**ENV, "no_proxy": no_proxy}).choose("https", host, port) == "") is direct


def test_upper_case_http_proxy_is_not_taken_from_a_web_request():
    assert Proxies({"HTTP_PROXY": "http://evil.test", "REQUEST_METHOD": "GET"}).choose("http", "r.test", 80) == ""
    assert Proxies({"HTTP_PROXY": "http://p.test"}).choose("http", "r.test", 80) == "http://p.test"


@pytest.mark.parametrize("value", ["socks5://user:secret@p.test:1080", "http://", "http://p.test:99999", "ftp://p.test"])
def test_proxies_that_cannot_be_used(value):
    with pytest.raises(BadInput) as caught:
        Proxies({"https_proxy": value}).choose("https", "r.test", 443)
    assert "secret" not in str(caught.value) + caught.value.subject + caught.value.hint
