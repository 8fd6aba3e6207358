"""Results, and the bytes that belong to them."""

from __future__ import annotations

import fcntl
import os

import pytest

from dockless._exchange import Reader
from dockless._result import Result
from dockless.errors import CheckFailed, Killed, OutOfMemory, SandboxLost, TimedOut


@pytest.mark.parametrize(
    ("how", "passes", "code"),
    [
        ({"returncode": 0}, True, 0),
        ({"returncode": 3}, False, 3),
        ({"returncode": -9, "signal": 9}, False, 137),
        ({"returncode": 0, "timed_out": True}, False, 124),  # it caught the stop signal and said goodbye
        ({"returncode": -15, "signal": 15, "timed_out": True}, False, 124),
        ({"returncode": 0, "oom_killed": True}, True, 0),
        ({"returncode": 0, "unended": True}, False, 0),  # what it left running took the sandbox with it
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


@pytest.mark.parametrize(("stderr", "notes"), [
    ("", []), (None, []), ("no such\n file\n", ["stderr: no such\n   file"]), (b"\xff\x1b[2J", ["stderr: \ufffd\\x1b[2J"]),
    ("x" * 5000, [f"stderr: {'x' * 1000}"]),
])  # fmt: skip
def test_a_failed_check_shows_the_end_of_stderr(stderr, notes):
    with pytest.raises(CheckFailed) as caught:
        Result(("job",), "host", 1, None, stderr).check_returncode()
    assert getattr(caught.value, "__notes__", []) == notes


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
    reader.finish()
    assert reader.data() == data
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
        (
            {"returncode": 0, "timed_out": True, "unended": True},
            "timed out and was killed; what the command started could not be ended in 2 s: the sandbox was ended",
        ),
    ],
)
def test_how_it_ended_in_words(how, why):
    assert Result(("job",), "host", stdout=None, stderr=None, **how).why == why


def test_a_clock_that_was_set_back_makes_no_negative_time():
    assert Result((), "host", 0, None, None, started=5.0, ended=7.5).duration == 2.5
    assert Result((), "host", 0, None, None, started=7.0, ended=5.0).duration == 0.0


def test_the_text_of_a_result_is_short_and_its_output_is_not():
    """A loop of asyncio's makes a text of the result of its first task: of a gigabyte that took a minute."""
    result = Result(("job",), "host", 0, "x" * 5000, b"y" * 5000)
    assert len(repr(result)) < 4000 and "returncode=0" in repr(result) and "(5000 in all)" in repr(result)
    assert repr(Result(("job",), "host", 0, "short", None)).startswith(
        "Result(args=('job',), image='host', returncode=0, stdout='short', stderr=None"
    )


@pytest.mark.parametrize(
    ("how", "kind", "code"),
    [
        ({"returncode": 3}, CheckFailed, "check_failed"), ({"returncode": -11, "signal": 11}, Killed, "killed"),
        ({"returncode": -9, "signal": 9, "timed_out": True}, TimedOut, "timed_out"),
        ({"returncode": 0, "timed_out": True}, TimedOut, "timed_out"),
        ({"returncode": -9, "signal": 9, "oom_killed": True}, OutOfMemory, "out_of_memory"),
        ({"returncode": 1, "oom_killed": True}, OutOfMemory, "out_of_memory"),
        ({"returncode": -9, "signal": 9, "killed": True, "lost": True}, SandboxLost, "sandbox_lost"),
    ],
)  # fmt: skip
def test_why_it_ended_is_the_kind_of_the_error(how, kind, code):
    with pytest.raises(CheckFailed) as caught:
        Result(("job",), "host", stdout=None, stderr=None, **how).check_returncode()
    assert type(caught.value) is kind and caught.value.code == code
