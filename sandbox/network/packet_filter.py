"""Packets of some senders are dropped by the kernel before they come to a socket: no time is lost with them, and no room. socket(7)

The program is one of classic BPF, which sees a packet from its own header on, and by offsets from ``_NETWORK`` its header of IP.
"""

from __future__ import annotations

import socket
import struct
from array import array
from collections.abc import Sequence

_ATTACH, _DETACH = 26, 27
_NETWORK = 0xFFF00000
"""SKF_NET_OFF"""
_LOAD, _IS, _RETURN = 0x20, 0x15, 0x06
_ALL = 0xFFFFFFFF
_SOURCE = {4: 12, 16: 8}
"""Where the sender's address is, by its length."""
MOST = 100
"""Senders; a program has at most 4096 instructions."""


def drop_from(opened: socket.socket, senders: Sequence[bytes]) -> None:
    """Of these addresses alone, the first ``MOST`` of them, which are all of the socket's family. ``OSError``"""
    if not senders:
        try:
            opened.setsockopt(socket.SOL_SOCKET, _DETACH, 0)
        except FileNotFoundError:
            pass
        return
    program = array("B", b"".join(map(_one, senders[:MOST])) + _instruction(_RETURN, _ALL))
    address, size = program.buffer_info()
    opened.setsockopt(socket.SOL_SOCKET, _ATTACH, struct.pack("@HP", size // 8, address))


def _one(sender: bytes) -> bytes:
    """Nothing is let through of this one; on with what follows for any other one."""
    words = struct.unpack(f"!{len(sender) // 4}I", sender)
    steps = b""
    for number, word in enumerate(words):
        left = 2 * (len(words) - 1 - number) + 1
        steps += _instruction(_LOAD, _NETWORK + _SOURCE[len(sender)] + 4 * number) + _instruction(_IS, word, otherwise=left)
    return steps + _instruction(_RETURN, 0)


def _instruction(code: int, value: int, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, 0, otherwise, value)
