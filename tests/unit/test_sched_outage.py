"""A queue that cannot be written: said once, looked at every second, said once when it counts as well again."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.requires import requires
from support.stand_in import DEADLINE

from dockless.errors import SchedError
from dockless.sched.engine import outage
from dockless.sched.engine.outage import Outage, _room
from dockless.sched.store import queries, schema

FULL = SchedError("the queue cannot be written: disk full", subject="jobs.db")


@requires("root")
def test_a_file_system_without_unnamed_files_is_no_outage():
    """procfs is one, NFS another: there only the write itself tells."""
    _room(Path("/proc"))


@pytest.mark.parametrize(
    ("opening", "room", "fails"),
    [
        (None, None, None), (errno.EOPNOTSUPP, None, None), (errno.EISDIR, None, None), (errno.EIO, None, errno.EIO),
        (None, errno.ENOSPC, errno.ENOSPC),
    ],
)  # fmt: skip
def test_whether_there_is_room(tmp_path, monkeypatch, opening, room, fails):
    """For a little more than the next change, in a file that nobody sees."""
    seen = []

    def opened(path, flags, mode):
        seen.append((path, flags, mode))
        if opening is not None:
            raise OSError(opening, "planted")
        return 77

    def fallocate(fd, start, size):
        seen.append((fd, start, size))
        if room is not None:
            raise OSError(room, "planted")

    stand_in = SimpleNamespace(
        open=opened, posix_fallocate=fallocate, close=seen.append, O_RDWR=os.O_RDWR, O_TMPFILE=os.O_TMPFILE, O_CLOEXEC=os.O_CLOEXEC
    )
    monkeypatch.setattr(outage, "os", stand_in)
    if fails is None:
        _room(tmp_path)
    else:
        with pytest.raises(OSError, match="planted") as caught:
            _room(tmp_path)
        assert caught.value.errno == fails
    assert seen[0] == (tmp_path, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    assert seen[1:] == ([] if opening is not None else [(77, 0, 262144), 77])


def test_a_change_that_changes_nothing_is_written_all_the_same(tmp_path):
    db = schema.open_queue(tmp_path / "jobs.db")
    before, name = db.total_changes, queries.queue_id(db)
    outage._touch(db)
    assert db.total_changes == before + 1 and queries.queue_id(db) == name
    db.close()


def test_from_its_beginning_to_its_end(tmp_path, monkeypatch, capfd):
    """It is over when a change has been written, and not when there seems to be room."""
    looks, slept, ends = [], [], []
    results = [OSError(errno.ENOSPC, "planted"), FULL, None]

    async def sleep(seconds):
        slept.append(seconds)
        await asyncio.wait_for(gate.acquire(), DEADLINE)

    async def write(change):
        looks.append(change)
        error = results.pop(0)
        if error is not None:
            raise error

    def room(directory):
        looks.append(directory)
        if isinstance(results[0], OSError):
            raise results.pop(0)

    async def play():
        nonlocal gate
        gate = asyncio.Semaphore(0)
        is_out = Outage(tmp_path, write, lambda: ends.append(is_out.text))
        await is_out.over()
        is_out.close()
        monkeypatch.setattr(outage, "_room", room)
        monkeypatch.setattr(outage.asyncio, "sleep", sleep)
        for _ in range(2):
            is_out.begins(FULL)
            assert is_out.text == str(FULL)
        waits = asyncio.ensure_future(is_out.over())
        for count in (1, 3):
            gate.release()
            while len(looks) < count or len(slept) < (count + 3) // 2:
                await asyncio.wait([waits], timeout=0.001)
            assert not waits.done() and is_out.text and ends == []
        gate.release()
        await asyncio.wait_for(waits, DEADLINE)
        assert (is_out.text, ends) == ("", [""])
        assert looks == [tmp_path, tmp_path, outage._touch, tmp_path, outage._touch] and slept == [1.0] * 3
        results.append(None)
        is_out.begins(SchedError("another"))
        assert is_out.text == "another"
        watch = is_out._watch
        is_out.close()
        await asyncio.wait([watch], timeout=DEADLINE)
        assert watch.cancelled() and not is_out._well.is_set()

    gate = None
    asyncio.run(play())
    assert capfd.readouterr().err == (
        f"dockless daemon: {FULL}: ends are recorded and jobs are started when that is possible again\n"
        "dockless daemon: the queue can be written again\n"
        "dockless daemon: another: ends are recorded and jobs are started when that is possible again\n"
    )


def test_what_is_no_outage_is_not_waited_out(tmp_path):
    """An error of ours in the change: it shows."""

    async def write(change):
        raise sqlite3.IntegrityError("planted")

    async def play():
        outage_ = Outage(tmp_path, write, lambda: None)
        outage_.begins(FULL)
        with pytest.raises(sqlite3.IntegrityError):
            await asyncio.wait_for(outage_._watch, DEADLINE)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outage, "LOOK", 0.0)
        asyncio.run(play())
