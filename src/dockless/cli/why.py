"""``why``: why a job waits."""

from __future__ import annotations

from dockless.cli.job_names import job_number
from dockless.cli.output import out, print_json, span
from dockless.cli.parser import Namespace, Parser


def why_options(parser: Parser) -> None:
    parser.add_argument("id", metavar="JOB")
    parser.json()


def why(options: Namespace) -> int:
    from dockless.sched import connect

    number = job_number(options.id)
    with connect() as queue:
        found = queue.why(number)
        simulated = queue.ping().simulated
    if options.json:
        print_json(found.as_dict() | {"simulated": simulated})
        return 0
    if not found.place and found.state == "PENDING":
        out(f"job {found.job} waits: {found.reason.removeprefix('waits ')}")
        return 0
    if not found.place:
        out(f"job {found.job} does not wait: it is {found.state}{f' ({found.reason})' if found.reason else ''}")
        return 0
    out(f"job {found.job} waits: {found.reason}", f"place    {found.place} of {found.waiting}")
    if found.starts_in is None:
        out("starts   nobody can say yet")
    else:
        out(f"starts   in {span(found.starts_in)} at the latest, if what runs takes its whole time limit and nothing comes before it")
    for change in found.sooner:
        out(f"now      {change}")
    if simulated:
        out("GPUs are simulated.")
    return 0
