"""What is tried of an ordinary user's own networks on a host of its own, as user 1001 there: see support/pasta.py. Each function is a
case."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from support.pasta_cases import (
    BIND,
    FAR4,
    FAR6,
    HOST4,
    HOST6,
    SCRIPT,
    far_asks,
    keeper_of,
    pastas,
    programs,
    raises,
    said_in,
    until,
)  # fmt: skip
from support.pasta_far import PUBLIC, ask

import dockless
from dockless import networks
from dockless.base import idmaps
from dockless.cli import main
from dockless.errors import AddressTaken, BadInput, NetworkInUse, Unsupported
from dockless.sandbox.spec import Mount

HOLDER, RESOLVER = "own_host import main", "resolver import main"


@contextlib.contextmanager
def box(id: str, network: object, *echoes: str, **options: object) -> Iterator[dockless.Sandbox]:
    """A sandbox that answers, and from which one can ask."""
    made = dockless.start(["python3", SCRIPT, *echoes] if echoes else ["sleep", "1000"], id=id, network=network, mounts=[BIND], **options)
    try:
        for echo in echoes:
            until(lambda echo=echo: f":{int(echo.split('/')[2]):04X} " in said_in(made, "sh", "-c", "cat /proc/net/tcp /proc/net/tcp6"))
        yield made
    finally:
        made.inner.remove()


def asks(one: dockless.Sandbox, protocol: str, address: str, port: int) -> str:
    source = f"import sys; sys.path.insert(0, '/'); from far import ask; print(ask({protocol!r}, {address!r}, {port}))"
    return said_in(one, "python3", "-c", source).strip()


def names_of(one: dockless.Sandbox, name: str) -> list[str]:
    return sorted({line.split()[0] for line in said_in(one, "getent", "ahosts", name).splitlines()})


def nothing_is_left() -> None:
    until(lambda: not pastas() and not programs(HOLDER) and not programs(RESOLVER))


def two_meet() -> None:
    networks.create("lab")
    with box("one", "lab") as one, box("two", "lab:alias=db", "echo/0.0.0.0/8000", "echo/::/8001") as two:
        addresses = names_of(one, "db")
        assert len(addresses) == 2 and addresses == names_of(one, "two") == names_of(one, "two.lab")
        assert len(names_of(two, "one")) == 2
        own4, own6 = networks.get("lab").sandboxes[0].addresses
        for name in ("db", "two"):
            assert asks(one, "tcp", name, 8000) == f"tcp {own4}", asks(one, "tcp", name, 8000)
        four, six = sorted(addresses, key=lambda text: ":" in text)
        assert asks(one, "tcp", four, 8000) == f"tcp {own4}" and asks(one, "udp", four, 8000) == f"udp {own4}"
        assert asks(one, "tcp", six, 8001) == f"tcp {own6}"
        assert asks(one, "tcp", FAR4, 7000) == f"tcp {HOST4}" and asks(one, "tcp", FAR6, 7000) == f"tcp {HOST6}"
        assert asks(one, "udp", FAR4, 7000) == f"udp {HOST4}"
        assert [len(pastas()), len(programs(HOLDER)), len(programs(RESOLVER))] == [1, 1, 1]
    nothing_is_left()


def first4(name: str, id: str) -> str:
    """The IPv4 address of a sandbox on a network."""
    return next(one.addresses[0] for one in networks.get(name).sandboxes if one.id == id)


def ends_with_its_sandboxes() -> None:
    """However they end: stopped, or their keepers killed."""
    networks.create("lab")
    for end in (lambda made: made.stop(grace=0), lambda made: os.kill(keeper_of(made), signal.SIGKILL)):
        made = [dockless.start(["sleep", "1000"], network="lab") for _ in range(2)]
        assert len(pastas()) == 1 and len(networks.get("lab").sandboxes) == 2
        end(made[0])
        until(lambda: len(networks.get("lab").sandboxes) == 1)
        assert len(pastas()) == 1
        end(made[1])
        nothing_is_left()
        until(lambda: not networks.get("lab").sandboxes)
        for one in made:
            one.inner.remove()
    networks.remove("lab")
    assert not os.path.exists(f"{os.environ['DOCKLESS_HOME']}/networks/lab")


def the_starter_is_killed() -> None:
    """At any moment: nothing stays, and the next start has a network."""
    networks.create("lab")
    for step in range(12):
        starter = subprocess.Popen([sys.executable, "-m", "support.own_networks_cases", "run_one"], stdout=subprocess.DEVNULL)
        time.sleep(0.1 + 0.08 * step)
        starter.kill()
        starter.wait()
        nothing_is_left()
    with box("one", "lab") as one, box("two", "lab", "echo/0.0.0.0/8000"):
        assert asks(one, "tcp", "two", 8000).startswith("tcp") and asks(one, "tcp", FAR4, 7000) == f"tcp {HOST4}"
        assert {one.id for one in networks.get("lab").sandboxes} == {"one", "two"}
    nothing_is_left()


def run_one() -> None:
    dockless.run(["sleep", "1000"], network="lab")


def the_holder_is_killed() -> None:
    """What it held ends, sandboxes go on without a network, and the next start has one, at once."""
    networks.create("lab")
    with box("one", "lab") as one:
        (holder,) = programs(HOLDER)
        os.kill(holder, signal.SIGKILL)
        with box("two", "lab") as two, box("three", "lab", "echo/0.0.0.0/8000"):
            assert asks(two, "tcp", "three", 8000) == f"tcp {first4('lab', 'two')}"
            assert asks(two, "tcp", FAR4, 7000) == f"tcp {HOST4}"
            assert said_in(one, "echo", "on") == "on\n" and asks(one, "tcp", "three", 8000).startswith("error")
            assert [len(pastas()), len(programs(HOLDER)), len(programs(RESOLVER))] == [1, 1, 1]
    nothing_is_left()


def a_pasta_is_killed() -> None:
    """Sandboxes reach one another still, and the world from the next start on."""
    networks.create("lab")
    with box("one", "lab") as one, box("two", "lab", "echo/0.0.0.0/8000"):
        for pid in programs("dockless pasta of"):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not pastas())
        assert asks(one, "tcp", "two", 8000).startswith("tcp")
        with box("three", "lab") as three:
            for each in (one, three):
                assert asks(each, "tcp", FAR4, 7000) == f"tcp {HOST4}"
    nothing_is_left()


def a_resolver_is_killed() -> None:
    networks.create("lab")
    with box("one", "lab") as one, box("two", "lab"):
        (pid,) = programs(RESOLVER)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not programs(RESOLVER))
        with box("three", "lab"):
            assert names_of(one, "two") and names_of(one, "three")
    nothing_is_left()


def apart() -> None:
    """Between networks nothing passes; an internal one leads nowhere; on an isolated one, and on ``bridge``, nobody reaches another."""
    for name in ("lab", "other"):
        networks.create(name)
    networks.create("inner", internal=True)
    networks.create("alone", isolated=True)
    with contextlib.ExitStack() as all_of:
        boxes = {
            (name, number): all_of.enter_context(box(f"{name}{number}", name, "echo/0.0.0.0/8000"))
            for name in ("lab", "other", "inner", "alone")
            for number in (1, 2)
        }
        at = {key: first4(key[0], one.id) for key, one in boxes.items()}
        for (name, number), one in boxes.items():
            for (other, its), address in at.items():
                reached = asks(one, "tcp", address, 8000)
                met = (name, number) == (other, its) or (name == other and name != "alone")
                assert reached.startswith("tcp" if met else "error"), (name, number, other, its, reached)
            assert asks(one, "tcp", FAR4, 7000).startswith("error" if name == "inner" else "tcp"), name
        assert names_of_none(boxes["lab", 1], "other1")
    nothing_is_left()


def names_of_none(one: dockless.Sandbox, name: str) -> bool:
    return said_in(one, "sh", "-c", f"getent hosts {name} || echo none") == "none\n"


def addresses() -> None:
    """Chosen ones, and conflicts."""
    networks.create("lab", subnets=["10.20.0.0/24", "fd20::/64"])
    with box("one", "lab:ip=10.20.0.9,ip6=fd20::9,mac=02:00:00:00:00:77") as one:
        assert "10.20.0.9/24" in said_in(one, "ip", "address") and "fd20::9/64" in said_in(one, "ip", "address")
        assert "02:00:00:00:00:77" in said_in(one, "ip", "link")
        with raises(AddressTaken, "10.20.0.9 is taken", "choose another"):
            dockless.run(["true"], network="lab:ip=10.20.0.9")
        with raises(NetworkInUse, "1 sandbox is on network lab", "dockless stop one"):
            networks.remove("lab")
    nothing_is_left()
    networks.remove("lab")


def ports() -> None:
    """A sandbox that publishes ports has a pasta of its own beside its networks."""
    networks.create("lab")
    published = ["5000:8000", "5000:8000/udp", "127.0.0.1:5030:8000", "5020:8020"]
    with box("web", "lab", "echo/0.0.0.0/8000", "echo/::/8020", publish=published) as web, box("one", "lab") as one:
        for protocol in ("tcp", "udp"):
            for address in ("127.0.0.1", HOST4):
                assert ask(protocol, address, 5000).startswith(protocol), (protocol, address)
            assert far_asks(protocol, HOST4, 5000).startswith(protocol)
        assert ask("tcp", HOST6, 5020).startswith("tcp") and ask("tcp", "127.0.0.1", 5030).startswith("tcp")
        assert "error" in far_asks("tcp", HOST4, 5030)
        with contextlib.redirect_stdout(io.StringIO()) as told:
            assert main(["port", "web", "8020"]) == 0
        assert told.getvalue() == "0.0.0.0:5020\n[::]:5020\n"
        assert asks(one, "tcp", "web", 8000) == f"tcp {first4('lab', 'one')}"
        assert asks(web, "tcp", FAR4, 7000) == f"tcp {HOST4}" and asks(web, "tcp", FAR6, 7000) == f"tcp {HOST6}"
        with raises(AddressTaken, "port 5000/tcp of the host is in use", "publish another"):
            dockless.run(["true"], network="lab", publish=["5000:80"])
    nothing_is_left()
    networks.create("inner", internal=True)
    with raises(BadInput, "nothing leads into it", "publish nothing"):
        dockless.run(["true"], network="inner", publish=["5000:80"])


def rules() -> None:
    """The table of her namespace holds what pasta alone cannot: ports, and the host's own addresses beside a way out."""
    networks.create("lab")
    with box("one", "lab", allow_out=[f"{FAR4}:7000/tcp", "172.31.0.1"]) as one:
        assert asks(one, "tcp", FAR4, 7000) == f"tcp {HOST4}"
        assert asks(one, "udp", FAR4, 7000).startswith("error") and asks(one, "tcp", FAR6, 7000).startswith("error")
        assert asks(one, "tcp", "172.31.0.1", 9000).startswith("error"), "an address of the host"
    for options, reached in (({}, True), ({"profile": "untrusted"}, False), ({"profile": "untrusted", "allow_host": True}, True)):
        with box("one", "lab", **options) as one:
            for address in (HOST4, "172.31.0.1"):
                assert asks(one, "tcp", address, 9000).startswith("tcp" if reached else "error"), (options, address)
            assert asks(one, "tcp", FAR4, 7000) == f"tcp {HOST4}"
    with box("one", "lab", allow_out=[]) as one, box("two", "lab", "echo/0.0.0.0/8000"):
        assert asks(one, "tcp", FAR4, 7000).startswith("error") and asks(one, "tcp", "two", 8000).startswith("tcp")
    with raises(Unsupported, "does not log", "as root"):
        dockless.run(["true"], network="lab", log_denied=True)
    nothing_is_left()


def rules_by_name() -> None:
    """The resolver, which runs on the host, opens the table of her namespace for the addresses of a name; a rate holds as well."""
    networks.create("lab")
    with box("one", "lab", allow_out=["far.example:7000/tcp"], net_rate="1M") as one, box("two", "lab"):
        assert asks(one, "tcp", PUBLIC, 7000).startswith("error"), "nobody has asked for the name"
        assert names_of(one, "two") and names_of_none(one, "other.example")
        assert asks(one, "tcp", "far.example", 7000) == f"tcp {HOST4}"
        assert asks(one, "udp", PUBLIC, 7000).startswith("error") and asks(one, "tcp", FAR4, 7000).startswith("error")
        said = one.exec("tc", "qdisc", text=True)
        assert "tbf" in said.stdout, (said.stdout, said.stderr)
    nothing_is_left()


def joins_and_leaves() -> None:
    """While it runs."""
    for name in ("lab", "other"):
        networks.create(name)
    with box("one", "lab") as one, box("two", "other", "echo/0.0.0.0/8000"), box("apart", "bridge"):
        assert asks(one, "tcp", first4("other", "two"), 8000).startswith("error")
        networks.connect("other", "one", aliases=["uno"])
        assert asks(one, "tcp", "two", 8000) == f"tcp {first4('other', 'one')}"
        networks.disconnect("lab", "one")
        assert [one.id for one in networks.get("lab").sandboxes] == []
        assert asks(one, "tcp", FAR4, 7000) == f"tcp {HOST4}", "the other one leads out, too"
        with raises(Unsupported, "apart runs, and is on no network that its user made", "dockless stop apart"):
            networks.connect("lab", "apart")
    nothing_is_left()


def of_another() -> None:
    networks.create("lab")
    with box("one", "lab", "echo/127.0.0.1/8000") as one, box("two", "container:one") as two, box("three", "container:two") as three:
        for each in (two, three):
            assert asks(each, "tcp", "127.0.0.1", 8000) == "tcp 127.0.0.1" and asks(each, "tcp", FAR4, 7000) == f"tcp {HOST4}"
        one.stop(grace=0)
        assert asks(two, "tcp", FAR4, 7000) == f"tcp {HOST4}", "it stays while somebody has it"
    nothing_is_left()
    with box("one", "bridge"), raises(Unsupported, "the network of sandbox one cannot be entered", "network create"):
        dockless.run(["true"], network="container:one")


def host_is_closed() -> None:
    """The attack: what listens on the host's loopback is not for a sandbox, by whatever address, and whatever it writes to its link."""
    networks.create("lab")
    gateway4, gateway6 = networks.get("lab").gateways
    with box("one", "lab", cap_add=["NET_ADMIN", "NET_RAW"]) as one:
        for address in ("127.0.0.1", "::1", gateway4, gateway6, "192.0.0.1", "192.0.0.2", "127.0.0.53"):
            assert asks(one, "tcp", address, 9000).startswith("error"), address
        said_in(
            one,
            "sh",
            "-c",
            f"ip route add 172.31.0.0/24 via {gateway4}; ip route del local 127.0.0.0/8 table local; ip addr del 127.0.0.1/8 dev lo",
        )
        said_in(one, "ip", "route", "add", "127.0.0.0/8", "via", gateway4, "dev", "eth0")
        assert asks(one, "tcp", "127.0.0.1", 9000).startswith("error")


def another_sandbox_of_hers() -> None:
    """The attack: one with all rights inside, and a view of the host's processes, has none over the namespace of the bridges: it neither
    enters it nor reads anything of the processes that hold it."""
    networks.create("lab")
    processes = Mount("bind", "/processes", source="/proc")
    made = dockless.start(["sleep", "1000"], id="one", network="lab", cap_add=["ALL"], seccomp="unconfined", mounts=[processes])
    victims = [*programs(HOLDER), *programs(RESOLVER), *pastas(), *programs("dockless pasta of")]
    assert len(victims) >= 4
    done = made.exec("python3", "-c", ATTACK % victims, text=True)
    assert done.stdout == "none\n", (done.stdout, done.stderr)
    made.inner.remove()


ATTACK = """
import fcntl, os
found = []
def tried(what, call):
    try:
        found.append((what, call()))
    except (PermissionError, FileNotFoundError):  # or it has no such descriptor
        pass
for pid in %r:
    assert os.path.exists(f"/processes/{pid}/cmdline")
    for name in ("ns/net", "ns/user", "mem", "maps", "environ", "fd/0"):
        tried(name, lambda: os.open(f"/processes/{pid}/{name}", os.O_RDONLY))
for name in ("user", "net"):
    own = os.open(f"/proc/self/ns/{name}", os.O_RDONLY)
    if name == "user":
        tried("its parent", lambda: fcntl.ioctl(own, 0xB702))
    else:
        owner = fcntl.ioctl(own, 0xB701)
        assert os.fstat(owner).st_ino == os.stat("/proc/self/ns/user").st_ino, "its network namespace is its own"
print(found or "none")
"""


def addresses_of_others() -> None:
    """The attack: one with all rights inside takes a neighbour's address, and says by ARP that it is his. The table lets neither pass."""
    networks.create("lab")
    with (
        box("one", "lab", cap_add=["NET_ADMIN", "NET_RAW"]) as one,
        box("two", "lab", "echo/0.0.0.0/8000"),
        box("three", "lab") as three,
    ):
        theirs, gateway = first4("lab", "two"), networks.get("lab").gateways[0]
        assert asks(one, "tcp", "two", 8000).startswith("tcp")
        for address in (theirs, gateway):
            said_in(one, "ip", "address", "add", f"{address}/32", "dev", "eth0")
        source = f"""
import socket
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0806) as s:
    s.bind(("eth0", 0x0806))
    own = s.getsockname()[4]
    for taken in {[theirs, gateway]!r}:
        body = bytes.fromhex("0001080006040002") + own + socket.inet_aton(taken) + b"\\xff" * 6 + socket.inet_aton(taken)
        s.send(b"\\xff" * 6 + own + b"\\x08\\x06" + body)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.bind(({theirs!r}, 0))
    s.sendto(b"x", ({first4("lab", "three")!r}, 9))
"""
        said_in(one, "python3", "-c", source)
        assert asks(three, "tcp", "two", 8000) == f"tcp {first4('lab', 'three')}", "and not the liar"
        assert asks(three, "tcp", FAR4, 7000) == f"tcp {HOST4}"


def images_and_ids() -> None:
    """A sandbox in a user namespace below another one is like any other: files, exec, users, a foreground run."""
    networks.create("inner", internal=True)
    script = "id -u; cat /proc/self/uid_map; touch /tmp/x; stat -c %u /tmp/x; hostname -I | wc -w"
    said = dockless.run(["sh", "-c", script], network="inner", capture_output=True, text=True, check=True).stdout
    assert said.split() == ["0", "0", "1001", "1", "0", "2"], said
    with box("one", "inner") as one:
        one.stop(grace=0)
        one.start()
        assert said_in(one, "id", "-u") == "0\n" and len(networks.get("inner").sandboxes) == 1
    nothing_is_left()


def no_pasta() -> None:
    """An internal network needs none; any other one says which package is missing."""
    networks.create("inner", internal=True)
    networks.create("lab")
    idmaps.find_program = lambda name: None
    with box("one", "inner") as one:
        assert asks(one, "tcp", FAR4, 7000).startswith("error")
        for options in ({"network": "lab"}, {"network": "lab", "publish": ["5000:80"]}):
            with raises(Unsupported, "pasta, which is not installed", "apt install passt"):
                dockless.run(["true"], **options)


def no_network() -> None:
    """A host without a network: sandboxes meet."""
    networks.create("lab")
    with box("one", "lab") as one, box("two", "lab", "echo/0.0.0.0/8000"):
        assert asks(one, "tcp", "two", 8000) == f"tcp {first4('lab', 'one')}"
        assert not pastas()
    nothing_is_left()


if __name__ == "__main__":
    assert os.geteuid() == 1001
    idmaps.find_program = "/usr/bin/{}".format  # as in pasta_cases
    globals()[sys.argv[1]]()
