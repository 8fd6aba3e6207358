"""Which signals may ask a program to end."""

from __future__ import annotations

import signal

import pytest

from dockless._options import make_spec
from dockless.base.units import parse_signal
from dockless.errors import BadInput
from dockless.sandbox.spec import Spec

USELESS = [signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT, signal.SIGCHLD]


@pytest.mark.parametrize("number", USELESS)
def test_one_that_ends_nothing_is_refused(number):
    with pytest.raises(BadInput, match=number.name):
        Spec(stop_signal=number)
    with pytest.raises(BadInput, match=number.name):
        make_spec("host", (), stop_signal=number.name)


@pytest.mark.parametrize("number", [number for number in range(1, 65) if number not in USELESS])
def test_any_other_is_taken(number):
    assert Spec(stop_signal=number).stop_signal == number


@pytest.mark.parametrize("number", [-1, 65, 1000])
def test_no_signal_at_all(number):
    with pytest.raises(BadInput, match="stop_signal"):
        Spec(stop_signal=number)


@pytest.mark.parametrize(
    ("text", "number"),
    [("TERM", 15), ("sigint", 2), ("9", 9), (9, 9), ("RTMIN+3", signal.SIGRTMIN + 3), ("SIGRTMAX-1", signal.SIGRTMAX - 1), ("", 0)],
)
def test_names(text, number):
    assert parse_signal(text) == number


@pytest.mark.parametrize("text", ["NOPE", "0", "65", "-1", "TERM+1", "RTMIN+99", "_DFL", "²", "RTMIN+", True, "SIGSIGTERM"])
def test_names_of_none(text):
    with pytest.raises(BadInput):
        parse_signal(text)
