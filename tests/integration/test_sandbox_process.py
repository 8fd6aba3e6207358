"""The program's life: limits, output, exit, signals, time, and what ends it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.boxes import alive, children_of, load, ok, pss, run, running, sh, until
from support.requires import requires

from dockless.errors import BadInput, SandboxGone
from dockless.sandbox.run.foreground import ForegroundSandbox
from dockless.sandbox.spec import Namespaces, Rlimit, Spec

pytestmark = requires("userns")

FOREVER = Spec(argv=("/bin/sh", "-c", "echo up; while :; do sleep 1000; done"))


def test_rlimits():
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = (Rlimit("nofile", 123, min(hard, 456) if hard > 0 else 456), Rlimit("core", 0, 0), Rlimit("stack", 1 << 20, 1 << 21))
    text = ok("cat /proc/self/limits", rlimits=wanted)
    rows = {line[:25].strip(): line[25:].split()[:2] for line in text.splitlines()}
    assert rows["Max open files"] == ["123", str(wanted[0].hard)]
    assert rows["Max core file size"] == ["0", "0"]
    assert rows["Max stack size"] == [str(1 << 20), str(1 << 21)]


def test_infinite_rlimit():
    if resource.getrlimit(resource.RLIMIT_CPU)[1] != resource.RLIM_INFINITY:
        pytest.skip("our own cpu limit is finite")
    assert "unlimited" in ok("grep 'Max cpu' /proc/self/limits", rlimits=(Rlimit("cpu", -1, -1),))


def test_umask():
    assert ok("umask; touch /tmp/x; stat -c %a /tmp/x", umask=0o027).split() == ["0027", "640"]


def test_oom_score_adj():
    ours = int(Path("/proc/self/oom_score_adj").read_text())
    assert ok("cat /proc/self/oom_score_adj", oom_score_adj=min(1000, ours + 100)).strip() == str(min(1000, ours + 100))


def test_affinity():
    cpu = max(os.sched_getaffinity(0))
    assert ok("grep Cpus_allowed_list /proc/self/status", cpus=(cpu,)).split()[1] == str(cpu)


def test_stdin_stdout_stderr():
    ran = run(Spec(argv=("/bin/sh", "-c", "cat; echo err >&2")), stdin=b"from outside")
    assert (ran.out, ran.err) == ("from outside", "err\n")


@pytest.mark.parametrize("user", ["", pytest.param("1000", marks=requires("subuid"))])
def test_dev_stdout_can_be_opened(user):
    """Programs that log to /dev/stdout open it again: the pipe behind it must be the program's own."""
    reader, writer = os.pipe()
    try:
        spec = Spec(argv=("/bin/sh", "-c", "echo one > /dev/stdout; echo two > /proc/self/fd/2"), user=user)
        with open(os.devnull) as null, ForegroundSandbox(spec, stdin=null.fileno(), stdout=writer, stderr=writer) as box:
            os.close(writer)
            writer = -1
            assert box.wait(20).code == 0
            assert os.read(reader, 100) == b"one\ntwo\n"
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_exit_codes(code):
    ended = sh(f"exit {code}").exit
    assert (ended.code, ended.signal, ended.returncode, ended.exit_code) == (code, None, code, code)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL, signal.SIGUSR1, 34])
def test_signals_end_it_exactly(number):
    ended = sh(f"kill -{int(number)} $$").exit
    assert (ended.code, ended.signal, ended.returncode, ended.exit_code) == (None, number, -number, 128 + number)
    assert not ended.killed and not ended.timed_out


def test_times_and_usage():
    before = time.time()
    ended = sh("i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done").exit
    assert before - 1 <= ended.started <= ended.ended <= time.time() + 1 and ended.setup > 0
    assert ended.usage is not None and (ended.usage.cpu_seconds or 0) > 0 and ended.max_rss > 0


def test_signals_reach_the_program():
    script = "trap 'echo got usr1' USR1; trap 'echo got term; exit 7' TERM; echo up; while :; do sleep 0.02; done"
    with running(Spec(argv=("/bin/sh", "-c", script))) as (box, output):
        until(lambda: "up" in output(), "the program is up")
        box.send_signal(signal.SIGUSR1)
        until(lambda: "got usr1" in output(), "SIGUSR1 arrives")
        box.send_signal(signal.SIGTERM)
        assert box.wait(20).code == 7


def test_a_signal_to_the_keeper_is_passed_on():
    with running(Spec(argv=("/bin/sh", "-c", "trap 'exit 9' HUP; echo up; while :; do sleep 0.02; done"))) as (box, output):
        until(lambda: "up" in output(), "the program is up")
        os.kill(box.process.keeper_pid, signal.SIGHUP)
        assert box.wait(20).code == 9


def test_stop_signal_is_refused():
    """A stop cannot be passed on: it would stop the keeper, and then nobody could end the sandbox."""
    with running(FOREVER) as (box, _):
        try:
            with pytest.raises(BadInput):
                box.send_signal(signal.SIGSTOP)
        finally:
            os.kill(box.process.keeper_pid, signal.SIGCONT)
        box.kill()
        assert box.wait(20).signal == signal.SIGKILL


def test_signals_after_the_end():
    with running(Spec(argv=("true",))) as (box, _):
        box.wait(20)
        with pytest.raises(SandboxGone):
            box.send_signal(signal.SIGTERM)
        box.kill()


def test_kill():
    with running(Spec(argv=("/bin/sh", "-c", "trap '' TERM INT HUP; echo up; while :; do sleep 1000; done"))) as (box, output):
        until(lambda: "up" in output(), "the program is up")
        tree = children_of(box.process.keeper_pid)
        assert len(tree) >= 2
        box.kill()
        ended = box.wait(20)
        assert (ended.signal, ended.killed, ended.timed_out) == (signal.SIGKILL, True, False)
        until(lambda: not any(map(alive, tree)), "everything inside is dead")


def test_wait_with_a_timeout_leaves_it_running():
    with running(FOREVER) as (box, _):
        with pytest.raises(TimeoutError):
            box.wait(0.05)
        assert box.process.poll() is None


def test_timeout_kills_the_tree():
    ended = sh("sleep 1000 & setsid sleep 1000 & sleep 1000", timeout=2.0).exit
    assert (ended.timed_out, ended.signal, ended.exit_code) == (True, signal.SIGKILL, 124)


def test_timeout_with_grace_says_it_first():
    ended = sh("trap 'exit 5' TERM; while :; do sleep 0.02; done", timeout=2.0, grace=20).exit
    assert (ended.timed_out, ended.code, ended.exit_code) == (True, 5, 124)


def test_timeout_whose_stop_signal_is_ignored():
    started = time.monotonic()
    ended = sh("trap '' TERM; while :; do sleep 1000; done", timeout=2.0, grace=0.3).exit
    assert (ended.timed_out, ended.signal) == (True, signal.SIGKILL) and time.monotonic() - started > 2.25


def test_the_images_stop_signal_is_used(tmp_path):
    from support import requires as machine

    machine.check("overlay")
    ref = load(tmp_path, stop_signal="SIGUSR2")
    ended = sh("trap 'exit 6' USR2; while :; do sleep 0.02; done", image=ref, timeout=2.0, grace=20).exit
    assert ended.code == 6


def test_orphans_die_with_the_program():
    marker = f"1000.{os.getpid()}"
    ran = sh(f"(setsid sleep {marker} >/dev/null 2>&1 &) ; (sh -c 'sleep {marker} & exec sleep {marker}' &) ; exit 3")
    assert ran.exit.code == 3
    until(lambda: not _running(marker), "no orphan is left")


def _running(marker: str) -> list[str]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if marker.encode() in words:
            found.append(entry)
    return found


def test_zombies_are_reaped():
    script = (
        "for i in 1 2 3 4 5 6 7 8; do (setsid sh -c 'exit 0' &) ; done; for t in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; n=$(cat "
        "/proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '); [ $n = 0 ] && break; done; echo $n"
    )
    assert ok(script) == "0\n"


@requires("cgroup2")
def test_shared_pid_namespace_leaves_nobody():
    """Without a PID namespace it is the cgroup that ends what is left, whoever died first."""
    marker = f"1000.{os.getpid()}"
    for victim in ("program", "keeper"):
        with running(Spec(argv=("/bin/sh", "-c", f"setsid sleep {marker} & echo up; wait"), namespaces=Namespaces(pid="host"))) as (
            box,
            output,
        ):
            until(lambda output=output: "up" in output(), "the program is up")
            until(lambda: _running(marker), "its child runs")
            if victim == "keeper":
                os.kill(box.process.keeper_pid, signal.SIGKILL)
            else:
                box.send_signal(signal.SIGTERM)
            box.wait(20)
        until(lambda: not _running(marker), f"nobody is left after the {victim} died")


LEASH = """
import os, sys, time
from dockless.sandbox.run.foreground import ForegroundSandbox
from dockless.sandbox.spec import Spec
with ForegroundSandbox(Spec(argv=("/bin/sh", "-c", "trap '' TERM HUP INT; sleep 1000 & while :; do sleep 1000; done"))) as box:
    print(box.process.keeper_pid, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
@pytest.mark.leaves("a host killed in the middle cannot remove its cgroup; the next start of that name does")
def test_the_leash(number):
    """The host dies, and everything inside with it."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen([sys.executable, "-c", LEASH], stdout=subprocess.PIPE, text=True, env=env) as host:
        assert host.stdout is not None
        keeper = int(host.stdout.readline())
        tree = children_of(keeper) | {keeper}
        assert len(tree) >= 3
        host.send_signal(number)
        host.wait()
    until(lambda: not any(map(alive, tree)), "the whole tree is dead")


def test_keeper_killed():
    with running(FOREVER) as (box, output):
        until(lambda: "up" in output(), "the program is up")
        tree = children_of(box.process.keeper_pid)
        os.kill(box.process.keeper_pid, signal.SIGKILL)
        ended = box.wait(20)
        assert ended.signal == signal.SIGKILL
        until(lambda: not any(map(alive, tree)), "everything inside is dead")


def test_init_killed():
    with running(FOREVER) as (box, output):
        until(lambda: "up" in output(), "the program is up")
        os.kill(box.process.pid, signal.SIGKILL)
        assert box.wait(20).signal == signal.SIGKILL


@pytest.mark.parametrize("when", ["exit", "exception"])
def test_leaving_the_block_ends_it(when):
    tree = set()
    try:
        with running(FOREVER) as (box, output):
            until(lambda: "up" in output(), "the program is up")
            tree = children_of(box.process.keeper_pid)
            if when == "exception":
                raise KeyError("ours")
    except KeyError:
        assert when == "exception"
    until(lambda: not any(map(alive, tree)), "everything inside is dead")


def test_fileno_is_readable_at_the_end():
    import select

    with running(Spec(argv=("true",))) as (box, _):
        assert select.select([box.process.fileno()], [], [], 20)[0]
        assert box.process.poll() is not None and box.wait().code == 0


def test_explained_times():
    with running(Spec(argv=("true",)), times=True) as (box, _):
        box.wait(20)
        record, plan = box.process.record(), box.plan
    assert plan is not None and len(record.times) == len(plan.ops) + 1
    stamped = [t for t in record.times if t]
    assert len(stamped) >= len(plan.ops) - 1 and record.phase == "exited"


def test_memory_of_keeper_and_init():
    """At most 1 MB of proportional memory for what dockless itself adds to a running sandbox."""
    with running(FOREVER) as (box, output):
        until(lambda: "up" in output(), "the program is up")
        total = sum(pss(pid) for pid in (box.process.keeper_pid, box.process.pid))
    assert 0 < total < 1 << 20, total


@requires("busybox", "overlay")
def test_a_name_that_is_in_use_disturbs_nobody(tmp_path):
    """Two of one name had one directory, and the end of the second took the first one's files away."""
    ref = load(tmp_path)
    with running(Spec(argv=("/bin/sh", "-c", "touch /mine; echo up; sleep 1000"), image=ref), id="twin") as (box, text):
        until(lambda: "up" in text(), "the first one")
        for image in (ref, "host"):
            if image == "host" and box.cgroup is None:
                continue  # nothing is shared
            with (
                pytest.raises(BadInput, match="a sandbox twin runs already") as caught,
                ForegroundSandbox(Spec(image=image, argv=("true",)), id="twin"),
            ):
                pass
            assert "another name" in caught.value.hint
        assert box.process.poll() is None
        assert os.path.exists(f"/proc/{box.process.pid}/root/mine") or os.geteuid() != 0
    with ForegroundSandbox(Spec(image=ref, argv=("/bin/true",)), id="twin") as again:
        assert again.wait(60).code == 0
