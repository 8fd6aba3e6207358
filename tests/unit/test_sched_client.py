"""The client against a daemon's bad manners, over a real socket."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from pathlib import Path

import pytest

from dockless.errors import DaemonUnavailable, NotPermitted
from dockless.sched import protocol
from dockless.sched.client import connect
from dockless.sched.protocol import GpuInfo, HostInfo, LogLine


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
