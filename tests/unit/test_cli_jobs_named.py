"""Jobs as the command line names them: of an array, and of those that start together."""

from __future__ import annotations

import pytest

from dockless import sched
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State, connect

VERBS = ("queue", "why", "wait", "cancel", "hold", "release", "requeue", "logs", "clone", "attach")


@pytest.fixture
def say(say_lines):
    return say_lines


def specs(*roles: str) -> list[JobSpec]:
    return [JobSpec(Spec(argv=("true",)), role=role, hold=True) for role in roles]


def state(number: int) -> State:
    with connect() as queue:
        return queue.job(number).state


def test_what_is_not_of_the_array_is_not_what_comes_after_it(daemon, say):
    """Not even where a job has the number that the name comes to."""
    assert say("submit", "-q", "--hold", "--array", "2", "--", "true")[1] == ["1", "2"]
    assert say("submit", "-q", "--hold", "--", "true")[1] == ["3"]
    for name in ("1_2", "1_9", "3_0", "2_0"):
        for verb in VERBS:
            code, out, err = say(verb, name)
            assert (code, out, err[0]) == (125, [], f"dockless: there is no job {name}")
        assert say("exec", name, "--", "true")[2][0] == f"dockless: there is no job {name}"
    assert say("why", "1_9")[2][1] == "  hint: there are 1_0 to 1_1"
    assert say("why", "3_0")[2][1].startswith("  hint: job 3 is the first of none: ")
    assert say("cancel", "9_1")[2][0] == "dockless: there is no job 9"
    assert [state(number) for number in (1, 2, 3)] == [State.PENDING] * 3
    assert say("cancel", "1_1")[0] == 0
    assert [state(number) for number in (1, 2, 3)] == [State.PENDING, State.CANCELLED, State.PENDING]


def test_several_names_are_looked_up_once_by_one_connection(daemon, say, monkeypatch):
    assert say("submit", "-q", "--hold", "--array", "3", "--", "true")[1] == ["1", "2", "3"]
    connections, asked = [], []
    monkeypatch.setattr(sched, "connect", lambda: connections.append(connect()) or connections[-1])
    monkeypatch.setattr(sched.Client, "job", lambda self, number, job=sched.Client.job: asked.append(number) or job(self, number))
    for words, connects, jobs in (
        (("wait", "--timeout", "0", "1_0", "1_1", "1_2"), 2, [1, 2, 3]),
        (("wait", "--timeout", "0", "1", "2"), 1, []),
        (("queue", "-q", "1_1", "1_2"), 2, [2, 3, 2, 3]),
        (("cancel", "1_1", "1_2"), 2, [2, 3]),
    ):
        say(*words)
        assert (len(connections), asked) == (connects, jobs), words
        connections.clear()
        asked.clear()


def test_what_is_done_to_jobs_that_start_together_is_said_of_all(daemon, say):
    with connect() as queue:
        assert queue.submit_gang(specs("a", "b", "b")) == [1, 2, 3]
    all_of_them = "job 1 (1 to 3, which start together)"
    assert say("why", "1_9")[2] == ["dockless: there is no job 1_9", "  hint: there are 1_0 to 1_2"]
    for name in ("1", "1_2"):
        (line,) = say("hold", name)[1]
        assert line.startswith(f"{all_of_them}: PENDING, held by ")
    (line,) = say("release", "1_1")[1]
    assert line.startswith(f"{all_of_them}: ")
    daemon.running(3)
    (line,) = say("cancel", "1_2")[1]
    assert line.startswith("job 3: ")
    (line,) = say("cancel", "1")[1]
    assert line.startswith(f"{all_of_them}: ")


def test_whichever_of_them_is_cancelled_while_they_wait_all_are(daemon, say):
    with connect() as queue:
        queue.submit_gang(specs("a", "b"))
        queue.submit_gang(specs("a"))
    (line,) = say("cancel", "1_1")[1]
    assert line.startswith("job 1 (1 to 2, which start together): CANCELLED, cancelled by ")
    (line,) = say("cancel", "--mine")[1]
    assert line.startswith("job 3: CANCELLED, cancelled by ")


def test_those_that_ended_together_are_submitted_again_together(daemon, say):
    with connect() as queue:
        queue.submit_gang(specs("a", "b"))
    say("release", "1")
    daemon.running(2)
    (line,) = say("requeue", "1_1")[1]
    assert line.startswith("job 1 (1 to 2, which start together): ")
    say("cancel", "1")
    assert say("wait", "-q", "1")[0] != 0
    (line,) = say("requeue", "2")[1]
    assert line.startswith("job 2 is submitted again: job 3 (3 to 4, which start together): ")


def test_events_of_those_that_start_together_are_those_of_all(daemon, say):
    """Named by the number of the first, as in `queue`; `7_0` is the first alone."""
    with connect() as queue:
        queue.submit_gang(specs("a", "b", "b"))

    def of(name: str) -> list[str]:
        return [line.split(",")[0] for line in say("queue", name, "--events", "--csv")[1][1:]]

    assert set(of("1")) == {"1", "2", "3"} and set(of("1_0")) == {"1"} and set(of("1_1")) == {"2"}
