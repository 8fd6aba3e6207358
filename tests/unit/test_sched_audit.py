"""What the audit log says of requests, and what it never says."""

from __future__ import annotations

import os
import re
import stat

import pytest
from support.desk import ANN, BEN, PEOPLE, play

from dockless.base import paths
from dockless.errors import NotPermitted
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec
from dockless.sched.wire import audit

SECRET = JobSpec(Spec(argv=("true", "--password=hunter2"), env=(("TOKEN", "hunter2"),)), gpus="2", name="hunter2")


@pytest.fixture(autouse=True)
def _gpus(monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")


def test_who_asked_for_what(tmp_path):
    async def story(desk):
        await desk.submit(ANN, SECRET, SECRET)
        await desk(BEN, lambda queue: queue.queue())
        await desk.refused(NotPermitted, BEN, lambda queue: queue.cancel(2))
        await desk(ANN, lambda queue: queue.cancel_many([1, 2]))
        await desk(ANN, lambda queue: queue.requeue(2))
        await desk.refused(NotPermitted, BEN, lambda queue: queue.shutdown())

    play(tmp_path, story)
    lines = (tmp_path / "audit.log").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in lines)
    assert [line.partition(" ")[2] for line in lines] == [
        "uid=1001 user=ann op=submit jobs=1,2 ok",
        "uid=1002 user=ben op=cancel jobs=2 not_permitted",
        "uid=1001 user=ann op=cancel jobs=1,2 ok",
        "uid=1001 user=ann op=requeue jobs=2 new=3 ok",
        "uid=1002 user=ben op=shutdown not_permitted",
    ]
    about = os.stat(tmp_path / "audit.log")
    assert stat.S_IMODE(about.st_mode) == (0o640 if os.geteuid() == 0 else 0o600)


def test_what_an_administrator_reads_of_others(tmp_path):
    """What another's job wrote, asked for and went through is written down, one's own is not; settings that changed by their keys alone."""

    async def story(desk):
        await desk.submit(ANN, SECRET)
        (box,) = [await desk.runs(1)]
        for who in (ANN, 0):
            await desk(who, lambda queue: [*queue.logs(1)])
            await desk(who, lambda queue: queue.spec(1))
            await desk(who, lambda queue: queue.events(1))
        await desk.refused(NotPermitted, BEN, lambda queue: [*queue.logs(1)])
        for text in (
            "",
            "[quota]\ndefault = 2\n[quota.users]\nann = 7\n[queue]\nkeep_days = 3\n",
            f'[quota]\ndefault = 2\n[quota.users]\nann = 7\n[gpus]\ndriver_root = "{tmp_path}"\n',
        ):
            paths.config_file().write_text(text)
            await desk(0, lambda queue: queue.reload())
            desk.know_people()
        box.end(None)

    play(tmp_path, story)
    lines = [line.partition(" ")[2] for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert lines == [
        "uid=1001 user=ann op=submit jobs=1 ok",
        "uid=0 user=root op=logs jobs=1 ok",
        "uid=0 user=root op=spec jobs=1 ok",
        "uid=0 user=root op=events jobs=1 ok",
        "uid=0 user=root op=reload ok",
        "uid=0 user=root op=reload changed=queue.keep_days,quota.default,quota.users.ann ok",
        "uid=0 user=root op=reload changed=queue.keep_days next_start=gpus.driver_root ok",
    ]


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        ({"op": "hold", "jobs": list(range(1, 41))}, "op=hold jobs=" + ",".join(map(str, range(1, 21))) + ",…40 ok"),
        ({"op": "exec", "job": 7, "argv": ["hunter2"]}, "op=exec jobs=7 ok"),
        ({"op": "made_up", "job": "hunter2", "jobs": ["hunter2", True, -1]}, "op=made_up ok"),
        ({"op": "x\nuid=0 user=root op=submit ok"}, ""),
        ({"op": ["hunter2"]}, ""),
        ({"op": "logs", "job": 7}, ""),
    ],
)
def test_numbers_and_words_of_ours_alone(tmp_path, request_, line):
    audit.Audit(tmp_path).note(PEOPLE[ANN], request_, {})
    found = (tmp_path / "audit.log").read_text() if line else "x uid=1001 user=ann \n"
    assert found.partition("user=ann ")[2] == f"{line}\n" and found.count("\n") == 1
    assert (tmp_path / "audit.log").exists() is bool(line)


def test_two_files_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "SIZE", 1000)
    place = tmp_path / "state"
    place.mkdir()
    log = audit.Audit(place)
    for number in range(1, 101):
        log.note(PEOPLE[BEN], {"op": "cancel", "jobs": [number]}, {})
    assert sorted(os.listdir(place)) == ["audit.log", "audit.log.1"]
    texts = [(place / name).read_text() for name in os.listdir(place)]
    assert all(len(text) < 1100 for text in texts) and any("jobs=100 " in text for text in texts)


def test_nobody_pushes_out_what_others_did(tmp_path, monkeypatch):
    clock = [5.0]
    monkeypatch.setattr(audit.time, "monotonic", lambda: clock[0])
    log = audit.Audit(tmp_path)
    log.note(PEOPLE[ANN], {"op": "cancel", "jobs": [7]}, {})
    for _ in range(audit.BURST + 500):
        log.note(PEOPLE[BEN], {"op": "cancel", "jobs": [7]}, {}, "not_permitted")
    log.note(PEOPLE[ANN], {"op": "cancel", "jobs": [8]}, {})
    clock[0] += audit.EVERY
    for _ in range(2):
        log.note(PEOPLE[BEN], {"op": "submit"}, {"ids": [9]})
    lines = (tmp_path / "audit.log").read_text().splitlines()
    assert len(lines) == audit.BURST + 3
    assert lines[-2].endswith("user=ann op=cancel jobs=8 ok") and lines[-1].endswith("user=ben op=submit jobs=9 unwritten=500 ok")


def test_what_cannot_be_written_stops_nobody(tmp_path):
    (tmp_path / "audit.log").symlink_to(tmp_path / "elsewhere")
    audit.Audit(tmp_path).note(PEOPLE[ANN], {"op": "cancel", "jobs": [1]}, {})
    assert not (tmp_path / "elsewhere").exists()
