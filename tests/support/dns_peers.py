"""Others that speak DNS: who asks, and a name server of the host. They have code of their own, so that no mistake of ours hides itself."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dockless.base import records
from dockless.native.netns import NetworkNamespace
from dockless.sandbox.network import netlink, rtnetlink
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import Egress, Lease, Network

A, CNAME, PTR, MX, TXT, AAAA, HTTPS, ANY, AXFR = 1, 5, 12, 15, 16, 28, 65, 255, 252
GATEWAYS = ("10.77.0.1", "fd77::1")


def encoded(name: str) -> bytes:
    labels = [label.encode("latin-1") for label in name.rstrip(".").split(".")] if name.rstrip(".") else []
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def question(name: str, kind: int = A, *, number: int = 0x1234, room: int = 0, flags: int = 0x0100, group: int = 1) -> bytes:
    """``room``: bytes that EDNS says, 0 for none of it."""
    extension = struct.pack("!BHHIH", 0, 41, room, 0, 0) if room else b""
    return struct.pack("!6H", number, flags, 1, 0, 0, int(bool(room))) + encoded(name) + struct.pack("!HH", kind, group) + extension


@dataclass
class Said:
    number: int
    code: int
    cut: bool
    own: bool
    records: list[tuple[str, int, int, str]]
    """Name, type, seconds, and the data as text."""

    @property
    def texts(self) -> list[str]:
        return [text for *_, text in self.records]


def _name(raw: bytes, at: int) -> tuple[str, int]:
    labels, behind = [], None
    for _ in range(200):
        size = raw[at]
        if size >= 0xC0:
            behind = behind or at + 2
            at = (size & 0x3F) << 8 | raw[at + 1]
        elif size:
            labels.append(raw[at + 1 : at + 1 + size].decode("latin-1"))
            at += 1 + size
        else:
            return ".".join(labels), behind or at + 1
    raise AssertionError("a name goes round")


def parsed(raw: bytes) -> Said:
    number, flags, questions, answers, _, _ = struct.unpack_from("!6H", raw)
    at = 12
    for _ in range(questions):
        at = _name(raw, at)[1] + 4
    found = []
    for _ in range(answers):
        name, at = _name(raw, at)
        kind, _, seconds, length = struct.unpack_from("!HHIH", raw, at)
        at += 10
        data = raw[at : at + length]
        text = data.hex()
        if kind in (A, AAAA):
            text = str(ipaddress.ip_address(data))
        elif kind in (CNAME, PTR):
            text = _name(raw, at)[0]
        elif kind == MX:
            text = _name(raw, at + 2)[0]
        found.append((name, kind, seconds, text))
        at += length
    assert at <= len(raw)
    return Said(number, flags & 15, bool(flags & 0x200), bool(flags & 0x400), found)


@dataclass
class Upstream:
    """A server of everybody's names, on a port of loopback. ``records``: for a name and a type, (owner, type, seconds, data) each."""

    address: str = "127.0.0.1"
    port: int = 0
    records: dict[tuple[str, int], list[tuple[str, int, int, bytes]]] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[str, int, str]] = field(default_factory=list)
    raw: Callable[[bytes], list[bytes]] | None = None
    """Instead of all that: what is sent back for a message."""
    room: int = 65535
    """Bytes of an answer by UDP, beyond which it is empty and marked as cut."""

    def has(self, name: str, *texts: str, seconds: int = 300, owner: str = "") -> None:
        for text in texts:
            address = ipaddress.ip_address(text)
            kind = A if address.version == 4 else AAAA
            self.records.setdefault((name, kind), []).append((owner or name, kind, seconds, address.packed))

    def alias(self, name: str, of: str, *texts: str, seconds: int = 300) -> None:
        for kind in (A, AAAA):
            self.records.setdefault((name, kind), []).append((name, CNAME, seconds, encoded(of)))
        self.has(name, *texts, owner=of)

    def answer(self, raw: bytes, how: str) -> list[bytes]:
        name, at = _name(raw, 12)
        kind = struct.unpack_from("!H", raw, at)[0]
        self.asked.append((name, kind, how))
        if self.raw is not None:
            return self.raw(raw)
        known = [key for key in self.records if key[0] == name.lower()]
        code = self.codes.get(name.lower(), 0 if known else 3)
        found = self.records.get((name.lower(), kind), [])
        body = b"".join(
            encoded(owner) + struct.pack("!HHIH", kind, 1, seconds, len(data)) + data for owner, kind, seconds, data in found
        )  # fmt: skip
        end = at + 4
        if how == "udp" and end + len(body) > self.room:
            return [raw[:2] + struct.pack("!5H", 0x8380, 1, 0, 0, 0) + raw[12:end]]
        return [raw[:2] + struct.pack("!5H", 0x8180 | code, 1, len(found), 0, 0) + raw[12:end] + body]

    @contextlib.contextmanager
    def running(self) -> Iterator[Upstream]:
        datagrams, listening = socket.socket(type=socket.SOCK_DGRAM), socket.socket()
        with datagrams, listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self.address, self.port))
            self.port = listening.getsockname()[1]
            datagrams.bind((self.address, self.port))
            listening.listen()
            threads = [
                threading.Thread(target=each, args=(one,), daemon=True) for each, one in ((self._udp, datagrams), (self._tcp, listening))
            ]
            for thread in threads:
                thread.start()
            try:
                yield self
            finally:
                with socket.socket(type=socket.SOCK_DGRAM) as end, socket.socket() as last:
                    end.sendto(b"", (self.address, self.port))
                    last.connect((self.address, self.port))
                for thread in threads:
                    thread.join()

    def _udp(self, opened: socket.socket) -> None:
        while True:
            raw, address = opened.recvfrom(65535)
            if not raw:
                return
            for answer in self.answer(raw, "udp"):
                opened.sendto(answer, address)

    def _tcp(self, listening: socket.socket) -> None:
        while True:
            opened, _ = listening.accept()
            with opened, contextlib.suppress(OSError):
                length = opened.recv(2, socket.MSG_WAITALL)
                if not length:
                    return
                for answer in self.answer(opened.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL), "tcp"):
                    opened.sendall(len(answer).to_bytes(2, "big") + answer)


@dataclass
class Place:
    """A network in a network namespace of its own: its gateways, and the addresses of its sandboxes, are those of the loopback interface
    there. ``directory``: as that of a network."""

    network: Network
    directory: Path
    host: Host

    def lease(self, address: str, *names: str, link: str = "lo", egress: Egress | None = None, six: str = "", inode: int = 0) -> Lease:
        """``link``: lo lives, and every other one does not."""
        addresses = (address, six) if six else (address,)
        number = inode or int(ipaddress.ip_address(address))
        lease = Lease(self.network.name, addresses, "02:00:00:00:00:05", link, "/nowhere", number, names, egress=egress)
        new = self.directory / "new"
        new.write_text(json.dumps(records.plain(lease)))
        os.rename(new, self.directory / "leases" / address)
        return lease

    def leave(self, address: str) -> None:
        (self.directory / "leases" / address).unlink()

    @contextlib.contextmanager
    def client(self, source: str, *, stream: bool = False) -> Iterator[socket.socket]:
        six = ":" in source
        kind = socket.SOCK_STREAM if stream else socket.SOCK_DGRAM
        with self.host.open(socket.AF_INET6 if six else socket.AF_INET, kind) as opened:
            opened.settimeout(5)
            opened.bind((source, 0))
            opened.connect((GATEWAYS[six], 53))
            yield opened

    def ask(self, source: str, name: str, kind: int = A, *, stream: bool = False, **more: int) -> Said:
        return parsed(self.send(source, question(name, kind, **more), stream=stream))

    def send(self, source: str, raw: bytes, *, stream: bool = False, wait: float = 5) -> bytes:
        """``TimeoutError``: no answer."""
        with self.client(source, stream=stream) as opened:
            opened.settimeout(wait)
            if not stream:
                opened.send(raw)
                return opened.recv(65535)
            opened.sendall(len(raw).to_bytes(2, "big") + raw)
            return received(opened)


def received(opened: socket.socket) -> bytes:
    """One message of a connection; ``b""`` where it was closed."""
    length = opened.recv(2, socket.MSG_WAITALL)
    return opened.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL) if len(length) == 2 else b""


@contextlib.contextmanager
def place(directory: Path, *addresses: str, name: str = "web", **more: bool) -> Iterator[Place]:
    """``more``: as in Network."""
    network = Network(name, ("10.77.0.0/16", "fd77::/64"), GATEWAYS, "lo", **more)
    (directory / "leases").mkdir(parents=True, mode=0o700)
    namespace = NetworkNamespace()
    try:
        asking = netlink.prepare(namespace.route)
        mine = [ipaddress.ip_interface(f"{text}/{64 if ':' in text else 16}") for text in (*GATEWAYS, *addresses)]
        netlink.carry_out(asking, [rtnetlink.set_up("lo", 1), *(rtnetlink.add_address("lo", 1, one) for one in mine)])
        made = Place(network, directory, Host(namespace.fd))
        for one in mine:
            _await_delivery(made.host, str(one.ip))
        yield made
    finally:
        namespace.close()


def _await_delivery(host: Host, address: str) -> None:
    """The kernel adds the route to an address of IPv6 some time after the address."""
    with host.open(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind((address, 0))
        opened.settimeout(0.01)
        for _ in range(1000):
            opened.sendto(b"x", opened.getsockname())
            with contextlib.suppress(TimeoutError):
                opened.recv(9)
                return
    raise AssertionError(f"nothing comes to {address}")
