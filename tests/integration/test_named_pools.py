"""``dockless pool`` and ``run --pool``: sandboxes that wait in a process of their own, and what a taker has of them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.boxes import load, until
from support.make_image import file
from support.requires import requires

import dockless
from dockless.base import paths
from dockless.cgroups import find_delegation
from dockless.errors import BadInput, NotEnded
from dockless.sandbox.run import named_pools
from dockless.sandbox.run.places import GROUP, root
from dockless.sandbox.run.removal import remove_tree

pytestmark = requires("userns", "overlay")
COMMAND = [sys.executable, "-P", "-m", "dockless"]


def call(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"capture_output": True, "text": True, "timeout": 60} | options
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([*COMMAND, *arguments], **options)


def places() -> set[str]:
    """What sandboxes and pools of this state directory have on disk."""
    return {path.name for place in (root("running"), named_pools.place()) if place.is_dir() for path in place.iterdir()}


def groups(ids: set[str]) -> list[Path]:
    """The cgroups of sandboxes, where this host has a place for them."""
    place = find_delegation(ask_systemd=False)
    return [path for id in ids if (path := place.home / f"{GROUP}{id}").exists()] if place.path is not None else []


def info(name: str) -> named_pools.PoolInfo:
    return next(pool for pool in named_pools.list_all() if pool.name == name)


def is_full(name: str) -> bool:
    return info(name).waiting == info(name).size


@contextmanager
def pool(name: str, *arguments: str) -> Iterator[named_pools.PoolInfo]:
    """A pool that is gone afterwards, with all that it had."""
    made = call("pool", "create", name, *arguments)
    assert (made.returncode, made.stdout) == (0, f"{name}\n"), made
    process = info(name).pid
    try:
        yield info(name)
    finally:
        call("pool", "rm", name)
        until(lambda: not Path(f"/proc/{process}").exists(), "that its process has ended")


@pytest.fixture(autouse=True)
def leaves_nothing(home: Path) -> Iterator[None]:
    before = places()
    yield
    until(lambda: places() <= before, "that nothing of a pool is left")


def ticks(pid: int) -> int:
    """Of processors, that a process has used. proc_pid_stat(5)"""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))


def shell(name: str, script: str, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return call("run", "--pool", name, *options, "--", "sh", "-c", script, **more)


def test_a_program_has_its_taker_streams_code_and_variables(tmp_path: Path):
    ref = load(tmp_path, [], workdir="/usr", entrypoint=["/bin/echo", "of the image"])
    with pool("a", "--size", "2", "-e", "A=1", "--entrypoint", "", ref):
        done = shell("a", "pwd; echo $A $B; cat; echo err >&2; exit 7", "-e", "B=2", "-w", "/etc", input="typed\n")
        assert (done.returncode, done.stdout, done.stderr) == (7, "/etc\n1 2\ntyped\n", "err\n")
        assert shell("a", "kill -TERM $$").returncode == 143
        assert (missing := call("run", "--pool", "a", "--", "no-such")).returncode == 127 and "command not found" in missing.stderr
        assert call("run", "--pool", "a", "--", "/etc").returncode == 126
        gone = shell("a", "true", "-w", "/missing")
        assert gone.returncode == 125 and "the working directory /missing does not exist" in gone.stderr
        assert call("run", "--pool", "a").returncode == 125, "without an entry point there is no command"
    with pool("a", ref):
        assert call("run", "--pool", "a").stdout == call("run", "--pool", "a", ref).stdout == call("run", ref).stdout != ""
        assert call("run", "--pool", "a", "--", "given").stdout == "of the image given\n"


STATE = """
pwd; id; umask; ulimit -a; env | sort; ls -l /proc/self/fd | sed 's/.* //; s/pipe:.*/pipe/'; readlink /proc/self/cwd
grep -v -e '^[VR][ms]' -e pid -e Pid -e Tgid -e switches -e Cpus -e Mems -e HugetlbPages /proc/self/status
cat /proc/self/oom_score_adj /proc/self/mountinfo | sed 's/^[0-9]* [0-9]* [0-9:]* //; s/[su].*dir=[^ ]*//g; s/s-[0-9a-f]*//g'
"""


@pytest.mark.parametrize("options", [(), ("--profile", "untrusted"), ("--root", "tmpfs", "-u", "1000:100", "--cap-drop", "ALL")], ids=str)
def test_a_program_finds_what_it_finds_in_any_sandbox(tmp_path: Path, options: tuple[str, ...]):
    ref = load(tmp_path, [])
    with pool("same", *options, ref):
        warm = shell("same", STATE)
    cold = call("run", *options, ref, "--", "sh", "-c", STATE)
    assert warm.stdout == cold.stdout and len(warm.stdout.splitlines()) > 40 and warm.returncode == 0


def test_each_is_used_once_and_another_begins(tmp_path: Path):
    ref = load(tmp_path, [])
    with pool("once", "--size", "2", ref):
        for turn in range(5):
            assert shell("once", f"cat /mark 2> /dev/null; echo {turn} > /mark; cat /mark").stdout == f"{turn}\n"
        until(lambda: is_full("once"), "that it is full again")
        assert info("once").taken == 5


def test_many_at_once_take_more_than_wait(tmp_path: Path):
    ref = load(tmp_path, [])
    with pool("many", "--size", "2", ref):
        running = [
            subprocess.Popen(
                [*COMMAND, "run", "--pool", "many", "--", "sh", "-c", f"echo {n}; sleep 0.2"], stdout=subprocess.PIPE, text=True
            )
            for n in range(12)
        ]
        assert sorted(int(process.communicate(timeout=60)[0]) for process in running) == [*range(12)]
        assert [process.returncode for process in running] == [0] * 12
        until(lambda: is_full("many"), "that it is full again, and no fuller")


def test_signals_reach_the_program_and_a_killed_taker_ends_it(tmp_path: Path):
    ref = load(tmp_path, [])
    with pool("signals", ref):
        script = "trap 'echo got; exit 9' TERM; echo up; while :; do sleep 0.05; done"
        taker = subprocess.Popen([*COMMAND, "run", "--pool", "signals", "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
        assert taker.stdout is not None and taker.stdout.readline() == "up\n"
        taker.terminate()
        assert taker.communicate(timeout=30)[0] == "got\n" and taker.returncode == 9
        taker = subprocess.Popen([*COMMAND, "run", "--pool", "signals", "--", "sh", "-c", "echo up; sleep 1000"], stdout=subprocess.PIPE)
        assert taker.stdout is not None and taker.stdout.readline() == b"up\n"
        until(lambda: dockless.list(state="running"), "that it can be found")
        (box,) = dockless.list(state="running")
        taker.kill()
        taker.communicate(timeout=30)
        until(lambda: not box.inner.directory.exists(), "that its sandbox is gone")


def test_what_is_taken_is_a_sandbox_as_any_other(tmp_path: Path):
    ref = load(tmp_path, [])
    with pool("listed", "-l", "of=pool", "--timeout", "50s", ref):
        assert call("ps", "--all", "-q").stdout == "", "those that wait are not listed"
        taker = subprocess.Popen([*COMMAND, "run", "--pool", "listed", "-w", "/etc", "--", "sleep", "1000"])
        until(lambda: dockless.list(state="running"), "that it is listed")
        (box,) = dockless.list(labels={"of": "pool"})
        assert box.spec.argv == ("sleep", "1000") and box.exec("pwd", text=True).stdout == "/etc\n"
        call("pool", "rm", "listed")
        time.sleep(0.2)
        assert taker.poll() is None, "what was taken goes on"
        box.kill()
        assert taker.wait(30) == 137


def test_deadlines_begin_when_it_is_taken(tmp_path: Path):
    ref = load(tmp_path, [])
    with pool("late", "--timeout", "1s", ref):
        time.sleep(1.2)
        assert shell("late", "echo there").stdout == "there\n"
        done = shell("late", "sleep 100")
        assert done.returncode == 124 and "timed out after 1s" in done.stderr


def test_a_terminal_of_its_own(tmp_path: Path):
    ref = load(tmp_path, [])
    with pool("tty", "-t", ref):
        done = shell("tty", "tty; exit 3")
        assert done.returncode == 3 and "/dev/" in done.stdout
    with pool("plain", ref):
        assert (
            no := shell("plain", "true", "-t")
        ).returncode == 125 and "--tty differs from what the pool plain was made with" in no.stderr


# -- the pool


def test_list(tmp_path: Path):
    ref = load(tmp_path, [file("which", "old\n")])
    with pool("one", "--size", "3", "--expire", "0", "-l", "a=b", ref) as found:
        assert (found.size, found.waiting, found.taken, found.expire, found.newer) == (3, 3, 0, 0.0, False)
        (row,) = json.loads(call("pool", "ls", "--json").stdout)
        assert (row["name"], row["image"], row["pid"], row["labels"], row["failed"]) == ("one", ref, found.pid, {"a": "b"}, "")
        assert 1 << 20 < row["memory"] < 64 << 20
        assert call("pool", "ls", "-q").stdout == "one\n"
        assert "3 of 3" in call("pool", "ls").stdout and "never" in call("pool", "ls").stdout
        threads, children = (Path(f"/proc/{found.pid}/task"), Path(f"/proc/{found.pid}/task/{found.pid}/children"))
        assert len(list(threads.iterdir())) == 1 and len(children.read_text().split()) == 3, "a thread, and a keeper for each"
        load(tmp_path / "new", [file("which", "new\n")])
        dockless.images.Store().prune()
        until(lambda: info("one").newer, "that the store has another image")
        listed = call("pool", "ls")
        assert "(older)" in listed.stdout and f"the store has another {ref}" in listed.stderr
        assert shell("one", "cat /which").stdout == "old\n"
    assert call("pool", "ls", "--json").stdout == "[]\n"


def test_names():
    with pool("taken", "--size", "1"):
        again = call("pool", "create", "taken")
        assert again.returncode == 125 and "there is a pool taken already" in again.stderr
        assert shell("taken", "echo still").stdout == "still\n"
    for arguments in (("run", "--pool", "taken", "--", "true"), ("pool", "rm", "taken")):
        assert (no := call(*arguments)).returncode == 125 and "there is no pool taken" in no.stderr
    assert (no := call("pool", "create", "../x")).returncode == 125 and "pool name '../x' is not usable" in no.stderr
    for arguments in (("create",), ("create", "a", "b", "c"), ("rm",), ("ls", "a"), ("ls", "--size", "2"), ("rm", "a", "-m", "1G")):
        assert call("pool", *arguments).returncode == 125
    assert (no := call("pool", "create", "g", "--gpus", "1")).returncode == 125 and "hold no GPUs" in no.stderr
    assert (no := call("pool", "create", "b", "--size", "1001")).returncode == 125 and "1001 sandboxes" in no.stderr
    assert (
        no := call("pool", "create", "m", "-v", "/no/such:/x")
    ).returncode == 125 and "mount source /no/such does not exist" in no.stderr


@pytest.fixture
def differing(leaves_nothing: None) -> Iterator[None]:
    with pool("p", "--size", "1", "--pids-limit", "50", "--best-effort", "-w", "/tmp"):
        yield


@pytest.mark.parametrize(("options", "flag"), [
    (("-m", "2G"), "--memory"), (("--cpus", "1"), "--cpus"), (("-v", "/etc:/x"), "--volume"), (("-u", "5"), "--user"),
    (("--gpus", "1"), "--gpus"), (("--network", "host"), "--network"), (("--entrypoint", "x"), "--entrypoint"), (("-l", "a=b"), "--label"),
    (("--name", "n"), "--name"), (("-d",), "--detach"), (("--explain",), "--explain"), (("--pull", "always"), "--pull"),
    (("--restart", "always"), "--restart"), (("-t",), "--tty"), (("--profile", "untrusted"), "--profile"),
], ids=str)  # fmt: skip
def test_options_that_differ_are_refused_by_name(differing: None, options: tuple[str, ...], flag: str):
    no = call("run", "--pool", "p", *options, "--", "true")
    assert no.returncode == 125 and flag in no.stderr.split("hint:")[0], no
    assert info("p").taken == 0


def test_options_as_the_pool_has_them_are_taken(differing: None):
    assert shell("p", "pwd", "--pids-limit", "50", "--best-effort", "--network", "none").stdout == "/tmp\n"
    assert (no := call("run", "--pool", "p", "busybox", "--", "true")).returncode == 125 and "the image of the pool p is host" in no.stderr
    assert call("run", "--pool", "p", "host", "--", "true").returncode == 0


def test_json_quiet_and_cidfile(tmp_path: Path):
    with pool("said", "--size", "1"):
        done = call("run", "--pool", "said", "--json", "--cidfile", str(tmp_path / "id"), "--", "false")
        said = json.loads(done.stderr)
        assert (said["exit_code"], said["image"], said["command"]) == (1, "host", ["false"])
        assert (tmp_path / "id").read_text().startswith("s-")


# -- its end


def test_it_ends_when_nobody_takes(tmp_path: Path):
    ref = load(tmp_path, [])
    before = places()
    for seconds in (1, 5, 25):  # until the machine is quick enough for all of it
        assert call("pool", "create", "brief", "--expire", f"{seconds}s", ref).returncode == 0
        if not (found := named_pools.list_all()):
            continue
        began = time.monotonic() - (time.time() - found[0].used)  # and not before it was made, which takes long enough to hide a take
        time.sleep(max(0.0, began + 0.6 * seconds - time.monotonic()))
        taking = time.monotonic()
        taken = shell("brief", "true")
        done = time.monotonic()
        time.sleep(max(0.0, began + 1.1 * seconds - done))
        there = named_pools.list_all()
        in_time = done - began < seconds and time.monotonic() - taking < seconds
        assert not in_time or (taken.returncode == 0 and len(there) == 1), "a take puts it off"
        until(lambda: named_pools.list_all() == [], "that it has ended")
        until(lambda: places() <= before, "that nothing of it is left")
        if in_time:
            return
    pytest.fail("a take lasts longer than 10 s here")


def test_a_pool_that_ends_when_it_is_removed_takes_no_process_of_its_number_along(monkeypatch):
    directory = named_pools.place() / "gone"
    directory.mkdir(parents=True)
    other = subprocess.Popen(["sleep", "1000"])
    try:
        monkeypatch.setattr(named_pools, "read", lambda name: (SimpleNamespace(pid=other.pid), b""))
        with pytest.raises(BadInput, match="no pool gone"):
            named_pools.remove("gone")
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        directory.rmdir()


def test_nothing_is_left_when_its_process_is_killed(tmp_path: Path):
    ref = load(tmp_path, [])
    before = places()
    with pool("killed", "--size", "3", "--pids-limit", "50", "--best-effort", ref) as found:
        keepers = [int(pid) for pid in Path(f"/proc/{found.pid}/task/{found.pid}/children").read_text().split()]
        inits = [int(Path(f"/proc/{pid}/task/{pid}/children").read_text()) for pid in keepers]
        assert len(keepers) == len(inits) == 3
        ids = {path.name for path in root("running").iterdir()}
        assert len(ids) == 3 and len(groups(ids)) in (0, 3)
        os.kill(found.pid, signal.SIGKILL)
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (*keepers, *inits)), "that all of them have ended")
        until(lambda: places() - before <= {"killed"} and not groups(ids), "that nothing of them is left")
        assert named_pools.list_all() == [] and call("run", "--pool", "killed", "--", "true").returncode == 125
    with pool("killed", "--size", "1", ref):
        assert shell("killed", "echo anew").stdout == "anew\n"


def test_one_that_ends_while_it_waits_is_replaced(tmp_path: Path):
    ref = load(tmp_path, [])
    with pool("mended", "--size", "2", ref) as found:
        keepers = Path(f"/proc/{found.pid}/task/{found.pid}/children").read_text().split()
        for pid in keepers:
            os.kill(int(pid), signal.SIGKILL)
        assert shell("mended", "echo there").stdout == "there\n"
        until(lambda: is_full("mended") and info("mended").failed == "", "that it is full again")
        now = Path(f"/proc/{found.pid}/task/{found.pid}/children").read_text().split()
        assert len(now) == 2 and not {*now} & {*keepers}, "and no zombie is left"
        for path in root("running").iterdir():
            remove_tree(path)
        assert shell("mended", "echo there > /mark; cat /mark").stdout == "there\n"


def test_what_can_no_longer_be_made_is_said(tmp_path: Path):
    ref = load(tmp_path, [])
    (tmp_path / "bound").mkdir()
    with pool("failing", "--size", "1", "-v", f"{tmp_path}/bound:/bound", ref) as found:
        (tmp_path / "bound").rmdir()
        assert shell("failing", "echo there").stdout == "there\n", "it was made before"
        until(lambda: "does not exist" in info("failing").failed, "that it says why")
        no = shell("failing", "true")
        assert no.returncode == 125 and "bound" in no.stderr
        spent = ticks(found.pid)
        time.sleep(1.5)
        assert ticks(found.pid) - spent < 0.1 * os.sysconf("SC_CLK_TCK"), "it does not spin"
        (tmp_path / "bound").mkdir()
        until(lambda: is_full("failing") and not info("failing").failed, "that it goes on")
        assert shell("failing", "echo there").stdout == "there\n"


def test_ended_ones_that_were_taken_leave_no_zombie(tmp_path: Path):
    ref = load(tmp_path, [])
    with pool("collected", "--size", "1", ref) as found:
        for _ in range(4):
            assert shell("collected", "true").returncode == 0
        children = Path(f"/proc/{found.pid}/task/{found.pid}/children")
        until(lambda: len(children.read_text().split()) == 1, "that what has ended is collected")
        until(lambda: len(os.listdir(f"/proc/{found.pid}/fd")) <= 20 if not os.geteuid() else True, "that its descriptors are closed")


def test_garbage_in_the_runtime_directory_is_no_error(tmp_path: Path):
    place = paths.make(named_pools.place())
    (place / "a-file").write_text("x")
    (place / "a-link").symlink_to("/etc")
    os.mkfifo(place / "a-fifo")
    for name, content in (("empty", {}), ("torn", {"about": "{"}), ("deep", {"about": "[" * 100_000}), ("other", {"about": '{"x": 1}\0'})):
        (place / name).mkdir()
        for entry, text in content.items():
            (place / name / entry).write_text(text)
    held = os.open(place / "torn", os.O_RDONLY | os.O_DIRECTORY)  # as if it lived
    fcntl.flock(held, fcntl.LOCK_EX)
    assert call("pool", "ls", "--json").stdout == "[]\n"
    assert (no := call("run", "--pool", "torn", "--", "true")).returncode == 125 and "cannot be read" in no.stderr
    for name in ("a-file", "a-link", "a-fifo", "empty", "deep", "other"):
        assert call("run", "--pool", name, "--", "true").returncode == 125
        with pool(name, "--size", "1"):
            assert shell(name, "echo there").stdout == "there\n"
    assert os.listdir("/etc") and [*place.iterdir()] == [place / "torn"]
    os.close(held)
    remove_tree(place / "torn")


def test_a_long_path_of_the_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DOCKLESS_HOME", str(tmp_path / ("x" * 200)))
    with pool("far", "--size", "1"):
        assert shell("far", "echo there").stdout == "there\n"


def test_what_is_written_is_its_owners_alone():
    with pool("private", "--size", "1"):
        directory = named_pools.directory_of("private")
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700 and stat.S_IMODE(named_pools.place().stat().st_mode) == 0o700
        modes = {name: stat.S_IMODE(os.stat(directory / name).st_mode) for name in os.listdir(directory)}
        assert modes == {"about": 0o600, "state": 0o600, "door": 0o600}


def test_a_process_that_does_not_end_is_killed():
    with pool("stopped", "--size", "1") as found:
        os.kill(found.pid, signal.SIGSTOP)
        named_pools._ENDS, before = 0.3, named_pools._ENDS
        try:
            named_pools.remove("stopped")
        finally:
            named_pools._ENDS = before
        with pytest.raises((BadInput, NotEnded)):
            named_pools.remove("stopped")
        remove_tree(named_pools.directory_of("stopped"))
