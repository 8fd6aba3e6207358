"""What becomes of jobs in the queue: ``hold``, ``release``, ``requeue``."""

from __future__ import annotations

from collections.abc import Callable

from dockless.base.typing import TYPE_CHECKING
from dockless.base.units import parse_duration
from dockless.cli.job_names import job_numbers, spoken_of
from dockless.cli.output import out, print_json
from dockless.cli.parser import Namespace, Parser

if TYPE_CHECKING:
    from dockless.sched import Client, Job


def hold_options(parser: Parser) -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help="jobs that wait")
    parser.quiet("say nothing")
    parser.json()


release_options = hold_options


def hold(options: Namespace) -> int:
    return _each(options, lambda queue, ids: queue.hold(ids))


def release(options: Namespace) -> int:
    return _each(options, lambda queue, ids: queue.release(ids))


def requeue_options(parser: Parser) -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help="jobs that run, or have ended")
    parser.add_argument("--grace", metavar="TIME", help="between the stop signal and the kill (default: 10s)")
    parser.quiet("say nothing")
    parser.json()


def requeue(options: Namespace) -> int:
    grace = None if options.grace is None else parse_duration(options.grace, "grace")
    return _each(options, lambda queue, ids: queue.requeue(ids, grace=grace))


def _each(options: Namespace, order: Callable[[Client, list[int]], list[Job]]) -> int:
    from dockless.sched import connect

    numbers = job_numbers(options.ids)
    with connect() as queue:
        jobs = order(queue, numbers)
    if options.json:
        print_json([job.as_dict() for job in jobs])
    elif not options.quiet:
        for number, job in zip(numbers, jobs, strict=True):
            same = number == job.id or 0 <= number - job.gang < job.options.members
            again = "" if same else f"job {number} is submitted again: "
            out(f"{again}{spoken_of(job)}: {job.state}{', ' + job.reason if job.reason else ''}")
    return 0
