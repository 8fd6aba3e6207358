"""Restart policies: who restarts a sandbox, until when, and what becomes of it when that cannot be done."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from support import disks
from support.boxes import alive, load, log_paths, until
from support.requires import requires

import dockless
from dockless.cli import main
from dockless.errors import BadInput, ImageInUse, Killed, NotEnoughGpus, Unsupported
from dockless.sandbox.plan.plan import SLOT_RESTART_LOCK, SLOT_STATE
from dockless.sandbox.restart import Restart, parse_restart
from dockless.sandbox.run import restarting
from dockless.sandbox.run.host_names import group_name, is_restarter

pytestmark = requires("userns")


@pytest.fixture
def start():
    """``dockless.start`` of a script; all is removed afterwards."""
    yield lambda script, **options: dockless.start(["/bin/sh", "-c", script], **options)
    for box in dockless.list():
        box.rm(force=True)


@pytest.fixture
def slow(monkeypatch):
    """What is started now is restarted after an hour."""
    monkeypatch.setattr(restarting, "FIRST", 3600.0)


def written(box):
    return b"".join(row.text + b"\n" for row in box.logs()).decode()


def restarter(box):
    return int((box.inner.directory / "restart").read_bytes()[:10])


def processes(box):
    """Those that are there for it outside."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if group_name(box.inner.directory).encode() in command:
            found.append(int(pid))
    return found


def test_on_failure_so_many_times(start):
    box = start("echo ran; exit 4", id="box", restart="on-failure:2")
    until(lambda: box.inspect()["restarts"] == 2 and box.state == "exited", "it is given up")
    about = box.inspect()
    assert (about["restart"], about["exit_code"], about["reason"], written(box)) == ("on-failure:2", 4, "", "ran\n" * 3)
    until(lambda: not processes(box), "nothing waits")
    box.start()
    until(lambda: written(box) == "ran\n" * 6, "it is counted from the beginning")


def test_what_succeeds_is_not_started_anew(start, tmp_path):
    tmp_path.chmod(0o755)
    where = tmp_path / "shared"
    where.mkdir()
    where.chmod(0o777)
    (where / "first").touch(0o666)
    box = start("[ -e /mnt/second ]", mounts=[f"{where}:/mnt:ro"], restart="on-failure")
    until(lambda: box.inspect()["restarts"] > 0, "it failed")
    (where / "second").touch()
    until(lambda: box.state == "exited", "it succeeded")
    assert box.poll().code == 0 and not box.poll().restarting
    until(lambda: not processes(box), "nothing waits")


def test_a_life_that_is_over_is_over_for_good(start, slow):
    box = start("sleep 1000", restart="always")
    box.extend(0.1)
    assert box.wait(20).limit == "ttl"
    until(lambda: not processes(box), "nobody waits to restart it")
    assert box.state == "exited"


@pytest.mark.parametrize("end", [lambda box: box.stop(0), lambda box: box.kill(), lambda box: box.send_signal(signal.SIGTERM)])
def test_until_somebody_ends_it(start, end):
    """Whatever ends the run by itself does not; a signal that is not the stop signal does not either."""
    box = start("echo ran; exec sleep 1000", restart="always")
    until(lambda: written(box) == "ran\n", "it runs")
    box.send_signal(signal.SIGINT)
    until(lambda: box.state == "running" and written(box) == "ran\n" * 2, "it runs again")
    end(box)
    until(lambda: box.state == "exited", "it has ended")
    until(lambda: not processes(box), "nothing waits")
    assert box.inspect()["reason"] == "" and box.inspect()["restarts"] == 1 and written(box) == "ran\n" * 2
    box.start()
    assert box.state == "running" and box.inspect()["restarts"] == 0 and len(processes(box)) >= 2
    box.restart(0)
    assert box.state == "running"


def restarters(box):
    return [pid for pid in processes(box) if is_restarter(pid, box.inner.directory)]


def test_another_policy_while_it_runs(start):
    """What has none gets one, what has one another or none; each time one restarter is there, or none."""
    box = start("echo ran; until [ -e /tmp/end ]; do sleep 0.02; done; rm /tmp/end; exit $(cat /tmp/code)")

    def end(code: int) -> None:
        with contextlib.suppress(Killed):  # by the end that it asks for
            box.shell(f"echo {code} > /tmp/code; touch /tmp/end", check=True)

    def runs_again(times: int) -> bool:
        return written(box) == "ran\n" * times and box.state == "running"

    box.update(restart="always")
    assert len(restarters(box)) == 1 and box.inspect()["restart"] == "always"
    end(0)
    until(lambda: runs_again(2), "it runs again")
    for policy in ("unless-stopped", "on-failure:3"):
        box.update(restart=policy)
        assert restarters(box) == [restarter(box)]
    end(1)
    until(lambda: runs_again(3) and box.inspect()["restarts"] == 2, "it failed, and runs again")
    box.update(restart="always")
    box.update(restart="on-failure")
    end(0)
    until(lambda: box.state == "exited" and not processes(box), "it succeeded")
    assert box.poll().code == 0
    box.update(restart="always")  # holds from the next start on
    assert box.state == "exited"
    box.start()
    box.update(restart="no")
    assert not restarters(box)
    end(1)
    until(lambda: box.state == "exited" and not processes(box), "it is not restarted")
    assert written(box) == "ran\n" * 4


def test_another_policy_is_counted_and_survives_its_keeper(start, slow):
    box = start("sleep 1000", restart="on-failure:1")
    box.update(restart="always")
    os.kill(box.inner.pid, signal.SIGKILL)
    until(lambda: box.state == "restarting", "it waits")
    box.update(restart="no")
    until(lambda: box.state != "restarting" and not processes(box), "nothing waits")


def test_what_cannot_have_another_policy(start, capfd):
    box, brief = start("sleep 1000", id="box"), start("sleep 1000", ttl=1000)
    with pytest.raises(BadInput, match="no restart policy"):
        box.update(restart="sometimes")
    with pytest.raises(BadInput, match="ttl"):
        brief.update(restart="always")
    assert main(["update", "--restart", "always", "box"]) == 0 and box.inspect()["restart"] == "always"
    assert main(["update", "--restart", "often", "box"]) == 125 and "on-failure:N" in capfd.readouterr().err
    with dockless.Sandbox(["sleep", "100"]) as held, pytest.raises(Unsupported, match="foreground"):
        held.update(restart="always")


def test_while_it_waits(start, slow, capfd):
    box = start("exit 5", id="box", restart="unless-stopped")
    until(lambda: box.state == "restarting", "it waits")
    assert box.poll().code == 5 == box.wait(20).code and [one.id for one in dockless.list(state="restarting")] == ["box"]
    assert main(["ps"]) == 0 and "restarting: exit 5" in capfd.readouterr().out
    for forbidden in (box.start, box.rm):
        with pytest.raises(BadInput):
            forbidden()
    box.rename("other")
    box.stop()
    assert (box.id, box.state, processes(box)) == ("other", "exited", [])
    box.start()
    until(lambda: box.state == "restarting", "it waits")
    box.kill()
    assert (box.state, processes(box)) == ("exited", [])
    box.start()
    until(lambda: box.state == "restarting", "it waits")
    box.restart()
    until(lambda: box.state == "restarting", "it waits")
    pid = restarter(box)
    box.rm(force=True)
    assert dockless.list() == []
    until(lambda: not os.path.exists(f"/proc/{pid}"), "nothing waits")


def test_a_keeper_that_was_killed(start, slow):
    """Is a failure: how it ended is written down, and it is restarted."""
    box = start("sleep 1000", restart="on-failure")
    os.kill(box.inner.pid, signal.SIGKILL)
    until(lambda: box.state == "restarting", "it is noticed")
    assert box.wait(20).lost and box.poll().signal == signal.SIGKILL
    box.stop()
    assert box.state == "exited" and box.poll().lost


def test_a_restarter_that_was_killed_is_said(start, slow, capfd):
    box = start("exit 5", id="box", restart="unless-stopped")
    until(lambda: box.state == "restarting", "it waits")
    os.kill(restarter(box), signal.SIGKILL)
    until(lambda: box.state == "exited", "it waits no more")
    assert box.inspect()["reason"] == "it was to be restarted, and what waited for that was killed"
    assert main(["ps", "-a"]) == 0 and "what waited for that was killed" in capfd.readouterr().out
    assert main(["start", "--all"]) == 0
    until(lambda: box.state == "restarting", "it waits again")
    assert box.inspect()["reason"] == ""
    running = start("sleep 1000", restart="always")
    os.kill(restarter(running), signal.SIGKILL)
    running.stop(0)
    assert running.state == "exited"


def test_a_try_that_fails_is_said_and_made_again(start, tmp_path):
    program = tmp_path / "bin" / "program"
    program.parent.mkdir()
    tmp_path.chmod(0o755)
    program.write_text("#!/bin/sh\necho ran; exit 1\n")
    program.chmod(0o755)
    box = dockless.start(["/mnt/program"], restart="always", mounts=[f"{program.parent}:/mnt:ro"])
    program.rename(tmp_path / "away")
    until(lambda: "/mnt/program: no such file" in box.inspect()["reason"], "the reason is there")
    about = box.inspect()
    assert about["state"] == "restarting" and about["exit_code"] and about["reason"].startswith("it could not be restarted: ")
    count = about["restarts"]
    (tmp_path / "away").rename(program)
    until(lambda: box.inspect()["restarts"] > count, "it runs again")
    until(lambda: box.inspect()["reason"] == "", "nothing is wrong any more")


def test_tries_are_bounded_too(start, tmp_path):
    program = tmp_path / "bin" / "program"
    program.parent.mkdir()
    tmp_path.chmod(0o755)
    program.write_text("#!/bin/sh\nrm -f /tmp/x; exit 1\n")
    program.chmod(0o755)
    box = dockless.create(["/mnt/program"], restart="on-failure:2", mounts=[f"{program.parent}:/mnt:ro"])
    box.start()
    program.unlink()
    until(lambda: box.state == "exited", "it is given up")
    # 2 where it was taken away before the first shell had read it
    assert "/mnt/program: no such file" in box.inspect()["reason"] and box.poll().code in (1, 2)


@requires("root")
def test_a_full_disk_is_said_and_loses_nothing(tmp_path, slow, monkeypatch):
    """While it waits; there is room again later."""
    with disks.small(tmp_path / "disk", "size=4m") as disk:
        monkeypatch.setenv("DOCKLESS_HOME", str(disk))
        monkeypatch.setattr(restarting, "FIRST", 1.0)
        box = dockless.start(["/bin/sh", "-c", "exit 5"], restart="always")
        until(lambda: box.state == "restarting", "it waits")
        known, ballast = box.inner.document, disks.fill(disk)
        until(lambda: "No space left on device" in box.inspect()["reason"], "the reason is there")
        about = box.inspect()
        assert (about["state"], about["exit_code"], about["restarts"]) == ("restarting", 5, known.restarts) and box.inner.document == known
        ballast.unlink()
        until(lambda: box.inspect()["restarts"] > known.restarts, "it runs again")
        disks.fill(disk)
        box.stop()
        assert box.state == "exited" and processes(box) == []
        box.rm()


@pytest.mark.parametrize("put", [lambda file: file.symlink_to("/etc/passwd"), os.mkfifo, lambda file: file.write_text("x")])
def test_something_else_in_its_place(start, put):
    box = start("sleep 1000", restart="always")
    file, own = box.inner.directory / "restart", restarter(box)
    file.unlink()
    put(file)
    assert box.state == "running" and box.inspect()["reason"] in ("", "it could not be restarted: ")
    box.stop(0)
    assert box.state == "exited" and not os.path.lexists(file)
    until(lambda: own not in processes(box), "who finds another file does nothing")


def test_nobody_else_is_killed_whatever_the_file_says(start, slow):
    """A bind mount of the state directory could show it inside."""
    box = start("exit 5", restart="always")
    until(lambda: box.state == "restarting", "it waits")
    file, own = box.inner.directory / "restart", restarter(box)
    with subprocess.Popen(["sleep", "1000"]) as victim:
        with open(file, "r+b") as stream:
            stream.write(f"{victim.pid:010}\n".encode())
        box.stop()
        assert victim.poll() is None and not file.exists() and box.state == "exited"
        victim.kill()
    os.kill(own, signal.SIGKILL)


def test_a_directory_that_was_removed_by_hand(start, monkeypatch):
    """Nobody tries for ever to start what is not there."""
    monkeypatch.setattr(restarting, "FIRST", 1.0)
    box = start("exit 5", restart="always")
    until(lambda: box.state == "restarting", "it waits")
    own, group = restarter(box), box.inner.document.cgroup
    shutil.rmtree(box.inner.directory)
    until(lambda: not os.path.exists(f"/proc/{own}"), "nothing waits")
    if group:
        os.rmdir(group)


@pytest.mark.parametrize(
    ("settled", "last", "then"), [(1000, 0, 30.0), (1000, 20, 40.0), (1000, 40, 60.0), (1000, 60, 60.0), (0, 40, 30.0)]
)
def test_pauses_double_up_to_a_minute(start, monkeypatch, settled, last, then):
    """And begin anew after a run that was long enough."""
    monkeypatch.setattr(restarting, "SETTLED", float(settled))
    monkeypatch.setattr(restarting, "FIRST", 30.0)
    box = start("exec sleep 1000", restart="always")
    file = box.inner.directory / "restart"
    with file.open("r+b") as stream:
        stream.seek(restarting._PAUSE_AT)
        stream.write(restarting._PAUSE.pack(last * 10**9, 0))
    assert box.inspect()["next_start"] is None
    os.kill(box.inner.pid, signal.SIGKILL)
    due = until(lambda: restarting.due(box.inner.directory), "it waits")
    pause = restarting._PAUSE.unpack(file.read_bytes()[restarting._PAUSE_AT :][: restarting._PAUSE.size])[0] / 1e9
    assert pause == then and box.poll().ended + then <= due == box.inspect()["next_start"] <= time.time() + then


def test_what_is_restarted_waits_longer_each_time(start):
    """Also by a try that fails; a start by somebody begins anew."""
    box, seen = start("exit 1", restart="always"), set()
    file = box.inner.directory / "restart"

    def pause() -> int:
        seen.add(restarting._PAUSE.unpack(file.read_bytes()[restarting._PAUSE_AT :][: restarting._PAUSE.size])[0] // 10**6)
        return max(seen)

    until(lambda: pause() >= 800, "it was restarted three times")
    assert seen <= {0, 100, 200, 400, 800}
    box.stop()
    box.start()
    seen.clear()
    until(lambda: pause() >= 100, "it waits again")
    assert seen <= {0, 100, 200}


def test_a_python_that_is_gone_is_said(start, monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    box = start("exit 1", restart="always")
    until(
        lambda: "/nowhere/python, cannot be executed: No such file or directory; start it again" in box.inspect()["reason"],
        "the reason is there",
    )
    assert box.state == "restarting"


_SHOWN = """#!{python} -I
import json, os, signal, sys, time
fds = {{}}
for fd in os.listdir("/proc/self/fd"):
    try:
        fds[fd] = os.readlink(f"/proc/self/fd/{{fd}}")
    except FileNotFoundError:  # by which they are listed
        pass
seen = [os.getpid(), fds, os.umask(0), sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))]
with open("{seen}.new", "w") as out:
    json.dump(seen, out)
os.rename("{seen}.new", "{seen}")
{then}
"""


def in_place_of_python(tmp_path, monkeypatch, then):
    """What restarts a sandbox is a program that writes down what it finds. Where that is written."""
    program, seen = tmp_path / "python", tmp_path / "seen"
    program.write_text(_SHOWN.format(python=sys.executable, seen=seen, then=then))
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    return seen


def test_what_restarts_it_has_two_descriptors_and_ends_with_the_restarter(start, tmp_path, monkeypatch):
    """The sandbox's directory and the lock. The restarter itself has no more, and is in a session of its own."""
    seen = in_place_of_python(tmp_path, monkeypatch, "time.sleep(1000)")
    box = start("exit 1", restart="always")
    until(seen.exists, "it was executed")
    pid, fds, umask, blocked = json.loads(seen.read_text())
    own, place = restarter(box), str(box.inner.directory)
    two = {str(SLOT_STATE): place, str(SLOT_RESTART_LOCK): f"{place}/restart"}
    try:
        assert fds == {**dict.fromkeys("012", "/dev/null"), **two}
        assert (umask, blocked) == (0o077, [])
        assert os.getsid(own) == own == os.getsid(pid)
        if os.geteuid() == 0:  # to look into it
            assert {fd: os.readlink(f"/proc/{own}/fd/{fd}") for fd in os.listdir(f"/proc/{own}/fd")} == two
            assert os.readlink(f"/proc/{own}/cwd") == "/"
        else:
            assert os.stat(f"/proc/{own}/environ").st_uid == 0, "others of ours may look into it"
        os.kill(own, signal.SIGKILL)
        until(lambda: not alive(pid), "its end")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_python_that_is_killed_is_said(start, tmp_path, monkeypatch):
    in_place_of_python(tmp_path, monkeypatch, "os.kill(os.getpid(), signal.SIGTERM)")
    box = start("exit 1", restart="always")
    until(lambda: "what was to start it was killed by signal: 15" in box.inspect()["reason"], "the reason is there")
    assert box.state == "restarting"


@requires("root")
def test_root_keeps_no_place_for_modules_that_another_could_make(tmp_path, monkeypatch):
    """Gone or there, by any directory above it, by a link, and below /tmp in spite of its sticky bit."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 1, 1)
    bad = [str(path) for path in (theirs, theirs / "gone", tmp_path / "gone", tmp_path / "link" / "gone")]
    (tmp_path / "link").symlink_to("/usr/lib")
    good = ["/usr/lib/python3", "/usr/lib/nowhere/gone"]
    monkeypatch.setattr("sys.path", [*good, *bad])
    said, *kept = restarting.orders(parse_restart("always"), 0)[restarting._ORDERS.size :].split(b"\0")[4:7]
    assert [os.fsdecode(path) for path in kept] == good
    assert all(path in os.fsdecode(said) for path in bad)


@requires("root")
def test_modules_that_root_left_out_are_said_where_they_are_missing(start, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path / "gone")])
    monkeypatch.setattr("sys.executable", "/usr/bin/python3")
    box = start("exit 1", restart="always")
    until(lambda: "No module named 'dockless'" in (reason := box.inspect()["reason"]) and str(tmp_path) in reason, "the reason is there")


def test_output_is_followed_and_added_to(start):
    box = start("echo ran; exit 1", restart="on-failure:2")
    assert [row.text for row in box.logs(follow=True)] == [b"ran"] * 3


def test_the_log_stays_bounded(start):
    """Each run writes less than the limit."""
    box = start("i=0; while [ $i -lt 50 ]; do echo 0123456789012345678901234567890123456789; i=$((i+1)); done", log_size=16384)
    for _ in range(8):
        box.wait(20)
        box.start()
    box.wait(20)
    assert sum(path.stat().st_size for path in log_paths(box.inner)) < 16384 + 2048


def test_gpus_and_image_are_held_while_it_waits(start, slow, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G")
    image = load(tmp_path, name="again:1")
    box = dockless.start(image, ["/bin/sh", "-c", "exit 1"], restart="always", gpus=1)
    until(lambda: box.state == "restarting", "it waits")
    with pytest.raises(NotEnoughGpus):
        start("true", gpus=1)
    with pytest.raises(ImageInUse):
        dockless.Store().remove(image)


def test_started_anew_with_its_gpus_and_files(start, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    image = load(tmp_path, name="again:1")
    box = dockless.start(image, ["/bin/sh", "-c", "echo x >> /count; cat /count; exit 1"], restart="on-failure:1", gpus=1)
    held = box.gpus
    until(lambda: box.state == "exited", "it is given up")
    assert written(box) == "x\nx\nx\n" and box.gpus == held and box.labels == {"gpus": "simulated"}


def test_stopped_while_it_is_started_anew(start):
    """Whoever stops it wins, however the two meet."""
    box = start("exit 1", restart="always")
    for _ in range(5):
        box.stop(0)
        assert box.state == "exited" and not box.inner.alive
        box.start()
    threads = [threading.Thread(target=box.stop, args=(0,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert box.state == "exited"
    until(lambda: not processes(box), "nothing waits")


def test_after_a_boot(start, slow):
    """``always`` also when it was stopped, as Docker has it; what was never started is not."""
    boxes = {when: start("sleep 1000", id=when, restart=when) for when in ("always", "unless-stopped", "on-failure", "no")}
    stopped = start("sleep 1000", id="stopped", restart="unless-stopped")
    stopped.stop(0)
    dockless.create(["true"], id="created", restart="always")
    boxes["always"].stop(0)
    os.kill(restarter(boxes["unless-stopped"]), signal.SIGKILL)
    for when in ("unless-stopped", "on-failure", "no"):
        os.kill(boxes[when].inner.pid, signal.SIGKILL)
    until(lambda: boxes["unless-stopped"].state == "vanished" == boxes["no"].state, "they are gone")
    assert main(["start", "--all", "-q"]) == 0
    assert {one.id for one in dockless.list(state="running")} == {"always", "unless-stopped"}


def test_what_is_no_policy(start, capfd):
    assert (parse_restart("on-failure:3"), parse_restart("no"), str(Restart("always"))) == (Restart("on-failure", 3), Restart(), "always")
    for text in ("", "sometimes", "always:3", "on-failure:", "on-failure:0", "on-failure:-1", "on-failure:x", "no:1", "on-failure:³"):
        with pytest.raises(BadInput, match="is no restart policy"):
            parse_restart(text)
    with pytest.raises(BadInput, match="exclude each other"):
        start("true", restart="always", remove=True)
    with pytest.raises(BadInput, match="and ttl, which each start would begin anew"):
        start("true", restart="always", ttl="1h")
    with pytest.raises(TypeError, match=r"use dockless\.start or dockless\.create"):
        dockless.run(["true"], restart="always")
    for words in (["run", "--restart", "always", "--", "true"], ["run", "-d", "--rm", "--restart", "always", "--", "true"], ["start"]):
        assert main(words) == 125
    assert "--restart needs -d" in capfd.readouterr().err and dockless.list() == []


def test_who_enters_while_it_is_restarted_waits_for_its_program(start):
    """Its keeper is there, and says so, before all is mounted."""
    box = start("exec sleep 1000", restart="always", tmpfs=[f"/tmp/{n}" for n in range(60)])
    for _ in range(3):
        before = box.inner.pid
        os.kill(before, signal.SIGKILL)
        until(lambda before=before: box.inner.pid not in (0, before), "it has a keeper again")
        assert box.exec("echo", "in", text=True, check=True).stdout == "in\n"


@requires("root")
@pytest.mark.parametrize(("mode", "alone"), [(0o755, True), (0o775, False), (0o757, False)])
def test_who_else_may_write_there(mode, alone):
    """What root's restarter is to import belongs to root alone: no group may write there, either."""
    with tempfile.TemporaryDirectory(dir="/run") as place:
        os.chmod(place, mode)
        assert restarting._is_roots_alone(place) is restarting._is_roots_alone(f"{place}/new") is alone
