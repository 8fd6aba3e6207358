"""``logs``: whose output it is, which rows are shown and how, and until when it is followed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support.recorded import alive, recorded
from support.streams import Stream

from dockless import sched
from dockless.cli import main
from dockless.sandbox.run.logfile import Row
from dockless.sandbox.spec import Spec
from dockless.sched.wire.protocol import LogLine

ME = os.geteuid()
AT = "2026-01-02T03:04:05.000000006Z"
ROWS = [
    Row("T0", "", b"", dropped=7),
    Row("T1", "stdout", b"one\x1b\xff"),
    Row("T2", "stderr", b"two\x1b"),
    Row("T3", "stdout", b"half", partial=True),
]
DROPPED = "dockless: 7 bytes of output before this line were dropped (how much is kept: --log-size, logs.size)\n"


@pytest.fixture
def queue(monkeypatch):
    """A daemon that has job 5 of ``uid``. ``asked``: what it was asked for."""
    client = SimpleNamespace(uid=ME, gang=0, asked=[])

    def rows(number, *, follow, attempt):
        client.asked.append((number, follow, attempt))
        for row in ROWS:
            yield LogLine(row.at, row.stream, row.text.decode(errors="surrogateescape"), row.partial, row.dropped)

    client.logs = rows
    client.job = {5: client}.__getitem__
    monkeypatch.setattr(sched, "connect", lambda: contextlib.nullcontext(client))
    return client


@pytest.fixture
def said(monkeypatch):
    """What a command line writes to standard output and to standard error, on terminals or not."""

    def said(*words, terminal=False):
        streams = [Stream(terminal=terminal), Stream(terminal=terminal)]
        for name, stream in zip(("stdout", "stderr"), streams, strict=True):
            monkeypatch.setattr(sys, name, stream)
        assert main(["logs", *words]) == 0
        return tuple(stream.said() for stream in streams)

    return said


@pytest.mark.parametrize(
    ("words", "asked"),
    [((), (5, False, 0)), (("-f",), (5, True, 0)), (("--attempt", "2"), (5, False, 2)), (("--follow", "--attempt", "1"), (5, True, 1))],
)
def test_what_is_asked_of_the_daemon(queue, said, words, asked):
    assert said(*words, "5") == (b"one\x1b\xff\nhalf", DROPPED.encode() + b"two\x1b\n") and queue.asked == [asked]


def test_times(queue, said):
    assert said("-t", "5") == (b"T1 one\x1b\xff\nT3 half", DROPPED.encode() + b"T2 two\x1b\n")


def test_json(queue, said):
    out, err = said("--json", "-t", "5", terminal=True)
    assert err == b"" and [json.loads(line) for line in out.splitlines()] == [
        {"at": "T0", "stream": "", "text": "", "partial": False, "dropped": 7},
        {"at": "T1", "stream": "stdout", "text": "one\x1b\udcff", "partial": False, "dropped": 0},
        {"at": "T2", "stream": "stderr", "text": "two\x1b", "partial": False, "dropped": 0},
        {"at": "T3", "stream": "stdout", "text": "half", "partial": True, "dropped": 0},
    ]


@pytest.mark.parametrize("uid", [ME, ME + 1])
def test_anothers_job_is_escaped_on_a_terminal_and_nowhere_else(queue, said, uid):
    queue.uid = uid
    raw = (b"one\x1b\xff\nhalf", DROPPED.encode() + b"two\x1b\n")
    assert said("5") == raw
    shown = (b"one\\x1b\\xff\nhalf\n", DROPPED.encode() + b"two\\x1b\n")
    assert said("5", terminal=True) == (raw if uid == ME else shown)
    times = (b"T1 one\\x1b\\xff\nT3 half\n", DROPPED.encode() + b"T2 two\\x1b\n")
    assert uid == ME or said("-t", "5", terminal=True) == times


@pytest.mark.parametrize(("uid", "labels", "escaped"), [(0, {"queue": "q"}, True), (0, {"job": "5"}, False), (1000, {"queue": "q"}, False)])
def test_a_sandbox_of_the_daemons_is_anothers_to_root(home, said, monkeypatch, uid, labels, escaped):
    box = recorded("box", Spec(argv=("true",)), labels=labels, pids=None)
    (box.directory / "log").write_bytes(f"{AT} stdout F one\x1b\n".encode())
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert said("box", terminal=True)[0] == (b"one\\x1b\n" if escaped else b"one\x1b\n")
    assert said("box")[0] == b"one\x1b\n"


@pytest.mark.parametrize(("gone", "shown"), [("stdout", (b"", DROPPED.encode() + b"two\x1b\n")), ("stderr", (b"one\x1b\xff\nhalf", b""))])
def test_a_stream_that_there_is_not(queue, monkeypatch, capfdbinary, gone, shown):
    """What belongs to the other one is shown all the same."""
    monkeypatch.setattr(sys, gone, None)
    assert main(["logs", "5"]) == 0 and capfdbinary.readouterr() == shown


def test_a_sandbox_has_no_attempts(home, capfd):
    recorded("box", Spec(argv=("true",)))
    assert main(["logs", "--attempt", "1", "box"]) == 125
    assert capfd.readouterr().err == "dockless: --attempt for the sandbox box\n  hint: leave it out: only jobs have attempts\n"


def line(text: str) -> bytes:
    return f"{AT} stdout F {text}\n".encode()


@pytest.fixture
def living(home):
    """A sandbox that lives until its standard input is closed, with two lines of output."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as keeper:
        box = recorded("box", Spec(argv=("true",)), pids=(keeper.pid, keeper.pid))
        (box.directory / "log").write_bytes(line("1") + line("2"))
        with contextlib.ExitStack() as lock:
            lock.enter_context(alive(box))

            def end() -> None:
                keeper.stdin.close()
                keeper.wait()
                lock.close()

            yield box, end


def test_a_living_one_that_is_not_followed(living):
    assert [row.text for row in living[0].logs(follow=False)] == [b"1", b"2"]


def test_a_living_one_is_followed_to_its_end(living):
    box, end = living
    rows = box.logs(follow=True)
    assert [next(rows).text for _ in range(2)] == [b"1", b"2"]
    with open(box.directory / "log", "ab") as log:
        log.write(line("3"))
    assert next(rows).text == b"3"
    with open(box.directory / "log", "ab") as log:
        log.write(line("4"))
    end()
    assert [row.text for row in rows] == [b"4"]


def test_how_it_waits(living):
    """For the end of the sandbox, and never so long that a line is late by more than a second."""
    box, end = living
    steps = box.reading(follow=True)
    assert [next(steps).text for _ in range(2)] == [b"1", b"2"]
    pause = next(steps)
    assert pause.fd >= 0 and 0 < pause.seconds <= 1
    end()
    assert list(steps) == []


def test_one_that_has_ended_is_not_waited_for(home):
    box = recorded("box", Spec(argv=("true",)), pids=None)
    (box.directory / "log").write_bytes(line("1"))
    assert [row.text for row in box.logs(follow=True)] == [b"1"]
