"""dockless.toml, callers, logs: the small parts of the daemon."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.quotas import limits

from dockless import errors
from dockless.errors import NotPermitted
from dockless.sandbox import spec
from dockless.sandbox.run.box import Box
from dockless.sandbox.run.logfile import Row, parse
from dockless.sched import config, daemon, jobs
from dockless.sched.callers import Callers
from dockless.sched.engine import attempts, engine, outage, stopping, wants
from dockless.sched.engine.admission import amounts
from dockless.sched.engine.gpus import hostgpus
from dockless.sched.engine.lifecycle import ending, housekeeping, starting
from dockless.sched.policy.state import Preemption
from dockless.sched.store import queries, queue, schema, writer
from dockless.sched.wire import answers, client, logs, protocol, server, verbs


def test_settings(tmp_path):
    path = tmp_path / "dockless.toml"
    path.write_text(
        '[quota]\ndefault = 2\n[quota.users]\nanna = 4\n[quota.groups]\nvision = 6\n[groups]\nvision = ["anna"]\n'
        '[queue]\nper_user = 50\n[host]\ncpu_jobs = 3\nadmins = ["carl"]\n[logs]\nkeep_days = 7\n'
    )
    read = config.load(path)
    assert read.quotas == limits({"anna": 4}, {"vision": 6}, 2)
    assert (read.groups, read.per_user, read.cpu_jobs, read.admins, read.keep_days) == ({"vision": ("anna",)}, 50, 3, ("carl",), 7.0)
    assert config.load(tmp_path / "none") == config.Config()


def test_jobs_without_gpus_where_nothing_is_set(tmp_path, monkeypatch):
    for cores, many in ((None, 8), (1, 8), (4, 8), (5, 10), (64, 128)):
        monkeypatch.setattr(config.os, "cpu_count", lambda cores=cores: cores)
        assert config.Config().cpu_jobs == config.load(tmp_path / "none").cpu_jobs == many


def test_how_long_output_is_kept(monkeypatch):
    monkeypatch.setattr(config.time, "time", lambda: 1e9)
    assert config.Config(keep_days=2.0).kept_since() == 1e9 - 172800.0


def test_every_setting_goes_to_its_place(tmp_path):
    path = tmp_path / "dockless.toml"
    path.write_text(
        "[quota]\ndefault = 1\n[queue]\nper_user = 2\nper_user_size = 30000\nkeep_days = 4\nkeep_jobs = 5\n"
        "order = 'fair'\nhalf_life = 900\n[preempt]\nafter = 8\ngrace = 9\nsignal = 'INT'\n"
        "[logs]\nkeep_days = 6\nper_user = 70000\nsize_limit = 80000\nsize = 9000\n[volumes]\n'/mnt' = '/srv'\n"
    )
    assert config.load(path) == config.Config(
        limits(default=1), per_user=2, per_user_size=30000, keep_jobs_days=4.0, keep_jobs=5, keep_days=6.0, logs_per_user=70000,
        log_size_limit=80000, log_size=9000, order="fair", half_life=900.0, preemption=Preemption(8.0, 9.0), preempt_signal=2,
        volumes={"/mnt": "/srv"},
    )  # fmt: skip


NUMBERS = {
    amounts: {"MOST_VALUES": 10_000, "JOBS_A_TURN": 50, "VALUES_A_TURN": 2000},
    answers: {"_AT_ONCE": 500},
    attempts: {"SETTLE": 30.0},
    client: {"_AT_ONCE": 1000},
    daemon: {"TAKE_OVER": 5.0, "LET_GO_EVERY": 60.0},
    ending: {"OVERDUE": 10.0, "GIVE_UP": 30},
    engine: {"LAUNCHERS": 4, "AT_A_TIME": 50, "LOOK_AGAIN": 5.0},
    starting: {"LAUNCHES": 300},
    spec: {"GRACE": 10.0},
    hostgpus: {"FRESH": 2.0},
    housekeeping: {"EVERY": 3600.0, "AFTER_ENDS": 1000, "AT_ONCE": 500, "PAGES": 256},
    jobs: {"MAX_PRIORITY": 1_000_000, "MAX_TIME_LIMIT": 315_360_000.0, "MAX_NAME": 128},
    outage: {"LOOK": 1.0, "ROOM": 262_144},
    protocol: {
        "VERSION": 1, "MAX_REQUEST": 1_048_576, "MAX_PARTS": 150_000, "MAX_JOBS_PER_SUBMIT": 10_000, "MAX_JOBS_PER_REQUEST": 10_000
    },
    queries: {"_PAGE": 200},
    queue: {"_PAGE": 200},
    schema: {"VERSION": 3},
    server: {
        "PER_USER": 64, "IN_ALL": 200, "OWN": 8, "EVERYBODY": 280, "KEPT_BACK": 128, "PIECE": 65_536, "UNFINISHED": 8_388_608,
    },
    verbs: {"AT_ONCE": 100, "MAX_LISTED": 100_000, "MAX_GPUS": 1000},
    stopping: {"KILL_AGAIN": 2.0},
    wants: {"AGAIN": 1.0},
    writer: {"MOST": 512},
}  # fmt: skip


def test_how_much_and_how_long():
    """Decisions 032 and 034 and the guides promise these; other tests set them to what is quick."""
    assert {module: {name: getattr(module, name) for name in numbers} for module, numbers in NUMBERS.items()} == NUMBERS


def test_groups_come_from_the_settings_or_the_system(tmp_path):
    settings = config.Config(limits(groups={"mine": 2, "root": 3, "other": 1}), groups={"mine": ("root",), "root": ()})
    callers = Callers(settings)
    root = callers.caller(0) if os.geteuid() == 0 else callers.caller(os.geteuid())
    if root.uid == 0:
        assert callers.quota_groups(root) == ("mine",)  # "root" is listed, and she is not in the list


def test_the_overflow_id_is_nobody_in_particular():
    overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
    with pytest.raises(NotPermitted):
        Callers(config.Config()).caller(overflow)


def test_log_lines():
    assert parse(b"2026-01-01T00:00:00.5Z stdout F hello world") == Row("2026-01-01T00:00:00.5Z", "stdout", b"hello world", False)
    assert parse(b"t stderr P ") == Row("t", "stderr", b"", True)
    assert parse(b"\xff odd").text == b"\xff odd"


@pytest.mark.parametrize("bait", ["symlink", "hardlink", "fifo", "directory", "parent"])
def test_only_plain_files_are_served(tmp_path, bait):
    secret = tmp_path / "secret"
    secret.write_text("t stdout F secret\n")
    place = tmp_path / "sandbox"
    place.mkdir()
    if bait == "symlink":
        (place / "log").symlink_to(secret)
    elif bait == "hardlink":
        (place / "log").hardlink_to(secret)
    elif bait == "fifo":
        os.mkfifo(place / "log")
    elif bait == "directory":
        (place / "log").mkdir()
    else:
        (place / "log").write_text("t stdout F x\n")
        (tmp_path / "link").symlink_to(place)
        place = tmp_path / "link"
    assert logs.open_log(place, "log") is None
    assert list(Box("box", place).logs()) == []


def test_following_over_a_rotation_and_the_end(tmp_path):
    """What is written, rotated, written and moved away while somebody reads arrives once and in order."""
    place, kept = tmp_path / "sandbox", tmp_path / "kept" / "job-1-1-q"
    place.mkdir()
    kept.parent.mkdir()

    async def play() -> list[str]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        got: list[str] = []
        fresh = asyncio.Event()

        async def read() -> None:
            async for rows in logs.running(place, kept, done):
                got.extend(row.text.decode() for row in rows)
                fresh.set()

        async def until(text: str) -> None:
            while text not in got:
                fresh.clear()
                await asyncio.wait_for(fresh.wait(), 10)

        reading = asyncio.ensure_future(read())
        with open(place / "log", "w") as log:
            print("t stdout F one", file=log, flush=True)
            await until("one")
            print("t stdout F two", file=log, flush=True)
            os.rename(place / "log", place / "log.1")
        with open(place / "log", "w") as log:
            print("t stdout F three", file=log, flush=True)
            await until("three")
            print("t stdout F four", file=log, flush=True)
        os.rename(place / "log.1", str(kept) + ".log.1")
        os.rename(place / "log", str(kept) + ".log")
        done.set_result(None)
        await asyncio.wait_for(reading, 10)
        return got

    assert asyncio.run(play()) == ["one", "two", "three", "four"]


def test_what_was_kept_is_read_from_where_one_was(tmp_path):
    """The older file first; ``after`` counts bytes of output, an end of line among them."""
    (tmp_path / "job-1-1-q.log.1").write_text("t stdout F one\nt stdout F two\n")
    (tmp_path / "job-1-1-q.log").write_text("t stderr F three\n")

    async def read(rows):
        return [row.text.decode() async for part in rows for row in part]

    base = tmp_path / "job-1-1-q"
    for after, expected in ((0, ["one", "two", "three"]), (4, ["two", "three"]), (8, ["three"]), (14, [])):
        assert asyncio.run(read(logs.ended(base, after))) == expected
        assert asyncio.run(read(logs.running(tmp_path / "gone", base, None, after))) == expected
    assert asyncio.run(read(logs.ended(tmp_path / "job-2-1-q"))) == []


def test_changes_are_waited_for_without_a_watch_too(tmp_path, monkeypatch):
    """Where a user's inotify instances are used up, or the directory is gone: every quarter of a second."""

    async def play():
        waits = []

        async def wait(futures, **how):
            waits.append((futures, how))

        done = asyncio.get_running_loop().create_future()
        before = set(os.listdir("/proc/self/fd"))
        watch = logs.DirectoryWatch(tmp_path / "gone")
        with monkeypatch.context() as patch:
            patch.setattr(logs.asyncio, "wait", wait)
            await watch.wait(done)
        assert waits == [([done], {"timeout": 0.25})]
        watch.close()
        assert set(os.listdir("/proc/self/fd")) == before

    asyncio.run(play())


@pytest.mark.parametrize("what", ["written", "made", "moved in", "removed", "done"])
def test_what_wakes_a_reader(tmp_path, what):
    async def play():
        (tmp_path / "log").write_text("")
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "log").write_text("")
        done = asyncio.get_running_loop().create_future()
        before = set(os.listdir("/proc/self/fd"))
        watch = logs.DirectoryWatch(tmp_path)
        for _ in range(2):  # what has woken it once does not do so again
            waits = asyncio.ensure_future(watch.wait(done))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not waits.done()
            if what == "written":
                (tmp_path / "log").write_text("x")
            elif what == "made":
                (tmp_path / "log").rename(tmp_path / "other" / "log")
                (tmp_path / "log").touch()
            elif what == "moved in":
                (tmp_path / "other" / "log").rename(tmp_path / "log")
            elif what == "removed":
                (tmp_path / "log").unlink(missing_ok=True)
            else:
                done.set_result(None)
            await asyncio.wait_for(waits, 10)
            if what != "written":
                break
        watch.close()
        assert set(os.listdir("/proc/self/fd")) == before

    asyncio.run(play())


def test_importing_the_client_is_cheap():
    source = Path(errors.__file__).parent.parent
    heavy = {"asyncio", "sqlite3", "dockless.sched.daemon", "dockless.sched.engine.engine"}
    code = f"import sys, dockless.sched; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(source)}, check=True
    )
    assert done.stdout.strip() == "[]"
