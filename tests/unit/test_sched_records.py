"""Jobs, their states, and how they travel."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless import errors
from dockless.cgroups import Limits
from dockless.errors import BadInput, DocklessError, LimitUnavailable, SchedError
from dockless.sandbox.plan import Command
from dockless.sandbox.spec import Bind, Spec, Tmpfs, Volume
from dockless.sched import Attempt, AttemptState, Job, JobSpec, State, protocol
from dockless.sched.codec import job_from_plain, job_to_plain
from dockless.sched.jobs import ALLOWED, ENDED, MAX_PRIORITY, MAX_TIME_LIMIT, final_state, shell_code
from dockless.sched.queue import NewJob


def test_a_job_travels_whole():
    spec = Spec(
        argv=("python", "-c", "print('ü')"),
        image="debian:12",
        env=(("A", "1"),),
        mounts=(Bind("/data", "/data", readonly=True), Tmpfs("/tmp", size=1 << 20), Volume("cache", "/cache")),
        limits=Limits.parse(cpus="1.5", memory="4G"),
    )
    job = JobSpec(spec, gpus="2", priority=-3, time_limit=3600.0, name="train", on_reboot="requeue")
    assert job_from_plain(json.loads(json.dumps(job_to_plain(job)))) == job
    assert job_to_plain(JobSpec()) == {}  # only what differs


@pytest.mark.parametrize(
    "plain",
    [
        [],
        {"nonsense": 1},
        {"priority": "high"},
        {"priority": 10**9},
        {"time_limit": -1},
        {"time_limit": float("inf")},
        {"name": "x\n"},
        {"gpus": "g" * 1000},
        {"on_reboot": "maybe"},
        {"spec": {"argv": "ls"}},
        {"spec": {"argv": ["a\0b"]}},
        {"spec": {"gpus": ["GPU-1"]}},
        {"spec": {"profile": "root"}},
        {"spec": {"nonsense": 1}},
    ],
)
def test_wrong_jobs_are_refused(plain):
    with pytest.raises(BadInput):
        job_from_plain(plain)


def test_states():
    assert set(ALLOWED) == set(State)
    assert {state for state in State if state.ended} == ENDED
    assert {state for state in State if state.holds_gpus} == {State.STARTING, State.RUNNING}
    assert all(not ALLOWED[state] for state in ENDED)
    assert State.PENDING not in ALLOWED[State.PENDING]
    assert str(State.OOM) == "OOM" and State("LOST").ended


@pytest.mark.parametrize(
    ("record", "cancelled", "state", "code"),
    [
        ({"code": 0}, False, State.COMPLETED, 0),
        ({"code": 3}, False, State.FAILED, 3),
        ({"signal": 9}, False, State.FAILED, 137),
        ({"signal": 9, "timed_out": True}, False, State.TIMEOUT, 124),
        ({"signal": 9, "oom_killed": True}, False, State.OOM, 137),
        ({"code": 0, "oom_killed": True}, False, State.COMPLETED, 0),
        ({"signal": 15}, True, State.CANCELLED, 143),
    ],
)
def test_how_a_job_ended(record, cancelled, state, code):
    assert final_state(record, cancelled)[0] is state
    assert shell_code(record) == code


def test_why_a_job_ended():
    """The first of these that is so; how it ended goes along."""
    record = {"code": None, "signal": 9, "timed_out": True, "oom_killed": True}
    assert final_state(record, True) == (State.CANCELLED, "cancelled while it ran (killed by signal 9)")
    assert final_state(record, False) == (State.TIMEOUT, "reached its time limit")
    record["timed_out"] = False
    assert final_state(record, False) == (State.OOM, "out of memory (killed by signal 9)")
    assert final_state({"code": 0, "signal": None, "oom_killed": True}, False) == (State.COMPLETED, "")
    assert final_state({"code": 7, "signal": None}, False) == (State.FAILED, "exit code 7")


def test_the_largest_values_of_a_job():
    for field, most in (("priority", MAX_PRIORITY), ("time_limit", MAX_TIME_LIMIT)):
        assert getattr(JobSpec(**{field: most}), field) == most
        with pytest.raises(BadInput, match="out of range") as caught:
            JobSpec(**{field: most + 1})
        assert caught.value.subject == field
    assert JobSpec(priority=-MAX_PRIORITY, time_limit=0.0)
    for wrong in ({"priority": -MAX_PRIORITY - 1}, {"time_limit": -0.1}, {"time_limit": float("nan")}):
        with pytest.raises(BadInput, match="out of range"):
            JobSpec(**wrong)
    for field in ("name", "group", "gpus"):
        assert JobSpec(**{field: "x" * 128})
        for text in ("x" * 129, "a\nb"):
            with pytest.raises(BadInput, match="too long or not printable") as caught:
                JobSpec(**{field: text})
            assert caught.value.subject == field


@pytest.mark.parametrize(
    "record",
    [
        Spec(env=(("TOKEN", "hunter2"),)),
        JobSpec(Spec(env=(("TOKEN", "hunter2"),))),
        Command(("true",), ("true",), ("TOKEN=hunter2",)),
        NewJob(0, "root", "", "", "host", "true", "", 0, (), (), 0, 0.0, "fail", "hunter2"),
    ],
    ids=lambda record: type(record).__name__,
)
def test_what_holds_an_environment_does_not_show_it(record):
    """A repr ends in somebody's log."""
    assert "hunter2" not in repr(record)


def test_job_reads_back():
    attempt = Attempt(7, 1, AttemptState.ENDED, "job-7-1-abc", ("GPU-1",), 1.0, 2.0, "exit code 3", {"code": 3})
    job = Job(7, 1000, "anna", State.FAILED, "exit code 3", devices=("GPU-1",), exit_code=3, attempts=(attempt,))
    assert Job.from_dict(json.loads(json.dumps(job.as_dict()))) == job
    assert Job.from_dict({**job.as_dict(), "of a newer daemon": 1}) == job


def every_error() -> list[type[DocklessError]]:
    found = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, DocklessError)]
    assert len(found) > 20
    return found


@pytest.mark.parametrize("cls", every_error())
def test_errors_arrive_as_themselves(cls):
    sent = cls.__new__(cls)
    DocklessError.__init__(sent, "what", subject="thing", hint="do")
    sent.controller = "memory"
    message = protocol.decode(protocol.encode(protocol.error_message(sent)))
    with pytest.raises(cls) as caught:
        protocol.raise_error(message["error"])
    assert type(caught.value) is cls
    assert (str(caught.value), caught.value.subject, caught.value.hint) == ("what", "thing", "do")
    if cls is LimitUnavailable:
        assert caught.value.controller == "memory"


def test_errors_of_a_newer_daemon():
    with pytest.raises(SchedError, match="odd"):
        protocol.raise_error({"code": "of tomorrow", "message": "odd"})


@given(st.binary(max_size=200))
def test_any_line_is_json_or_bad_input(line):
    try:
        assert isinstance(protocol.decode(line), dict)
    except BadInput:
        pass


@given(st.binary(max_size=100))
def test_log_text_comes_back_byte_for_byte(raw):
    text = raw.decode(errors="surrogateescape")
    assert protocol.decode(protocol.encode({"t": text}))["t"].encode(errors="surrogateescape") == raw


def test_nested_beyond_reason():
    with pytest.raises(BadInput):
        protocol.decode(b'{"a":' + b"[" * 100_000)
