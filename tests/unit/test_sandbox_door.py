"""Asking at a sandbox's door: how often, what is said when nobody is there, and how much is kept of those who entered."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.plan_cases import CASES

from dockless.base.dataclass import replace
from dockless.errors import SandboxGone
from dockless.sandbox.compile import compile_plan
from dockless.sandbox.enter import Entry
from dockless.sandbox.run import door
from dockless.sandbox.run.door import Entrance, Used
from dockless.sandbox.run.places import DOOR
from dockless.sandbox.run.process import gone


def myself() -> int:
    return os.pidfd_open(os.getpid())


def entrance(directory: Path, *, idle: float = 0.0, group: str = "", pidfd: Callable[[], int] = myself) -> Entrance:
    return Entrance("s-1", directory, replace(compile_plan(CASES["root"]), idle=idle), None, group, 0, pidfd, partial(gone, "s-1"))


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(door, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_its_keeper_is_told_of_use_eight_times_at_most_in_what_it_may_be_idle(clock, tmp_path):
    told = []

    def nobody() -> int:
        told.append(clock.now)
        raise gone("s-1")

    used = Used(entrance(tmp_path, idle=16, pidfd=nobody))
    for clock.now in (100.0, 101.9, 102.0, 102.1, 103.9, 104.5, 120.0):
        used()
    assert told == [100.0, 102.0, 104.5, 120.0]


def test_the_keeper_of_one_that_may_be_idle_for_ever_is_told_nothing(tmp_path):
    def never() -> int:
        raise AssertionError("it is asked")

    Used(entrance(tmp_path, pidfd=never))()


@pytest.mark.parametrize("left", ["nothing", "door", "group"])
def test_one_that_has_ended_meanwhile_is_gone(left, tmp_path):
    """Its directory, what listened in it, or its cgroup."""
    if left == "door":
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
            listening.bind(f"{tmp_path}/{DOOR}")
    place = entrance(tmp_path, group=f"{tmp_path}/group" if left == "group" else "")
    with pytest.raises(SandboxGone):
        door.enter(place, Entry(("true",)), (0, 1, 2))


def test_no_more_than_64_ways_are_kept(tmp_path):
    place = entrance(tmp_path)
    for number in range(200):
        door._compiled(place, Entry(("true",), workdir=f"/{number}"), False)
        assert 1 <= len(place.ways) <= 64
