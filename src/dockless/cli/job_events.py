"""``queue ID … --events``: what happened to jobs, and when."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dockless.cli.job_names import jobs_named
from dockless.cli.output import print_csv, print_json, table
from dockless.cli.parser import Namespace
from dockless.errors import BadInput

_COLUMNS = ("job", "at", "event", "attempt", "detail")


def show_events(names: Sequence[str], numbers: Sequence[int], options: Namespace) -> int:
    """Of each of the jobs with these names and numbers, in the order asked for."""
    from dockless.sched import connect

    if not numbers:
        raise BadInput("of which jobs?", subject="--events", hint="dockless queue ID … --events")
    if options.quiet:
        raise BadInput("--events with -q", subject="--events", hint="give one of them")
    with connect() as client:
        found = [(job.id, event) for job in jobs_named(client, names, numbers) for event in client.events(job.id)]
    if options.json:
        print_json([{"job": number} | event.as_dict() for number, event in found])
    elif options.csv:
        print_csv(_COLUMNS, [(number, one.at, one.event, one.attempt or "", one.detail) for number, one in found])
    else:
        rows = [(number, _utc(one.at), one.event, one.attempt or "", one.detail) for number, one in found]
        table(("JOB", "TIME", "EVENT", "ATTEMPT", "DETAIL"), rows)
    return 0


def _utc(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
