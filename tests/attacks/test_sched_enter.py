"""A55, the scheduler: whoever may enter her own job tries to have more by it: descriptors, garbage, numbers, too much of everything."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
from contextlib import ExitStack, suppress

import pytest
from support.boxes import until
from support.scheduling import DaemonProcess, as_user

from dockless._submitting import Submitted
from dockless.errors import BadInput, DocklessError, LaunchFailed, Refused, SchedError
from dockless.sandbox.spec import Spec
from dockless.sched import Client, JobSpec
from dockless.sched.wire import entering, protocol

pytestmark = [pytest.mark.requires("root", "userns")]

ANNA = pwd.getpwnam("daemon").pw_uid
TRUE = {"argv": ["true"]}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory):
    daemon = DaemonProcess(tmp_path_factory.mktemp("d")).start()
    yield daemon
    daemon.end()


@pytest.fixture(scope="module")
def job(daemon) -> int:
    with daemon.client() as root:
        number = as_user(ANNA, daemon.socket.parent, lambda q: q.submit(JobSpec(Spec(argv=("sh", "-c", "echo up; exec sleep 1000")))))[1]
        next(root.logs(number, follow=True))
    return number


@pytest.fixture(autouse=True)
def _nothing_stays(daemon, job, monkeypatch):
    """Whatever was tried, the daemon has the descriptors that it had, and lets the next one in."""
    monkeypatch.setenv("DOCKLESS_SOCKET", str(daemon.socket))
    assert Submitted(job).exec("true", user="0").returncode == 0  # the agent that looks it up is kept open from then on
    before = held(daemon)
    yield
    until(lambda: held(daemon) <= before, f"the end of what the daemon holds: {held(daemon)} of {before}")
    assert Submitted(job).exec("true").returncode == 0


def held(daemon: DaemonProcess) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def begin(daemon: DaemonProcess, opened: ExitStack, job: int, program: object = TRUE, **fields) -> tuple[Client, socket.socket]:
    """The first step of an exec alone: a connection, and our end of the socket."""
    client = opened.enter_context(daemon.client())
    return client, opened.enter_context(client.exec(job, program, **{"size": None, **fields}))


@pytest.mark.parametrize("number", [1, 2, 4, 12], ids=lambda n: f"{n} descriptors")
def test_too_few_and_too_many_streams(daemon, job, number):
    with ExitStack() as opened, open(os.devnull, "r+b", buffering=0) as file:
        client, channel = begin(daemon, opened, job)
        socket.send_fds(channel, [b"s"], [file.fileno()] * number)
        with pytest.raises(LaunchFailed, match="take standard input"):
            client.answer()


def test_no_stream_at_all(daemon, job):
    with ExitStack() as opened:
        client, channel = begin(daemon, opened, job)
        channel.send(b"s")
        with pytest.raises(LaunchFailed):
            client.answer()
    with ExitStack() as opened:
        client, channel = begin(daemon, opened, job)
        channel.close()
        with pytest.raises(LaunchFailed):
            client.answer()


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_PATH], ids=["open", "path"])
@pytest.mark.parametrize("which", range(3))
def test_directories(daemon, job, which, flags):
    with ExitStack() as opened, open(os.devnull, "r+b", buffering=0) as file:
        client, channel = begin(daemon, opened, job)
        place = os.open("/", flags | os.O_DIRECTORY)
        opened.callback(os.close, place)
        streams = [file.fileno()] * 3
        streams[which] = place
        socket.send_fds(channel, [b"s"], streams)
        with pytest.raises(LaunchFailed, match="directory"):
            client.answer()


def test_descriptors_that_are_sent_to_the_daemon_itself(daemon, job):
    """It takes none: one that blocks when it is closed, or a thousand, are nothing to it."""
    before = held(daemon)
    with daemon.client() as client, open(os.devnull) as file:
        client._open()
        line = protocol.encode({"v": protocol.VERSION, "op": "exec", "job": job, "program": TRUE})
        socket.send_fds(client._socket, [line], [file.fileno()] * 200)
        assert client.answer()["streams"]
        socket.send_fds(client._socket, [b'{"op": "kill"}\n'], [file.fileno()] * 200)
        assert held(daemon) < before + 30


@pytest.mark.parametrize(
    "program",
    [
        None, 5, [], {}, {"argv": []}, {"argv": [""]}, {"argv": "true"}, {"argv": [1]}, {"argv": ["x\0"]},
        {"argv": ["true"], "env": [["A"]]},
        {"argv": ["true"], "env": [["A=B", "c"]]}, {"argv": ["true"], "workdir": "here"}, {"argv": ["true"], "timeout": -1},
        {"argv": ["true"], "timeout": "1"}, {"argv": ["true"], "account": {"uid": -1, "gid": 0}}, {"argv": ["true"], "account": 0},
        {"argv": ["true"], "account": {"uid": 0, "gid": 1 << 40}}, {"argv": ["true"], "account": {"uid": 0, "gid": 0, "groups": [-1]}},
        {"argv": ["true"], "more": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_garbage_for_a_program(daemon, job, program):
    with ExitStack() as opened, pytest.raises(BadInput):
        client, channel = begin(daemon, opened, job, program)
        with open(os.devnull, "r+b", buffering=0) as file, suppress(BrokenPipeError):
            socket.send_fds(channel, [b"s"], [file.fileno()] * 3)
        client.answer()


@pytest.mark.parametrize("size", [1, [], [1], [1, 2, 3], [-1, 2], [1, 1 << 16], ["1", 2], [True, 2]], ids=repr)
def test_garbage_for_a_size(daemon, job, size):
    with ExitStack() as opened, pytest.raises(BadInput):
        begin(daemon, opened, job, {"argv": ["true"], "tty": True}, size=size)


@pytest.mark.parametrize(
    "line", [b"\n", b"{}\n", b"[]\n", b'{"op":"cancel"}\n', b'{"op":"signal","number":19}\n', b'{"op":"signal","number":"9"}\n']
)
def test_garbage_while_it_runs_ends_it(daemon, job, line):
    with ExitStack() as opened, open(os.devnull, "r+b", buffering=0) as file:
        client, channel = begin(daemon, opened, job, {"argv": ["sleep", "7181"]})
        socket.send_fds(channel, [b"s"], [file.fileno()] * 3)
        client.answer()
        client._socket.sendall(line)
        with pytest.raises(BadInput):
            client.answer()
        until(lambda: subprocess.run(["pgrep", "-f", "^sleep 7181"], stdout=subprocess.DEVNULL, check=False).returncode, "its end")


def test_ids_that_the_job_has_not(daemon, job):
    """Anna's job has the ids of its map and no others, whoever she says she is."""

    def tried(_):
        os.environ["DOCKLESS_SOCKET"] = "daemon.sock"
        return Submitted(job).exec("id", user="1:1").stdout

    assert as_user(ANNA, daemon.socket.parent, tried)[0] == "error"


def test_one_user_has_so_many_and_the_others_have_theirs(daemon, job):
    """Those that never send their streams count, too."""

    def crowd(client: Client):
        clients = [Client("daemon.sock") for _ in range(entering.PER_USER + 1)]
        channels = []
        try:
            for one in clients:
                channels.append(one.exec(job, TRUE, None))
        except Refused as error:
            os.environ["DOCKLESS_SOCKET"] = "daemon.sock"
            with suppress(DocklessError):
                Submitted(job).exec("true")
                return "let in"
            return len(channels), str(error)
        return "never refused"

    outcome, (count, said) = as_user(ANNA, daemon.socket.parent, crowd)
    assert outcome == "ok" and count == entering.PER_USER and "which is the limit" in said


def test_a_flood_of_signals(daemon, job):
    with ExitStack() as opened, open(os.devnull, "r+b", buffering=0) as file:
        client, channel = begin(daemon, opened, job, {"argv": ["sleep", "7182"]})
        socket.send_fds(channel, [b"s"], [file.fileno()] * 3)
        client.answer()
        with suppress(OSError, SchedError):
            client._socket.sendall(b'{"op":"signal","number":28}\n' * 2000 + b'{"op":"kill"}\n' * 2000)
        assert client.answer()["exit"]["signal"] == 9
