"""Frames of Ethernet, as somebody writes them who may send what he likes."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable

from support.nets import Place

ALL = 3
"""ETH_P_ALL"""
EVERYBODY = "ff:ff:ff:ff:ff:ff"
ALL_NODES = "33:33:00:00:00:01"


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def ether(to: str, source: str, kind: int, payload: bytes) -> bytes:
    return mac(to) + mac(source) + struct.pack("!H", kind) + payload


def ip4(source: str, to: str, payload: bytes, protocol: int = 17) -> bytes:
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 7, 0, 64, protocol, 0, socket.inet_aton(source), socket.inet_aton(to))
    return head[:10] + checksum(head) + head[12:] + payload


def ip6(source: str, to: str, payload: bytes, following: int = 17, hops: int = 255) -> bytes:
    addresses = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, to)
    return struct.pack("!IHBB", 6 << 28, len(payload), following, hops) + addresses + payload


def udp(source: int, to: int, payload: bytes) -> bytes:
    return struct.pack("!HHHH", source, to, 8 + len(payload), 0) + payload


def arp(ether_source: str, ip_source: str, ip_to: str, operation: int = 2) -> bytes:
    sender = mac(ether_source) + socket.inet_aton(ip_source)
    return struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation) + sender + bytes(6) + socket.inet_aton(ip_to)


def neighbour(kind: int, target: str) -> bytes:
    """A solicitation (135) or an advertisement (136)."""
    return struct.pack("!BBHI", kind, 0, 0, 0x20000000) + socket.inet_pton(socket.AF_INET6, target)


def icmp6(source: str, to: str, message: bytes) -> bytes:
    """A packet that is right, so that it is answered."""
    addresses = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, to)
    total = checksum(addresses + struct.pack("!II", len(message), 58) + message)
    return ip6(source, to, message[:2] + total + message[4:], 58)


def checksum(raw: bytes) -> bytes:
    total = sum(struct.unpack(f"!{len(raw) // 2}H", raw))
    return struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF)


def send(place: Place, *sent: bytes) -> None:
    with place.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
        raw.bind(("eth0", 0))
        for frame in sent:
            raw.send(frame)


def arrives(marker: bytes, watched: list[tuple[Place, str]], sending: Callable[[], None], *, wanted: int = 0) -> list[str]:
    """The links, of those that are watched, at which a frame with the marker comes in. ``wanted``: as many are waited for."""
    opened = []
    for place, link in watched:
        raw = place.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
        raw.bind((link, ALL))
        opened.append((raw, link))
    try:
        sending()
        found: list[str] = []
        end = time.monotonic() + (10 if wanted else 0.15)
        while (left := end - time.monotonic()) > 0 and len(found) < (wanted or len(opened)):
            for ready in select.select([raw for raw, _ in opened], [], [], left)[0]:
                said, (link, _, kind, *_) = ready.recvfrom(65536)
                if marker in said and kind != socket.PACKET_OUTGOING and link not in found:
                    found.append(link)
        return sorted(found)
    finally:
        for raw, _ in opened:
            raw.close()
