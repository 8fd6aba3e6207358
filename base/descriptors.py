"""Descriptors that travel over a socket. By the module below ``socket``, which takes longer to import than a sandbox to start. unix(7)"""

from __future__ import annotations

import struct
from _socket import CMSG_LEN, MSG_CMSG_CLOEXEC, SCM_CREDENTIALS, SCM_RIGHTS, SO_PEERCRED, SOL_SOCKET, socket
from collections.abc import Sequence

_CREDENTIALS = struct.Struct("3i")


def send(connection: socket, data: bytes, fds: Sequence[int]) -> None:
    """One message, with copies of these descriptors. ``OSError``"""
    connection.sendmsg([data], [(SOL_SOCKET, SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))])


def received(connection: socket, size: int, count: int = 1, flags: int = 0) -> tuple[bytes, list[int]]:
    """Up to ``size`` bytes, and up to ``count`` descriptors that came with them, which are the caller's to close. ``flags``: as of recv(2).
    Programs that another thread executes meanwhile inherit none: ``socket.recv_fds`` takes flags and leaves them out (Python 3.11).
    ``OSError``"""
    data, ancillary, _, _ = connection.recvmsg(size, CMSG_LEN(4 * count), flags | MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, raw in ancillary:
        if (level, kind) == (SOL_SOCKET, SCM_RIGHTS):
            fds += struct.unpack(f"{len(raw) // 4}i", raw[: len(raw) // 4 * 4])
    return data, fds


def peer(connection: socket) -> int:
    """The user id of the other end, as it was when that connected, or began to listen."""
    return int(_CREDENTIALS.unpack(connection.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size))[1])


def from_whom(connection: socket, size: int) -> tuple[bytes, int]:
    """Up to ``size`` bytes, and the process that has sent them, 0 for none, where ``connection`` has SO_PASSCRED. Who has CAP_SYS_ADMIN
    over a PID namespace can name any other process of it. ``OSError``"""
    data, ancillary, _, _ = connection.recvmsg(size, CMSG_LEN(_CREDENTIALS.size), MSG_CMSG_CLOEXEC)
    found = [raw for level, kind, raw in ancillary if (level, kind) == (SOL_SOCKET, SCM_CREDENTIALS) and len(raw) == _CREDENTIALS.size]
    return data, _CREDENTIALS.unpack(found[0])[0] if found else 0
