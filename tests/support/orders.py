"""The jobs of a job file, as they are submitted."""

from __future__ import annotations

from typing import Any

from dockless._jobfiles import order_of
from dockless.sched import JobSpec
from dockless.sched.formats import JobFile


def jobs_of(file: JobFile, what: str, **queue: Any) -> list[JobSpec]:
    """``queue``: instead of what the file says, where not None."""
    return list(order_of(file, what, **queue).jobs)


def job_of(file: JobFile, what: str, **queue: Any) -> JobSpec:
    """Of a file of one job."""
    (job,) = jobs_of(file, what, **queue)
    return job
