"""The daemon's socket itself."""

from __future__ import annotations

import asyncio
import os
import stat

import pytest

from dockless.sched import server


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
