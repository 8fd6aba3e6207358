"""What is tried of pasta on a host of its own, as user 1001 there: see support/pasta.py. Each function is a case."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from support import pasta_far
from support.pasta_far import ask

import dockless
from dockless.base import idmaps
from dockless.errors import AddressTaken, BadInput, DocklessError, NetworkError, NetworkInUse, Unsupported
from dockless.sandbox.network import pasta, records
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import Network
from dockless.sandbox.spec import Mount

FAR4, FAR6, HOST4, HOST6 = "198.51.100.7", "2001:db8:9::7", "203.0.113.2", "2001:db8:1::2"
SCRIPT = "/far.py"
BIND = Mount("bind", SCRIPT, source=pasta_far.__file__, readonly=True)


def until(holds: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{holds} does not hold after {seconds} s"
        time.sleep(0.02)


def said(args: list[str], **options: object) -> str:
    """What a sandbox on the default network writes."""
    return dockless.run(args, network="bridge", capture_output=True, text=True, check=True, **options).stdout


def said_in(box: dockless.Sandbox, *args: str) -> str:
    return box.exec(*args, text=True).stdout


def inside(*questions: tuple[str, str, int], **options: object) -> list[str]:
    """What a sandbox is answered."""
    source = f"import sys; sys.path.insert(0, '/'); from far import ask\nfor q in {list(questions)!r}: print(ask(*q))"
    return said(["python3", "-c", source], mounts=[BIND], **options).splitlines()


@contextlib.contextmanager
def serving(*echoes: str, **options: object) -> Iterator[dockless.Sandbox]:
    """A sandbox that answers."""
    box = dockless.start(["python3", SCRIPT, *echoes], mounts=[BIND], network="bridge", **options)
    try:
        for echo in echoes:
            _, address, port = echo.split("/")
            until(lambda address=address, port=port: listens(box, address, int(port)))
        yield box
    finally:
        box.inner.remove()


def listens(box: dockless.Sandbox, address: str, port: int) -> bool:
    table = said_in(box, "cat", "/proc/net/tcp6" if ":" in address else "/proc/net/tcp")
    return f":{port:04X} " in table


def programs(word: str) -> list[int]:
    """Processes here whose command line has a word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if word.encode() in (entry / "cmdline").read_bytes().replace(b"\0", b" "):
                    found.append(int(entry.name))
    return found


def pastas() -> list[int]:
    return programs("/pasta --foreground")


def out_and_back() -> None:
    assert inside(("tcp", FAR4, 7000), ("udp", FAR4, 7000), ("tcp", FAR6, 7000), ("udp", FAR6, 7000)) == [
        f"tcp {HOST4}", f"udp {HOST4}", f"tcp {HOST6}", f"udp {HOST6}",
    ]  # fmt: skip
    echoes = ["echo/0.0.0.0/8000", "echo/0.0.0.0/8010", "echo/0.0.0.0/8011", "echo/::/8020"]
    published = [
        "5000:8000",
        "5000:8000/udp",
        "5010-5011:8010-8011",
        "5010-5011:8010-8011/udp",
        "5020:8020",
        "5020:8020/udp",
        "127.0.0.1:5030:8000",
    ]
    with serving(*echoes, publish=published):
        for port in (5000, 5010, 5011):
            for protocol in ("tcp", "udp"):
                for address in ("127.0.0.1", HOST4, "172.31.0.1"):
                    assert ask(protocol, address, port).startswith(protocol), (protocol, address, port)
                assert far_asks(protocol, HOST4, port).startswith(protocol), (protocol, port)
        for protocol in ("tcp", "udp"):
            for address in ("::1", HOST6):
                assert ask(protocol, address, 5020).startswith(protocol), (protocol, address)
            assert far_asks(protocol, HOST6, 5020).startswith(protocol)
        assert ask("tcp", "127.0.0.1", 5030).startswith("tcp")
        assert "error" in far_asks("tcp", HOST4, 5030), "published on the host's loopback alone"
        assert "error" in ask("udp", "127.0.0.1", 5030), "published for tcp alone"


def far_asks(protocol: str, address: str, port: int) -> str:
    with socket.create_connection((FAR4, 7100), 5) as far:
        far.sendall(f"{protocol} {address} {port}".encode())
        return far.recv(200).decode()


def host_is_closed() -> None:
    """The attack: what listens on the host's loopback is not for a sandbox, by whatever address."""
    gateway = pasta_gateway()
    for protocol in ("tcp", "udp"):
        until(lambda protocol=protocol: ask(protocol, "127.0.0.1", 9000).startswith(protocol))  # it does listen
        questions = [(protocol, address, 9000) for address in ("127.0.0.1", "::1", "0.0.0.0", gateway, "127.0.0.53")]
        answers = inside(*questions)
        assert all(answer.startswith("error") for answer in answers), list(zip(questions, answers, strict=True))


def pasta_gateway() -> str:
    return pasta_network().gateways[0]


def pasta_network() -> Network:
    return records.find_or_make("bridge", Host())


def untrusted_and_the_host() -> None:
    """Neither the host's own addresses nor those of a cloud's metadata, but the world."""
    link_local = link_local_of("up0")
    closed = [("tcp", address, 9000) for address in (HOST4, "172.31.0.1")] + [("tcp", "169.254.169.254", 80)]
    closed += [("tcp", HOST6, 9001), ("tcp", f"{link_local}%eth0", 9001), ("udp", f"{link_local}%eth0", 9001), ("tcp", "fd00:ec2::254", 80)]
    answers = inside(*closed, ("tcp", FAR4, 7000), ("tcp", FAR6, 7000), profile="untrusted")
    assert all(answer.startswith("error") for answer in answers[:-2]), list(zip(closed, answers, strict=False))
    assert answers[-2:] == [f"tcp {HOST4}", f"tcp {HOST6}"]


def link_local_of(link: str) -> str:
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        raw, *_, name = line.split()
        if name == link and raw.startswith("fe80"):
            return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(raw))
    raise AssertionError(f"{link} has no link-local address")


def written_by_hand() -> None:
    """Packets for 127.0.0.1 that are written to the link itself, which takes NET_RAW: refused, or dropped by pasta."""
    if not pasta.installed().drops_loopback:
        for right in ("NET_RAW", "NET_ADMIN"):
            with raises(Unsupported, f"{right}", "passt of August 2024"):
                dockless.run(["true"], network="bridge", cap_add=[right])
        return
    source = f"{_BY_HAND}\nprint(by_hand('127.0.0.1', 9000), by_hand('172.31.0.1', 9000))"
    found = said(["python3", "-c", source], cap_add=["NET_RAW"])
    assert found.split() == ["nothing", "udp"], "one for another address of the host is answered"


_BY_HAND = f"""
import socket, struct, time
def checksum(raw):
    total = sum(struct.unpack(f'!{{len(raw) // 2}}H', raw))
    total = (total >> 16) + (total & 0xffff)
    return ~(total + (total >> 16)) & 0xffff
def by_hand(to, port):
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    link.bind(('eth0', 0))
    link.settimeout(0.5)
    own = link.getsockname()[4]
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    probe.connect(({FAR4!r}, 9))
    here = socket.inet_aton(probe.getsockname()[0])
    datagram = struct.pack('!HHHH', 40002, port, 13, 0) + b'hello'
    head = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 20 + len(datagram), 1, 0, 64, 17, 0, here, socket.inet_aton(to))
    head = head[:10] + struct.pack('!H', checksum(head)) + head[12:]
    link.send(b'\\xff' * 6 + own + b'\\x08\\x00' + head + datagram)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        try:
            frame = link.recv(2000)
        except TimeoutError:
            break
        if frame[:6] == own and frame[12:14] == b'\\x08\\x00' and frame[23] == 17:
            return 'udp'
    return 'nothing'
"""


def not_traced() -> None:
    """A sandbox that sees the host's processes sees pasta, and reads nothing of it."""
    source = """
import os, pathlib
for pid in filter(str.isdecimal, os.listdir('/processes')):
    place = pathlib.Path('/processes', pid)
    if place.joinpath('cmdline').read_bytes().startswith(b'/usr/bin/pasta\\0'):
        for reading in (
            lambda: place.joinpath('environ').read_bytes(), lambda: place.joinpath('maps').read_bytes(),
            lambda: os.open(place / 'fd/0', os.O_RDONLY), lambda: os.stat(place / 'root' / 'etc'),
            lambda: os.open(place / 'ns/net', os.O_RDONLY), lambda: os.open(place / 'mem', os.O_RDWR),
        ):
            try:
                print('read', reading())
            except PermissionError:
                print('refused')
"""
    processes = Mount("bind", "/processes", source="/proc")
    found = said(["python3", "-c", source], mounts=[processes])
    assert found.split() == ["refused"] * 6, found  # by ptrace(2), too: all of these ask for its right
    with raises(Unsupported, "SYS_PTRACE", "drop SYS_PTRACE"):
        said(["true"], mounts=[processes], cap_add=["SYS_PTRACE"])


def names() -> None:
    """The host asks on its own loopback, 127.0.0.53: a sandbox asks its gateway, and pasta that one."""
    found = said(["cat", "/etc/resolv.conf"])
    gateway = pasta_gateway()
    assert found == f"nameserver {gateway}\n"
    assert inside(("udp", gateway, 53)) == ["udp 127.0.0.1"]
    assert said(["cat", "/etc/resolv.conf"], dns=["9.9.9.9"]) == "nameserver 9.9.9.9\n"


def only_allowed() -> None:
    answers = inside(
        ("tcp", FAR4, 7000), ("tcp", FAR6, 7000), ("tcp", "203.0.113.1", 7000), ("tcp", HOST4, 9000), allow_out=["198.51.100.0/24"]
    )
    assert answers[0] == f"tcp {HOST4}"
    assert all(answer.startswith("error") for answer in answers[1:]), answers
    for refused in ("pypi.org", "198.51.100.0/24:443"):
        with raises(Unsupported, "without root", ""):
            dockless.run(["true"], network="bridge", allow_out=[refused])
    with raises(Unsupported, "NET_ADMIN", "drop"):
        dockless.run(["true"], network="bridge", allow_out=["198.51.100.0/24"], cap_add=["NET_ADMIN"])


def chosen() -> None:
    """An address and a MAC of its own choice."""
    place = pasta_network()
    own = place.gateways[0].rpartition(".")[0] + ".77"
    words = ["sh", "-c", "cat /sys/class/net/eth0/address /proc/net/fib_trie"]
    options = {"network": f"bridge:ip={own},mac=02:00:00:00:00:77", "capture_output": True, "text": True, "check": True}
    found = dockless.run(words, **options).stdout
    assert found.startswith("02:00:00:00:00:77\n") and f"-- {own}\n" in found
    source = f"import sys; sys.path.insert(0, '/'); from far import ask; print(ask('tcp', {FAR4!r}, 7000), ask('udp', {FAR6!r}, 7000))"
    assert dockless.run(["python3", "-c", source], mounts=[BIND], **options).stdout == f"tcp {HOST4} udp {HOST6}\n"
    with raises(BadInput, "on network bridge", "its subnets are"):
        dockless.run(["true"], network="bridge:ip=192.0.2.7")


def for_root() -> None:
    """What a user cannot have is told, with the next step; her record of the default network she can remove."""
    box = dockless.start(["sleep", "1000"], network="bridge", publish=["8080:80"])
    try:
        (there,) = dockless.networks.get("bridge").sandboxes
        assert there.id == box.id and there.ports == box.inner.spec.ports and there.addresses[0].startswith("10.")
        with raises(NetworkInUse, "1 sandbox is on network bridge", f"dockless stop {box.id}"):
            dockless.networks.remove("bridge")
        assert dockless.networks.prune() == []
        with raises(BadInput, "has published ports, and would be on no network", "connect it to another network"):
            dockless.networks.disconnect("bridge", box.id)
    finally:
        box.inner.remove()
    box = dockless.start(["sleep", "1000"], network="bridge")
    try:
        with raises(Unsupported, "is on no network that its user made", f"dockless stop {box.id}"):
            dockless.networks.disconnect("bridge", box.id)
        with raises(Unsupported, f"the network of sandbox {box.id} cannot be entered", "dockless exec"):
            dockless.run(["true"], network=f"container:{box.id}")
    finally:
        box.inner.remove()
    dockless.networks.remove("bridge")
    assert not records.every()


def host_gateway() -> None:
    found = said(["cat", "/etc/hosts"], add_hosts=["up:host-gateway"])
    assert f"{HOST4}\tup" in found


def refusals() -> None:
    with serving("echo/0.0.0.0/8000", publish=["5000:8000", "5001:8000/udp"]):
        for taken in ("5000:80", "5001:80/udp", "127.0.0.1:5000:80", "4999-5002:80-83"):
            with raises(AddressTaken, "of the host is in use", "publish another"):
                dockless.run(["true"], network="bridge", publish=[taken])
    for _ in range(5):
        with serving("echo/0.0.0.0/8000", publish=["5000:8000"]) as box:
            assert ask("tcp", "127.0.0.1", 5000).startswith("tcp"), "at once again, although its connections are still known"
            box.restart(grace=0)
            until(lambda: ask("tcp", "127.0.0.1", 5000).startswith("tcp"))
    with raises(NetworkError, "port 80/tcp of the host cannot be opened", "1024"):
        dockless.run(["true"], network="bridge", publish=["80:80"])
    with raises(BadInput, "9.9.9.9 is no address of this host", ""):
        dockless.run(["true"], network="bridge", publish=["9.9.9.9:8080:80"])
    until(lambda: not pastas())
    until(lambda: not programs("dockless pasta of"))


def missing() -> None:
    idmaps.find_program = FIND_PROGRAM
    idmaps._TOOL_PLACES = ("/nowhere",)
    with raises(Unsupported, "pasta, which is not installed", "apt install passt"):
        dockless.run(["true"], network="bridge")
    assert dockless.run(["true"], network="none").returncode == 0, "who wants no network needs no pasta"


def no_tun() -> None:
    pasta._TUN = "/dev/nowhere"
    with raises(Unsupported, "/dev/nowhere, which this user cannot open", "modprobe tun"):
        dockless.run(["true"], network="bridge")


def ends_with_its_sandbox() -> None:
    for end in (lambda box: box.stop(grace=0), lambda box: os.kill(keeper_of(box), signal.SIGKILL)):
        box = dockless.start(["sleep", "1000"], network="bridge")
        until(lambda: len(pastas()) == 1)
        end(box)
        until(lambda: not pastas())
        until(lambda: not programs("dockless pasta of"))
        box.inner.remove()
    dockless.run(["true"], network="none")
    with dockless.start(["true"], network="bridge") as box:
        box.wait()
    until(lambda: len(zombies()) <= 1)  # the last one's, until the next start


def zombies() -> list[str]:
    """Children of ours that have ended and that nobody has waited for."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            found += [str(stat)] if state == "Z" and int(parent) == os.getpid() else []
    return found


def keeper_of(box: dockless.Sandbox) -> int:
    return next(pid for pid in programs(f"dockless {box.id}") if Path(f"/proc/{pid}/stat").read_text().split()[3] == str(os.getpid()))


def ends_with_its_starter() -> None:
    starter = another("wait_for_one")
    until(pastas)
    starter.kill()
    starter.wait()
    until(lambda: not pastas())


def another(case: str) -> subprocess.Popen[str]:
    """A process that starts a sandbox here."""
    return subprocess.Popen([sys.executable, "-m", "support.pasta_cases", case], stdout=subprocess.PIPE, text=True)


def wait_for_one() -> None:
    dockless.run(["sleep", "1000"], network="bridge")


def leave_one() -> None:
    print(dockless.start(["sleep", "1000"], network="bridge", mounts=[BIND]).id)


def ends_with_its_own_keeper() -> None:
    """The sandbox goes on, without a network."""
    box = dockless.start(["sleep", "1000"], network="bridge")
    until(pastas)
    for pid in programs("dockless pasta of"):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not pastas())
    assert said_in(box, "echo", "on") == "on\n"
    box.inner.remove()


def outlives_its_starter() -> None:
    """A detached sandbox has its network when whoever started it is gone."""
    name = another("leave_one").communicate(timeout=30)[0].strip()
    box = dockless.Sandbox.open(name)
    asking = f"import sys; sys.path.insert(0, '/'); from far import ask; print(ask('tcp', {FAR4!r}, 7000))"
    assert said_in(box, "python3", "-c", asking) == f"tcp {HOST4}\n"
    assert len(pastas()) == 1
    box.inner.remove()
    until(lambda: not pastas())


def holds_nothing_of_its_starter() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    box = dockless.start(["sleep", "1000"], network="bridge")
    before = set(os.listdir("/proc/self/fd"))
    again = dockless.start(["sleep", "1000"], network="bridge")
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 3, "the starter keeps nothing of pasta's"
    os.close(writer)
    os.set_blocking(reader, False)
    assert os.read(reader, 1) == b"", "nobody else has the other end"
    for one in (box, again):
        one.inner.remove()


def no_network() -> None:
    """A host that has none: the sandbox has its loopback, and nothing can be published."""
    found = said(["cat", "/proc/net/dev"])
    assert "lo:" in found and "eth0" not in found
    with raises(NetworkError, "publishes no ports", "publish nothing"):
        dockless.run(["true"], network="bridge", publish=["5000:80"])


@contextlib.contextmanager
def raises(kind: type[DocklessError], message: str, hint: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert message in str(error) and hint in (error.hint or ""), (str(error), error.hint)
    else:
        raise AssertionError(f"no {kind.__name__}")


FIND_PROGRAM = idmaps.find_program

if __name__ == "__main__":
    assert os.geteuid() == 1001
    idmaps.find_program = "/usr/bin/{}".format  # root has no number in this user namespace, so nothing belongs to it
    globals()[sys.argv[1]]()
