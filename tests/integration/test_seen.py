"""``top`` and ``stats``: what runs in a sandbox, and what it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psutil
import pytest
from support.boxes import until
from support.requires import requires

import dockless
from dockless.cli import main
from dockless.sandbox.run import seen
from dockless.sandbox.run.box import get

pytestmark = requires("userns")


@pytest.fixture
def box():
    made = dockless.start(["/bin/sh", "-c", "while :; do :; done"], id="busy")
    yield made
    made.rm(force=True)


def told(capsys, *line):
    assert main([*line]) == 0
    return capsys.readouterr().out


def has_arguments(box):
    """What was started last: they come after its name."""
    until(lambda: not [row.command for row in seen.processes(box.inner)][-1].startswith("["), "its arguments")


def test_top_shows_what_runs_inside_and_nothing_of_ours(box, capsys):
    box.spawn_alone("/bin/sleep", "1000")
    has_arguments(box)
    rows = json.loads(told(capsys, "top", "--json", "busy"))
    assert [(row["command"], row["inside"]) for row in rows] == [("/bin/sh -c while :; do :; done", 2), ("/bin/sleep 1000", 3)]
    assert all(os.path.exists(f"/proc/{row['pid']}") and row["memory"] > 0 for row in rows)
    shown = told(capsys, "top", "busy").splitlines()
    assert shown[0].split() == ["PID", "INSIDE", "UID", "CPU", "MEMORY", "AGE", "COMMAND"] and len(shown) == 3


def test_what_reads_a_terminal_is_ours(capsys):
    box = dockless.start(["sleep", "1000"], tty=True, id="shown")
    try:
        until(lambda: [found for found in psutil.Process(box.pid).children() if found.name() == "sleep"], "it has begun")
        rows = json.loads(told(capsys, "top", "--json", "shown"))
        assert [row["command"] for row in rows] == ["sleep 1000"]
    finally:
        box.rm(force=True)


def test_a_process_that_calls_itself_one_of_ours_is_shown(box, capsys):
    box.spawn_alone("/bin/sh", "-c", "echo dockless-enter > /proc/self/comm; while :; do sleep 1; done")
    names = "cat /proc/[0-9]*/comm"
    until(lambda: "dockless-enter\n" in box.shell(names, text=True).stdout, "it has its name")
    assert "dockless-enter > /proc/self/comm" in told(capsys, "top", "--json", "busy")


def test_what_it_calls_itself_is_escaped(box, capsys):
    box.spawn_alone("/bin/sh", "-c", "while :; do :; done", "\x1b[31mred")
    has_arguments(box)
    shown = told(capsys, "top", "busy")
    assert "\x1b" not in shown and "[31mred" in shown


def test_stats_of_a_busy_one(box, capsys):
    (row,) = (json.loads(line) for line in told(capsys, "stats", "--no-stream", "--json", "busy").splitlines())
    assert row["id"] == "busy" and row["cpu_percent"] > 0 and row["pids"] >= 1 and row["memory"] > 0
    heads, numbers = told(capsys, "stats", "--no-stream").splitlines()
    assert heads.split()[:2] == ["ID", "CPU"] and numbers.startswith("busy  ")


def test_other_processes_of_the_host_are_not_read(box):
    """So that stats of many sandboxes does not take the square of their number."""
    other = subprocess.Popen(["sleep", "1000"])
    read: list[str] = []

    def notice(event, arguments):
        if listening and event in ("open", "os.listdir"):
            read.append(str(arguments[0]))

    listening = [True]
    sys.addaudithook(notice)  # for good: there is no way to take one away
    try:
        found = get("busy")
        assert [one.inside for one in seen.processes(found)] == [2]
    finally:
        listening.clear()
        other.kill()
        other.wait()
    assert not [path for path in read if path.startswith(f"/proc/{other.pid}/")]


def test_stats_end_when_none_is_left(box, capsys):
    box.stop(0)
    assert main(["stats", "busy"]) == 0
    assert main(["top", "busy"]) == 125
    assert "sandbox busy is not running" in capsys.readouterr().err
