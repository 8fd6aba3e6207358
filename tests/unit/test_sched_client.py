"""The client against a daemon's bad manners, over a real socket."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from dockless.errors import DaemonUnavailable, NotPermitted
from dockless.sched import protocol
from dockless.sched.client import connect


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
