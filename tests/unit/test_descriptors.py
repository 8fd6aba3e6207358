"""Descriptors that come over a socket are the receiver's alone."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from dockless.base.descriptors import from_whom, received

SOURCES = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("sent", "count"), [(0, 1), (1, 1), (3, 3), (3, 253)])
def test_what_comes(sent, count):
    """None of it is for programs that are executed meanwhile."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, open(os.devnull) as null:
        socket.send_fds(theirs, [b"words"], [null.fileno()] * sent)
        data, fds = received(ours, 100, count)
        try:
            assert (data, len(fds)) == (b"words", sent)
            assert all(os.path.samestat(os.fstat(fd), os.fstat(null.fileno())) for fd in fds)
            assert not any(os.get_inheritable(fd) for fd in fds)
        finally:
            for fd in fds:
                os.close(fd)


def test_nothing_comes_any_more():
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        assert received(ours, 100) == (b"", [])


def test_who_has_sent_it():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"a")
        assert from_whom(ours, 1) == (b"a", 0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        theirs.send(b"b")
        assert from_whom(ours, 1) == (b"b", os.getpid())
        theirs.close()
        assert from_whom(ours, 1)[0] == b""


def test_none_is_received_in_another_way():
    rooms = ("base", "cgroups", "images", "native", "sandbox", "sched", "src")
    found = [
        path for room in rooms for path in SOURCES.joinpath(room).rglob("*.py") if re.search(r"recv_fds\(|\.recvmsg\(", path.read_text())
    ]
    # The second is a script for a Python inside, where nothing of ours is.
    assert sorted(found) == [SOURCES / "base" / "descriptors.py", SOURCES / "sandbox" / "zygote" / "inside.py"]
