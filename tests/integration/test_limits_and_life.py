"""Real limits of cgroup v2 and what belongs to a sandbox's life: its health, its restarts, its pauses, its events."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from support.boxes import until
from support.requires import requires

import dockless
from dockless import DEVNULL, HealthCheck
from dockless.errors import CheckFailed, Killed, OutOfMemory, TimedOut

pytestmark = requires("userns", "cgroup2:memory", "cgroup2:pids")

MIB = 1 << 20
FOREVER = ["/bin/sh", "-c", "while sleep 1000; do :; done"]
EATS = "exec tail </dev/zero"


@pytest.fixture
def start():
    yield lambda script, **options: dockless.start(["/bin/sh", "-c", script], **options)
    for box in dockless.list():
        box.rm(force=True)


def test_a_check_is_counted_with_its_sandbox_and_lives_in_a_cgroup_below(start):
    check = HealthCheck(["/bin/sh", "-c", f"cat /proc/self/cgroup; {EATS}"], interval=0.2, retries=1, timeout=60)
    box = start(FOREVER[-1], memory=32 * MIB, health=check)
    found = until(lambda: (health := box.health) and health.count and health, "a check", 120)
    assert found.exit_code == 137 and found.status == "unhealthy", found
    assert "/health" in found.output, found
    usage = box._found.usage()
    assert usage is not None and usage.oom_kills and box.state == "running"


def test_a_policy_starts_what_ran_out_of_memory_and_events_say_so(start):
    told = []
    with dockless.events() as events:
        box = start(f"test -e /tmp/x || {{ touch /tmp/x; {EATS}; }}; sleep 1000", memory=32 * MIB, restart="on-failure:3")
        while told.count("start") < 2:
            told.append(next(events).kind)
    assert told == ["create", "start", "oom", "die", "start"]
    assert box.state == "running" and box.inspect()["restarts"] == 1


def test_the_command_line_tells_that_memory_ran_out_while_it_runs_and_afterwards(start):
    command = [sys.executable, "-P", "-m", "dockless", "events", "--json", "--since", "1h"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        box = start(f"({EATS}); echo survived; read x", memory=32 * MIB, interactive=True, id="short")
        for line in following.stdout:
            event = json.loads(line)
            if event["kind"] == "oom":
                break
        assert event["id"] == "short" and box.state == "running", "told before its end"
        box.kill()
        assert [json.loads(following.stdout.readline())["kind"] for _ in range(2)] == ["kill", "die"]
        following.send_signal(signal.SIGINT)
    past = subprocess.run([*command, "--until", "0s", "-f", "event=oom"], capture_output=True, text=True, check=True)
    assert [json.loads(line)["id"] for line in past.stdout.splitlines()] == ["short"]


def end_of(error):
    """What a result says of an end that raised ``error``."""
    result = error.result
    return type(error), result.oom_killed, result.limit, result.signal, result.lost, result.exit_code


@pytest.mark.parametrize(
    ("script", "options", "expected"),
    [
        (EATS, {}, (OutOfMemory, True, "", 9, False, 137)),
        (f"({EATS}); exit 3", {}, (OutOfMemory, True, "", None, False, 3)),
        ("kill -9 $$", {}, (Killed, False, "", 9, False, 137)),
        ("while :; do :; done", {"timeout": 4}, (TimedOut, False, "timeout", 9, False, 124)),
        (f"({EATS}); while :; do :; done", {"idle_timeout": 15}, (TimedOut, True, "idle_timeout", 9, False, 124)),
        ("exit 3", {}, (CheckFailed, False, "", None, False, 3)),
    ],
)
def test_ends_are_told_apart_where_limits_are_real(script, options, expected):
    with pytest.raises(CheckFailed) as told:
        dockless.run(["/bin/sh", "-c", script], memory=32 * MIB, check=True, **options)
    assert end_of(told.value) == expected


def test_one_that_is_lost_did_not_run_out_of_memory():
    with dockless.Sandbox(FOREVER, memory=32 * MIB, stdin=DEVNULL) as box:
        os.kill(box.process.keeper_pid, signal.SIGKILL)
        ended = box.wait(120)
    assert (ended.lost, ended.oom_killed, ended.timed_out, ended.killed, ended.exit_code) == (True, False, False, False, 137)


def test_a_pause_stops_checks_and_a_limit_that_moves_is_seen_inside(start):
    box = start(FOREVER[-1], memory=64 * MIB, health=HealthCheck(["true"], interval=0.1))
    box.wait_healthy(60)
    box.pause()
    count = box.health.count
    with pytest.raises(TimeoutError):
        box.wait(1.0)
    assert box.health.count in (count, count + 1), "one may have been at its end"
    box.resume()
    until(lambda: box.health.count > count + 1, "checks go on", 60)
    box.update(memory=96 * MIB)
    assert box.exec("cat", "/sys/fs/cgroup/memory.max", text=True).stdout == f"{96 * MIB}\n"


def test_what_is_executed_has_a_cgroup_of_its_own_below(start):
    box = start(FOREVER[-1], memory=64 * MIB)
    said = box.exec("cat", "/proc/self/cgroup", text=True).stdout
    assert "/exec-" in said, said
    ran = box.exec("/bin/sh", "-c", EATS)
    assert ran.oom_killed and ran.returncode, ran
    assert box.exec("true").returncode == 0 and box.state == "running"


def test_an_idle_sandbox_ends_also_when_it_has_hardly_any_cpu(start):
    box = start("while :; do :; done", cpus=0.2, idle_timeout=4)
    ended = box.wait(120)
    assert ended.limit == "idle_timeout" and ended.exit_code == 124
