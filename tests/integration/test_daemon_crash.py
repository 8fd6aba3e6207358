"""kill -9 of the daemon: nothing lost, nothing run twice, no exit code lost. At every point of an attempt's life, and at random moments
under load.

``DOCKLESS_CRASHES``: how many moments (12); ``python benchmarks/crash_matrix.py`` does 200.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import dying_daemon
from support.scheduling import DaemonProcess, crash_matrix

from dockless.errors import DaemonUnavailable
from dockless.sandbox.spec import Bind, Spec
from dockless.sched import AttemptState, JobSpec, State

pytestmark = pytest.mark.requires("userns")


def test_killed_at_random_moments(home: Path):
    kills = int(os.environ.get("DOCKLESS_CRASHES", "12"))
    result = crash_matrix(home, kills, seed=int(os.environ.get("DOCKLESS_SEED", "1")))
    assert result.clean, "\n".join([str(result), *result.details])
    assert result.kills == kills and result.jobs > 0


@pytest.mark.parametrize("point", dying_daemon.POINTS)
def test_killed_at_each_point(home: Path, point: str):
    """The job runs once, with its own exit code; its GPU is free again; nothing is left."""
    marks = home / "marks"
    marks.mkdir()
    marks.chmod(0o777)
    daemon = DaemonProcess(home, gpus="1x80G", program=(dying_daemon.__file__, point, str(home / "died"))).start()
    with daemon.client() as queue:
        script = "echo $DOCKLESS_ATTEMPT >> /marks/runs; echo said; exit 42"
        number = queue.submit(JobSpec(Spec(argv=("sh", "-c", script), mounts=(Bind(str(marks), "/marks"),)), gpus="1"))
        assert daemon.process is not None and daemon.process.wait(30) == -9
        daemon.start()
        job = queue.wait(number, timeout=30)
        detail = queue.job(number)
        last = [attempt.state for attempt in detail.attempts]
        assert (job.state, job.exit_code) == (State.FAILED, 42)
        assert last == [AttemptState.VOID, AttemptState.ENDED] if point == "leased" else [AttemptState.ENDED]
        assert (marks / "runs").read_text() == f"{job.attempt}\n"
        assert [line.text for line in queue.logs(number)] == ["said"]
        assert queue.info().gpus[0].job == 0
        again = queue.submit(JobSpec(Spec(argv=("true",)), gpus="1"))
        assert queue.wait(again, timeout=30).state is State.COMPLETED
    daemon.stop()
    assert list((home / "state" / "sandboxes").iterdir()) == []


@pytest.mark.parametrize("point", dying_daemon.OF_ANOTHER_ATTEMPT)
def test_killed_between_two_attempts(home: Path, point: str):
    """Each attempt runs once, and what it wrote is kept."""
    marks = home / "marks"
    marks.mkdir()
    marks.chmod(0o777)
    daemon = DaemonProcess(home, gpus="1x80G", program=(dying_daemon.__file__, point, str(home / "died"))).start()
    with daemon.client() as queue:
        script = "echo $DOCKLESS_ATTEMPT >> /marks/runs; echo said $DOCKLESS_ATTEMPT; [ $DOCKLESS_ATTEMPT = 2 ]"
        spec = Spec(argv=("sh", "-c", script), mounts=(Bind(str(marks), "/marks"),))
        number = queue.submit(JobSpec(spec, gpus="1", retries=1))
        assert daemon.process is not None and daemon.process.wait(30) == -9
        daemon.start()
        job = queue.wait(number, timeout=30)
        assert (job.state, job.exit_code, job.attempt) == (State.COMPLETED, 0, 2)
        assert [(attempt.state, attempt.reason) for attempt in queue.job(number).attempts] == [
            (AttemptState.ENDED, "exit code 1"), (AttemptState.ENDED, "")
        ]  # fmt: skip
        assert (marks / "runs").read_text() == "1\n2\n"
        assert [[line.text for line in queue.logs(number, attempt=n)] for n in (1, 2)] == [["said 1"], ["said 2"]]
    daemon.stop()
    assert list((home / "state" / "sandboxes").iterdir()) == []


def test_killed_while_jobs_are_held_and_released(home: Path):
    """What was answered holds; what was not may not have happened, and can be asked for again."""
    daemon = DaemonProcess(home, gpus="1x80G", program=(dying_daemon.__file__, "options", str(home / "died"))).start()
    with daemon.client() as queue:
        number = queue.submit(JobSpec(Spec(argv=("true",)), hold=True))
        late = queue.submit(JobSpec(Spec(argv=("true",)), after=(f"ok:{number}",)))
        with pytest.raises(DaemonUnavailable):
            queue.release(number)
        assert daemon.process is not None and daemon.process.wait(30) == -9
        daemon.start()
        assert queue.job(number).reason.startswith("held by ") and queue.job(late).reason == f"waits for the end of job {number}"
        queue.release(number)
        assert [job.state for job in queue.wait_many([number, late], timeout=30)] == [State.COMPLETED] * 2
    daemon.stop()


def test_killed_while_the_host_is_drained(home: Path):
    daemon = DaemonProcess(home, gpus="1x80G", program=(dying_daemon.__file__, "drained", str(home / "died"))).start()
    with daemon.client() as queue:
        with pytest.raises(DaemonUnavailable):
            queue.drain(everything=True)
        assert daemon.process is not None and daemon.process.wait(30) == -9
        daemon.start()
        queue.drain(everything=True)
        daemon.stop()
        daemon.start()
        queue.close()
        number = queue.submit(JobSpec(Spec(argv=("true",))))
        assert queue.job(number).reason.startswith("nothing is started: the host was drained by ")
        queue.undrain(everything=True)
        assert queue.wait(number, timeout=30).state is State.COMPLETED
    daemon.stop()
