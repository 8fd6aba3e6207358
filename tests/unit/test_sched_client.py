"""The client against a daemon's bad manners, over a real socket."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import struct
import threading
from pathlib import Path

import pytest

from dockless.base.waits import Pause
from dockless.cgroups import IoMax, Limits
from dockless.errors import BadInput, DaemonUnavailable, NotPermitted
from dockless.sandbox.spec import Spec
from dockless.sched import Job, JobSpec, State
from dockless.sched.engine.gpus import asking
from dockless.sched.wire import client as client_module
from dockless.sched.wire import protocol
from dockless.sched.wire.client import Client, connect
from dockless.sched.wire.protocol import DaemonInfo, GpuInfo, HostInfo, LogLine


@pytest.fixture
def listening(tmp_path: Path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        yield listener, tmp_path / "s"


def test_a_refusal_that_comes_before_the_question_is_read(listening):
    listener, path = listening
    with connect(path) as client:
        daemon, _ = listener.accept()
        with daemon:
            daemon.sendall(protocol.encode(protocol.error_message(NotPermitted("you have no account here"))))
        with pytest.raises(NotPermitted, match="no account"):
            client.ping()


def test_hanging_up_without_a_word(listening):
    listener, path = listening
    with connect(path) as client:
        listener.accept()[0].close()
        with pytest.raises(DaemonUnavailable, match="went away"):
            client.ping()


def test_a_daemon_that_has_many_calls_waiting_is_waited_for(tmp_path: Path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        with connect(tmp_path / "s"):  # takes the only place
            with pytest.raises(DaemonUnavailable, match="no call in time"):
                connect(tmp_path / "s", timeout=0.05)
            taker = threading.Thread(target=lambda: (waiting.wait(), listener.accept()[0].close()))
            waiting = threading.Event()
            taker.start()
            waiting.set()
            with connect(tmp_path / "s", timeout=60):
                taker.join()


@contextlib.contextmanager
def daemon(listener, *calls):
    """One that serves a connection after the other: each a list of lists of messages, one list for a request. Yields what was asked."""
    asked = []

    def serve():
        for answers in calls:
            connection = listener.accept()[0]
            with connection, connection.makefile("rb") as stream:
                for messages in answers:
                    asked.append(json.loads(stream.readline()))
                    connection.sendall(b"".join(protocol.encode({"ok": True, **message}) for message in messages))

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    yield asked
    server.join()


def test_the_lines_of_a_log_over_a_restart(listening):
    """Asked for again from the byte behind the last line that came, of the same attempt."""
    first = {
        "attempt": 2,
        "lines": [["10:00", "stdout", "caf\udce9", False], ["10:01", "stderr", "half", True, 0], ["10:02", "stdout", "", False, 300]],
    }
    second = {"attempt": 2, "lines": [["10:03", "stderr", "end", False]]}
    with daemon(listening[0], [[first]], [[second, {"end": True}]]) as asked, connect(listening[1]) as client:
        lines = list(client.logs(7, follow=True))
    assert lines == [
        LogLine("10:00", "stdout", "caf\udce9"), LogLine("10:01", "stderr", "half", True), LogLine("10:02", "stdout", "", False, 300),
        LogLine("10:03", "stderr", "end"),
    ]  # fmt: skip
    assert [(one["job"], one["follow"], one["attempt"], one["after"]) for one in asked] == [(7, True, 0, 0), (7, True, 2, 5 + 4 + 300)]


def test_a_log_that_is_not_followed_is_not_asked_for_twice(listening):
    with daemon(listening[0], [[{"lines": [["", "stdout", "a", False]]}]]), connect(listening[1]) as client:
        lines = client.logs(7)
        assert next(lines).text == "a"
        with pytest.raises(DaemonUnavailable, match="went away"):
            next(lines)


def test_an_older_daemon_says_less_and_a_newer_one_more(listening):
    info = {"waiting": 3, "new": 1, "gpus": [{"index": 0, "uuid": "GPU-0", "new": 1}], "quotas": [["user", "ann", 1, None]]}
    with daemon(listening[0], [[{"info": info}]]), connect(listening[1]) as client:
        assert client.info() == HostInfo(
            (GpuInfo(0, "GPU-0", "", 0, -1, False, False, 0, 0, "", 0.0),), 3, 0, 0, "", (("user", "ann", 1, None),)
        )


def test_which_daemon(tmp_path, monkeypatch, home):
    """The one that is named, else one's own where there is one or there is to be one, else root's."""
    root, own = tmp_path / "root.sock", client_module.own_socket()
    monkeypatch.setattr(client_module, "ROOT_SOCKET", root)
    monkeypatch.setenv("DOCKLESS_SOCKET", "/named")
    assert own == home / "run" / "daemon.sock" and client_module.socket_path() == Path("/named")
    monkeypatch.delenv("DOCKLESS_SOCKET")
    root.touch()
    assert client_module.socket_path() == own  # DOCKLESS_HOME says where
    monkeypatch.setattr(client_module, "own_socket", lambda: tmp_path / "own.sock")
    monkeypatch.delenv("DOCKLESS_HOME")
    assert client_module.socket_path() == root
    (tmp_path / "own.sock").touch()
    assert client_module.socket_path() == tmp_path / "own.sock"
    (tmp_path / "own.sock").unlink()
    root.unlink()
    assert client_module.socket_path() == tmp_path / "own.sock"
    monkeypatch.setenv("DOCKLESS_SOCKET", str(root))
    assert Client().path == root and Client("/x").path == Path("/x")


def test_what_is_asked(listening):
    """What is not given is not sent. Each answer is a line, however it is cut."""
    job = Job(7, 0, "root", State.PENDING).as_dict()
    answers = [
        [{"ids": [3, 4]}],
        [{"first": 5}],
        [{"ids": [8, 9]}],
        [{"jobs": [job]}],
        [{"jobs": []}],
        [{"job": job}],
        [{"jobs": [job]}],
        [{"jobs": [job]}],
    ]
    with daemon(listening[0], answers) as asked, connect(listening[1]) as queue:
        assert queue.submit_many([]) == []
        assert queue.submit_many([JobSpec(), JobSpec(priority=-1)]) == [3, 4]
        assert queue.submit_array(JobSpec(), 3) == [5, 6, 7]
        assert queue.submit_array(JobSpec(), 2) == [8, 9]  # of an older daemon
        assert [one.id for one in queue.queue()] == [7]
        assert queue.queue(ended=True, user="ann", limit=4) == []
        assert queue.job(7).id == 7
        assert queue.cancel(7).id == 7
        assert queue.cancel(7, grace=0).id == 7
    assert asked == [
        {"v": 1, "op": "submit", "jobs": [{}, {"priority": -1}]},
        {"v": 1, "op": "submit", "jobs": [{}], "array": 3},
        {"v": 1, "op": "submit", "jobs": [{}], "array": 2},
        {"v": 1, "op": "queue", "ended": False, "user": "", "limit": 0, "pages": True},
        {"v": 1, "op": "queue", "ended": True, "user": "ann", "limit": 4, "pages": True},
        {"v": 1, "op": "job", "job": 7},
        {"v": 1, "op": "cancel", "jobs": [7]},
        {"v": 1, "op": "cancel", "jobs": [7], "grace": 0},
    ]


def test_many_are_waited_for_in_parts(listening, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_JOBS_PER_REQUEST", 2)
    jobs = [[{"jobs": [Job(number, 0, "root", State.FAILED).as_dict() for number in part]}] for part in ([5, 3], [4])]
    with daemon(listening[0], jobs) as asked, connect(listening[1]) as queue:
        assert [job.id for job in queue.wait_many([5, 3, 5, 4])] == [5, 3, 5, 4]
    assert asked == [{"v": 1, "op": "wait", "jobs": part} for part in ([5, 3], [4])]


def test_an_answer_in_pieces_and_two_at_once(listening):
    listener, path = listening
    with connect(path) as queue:
        there = listener.accept()[0]
        with there:
            first, second = (protocol.encode({"ok": True, "ids": [number]}) for number in (1, 2))
            queue._send("submit", {})
            there.sendall(first[:5])
            queue._socket.settimeout(5)
            sender = threading.Timer(0.05, there.sendall, [first[5:] + second])
            sender.start()
            assert queue._receive(10) == {"ok": True, "ids": [1]}
            assert queue._receive(10) == {"ok": True, "ids": [2]} and queue._buffer == b""
            sender.join()


def test_what_is_too_long_is_not_sent(listening, monkeypatch):
    line = protocol.encode({"v": 1, "op": "job", "job": 7})
    with connect(listening[1]) as queue:
        for most, error in ((len(line) - 1, BadInput), (len(line), TimeoutError)):
            monkeypatch.setattr(protocol, "MAX_REQUEST", most)
            queue.timeout = 0.01
            with pytest.raises(BadInput if error is BadInput else DaemonUnavailable) as caught:
                queue.job(7)
            assert ("the request has" in str(caught.value)) is (error is BadInput)
        assert "no answer in time" in str(caught.value) and queue._socket is None


def test_a_stream_that_is_left_is_not_read_on(listening):
    """What comes of it later is no answer to the next question."""
    lines = {"lines": [["", "stdout", "a", False], ["", "stdout", "b", False]]}
    with daemon(listening[0], [[lines, {"end": True}]], [[{"ids": [7]}]]) as asked, connect(listening[1]) as queue:
        rows = queue.logs(7)
        assert next(rows).text == "a"
        rows.close()
        assert queue._socket is None and queue.submit(JobSpec()) == 7
    assert [one["op"] for one in asked] == ["logs", "submit"]


def test_a_stream_that_ended_leaves_its_connection(listening):
    with daemon(listening[0], [[{"end": True}], [{"ids": [7]}]]), connect(listening[1]) as queue:
        assert list(queue.logs(7)) == [] and queue.submit(JobSpec()) == 7
    assert queue._socket is None
    queue.close()


def test_waiting_goes_on_over_a_restart_for_as_long_as_one_is_patient(listening, monkeypatch):
    job = Job(7, 0, "root", State.COMPLETED).as_dict()
    now = 1000.0
    slept = []

    def sleep(seconds):
        nonlocal now
        slept.append(seconds)
        now += 4.0

    monkeypatch.setattr(client_module.time, "monotonic", lambda: now)
    monkeypatch.setattr(client_module.time, "sleep", sleep)
    with daemon(listening[0], [], [], [[{"jobs": [job]}]]), connect(listening[1]) as queue:
        assert queue.wait(7).id == 7 and slept == [0.1, 0.1]
    slept.clear()
    away = Client("/no/such/socket", patience=10.0)
    with pytest.raises(DaemonUnavailable, match="no socket there"):
        away.wait(7)
    assert len(slept) == 3  # 0, 4 and 8 seconds are no more than 10
    slept.clear()
    with pytest.raises(DaemonUnavailable):
        away.wait(7, timeout=5.0)
    assert len(slept) == 2  # at 8 the time is over
    slept.clear()
    with pytest.raises(DaemonUnavailable):
        list(away.logs(7, follow=True))
    assert len(slept) == 3


def test_how_long_a_wait_waits(listening):
    left = pytest.raises(TimeoutError, match="1 of 1 jobs have not ended after 1000 s")
    with daemon(listening[0], [[{"timeout": True, "left": 1}]]) as asked, connect(listening[1]) as queue, left:
        queue.wait(7, timeout=1000)
    assert 0 < asked[0]["timeout"] <= 1000
    assert (Client("/x").timeout, Client("/x").patience) == (10.0, 30.0)


def test_why_nobody_answers(tmp_path):
    stale = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(stale))
    with pytest.raises(DaemonUnavailable, match="nobody listens"):
        connect(stale)
    with pytest.raises(DaemonUnavailable, match="no socket there"):
        connect(tmp_path / "none")
    with pytest.raises(DaemonUnavailable, match="Not a directory"):
        connect(stale / "below")


class Deaf:
    """A socket that cannot connect. ``told``: what was asked of it."""

    def __init__(self, number, told):
        self.number, self.told = number, told

    def setsockopt(self, *how):
        self.told.append(how)

    def connect(self, path):
        self.told.append(path)
        raise OSError(self.number, "planted")

    def close(self):
        self.told.append("closed")


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.ENOENT, "no socket there"), (errno.EAGAIN, "it takes no call in time"), (errno.ECONNREFUSED, "nobody listens"),
        (errno.EACCES, "it is not yours"), (errno.EIO, "[Errno 5] planted"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("timeout", "wait"), [(10.0, (10, 0)), (2.25, (2, 250_000)), (0.0, (0, 1000)), (-1.0, (0, 1000))])
def test_a_daemon_that_cannot_be_called(monkeypatch, number, why, timeout, wait):
    """The kernel waits as long as was asked for, and a moment where that is nothing: 0 would be for ever, socket(7)."""
    told, made = [], []
    monkeypatch.setattr(client_module.socket, "socket", lambda *kind: made.append(kind) or Deaf(number, told))
    with pytest.raises(DaemonUnavailable) as caught:
        connect("/run/s", timeout=timeout)
    assert str(caught.value) == f"no daemon answers at /run/s: {why}" and caught.value.subject == "/run/s"
    assert caught.value.hint == "start one with `dockless daemon` (it serves you alone), or ask the administrator for root's"
    assert made == [(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)]
    assert told == [(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", *wait)), "/run/s", "closed"]


def test_a_daemon_that_reads_nothing(listening):
    with connect(listening[1]) as queue:
        queue.timeout = 0.01
        with pytest.raises(DaemonUnavailable, match="went away: no answer in time") as caught:
            queue._send("submit", {"x": "y" * (protocol.MAX_REQUEST - 100)})
        assert caught.value.subject == str(listening[1]) and queue._socket is None


def test_how_long_an_answer_is_waited_for(monkeypatch):
    """A wait for as long as it was asked for and some seconds more; new settings for longer than the daemon waits for the GPUs' driver; all
    else for as long as a call."""
    job = Job(7, 0, "root", State.COMPLETED).as_dict()
    asked = []
    queue = Client("/x", timeout=3.0)
    monkeypatch.setattr(queue, "_send", lambda *_: None)
    monkeypatch.setattr(queue, "fileno", lambda: 5)
    monkeypatch.setattr(queue, "_receive", lambda timeout: asked.append(timeout) or {"jobs": [job], "job": job, "file": "/f"})
    monkeypatch.setattr(client_module.time, "monotonic", lambda: 1000.0)
    assert next(queue.waiting([7], timeout=20.0)) == Pause(5, 25.0) and next(queue.waiting([7])) == Pause(5, None)
    queue.job(7), queue.cancel(7)
    assert asked == [3.0, 3.0]
    queue.reload()
    assert asked.pop() >= asking.NO_ANSWER + 20.0


def test_a_job_travels_with_its_disks_by_their_numbers(monkeypatch):
    """A path is looked up with the rights of whoever asks."""
    monkeypatch.setattr(Limits, "by_number", lambda self: Limits(io_max=(IoMax("8:0", rbps=5),)))
    asked = []
    queue = Client("/x")
    monkeypatch.setattr(queue, "_open", lambda: None)
    monkeypatch.setattr(queue, "_send_line", lambda op, line: asked.append((op, protocol.decode(line))))
    monkeypatch.setattr(queue, "_receive", lambda timeout: {"ids": [1]})
    queue.submit(JobSpec(Spec(argv=("a",), limits=Limits(io_max=(IoMax("/data", rbps=5),)))))
    spec = {"argv": ["a"], "limits": {"io_max": [{"target": "8:0", "rbps": 5}]}}
    assert asked == [("submit", {"v": 1, "op": "submit", "jobs": [{"spec": spec}]})]


@pytest.mark.parametrize(
    ("call", "subject"),
    [
        (lambda queue: queue.wait_many([1], timeout="1"), "timeout"), (lambda queue: queue.wait_many(["1"]), "jobs"),
        (lambda queue: queue.cancel_many([1], grace="1"), "grace"), (lambda queue: queue.cancel_many(7), "jobs"),
        (lambda queue: queue.job("1"), "job"), (lambda queue: queue.wait("1"), "job"), (lambda queue: queue.cancel("1"), "job"),
        (lambda queue: queue.submit_array(JobSpec(), "2"), "count"), (lambda queue: queue.queue(limit="1"), "limit"),
        (lambda queue: queue.logs("1"), "job"),
    ],
)  # fmt: skip
def test_what_is_asked_is_checked_before_anybody_is_called(call, subject):
    with pytest.raises(BadInput) as caught:
        call(Client("/no/such/socket"))
    assert caught.value.subject.startswith(subject)


def test_a_newer_daemon_says_more_of_itself(listening):
    info = {"pid": 1, "version": "9", "owner_uid": 0, "user": "ann", "admin": False, "started": 1.0, "socket": "elsewhere", "new": 1}
    with daemon(listening[0], [[{"daemon": info}], [{}]]) as asked, connect(listening[1]) as queue:
        assert queue.ping() == DaemonInfo(1, "9", 0, "ann", False, 1.0, str(listening[1]))
        queue.shutdown()
        assert queue._socket is None
    assert [one["op"] for one in asked] == ["ping", "shutdown"]
