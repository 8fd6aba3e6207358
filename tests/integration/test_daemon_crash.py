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
