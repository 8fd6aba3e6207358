"""Lines of /etc/hosts and settings of the kernel: what a sandbox may have of its own, and what would be another line or another file."""

from __future__ import annotations

import pytest

from dockless._options import make_spec
from dockless.errors import BadInput
from dockless.sandbox.hosts import hosts_file
from dockless.sandbox.spec import Namespaces, Spec


@pytest.mark.parametrize(
    "wanted",
    [
        {"db": "10.0.0.5", "six": "fd00::5"},
        ["db:10.0.0.5", "six:fd00::5"],
        ["db=10.0.0.5", "six=[fd00::5]"],
        ["db:10.0.0.5", "six:[fd00::5]"],
    ],
)
def test_hosts_as_people_write_them(wanted):
    assert make_spec("host", add_hosts=wanted).hosts == (("db", "10.0.0.5"), ("six", "fd00::5"))


def test_the_file_has_a_line_for_each():
    text = hosts_file("web", "example.org", (("db", "10.0.0.5"), ("me", "host-gateway")))
    assert text.splitlines()[2:] == ["127.0.1.1\tweb.example.org web", "10.0.0.5\tdb", "127.0.0.1\tme"]
    assert hosts_file("web", "", ()).splitlines()[2:] == ["127.0.1.1\tweb"]


def test_its_own_name_is_the_address_that_it_was_given():
    hosts = (("web", "10.0.0.5"), ("db", "10.0.0.6"))
    assert hosts_file("web", "", hosts).splitlines()[2:] == ["10.0.0.5\tweb", "10.0.0.6\tdb"]
    assert hosts_file("web", "example.org", hosts).splitlines()[2:] == ["10.0.0.5\tweb.example.org web", "10.0.0.6\tdb"]
    assert hosts_file("me", "", (("me", "host-gateway"),), "10.0.0.1").splitlines()[2:] == ["10.0.0.1\tme"]


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("a\nb", "10.0.0.1"), ("a", "10.0.0.1\n10.0.0.2 bank"), ("a b", "10.0.0.1"), ("#a", "10.0.0.1"), ("", "10.0.0.1"), ("a", ""),
        ("a..b", "10.0.0.1"), ("-a", "10.0.0.1"), ("é", "10.0.0.1"), ("a" * 64, "10.0.0.1"), ("a." * 127 + "aa", "10.0.0.1"),
        ("a", "10.0.1"), ("a", "0x7f.0.0.1"), ("a", "fe80::1%lo"), ("a", "::g"), ("a", "1" * 9999),
        ("a\t", "10.0.0.1"), ("a", "host-gateway"),
    ],
)  # fmt: skip
def test_what_would_be_no_line_of_its_own(name, address):
    with pytest.raises(BadInput) as caught:
        Spec(hosts=((name, address),))
    assert caught.value.hint and str(caught.value).isprintable()


def test_too_many_hosts_for_the_place_that_holds_the_file():
    assert Spec(hosts=(("a", "10.0.0.1"),) * 1000)
    with pytest.raises(BadInput, match="more than 1000"):
        Spec(hosts=(("a", "10.0.0.1"),) * 1001)


def test_the_host_itself_is_there_with_its_network_alone():
    assert Spec(hosts=(("a", "host-gateway"),), network="host").hosts
    with pytest.raises(BadInput, match="without such a network"):
        Spec(hosts=(("a", "host-gateway"),), network="host", profile="untrusted")


def test_settings_as_people_write_them():
    wanted = (("net.core.somaxconn", "1024"), ("kernel.sem", "250 32000 100 128"))
    assert make_spec("host", sysctls={"net.core.somaxconn": 1024, "kernel.sem": "250 32000 100 128"}).sysctls == wanted
    assert make_spec("host", sysctls=["net/core/somaxconn=1", "kernel.sem=250 32000 100 128", "net.core.somaxconn=1024"]).sysctls == wanted


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vm.swappiness", "1"), ("kernel.core_pattern", "|/x"), ("kernel.hostname", "x"), ("kernel.domainname", "x"), ("fs.file-max", "1"),
        ("kernel.msgmax2", "1"), ("user.max_user_namespaces", "1"), ("net", "1"), ("net.", "1"), ("net..x", "1"), ("net...x", "1"),
        ("net/../kernel/x", "1"), (".net.x", "1"), ("net.x\n", "1"), ("net.é", "1"), ("net." + "x" * 300, "1"), ("", "1"),
        ("net.x", "1\n2"), ("net.x", "1\0"), ("net.x", "é"), ("net.x", "1" * 2000),
    ],
)  # fmt: skip
def test_settings_that_are_no_sandbox_s_own(name, value):
    with pytest.raises(BadInput) as caught:
        Spec(sysctls=((name, value),))
    assert caught.value.subject == "sysctls" and caught.value.hint and str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("net.ipv4.ip_forward", {"network": "host"}),
        ("fs.mqueue.msg_max", {"namespaces": Namespaces(ipc="host")}),
        ("kernel.shmmax", {"namespaces": Namespaces(ipc="host")}),
    ],
)
def test_settings_of_a_namespace_that_is_the_hosts(name, shared):
    assert Spec(sysctls=((name, "1"),)).sysctls
    with pytest.raises(BadInput, match="the host's own"):
        Spec(sysctls=((name, "1"),), **shared)


def test_a_domain_name():
    assert make_spec("host", domainname="example.org").domainname == "example.org"
    for text in ("a b", "a\n", "x" * 65, "a." * 40 + "a"):
        with pytest.raises(BadInput):
            Spec(domainname=text)
    with pytest.raises(BadInput, match="own UTS namespace"):
        make_spec("host", domainname="a", namespaces={"uts": "host"})
