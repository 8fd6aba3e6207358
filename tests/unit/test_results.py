"""Results, and the bytes that belong to them."""

from __future__ import annotations

import fcntl
import os

import pytest

from dockless._result import Result
from dockless._stdio import Reader
from dockless.errors import CheckFailed


@pytest.mark.parametrize(
    ("how", "passes", "code"),
    [
        ({"returncode": 0}, True, 0),
        ({"returncode": 3}, False, 3),
        ({"returncode": -9, "signal": 9}, False, 137),
        ({"returncode": 0, "timed_out": True}, False, 124),  # it caught the stop signal and said goodbye
        ({"returncode": -15, "signal": 15, "timed_out": True}, False, 124),
        ({"returncode": 0, "oom_killed": True}, True, 0),
    ],
)
def test_what_passes_a_check(how, passes, code):
    result = Result(("job",), "host", stdout=None, stderr=None, **how)
    assert result.exit_code == code
    if passes:
        result.check_returncode()
        return
    with pytest.raises(CheckFailed, match=r"^job: ") as caught:
        result.check_returncode()
    assert caught.value.result is result and caught.value.subject == "host"


@pytest.mark.parametrize("closed", [True, False], ids=["writer gone", "writer still there"])
def test_the_end_of_a_pipe_is_read_whole(closed):
    """What lay in it when the last process died, more than one read gives; and not a byte more than fits in a pipe."""
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, 1031, 1 << 20)  # F_SETPIPE_SZ
    os.set_blocking(writing, False)
    data = os.urandom(size)
    assert os.write(writing, data) == size
    reader = Reader(reading)
    reader.step()
    if closed:
        os.close(writing)
    assert reader.finish() == data
    assert reader.fd == -1
    if not closed:
        os.close(writing)


def test_what_is_not_said_did_not_happen():
    assert Result((), "host", 0, None, None) == Result((), "host", 0, None, None, None, False, False, None, 0.0, 0.0, 0, (), ())


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"returncode": 3}, "exit code 3"),
        ({"returncode": -9, "signal": 9}, "killed by signal 9"),
        ({"returncode": -9, "signal": 9, "oom_killed": True}, "out of memory (killed by signal 9)"),
        ({"returncode": 0, "timed_out": True, "oom_killed": True}, "timed out and was killed"),
    ],
)
def test_how_it_ended_in_words(how, why):
    assert Result(("job",), "host", stdout=None, stderr=None, **how).why == why


def test_a_clock_that_was_set_back_makes_no_negative_time():
    assert Result((), "host", 0, None, None, started=5.0, ended=7.5).duration == 2.5
    assert Result((), "host", 0, None, None, started=7.0, ended=5.0).duration == 0.0
