"""Descriptors that come over a socket."""

from __future__ import annotations

import socket
import struct


def received(connection: socket.socket, size: int, count: int = 1, flags: int = 0) -> tuple[bytes, list[int]]:
    """Up to ``size`` bytes, and up to ``count`` descriptors that came with them, which are the caller's to close. ``flags``: as of recv(2).
    Programs that another thread executes meanwhile inherit none: ``socket.recv_fds`` takes flags and leaves them out (Python 3.11).
    ``OSError``"""
    data, ancillary, _, _ = connection.recvmsg(size, socket.CMSG_LEN(4 * count), flags | socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, raw in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += struct.unpack(f"{len(raw) // 4}i", raw[: len(raw) // 4 * 4])
    return data, fds
