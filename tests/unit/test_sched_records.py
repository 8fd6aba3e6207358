"""Jobs, their states, and how they travel."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless import errors
from dockless.base.records import differences, read
from dockless.cgroups import Limits
from dockless.errors import BadInput, DocklessError, LimitUnavailable, SchedError
from dockless.sandbox.plan.plan import Command
from dockless.sandbox.spec import Bind, Spec, Tmpfs, Volume
from dockless.sched import Attempt, AttemptState, Job, JobSpec, State
from dockless.sched.jobs import ALLOWED, ENDED, MAX_PRIORITY, MAX_TIME_LIMIT, final_state, sandbox_id, shell_code
from dockless.sched.store.queue import NewJob
from dockless.sched.wire import protocol
from dockless.sched.wire.protocol import DaemonInfo, GpuInfo, HostInfo, LogLine


def test_a_job_travels_whole():
    spec = Spec(
        argv=("python", "-c", "print('ü')"),
        image="debian:12",
        env=(("A", "1"),),
        mounts=(Bind("/data", "/data", readonly=True), Tmpfs("/tmp", size=1 << 20), Volume("cache", "/cache")),
        limits=Limits.parse(cpus="1.5", memory="4G"),
    )
    job = JobSpec(spec, gpus="2", priority=-3, time_limit=3600.0, name="train", on_reboot="requeue")
    assert read(JobSpec, json.loads(json.dumps(differences(job)))) == job
    assert differences(JobSpec()) == {}  # only what differs


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
        {"spec": {"limits": {"memory": 1}}},
        {"spec": {"mounts": [{"source": "/a", "target": "/b", "read_only": True}]}},
    ],
)
def test_wrong_jobs_are_refused(plain):
    with pytest.raises(BadInput):
        read(JobSpec, plain, "job")


def test_states():
    assert set(ALLOWED) == set(State)
    assert {state for state in State if state.ended} == ENDED
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


def test_the_name_of_an_attempts_sandbox():
    assert sandbox_id(7, 2, "0123456789") == "job-7-2-01234567"


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
    attempt = Attempt(7, 1, AttemptState.ENDED, "job-7-1-abc", ("GPU-1",), 1.0, 2.0, "exit code 3", {"code": 3}, ("GPU 0: Xid 31",))
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


def test_what_the_daemon_says_of_itself_and_of_the_host():
    """As it is printed: each field, by its name."""
    rows = (
        LogLine("10:00", "stdout", "text", True, 7),
        GpuInfo(1, "GPU-1", "H100", 80, 2, True, True, 7, 3, "ann", 5.0, "broken"),
        HostInfo((GpuInfo(0, "GPU-0"),), 1, 2, 3, "why", (("user", "ann", 1, None),), "drained", (), 2.5, 1.5, 20, 10),
        DaemonInfo(1, "2", 3, "ann", True, 4.0, "/s", True, "full", True),
    )
    assert [row.as_dict() for row in rows] == [
        {"at": "10:00", "stream": "stdout", "text": "text", "partial": True, "dropped": 7},
        {
            "index": 1, "uuid": "GPU-1", "model": "H100", "memory": 80, "numa_node": 2, "simulated": True, "outside": True, "job": 7,
            "attempt": 3, "user": "ann", "since": 5.0, "trouble": "broken", "shares": [],
        },
        {"gpus": [GpuInfo(0, "GPU-0").as_dict()], "waiting": 1, "running": 2, "cpu_jobs": 3, "gpu_error": "why",
         "quotas": [["user", "ann", 1, None]], "drained": "drained", "reservations": [], "cores": 2.5, "cores_used": 1.5,
         "memory": 20, "memory_used": 10, "disk": "", "unleased": []},
        {"pid": 1, "version": "2", "owner_uid": 3, "user": "ann", "admin": True, "started": 4.0, "socket": "/s", "simulated": True,
         "outage": "full", "notices": True},
    ]  # fmt: skip
    assert LogLine("", "", "").as_dict() == {"at": "", "stream": "", "text": "", "partial": False, "dropped": 0}
    assert GpuInfo(0, "GPU-0") == GpuInfo(0, "GPU-0", "", 0, -1, False, False, 0, 0, "", 0.0)
    assert HostInfo() == HostInfo((), 0, 0, 0, "", (), "") and DaemonInfo(1, "", 2, "", True, 3.0) == DaemonInfo(
        1, "", 2, "", True, 3.0, "", False, "", False
    )


def test_a_job_of_which_nothing_is_known_but_that_it_waits():
    assert Job(7, 1, "ann", State.PENDING).as_dict() == {
        "id": 7, "uid": 1, "user": "ann", "state": "PENDING", "reason": "", "name": "", "group": "", "image": "", "command": "",
        "gpus": "", "gpu_count": 0, "devices": [], "priority": 0, "time_limit": 0.0, "on_reboot": "fail", "submitted": 0.0,
        "started": 0.0, "ended": 0.0, "attempt": 0, "exit_code": None, "signal": None, "array": 0, "index": 0, "options": {},
        "attempts": [], "place": 0, "starts_in": None, "starts_after": None,
    }  # fmt: skip
    attempt = Attempt(7, 1, AttemptState.VOID, "job-7-1-abc", ("GPU-1",))
    assert Job(7, 1, "ann", State.LOST, attempts=(attempt,)).as_dict()["attempts"] == [{
        "job": 7, "number": 1, "state": "VOID", "sandbox": "job-7-1-abc", "gpus": ["GPU-1"], "started": 0.0, "ended": 0.0, "reason": "",
        "exit": None, "gpu_errors": [],
    }]  # fmt: skip
    assert Job.from_dict({"id": 7, "uid": 1, "user": "ann", "state": "PENDING"}) == Job(7, 1, "ann", State.PENDING)
    older = {"job": 7, "number": 1, "state": "VOID", "sandbox": "s"}
    (read,) = Job.from_dict({"id": 7, "uid": 1, "user": "ann", "state": "LOST", "attempts": [older]}).attempts
    assert read == Attempt(7, 1, AttemptState.VOID, "s")


@pytest.mark.parametrize(("part", "values"), [(b"[],", 2), (b"{},", 2), (b"[[[", 3), (b'"a[,{\\"[[[\\\\",', 1), (b'"\\\\",', 1)])
def test_how_many_values_a_request_may_have(part, values):
    """Each array, object and further element; what stands in strings is none, however it is quoted."""
    most = b"{" + part * 40_000 + b"," * (150_000 - 1 - values * 40_000)
    protocol.check_parts(most)
    with pytest.raises(BadInput, match="a request has more than 150000 values"):
        protocol.check_parts(most + b",")


def test_an_error_travels_with_what_its_class_adds():
    sent = LimitUnavailable("what", controller="memory", subject="memory.max", hint="do")
    sent.add_note("and more")
    assert protocol.error_message(sent) == {
        "ok": False,
        "error": {
            "code": "limit_unavailable", "message": "what", "subject": "memory.max", "hint": "do", "extra": {"controller": "memory"},
            "notes": ["and more"],
        },
    }  # fmt: skip
    with pytest.raises(LimitUnavailable) as caught:
        protocol.raise_error(protocol.error_message(sent)["error"])
    assert caught.value.__notes__ == ["and more"]


def test_an_error_that_says_too_little_or_too_much():
    """Nothing private is set, and what is not told is empty."""
    with pytest.raises(SchedError) as caught:
        protocol.raise_error({"extra": {"_secret": 1, "no name": 2, "fine": 3}, "code": "of tomorrow"})
    error = caught.value
    assert (str(error), error.subject, error.hint, vars(error).get("_secret"), vars(error)["fine"]) == ("", "", "", None, 3)
    assert "no name" not in vars(error) and not hasattr(error, "__notes__")


@pytest.mark.parametrize(("size", "right"), [(107, True), (108, False)])
def test_a_path_that_no_socket_can_have(size, right):
    path = Path("/" + "ü" * 20 + "x" * (size - 41))
    with contextlib.nullcontext() if right else pytest.raises(BadInput, match=f"has {size} bytes, at most 107") as caught:
        protocol.check_address(path)
    assert right or caught.value.subject == str(path)[:200]


@pytest.mark.parametrize("line", [b"[]", b"7", b"null", b"{", b"\xff", b""])
def test_a_line_that_is_no_object(line):
    with pytest.raises(BadInput) as caught:
        protocol.decode(line)
    assert caught.value.subject == "protocol" and caught.value.hint == "send one JSON object per line"


@pytest.mark.parametrize(
    ("plain", "subject", "said"),
    [
        ([], "job", "job is of type list, not an object"),
        ({"nonsense": 1}, "job.nonsense", "job.nonsense is unknown"),
        ({"priority": "high"}, "job.priority", "job.priority is 'high', not a whole number"),
        ({"spec": 7}, "job.spec", "job.spec is 7, not an object"),
        ({"spec": {"argv": "ls"}}, "job.spec.argv", "job.spec.argv is 'ls', not a list"),
        ({"spec": {"nonsense": 1}}, "job.spec.nonsense", "job.spec.nonsense is unknown"),
    ],
)
def test_what_is_wrong_with_a_job_is_named(plain, subject, said):
    with pytest.raises(BadInput) as caught:
        read(JobSpec, plain, "job")
    assert (caught.value.subject, str(caught.value)) == (subject, said)
