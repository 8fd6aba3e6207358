"""``dockless network``, ``dockless port``, ``dockless.networks``, and what ``ps``, ``inspect`` and events say of networks: with real
bridges, in a network namespace of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.boxes import until
from support.networks import own_network
from support.requires import requires

import dockless
from dockless import aio, networks
from dockless.base.dataclass import replace
from dockless.cli import main
from dockless.errors import AddressTaken, BadInput, NetworkError, NetworkInUse, NotPermitted, SandboxGone, UnknownNetwork, Unsupported
from dockless.sandbox.network import leases
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import Endpoint
from dockless.sandbox.run import networks as sandbox_networks
from dockless.sandbox.run.box import get

pytestmark = requires("bridge")
PYTHON = "/usr/bin/python3"


@pytest.fixture(autouse=True)
def _apart(home):
    with own_network():
        yield
        for box in dockless.list():
            box.rm(force=True)


def start(**options):
    return dockless.start(["sleep", "60"], **options)


@pytest.fixture
def say(capfd):
    def run(*words):
        code = main([*words])
        out, err = capfd.readouterr()
        return code, out, err

    return run


def test_one_that_has_ended_and_whose_link_is_still_taken_apart_keeps_no_network():
    networks.create("lab")
    box = start(id="web", network="lab")
    held = os.open(f"/proc/{get('web').init_pid}/ns/net", os.O_RDONLY)  # as the kernel does for a moment
    box.kill()
    box.wait(20)
    until(lambda: not networks.get("lab").sandboxes, "nobody is on it")
    later = threading.Timer(0.5, os.close, [held])
    later.start()
    networks.remove("lab")
    later.join()
    assert networks.list() == []


def test_a_network_from_its_making_to_its_end(say):
    assert say("network", "create", "lab", "--subnet", "10.20.0.0/24", "--mtu", "1400", "-l", "team=a") == (0, "lab\n", "")
    assert say("network", "create", "six", "--subnet", "fd00:20::/64", "--internal", "--isolated", "-q") == (0, "", "")
    code, _, err = say("network", "create", "lab")
    assert code == 125 and "a network lab already" in err
    lab, six = networks.list()
    assert (lab.name, lab.subnets, lab.gateways, lab.mtu, lab.labels) == ("lab", ("10.20.0.0/24",), ("10.20.0.1",), 1400, {"team": "a"})
    assert (lab.internal, lab.isolated, lab.sandboxes) == (False, False, ()) and (six.internal, six.isolated) == (True, True)
    assert say("network", "ls", "-q", "--filter", "label=team=a") == (0, "lab\n", "")
    assert say("network", "ls", "--filter", "name=i", "--format", "{{.Name}} {{.Internal}}")[1] == "six true\n"
    table = say("network", "ls")[1].splitlines()
    assert table[0].split() == ["NETWORK", "SUBNETS", "KIND", "SANDBOXES"]
    assert table[2].split() == ["six", "fd00:20::/64", "internal", "isolated"]
    found = json.loads(say("network", "inspect", "lab", "--json")[1])
    assert found[0]["name"] == "lab" and found[0]["labels"] == {"team": "a"}
    box = start(id="web", network="lab")
    assert [one.id for one in networks.get("lab").sandboxes] == ["web"]
    code, _, err = say("network", "rm", "lab", "six")
    assert code == 125 and "on network lab" in err and [one.name for one in networks.list()] == ["lab"]
    with pytest.raises(NetworkInUse):
        networks.remove("lab")
    assert networks.prune() == []
    box.rm(force=True)
    assert say("network", "prune", "-y") == (0, "lab\n", "")
    with pytest.raises(UnknownNetwork):
        networks.get("lab")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("create", "wants a name"), ("ls x", "takes no name"), ("connect lab", "a network and a sandbox"), ("rm", "wants a name"),
        ("ls --subnet 10.0.0.0/8", "takes no --subnet"), ("rm lab --internal", "takes no --internal"),
        ("inspect lab --filter name=a", "takes no --filter"), ("disconnect a b --alias x", "takes no --alias"),
        ("create host", "called host"), ("create a/b", "not usable"), ("create a --subnet 10.20.0.1/24", "subnet"),
        ("create a b --subnet 10.20.0.0/24", "one subnet"), ("create a --mtu 5", "MTU"), ("create a --label =x", "label"),
        ("rm nosuch", "no network nosuch"), ("inspect nosuch", "no network nosuch"), ("ls --filter color=red", "cannot be read"),
        ("connect nosuch nobody", "no sandbox nobody"), ("connect --gw-priority 1 a b", "default route"),
        ("inspect -f {{.Subnets}} lab", "given by --format"), ("ls -f name=a", "takes no"), ("connect --link-local-ip 1.2.3.4 a b", "--ip"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant(say, line, said):
    code, _, err = say("network", *line.split())
    assert code == 125 and said in err and "hint: " in err and networks.list() == []


def test_what_is_said_of_a_sandbox_on_networks(say):
    networks.create("a", subnets="10.20.0.0/24")
    networks.create("b", subnets=["10.30.0.0/24", "fd00:30::/64"], internal=True)
    box = start(id="web", network=["a:ip=10.20.0.9,alias=db", "b"], publish=["127.0.0.1:8080:80", "5000-5001:6000-6001/udp"])
    row = json.loads(say("ps", "--json")[1])[0]
    assert row["network"] == "private" and [one["name"] for one in row["networks"]] == ["a", "b"]
    assert row["networks"][0]["addresses"] == ["10.20.0.9"] and set(row["networks"][0]["names"]) >= {"web", "db"}
    assert len(row["networks"][1]["addresses"]) == 2 and row == box.inspect()
    assert row["ports"][0] == {"inside": 80, "outside": 8080, "protocol": "tcp", "address": "127.0.0.1", "count": 1}
    assert say("ps")[1].splitlines()[1].endswith("127.0.0.1:8080->80/tcp, 5000-5001->6000-6001/udp")
    assert say("ps", "--format", "{{.Networks}} {{.Ports}}")[1].startswith("a,b 127.0.0.1:8080->80/tcp")
    assert [say("ps", "-q", "--filter", f"network={name}")[1] for name in ("a", "b", "c")] == ["web\n", "web\n", ""]
    assert say("port", "web")[1] == "80/tcp -> 127.0.0.1:8080\n6000/udp -> 0.0.0.0:5000\n6001/udp -> 0.0.0.0:5001\n"
    assert say("container", "port", "web", "6001/udp")[1] == "0.0.0.0:5001\n"
    assert json.loads(say("port", "web", "80", "--json")[1])[0]["network"] == "a"
    for words, why in ((("80/udp",), "is not published"), (("x",), "cannot be read")):
        code, _, err = say("port", "web", *words)
        assert code == 125 and why in err
    on_a = json.loads(say("network", "inspect", "a")[1])[0]["sandboxes"]
    assert [(one["id"], one["addresses"], len(one["ports"])) for one in on_a] == [("web", ["10.20.0.9"], 2)]
    box.rename("site")
    assert networks.get("a").sandboxes[0].id == "site"
    box.stop()
    row = json.loads(say("ps", "-a", "--json")[1])[0]
    assert [one["addresses"] for one in row["networks"]] == [[], []] and len(row["ports"]) == 2
    assert say("port", "site")[0] == 125 and networks.get("a").sandboxes == ()


def test_a_record_that_cannot_be_read_is_told(say, home):
    networks.create("a")
    networks.create("b")
    (record,) = home.rglob("b/network.json")
    record.write_text("{")
    code, out, err = say("network", "ls", "-q")
    assert (code, out) == (0, "a\n") and "the record of network b cannot be read" in err and f"rm {record}" in err
    record.unlink()
    record.parent.rmdir()


def test_the_default_network_is_not_pruned(say):
    networks.create("bridge", subnets="10.20.0.0/24")
    for name in ("a", "b"):
        networks.create(name)
    assert networks.prune(names=["a", "bridge"]) == ["a"]
    assert say("network", "prune", "-y") == (0, "b\n", "") and [one.name for one in networks.list()] == ["bridge"]
    assert say("network", "rm", "bridge") == (0, "bridge\n", "")


def test_joining_and_leaving_while_it_runs(say):
    networks.create("a", subnets="10.20.0.0/24")
    networks.create("b", subnets="10.30.0.0/24")
    with dockless.events(kinds=["start", "update"]) as events:
        box = start(id="web", network="a")
        assert next(events).kind == "start"
        networks.connect("b", "web", addresses="10.30.0.7", aliases=["db"])
        assert next(events).details == {"changed": ["networks"]}
        names = {one.id: one.names for one in networks.get("b").sandboxes}
        assert networks.get("b").sandboxes[0].addresses == ("10.30.0.7",) and set(names["web"]) >= {"web", "db"}
        with pytest.raises(BadInput, match="on network b already"):
            networks.connect("b", box)
        code, out, err = say("network", "disconnect", "a", "web")
        assert (code, out) == (0, "web\n") and "keeps the /etc/resolv.conf of its start" in err and "hint: dockless restart web" in err
        assert next(events).details == {"changed": ["networks"]}
    assert [one["name"] for one in box.inspect()["networks"]] == ["b"]
    with pytest.raises(BadInput, match="is not on network a"):
        networks.disconnect("a", box)
    for _ in range(3):  # the links of its last run may still be there
        box.restart()
        assert networks.get("b").sandboxes[0].addresses == ("10.30.0.7",), "it is where it was put, at its next starts too"
    other = start(id="other")
    with pytest.raises(AddressTaken):
        networks.connect("b", other, addresses="10.30.0.7")
    assert other.inspect()["networks"] == [], "nothing of it is written down"
    networks.disconnect("b", box)
    assert box.inspect()["network"] == "none"
    box.stop()
    networks.connect("a", box)
    assert box.inspect()["networks"] == [{"name": "a", "addresses": [], "mac": "", "names": []}]
    box.start()
    assert networks.get("a").sandboxes[0].id == "web"


def test_who_finds_nobody_by_name_before_it_is_started_again_is_told(say):
    for name in ("a", "b"):
        networks.create(name)
    start(id="on-a", network="a")
    start(id="none")
    default = start(id="default", network="bridge")
    start(id="asks", network="bridge", dns=["9.9.9.9"])
    for id, waits in (("on-a", False), ("none", True), ("default", True), ("asks", False)):
        code, out, err = say("network", "connect", "b", id)
        assert (code, out) == (0, f"{id}\n"), err
        assert ("it finds nobody there by name" in err and f"dockless restart {id}" in err) is waits, (id, err)
        assert waits or not err
    assert say("network", "disconnect", "b", "none") == (0, "none\n", "")
    default.restart(grace=0)
    assert not sandbox_networks.names_wait(default.inner)


def refused(name):
    with pytest.raises(NetworkInUse) as caught:
        networks.remove(name)
    return str(caught.value), caught.value.hint


def test_what_ends_those_who_keep_a_network(say):
    networks.create("a")
    first = start(id="first", network="a")
    assert refused("a") == ("1 sandbox is on network a", "dockless stop first")
    second, third = start(id="second", network="container:first"), start(id="third", network="container:second")
    start(id="apart")
    first.stop(grace=0)
    assert networks.get("a").sandboxes == ()
    joined = "dockless stop second (it has the network of first); dockless stop third (it has the network of first)"
    assert refused("a") == ("1 sandbox is on network a", joined)
    second.rm(force=True)
    third.rm(force=True)
    until(lambda: not leases.living(Host(), "a"), "its link is gone")
    networks.remove("a")


def test_a_pool_that_keeps_a_network(say):
    networks.create("a")
    code, _, err = say("pool", "create", "pp", "--network", "a", "--size", "2", "host")
    assert code == 0, err
    try:
        assert refused("a") == ("2 sandboxes are on network a", "dockless pool rm pp")
    finally:
        say("pool", "rm", "pp")
    with dockless.Pool("host", size=1, network="a"):
        until(lambda: leases.living(Host(), "a"), "it waits")
        assert refused("a") == ("1 sandbox is on network a", "end the program that has a dockless.Pool on it")


def test_a_job_that_keeps_a_network():
    networks.create("a")
    box = start(id="job-40-1-x", network="a")
    box.inner.change(lambda known: replace(known, labels={"job": "40"}))
    assert refused("a") == ("1 sandbox is on network a", "dockless cancel 40")
    box.inner.change(lambda known: replace(known, labels={}))


def test_who_joins_nothing():
    networks.create("a", subnets="10.20.0.0/24")
    for options, why in (({"network": "host"}, "has the network host"), ({"profile": "untrusted"}, "is untrusted and has no network")):
        box = start(**options)
        with pytest.raises(Unsupported, match=why):
            networks.connect("a", box)
    box = start(id="web", network="a", publish="8080:80")
    other = start(network="container:web")
    with pytest.raises(Unsupported, match="has the network container:web"):
        networks.connect("a", other)
    with pytest.raises(BadInput, match="has published ports"):
        networks.disconnect("a", box)
    closed = start(network="a", allow_out=[])
    with pytest.raises(BadInput, match="has rules for what leaves it"):
        networks.disconnect("a", closed)
    with pytest.raises(UnknownNetwork):
        networks.connect("nosuch", box)
    for name in ("host", "none"):
        with pytest.raises(BadInput, match=f"{name} means") as caught:
            networks.connect(name, box)
        assert f"dockless run --network {name}" in caught.value.hint
    with pytest.raises(SandboxGone):
        networks.connect("a", "nobody")


def test_a_start_that_cannot_have_what_it_asks_for_leaves_nothing():
    networks.create("a", subnets="10.20.0.0/24")
    start(id="one", network="a:ip=10.20.0.5", publish="8080:80")
    for options in ({"network": "a:ip=10.20.0.5"}, {"network": "a", "publish": "8080:80"}):
        with pytest.raises(AddressTaken):
            start(id="two", **options)
    for options in ({"network": "a:ip=10.99.0.5"}, {"network": "a", "publish": "10.99.0.1:80:80"}):
        with pytest.raises(BadInput):
            start(id="two", **options)
    for loopback in ("[::1]:8090:80", "[0:0::0:1]:8090:80"):
        with pytest.raises(BadInput, match="not reached by") as caught:
            start(id="two", network="a", publish=loopback)
        assert "127.0.0.1:8090:80" in caught.value.hint
    with pytest.raises(UnknownNetwork):
        start(id="two", network="nosuch")
    assert [box.id for box in dockless.list()] == ["one"] and len(networks.get("a").sandboxes) == 1


def test_a_host_that_sends_nothing_on():
    with own_network(forward=False):
        Path("/proc/sys/net/ipv4/ip_forward").write_text("0")
        networks.create("out", subnets="10.20.0.0/24")
        networks.create("within", subnets="10.30.0.0/24", internal=True)
        with pytest.raises(NetworkError, match="ip_forward is 0") as caught:
            dockless.run(["true"], network="out")
        assert "sysctl -w net.ipv4.ip_forward=1" in caught.value.hint
        dockless.run(["true"], network="within", check=True)


@pytest.mark.parametrize("profile", ["default", "untrusted"])
def test_who_looks_into_one_has_its_network_and_names(profile):
    networks.create("a", subnets="10.20.0.0/24")
    box = start(id="web", network="a:ip=10.20.0.9", add_hosts={"db": "10.20.0.5"}, dns_search="lab.example", profile=profile)
    said = box.debug("host", "sh", "-c", "cat /etc/hosts /etc/resolv.conf /proc/net/fib_trie", text=True, timeout=20).stdout
    assert "10.20.0.5\tdb" in said and "search lab.example" in said and "10.20.0.9" in said
    assert len(networks.get("a").sandboxes) == 1, "it takes no address of its own"


def test_the_network_of_another():
    networks.create("a", subnets="10.20.0.0/24")
    start(id="web", network="a:ip=10.20.0.9")
    said = dockless.run(["cat", "/proc/net/fib_trie"], network="container:web", capture_output=True, text=True).stdout
    assert "10.20.0.9" in said and len(networks.get("a").sandboxes) == 1
    with pytest.raises(SandboxGone, match="no sandbox nobody"):
        dockless.run(["true"], network="container:nobody")


SERVE = """import socket, sys
server = socket.create_server(("", 80))
while True:
    server.accept()[0].sendall(b"hello")
"""
CALL = """import socket, sys
try:
    print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).recv(9).decode())
except OSError:
    print("refused")
"""


def test_a_published_port_leads_inside(say):
    code, _, err = say("run", "-dq", "--name", "web", "--network", "bridge", "-p", "127.0.0.1:8080:80", "--", PYTHON, "-c", SERVE)
    assert code == 0, err
    address, number = say("port", "web", "80")[1].strip().split(":")

    def answer():
        with contextlib.suppress(OSError), socket.create_connection((address, int(number)), 2) as opened:
            return opened.recv(9)

    until(lambda: answer() == b"hello", "the server answers by its published port")


@pytest.mark.parametrize(
    ("options", "reaches"),
    [
        ((), True), (("--profile", "untrusted"), False), (("--profile", "untrusted", "--allow-host"), True), (("--deny-host",), False),
        (("--deny-out",), False), (("--allow-out", "10.9.0.0/16:80"), False), (("--allow-out", "10.0.0.0/8"), False),
        (("--allow-out", "10.0.0.0/8", "--allow-host"), True), (("--allow-out", "10.9.0.0/16", "--allow-host"), False),
    ],
)  # fmt: skip
def test_who_reaches_the_host(say, options, reaches):
    gateway = networks.create("a", subnets="10.20.0.0/24").gateways[0]
    with socket.create_server(("", 7777)) as server, ThreadPoolExecutor(1) as pool:
        server.settimeout(20)
        answered = pool.submit(lambda: server.accept()[0].sendall(b"host"))
        code, out, err = say("run", "--network", "a", *options, "--", PYTHON, "-c", CALL, gateway, "7777")
        assert (code, out) == (0, "host\n" if reaches else "refused\n"), err
        if not reaches:
            socket.create_connection(("127.0.0.1", 7777)).close()
        answered.exception(20)


def test_without_root(monkeypatch):
    """Of a sandbox that is not on networks of hers."""
    networks.create("a", subnets="10.20.0.0/24")
    box = start(id="web", network="a")
    found = box.inner
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 1001)
        patched.setattr(sandbox_networks, "namespaces_of", _not_hers)
        for change in (lambda: sandbox_networks.connect(found, Endpoint("bridge")), lambda: sandbox_networks.disconnect(found, "a")):
            with pytest.raises(Unsupported, match="is on no network that its user made"):
                change()
    assert [one["name"] for one in box.inspect()["networks"]] == ["a"]


def _not_hers(box, opened):
    raise Unsupported("its init lets nobody but root look")


def test_awaited():
    async def story():
        await aio.networks.create("a", subnets="10.20.0.0/24", labels={"n": "1"})
        assert [one.name for one in await aio.networks.list(labels={"n": None})] == ["a"]
        await asyncio.to_thread(start, id="web")
        await aio.networks.connect("a", "web")
        assert [one.id for one in (await aio.networks.get("a")).sandboxes] == ["web"]
        await aio.networks.disconnect("a", "web")
        assert await aio.networks.prune() == ["a"]

    asyncio.run(story())


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".new", "none", "container", 3, None])
def test_what_cannot_be_a_name(name):
    for call in (networks.create, networks.get, networks.remove):
        with pytest.raises((BadInput, UnknownNetwork, NotPermitted)):
            call(name)
    assert networks.list() == []
