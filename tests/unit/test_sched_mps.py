"""The Multi-Process Service: directories that others can make, and users who mean harm."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from dockless.errors import GpuError
from dockless.sandbox.spec import Spec
from dockless.sched.engine import mps

QUEUE = "0123456789abcdef"
JOBS = "job-7-1-01234567"


class Launcher:
    """Has a sandbox of every name, and starts none. ``said``: what it was asked."""

    def __init__(self, found: Any = None) -> None:
        self.said: list[str] = []
        self.found = found

    def list_all(self) -> list[Any]:
        return []

    def find(self, id: str) -> Any:
        self.said.append(f"find {id}")
        return self.found

    def start(self, spec: Spec, **how: Any) -> Any:
        self.said.append("start")
        raise GpuError("it does not start", subject="mps")


@pytest.fixture
def shared(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(mps, "_SHARED", tmp_path)
    return tmp_path


@pytest.mark.parametrize("how", ["a link", "open to all", "our own"])
def test_a_daemon_that_comes_back_ends_no_jobs_that_a_directory_names(shared, how):
    """The directory lies where everybody may make one of its name."""
    hers = shared / "hers"
    names = {JOBS, f"mps-g{'0' * 12}-1-01234567"}
    above = mps._above()
    place = hers if how == "a link" else above
    for name in names:
        (place / name / "upper").mkdir(parents=True)
    if how == "a link":
        above.symlink_to(hers)
    place.chmod(0o777 if how == "open to all" else 0o711)
    launcher: Any = Launcher()
    daemons = mps.ControlDaemons(launcher, QUEUE)
    daemons.take_up(())
    ended = names - {JOBS} if how == "our own" else set()
    assert launcher.said == [f"find {name}" for name in ended]
    assert set(os.listdir(place)) == names - ended


def test_a_user_for_whom_it_does_not_start_waits_for_it_once(shared):
    """Who waits for it has one of the few threads that start all users' jobs."""
    launcher: Any = Launcher()
    daemons = mps.ControlDaemons(launcher, QUEUE)
    spec = Spec(("true",))
    gpus = [f"GPU-{uuid.uuid4()}" for _ in range(2)]
    for gpu in (*gpus, gpus[0]):
        assert daemons.join(spec, 1001, gpu, 4096, 81920, None, None) is spec
    assert launcher.said.count("start") == 1
    daemons.join(spec, 1002, gpus[0], 4096, 81920, None, None)
    assert launcher.said.count("start") == 2


def test_one_that_cannot_be_ended_keeps_no_other(shared):
    """What is in its directory is its user's, who can fill it while it is removed."""

    class Stuck:
        def send_stop(self) -> None: ...
        def state(self) -> str:
            return "exited"

        def remove(self) -> None:
            raise GpuError("it stays", subject="mps")

    launcher: Any = Launcher()
    first, last = (f"mps-g{number * 12}-1-01234567" for number in "01")
    launcher.find = lambda id: Stuck() if id == first else None
    daemons = mps.ControlDaemons(launcher, QUEUE)
    daemons.known = {first, last}
    with pytest.raises(GpuError, match="it stays"):
        daemons.keep((), daemons.starts)
    assert daemons.known == {first}
