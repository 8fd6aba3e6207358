"""Commands in a sandbox that runs: what they are, what they get, how they end, and that nothing of them stays.

Each is tried in an image and in the host's own system; as root and as an ordinary user, who has no cgroup here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.boxes import alive, load, until
from support.make_image import directory, file
from support.requires import requires

import dockless
from dockless import DEVNULL, PIPE, Sandbox
from dockless.errors import BadInput, CheckFailed, CommandNotExecutable, CommandNotFound, IdMapError, LaunchFailed, SandboxGone
from dockless.sandbox.spec import Namespaces

pytestmark = requires("userns", "overlay")

FOREVER = ["sleep", "1000"]
PASSWD = "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"
GROUP = "root:x:0:\napp:x:1000:\nextra:x:2000:app\n"


def image(where: Path) -> str:
    entries = [
        file("etc/passwd", PASSWD),
        file("etc/group", GROUP),
        directory("home/app"),
        directory("w"),
        file("bin/plain", "not a program", 0o644),
    ]
    return load(where, entries, env={"FROM": "image", "PATH": "/bin"}, workdir="/w")


@pytest.fixture(params=["image", "host"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sandbox[bytes]]:
    name = image(tmp_path) if request.param == "image" else "host"
    with Sandbox(name, FOREVER, stdin=DEVNULL) as found:
        yield found


@contextlib.contextmanager
def detached(name: str = "host", args: Any = FOREVER, **options: Any) -> Iterator[Sandbox[bytes]]:
    found = dockless.start(name, args, **options)
    try:
        yield found
    finally:
        found.kill()
        found.wait(20)
        found.rm()


def shown(box: Sandbox[Any], script: str, **options: Any) -> str:
    ran = box.shell(script, text=True, **options)
    assert ran.returncode == 0, ran
    return ran.stdout.strip()


@requires("root")  # of what cannot be traced nobody else sees the directory
def test_no_keeper_holds_the_directory_of_whoever_started_it(tmp_path):
    with contextlib.chdir(tmp_path), Sandbox(["sleep", "1000"]) as box, box.spawn("sleep", "1000") as command:
        assert [os.readlink(f"/proc/{pid}/cwd") for pid in (box.process.keeper_pid, command.process.keeper_pid)] == ["/", "/"]


# -- one command --------------------------------------------------------------------------------------------------------------------------


def test_whoever_comes_at_once_finds_all_namespaces():
    """Init hands them over while it starts; its keeper may look at the door first."""
    for _ in range(40):
        box = dockless.start(["sleep", "1000"])
        try:
            assert box.exec("true").returncode == 0
        finally:
            box.rm(force=True)


def test_streams_are_exact(box):
    everything = bytes(range(256)) * 4096
    ran = box.exec("sh", "-c", "cat; printf 'err\\0' >&2", input=everything)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, everything, b"err\0")
    assert box.exec("cat").stdout == b""  # nothing to read, and nobody's terminal
    assert box.exec("printf", "%s|", "a b", "$HOME", "*", "", "ü", text=True).stdout == "a b|$HOME|*||ü|"


def test_what_a_function_hears_is_not_captured_as_well(box):
    heard = []
    ran = box.shell("echo out; echo err >&2", on_stdout=heard.append)
    assert (heard, ran.stdout, ran.stderr) == ([b"out\n"], None, b"err\n")


def test_arguments_are_text_bytes_or_paths(box):
    assert box.exec(Path("/bin/echo"), b"\xff", "a").stdout == b"\xff a\n"
    with pytest.raises(BadInput, match="argv"):
        box.exec("echo", 1)


def test_its_files_are_one_handle(box):
    assert box.files is box.files


@pytest.mark.parametrize("code", [0, 1, 3, 126, 127, 255])
def test_exit_codes(box, code):
    assert box.shell(f"exit {code}").returncode == code


def test_a_signal_ends_it(box):
    assert box.shell("kill -TERM $$").returncode == -signal.SIGTERM
    with pytest.raises(CheckFailed):
        box.shell("exit 3", check=True)


def test_commands_that_are_none(box):
    with pytest.raises(CommandNotFound):
        box.exec("nothing-of-this-name")
    with pytest.raises(CommandNotFound):
        box.exec("/no/such/program")
    with pytest.raises(CommandNotExecutable):
        box.exec("/etc/passwd")
    for wrong in ((), ("",)):
        with pytest.raises(BadInput):
            box.exec(*wrong)
    for options in (
        {"workdir": "relative"}, {"env": {"A=B": "c"}}, {"env": {"": "c"}}, {"timeout": -1}, {"timeout": "soon"},
        {"user": "nobody-of-this-name"},
        {"user": "1:2:3"}, {"input": b"x", "stdin": DEVNULL}, {"user": "a\nb"}, {"user": str(1 << 40)},
    ):  # fmt: skip
        with pytest.raises(BadInput):
            box.exec("true", **options)
    for workdir in ("/no/such/directory", "/etc/passwd", "/proc/self/cwd", "/proc/self/fd/0"):
        with pytest.raises((LaunchFailed, BadInput)) as caught:
            box.exec("true", workdir=workdir)
        assert caught.value.hint, caught.value
    for workdir, what in (("/no/such/directory", "does not exist"), ("/etc/passwd", "is not a directory")):
        with pytest.raises(LaunchFailed, match=f"^the working directory {workdir} {what} in the sandbox$"):
            box.exec("true", workdir=workdir)
    assert box.exec("true").returncode == 0


def test_directory_and_variables(tmp_path):
    with Sandbox(image(tmp_path), FOREVER, env={"MINE": "1"}, stdin=DEVNULL) as box:
        assert shown(box, "pwd") == "/w"
        assert shown(box, "pwd", workdir="/home/app") == "/home/app"
        assert shown(box, "echo $FROM $MINE $HOME") == "image 1 /root"
        assert shown(box, "echo $FROM $MINE", env={"FROM": "me", "MINE": ""}) == "me"
        assert shown(box, "echo $HOME $(id -u):$(id -g) $(id -G)", user="app") == "/home/app 1000:1000 1000 2000"
        assert shown(box, "id -u; id -g", user="7:9") == "7\n9"
        assert shown(box, "id -g", user="app:extra") == "2000"
        assert shown(box, "echo $HOME", user="app", env={"HOME": "/elsewhere"}) == "/elsewhere"
        assert "MINE=1" in box.exec("env", text=True).stdout.splitlines()


@requires("root")
@pytest.mark.parametrize(("options", "owner"), [({}, "1000 1000"), ({"user": "7:9"}, "7 9")], ids=["own", "another"])
def test_its_pipes_are_its_users_and_a_file_is_still_its_owners(tmp_path, options, owner):
    """So /dev/stdout can be opened by who has no rights over our pipe."""
    with Sandbox(image(tmp_path), FOREVER, user="app", stdin=DEVNULL) as box, tempfile.TemporaryFile() as file:
        ran = box.shell("stat -L -c '%u %g' /dev/stdout; echo opened > /dev/stdout", stdin=file, stderr=file, text=True, **options)
        assert (ran.stdout, ran.returncode) == (f"{owner}\nopened\n", 0)
        assert (os.fstat(file.fileno()).st_uid, os.fstat(file.fileno()).st_gid) == (0, 0)


@pytest.mark.parametrize("user", ["5:2000000000", "2000000000:5"])
def test_ids_that_the_sandbox_does_not_have(tmp_path, user):
    with Sandbox(image(tmp_path), FOREVER, stdin=DEVNULL) as box, pytest.raises(IdMapError):
        box.exec("true", user=user)


def test_users_are_those_of_now(tmp_path):
    """Also when the sandbox's files have changed since it was started."""
    with Sandbox(image(tmp_path), FOREVER, stdin=DEVNULL) as box:
        with pytest.raises(BadInput):
            box.exec("true", user="late")
        box.shell("echo 'late:x:1234:1234::/w:/bin/sh' >> /etc/passwd", check=True)
        assert shown(box, "id -u", user="late") == "1234"


_STATUS = "Uid Gid Groups CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Seccomp_filters Umask Cpus_allowed SigBlk SigIgn".split()

ODD = [
    {},
    {"profile": "untrusted"},
    {"cap_drop": ("ALL",)},
    {"cap_add": ("SYS_PTRACE",), "user": "1000:1000"},
    {"umask": 0o077},
    {"ulimits": {"nofile": 321, "core": 0}},
    {"cpu_affinity": "0"},
    {"root": "readonly"},
    {"network": "host"},
    {"oom_score_adj": 300},
    pytest.param({"profile": "privileged"}, marks=requires("root")),
    pytest.param({"namespaces": Namespaces(user="host")}, marks=requires("root")),
]


_MARK = ("Max file locks", "Max realtime timeout")
"""The limits by which what has no cgroup is found at its end."""


@pytest.mark.parametrize("options", ODD, ids=lambda options: "-".join(map(str, options.items())) or "default")
@pytest.mark.parametrize("kind", ["image", "host"])
def test_it_has_what_the_sandbox_has(tmp_path, kind, options):
    """Ids, capabilities, filter, limits, namespaces, mounts, name: those of its first process, and none of its descriptors."""
    look = (
        "cat /proc/self/status; echo ==; cat /proc/self/limits; echo ==; cat /proc/self/uid_map /proc/self/mountinfo; hostname;"
        " for n in mnt uts ipc net pid user cgroup; do readlink /proc/self/ns/$n; done; cat /proc/self/oom_score_adj; pwd; ls /proc/self/fd"
    )
    script = f"{look}; echo READY; exec sleep 1000"
    with Sandbox(
        image(tmp_path) if kind == "image" else "host", ["/bin/sh", "-c", script], stdin=DEVNULL, stdout=PIPE, text=True, **options
    ) as box:
        own = []
        for line in box.stdout:
            if line == "READY\n":
                break
            own.append(line)
        other = shown(box, look, stdin=DEVNULL)
    assert _told(other) == _told("".join(own))
    assert "Seccomp" in other


def _told(text: str) -> list[str]:
    status, limits, rest = (part.strip() for part in text.split("=="))
    lines = [line for line in status.splitlines() if line.partition(":")[0] in _STATUS]
    assert len(lines) >= len(_STATUS) - 1  # an old kernel does not count filters
    return [*lines, *(line for line in limits.splitlines() if not line.startswith(_MARK)), *rest.splitlines()]


def test_another_user_has_no_more_than_the_sandbox(tmp_path):
    """Root by an option has the sandbox's capabilities, an ordinary user none."""
    with Sandbox(image(tmp_path), FOREVER, user="app", cap_drop=("ALL",), stdin=DEVNULL) as box:
        for user in ("0", "app", "5"):
            status = shown(box, "cat /proc/self/status", user=user)
            assert "CapEff:\t0000000000000000" in status and "CapBnd:\t0000000000000000" in status, status
            assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
        assert shown(box, "id -u", user="0") == shown(box, "id -u", user=0) == "0"
    with Sandbox(image(tmp_path), FOREVER, user="app", stdin=DEVNULL) as box:
        assert "CapEff:\t0000000000000000" in shown(box, "cat /proc/self/status")
        assert "CapEff:\t0000000000000000" not in shown(box, "cat /proc/self/status", user="0")


# -- ends ---------------------------------------------------------------------------------------------------------------------------------

_TREE = "(sleep 777 & sleep 777) & setsid sh -c 'sleep 777' & (setsid sleep 777 &) ; sleep 777"


def _sleepers(box: Sandbox[Any], seconds: int = 777) -> int:
    script = (
        f"n=0; for p in /proc/[0-9]*; do tr '\\0' ' ' 2>/dev/null < $p/cmdline | grep -q '^sleep {seconds}' && n=$((n+1)); done; echo $n"
    )
    return int(shown(box, script))


def test_a_time_limit_ends_all_that_it_started(box):
    ended = box.shell(_TREE, timeout=0.7)
    assert ended.timed_out and ended.returncode != 0
    until(lambda: _sleepers(box) == 0, "nothing of it is left")
    assert box.poll() is None


def test_leaving_the_block_ends_all_that_it_started(box):
    """Several times: a signal may be on its way to it when its end begins, as the one that wakes a keeper which somebody stopped."""
    for _ in range(5):
        with box.spawn("sh", "-c", _TREE, stdin=DEVNULL) as command:
            until(lambda: _sleepers(box) >= 4, "all of it runs")
            assert command.poll() is None
        until(lambda: _sleepers(box) == 0, "nothing of it is left")


def test_leaving_the_block_closes_its_streams(box):
    with box.spawn("cat", stdin=PIPE, stdout=PIPE, stderr=PIPE) as command:
        streams = (command.stdin, command.stdout, command.stderr)
    assert all(stream.closed for stream in streams)


@requires("cgroup2")
def test_leaving_the_block_ends_all_that_it_started_also_when_who_waited_for_it_was_killed():
    with Sandbox("host", FOREVER, stdin=DEVNULL) as box:
        with box.spawn("sh", "-c", _TREE, stdin=DEVNULL) as command:
            until(lambda: _sleepers(box) >= 4, "all of it runs")
            os.kill(command.process.keeper_pid, signal.SIGKILL)
            assert command.wait(20).lost
        until(lambda: _sleepers(box) == 0, "nothing of it is left")


@requires("cgroup2")
def test_no_cgroup_is_left():
    with detached() as box:
        box.exec("true", check=True)
        with pytest.raises(CommandNotFound):
            box.exec("no-such-program")
        assert not list(Path(box.inner.document.cgroup).glob("exec-*"))


_WIDE = "n=0; while [ $n -lt 100 ]; do sleep 777 & n=$((n+1)); done; echo on; wait"
_DEEP = "f() { if [ $1 -gt 0 ]; then (f $(($1-1)); :); else echo on; sleep 777; fi; }; f 100; :"
_NAMED = "sh -c 'echo \"x) S 1 (\" > /proc/self/comm; echo on; while :; do sleep 777; done'; :"


@pytest.mark.parametrize("tree", [_WIDE, _DEEP, _NAMED], ids=["wide", "deep", "named"])
def test_leaving_the_block_ends_any_tree(box, tree):
    """More children than are looked for in turn, more generations, and a name that looks like the end of one."""
    with box.spawn("sh", "-c", tree, stdin=DEVNULL, stdout=PIPE, text=True) as command:
        assert command.stdout.readline() == "on\n"
    until(lambda: _sleepers(box) == 0, "nothing of it is left")


def test_leaving_the_block_ends_a_program_that_would_outlive_who_waits_for_it():
    """It has taken back the word that it ends with its parent. prctl(2), PR_SET_PDEATHSIG"""
    if not shutil.which("setpriv"):
        pytest.skip("no setpriv")
    with Sandbox("host", FOREVER, stdin=DEVNULL) as box:
        with box.spawn("setpriv", "--pdeathsig", "clear", "sleep", "778", stdin=DEVNULL):
            until(lambda: _sleepers(box, 778) == 1, "it runs")
        until(lambda: _sleepers(box, 778) == 0, "nothing of it is left")


def test_a_child_that_was_forked_from_us_ends_nothing_of_ours(box):
    with box.spawn("sleep", "1000") as command:
        child = os.fork()
        if child == 0:
            try:
                command.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0 and command.poll() is None
        command.kill()
        assert command.wait(20).signal == signal.SIGKILL


def test_a_time_limit_ends_what_forks_all_the_time(box):
    """Processes whose parents have ended, more of them every moment, none for long."""
    storm = "f() { sleep 0.01; (f &) ; (sleep 778 &) ; }; n=0; while [ $n -lt 4 ]; do (f &) ; n=$((n+1)); done; exec sleep 778"
    assert box.shell(storm, timeout=1).timed_out
    until(lambda: _sleepers(box, 778) == 0, "nothing of it is left")


_RABBIT = """
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
static void *stay(void *none) { pause(); return none; }
int main(void) {
    signal(SIGCHLD, SIG_IGN);
    if (!fork()) { /* a first thread that has ended, and one that goes on */
        pthread_t thread;
        pthread_create(&thread, 0, stay, 0);
        pthread_exit(0);
    }
    if (!fork()) /* each only starts the next one, and is gone */
        for (setsid();;)
            if (fork()) _exit(0);
    pause();
}
"""


@requires("gcc")
def test_a_time_limit_ends_what_is_gone_whenever_it_is_looked_at(tmp_path):
    (tmp_path / "rabbit.c").write_text(_RABBIT)
    subprocess.run(["gcc", "-O1", "-static", "-o", tmp_path / "rabbit", tmp_path / "rabbit.c"], check=True)
    with Sandbox("host", FOREVER, stdin=DEVNULL, mounts=[f"{tmp_path / 'rabbit'}:/mnt/rabbit:ro"]) as box:
        for _ in range(5):
            assert box.exec("/mnt/rabbit", timeout=0.3).timed_out
            until(lambda: "(rabbit)" not in shown(box, "cat /proc/[0-9]*/stat 2>/dev/null || true"), "nothing of it is left")
            before = _last_number(box)
            assert _last_number(box) - before == 1, "only what looks is started"


def _last_number(box: Sandbox[Any]) -> int:
    """The highest process number given so far. proc_loadavg(5)"""
    return int(box.exec("cat", "/proc/loadavg").stdout.split()[-1])


def test_what_it_leaves_running_goes_on(box):
    """After a normal end, as with a shell; it ends with the sandbox."""
    with box.spawn("sh", "-c", "sleep 779 >/dev/null 2>&1 & exit 3", stdin=DEVNULL) as command:
        assert command.wait(20).code == 3
    until(lambda: _sleepers(box, 779) == 1, "what it left is a program of its own")
    assert box.exec("true").returncode == 0


@requires("root")
def test_what_it_leaves_running_goes_on_where_processes_are_the_hosts():
    with Sandbox("host", FOREVER, namespaces=Namespaces(pid="host"), stdin=DEVNULL) as box:
        with box.spawn("sh", "-c", "sleep 779 >/dev/null 2>&1 & echo $!; exit 3", stdin=DEVNULL, stdout=PIPE, text=True) as command:
            left = int(command.stdout.read())
            assert command.wait(20).code == 3
        assert alive(left)
    assert not alive(left)


def test_handles_that_nobody_closes_hold_nothing_once_their_commands_have_ended(box):
    box.exec("true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        assert box.spawn("true").wait(20).code == 0
    box.exec("mkfifo", "/dev/shm/go")
    box.spawn("sh", "-c", "read line < /dev/shm/go; echo $line > /dev/shm/gone")
    box.exec("true")  # by now the one before is closed, and this one goes on
    box.exec("sh", "-c", "echo on > /dev/shm/go")
    until(lambda: box.exec("cat", "/dev/shm/gone").stdout == b"on\n", "it went on")
    until(lambda: box.exec("true").returncode == 0 and len(os.listdir("/proc/self/fd")) == before, "all has been given back")


def test_signals_go_to_its_own_process(box):
    script = "trap 'echo got; exit 7' TERM; echo on; while :; do sleep 0.05; done"
    with box.spawn("sh", "-c", script, stdin=DEVNULL, stdout=PIPE, text=True) as command:
        assert command.stdout.readline() == "on\n"
        command.terminate()
        assert command.communicate()[0] == "got\n"
        assert command.returncode == 7
        with pytest.raises(SandboxGone):
            command.terminate()
    assert box.poll() is None


def test_the_sandboxs_end_ends_it(box):
    with box.spawn(*FOREVER, stdin=DEVNULL) as command:
        box.kill()
        assert command.wait(20).signal == signal.SIGKILL
    with pytest.raises(SandboxGone):
        box.exec("true")


def test_the_sandbox_ends_while_many_enter():
    """Each of them runs, ends or is refused, and none hangs."""
    told: list[str] = []

    def enter(box: Sandbox[Any]) -> None:
        for _ in range(10):
            try:
                told.append("ran" if box.exec(*FOREVER, timeout=20).returncode == -9 else "odd")
            except (SandboxGone, dockless.SandboxError) as error:
                told.append(type(error).__name__)

    with Sandbox("host", FOREVER, stdin=DEVNULL) as box:
        threads = [threading.Thread(target=enter, args=(box,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: len(_children(box.process.keeper_pid)) > 4, "some are inside")
        box.kill()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
    assert len(told) == 80 and set(told) <= {"ran", "SandboxGone", "SandboxError"}, told
    assert "ran" in told and "SandboxGone" in told


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_three_hundred_at_once(box):
    """From 30 threads, and nothing of them stays: no process of the keeper's, no cgroup."""
    keeper = box.process.keeper_pid
    wrong: list[object] = []

    def enter(number: int) -> None:
        for turn in range(10):
            said = box.exec("echo", f"{number} {turn}", text=True).stdout
            if said != f"{number} {turn}\n":
                wrong.append(said)

    threads = [threading.Thread(target=enter, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    until(lambda: len(_children(keeper)) == 1, "init is the keeper's only child")
    assert _groups(box) == []


def _groups(box: Sandbox[Any]) -> list[str]:
    group = box.inner.cgroup
    return [] if group is None else [entry.name for entry in Path(group.path).iterdir() if entry.is_dir()]


def test_who_waits_for_the_next_command():
    """Commands that come one after the other find a child of the keeper waiting. It holds nothing of the keeper's that others
    wait for, goes away if nobody comes, and ends with the keeper, however that ends."""
    with Sandbox("host", FOREVER, stdin=DEVNULL) as box:
        keeper = box.process.keeper_pid

        def has_let_go() -> bool:
            assert box.exec("true").returncode == 0
            waits = _waiting(keeper, box.pid)
            with contextlib.suppress(OSError):  # it does not wait for long
                mine = os.geteuid() == 0  # to look into
                named = Path(f"/proc/{waits}/comm").read_text() == "dockless-enter\n"
                return bool(waits) and named and not (mine and _held(waits) & {4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16})
            return False

        until(has_let_go, "somebody waits, and holds nothing of the keeper's")
        until(lambda: len(_children(keeper)) == 1, "nobody came")
        assert box.exec("true").returncode == 0
    assert not alive(keeper)
    found = dockless.start("host", FOREVER)
    try:
        assert found.exec("true").returncode == 0
        keeper, init = found.inner.pid, found.pid
        waits = until(lambda: _waiting(keeper, init), "somebody waits")
        os.kill(keeper, signal.SIGKILL)
        until(lambda: not alive(waits), "it ends with the keeper")
    finally:
        found.rm(force=True)


def _waiting(keeper: int, init: int) -> int:
    """The child of a keeper that waits for a request: it leads a process group of its own, those that took one are in the keeper's."""
    for child in _children(keeper):
        with contextlib.suppress(ProcessLookupError):
            if child != init and os.getpgid(child) == child:
                return child
    return 0


def _held(pid: int) -> set[int]:
    return {int(number) for number in os.listdir(f"/proc/{pid}/fd")}


_CLIENT = """
import sys
from dockless import Sandbox, DEVNULL
box = Sandbox.open(sys.argv[1])
with box.spawn("sh", "-c", "echo on; sleep 780", stdin=DEVNULL) as command:
    command.wait()
"""


def test_a_client_that_is_killed_takes_its_command_along():
    """At whatever moment: before the request, between it and the program, while it runs."""
    with detached() as box:
        for turn in range(12):
            client = subprocess.Popen([sys.executable, "-P", "-c", _CLIENT, box.id], stdout=subprocess.PIPE)
            if turn < 2:
                assert client.stdout.readline() == b"on\n"
            else:
                until(partial(_has_the_extension, client.pid), "the client is on its way")
                time.sleep(0.002 * (turn - 2))  # not a condition: another moment each time
            client.kill()
            client.wait()
            client.stdout.close()
        keeper = box.inner.pid
        until(lambda: len(_children(keeper)) == 1, "init is the keeper's only child")
        assert _sleepers(box, 780) == 0


def _has_the_extension(pid: int) -> bool:
    """Which is imported for the request."""
    return "_native" in Path(f"/proc/{pid}/maps").read_text()


# -- others' sandboxes, and detached ones --------------------------------------------------------------------------------------------------


def test_a_sandbox_of_another_program(box):
    program = """if True:
        import sys
        from dockless import Sandbox
        sys.exit(Sandbox.open(sys.argv[1]).exec("sh", "-c", "echo in; exit 5", stdout=1).returncode)"""
    done = subprocess.run([sys.executable, "-P", "-c", program, box.id], stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (5, b"in\n")


def test_a_handle_reads_the_record_of_a_run_once(box):
    handle = Sandbox.open(box.id)
    assert handle.exec("true").returncode == 0
    record = box.inner.directory / "spec.json"
    as_it_was = record.stat()
    record.write_text("nobody reads this")
    os.utime(record, ns=(as_it_was.st_atime_ns, as_it_was.st_mtime_ns))
    assert handle.exec("true").returncode == 0


def test_a_detached_sandbox(tmp_path):
    with detached(image(tmp_path)) as box:
        again = Sandbox.open(box.id)
        assert again.exec("pwd", text=True).stdout == "/w\n"
        again.spawn_alone("sh", "-c", "echo x > /w/there; exec sleep 781")
        until(lambda: again.exec("cat", "/w/there", text=True).stdout == "x\n", "it runs without us")
        assert _sleepers(box, 781) == 1
        again.spawn_alone("sleep", "782", timeout=0.3)
        until(lambda: _sleepers(box, 782) == 0, "its timeout is the keeper's to keep")
        box.kill()
        box.wait(20)
        with pytest.raises(SandboxGone):
            again.exec("true")
    with pytest.raises(SandboxGone):
        again.exec("true")


def test_a_handle_enters_the_run_that_goes_on(tmp_path):
    """What it knows of one run is nothing that it goes by in the next, nor under another name."""
    seen = []
    with detached(image(tmp_path)) as box:
        for number in range(2):
            mine = [shown(box, "cut -d' ' -f22 /proc/1/stat") for _ in range(2)]
            box.rename(f"{box.id}-{number}")
            seen.append({*mine, shown(box, "cut -d' ' -f22 /proc/1/stat")})
            box.kill()
            box.wait(20)
            with pytest.raises(SandboxGone):
                box.exec("true")
            if not number:
                box.start()
    assert [len(one) for one in seen] == [1, 1] and seen[0] != seen[1]


def test_a_paused_sandbox_is_entered_when_it_goes_on(tmp_path):
    """Or says at once why it cannot be."""
    with detached(image(tmp_path)) as box:
        try:
            box.pause()
        except dockless.DocklessError as error:
            pytest.skip(f"it cannot be paused here: {error}")
        told: list[Any] = []
        thread = threading.Thread(target=lambda: told.append(box.exec("echo", "in", text=True).stdout))
        thread.start()
        box.resume()
        thread.join(30)
        assert told == ["in\n"]


def test_a_keeper_that_is_stopped(tmp_path):
    """Whoever asks hears of it, and nothing of the request is carried out later."""
    with detached() as box:
        keeper = box.inner.pid
        os.kill(keeper, signal.SIGSTOP)
        try:
            with open(tmp_path / "said", "w+") as said:  # no pipe: the request that the keeper has not read holds its end
                command = [sys.executable, "-P", "-m", "dockless", "exec", box.id, "--", "sleep", "780"]
                started = subprocess.run(command, stdout=said, stderr=said, timeout=60, check=False)
                said.seek(0)
                err = said.read()
        finally:
            os.kill(keeper, signal.SIGCONT)
        assert started.returncode != 0 and f"stopped process {keeper}" in err, err
        until(lambda: len(_children(keeper)) == 1, "what was asked for meanwhile has ended")
        assert _sleepers(box, 780) == 0
        assert box.exec("true").returncode == 0


# -- the command line ----------------------------------------------------------------------------------------------------------------------


def test_the_command_line(say):
    with detached() as box:
        assert say("exec", box.id, "--", "sh", "-c", "echo in; exit 3")[0] == 3
        assert say("exec", box.id, "--", "nothing-of-this-name")[0] == 127
        assert say("exec", box.id, "--", "/etc/passwd")[0] == 126
        code, _, err = say("exec", "--timeout", "0.3", box.id, "--", "sleep", "783")
        assert code == 124 and "timed out" in err
        assert say("exec", "-d", box.id, "--", "sleep", "784")[0] == 0
        until(lambda: _sleepers(box, 784) == 1, "it runs without us")
        for wrong in (("exec", box.id), ("exec", "no-such-id", "--", "true"), ("exec", "-d", "-t", box.id, "--", "true")):
            code, _, err = say(*wrong)
            assert code not in (0, 3) and err.startswith("dockless: ") and "hint" in err, (wrong, err)


@pytest.mark.parametrize(
    ("call", "keyword"), [("exec", "cwd"), ("shell", "cwd"), ("spawn", "cwd"), ("exec", "mem_limit"), ("update", "memroy")]
)
def test_an_unknown_keyword_is_answered_with_what_is_meant(call, keyword):
    with Sandbox("host", FOREVER, stdin=DEVNULL) as box:
        with pytest.raises(TypeError) as caught:
            getattr(box, call)(*["true"] * (call != "update"), **{keyword: "1"})
        said = {"cwd": "use workdir", "memroy": "did you mean memory?"}.get(keyword, "known are ")
        assert str(caught.value).startswith(f"unknown keyword '{keyword}'") and said in str(caught.value)
        if keyword != "cwd":
            assert ("memory" if call == "update" else "workdir") in str(caught.value)


@pytest.mark.parametrize(("size", "subject"), [((-1, 5), "rows"), ((5, 1 << 16), "columns")])
def test_a_size_that_no_terminal_can_have(size, subject):
    with Sandbox("host", FOREVER, stdin=DEVNULL) as box:
        with pytest.raises(BadInput, match=f"{subject} of a terminal") as caught:
            box.spawn("true", tty=True, size=size)
        assert caught.value.subject == subject
        with box.spawn("sleep", "1000", tty=True) as command:
            with pytest.raises(BadInput, match=f"{subject} of a terminal"):
                command.resize(*size)
            command.resize(0, 0xFFFF)


@pytest.mark.parametrize(("number", "hint"), [(0, "from 1 to 64"), (99, "from 1 to 64"), (signal.SIGSTOP, "pause()")])
def test_a_signal_that_cannot_be_sent(number, hint):
    with Sandbox("host", FOREVER, stdin=DEVNULL) as box, pytest.raises(BadInput, match="cannot be sent") as caught:
        box.send_signal(number)
    assert hint in caught.value.hint
