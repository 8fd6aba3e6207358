"""Ctrl-C at any step of a start, of an exec and of their ends: the error is raised, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support import interrupts, residue
from support.boxes import until
from support.requires import requires

import dockless
from dockless.base.interrupts import held, waiting

pytestmark = requires("userns")
POINTS = int(os.environ.get("DOCKLESS_INTERRUPTS", "25"))
"""Steps of each operation at which it is interrupted; all of them where this is large."""


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def one_run() -> None:
    assert dockless.run(["true"], capture_output=True).returncode == 0


def one_start() -> None:
    box = None
    try:
        box = dockless.start(["sleep", "1000"])
    finally:
        with held():
            if box is not None:
                box.rm(force=True)


def held_by_us() -> tuple[frozenset[str], set[int], int]:
    return residue.open_descriptors(), interrupts.children(), threading.active_count()


def sweep(work: Callable[[], object], points: int = POINTS) -> None:
    work()
    steps = interrupts.interrupted(work, 0)
    assert steps > 300
    raised = 0
    for at in range(1, steps, max(1, steps // points)):
        before = held_by_us()
        try:
            interrupts.interrupted(work, at)
        except KeyboardInterrupt:
            raised += 1
        until(lambda: held_by_us() == before, f"what the interrupt at step {at} of {steps} left has gone", 40)  # noqa: B023
    assert raised > points // 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("work", "points"), [(one_run, POINTS), (one_start, POINTS // 3)])
def test_ctrl_c_at_any_step_leaves_nothing(work, points):
    sweep(work, points)
    assert dockless.list() == []


@pytest.mark.timeout(600)
def test_ctrl_c_at_any_step_of_an_exec_leaves_nothing_of_it():
    with dockless.Sandbox(["sleep", "1000"]) as box:
        sweep(lambda: box.exec("true"))
        assert box.exec("echo", "sound", text=True).stdout == "sound\n"


def test_a_second_ctrl_c_comes_at_once():
    with pytest.raises(KeyboardInterrupt), held():
        signal.raise_signal(signal.SIGINT)
        come = True
        signal.raise_signal(signal.SIGINT)
        come = False
    assert come
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_has_come_is_raised_where_something_waits():
    with held():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), waiting():
            time.sleep(60)
        undone = True
    assert undone


def test_the_handler_of_a_program_is_left_alone():
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    with held():
        signal.raise_signal(signal.SIGINT)
        assert seen == [signal.SIGINT]
