"""``submit``, ``queue``, ``wait`` and ``cancel``: each option and each word of theirs, on a daemon that starts nothing."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import grp
import json
import os
import pwd
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dockless import _pulling as pulling
from dockless import _submitting as submitting
from dockless import sched
from dockless.base.records import differences
from dockless.cli import jobs as cli_jobs
from dockless.cli import main
from dockless.errors import BadInput
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import Ahead, Awaited, Client, Job, JobSpec, State, Why, connect
from dockless.sched.callers import Caller
from dockless.sched.jobs import Attempt, AttemptState
from dockless.sched.wire import listed

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def say(say_lines):
    return say_lines


def stored(number: int) -> Job:
    with connect() as queue:
        return queue.job(number)


def test_every_option_arrives(daemon, say):
    group = next(iter(daemon.do(lambda: daemon.engine.callers.caller(os.getuid()).groups)))
    options = [
        "--name",
        "night",
        "--time",
        "1m30s",
        "--priority",
        "-7",
        "--group",
        group,
        "--on-reboot",
        "requeue",
        "--gpus",
        "1",
        "-e",
        "A=1",
    ]
    assert say("submit", "-q", *options, "host", "--", "sleep", "7")[:2] == (0, ["1"])
    job = stored(1)
    assert (job.name, job.time_limit, job.priority, job.group, job.on_reboot, job.gpu_count, job.image, job.command) == (
        "night", 90.0, -7, group, "requeue", 1, "host", "sleep 7"
    )  # fmt: skip
    assert dict(daemon.running(1).spec.env)["A"] == "1"
    assert say("submit", "-q", "--", "true")[:2] == (0, ["2"])
    job = stored(2)
    assert (job.name, job.time_limit, job.priority, job.group, job.on_reboot, job.gpu_count, job.array) == ("", 0.0, 0, "", "fail", 0, 0)


@pytest.mark.parametrize(("words", "policy"), [((), "missing"), (("--pull", "never"), "never"), (("--pull", "always"), "always")])
def test_the_image_is_there_before_the_job_is(daemon, say, monkeypatch, words, policy):
    """Brought as the option says, for this daemon, and submitted by the name that it has then."""
    asked = []

    def present_for(answering, image, wanted="missing", progress=None, platform=None):
        asked.append((answering.version, image, wanted))
        with connect() as queue:
            assert queue.queue() == []
        return "there:2"

    def told_whose_store(answering, image):
        asked.append((answering.version, image))
        return contextlib.nullcontext()

    monkeypatch.setattr(pulling, "present_for", present_for)
    monkeypatch.setattr(submitting, "told_whose_store", told_whose_store)
    assert say("submit", "-q", *words, "wanted:1", "--", "true")[:2] == (0, ["1"])
    assert asked == [("1.2", "wanted:1", policy), ("1.2", "there:2")]
    assert stored(1).image == "there:2"


def test_what_submit_says(daemon, say):
    simulated = "dockless: the GPUs are simulated: nothing computes on them"
    assert say("submit", "--", "true") == (0, ["job 1"], [])
    assert say("submit", "--gpus", "1", "--", "true") == (0, ["job 2"], [simulated])
    assert say("submit", "--array", "1", "--", "true") == (0, ["job 3"], [])
    assert say("submit", "--array", "3", "--", "true") == (0, ["jobs 4 to 6"], [])
    assert say("submit", "-q", "--array", "2", "--gpus", "1", "--", "true") == (0, ["7", "8"], [])
    code, out, err = say("submit", "--json", "--gpus", "1", "--", "true")
    assert (code, json.loads(out[0]), err) == (0, {"id": 9}, [])
    code, out, err = say("submit", "--json", "--array", "2", "--", "true")
    assert (code, json.loads(out[0]), err) == (0, {"ids": [10, 11]}, [])
    assert [(job.array, job.index) for job in (stored(4), stored(6), stored(10))] == [(4, 0), (4, 2), (10, 0)]


@pytest.mark.parametrize(
    ("record", "code", "said"),
    [
        (Exit(0, None), 0, None),
        (Exit(3, None), 3, "FAILED, exit code 3"),
        (Exit(None, 9), 137, "FAILED, killed by signal 9"),
    ],
)
def test_submit_that_waits(daemon, say, monkeypatch, record, code, said):
    start = daemon.launcher.start

    def at_once(*args, **how):
        box = start(*args, **how)
        box.end(record)
        return box

    monkeypatch.setattr(daemon.launcher, "start", at_once)
    assert say("submit", "--wait", "--", "true") == (code, ["job 1"], [f"dockless: job 1: {said}"] if said else [])
    assert say("submit", "--wait", "-q", "--", "true") == (code, ["2"], [f"dockless: job 2: {said}"] if said else [])
    got, out, err = say("submit", "--wait", "--json", "--", "true")
    (row,) = json.loads("".join(out))
    assert (got, row["id"], row["exit_code"], err) == (code, 3, code, [])


def test_waiting_for_some(daemon, say):
    say("submit", "--array", "4", "--", "true")
    for number, record in ((1, Exit(0, None)), (2, Exit(4, None)), (3, Exit(5, None))):
        daemon.ended(number, record)
    assert say("wait", "1") == (0, ["job 1: COMPLETED"], [])
    assert say("wait", "1", "3", "2") == (5, ["job 1: COMPLETED", "job 3: FAILED, exit code 5", "job 2: FAILED, exit code 4"], [])
    assert say("wait", "-q", "1", "2") == (4, [], ["dockless: job 2: FAILED, exit code 4"])
    code, out, err = say("wait", "--json", "1", "2")
    assert (code, [row["id"] for row in json.loads("".join(out))], err) == (4, [1, 2], [])
    code, out, err = say("wait", "--timeout", "0", "1", "4")
    assert (code, out) == (124, []) and "1 of 2 jobs have not ended" in err[0]
    code, out, err = say("wait", "1", "box")
    assert code == 125 and "jobs and sandboxes together" in err[0]
    daemon.running(4).now = "vanished"
    daemon.ended(4, None)
    assert say("wait", "4")[0] == 1 and stored(4).state is State.LOST


def test_clones(daemon, say, monkeypatch, tmp_path):
    """Of jobs that run or have ended, as they were or changed; the editor gets a job file, and what is wrong in it is not lost."""
    say("submit", "--name", "n", "--gpus", "1", "-e", "A=1", "--retries", "2", "--hold", "--", "sleep", "7")
    lines = ['name = "n"', "retries = 2", 'command = ["sleep", "7"]', "gpus = 1", "", "[env]", 'A = "1"']
    assert say("clone", "--print", "1") == (0, lines, [])
    assert json.loads("".join(say("clone", "--print", "--json", "1", "--name", "m", "--begin", "+2h")[1]))["begin"] == "+2h"
    assert say("clone", "-q", "1") == (0, ["2"], []) and say("cancel", "1")[0] == 0
    assert say("clone", "1", "-e", "B=2", "--name", "m", "--array", "2%1", "--", "true")[:2] == (0, ["jobs 3 to 4"])
    assert (stored(2).name, stored(2).gpus, stored(2).command, stored(2).options.held) == ("n", "1", "sleep 7", "")
    assert (stored(4).name, stored(4).command, stored(4).options.array_limit, stored(4).options.retries) == ("m", "true", 1, 2)
    with connect() as queue:
        assert dict(queue.spec(4).spec.env) == {"A": "1", "B": "2"}
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("EDITOR", "sed -i s/sleep/echo/")
    assert say("clone", "--edit", "-q", "1") == (0, ["5"], []) and stored(5).command == "echo 7" and not [*tmp_path.glob("job-*")]
    monkeypatch.setenv("EDITOR", "sed -i 1d;$acpus=x")
    code, _, err = say("clone", "--edit", "1")
    (left,) = tmp_path.glob("job-1-*.toml")
    assert code == 125 and f"your text is kept: dockless submit {left}" in " ".join(err) and left.stat().st_mode & 0o777 == 0o600
    wrong = {
        "false": "false ended with exit code 1, so nothing was submitted",
        "/no/such": "/no/such cannot be started",
        "'": "the variable EDITOR is no command: No closing quotation",
        " ": "the variable EDITOR names no editor",
    }
    for editor, why in wrong.items():
        monkeypatch.setenv("EDITOR", editor)
        assert why in say("clone", "--edit", "1")[2][0] and [*tmp_path.glob("job-*")] == [left]
    assert say("clone", "1", "--edit", "--print")[0] == say("clone", "99")[0] == say("clone", "x")[0] == 125
    for number in (2, 3, 5):
        daemon.ended(number, Exit(0, None))
    assert say("requeue", "3")[1] == ["job 3 is submitted again: job 6: PENDING, of its array 1 may run at once"]
    assert say("requeue", "6")[0] == 125


def test_what_another_user_wrote_is_not_cloned_with_ones_own_rights(daemon, say):
    ann = Caller(4321, "ann", frozenset(), False)
    job = differences(JobSpec(Spec(argv=("true",)), hold=True))
    asyncio.run_coroutine_threadsafe(daemon.engine.submit(ann, [job], None), daemon.engine.loop).result(30)
    for words in ((), ("--edit",)):
        code, _, err = say("clone", "1", *words)
        assert code == 125 and err[0].startswith("dockless: job 1 belongs to ann") and stored(1).user == "ann"
    assert [job["id"] for job in json.loads("".join(say("queue", "--json")[1]))] == [1]


def test_cancelling(daemon, say):
    say("submit", "--gpus", "2", "--", "true")
    say("submit", "--array", "3", "--gpus", "1", "--", "true")
    daemon.running(1)
    assert say("cancel", "2") == (0, [f"job 2: CANCELLED, cancelled by {ME}"], [])
    assert say("cancel", "-q", "3") == (0, [], [])
    code, out, err = say("cancel", "--json", "3", "4")
    assert (code, [(row["id"], row["state"]) for row in json.loads("".join(out))], err) == (0, [(3, "CANCELLED"), (4, "CANCELLED")], [])
    for words in ((), ("--mine", "1")):
        code, out, err = say("cancel", *words)
        assert (code, out) == (125, []) and "which jobs?" in err[0]
    assert stored(1).state is State.RUNNING
    say("submit", "--gpus", "1", "--", "true")
    code, out, _ = say("cancel", "--mine", "--grace", "5")
    assert (code, out) == (0, ["job 1: ending", f"job 5: CANCELLED, cancelled by {ME}"])
    assert say("wait", "-q", "1")[0] == 143 and stored(1).state is State.CANCELLED
    assert say("cancel", "--mine") == (0, [], [])


def test_a_listing_is_whole_or_says_that_it_is_not(daemon, say, monkeypatch):
    monkeypatch.setattr(listed, "PART", 2)
    say("submit", "--array", "5", "--gpus", "2", "--", "true")
    daemon.running(1)
    assert say("queue", "-q") == (0, [*"12345"], [])
    told = ["  hint: a higher --limit shows them"]
    assert say("queue", "-q", "--limit", "2") == (0, [*"123"], ["dockless: 2 more jobs are not listed", *told])
    assert say("queue", "-q", "--limit", "3")[2] == ["dockless: 1 more job is not listed", *told]
    assert len(say("cancel", "--mine")[1]) == 5


def test_mine_are_nobody_elses(say, monkeypatch):
    """To root, too, whom the daemon would show everybody's."""
    asked = []

    def listed(*, user, limit):
        asked.append((user, limit == 0))
        return [row(id=5), row(id=7)]

    def cancel_many(ids, *, grace):
        asked.append((ids, grace))
        return []

    client = SimpleNamespace(ping=lambda: SimpleNamespace(user="ann"), queue=listed, cancel_many=cancel_many)
    monkeypatch.setattr(sched, "connect", lambda: contextlib.nullcontext(client))
    assert say("cancel", "--mine") == (0, [], [])
    assert asked == [("ann", True), ([5, 7], None)]


class Box:
    """What ``wait`` needs of a detached sandbox. ``asked``: how long each was waited for."""

    def __init__(self, code, asked):
        self.code, self.asked = code, asked

    def wait(self, timeout):
        self.asked.append(timeout)
        return SimpleNamespace(exit_code=self.code)


def test_waiting_for_sandboxes(say, monkeypatch):
    """The first that did not end well says how; the time is for all of them together."""
    asked = []
    boxes = {"fine": Box(0, asked), "four": Box(4, asked), "five": Box(5, asked)}
    monkeypatch.setattr("dockless.sandbox.run.box.get", boxes.__getitem__)
    monkeypatch.setattr("dockless._life.described", lambda box: {"code": box.code})
    monkeypatch.setattr("time.monotonic", lambda: 1000.0 + 3 * len(asked))
    assert say("wait", "fine", "four", "five") == (4, ["fine: exit code 0", "four: exit code 4", "five: exit code 5"], [])
    assert say("wait", "five", "four")[0] == 5 and say("wait", "fine")[0] == 0
    assert asked == [None] * 6
    assert say("wait", "-q", "four") == (4, [], [])
    code, out, _ = say("wait", "--json", "four", "fine")
    assert (code, json.loads("".join(out))) == (4, [{"code": 4}, {"code": 0}])
    asked.clear()
    assert say("wait", "-q", "--timeout", "5", "fine", "four", "five")[0] == 4
    assert asked == [5.0, 2.0, 0.0]


def test_a_grace_that_is_asked_for(daemon, say, monkeypatch):
    """None of it: killed at once; more than a job has of its own: not yet."""
    say("submit", "--", "true")
    box = daemon.running(1)
    monkeypatch.setattr(box, "send_stop", lambda: box.said.append("stop"))
    box.on_kill = lambda: box.end(Exit(None, 9))
    assert say("cancel", "--grace", "1h", "1")[0] == 0 and "kill" not in box.said
    assert say("cancel", "--grace", "0", "1")[0] == 0
    assert say("wait", "-q", "1")[0] == 137 and box.said[:2] == ["stop", "kill"]


def test_what_is_no_number(daemon, say):
    for verb in ("queue", "cancel"):
        code, out, err = say(verb, "box")
        assert (code, out) == (125, []) and "'box' is not the number of a job" in err[0]


def test_listings(daemon, say):
    say("submit", "--gpus", "2", "--name", "wide", "--priority", "3", "--", "true")
    say("submit", "--gpus", "1", "--", "sleep", "x" * 40)
    say("submit", "--", "false")
    daemon.running(1)
    daemon.ended(3, Exit(1, None))
    code, out, err = say("queue")
    assert (code, err, out[-1]) == (0, [], "GPUs are simulated.")
    rows = [line.split() for line in out[:-1]]
    assert rows[0] == ["ID", "USER", "STATE", "GPUS", "PRIO", "TIME", "PLACE", "STARTS", "JOB", "REASON"]
    assert [(row[:5], row[6]) for row in rows[1:2]] == [(["1", ME, "RUNNING", "2", "3"], "wide")]
    assert rows[2][:4] == ["2", ME, "PENDING", "1"] and rows[2][5:8] == ["1", "sleep", "x" * 21 + "…"]
    assert " ".join(rows[2][8:]) == "needs 1 GPU, 0 free; waits for job 1, which has no time limit"
    assert say("queue", "-q") == (0, ["1", "2"], [])
    assert say("queue", "-q", "-a") == (0, ["1", "2", "3"], [])
    assert say("queue", "-q", "-a", "--limit", "1") == (0, ["1", "2", "3"], [])
    unknown = ["dockless: this host has no user 'not-here', and the queue no job of such a user"]
    assert say("queue", "-q", "-a", "--user", "not-here") == (0, [], unknown)
    assert say("queue", "-q", "--user", "root", "--state", "lost") == (0, [], [])
    code, _, err = say("queue", "--state", "running,bAnana")
    assert code == 125 and "'bAnana' is no state of a job" in err[0] and "running" in " ".join(err)
    assert say("queue", "-q", "3", "1") == (0, ["3", "1"], [])
    code, out, _ = say("queue", "-a", "--json")
    assert [(row["id"], row["simulated"]) for row in json.loads("".join(out))] == [(1, True), (2, True), (3, False)]
    code, out, _ = say("queue", "--json", "3")
    assert [(row["id"], row["simulated"]) for row in json.loads("".join(out))] == [(3, False)]


def test_jobs_in_full(daemon, say):
    say("submit", "--name", "first", "--", "true")
    say("submit", "--gpus", "1", "--", "true")
    code, out, err = say("queue", "2", "1")
    assert (code, err) == (0, []) and [line for line in out if line.startswith(("job ", "name ", "gpus "))] == [
        "job         2",
        next(line for line in out if line.startswith("gpus        1 GPU (simulated): ")),
        "job         1",
        "name        first",
    ]


def test_what_a_job_asked_for_is_said_in_units(daemon, say):
    say("submit", "--gpu-memory", "20G", "--", "true")
    say("submit", "--gpus", "device=0,1", "--", "true")
    shown = [line.partition(":")[0] for line in say("queue", "1", "2")[1] if line.startswith("gpus ")]
    assert shown == ["gpus        1 GPU with 20 GiB (simulated)", "gpus        GPU 0, 1 = 2 (simulated)"]


def test_what_is_simulated_is_said_of_gpus_alone(daemon, say, monkeypatch):
    """Neither of jobs without any, nor where they are real."""
    say("submit", "--", "true")
    assert "GPUs are simulated." not in say("queue")[1]
    ping = Client.ping
    monkeypatch.setattr(Client, "ping", lambda self: replace(ping(self), simulated=False))
    assert say("submit", "--gpus", "1", "--", "true") == (0, ["job 2"], [])
    assert "GPUs are simulated." not in say("queue")[1] and "simulated" not in "".join(say("queue", "2")[1])
    assert [row["simulated"] for row in json.loads("".join(say("queue", "--json")[1]))] == [False, False]


def test_how_many_have_ended_is_bounded_unless_one_says(daemon, say):
    say("submit", "--array", "52", "--gpus", "1", "--", "true")
    say("cancel", "-q", "--mine", "--grace", "0")
    assert say("wait", "-q", *range(1, 53))[0] != 0
    assert len(say("queue", "-q", "-a")[1]) == 50
    assert len(say("queue", "-q", "-a", "--limit", "51")[1]) == 51


def test_listings_of_some_jobs(daemon, say):
    group = grp.getgrgid(os.getegid()).gr_name
    say("submit", "--group", group, "--name", "a,b", "--array", "3", "--", "true")
    say("submit", "--gpus", "2", "--", "true")
    for number, code in ((1, 0), (2, 3)):
        daemon.ended(number, Exit(code, None))
    daemon.running(3), daemon.running(4)
    listed = {
        ("--group", group): "3", ("-a", "--group", group): "3 2 1", ("--state", "failed"): "2", ("--state", "FAILED,running"): "3 4 2",
        ("--state", "completed", "--limit", "1"): "1", ("-a", "--since", "1h"): "3 4 2 1", ("-a", "--until", "1h"): "",
        ("-a", "--since", "2100-01-01"): "3 4", ("--user", "nobody"): "", ("-a", "--user", ME, "--state", "completed"): "1",
    }  # fmt: skip
    for words, numbers in listed.items():
        assert say("queue", "-q", *words) == (0, numbers.split(), []), words
    code, (heads, *rows), _ = say("queue", "--csv", "-a", "--group", group)
    cells = [dict(zip(heads.split(","), row, strict=True)) for row in csv.reader(rows)]
    assert code == 0 and [(row["id"], row["name"], row["state"], row["exit_code"], row["index"]) for row in cells] == [
        ("3", "a,b", "RUNNING", "", "2"), ("2", "a,b", "FAILED", "3", "1"), ("1", "a,b", "COMPLETED", "0", "0"),
    ]  # fmt: skip
    assert say("queue", "--csv", "1")[1][1] == rows[2] and cells[0]["ended"] == "" and float(cells[1]["ended"]) > 0
    for words in (("--state", "gone"), ("--csv", "-q"), ("--since", "soon"), ("--since", "1h", "--until", "2h")):
        assert say("queue", *words)[0] == 125
    with connect() as queue, pytest.raises(BadInput, match="'states' is not a list of states"):
        queue.queue(states=["GONE"])


def test_what_the_disk_says_is_said_with_the_queue(daemon, say):
    daemon.do(lambda: setattr(daemon.engine.outage, "text", "no room"))
    for words in (("queue",), ("queue", "--json")):
        code, _, err = say(*words)
        assert code == 0 and "no room" in err[0]
    assert say("queue", "-q") == (0, [], [])


def test_why_in_lines(monkeypatch, capfd):
    """A fact a line; what nobody can say is said."""
    ahead = (Ahead(1, "ann", 8), Ahead(2, "ben", 1), Ahead(3, "ben"))

    def told(**fields) -> list[str]:
        found = Why(**{"job": 7, "state": "PENDING", "reason": "needs 4 GPUs, 0 free", "place": 9, "waiting": 11, **fields})
        client = SimpleNamespace(why=lambda number: found, ping=lambda: SimpleNamespace(simulated=False))
        monkeypatch.setattr("dockless.sched.connect", lambda: contextlib.nullcontext(client))
        assert main(["why", "7"]) == 0
        return capfd.readouterr().out.splitlines()

    first = ["job 7 waits: needs 4 GPUs, 0 free", "place    9 of 11"]
    assert told(starts_in=7200.0, rule="resources", ahead=ahead, sooner=("with 1 GPU instead of 4",)) == [
        *first,
        "starts   in about 2h, if every job takes its whole time limit and no other comes before it",
        "rule     resources: too little is free",
        "ahead    job 1 of ann (8 GPUs), job 2 of ben (1 GPU), job 3 of ben and 5 more",
        "now      with 1 GPU instead of 4",
    ]
    assert told(starts_in=60.0, at_latest=True)[2:] == [
        "starts   in 1m at the latest, if what runs takes its whole time limit and nothing comes before it"
    ]
    assert told(endless=(3,))[2:] == ["starts   nobody can say: job 3 has no time limit"]
    assert told(endless=(3, 4), rule="new")[2:] == [
        "starts   nobody can say: jobs 3, 4 have no time limit", "rule     new: a rule of a newer daemon",
    ]  # fmt: skip
    assert told() == [*first, "starts   nobody can say yet"]
    assert told(starts_after=7200.0)[2:] == ["starts   not in the next 2h; nothing further is foretold, as too much waits"]
    assert told(starts_after=0.1)[2:] == ["starts   nothing further is foretold, as too much waits"]
    awaited = (Awaited(1, "RUNNING", 60.0), Awaited(2, "PENDING", 7200.0), Awaited(3, "PENDING"))
    kept = {"place": 0, "waiting": 1, "reason": "waits for others", "awaited": awaited, "awaiting": 9}
    assert told(**kept, rule="after", starts_in=7200.0, earlier=("submitted again",)) == [
        "job 7 waits: for others",
        "starts   in about 2h, if those jobs take their whole time limits and what it needs is free then",
        "rule     after: it may not start until other jobs have ended",
        "behind   job 1 (RUNNING, ends in 1m at the latest), job 2 (PENDING, ends in about 2h), job 3 (PENDING) and 6 more",
        "sooner   submitted again",
    ]
    assert told(place=0, rule="begin", starts_in=60.0)[1] == "starts   in 1m at the earliest, if what it needs is free then"


def row(**fields) -> Job:
    return Job(**{"id": 7, "uid": 5, "user": "ann", "state": State.PENDING, "submitted": 100.0, **fields})


@pytest.fixture
def _at_1000(monkeypatch):
    monkeypatch.setattr("dockless.cli.output.time.time", lambda: 1000.0)


@pytest.mark.usefixtures("_at_1000")
@pytest.mark.parametrize(
    ("job", "cells"),
    [
        (row(image="img"), ["7", "ann", "PENDING", "15m", "img"]),
        (row(reason="why", command="sleep 1", image="img"), ["7", "ann", "PENDING", "15m", "sleep 1", "why"]),
        (row(name="n", place=12, starts_in=7261.0), ["7", "ann", "PENDING", "15m", "12", "2h1m", "n"]),
        (row(name="n", place=12, starts_after=7261.0), ["7", "ann", "PENDING", "15m", "12", ">2h1m", "n"]),
        (row(name="n", place=12, starts_after=0.5), ["7", "ann", "PENDING", "15m", "12", "later", "n"]),
        (row(state=State.RUNNING, started=940.0, name="n", command="c", gpu_count=2), ["7", "ann", "RUNNING", "2", "1m", "n"]),
        (row(state=State.FAILED, started=200.0, ended=205.0, exit_code=3, name="n"), ["7", "ann", "FAILED", "5s", "n", "exit 3"]),
        (row(state=State.FAILED, started=200.0, ended=205.0, exit_code=3, name="n", reason="r"), ["7", "ann", "FAILED", "5s", "n", "r"]),
        (
            row(state=State.COMPLETED, started=200.0, ended=205.0, exit_code=0, priority=4, name="n"),
            ["7", "ann", "COMPLETED", "4", "5s", "n"],
        ),
        (row(state=State.CANCELLED, ended=205.0, name="n"), ["7", "ann", "CANCELLED", "1m45s", "n"]),
    ],
)
def test_a_row(capfd, job, cells):
    cli_jobs.print_queue([job], False)
    head, line = capfd.readouterr().out.splitlines()
    assert [cell.strip() for cell in line.split("  ") if cell.strip()] == cells
    assert head.split() == ["ID", "USER", "STATE", "GPUS", "PRIO", "TIME", "PLACE", "STARTS", "JOB", "REASON"]


@pytest.mark.usefixtures("_at_1000")
def test_a_job_in_full(capfd):
    def told(job: Job, simulated: bool = False) -> list[str]:
        cli_jobs._detail(job, simulated)
        return capfd.readouterr().out.splitlines()

    assert told(row(image="img")) == [
        "job         7",
        "state       PENDING",
        "user        ann (5)",
        "image       img",
        "submitted   15m ago",
        "",
    ]
    attempts = (
        Attempt(7, 1, AttemptState.VOID, "job-7-1-x", (), 0.0, 300.0, "the daemon died"),
        Attempt(7, 2, AttemptState.ENDED, "job-7-2-x", ("GPU-1", "GPU-2"), 200.0, 205.0, gpu_errors=("GPU 0: Xid 31", "GPU 1: Xid 45")),
        Attempt(7, 3, AttemptState.RUNNING, "job-7-3-x", (), 300.0),
    )
    full = row(
        state=State.FAILED, reason="exit code 0", name="n", group="g", image="img", command="sleep 1", gpus="all", gpu_count=2,
        devices=("GPU-1", "GPU-2"), time_limit=90.0, priority=-3, exit_code=0, attempts=attempts,
    )  # fmt: skip
    assert told(full, True) == [
        "job         7",
        "state       FAILED, exit code 0",
        "name        n",
        "user        ann (5), group g",
        "image       img",
        "command     sleep 1",
        "gpus        all GPUs = 2 (simulated): GPU-1, GPU-2",
        "time limit  1m30s",
        "priority    -3",
        "submitted   15m ago",
        "exit code   0",
        "attempt     1: VOID, sandbox job-7-1-x, the daemon died",
        "attempt     2: ENDED, sandbox job-7-2-x, 5s",
        "            GPU 0: Xid 31",
        "            GPU 1: Xid 45",
        "attempt     3: RUNNING, sandbox job-7-3-x",
        "",
    ]
    assert told(row(gpus="2", gpu_count=2))[3] == "gpus        2 GPUs: none yet"
    assert told(row(), True) == told(row())


def test_what_keeps_a_job_waiting(daemon, say):
    """Options of submit, and hold and release by hand; a daemon says why."""
    assert say("submit", "-q", "--hold", "--begin", "2100-01-01 08:00", "--name", "n", "--singleton", "--", "true")[:2] == (0, ["1"])
    assert say("submit", "-q", "--after", "ok:1", "--", "true")[:2] == (0, ["2"])
    assert say("submit", "-q", "--array", "0-4%2", "--", "true")[:2] == (0, ["3", "4", "5", "6", "7"])
    first = stored(1)
    assert first.as_dict()["options"] == {"held": first.user, "begin": 4_102_473_600.0, "singleton": True}
    assert stored(2).as_dict()["options"] == {"after": ["ok:1"]} and stored(7).as_dict()["options"] == {"array_limit": 2}
    assert say("release", "1") == (0, ["job 1: PENDING, begins at 2100-01-01T08:00:00Z"], [])
    assert say("hold", "-q", "2") == (0, [], [])
    code, lines, _ = say("hold", "--json", "2", "1")
    assert code == 0 and [(row["id"], row["options"]["held"]) for row in json.loads("\n".join(lines))] == [(2, first.user), (1, first.user)]
    assert say("why", "2")[1][:6] == [
        f"job 2 waits: held by {first.user}; waits for the end of job 1",
        "starts   nobody can say before it is released",
        "rule     held: it may not start until it is released",
        "behind   job 1 (PENDING)",
        "sooner   after `dockless release 2`",
        "sooner   after `dockless release 1`, for it waits for what is held",
    ]
    assert say("release", "2")[0] == 0 and say("why", "2")[1][:2] == ["job 2 waits: for the end of job 1", "starts   nobody can say yet"]
    assert sorted(say("queue", "-q")[1]) == [str(n) for n in range(1, 8)]
    assert say("release", "3")[0] == 125 and "does not wait" in say("release", "3")[2][0]
    for array in ("0", "1-5", "5%0", "5%", "x"):
        assert f"array '{array}' is not a whole number of jobs" in say("submit", "--array", array, "--", "true")[2][0]
    for array in ("0-10000", "99999999%3"):
        assert "which are too many: an array has 10000 at most" in say("submit", "--array", array, "--", "true")[2][0]
    assert say("submit", "--retry-on", "75", "--", "true")[2][0] == "dockless: --retry-on without --retries"
    assert say("submit", "missing.toml")[2][0] == "dockless: there is no file missing.toml"
    assert say("submit", "--after", "12", "--", "true")[2][0].startswith("dockless: after '12' cannot be read")
    assert say("submit", "--after", "ok:99", "--", "true")[2][0].startswith("dockless: there is no job 99 to wait for")


def test_each_option_can_be_said_in_a_job_file():
    """But those of the command itself, those that a file has in another place, and what is so anyway."""
    from dockless._jobfiles import keywords
    from dockless.cli import parser_of
    from dockless.cli.full_parser import FullParser
    from dockless.cli.sandbox_options import GROUPS
    from dockless.sched.formats.own import QUEUE

    of_the_command = {"help", "quiet", "json", "format", "dlc", "job_list", "wait", "image", "name", "gpus"}
    keyword_of = {row.place: row.keyword for _, _, rows in GROUPS for row in rows}
    places = {action.dest for action in FullParser(parser_of("submit")).actions} - of_the_command
    assert {"best_effort", "rm", "health_cmd", "pull", "time_limit"} <= places
    lacking = {place for place in places if keyword_of.get(place, place) not in {"", *keywords(), *QUEUE}}
    assert not lacking


def test_how_strict_the_host_is_can_be_said_beside_a_job_file(daemon, say, tmp_path):
    (tmp_path / "job.toml").write_text('command = ["true"]\n[roles.a]\ncount = 2\n[roles.b]\nbest_effort = true\n')
    (tmp_path / "list.jsonl").write_text('{"command": ["true"]}\n')
    assert say("submit", "-q", "--best-effort", "--rm", tmp_path / "job.toml")[:2] == (0, ["1"])
    assert say("submit", "-q", tmp_path / "job.toml")[:2] == (0, ["4"])
    assert say("submit", "-q", "--best-effort", "--from", tmp_path / "list.jsonl")[:2] == (0, ["7"])
    with connect() as queue:
        assert [queue.spec(number).spec.best_effort for number in range(1, 8)] == [True] * 3 + [False, False, True, True]


def test_how_an_image_is_pulled_can_be_said_in_a_job_file(daemon, say, tmp_path, monkeypatch):
    """Before it is queued; the command line goes before it."""
    pulled = []
    monkeypatch.setattr("dockless._pulling.present_for", lambda daemon, image, *how: pulled.append((image, how[0], how[2])) or "host")
    path = tmp_path / "job.toml"
    path.write_text('image = "img"\ncommand = ["true"]\npull = "always"\nplatform = "linux/amd64"\n')
    for words, how in (([], ("always", "linux/amd64")), (["--pull", "never", "--platform", "linux/386"], ("never", "linux/386"))):
        assert say("submit", "-q", *words, path)[0] == 0
        assert pulled.pop() == ("img", *how) and not pulled
    path.write_text('image = "img"\ncommand = ["true"]\n[roles.a]\npull = "always"\n[roles.b]\n')
    assert say("submit", path)[2][0] == f"dockless: {path}: the image img is to be pulled in two ways"
    path.write_text('pull = "sometimes"\ncommand = ["true"]\n')
    assert say("submit", path)[2][0].startswith(f"dockless: {path}:1: pull ")
    path.write_text('{"image": "img", "pull": "always"}\n')
    code, _, err = say("submit", "--from", path)
    assert code == 125 and any("pull stands in a list of jobs" in line for line in err)


def test_jobs_of_a_list_wait_as_the_command_line_says(daemon, say, tmp_path):
    (tmp_path / "list.jsonl").write_text('{"name": "a", "command": ["true"]}\n{"name": "b", "command": ["true"]}\n')
    assert say("submit", "-q", "--hold", "--retries", "2", "--retry-on", "75", "--from", str(tmp_path / "list.jsonl"))[:2] == (
        0,
        ["1", "2"],
    )
    code, _, err = say("submit", "--on-reboot", "requeue", "--from", str(tmp_path / "list.jsonl"))
    assert (code, err[0]) == (125, "dockless: --on-reboot beside a job file")
    code, _, err = say("submit", "--array", "3", "--from", str(tmp_path / "list.jsonl"))
    assert (code, "submit the array alone" in err[1]) == (125, True)
    for number in (1, 2):
        options = stored(number).options
        assert options.held and (options.retries, options.retry_on) == (2, (75,))


def test_a_job_file_says_the_size_of_its_array_and_the_command_line_more(daemon, say, tmp_path):
    (tmp_path / "own.toml").write_text('command = ["true"]\narray = "4%2"\n')
    (tmp_path / "batch.sh").write_text("#!/bin/sh\n#SBATCH --array=0-2%1\ntrue\n")
    assert say("submit", "-q", tmp_path / "own.toml")[:2] == (0, ["1", "2", "3", "4"])
    assert say("submit", "-q", tmp_path / "batch.sh")[:2] == (0, ["5", "6", "7"])
    assert [stored(number).options.array_limit for number in (4, 7)] == [2, 1]
    for word in ('"x"', "0", "[1]", "true"):
        (tmp_path / "wrong.toml").write_text(f'command = ["true"]\narray = {word}\n')
        assert "is not a whole number of jobs" in say("submit", tmp_path / "wrong.toml")[2][0]
    assert say("submit", "--notify", "end", tmp_path / "own.toml")[2][0] == "dockless: this host sends no notices"


def test_draining(daemon, say):
    code, lines, _ = say("drain", "0", "--reason", "disk change")
    assert (
        code == 0 and lines[0].startswith("GPU 0: drained by ") and lines[0].endswith(": disk change") and lines[-1] == "host: in service"
    )
    code, lines, _ = say("drain", "--all", "--json")
    found = json.loads("\n".join(lines))
    assert code == 0 and found["drained"].startswith("drained by ") and "disk change" in next(iter(found["gpus"].values()))
    assert any(line.endswith("no job is started") for line in say("info")[1])
    assert say("undrain", "-q", "--all")[:2] == (0, []) and not any("drained" in line for line in say("info")[1])
    for words, wrong in (
        (["drain"], "no GPUs are named"),
        (["drain", "0", "--all"], "some GPUs are named, and all"),
        (["undrain"], "no GPUs are named"),
    ):
        assert say(*words)[2][0] == f"dockless: {wrong}"
    assert say("gpu")[2][0].endswith("are required: list|cdi|mig") and say("quota")[2][0].endswith("are required: show|set")
    assert say("usage", "--since", "2026-02-01", "--until", "2026-01-01")[2][0] == "dockless: --until is before --since"
    assert say("drain", "77")[2][0] == "dockless: there is no GPU 77"


@pytest.mark.parametrize("beside", [["--dlc", "job.params"], ["python:3.12"], ["--format", "compose"]])
def test_a_list_stands_alone(capsys, beside):
    assert main(["submit", *beside, "--from", "jobs.jsonl"]) == 125
    assert "--from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["submit"], "dockless submit IMAGE"),
        (["submit", "./a.toml", "./b.toml"], "'./b.toml' stands beside a job file"),
    ],
)
def test_a_line_that_is_wrong_is_answered_in_its_own_words(capsys, line, said):
    assert main(line) == 125
    err = capsys.readouterr().err
    assert said in err and "--time" not in err and "dockless run" not in err, err


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["submit", "--priority", "x", "--", "true"], "submit: --priority: 'x' is not a whole number", "dockless submit --help"),
        (["clone", "--image", "x", "1"], "clone: there is no option --image", "dockless clone --edit ID"),
        (["gpu", "mig"], "gpu mig: what?", "gpu mig create GPU PROFILE …"),
        (["gpu", "mig", "mk"], "gpu mig has no 'mk'", "gpu mig create GPU PROFILE …"),
        (["gpu", "mig", "create"], "gpu mig create needs the index of a GPU", "gpu mig create GPU PROFILE …"),
        (["gpu", "mig", "create", "1"], "gpu mig create needs a profile, or several", "`gpu mig profiles 1` lists its profiles"),
        (["gpu", "mig", "profiles", "1", "2"], "'2' is one argument too many", "gpu mig profiles GPU"),
        (["gpu", "mig", "remove"], "gpu mig remove needs the UUID of a slice, or several", "gpu mig remove UUID …"),
    ],
)
def test_words_that_are_wrong_are_named(say, words, said, hint):
    code, out, err = say(*words)
    assert (code, out, err[0]) == (125, [], f"dockless: {said}") and hint in err[1]
