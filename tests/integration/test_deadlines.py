"""When a sandbox ends: after a timeout, a time without anybody, a time to live whose end moves; and how each is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.boxes import until
from support.requires import requires

import dockless
from dockless import DEVNULL, Namespaces, Sandbox
from dockless.errors import BadInput, LaunchFailed, SandboxGone

pytestmark = requires("userns", "overlay")

FOREVER = ["sleep", "1000"]
BUSY = ["/bin/sh", "-c", "while :; do :; done"]


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"timeout": 0.3, "ttl": 1000, "idle_timeout": 1000}, "timeout"),
        ({"ttl": 0.3, "timeout": 1000}, "ttl"),
        ({"idle_timeout": 0.3}, "idle_timeout"),
    ],
)
def test_which_deadline_it_was_is_named(options, limit):
    ended = dockless.run(BUSY, **options)
    assert (ended.timed_out, ended.limit, ended.exit_code, ended.returncode) == (True, limit, 124, -9), "what it does itself is no activity"
    with pytest.raises(dockless.TimedOut) as told:
        ended.check_returncode()
    assert told.value.limit == limit and told.value.result is ended
    box = dockless.start(BUSY, **options)
    ended = box.wait(20)
    assert (ended.limit, ended.timed_out, box.inspect()["exit"]["limit"]) == (limit, True, limit)
    box.rm()


@pytest.mark.parametrize("limit", ["timeout", "ttl", "idle_timeout"])
def test_the_deadline_that_ended_the_start_itself_is_named(limit):
    def refused() -> LaunchFailed | None:
        try:
            dockless.run(["true"], **{limit: 1e-6})
        except LaunchFailed as error:
            return error
        return None  # its program was quicker than its keeper

    error = until(refused, "that a start is ended")
    assert str(error).startswith(f"the {limit} of 1e-06 s passed before the program was started") and error.subject == limit


def test_the_stop_signal_comes_first_where_there_is_a_grace():
    ended = dockless.run(["/bin/sh", "-c", "trap 'exit 7' TERM; sleep 1000 & wait"], idle_timeout=0.3, grace=1000)
    assert (ended.limit, ended.returncode) == ("idle_timeout", 7)


def test_what_was_executed_keeps_it_and_its_end_begins_the_time_anew():
    with Sandbox(FOREVER, stdin=DEVNULL, idle_timeout=0.4) as box:
        assert box.exec("sleep", "1").returncode == 0, "it was ended although something ran that was executed"
        record = box.process.record
        before = record().active
        with box.spawn("cat", stdin=dockless.PIPE, stdout=DEVNULL) as command:
            began = until(lambda: (now := record().active) > before and now, "that its beginning counts")
            command.stdin.close()
            command.wait(20)
        until(lambda: record().active > began, "that its end counts")
        assert box.wait(20).limit == "idle_timeout"


def test_a_file_call_counts_and_an_agent_that_waits_for_one_does_not():
    with Sandbox(FOREVER, stdin=DEVNULL, idle_timeout=1) as box:
        box.files.exists("/etc")
        told = box.process.record().active
        end = time.monotonic() + 20
        while box.process.record().active == told and time.monotonic() < end:
            assert box.files.exists("/etc")
        assert box.process.record().active > told, "the calls of an agent that is there already are not seen"
        assert box.wait(20).limit == "idle_timeout", "an agent that is open keeps it"


@requires("cgroup2")
def test_what_an_exec_left_running_is_no_activity_when_it_ends():
    """With the host's PID namespace its keeper adopts that."""
    leaves = "(while :; do (sleep 0.1 & exit 4); sleep 0.05; done) >/dev/null 2>&1 &"
    with Sandbox(FOREVER, stdin=DEVNULL, idle_timeout=0.5, namespaces=Namespaces(pid="host")) as box:
        assert box.exec("sh", "-c", leaves).returncode == 0
        assert box.wait(20).limit == "idle_timeout"


def test_looking_at_it_is_no_activity():
    box = dockless.start(FOREVER, idle_timeout=0.5)
    until(lambda: box.inspect()["state"] == "exited", "its end while somebody looks")
    assert box.poll().limit == "idle_timeout"
    box.rm()


def test_a_terminal_keeps_no_sandbox_that_is_idle():
    box = dockless.start(["sh", "-c", "echo up; exec sleep 1000"], idle_timeout=0.3, tty=True)
    until(lambda: any(b"up" in line.text for line in box.logs()), "its terminal is read")
    assert box.wait(20).limit == "idle_timeout"
    box.rm()


@pytest.mark.parametrize("kind", ["foreground", "detached"])
def test_an_end_that_moves(kind):
    def begin(**options):
        return dockless.start(FOREVER, **options) if kind == "detached" else Sandbox(FOREVER, stdin=DEVNULL, **options)

    with begin(ttl=1) as box:
        ends = box.inspect()["ends"]
        assert 0 < ends - box.inspect()["created"] <= 1.5
        later = box.extend("1h")
        assert later > ends + 1000 and box.inspect()["ends"] == later
        with pytest.raises(TimeoutError):
            box.wait(1.1)
        sooner = box.extend(0.1)
        assert sooner < later and box.wait(20).limit == "ttl"
        with pytest.raises(SandboxGone):
            box.extend(1)
    with begin() as box:
        for bad in (0, 1e10):
            with pytest.raises(BadInput):
                box.extend(bad)
        assert box.inspect()["ends"] is None
        box.extend(0.1)
        assert box.wait(20).limit == "ttl", "a time to live can be given to one that has none"
    with begin(timeout=0.5) as box:
        box.extend(1000)
        assert box.wait(20).limit == "timeout", "a time to live does not move the timeout"
    for box in dockless.list():
        box.rm()


@pytest.mark.parametrize("kind", ["foreground", "detached"])
def test_many_who_move_its_end_at_the_same_time_do_so_one_after_the_other(kind):
    """Each is told of no error, and the last one's word is written down."""
    box = dockless.start(FOREVER) if kind == "detached" else Sandbox(FOREVER, stdin=DEVNULL)
    with box, ThreadPoolExecutor(8) as threads:
        said = [*threads.map(lambda number: Sandbox.open(box.id).extend(1000 + number), range(80))]
        assert box.inspect()["ends"] in said
        assert box.extend(5000) == box.inspect()["ends"]
    if kind == "detached":
        box.rm(force=True)


def test_on_the_command_line():
    def cli(*arguments: str, code: int = 0) -> str:
        ran = subprocess.run([sys.executable, "-P", "-m", "dockless", *arguments], capture_output=True, text=True, env=os.environ)
        assert ran.returncode == code, (ran.stdout, ran.stderr)
        return ran.stdout + ran.stderr

    said = cli("run", "-i", "--idle-timeout", "200ms", "--", *FOREVER, code=124)
    assert "was idle for too long after 200ms" in said
    cli("run", "-d", "--name", "living", "--ttl", "1h", "--", *FOREVER)
    cli("update", "--ttl", "100ms", "living")
    cli("wait", "living", code=124)
    assert "ttl over" in cli("ps", "-a")
    assert json.loads(cli("inspect", "living"))[0]["exit"]["limit"] == "ttl"
    cli("rm", "living")
