"""The daemon's own life, in this process: one for each queue, what it says and makes, and what it tells whoever started it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.stand_in import DEADLINE, StandIn

import dockless
from dockless import errors
from dockless.base import paths
from dockless.errors import BadInput, GpuDriverMissing, SchedError, UnknownImage, Unwritable
from dockless.images.layers import erofs
from dockless.sandbox.gpus import gpu
from dockless.sandbox.run import detached
from dockless.sched import Client, daemon
from dockless.sched.engine.engine import Engine
from dockless.sched.engine.gpus.hostgpus import HostGpus
from dockless.sched.store import queue, schema
from dockless.sched.wire.server import Server

US = os.getpid()


@pytest.fixture
def lock(tmp_path):
    return tmp_path / "daemon.lock"


@pytest.fixture
def slept(monkeypatch):
    """Time that goes on by sleeping alone: a tenth of a second for each."""
    slept = []
    monkeypatch.setattr(daemon, "time", SimpleNamespace(monotonic=lambda: len(slept) / 10, sleep=slept.append))
    return slept


@contextlib.contextmanager
def held(path, text):
    """Somebody else has the lock, and wrote that into it."""
    path.write_bytes(text)
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def test_the_one_daemon_says_who_it_is(lock):
    lock.write_text("4194304 and what was there before\n")
    with daemon.only_one(lock):
        assert lock.read_text() == f"{US}\n"
        with open(lock) as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with held(lock, b""):
        pass


def test_only_its_user_reads_the_lock_and_nothing_stands_in_for_it(lock):
    with daemon.only_one(lock):
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    lock.unlink()
    lock.symlink_to(lock.with_name("elsewhere"))
    with pytest.raises(Unwritable, match="cannot write the lock of the daemon") as caught, daemon.only_one(lock):
        pass
    assert caught.value.subject == str(lock) and not lock.with_name("elsewhere").exists()


def test_a_full_disk_keeps_no_daemon_from_serving(lock, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "planted")

    monkeypatch.setattr(daemon.os, "pwrite", full)
    with daemon.only_one(lock):
        assert lock.read_text() == ""


def test_a_daemon_that_lives_is_not_waited_for(lock, slept):
    refusal = pytest.raises(SchedError, match=f"^a daemon serves this queue already, process {US}$")
    with held(lock, b"%d\n" % US), refusal as caught, daemon.only_one(lock):
        pass
    assert (caught.value.subject, caught.value.hint, slept) == (str(lock), "there is one per user", [])


@pytest.mark.parametrize(
    ("text", "shown"),
    [(b"4194305\n", "4194305"), (b"", ""), (b"self\n", "self"), (b"\xff", "\ufffd"), (b"1" * 30, "1" * 20)],
    ids=["a process that is gone", "nobody", "no number", "no text", "too long a number"],
)
def test_the_lock_of_a_dead_daemon_is_waited_for_some_seconds(lock, slept, text, shown):
    """A sandbox that it was just cloning holds it until its exec. 4194304 is the largest number of processes, proc_sys_kernel(5)."""
    refusal = pytest.raises(SchedError, match=f"^a daemon serves this queue already, process {shown}$")
    with held(lock, text), refusal, daemon.only_one(lock):
        pass
    assert len(slept) == 51 and set(slept) == {0.02}


def test_the_lock_that_a_dead_daemon_leaves_is_taken_over(lock, slept, monkeypatch):
    real, tried = fcntl.flock, []

    def flock(fd, how):
        tried.append(how)
        if len(tried) == 2:
            raise InterruptedError(errno.EINTR, "planted")
        if len(tried) == 4:
            there.close()
        return real(fd, how)

    with held(lock, b"4194305\n") as there:
        monkeypatch.setattr(daemon.fcntl, "flock", flock)
        with daemon.only_one(lock):
            assert lock.read_text() == f"{US}\n"
    assert len(slept) == 3 and set(tried) == {fcntl.LOCK_EX | fcntl.LOCK_NB}


def test_a_lock_that_cannot_be_had_at_all_is_no_other_daemon(lock, slept, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "planted")

    monkeypatch.setattr(daemon.fcntl, "flock", flock)
    with pytest.raises(OSError, match="planted") as caught, daemon.only_one(lock):
        pass
    assert caught.value.errno == errno.ENOLCK and slept == []


# -- from its start to its end


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What a service manager has been told since it was last asked."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

        def read():
            texts = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    texts.append(manager.recv(100).decode())
            return texts

        yield read


@pytest.fixture
def gpus(monkeypatch):
    """Two simulated ones."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")


def serve(home, work=lambda path: None, end=signal.SIGTERM, *, at_once=lambda: None):
    """A daemon's life in this process. Once it listens: ``at_once`` in its loop, ``work(path)`` in a thread, and then it is told to end."""
    failed, me = [], threading.get_ident()

    def worker():
        try:
            work(home / "s")
        except BaseException as error:
            failed.append(error)
        finally:
            signal.pthread_kill(me, end)

    thread = threading.Thread(target=worker)

    def ready():
        at_once()
        thread.start()

    paths.make(paths.state())
    asyncio.run(daemon.serve(paths.state(), home / "s", StandIn(home / "boxes"), ready=ready))
    thread.join(DEADLINE)
    for error in failed:
        raise error


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_from_its_start_to_its_end(home, gpus, told, capfd, end):
    paths.make(paths.state())
    db = schema.open_queue(paths.state() / "jobs.db")
    queue.insert(db, [queue.NewJob(0, "root", "", "", "host", "true", "8", 8, (), (), 0, 0.0, "fail", "{}")], False, 1.0)
    db.close()
    seen = []

    def work(path):
        seen.extend(told())
        with Client(path) as client:
            seen.append(client.ping().version)

    serve(home, work, end)
    assert seen == ["READY=1", dockless.__version__] and told() == ["STOPPING=1"]
    whom = "all users" if os.geteuid() == 0 else "this user"
    assert capfd.readouterr().err == (
        f"dockless daemon: serving {whom} at {home}/s, 2 simulated GPUs, 1 jobs in the queue\ndockless daemon: ending; running jobs go on\n"
    )
    assert not (home / "s").exists()


@pytest.mark.parametrize(("uid", "whom"), [(0, "all users"), (os.geteuid() or 1000, "this user")])
@pytest.mark.parametrize(("many", "what"), [(0, "no GPUs"), (3, "3 GPUs")])
def test_whom_it_serves_and_with_what(home, capfd, monkeypatch, uid, whom, many, what):
    @contextlib.contextmanager
    def none():
        raise GpuDriverMissing("planted")
        yield

    if many:
        monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", f"{many}x80G")
        monkeypatch.setattr(HostGpus, "simulated", False)
    else:
        monkeypatch.setattr(gpu, "session", none)
    monkeypatch.setattr(daemon.os, "geteuid", lambda: uid)
    serve(home)
    assert f"serving {whom} at {home}/s, {what}, 0 jobs" in capfd.readouterr().err


def test_a_client_may_end_it(home, gpus, capfd):
    def work(path):
        with Client(path) as client:
            client.shutdown()

    serve(home, work, end=0)
    assert capfd.readouterr().err.endswith("ending; running jobs go on\n")


def test_settings_are_read_again(home, gpus, capfd):
    """Wrong ones change nothing; names that nobody has are told each time."""
    file = home / "dockless.toml"
    file.write_text("[host]\ncpu_jobs = 3\n[quota.users]\nnobody-here = 1\n")
    unknown = f"dockless daemon: {file}:4: quota.users.nobody-here: there is no user 'nobody-here'\n"
    seen, said = [], []

    def heard(text):
        end = time.monotonic() + DEADLINE
        while text not in "".join(said):
            assert time.monotonic() < end, said
            said.append(capfd.readouterr().err)
            time.sleep(0.002)

    def work(path):
        with Client(path) as client:
            for text, answer in ((None, "serving"), ("[host]\ncpu_jobs = -1\n", "not changed"), ("[host]\ncpu_jobs = 5\n", "read again")):
                if text is not None:
                    file.write_text(text)
                    os.kill(os.getpid(), signal.SIGHUP)
                heard(answer)
                seen.append(client.info().cpu_jobs)

    serve(home, work)
    said.append(capfd.readouterr().err)
    assert seen == [3, 3, 5]
    lines = "".join(said).splitlines(keepends=True)
    again = "dockless daemon: settings read again: host.cpu_jobs, quota.users.nobody-here\n"
    assert lines[0] == unknown and lines[3:] == [again, "dockless daemon: ending; running jobs go on\n"]
    assert lines[2].startswith(f"dockless daemon: settings not changed: {file}:2: host.cpu_jobs")


def test_what_it_reads_once_holds_from_its_next_start(home, gpus, capfd):
    """Each time the settings are read, it is said again."""
    file = home / "dockless.toml"

    def work(path):
        file.write_text(f'[gpus]\ndriver_root = "{home}"\n[host]\ncpu_jobs = 5\n')
        with Client(path) as client:
            client.reload()
            client.reload()

    serve(home, work)
    lines = capfd.readouterr().err.splitlines()
    later = "dockless daemon: gpus.driver_root has changed: the change holds from the daemon's next start"
    assert lines[1:5] == ["dockless daemon: settings read again: host.cpu_jobs", later, "dockless daemon: settings read again", later]


def test_it_keeps_house_while_it_serves(home, gpus, monkeypatch):
    began, ended = [], []

    def chore(name):
        async def work(about):
            began.append((name, about if isinstance(about, float) else type(about)))
            try:
                await asyncio.sleep(DEADLINE)
            except asyncio.CancelledError:
                ended.append(name)
                raise

        return work

    monkeypatch.setattr(daemon, "keep_house", chore("house"))
    monkeypatch.setattr(daemon, "let_removed_layers_go", chore("layers"))

    def work(path):
        end = time.monotonic() + DEADLINE
        while len(began) < 2:
            assert time.monotonic() < end
            time.sleep(0.002)

    serve(home, work)
    assert began == [("layers", 60.0), ("house", Engine)] and ended == ["layers", "house"]


@pytest.mark.parametrize("fails", [None, "recover", "open"])
def test_however_it_ends_everything_is_closed(home, gpus, told, monkeypatch, capfd, fails):
    """In this order: it takes no more jobs, answers what was asked, hangs up and closes the queue."""
    steps = []
    for owner, name in ((Server, "close"), (Server, "hang_up"), (Engine, "close")):
        real = getattr(owner, name)

        async def step(self, real=real, what=f"{owner.__name__}.{name}"):
            steps.append((what, self.engine.closing if isinstance(self, Server) else self.closing))
            await real(self)

        monkeypatch.setattr(owner, name, step)

    async def failing(self):
        raise SchedError("planted")

    if fails is not None:
        monkeypatch.setattr(Engine if fails == "recover" else Server, fails, failing)
    with pytest.raises(SchedError, match="planted") if fails else contextlib.nullcontext():
        serve(home)
    assert steps == [("Server.close", True), ("Server.hang_up", True), ("Engine.close", True)]
    assert told() == ([] if fails else ["READY=1"]) + ["STOPPING=1"]
    assert capfd.readouterr().err.count("ending") == (0 if fails else 1)


def test_what_fails_in_its_loop_is_told_without_what_was_asked(home, gpus, capfd):
    def boom():
        raise ValueError("hunter2")

    def at_once():
        loop = asyncio.get_running_loop()
        loop.call_soon(boom)
        loop.call_exception_handler({"message": "a thing that is no exception"})

    serve(home, at_once=at_once)
    said = capfd.readouterr().err
    assert "dockless daemon: unexpected error: a thing that is no exception\n" in said
    assert "dockless daemon: unexpected error: ValueError in test_daemon_life.py:" in said
    assert "hunter2" not in said and "Traceback" not in said


@pytest.mark.parametrize("address", ["", "@dockless-test-notify", "path", "/no/such/socket"])
def test_who_is_told_that_it_is_ready(tmp_path, monkeypatch, address):
    """A name that begins with @ is one in the abstract namespace, sd_notify(3); that nobody is there is no error."""
    if address == "":
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
        return daemon._notify("READY=1")
    if address.startswith("/"):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        return daemon._notify("READY=1")
    address = str(tmp_path / address) if address == "path" else f"{address}-{US}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address[1:] if address.startswith("@") else address)
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        daemon._notify("READY=1")
        assert manager.recv(100) == b"READY=1"


# -- the command


@pytest.fixture
def served(monkeypatch):
    """What ``main`` would serve: the directory, the socket, the launcher; and whether the lock was held."""
    calls = []

    async def serve(state, path, launcher):
        with open(state / "daemon.lock") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        calls.append((state, path, launcher))

    monkeypatch.setattr(daemon, "serve", serve)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    return calls


@pytest.mark.parametrize(("uid", "mode"), [(0, 0o755), (1000, 0o700)])
def test_what_the_command_makes_and_serves(home, served, monkeypatch, uid, mode):
    """Root's places may be looked into by all, whose socket lies there; a user's are hers alone."""
    monkeypatch.setattr(daemon.os, "geteuid", lambda: uid)
    other = StandIn(home / "boxes")
    assert daemon.main() == 0
    assert daemon.main(["--socket", str(home / "sockets" / "s")], launcher=other) == 0
    state = home / "state"
    assert served == [(state, home / "run" / "daemon.sock", detached), (state, home / "sockets" / "s", other)]
    assert [stat.S_IMODE((home / name).stat().st_mode) for name in ("state", "run", "sockets")] == [mode] * 3


def test_what_it_says_of_itself(home, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as caught:
        daemon.main(["--help"])
    assert caught.value.code == 0 and capsys.readouterr().out == (
        "usage: dockless daemon [-h] [--socket SOCKET]\n\nStart queued jobs; stays in the foreground.\n\noptions:\n"
        f"  -h, --help       show this help message and exit\n  --socket SOCKET  where to listen (default: {home}/run/daemon.sock)\n"
    )


def test_a_socket_with_too_long_a_path_is_refused_before_anything_is_made(home, served):
    with pytest.raises(BadInput, match="the socket's path has"):
        daemon.main(["--socket", str(home / ("s" * 100))])
    assert list(home.iterdir()) == [] and served == []


def test_how_the_daemon_fails(home, monkeypatch, served):
    """Our own words as they are, others without their text, which may be a user's."""
    for error in (SchedError("in our words", hint="do"), ValueError("hunter2")):

        async def serve(*_, error=error):
            raise error

        monkeypatch.setattr(daemon, "serve", serve)
        with pytest.raises(SchedError) as caught:
            daemon.main()
        if isinstance(error, SchedError):
            assert caught.value is error
        else:
            assert str(caught.value).startswith("the daemon failed: ValueError in ") and "hunter2" not in str(caught.value)
            assert caught.value.hint == "this is a bug in dockless; please report it. Running jobs go on"
            assert caught.value.__suppress_context__


def test_a_thread_that_fails_is_told_without_what_was_asked(served, capfd):
    daemon.main()

    def boom():
        raise ValueError("hunter2")

    thread = threading.Thread(target=boom)
    thread.start()
    thread.join()
    threading.excepthook(threading.ExceptHookArgs((ValueError, None, None, thread)))
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith("dockless daemon: unexpected error: ValueError in test_daemon_life.py:") and "hunter2" not in first
    assert second == "dockless daemon: unexpected error"


def test_run_as_a_module_it_says_what_is_wrong_and_what_to_do(home):
    path = home / ("s" * 100)
    environment = {**os.environ, "PYTHONPATH": str(Path(errors.__file__).parent.parent)}
    command = [sys.executable, "-m", "dockless.sched.daemon", "--socket", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")
    size = len(os.fsencode(path))
    assert (done.returncode, done.stdout) == (BadInput.exit_code, "")
    assert done.stderr == (
        f"dockless: the socket's path has {size} bytes, at most 107 are possible\n"
        "  hint: set DOCKLESS_HOME to a shorter path, or DOCKLESS_SOCKET (dockless daemon --socket)\n"
    )


# -- its smaller parts


def test_removed_layers_are_let_go_again_and_again(monkeypatch):
    slept, looks = [], []

    async def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 4:
            raise asyncio.CancelledError

    with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
        patch.setattr(daemon, "asyncio", SimpleNamespace(sleep=sleep))
        patch.setattr(erofs, "release", lambda: looks.append(len(slept)))
        asyncio.run(daemon.let_removed_layers_go(7.0))
    assert slept == [7.0] * 4 and looks == [1, 2, 3]


def test_which_images_it_takes(home):
    """The host's own files are no image; nothing else is looked for but in the store."""
    daemon.check_image("host")
    assert not (home / "store").exists()
    with pytest.raises(UnknownImage, match="nowhere"):
        daemon.check_image("nowhere:1")
