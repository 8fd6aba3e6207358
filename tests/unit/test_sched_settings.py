"""dockless.toml, callers, logs: the small parts of the daemon."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dockless import errors
from dockless.cli.logs import _box
from dockless.errors import NotPermitted
from dockless.sandbox.detached import Detached
from dockless.sandbox.logfile import Row, parse
from dockless.sched import config, logs
from dockless.sched.callers import Callers


def test_settings(tmp_path):
    path = tmp_path / "dockless.toml"
    path.write_text(
        '[quota]\ndefault = 2\n[quota.users]\nanna = 4\n[quota.groups]\nvision = 6\n[groups]\nvision = ["anna"]\n'
        '[queue]\nper_user = 50\n[host]\ncpu_jobs = 3\nadmins = ["carl"]\n[logs]\nkeep_days = 7\n'
    )
    read = config.load(path)
    assert read.quotas.of("anna") == 4 and read.quotas.of("bob") == 2 and read.quotas.groups == {"vision": 6}
    assert (read.groups, read.per_user, read.cpu_jobs, read.admins, read.keep_days) == ({"vision": ("anna",)}, 50, 3, ("carl",), 7.0)
    assert config.load(tmp_path / "none") == config.Config()


def test_groups_come_from_the_settings_or_the_system(tmp_path):
    settings = config.Config(config.Quotas(groups={"mine": 2, "root": 3, "other": 1}), groups={"mine": ("root",), "root": ()})
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
    assert list(_box(Detached("box", place), follow=False)) == []


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


def test_importing_the_client_is_cheap():
    source = Path(errors.__file__).parent.parent
    heavy = {"asyncio", "sqlite3", "msgspec", "dockless.sched.daemon", "dockless.sched.engine"}
    code = f"import sys, dockless.sched; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(source)}, check=True
    )
    assert done.stdout.strip() == "[]"
