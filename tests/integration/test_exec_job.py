"""``exec`` into a job of the queue: root's daemon enters for whoever the job belongs to, and hands her nothing but its streams."""

from __future__ import annotations

import asyncio
import functools
import os
import pwd
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.boxes import until
from support.scheduling import DaemonProcess, as_user

from dockless import PIPE, aio
from dockless._submitting import Submitted
from dockless.cli import main
from dockless.errors import BadInput, CommandNotFound, SandboxGone
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State

pytestmark = [pytest.mark.requires("root", "userns")]

# Accounts that every system has and nobody uses: a job of theirs gets a single id.
ANNA, BOB, CARL = (pwd.getpwnam(name).pw_uid for name in ("daemon", "bin", "games"))
SETTINGS = """
[host]
cpu_jobs = 1
admins = ["games"]
"""
STATUS = "grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:)' /proc/self/status; readlink /proc/self/ns/*; ulimit -a"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory):
    daemon = DaemonProcess(tmp_path_factory.mktemp("d"), settings=SETTINGS).start()
    yield daemon
    daemon.end()


@pytest.fixture(autouse=True)
def _this_one(daemon, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SOCKET", str(daemon.socket))


def of(uid: int, daemon: DaemonProcess, work):
    """What ``work`` gives, done by this user."""

    def there(_):
        os.environ["DOCKLESS_SOCKET"] = "daemon.sock"
        return work()

    return as_user(uid, daemon.socket.parent, there)


def begun(daemon: DaemonProcess, script: str = "echo up; exec sleep 1000", uid: int = 0) -> Submitted:
    """One that runs."""
    spec = JobSpec(Spec(argv=("sh", "-c", script)))
    with daemon.client() as queue:
        number = queue.submit(spec) if not uid else as_user(uid, daemon.socket.parent, lambda q: q.submit(spec))[1]
        next(queue.logs(number, follow=True))
    return Submitted(number)


@pytest.fixture
def job(daemon):
    """``begun``, ended with the test."""
    jobs = []

    def begin(script: str = "echo up; exec sleep 1000", uid: int = 0) -> Submitted:
        jobs.append(begun(daemon, script, uid))
        return jobs[-1]

    yield begin
    with daemon.client() as queue:
        queue.cancel_many([one.id for one in jobs], grace=0)
        queue.wait_many([one.id for one in jobs], timeout=30)


@pytest.fixture
def running(job):
    return job()


def log_of(daemon: DaemonProcess, job: Submitted) -> str:
    with daemon.client() as queue:
        return "\n".join(line.text for line in queue.logs(job.id))


def descriptors(daemon: DaemonProcess) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def lives(text: str) -> bool:
    return subprocess.run(["pgrep", "-f", text], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_what_enters_has_the_jobs_own_rights_and_no_more(daemon, job):
    running = job(f"{STATUS}; echo end; exec sleep 1000", ANNA)
    own = until(lambda: (text := log_of(daemon, running)).endswith("end") and text.removesuffix("end"), "what the job wrote")
    outcome, entered = of(ANNA, daemon, lambda: running.shell(STATUS, text=True, check=True).stdout)
    assert outcome == "ok" and entered == own


def test_its_owner_and_root_enter_and_nobody_else(daemon, job):
    running = job(uid=ANNA)
    whoami = functools.partial(running.exec, "sh", "-c", "cat; echo $DOCKLESS_JOB_ID; echo wrong >&2; exit 3", input="in\n", text=True)
    expected = ("ok", (3, f"in\n{running.id}\n", "wrong\n"))
    assert of(ANNA, daemon, lambda: (lambda r: (r.returncode, r.stdout, r.stderr))(whoami())) == expected
    assert whoami().returncode == 3
    for stranger in (BOB, CARL):  # Carl is an administrator, and would have the rights of Anna
        for work in (whoami, lambda: running.files.read_text("/etc/passwd"), lambda: running.spawn("sh", tty=True)):
            assert of(stranger, daemon, work)[:2] == ("error", "NotPermitted")
    with daemon.client() as queue:
        assert queue.job(running.id).state is State.RUNNING


def test_a_job_of_root_is_not_an_administrators(daemon, job):
    running = job()
    assert of(CARL, daemon, lambda: running.exec("true"))[:2] == ("error", "NotPermitted")


def test_what_does_not_run(daemon, job):
    with daemon.client() as queue:
        ended = Submitted(queue.submit(JobSpec(Spec(argv=("true",)))))
        queue.wait(ended.id, timeout=30)
        job("echo up; exec sleep 1000")
        waiting = Submitted(queue.submit(JobSpec(Spec(argv=("true",)))))
        for one, said in ((ended, "has ended"), (waiting, "does not run yet")):
            with pytest.raises(SandboxGone, match=f"job {one.id} {said}"):
                one.exec("true")
        queue.cancel(waiting.id)


def test_errors_are_those_of_a_sandbox(running):
    with pytest.raises(CommandNotFound):
        running.exec("no-such-program")
    with pytest.raises(BadInput, match="the command is empty"):
        running.exec("")
    with pytest.raises(BadInput, match="absolute"):
        running.exec("true", workdir="there")
    with pytest.raises(BadInput, match="user"):
        running.exec("true", user="nobody-of-that-name")
    with pytest.raises(CommandNotFound):
        running.spawn_alone("no-such-program")


def test_user_directory_variables_and_time(running):
    said = running.shell("id -u; pwd; echo $A; exit 4", user="1", workdir="/usr", env={"A": "b"}, text=True)
    assert (said.stdout, said.returncode) == ("1\n/usr\nb\n", 4)
    late = running.shell("sleep 7171 & sleep 7171", timeout=0.3)
    assert late.timed_out and late.signal == signal.SIGKILL
    until(lambda: not lives("^sleep 7171"), "the end of all that it started")


def test_signals_and_the_end_of_a_handle(running):
    with running.spawn("sh", "-c", "trap 'exit 6' USR1; echo up; while :; do sleep 0.01; done", stdout=PIPE) as command:
        assert command.stdout.readline() == b"up\n"
        assert command.poll() is None
        command.send_signal(signal.SIGUSR1)
        assert command.wait().code == 6
        with pytest.raises(SandboxGone):
            command.send_signal(signal.SIGUSR1)
    with running.spawn("sh", "-c", "sleep 7172 & sleep 7172") as command:
        command.kill()
        assert command.wait().killed
    until(lambda: not lives("^sleep 7172"), "its end")
    with running.spawn("sh", "-c", "sleep 7173 & echo up; sleep 7173", stdout=PIPE) as command:
        command.stdout.readline()
    until(lambda: not lives("^sleep 7173"), "its end with its handle")
    assert running.exec("true").returncode == 0


def test_much_through_its_streams_and_nothing_is_left(daemon, running):
    before = descriptors(daemon)
    data = os.urandom(5 << 20)
    for _ in range(3):
        assert running.exec("cat", input=data).stdout == data
    until(lambda: descriptors(daemon) <= before, "what it took is given back")


def test_a_terminal(running):
    with running.spawn("sh", tty=True, size=(11, 33)) as command:
        command.resize(12, 34)
        command.stdin.write(b"stty size; tty; exit 5\n")
        command.stdin.flush()
        shown = command.stdout.read()
        assert command.wait().code == 5
    assert re.search(rb"12 34\r\n/dev/pts/\d+\r\n", shown)


def test_files(running, tmp_path: Path):
    with running.files as files:
        files.write_text("/tmp/x", "text")
        assert files.read_text("/tmp/x") == "text"
    (tmp_path / "here").write_text("from here")
    assert main(["cp", "-q", str(tmp_path / "here"), f"{running.id}:/tmp/there"]) == 0
    assert main(["cp", "-q", f"{running.id}:/tmp/there", str(tmp_path / "back")]) == 0
    assert (tmp_path / "back").read_text() == "from here"


def test_the_command_line(running, tmp_path: Path):
    """Its streams are the program's own: what that does not read is there for the next."""
    (tmp_path / "lines").write_text("one\ntwo\n")
    script = f"{sys.executable} -m dockless exec {running.id} -- sh -c 'read a; echo got $a; exit 7' < {tmp_path}/lines; echo $?"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, cwd="/", check=True)
    assert (done.stdout, done.stderr) == ("got one\n7\n", "")
    loop = f"while read line; do {sys.executable} -m dockless exec {running.id} -- echo $line; done < {tmp_path}/lines"
    done = subprocess.run(["sh", "-c", loop], capture_output=True, text=True, cwd="/", check=True)
    assert (done.stdout, done.stderr) == ("one\ntwo\n", "")


def test_a_client_that_is_killed_takes_it_along(running):
    command = (sys.executable, "-m", "dockless", "exec", str(running.id), "--", "sh", "-c", "sleep 7174 & echo up; sleep 7174")
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/") as client:
        assert client.stdout.readline() == b"up\n"
        client.kill()
    until(lambda: not lives("^sleep 7174"), "its end")
    assert running.status().state is State.RUNNING


def test_it_ends_with_the_daemon_and_the_job_goes_on(tmp_path_factory, monkeypatch):
    daemon = DaemonProcess(tmp_path_factory.mktemp("e")).start()
    monkeypatch.setenv("DOCKLESS_SOCKET", str(daemon.socket))
    running = begun(daemon)
    try:
        with running.spawn("sh", "-c", "echo up; exec sleep 7175", stdout=PIPE) as command:
            command.stdout.readline()
            daemon.kill9()
            ended = command.wait()
        assert ended.lost and ended.signal == signal.SIGKILL
        until(lambda: not lives("^sleep 7175"), "its end")
    finally:
        daemon.start()
    assert running.shell("echo again").stdout == b"again\n"
    daemon.end()


def test_awaited(running):
    async def work() -> None:
        job = aio.Submitted(running.id)
        result = await job.exec("sh", "-c", "cat; echo err >&2; exit 3", input=b"in")
        assert (result.stdout, result.stderr, result.returncode) == (b"in", b"err\n", 3)
        assert (await job.shell("echo $0", text=True)).stdout == "/bin/sh\n"
        async with job.spawn("cat", stdin=PIPE, stdout=PIPE, text=True) as command:
            await command.stdin.write("line\n")
            assert await command.stdout.readline() == "line\n"
            command.kill()
            assert (await command.wait()).killed
        await job.files.write_text("/tmp/awaited", "text")
        assert await job.files.read_text("/tmp/awaited") == "text"
        job.job.files.close()
        with pytest.raises(CommandNotFound):
            await job.exec("no-such-program")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await job.exec("sleep", "7176")

    asyncio.run(work())
    until(lambda: not lives("^sleep 7176"), "its end")
