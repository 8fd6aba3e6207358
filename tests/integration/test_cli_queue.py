"""The queue's verbs against a real daemon, with simulated GPUs; and ``dockless.submit``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from support.boxes import until
from support.requires import requires

import dockless
from dockless.cli import main
from dockless.sched import connect

pytestmark = requires("userns")


@pytest.fixture
def daemon(home, monkeypatch) -> Iterator[subprocess.Popen[bytes]]:
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    monkeypatch.delenv("DOCKLESS_SOCKET", raising=False)
    process = subprocess.Popen([sys.executable, "-P", "-m", "dockless", "daemon"], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while True:
        assert process.poll() is None and time.monotonic() < deadline
        try:
            with connect() as queue:
                queue.ping()
            break
        except dockless.DaemonUnavailable:
            time.sleep(0.02)
    yield process
    with connect() as queue:
        for job in queue.queue():
            queue.cancel(job.id, grace=0)
        queue.wait_many([job.id for job in queue.queue()])
    process.send_signal(signal.SIGTERM)
    process.wait(30)


def job_ids(capfd) -> list[int]:
    return [int(word) for word in capfd.readouterr().out.split()]


@pytest.mark.parametrize("line", [["submit", "--", "true"], ["queue"], ["info"], ["cancel", "1"]])
def test_a_request_imports_nothing_slow(daemon, line):
    dockless.submit(["true"])
    code = f"import sys; had = set(sys.modules)\nfrom dockless.cli import main\nassert main({line!r}) == 0\nprint(*set(sys.modules) - had)"
    said = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True).stdout
    slow = "dataclasses inspect pathlib json urllib.parse ipaddress re typing decimal base64 subprocess asyncio argparse datetime"
    assert {"dockless.sched.wire.client"} <= set(said.split()) and sorted({*slow.split()} & {*said.split()}) == []


def test_from_submit_to_exit(daemon, capfd):
    script = "echo out; echo err >&2; echo $DOCKLESS_GPUS; ls /dev | grep -c '^nvidia[0-9]'; exit 3"
    assert main(["submit", "-q", "--gpus", "2", "--name", "both", "--time", "1m", "--", "sh", "-c", script]) == 0
    (job,) = job_ids(capfd)
    assert main(["wait", str(job)]) == 3
    assert "FAILED" in capfd.readouterr().out
    assert main(["logs", "-f", str(job)]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("out\n") and out.endswith("\n2\n") and err == "err\n"
    assert main(["queue", "-a", "--json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)
    assert (row["id"], row["state"], row["exit_code"], row["gpu_count"], row["simulated"]) == (job, "FAILED", 3, 2, True)
    assert main(["queue", str(job)]) == 0
    out = capfd.readouterr().out
    assert "attempt     1: ENDED" in out and "(simulated)" in out and "both" in out


def test_waiting_jobs_have_reasons_and_can_be_cancelled(daemon, capfd):
    assert main(["submit", "-q", "--gpus", "all", "--", "sleep", "300"]) == 0
    assert main(["submit", "-q", "--gpus", "1", "--", "sleep", "300"]) == 0
    first, second = job_ids(capfd)
    deadline = time.monotonic() + 20
    with connect() as queue:
        while queue.job(first).state != "RUNNING":
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert main(["queue"]) == 0
    out = capfd.readouterr().out
    assert "needs 1 GPU, 0 free" in out and "GPUs are simulated." in out
    assert main(["info"]) == 0
    out = capfd.readouterr().out
    assert out.count(f"job {first}") == 2 and "GPUs are simulated." in out and "1 running, 1 waiting" in out
    assert main(["info", "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["gpus"]) == 2
    # Without the daemon's leave nobody takes what it leased.
    assert main(["run", "--gpus", "1", "--", "true"]) == 125
    assert "leased" in capfd.readouterr().err
    assert main(["cancel", str(second)]) == 0
    assert main(["cancel", "--mine", "--grace", "0"]) == 0
    capfd.readouterr()
    assert main(["wait", "-q", str(first), str(second)]) != 0
    assert main(["queue", "-q"]) == 0 and capfd.readouterr().out == ""


def test_an_array_is_cancelled_in_one_go(daemon, capfd):
    """More jobs than one request ends, running and waiting ones; one that is not there, and none is cancelled."""
    assert main(["submit", "-q", "--gpus", "1", "--array", "2500", "--", "sleep", "300"]) == 0
    ids = job_ids(capfd)
    assert main(["cancel", str(ids[5]), str(ids[-1] + 1)]) == 125
    assert f"no job {ids[-1] + 1}" in capfd.readouterr().err
    with connect() as queue:
        assert queue.job(ids[5]).state == "PENDING"
        assert [job.id for job in queue.cancel_many([ids[7], ids[5], ids[7]])] == [ids[7], ids[5], ids[7]]
    assert main(["cancel", "--mine", "--grace", "0"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == len(ids) - 2
    with connect() as queue:
        assert {job.state for job in queue.wait_many(ids, timeout=60)} == {"CANCELLED"}


def test_refused_at_submit(daemon, capfd):
    for arguments, said in (
        (["--gpus", "3"], "3 GPUs asked for, this host has 2"),
        (["--gpus", "device=9"], "no GPU 9"),
        (["--pull", "never", "no-such-image"], "no image"),
        (["--gpus", "x"], "GPU request"),
        (["--gpus", "-1"], "--gpus all"),
    ):
        assert main(["submit", *arguments, "--", "true"]) == 125
        err = capfd.readouterr().err
        assert said in err and "\n  hint: " in err
    assert main(["logs", "999"]) == 125
    assert main(["wait", "999"]) == 125
    assert main(["queue", "-a", "-q"]) == 0 and capfd.readouterr().out == ""


def test_arrays_and_waiting_submits(daemon, capfd):
    assert main(["submit", "-q", "--array", "3", "--", "sh", "-c", "echo $DOCKLESS_ARRAY_INDEX"]) == 0
    ids = job_ids(capfd)
    assert len(ids) == 3 and main(["wait", "-q", *map(str, ids)]) == 0
    assert main(["logs", str(ids[2])]) == 0
    assert capfd.readouterr().out == "2\n"
    assert main(["submit", "--wait", "--json", "--", "sh", "-c", "exit 6"]) == 6
    assert json.loads(capfd.readouterr().out)[0]["exit_code"] == 6


def test_an_attempt_that_there_is_not(daemon, capfd):
    """It is an error, not an empty log."""
    assert main(["submit", "-q", "--wait", "--", "echo", "out"]) == 0
    (number,) = job_ids(capfd)
    assert main(["logs", "--attempt", "9", str(number)]) == 125
    assert capfd.readouterr().err.startswith(f"dockless: job {number} has no attempt 9\n  hint: its newest attempt is 1")
    assert main(["logs", "--attempt", "1", str(number)]) == 0 and capfd.readouterr().out == "out\n"
    assert main(["logs", "--attempt", "1", "web"]) == 125
    assert "only jobs have attempts" in capfd.readouterr().err
    with connect() as queue, pytest.raises(dockless.BadInput):
        list(queue.logs(number, attempt=2))


def test_submit_from_python(daemon):
    job = dockless.submit(["sh", "-c", "echo $A; sleep 0.1"], env={"A": "1"}, gpus=1, time_limit="1m", name="n")
    assert int(job) == job.id and job.status().name == "n"
    assert job.wait(30).state == "COMPLETED"
    assert [line.text for line in job.logs()] == ["1"]
    other = dockless.submit(["sleep", "300"])
    with pytest.raises(TimeoutError):
        other.wait(0.05)
    other.cancel(grace=0)
    assert other.wait(30).state == "CANCELLED"


def test_without_a_daemon_every_verb_says_what_to_do(capfd, monkeypatch):
    monkeypatch.delenv("DOCKLESS_SOCKET", raising=False)
    for line in (["queue"], ["submit", "--", "true"], ["cancel", "1"], ["wait", "1"], ["logs", "1"]):
        assert main(line) == 125
        assert "dockless daemon" in capfd.readouterr().err
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    assert main(["info"]) == 0
    assert "simulated" in capfd.readouterr().out


def test_sandboxes_of_jobs_are_left_to_the_daemon(daemon, capfd):
    assert main(["submit", "-q", "--", "sleep", "300"]) == 0
    (job,) = job_ids(capfd)
    deadline = time.monotonic() + 20
    while True:
        main(["ps", "--json"])
        rows = json.loads(capfd.readouterr().out)
        if [row for row in rows if row["state"] == "running"]:
            break
        assert time.monotonic() < deadline
    assert main(["rm", "-f", rows[0]["id"]]) == 125
    assert f"dockless cancel {job}" in capfd.readouterr().err


def test_why_a_job_waits(daemon, capfd):
    """The reason, its place, when it starts, and what would start now; of one that does not wait what it is."""

    def why(number: int, *words: str) -> str:
        assert main(["why", *words, str(number)]) == 0
        return capfd.readouterr().out

    long = dockless.submit(["sleep", "1000"], gpus=1, time_limit="2h")
    wide = dockless.submit(["true"], gpus=2)
    late = dockless.submit(["true"], gpus="device=0", time_limit="9h")
    until(lambda: long.status().state == "RUNNING" and "starts in" in wide.status().reason, "they wait")
    lines = why(wide.id).splitlines()
    assert lines[0].startswith(f"job {wide.id} waits: needs 2 GPUs, 1 free; starts in about ") and lines[1] == "place    1 of 2"
    assert lines[2].startswith(("starts   in 1h59m", "starts   in 2h")) and lines[2].endswith(
        "if what runs takes its whole time limit and nothing comes before it"
    )
    assert lines[3:] == ["rule     resources: too little is free", "now      with 1 GPU instead of 2", "GPUs are simulated."]
    found = json.loads(why(late.id, "--json"))
    assert (found["job"], found["state"], found["place"], found["waiting"], found["simulated"]) == (late.id, "PENDING", 2, 2, True)
    assert [one["job"] for one in found["ahead"]] == [wide.id] and found["rule"] == "resources" and found["endless"] == [wide.id]
    assert why(long.id) == f"job {long.id} does not wait: it is RUNNING\n"
    with connect() as queue:
        assert queue.why(wide.id).sooner == ("with 1 GPU instead of 2",)
        with pytest.raises(dockless.DocklessError, match="there is no job 999"):
            queue.why(999)
    assert main(["why", "999"]) == 125 and "there is no job 999" in capfd.readouterr().err


def test_a_job_of_a_file_runs_and_its_secret_is_nowhere_shown(daemon, capfd, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        "name = 'of a file'\ngpus = 1\ntime_limit = '1m'\nscript = 'test \"<% $secrets.token %>\" = hunter2; echo $?'\n"
        "[secrets]\ntoken = 'hunter2'\n"
    )
    assert main(["submit", "-q", str(path)]) == 0
    (job,) = job_ids(capfd)
    assert main(["wait", str(job)]) == 0
    assert main(["logs", "-f", str(job)]) == 0
    assert capfd.readouterr().out.endswith("\n0\n")
    assert main(["queue", "--json", str(job)]) == 0
    out = capfd.readouterr().out
    assert json.loads(out)[0]["name"] == "of a file" and json.loads(out)[0]["time_limit"] == 60 and "hunter2" not in out


def test_an_array_of_a_batch_script(daemon, capfd, tmp_path):
    path = tmp_path / "job.sbatch"
    path.write_text('#!/bin/sh\n#SBATCH --array=3-5:2\necho "$SLURM_ARRAY_TASK_ID $1"\n')
    assert main(["submit", "-q", str(path), "--", "word"]) == 0
    jobs = job_ids(capfd)
    assert main(["wait", "-q", *map(str, jobs)]) == 0 and len(jobs) == 2
    for job, said in zip(jobs, ("3 word", "5 word"), strict=True):
        assert main(["logs", str(job)]) == 0
        assert capfd.readouterr().out == f"{said}\n"


def said_of(capfd, file):
    """The jobs of this file, as they wait, and then no more."""
    assert main(["submit", "-q", str(file)]) == 0, capfd.readouterr().err
    with connect() as queue:
        jobs = [queue.job(number) for number in job_ids(capfd)]
        queue.cancel_many([job.id for job in jobs])
    return jobs


def test_a_file_says_when_its_job_may_start(daemon, capfd, tmp_path):
    """Of dockless's own form and of a batch script."""
    dockless.submit(["true"]).wait()
    held = dockless.submit(["true"], hold=True)
    own, script = tmp_path / "job.toml", tmp_path / "job.sbatch"
    for said in ("hold = true", "#SBATCH --hold"):
        own.write_text(f"command = ['true']\n{said}\n")
        script.write_text(f"#!/bin/sh\n{said}\ntrue\n")
        (job,) = said_of(capfd, script if said[0] == "#" else own)
        assert job.reason == f"held by {job.user}"
    for said in ("begin = 2099-01-31T08:00:00Z", "begin = '2099-01-31 08:00'", "begin = 4073529600", "begin = 2099-01-31T08:00:00"):
        own.write_text(f"command = ['true']\n{said}\n")
        (job,) = said_of(capfd, own)
        assert job.reason == "begins at 2099-01-31T08:00:00Z"
    script.write_text("#!/bin/sh\n#SBATCH --begin=now+2hours --requeue\ntrue\n")
    (job,) = said_of(capfd, script)
    assert job.reason.startswith("begins at ") and 7100 < job.options.begin - job.submitted < 7300 and job.on_reboot == "requeue"
    own.write_text(f"command = ['true']\nafter = ['ok:1', 'any:{held.id}']\nretries = 3\nretry_on = [75, 2]\n")
    (job,) = said_of(capfd, own)
    assert job.reason == f"waits for the end of job {held.id}" and (job.options.retries, job.options.retry_on) == (3, (75, 2))
    own.write_text("name = 'one'\nsingleton = true\ncommand = ['true']\nhold = true\n")
    first = dockless.submit(["true"], name="one", hold=True)
    script.write_text("#!/bin/sh\n#SBATCH -J one\n#SBATCH --dependency=afterany:1,singleton\ntrue\n")
    for file in (own, script):
        (job,) = said_of(capfd, file)
        assert job.options.singleton
    assert job.reason == f"waits for the end of job {first.id}, which has the same name"


@pytest.mark.parametrize("said", ["array = '0-4%2'", "array = '5%2'", "#SBATCH --array=0-4%2", "#SBATCH --array=1-9:2%2"])
def test_a_file_says_how_many_of_its_array_run_at_once(daemon, capfd, tmp_path, said):
    file = tmp_path / ("job.sbatch" if said[0] == "#" else "job.toml")
    file.write_text(f"#!/bin/sh\n{said}\nexec sleep 1000\n" if said[0] == "#" else f"command = ['sleep', '1000']\n{said}\n")
    assert main(["submit", "-q", str(file)]) == 0
    numbers = job_ids(capfd)
    with connect() as queue:
        until(lambda: [queue.job(number).state for number in numbers[:2]] == ["RUNNING"] * 2, "two run")
        assert [queue.job(number).reason for number in numbers[2:]] == ["of its array 2 may run at once"] * 3
    assert main(["submit", "-q", "--array", "2", str(file)]) == 0 and len(job_ids(capfd)) == 2


@pytest.mark.parametrize(
    "said",
    ["array = true", "array = 0", "array = '5%0'", "array = '5%'", "array = 'x'", "array = 1.5", "array = []", "after = 12", "after = [12]",
     "after = [[]]", "retry_on = 75", "retry_on = ['75']", "retries = '3'", "hold = 'yes'", "begin = 'soon'", "begin = []", "notify = 1",
     "singleton = true"],
)  # fmt: skip
def test_what_a_file_says_of_the_queue_and_cannot_mean(daemon, capfd, tmp_path, said):
    file = tmp_path / "job.toml"
    file.write_text(f"command = ['true']\n{said}\n")
    assert main(["submit", str(file)]) == 125
    error = capfd.readouterr().err
    assert str(file) in error and "Traceback" not in error and "internal" not in error


TRAPPED = "trap 'echo warned; exit 3' USR1; while :; do sleep 0.1; done"


def test_a_signal_before_the_time_limit(daemon, capfd, tmp_path):
    script = tmp_path / "job.sbatch"
    script.write_text(f"#!/bin/sh\n#SBATCH --time=60 --signal=B:USR1@3594\n{TRAPPED}\n")
    assert main(["submit", "-q", str(script)]) == 0
    assert main(["submit", "-q", "--time-limit", "1h", "--warn", "USR1@3594s", "--", "sh", "-c", TRAPPED]) == 0
    numbers = job_ids(capfd)
    with connect() as queue:
        assert [(job.exit_code, job.options.warned) for job in queue.wait_many(numbers, timeout=60)] == [(3, 1)] * 2
    for number in numbers:
        assert main(["logs", str(number)]) == 0
    assert capfd.readouterr().out == "warned\n" * 2


@pytest.mark.parametrize("said", ["USR1@2h", "USR1@0", "KILL@1m", "NOPE@1m", "@1m", "USR1@", "USR1@soon"])
def test_a_warning_that_cannot_be_meant(daemon, capfd, said):
    assert main(["submit", "--time-limit", "1h", "--warn", said, "--", "true"]) == 125
    assert main(["submit", "--warn", "USR1", "--", "true"]) == 125
    assert "needs one" in capfd.readouterr().err


def test_what_happened_to_a_job_is_listed(daemon, capfd):
    assert main(["submit", "-q", "--hold", "--gpus", "1", "--", "sh", "-c", "exit 3"]) == 0
    (number,) = job_ids(capfd)
    assert main(["queue", str(number), "--events"]) == 0
    head, row = capfd.readouterr().out.splitlines()
    assert head.split() == ["JOB", "TIME", "EVENT", "ATTEMPT", "DETAIL"] and row.split()[0::2] == [str(number), "submit"]
    assert main(["release", "-q", str(number)]) == 0 and main(["wait", "-q", str(number)]) == 3
    assert main(["queue", str(number), "--events", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [one["event"] for one in found] == ["submit", "release", "start", "running", "ended", "failed"]
    assert {one["job"] for one in found} == {number} and found[2]["detail"].startswith("GPU-") and found[2]["attempt"] == 1
    assert main(["queue", str(number), "--events", "--csv"]) == 0
    assert capfd.readouterr().out.splitlines()[0] == "job,at,event,attempt,detail"
    for words in (["--events"], [str(number), "--events", "-q"]):
        assert main(["queue", *words]) == 125
    assert main(["queue", "99", "--events"]) == 125


def test_a_list_of_jobs_is_queued_whole_or_not_at_all(daemon, capfd, tmp_path):
    path = tmp_path / "jobs.jsonl"
    path.write_text("".join(f'{{"name": "j{i}", "command": ["true"]}}\n' for i in range(300)))
    assert main(["submit", "-q", "--from", str(path)]) == 0
    jobs = job_ids(capfd)
    assert jobs == list(range(jobs[0], jobs[0] + 300))
    path.write_text(
        '{"command": ["true"]}\n{"command": ["true"], "gpus": 99}\n{"command": ["true"]}\n{"command": ["true"], "after": "ok:9999"}\n'
    )
    assert main(["submit", "--from", str(path)]) == 125
    said = capfd.readouterr().err.splitlines()
    assert said[0].startswith(f"dockless: {path}:2: 99 GPUs") and said[1].startswith("  hint: ")
    assert said[2].startswith(f"  note: {path}:4: there is no job 9999 to wait for") and said[3:] == ["  note: none of the jobs was queued"]
    assert main(["submit", "-q", "--", "true"]) == 0
    assert job_ids(capfd) == [jobs[-1] + 1]


def test_a_list_that_is_longer_than_a_request_is_one_transaction(daemon, capfd, tmp_path, monkeypatch):
    from dockless.cli import counted

    monkeypatch.setattr(counted, "LINE_EVERY", 0.0)
    path = tmp_path / "jobs.jsonl"
    path.write_text("".join(f'{{"name": "j{i}", "command": ["true", "{"x" * 800}"]}}\n' for i in range(1500)))
    assert main(["submit", "--hold", "--from", str(path)]) == 0
    said = capfd.readouterr()
    assert said.out == "jobs 1 to 1500\n" and "200 of 1,500 lines read\n" in said.err and "1,500 of 1,500 jobs sent\n" in said.err
    with connect() as queue:
        assert len(queue.cancel_many(range(1, 1501))) == 1500
    assert main(["submit", "-q", "--hold", "--from", str(path)]) == 0
    assert capfd.readouterr().err == ""
    with connect() as queue:
        queue.cancel_many(range(1501, 3001))


def test_an_interrupted_list_leaves_nothing(daemon, capfd, tmp_path, monkeypatch):
    from dockless.cli import counted

    def told(self, what: str, done: int, of: int) -> None:
        if what == "jobs sent" and done > of / 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(counted.Counted, "__call__", told)
    path = tmp_path / "jobs.jsonl"
    path.write_text("".join(f'{{"command": ["true", "{"x" * 800}"]}}\n' for i in range(1500)))
    assert main(["submit", "--from", str(path)]) == 130
    assert capfd.readouterr().err == "dockless: interrupted: none of the jobs was queued\n"
    with connect() as queue:
        assert not queue.queue(ended=True)
        assert queue.submit(dockless.sched.JobSpec(hold=True)) == 1


def test_what_a_file_says_itself_is_not_said_beside_it(daemon, capfd, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text("command = ['true']\n")
    for words in (["-m", "1G", str(path)], ["--gpus", "1", str(path)], ["-t", str(path)], ["--from", str(path), "--name", "x"]):
        assert main(["submit", *words]) == 125
        assert "beside a job file" in capfd.readouterr().err
    assert main(["submit", "-q", "--name", "other", "--time", "5m", str(path)]) == 0
    (job,) = job_ids(capfd)
    with connect() as queue:
        found = queue.job(job)
    assert (found.name, found.time_limit) == ("other", 300)
