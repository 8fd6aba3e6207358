"""A daemon whose disk is full: it refuses with the next step, goes on answering, and forgets nothing that it acknowledged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.boxes import load, until
from support.disks import fill, small
from support.requires import requires
from support.scheduling import DaemonProcess

from dockless.errors import SchedError
from dockless.sandbox.spec import Bind, Spec
from dockless.sched import JobSpec, State

pytestmark = requires("root", "userns")


@pytest.fixture
def state(home: Path):
    """The state directory on 4 MB of their own."""
    with small(home / "state", "size=4m,mode=711") as place:
        yield place


def _said(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-P", "-m", "dockless", *arguments]
    return subprocess.run(words, env={**os.environ, "DOCKLESS_HOME": str(home)}, capture_output=True, text=True)


def test_full_and_well_again(home: Path, state: Path):
    marks = home / "marks"
    marks.mkdir()
    marks.chmod(0o777)
    daemon = DaemonProcess(home, gpus="1x80G").start()
    spec = Spec(argv=("sh", "-c", "until [ -e /marks/go ]; do sleep 0.01; done; echo $DOCKLESS_JOB_ID >> /marks/ran; exit 9"))
    spec = Spec(argv=spec.argv, mounts=(Bind(str(marks), "/marks"),))
    with daemon.client() as queue:
        first = queue.submit(JobSpec(spec, gpus="1"))
        until(lambda: queue.job(first).state is State.RUNNING, "the first job runs")
        ballast = fill(state)
        acknowledged = [first]
        refused = None
        while refused is None:
            # Large ones: what SQLite has of its own room is soon used up.
            try:
                acknowledged.append(queue.submit(JobSpec(Spec(argv=spec.argv, mounts=spec.mounts, env=(("A", "x" * 20000),)), gpus="1")))
            except SchedError as error:
                refused = error
            assert len(acknowledged) < 1000
        assert refused.hint and "jobs.db" in refused.subject
        assert {job.id for job in queue.queue()} == set(acknowledged)
        (marks / "go").touch()  # the first ends now, and its end cannot be written yet
        until(lambda: "it has ended (FAILED)" in queue.job(first).reason, "the first has ended")
        assert queue.job(first).state is State.RUNNING and "cannot be written" in queue.job(first).reason
        assert "cannot be written" in queue.ping().outage
        assert all(job.reason.startswith("nothing can be started: ") for job in queue.queue() if job.state is State.PENDING)
        for verb in ("queue", "info"):
            ended = _said(home, verb)
            assert ended.returncode == 0 and ended.stderr.startswith("dockless: the queue cannot be written: ")
        (found,) = (check for check in json.loads(_said(home, "doctor", "--json").stdout)["checks"] if check["name"] == "daemon")
        assert "cannot be written" in found["what"]
        assert daemon.errors().count("cannot be written") == 1
        os.unlink(ballast)
        ended = queue.wait_many(acknowledged, timeout=120)
        assert {(job.id, job.state, job.exit_code) for job in ended} == {(number, State.FAILED, 9) for number in acknowledged}
        assert queue.wait(queue.submit(JobSpec(Spec(argv=("true",)), gpus="1")), timeout=30).state is State.COMPLETED
        assert queue.info().gpus[0].job == 0 and queue.ping().outage == ""
        assert _said(home, "queue").stderr == ""
        assert daemon.errors().count("cannot be written") == daemon.errors().count("can be written again") == 1
    daemon.stop()
    assert sorted(map(int, (marks / "ran").read_text().split())) == acknowledged
    assert list((state / "sandboxes").iterdir()) == []


def test_a_job_that_fills_the_daemons_disk_gives_its_room_back(home: Path, state: Path, tmp_path: Path):
    """Its private layer lies beside the queue: its end can be recorded only when that has gone."""
    daemon = DaemonProcess(home).start()
    load(tmp_path, name="one:1")
    script = "head -c 8000000 /dev/zero > /big; while echo x >> /small; do :; done; exit 7"
    with daemon.client() as queue:
        filler = queue.submit(JobSpec(Spec(image="one:1", argv=("sh", "-c", script))))
        ended = queue.wait(filler, timeout=60)
        assert (ended.state, ended.exit_code) == (State.FAILED, 7)
        assert queue.wait(queue.submit(JobSpec(Spec(argv=("true",)))), timeout=60).state is State.COMPLETED
    daemon.stop()
    assert list((state / "sandboxes").iterdir()) == []
