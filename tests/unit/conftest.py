"""For the tests of files, whose sandbox is this host: ``Files`` over an agent that runs as an ordinary child, and a directory for it. For
those of the queue's engine: a launcher that starts nothing, and for its command line a daemon that does so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import agents
from support.stand_in import Daemon, StandIn

from dockless.sched.engine import stopping


@pytest.fixture
def place(tmp_path):
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def files():
    with agents.files() as found:
        yield found


@pytest.fixture
def launcher(tmp_path):
    return StandIn(tmp_path / "boxes")


@pytest.fixture
def two_gpus(monkeypatch):
    """The host has them."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")


@pytest.fixture
def killed_again_soon(monkeypatch):
    """What does not end when it is killed."""
    monkeypatch.setattr(stopping, "KILL_AGAIN", 0.001)


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    """The one that the command line asks."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    with Daemon(tmp_path) as made:
        monkeypatch.setenv("DOCKLESS_SOCKET", str(made.path))
        yield made


@pytest.fixture
def say_lines(say) -> Callable[..., tuple[int, list[str], list[str]]]:
    """The exit code, and the lines of standard output and standard error, of a command line."""

    def say_lines(*words: object) -> tuple[int, list[str], list[str]]:
        code, out, err = say(*words)
        return code, out.splitlines(), err.splitlines()

    return say_lines
