"""The daemon's socket itself, and how requests are read from it."""

from __future__ import annotations

import asyncio
import os
import stat
from collections import Counter

import pytest

from dockless.errors import BadInput, Refused
from dockless.sched import server
from dockless.sched.protocol import MAX_REQUEST


@pytest.mark.parametrize(("uid", "mode"), [(0, 0o666), (1000, 0o600)])
@pytest.mark.parametrize("mask", [0, 0o777])
def test_whose_socket_it_is(tmp_path, monkeypatch, uid, mode, mask):
    """Root's daemon serves everybody, a user's serves her alone, whatever the umask is, from the first moment."""
    monkeypatch.setattr(server.os, "geteuid", lambda: uid)
    listening = server.Server.__new__(server.Server)
    listening.path = tmp_path / "daemon.sock"
    born = []
    start = asyncio.start_unix_server

    async def seen(*args, **how):
        made = await start(*args, **how)
        born.append(stat.S_IMODE(os.stat(listening.path).st_mode))
        return made

    monkeypatch.setattr(asyncio, "start_unix_server", seen)

    async def play():
        await listening.open()
        listening._server.close()

    before = os.umask(mask)
    try:
        asyncio.run(play())
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert born == [mode] and stat.S_IMODE(os.stat(listening.path).st_mode) == mode


def read(pieces, *, under_way=0):
    """What a connection of user 7 gives that sends these pieces and hangs up, and what then counts as unfinished."""
    it = server.Server.__new__(server.Server)
    it._unfinished = Counter({7: under_way} if under_way else {})

    async def play():
        reader = asyncio.StreamReader(limit=server.PIECE)
        for piece in pieces:
            reader.feed_data(piece)
        reader.feed_eof()
        try:
            return await it._line(7, reader)
        except (BadInput, Refused) as error:
            return error

    return asyncio.run(play()), dict(it._unfinished), it


def test_a_request_counts_until_it_is_done():
    for line in (b"{}\n", b"x" * (3 * server.PIECE) + b"\n", b"x" * (MAX_REQUEST - 1) + b"\n"):
        got, unfinished, it = read([line, b"the next"])
        assert got == line and unfinished == {7: len(line)}
        it._over(7, len(line))
        assert dict(it._unfinished) == {}


@pytest.mark.parametrize("pieces", [[], [b"half a request"], [b"x" * (3 * server.PIECE)]])
def test_who_hangs_up_leaves_nothing_unfinished(pieces):
    assert read(pieces)[:2] == (b"", {})


def test_too_long_a_request_is_refused_and_forgotten():
    got, unfinished, _ = read([b"x" * (MAX_REQUEST + server.PIECE)])
    assert isinstance(got, BadInput) and str(MAX_REQUEST) in str(got) and unfinished == {}


def test_long_requests_of_one_user_together_are_bounded():
    others = server.UNFINISHED - 2 * server.PIECE
    long = b"x" * (4 * server.PIECE) + b"\n"
    got, unfinished, _ = read([long], under_way=others)
    assert isinstance(got, Refused) and unfinished == {7: others}
    got, unfinished, _ = read([long], under_way=others - 3 * server.PIECE)
    assert got == long and unfinished == {7: others - 3 * server.PIECE + len(long)}


def test_who_does_not_hang_up_is_not_waited_for_for_ever(monkeypatch):
    it = server.Server.__new__(server.Server)

    async def play():
        waits = []

        async def wait(tasks, **how):
            waits.append((tasks, how))

        it._handlers = set()
        with monkeypatch.context() as patch:
            patch.setattr(server.asyncio, "wait", wait)
            await it.hang_up()
            it._handlers = {asyncio.ensure_future(asyncio.sleep(3600))}
            await it.hang_up()
        assert waits == [(list(it._handlers), {"timeout": 2.0})]
        await asyncio.wait(it._handlers)
        assert all(task.cancelled() for task in it._handlers)

    asyncio.run(play())


def test_a_server_that_never_listened_can_be_closed(tmp_path):
    it = server.Server.__new__(server.Server)
    it._server, it.path, it._busy = None, tmp_path / "s", 0
    asyncio.run(it.close())
