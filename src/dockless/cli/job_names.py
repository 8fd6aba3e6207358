"""Jobs as the command line names them: ``7``, or ``7_2``, the third of the array 7 or of those that start together with job 7."""

from __future__ import annotations

from collections.abc import Sequence

from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadInput, NotPermitted, UnknownJob
from dockless.sandbox.names import job_of

if TYPE_CHECKING:
    from dockless.sched import Client, Job


def find_jobs(names: Sequence[str]) -> list[int | None]:
    """The numbers of the jobs of these names, None for a sandbox's. ``UnknownJob``, ``NotPermitted`` for ``7_2`` where there is none. The
    daemon is asked about such names alone."""
    numbers = [job_of(name) for name in names]
    places = [(name, number) for name, number in zip(names, numbers, strict=True) if number is not None and "_" in name]
    if places:
        from dockless.sched import connect

        with connect() as client:
            for name, number in places:
                _check_place(client, name, number)
    return numbers


def find_job(name: str) -> int | None:
    """The same of one."""
    return find_jobs([name])[0]


def job_numbers(names: Sequence[str]) -> list[int]:
    """The same of names that are jobs'. ``BadInput``"""
    for name in names:
        if job_of(name) is None:
            hint = "dockless queue lists the jobs; sandboxes have names: dockless ps, dockless stop NAME"
            raise BadInput(f"{name[:60]!r} is not the number of a job", subject=name[:80], hint=hint)
    return [number for number in find_jobs(names) if number is not None]


def job_number(name: str) -> int:
    """The same of one."""
    return job_numbers([name])[0]


def jobs_named(client: Client, names: Sequence[str], numbers: Sequence[int]) -> list[Job]:
    """The jobs that ``job_numbers`` found for ``names``; for the first of those that start together, named by its number, all of them."""
    found = []
    for name, number in zip(names, numbers, strict=True):
        job = client.job(number)
        count = job.options.members if job.gang == job.id and "_" not in name else 1
        found += [job, *(client.job(job.id + index) for index in range(1, count))]
    return found


def spoken_of(job: Job) -> str:
    """``job 7``; of jobs that start together all of them."""
    return together(job.gang, job.options.members) if job.gang else f"job {job.id}"


def together(first: int, count: int) -> str:
    """So many that start together."""
    return f"job {first}" + (f" ({first} to {first + count - 1}, which start together)" if count > 1 else "")


def _check_place(client: Client, name: str, number: int) -> None:
    """The number is reckoned from the first one's, so it may be that of any other job."""
    first, _, index = name.partition("_")
    if not _is_there(client, int(first), int(index), number):
        array = client.job(int(first)).array
        last = _last(client, array) if array == int(first) else 0
        hint = (
            f"there are {first}_0 to {first}_{last}" if last else f"job {first} is the first of none: `dockless queue --all` lists the jobs"
        )
        raise UnknownJob(f"there is no job {name}", subject=name, hint=hint)


def _is_there(client: Client, first: int, index: int, number: int) -> bool:
    try:
        found = client.job(number)
    except (UnknownJob, NotPermitted):
        return False
    return (found.array, found.index) == (first, index)


def _last(client: Client, first: int) -> int:
    """The last place of those that were submitted together, by a few questions."""
    there, beyond = 0, 1
    while _is_there(client, first, beyond, first + beyond):
        there, beyond = beyond, 2 * beyond
    while beyond - there > 1:
        middle = (there + beyond) // 2
        if _is_there(client, first, middle, first + middle):
            there = middle
        else:
            beyond = middle
    return there
