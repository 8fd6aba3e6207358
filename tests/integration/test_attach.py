"""``attach`` to what has no terminal: output live, input through the pipe that stays open; and to jobs of the queue, by owner and root."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pwd
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO

import anyio
import pytest
from support.boxes import DEADLINE, load, until
from support.requires import requires
from support.scheduling import DaemonProcess, as_user
from support.screens import Screen

import dockless
from dockless import Row, aio
from dockless._submitting import Submitted
from dockless.errors import BadInput, DocklessError, Refused, SandboxGone
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State
from dockless.sched.wire import entering

pytestmark = requires("userns")

ECHO = "trap 'echo INT; exit 3' INT; echo up; while read line; do echo got $line; echo err $line >&2; done; echo end"
TICK = "until test -e /tmp/go; do echo tick; sleep 0.05; done"
ANNA, BOB = (pwd.getpwnam(name).pw_uid for name in ("daemon", "bin"))


@contextlib.contextmanager
def attached(*words: object, stdin: int = subprocess.PIPE):
    command = [sys.executable, "-P", "-m", "dockless", "attach", *map(str, words)]
    with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as client:
        try:
            yield client
        finally:
            client.kill()


def type_into(client: subprocess.Popen[bytes], line: str) -> None:
    client.stdin.write(f"{line}\n".encode())


def line(stream: IO[bytes]) -> bytes:
    """The next one; ticks, by which one knows that a client is attached, are passed over."""
    while True:
        assert select.select([stream], [], [], DEADLINE)[0], "nothing came"
        found = stream.readline()
        if found != b"tick\n":
            return found


def ticked(client: subprocess.Popen[bytes]) -> None:
    assert select.select([client.stdout], [], [], DEADLINE)[0] and client.stdout.readline() == b"tick\n"


@pytest.fixture
def start():
    made = []

    def begin(script: str = ECHO, image: str = "host", **options) -> dockless.Sandbox:
        made.append(dockless.start(image, ["/bin/sh", "-c", script], **{"interactive": True, **options}))
        until(lambda: b"up" in {row.text.strip() for row in made[-1].logs()}, "it is up")
        return made[-1]

    yield begin
    for box in made:
        box.rm(force=True)


def test_what_it_wrote_before_is_bounded_and_what_it_writes_at_its_end_is_not(start):
    """16 KiB of what was there; of what it writes afterwards all, though it has ended meanwhile."""
    box = start("seq 20000; echo up; read line; seq 50000")
    with box.attach() as attachment:
        before = "".join(f"{number}\n" for number in range(1, 20001)).encode() + b"up\n"
        assert attachment.scrollback == before[-(1 << 14) :]
        attachment.write(b"\n")
        box.wait(20)
        came = []
        while True:
            came += attachment.come()
            if attachment.output.over:
                break
        assert b"".join(row.written for row in came) == "".join(f"{number}\n" for number in range(1, 50001)).encode()


def test_what_a_full_pipe_does_not_take_comes_back(start):
    box = start("echo up; exec sleep 1000")
    with box.attach() as attachment:
        rest = attachment.put(memoryview(bytes(1 << 20)))
        assert 0 < len(rest) < 1 << 20 and attachment.put(rest) == rest


def test_what_is_typed_goes_in_and_what_comes_is_shown_each_to_its_own(start):
    box = start()
    with attached(box.id) as client:
        type_into(client, "one")
        assert (line(client.stdout), line(client.stderr)) == (b"got one\n", b"err one\n")  # and nothing of before
        client.stdin.close()  # which is not the end of its input
        with attached(box.id) as other:
            type_into(other, "two")
            assert line(client.stdout) == line(other.stdout) == b"got two\n"
            assert line(client.stderr) == line(other.stderr) == b"err two\n"
            box.kill()
            assert other.wait(DEADLINE) == 137
        assert client.wait(DEADLINE) == 137


def test_from_python_and_a_new_input_at_each_start(start, tmp_path):
    box = start(ECHO, load(tmp_path), user="1000")  # whose own it is then
    with box.open_stdin() as stdin:
        stdin.write(b"one\nnever")
    until(lambda: b"got one" in [row.text for row in box.logs()], "its answer")
    box.restart(0)
    with box.open_stdin() as stdin:
        stdin.write(b"two\n")
    until(lambda: b"got two" in [row.text for row in box.logs()], "its answer")
    box.stop(0)
    with pytest.raises(SandboxGone):
        box.open_stdin()


def test_attached_from_python(start):
    box = start()
    with box.attach() as one, dockless.Sandbox.open(box.id).attach() as two:
        assert (one.scrollback, one.tty) == (b"up\n", False)
        one.write(b"one\n")
        for attached in (one, two):
            assert {(row.stream, row.text) for row in itertools.islice(attached, 2)} == {("stdout", b"got one"), ("stderr", b"err one")}
        with pytest.raises(TimeoutError):
            two.read(0.01)
        with pytest.raises(BadInput, match="no terminal"):
            one.resize(1, 1)
    for act in (lambda: one.write(b"x"), one.read):
        with pytest.raises(ValueError, match="detached"):
            act()
    assert box.state == "running"
    with box.attach() as attached:
        assert {*attached.scrollback.splitlines()} == {b"up", b"got one", b"err one"}
        attached.write(b"x" * (1 << 18) + b"\n")  # more than fits at once
        assert next(row for row in attached if row.text.endswith(b"x"))
        box.kill()
        assert all(set(row.text) <= {*b"got errx"} for row in attached)  # to its end
        assert attached.read() == []
        with pytest.raises(BrokenPipeError):
            attached.write(b"nobody")
    with pytest.raises(SandboxGone):
        box.attach()


def test_a_terminal_from_python(start):
    box = start("echo up; stty -echo; read line; stty size; exit 3", tty=True, interactive=False)
    with box.attach() as attached:
        assert attached.tty and attached.scrollback.startswith(b"up")
        attached.resize(11, 44)
        attached.write(b"go\n")
        assert b"11 44" in b"".join(row.written for row in attached)  # to its end
    with pytest.raises(BadInput, match="no terminal"):
        attached.resize(11, 44)
    assert box.wait(DEADLINE).exit_code == 3


def test_what_cannot_be_attached_to_or_written_to(start):
    with dockless.Sandbox(["sleep", "100"]) as held, pytest.raises(BadInput, match="connected to the program"):
        held.attach()
    unkept = dockless.start(["sleep", "100"], keep_log=False)
    with unkept, pytest.raises(BadInput, match="is not kept"):
        unkept.attach()
    unkept.rm(force=True)
    silent = start("echo up; sleep 1000", interactive=False)
    with silent.attach() as attached, pytest.raises(BadInput, match="no standard input"):
        attached.write(b"x")


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_attached_from_a_loop(start, loop):
    box = start()

    async def main() -> None:
        mine = await aio.Sandbox.open(box.id)
        async with await mine.attach() as awaited:
            assert not awaited.tty
        async with mine.attach() as one, mine.open_stdin() as stdin:
            assert one.scrollback == b"up\n"
            await stdin.write(b"one\n")
            assert "got one" in [row.text.decode() async for row in _until(one, b"err one")]
            await one.write(b"x" * (1 << 18) + b"\ntwo\n")
            assert [row async for row in _until(one, b"err two")]
            with pytest.raises(TimeoutError):
                await one.read(0.01)
            with anyio.move_on_after(0.05) as scope:
                await one.read()
            assert scope.cancelled_caught
            assert "got two" in [row.text.decode() async for row in mine.logs()]
            with anyio.move_on_after(0.3) as scope:
                assert len([row async for row in mine.logs(follow=True)]) == 0
            assert scope.cancelled_caught
            async with contextlib.aclosing(mine.logs(follow=True)) as rows:
                async for row in rows:
                    if row.text == b"err two":
                        await stdin.write(b"y" * (1 << 18) + b"\nthree\n")  # more than fits at once
                    elif row.text == b"got three":
                        break
            mine.kill()
            while await one.read(DEADLINE):
                pass
            assert await one.read() == []
        stdin.close()  # once more
        with pytest.raises(ValueError, match="closed"):
            stdin.fileno()

    anyio.run(main, backend=loop)


@pytest.mark.parametrize("how", ["attach", "open_stdin"])
def test_who_is_cancelled_while_it_is_attached_leaves_no_descriptor_open(start, how):
    box = start()

    async def main() -> None:
        mine = await aio.Sandbox.open(box.id)
        async with getattr(mine, how)():
            pass
        before = len(os.listdir("/proc/self/fd"))
        attaching = asyncio.create_task(getattr(mine, how)())
        await asyncio.sleep(0)
        attaching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attaching
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(main())


async def _until(attached: aio.Attachment, wanted: bytes) -> AsyncIterator[Row]:
    async for row in attached:
        yield row
        if row.text.endswith(wanted):
            return


def test_signals_are_for_its_program_unless_you_say_otherwise(start):
    box = start()
    with attached("--sig-proxy", "false", box.id) as client:
        type_into(client, "one")
        assert line(client.stdout) == b"got one\n"
        client.send_signal(signal.SIGINT)
        assert client.wait(DEADLINE) == 0 and b"left" in client.stderr.read() and box.state == "running"
    with attached(box.id) as client:
        type_into(client, "two")
        assert line(client.stdout) == b"got two\n"
        client.send_signal(signal.SIGINT)
        type_into(client, "three")
        assert client.wait(DEADLINE) == 3 and client.stdout.read().endswith(b"INT\n")


def test_one_that_reads_nothing_is_shown_all_the_same(start):
    box = start("echo up; sleep 1000", interactive=False)
    with pytest.raises(BadInput, match="no standard input"):
        box.open_stdin()
    closed = start(f"exec < /dev/null; echo up; {TICK}; echo more; printf partial; exit 4")
    with pytest.raises(SandboxGone):
        closed.open_stdin()
    with attached(closed.id) as client:
        ticked(client)
        type_into(client, "nobody reads it")
        closed.shell("touch /tmp/go")
        assert line(client.stdout) == b"more\n" and client.stdout.read() == b"partial" and client.wait(DEADLINE) == 4


def test_a_program_that_does_not_read_holds_nobody_up(start):
    """More than a pipe takes is typed, and its output still comes."""
    box = start(f"echo up; {TICK}; echo answer; sleep 1000")
    read, write = os.pipe()
    os.set_blocking(write, False)
    with attached(box.id, stdin=read) as client:
        ticked(client)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write, b"x" * 65536)
        box.shell("touch /tmp/go")
        assert line(client.stdout) == b"answer\n"
    os.close(read)
    os.close(write)


def test_one_that_is_somebody_elses_is_refused(say):
    with dockless.Sandbox(["sleep", "100"]) as box:
        code, _, err = say("attach", box.id)
        assert code == 125 and "connected to the program that started it already" in err


# -- jobs of the queue


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory):
    daemon = DaemonProcess(tmp_path_factory.mktemp("d"), settings="[host]\ncpu_jobs = 4\n").start()
    yield daemon
    daemon.end()


@pytest.fixture
def submit(daemon, monkeypatch):
    """Queues a job of this user's and waits for what it says first."""
    monkeypatch.setenv("DOCKLESS_SOCKET", str(daemon.socket))
    jobs = []

    def begin(script: str = ECHO, uid: int = 0, **fields) -> Submitted:
        spec = JobSpec(Spec(argv=("sh", "-c", script), **fields))
        with daemon.client() as queue:
            number = queue.submit(spec) if not uid else as_user(uid, daemon.socket.parent, lambda q: q.submit(spec))[1]
            jobs.append(number)
            next(queue.logs(number, follow=True))
        return Submitted(number)

    yield begin
    with daemon.client() as queue:
        queue.cancel_many(jobs, grace=0)
        queue.wait_many(jobs, timeout=30)


def held(daemon: DaemonProcess) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


@requires("root")
def test_a_jobs_streams(daemon, submit):
    job = submit(interactive=True, uid=ANNA)
    before = held(daemon)
    with attached(job.id) as client:
        type_into(client, "one")
        assert line(client.stdout) == b"got one\n" and line(client.stderr) == b"err one\n"
        client.send_signal(signal.SIGINT)
        assert client.wait(DEADLINE) == 0 and job.status().state is State.RUNNING
    silent = submit(f"echo up; {TICK}; echo more; exit 5")
    with attached(silent.id, stdin=subprocess.DEVNULL) as client:
        ticked(client)
        silent.shell("touch /tmp/go")
        assert line(client.stdout) == b"more\n" and client.wait(DEADLINE) == 5
    answering = submit("echo up; echo ready; read line; echo $line", interactive=True)
    until(lambda: len(list(answering.logs())) == 2, "it has said both")
    with answering.attach() as joined:
        assert joined.scrollback == b"up\nready\n"
        joined.write(b"said\n")
        assert [row.written for row in joined] == [b"said\n"]
    until(lambda: held(daemon) <= before, "the daemon holds nothing of it")


@requires("root")
def test_input_that_ends_arrives_whole_in_a_job_and_ends_nothing(daemon, submit):
    """More than a pipe holds, of a client whose own input ends before the job has read it; then of another."""
    job = submit(f"echo up; {TICK}; head -c 100000 | wc -c; read line; echo got $line; exit 7", interactive=True)
    with attached(job.id) as client:
        ticked(client)
        client.stdin.write(bytes(100_000))
        client.stdin.close()
        job.shell("touch /tmp/go")
        assert line(client.stdout).split() == [b"100000"] and job.status().state is State.RUNNING
        with attached(job.id) as other:
            type_into(other, "two")
            other.stdin.close()
            assert line(client.stdout) == b"got two\n"
            assert client.wait(DEADLINE) == other.wait(DEADLINE) == 7


@requires("root")
def test_a_jobs_terminal(daemon, submit):
    job = submit("echo up; exec sh -i", tty=True, uid=ANNA)
    with Screen("attach", str(job.id), size=(11, 44)) as screen:
        screen.expect("up")  # what was there before
        screen.type("stty size; echo $((40 + 2))\n")
        screen.expect("11 44")
        screen.expect("42")
        screen.type("\x10\x11")
        assert screen.code() == 0
    with Screen("attach", str(job.id)) as screen:
        screen.expect("42")
        screen.type("exit 6\n")
        assert screen.code() == 6


@requires("root")
def test_a_foreign_jobs_streams_are_nobodys(daemon, submit):
    """Its owner and root alone; who asks otherwise gets no descriptor, and the daemon keeps none."""
    job, terminal = submit(interactive=True, uid=ANNA), submit("echo up; sleep 1000", tty=True, uid=ANNA)
    before = held(daemon)
    for number in (job.id, terminal.id):
        for op in ("attach", "leave"):
            assert _asked(BOB, daemon, number, op)[:2] == ("error", "NotPermitted")
    assert _asked(ANNA, daemon, job.id, "attach") == ("ok", "stdin") and _asked(ANNA, daemon, terminal.id, "attach") == ("ok", "terminal")
    for wrong in (0, -1, "1", None, 1 << 70, True):
        with daemon.client() as queue, pytest.raises(DocklessError):
            queue.attach(wrong)
    until(lambda: held(daemon) <= before, "the daemon holds nothing of it")


def _asked(uid: int, daemon: DaemonProcess, number: int, op: str) -> tuple[str, ...]:
    def ask(queue):
        if op == "leave":
            return queue.leave(number, {"argv": ["true"]})
        kind, fd = queue.attach(number)
        os.close(fd)
        return kind

    return as_user(uid, daemon.socket.parent, ask)


@requires("root")
def test_a_program_that_is_left_in_a_job_goes_on_without_the_daemon(tmp_path_factory, monkeypatch, say):
    daemon = DaemonProcess(tmp_path_factory.mktemp("e")).start()
    monkeypatch.setenv("DOCKLESS_SOCKET", str(daemon.socket))
    spec = JobSpec(Spec(argv=("sh", "-c", "echo up; exec sleep 1000")))
    with daemon.client() as queue:
        job = Submitted(as_user(ANNA, daemon.socket.parent, lambda q: q.submit(spec))[1])
        next(queue.logs(job.id, follow=True))
    assert say("exec", "-d", "-e", "A=7", str(job.id), "--", "sh", "-c", "echo $A > /tmp/left; exec sleep 7177")[0] == 0
    until(lambda: job.shell("cat /tmp/left", text=True).stdout == "7\n", "it has written")
    daemon.kill9()
    daemon.start()
    assert job.shell("pgrep -f '^sleep 7177'").returncode == 0
    with pytest.raises(Refused, match="go on in job"):
        for _ in range(entering.LEFT + 1):
            job.spawn_alone("sleep", "7178")
    job.shell("pkill -f '^sleep 717'")
    until(lambda: not _refused(job), "there is room again")
    with daemon.client() as queue, pytest.raises(BadInput):
        queue.leave(job.id, {"argv": ["true"], "tty": True})
    job.cancel(grace=0)
    job.wait(30)
    with pytest.raises(SandboxGone):
        job.spawn_alone("true")
    daemon.end()


@requires("root")
def test_so_many_programs_go_on_in_a_job_also_when_they_come_at_once(daemon, submit):
    """With a terminal, whose reader is none of them."""
    job = submit("echo up; exec sleep 1000", tty=True)

    def leave(_: int) -> bool:
        try:
            job.spawn_alone("sleep", "7179")
            return True
        except Refused:
            return False

    with ThreadPoolExecutor(24) as pool:
        assert sum(pool.map(leave, range(24))) == entering.LEFT


def _refused(job: Submitted) -> bool:
    try:
        job.spawn_alone("true")
    except Refused:
        return True
    return False
