"""Sandboxes without a host process: logs, exit record, lock, removal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.boxes import alive, children_of, load, log_paths, pss, until
from support.requires import requires

import dockless
from dockless.base import paths
from dockless.errors import BadInput, CommandNotFound, SandboxGone
from dockless.sandbox.run import detached, process
from dockless.sandbox.run.removal import remove_tree
from dockless.sandbox.spec import Bind, Spec

pytestmark = requires("userns")

RECORD = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) (stdout|stderr) ([FP]) (.*)")


@pytest.fixture
def start():
    """Starts that are removed at the end of the test, whatever happened."""
    made = []

    def begin(script: str, *, id: str | None = None, labels: dict[str, str] | None = None, **fields) -> detached.Box:
        box = detached.start(Spec(argv=("/bin/sh", "-c", script), **fields), id=id, labels=labels)
        made.append(box)
        return box

    yield begin
    for box in made:
        box.remove()


def test_what_has_begun_goes_on_where_its_starter_has_no_descriptors_left(start, monkeypatch):
    """From READY on there is nothing to be opened: its program runs, and would be killed for a want that is none of its own."""
    read, before = process._read_report, resource.getrlimit(resource.RLIMIT_NOFILE)

    def last_descriptors(fd):
        raw = read(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        return raw

    start("true", id="first")  # all modules are imported
    monkeypatch.setattr(process, "_read_report", last_descriptors)
    try:
        box = start("sleep 0.1; exit 3")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert box.wait(20).code == 3


def _log(box: detached.Box) -> list[tuple[str, ...]]:
    text = b"".join(path.read_bytes() for path in log_paths(box)).decode()
    return [match.groups()[1:] for line in text.splitlines() if (match := RECORD.fullmatch(line))]


def test_a_whole_life(start):
    box = start("echo out; echo err >&2; exit 3", id="life", labels={"job": "7"})
    ended = box.wait(20)
    assert (ended.code, ended.signal, ended.timed_out) == (3, None, False)
    assert box.state() == "exited" and box.exit() == ended
    assert sorted(_log(box)) == [("stderr", "F", "err"), ("stdout", "F", "out")]
    again = detached.find("life")
    assert again is not None and again.labels == {"job": "7"} and again.spec.argv[0] == "/bin/sh"
    assert [found.id for found in detached.list_all()] == ["life"]
    box.remove()
    assert detached.find("life") is None and detached.list_all() == []


def test_what_was_resolved_is_in_its_record(start):
    """As the kernel has it, and for whoever comes later, whatever has become of /etc/subuid by then."""
    box = start("sleep 60", workdir="/tmp", hostname="there", user="0")
    kept = box.document.identity
    assert kept is not None and kept.idmap is not None
    rows = [list(map(int, line.split())) for line in Path(f"/proc/{box.init_pid}/uid_map").read_text().splitlines()]
    assert rows == [[row.inside, row.outside, row.count] for row in kept.idmap.uids]
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{min(children_of(box.init_pid))}/status").read_text().splitlines())
    assert int(status["CapBnd"], 16) == kept.capabilities and status["Uid"].split()[0] == str(kept.idmap.outside_uid(kept.uid))
    assert (kept.argv[:2], kept.workdir, kept.hostname) == (("/bin/sh", "-c"), "/tmp", "there")


def test_it_outlives_the_one_who_started_it():
    program = (
        "from dockless.sandbox.run import detached\nfrom dockless.sandbox.spec import Spec\nbox = detached.start(Spec(argv=('sleep', "
        "'1000')), id='outlives')\nprint(box.pid)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    box = detached.find("outlives")
    assert box is not None
    try:
        assert box.state() == "running" and box.pid == int(done.stdout) and alive(box.pid)
        tree = children_of(box.pid)
        box.kill()
        assert box.wait(20).signal == signal.SIGKILL
        until(lambda: not any(map(alive, tree)), "everything inside is dead")
    finally:
        box.remove()


def test_log_format(start):
    box = start("printf 'a\\nb\\n\\nlast without end'; exit 0")
    box.wait(20)
    assert _log(box) == [("stdout", "F", "a"), ("stdout", "F", "b"), ("stdout", "F", ""), ("stdout", "P", "last without end")]


def test_long_lines_come_in_parts(start):
    box = start("head -c 100000 /dev/zero | tr '\\0' x; echo; echo end")
    box.wait(20)
    records = _log(box)
    assert records[-1] == ("stdout", "F", "end")
    assert "".join(text for _, _, text in records[:-1]) == "x" * 100000
    assert [kind for _, kind, _ in records[:-1]][-1] == "F" and {kind for _, kind, _ in records[:-2]} == {"P"}


def test_binary_output_survives(start):
    box = start("printf '\\001\\000\\377z\\n'")
    box.wait(20)
    assert log_paths(box)[-1].read_bytes().split(b" F ", 1)[1] == b"\x01\x00\xffz\n"


def test_rotation_keeps_the_newest(start):
    """More than the limit (64 MiB) in all: two files, neither much larger than it, the last line in the newer one."""
    box = start("line=$(head -c 2000 /dev/zero | tr '\\0' x); yes $line | head -c 75000000; echo; echo the end")
    box.wait(120)
    assert _last_line(log_paths(box)[-1]).endswith(b"stdout F the end")
    total = sum(path.stat().st_size for path in log_paths(box))
    assert len(log_paths(box)) == 2 and max(path.stat().st_size for path in log_paths(box)) < 66 << 20 and total > 64 << 20


def _last_line(path: Path) -> bytes:
    with open(path, "rb") as stream:
        stream.seek(-200, os.SEEK_END)
        return stream.read().splitlines()[-1]


def test_timeout_is_enforced_without_us(start):
    box = start("trap '' TERM; while :; do sleep 1000; done", timeout=2.0, grace=0.2)
    ended = box.wait(20)
    assert (ended.timed_out, ended.signal) == (True, signal.SIGKILL)


def test_stop_and_grace(start):
    box = start("trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.02; done")
    until(lambda: _log(box), "the program is up")
    box.stop(20)
    assert box.exit().code == 4
    stubborn = start("trap '' TERM; echo up; while :; do sleep 1000; done")
    until(lambda: _log(stubborn), "the program is up")
    stubborn.stop(0.2)
    assert stubborn.exit().signal == signal.SIGKILL
    stubborn.stop(0.2)  # harmless twice


def test_send_signal(start):
    box = start("trap 'exit 8' USR1; echo up; while :; do sleep 0.02; done")
    until(lambda: _log(box), "the program is up")
    box.send_signal(signal.SIGUSR1)
    assert box.wait(20).code == 8
    with pytest.raises(SandboxGone):
        box.send_signal(signal.SIGUSR1)


def test_a_stop_is_refused(start):
    box = start("while :; do sleep 1000; done")
    try:
        with pytest.raises(BadInput):
            box.send_signal(signal.SIGSTOP)
    finally:
        os.kill(box.pid, signal.SIGCONT)


def test_the_lock_says_whether_it_lives(start):
    box = start("while :; do sleep 1000; done")
    assert box.state() == "running"
    with open(box.directory / "lock") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        box.kill()
        box.wait(20)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_nobody_inside_holds_the_lock(start, tmp_path):
    """The program has none of the keeper's files: 0-2 and nothing else."""
    box = start("ls -l /proc/self/fd | sed 's/.* //' | grep -v '^[0-9]*$'; ls /proc/self/fd | wc -l")
    box.wait(20)
    text = [record[2] for record in _log(box)]
    assert not any("lock" in line or "spec" in line or str(tmp_path) in line for line in text)


def test_keeper_killed_means_vanished(start):
    """Killed with -9 it can write nothing: its lock is free, and nobody inside lives on."""
    box = start("trap '' TERM; setsid sleep 1000 & while :; do sleep 1000; done")
    tree = until(lambda: (t := children_of(box.pid)) and len(t) >= 3 and t, "the program is up")
    keeper = box.pid
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not any(map(alive, tree)), "everything inside is dead")
    until(lambda: box.state() == "vanished", "it has vanished")
    assert box.exit() is None
    with pytest.raises(SandboxGone):
        box.wait(5)
    os.waitid(os.P_PID, keeper, os.WEXITED) if _is_child(keeper) else None


def _is_child(pid: int) -> bool:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
    except OSError:
        return False


def test_init_killed_is_recorded(start):
    box = start("while :; do sleep 1000; done")
    init = next(iter(children_of(box.pid) - {p for q in children_of(box.pid) for p in children_of(q)}))
    os.kill(init, signal.SIGKILL)
    assert box.wait(20).signal == signal.SIGKILL


def test_no_zombie_stays_where_nobody_waits(start):
    """A daemon that only looks at states must not collect dead keepers."""
    box = start("exit 0")
    pid = box.pid
    until(lambda: box.state() == "exited", "it has ended")
    box.remove()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the keeper is reaped")


@pytest.mark.parametrize("beside", [False, True])
def test_no_zombie_stays_of_what_another_program_removed(start, beside):
    """Whether or not another child has ended that is somebody else's to wait for."""
    boxes = [start("while :; do sleep 1000; done") for _ in range(3)]
    keepers = [box.pid for box in boxes]
    living = start("while :; do sleep 1000; done").pid
    with subprocess.Popen(["true"]) if beside else contextlib.nullcontext() as other:
        if beside:
            until(lambda: state_letter(other.pid) == "Z", "the other child has ended")
        words = [sys.executable, "-P", "-m", "dockless", "rm", "-q", "-f", *(box.id for box in boxes)]
        subprocess.run(words, check=True)
        until(lambda: dockless.list() and not any(Path(f"/proc/{pid}").exists() for pid in keepers), "the keepers are reaped")
        assert alive(living) and (not beside or other.wait() == 0)


def state_letter(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_removal_of_a_running_one(start):
    box = start("while :; do sleep 1000; done")
    tree = children_of(box.pid)
    box.remove()
    assert not box.directory.exists() and not any(map(alive, tree))


@requires("overlay")
def test_two_who_remove_the_same_tree_disturb_nothing(tmp_path):
    def remove(together):
        together.wait(20)
        remove_tree(tmp_path / "tree")

    for _ in range(20):
        for number in range(40):
            (tmp_path / f"tree/{number % 4}/{number}").mkdir(parents=True)
        together = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            for removed in [pool.submit(remove, together) for _ in range(2)]:
                removed.result()
        assert not (tmp_path / "tree").exists()


def test_upper_is_removed_with_it(start, tmp_path):
    ref = load(tmp_path)
    box = start("mkdir -p /a/b; touch /a/b/c; chmod 0 /a/b /a; echo done", image=ref)
    assert box.wait(20).code == 0
    box.remove()
    assert not box.directory.exists()


def test_an_error_leaves_nothing_behind():
    with pytest.raises(CommandNotFound):
        detached.start(Spec(argv=("there-is-no-such-program",)), id="never")
    with pytest.raises(Exception, match="does not exist"):
        detached.start(Spec(argv=("true",), mounts=(Bind("/no/such/source", "/m"),)), id="never")
    assert detached.list_all() == [] and detached.find("never") is None


def test_an_id_is_taken_once(start):
    start("while :; do sleep 1000; done", id="taken")
    with pytest.raises(BadInput) as caught:
        detached.start(Spec(argv=("true",)), id="taken")
    assert caught.value.hint
    assert detached.find("taken").state() == "running"


def test_directories_are_private(start):
    box = start("true")
    box.wait(20)
    assert box.directory.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in box.directory.iterdir() if path.name != "upper")


def test_a_torn_document(tmp_path):
    """What a crash between mkdir and the document leaves can be removed like anything else."""
    place = paths.state() / "sandboxes" / "torn"
    place.mkdir(parents=True)
    (place / "spec.json").write_text("{")
    box = detached.find("torn")
    assert box is not None and box.state() == "vanished"
    with pytest.raises(SandboxGone):
        _ = box.document
    box.remove()
    assert detached.list_all() == []


def test_usage_is_in_the_record(start):
    box = start("i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done")
    ended = box.wait(20)
    assert ended.usage is not None and (ended.usage.cpu_seconds or 0) > 0 and ended.started <= ended.ended


def test_memory_of_a_running_one(start):
    """At most 1 MB for keeper and init together, whatever the program wrote."""
    box = start("head -c 3000000 /dev/zero | tr '\\0' 'x'; echo; echo up; while :; do sleep 1000; done")
    until(lambda: _log(box) and _log(box)[-1][2] == "up", "the program is up")
    init = next(iter(children_of(box.pid) - {p for q in children_of(box.pid) for p in children_of(q)}))
    assert 0 < pss(box.pid) + pss(init) < 1 << 20


@requires("root")
def test_what_only_its_start_needed_is_given_back(start):
    """Stacks, arguments and the plan: 40 KB with them. Where the kernel puts a stack across a page more, each of both has one more."""

    def own() -> list[int]:
        box = start("echo up; exec sleep 1000")
        until(lambda: _log(box), "the program is up")
        return [
            sum(int(line.split()[1]) for line in Path(f"/proc/{pid}/smaps").read_text().splitlines() if line.startswith("Private_Dirty"))
            for pid in (box.pid, box.init_pid)
        ]

    found = [own() for _ in range(12)]
    assert min(map(sum, found)) <= 8 * os.sysconf("SC_PAGESIZE") // 1024, found


@requires("cgroup2")
def test_a_killed_ones_accounts_are_kept(start):
    box = start("while :; do :; done")
    box.kill()
    box.wait(20)
    assert "[cpu.stat]" in (box.directory / "exit").read_text()
