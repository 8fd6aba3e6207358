"""A daemon's life on a disk that fails, for fault_table.py: it takes up what the one before left, runs a job, keeps its output, ends."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from support.faults import DEADLINE

_HINT = "make room on the daemon's disk"


def life(beside: Path) -> None:
    """``beside``: a directory that does not fail, for what the daemon says. Errors are the daemon's own, and what it says of a job."""
    said = beside / "daemon.err"
    said.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _serve(said)
    pidfd = os.pidfd_open(child)
    try:
        _one_job(pidfd, said)
    finally:
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        os.close(pidfd)
        text = said.read_text()
    assert "unexpected" not in text and "Traceback" not in text, text
    assert os.waitstatus_to_exitcode(status) == 0, text


def _serve(said: Path) -> NoReturn:
    from dockless.errors import DocklessError
    from dockless.sched import daemon

    sys.stderr = said.open("w", buffering=1)
    code = 70
    try:
        code = daemon.main()
    except DocklessError as error:
        print(f"{error}\n{error.hint}", file=sys.stderr)
        code = 0 if error.hint else 1
    finally:
        os._exit(code)


def _one_job(pidfd: int, said: Path) -> None:
    from dockless.errors import DaemonUnavailable, SchedError
    from dockless.sandbox.spec import Spec
    from dockless.sched import JobSpec, State, connect

    until = time.monotonic() + DEADLINE / 2
    while True:
        try:
            connect().close()
            break
        except DaemonUnavailable:
            assert time.monotonic() < until, said.read_text()
        if select.select([pidfd], [], [], 0.01)[0]:
            text, _, hint = said.read_text().strip().rpartition("\n")
            raise SchedError(text, hint=hint)
    with connect() as queue:
        queue.wait_many([job.id for job in queue.queue()], timeout=DEADLINE / 4)
        number = queue.submit(JobSpec(Spec(image="shell:1", argv=("sh", "-c", "echo said; exit 3"))))
        while not (job := queue.job(number)).state.ended:
            if outage := queue.ping().outage:
                raise SchedError(outage, hint=_HINT)
            assert time.monotonic() < until, job
            time.sleep(0.01)
        if job.exit_code is None or job.reason.startswith("not started: "):
            assert job.state in (State.FAILED, State.LOST) and job.reason, job
            raise SchedError(job.reason, hint=_HINT)
        assert job.exit_code == 3, job
        lines = list(queue.logs(number))
        assert [line.text for line in lines] == ["said"] or any(line.dropped for line in lines) or job.reason, (job, lines)
