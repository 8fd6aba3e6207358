"""``why``: why a job waits."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING
from dockless.cli.job_names import job_number
from dockless.cli.output import out, print_json, span
from dockless.cli.parser import Namespace, Parser

if TYPE_CHECKING:
    from dockless.sched import Why

RULES = {
    "resources": "too little is free",
    "reserved": "it would delay a job that comes first, or what is kept is not for it",
    "quota": "its quota is used up, or the rest is kept for a job that comes first",
    "guarantee": "within its guarantee it gets back what others have borrowed",
    "jobs": "the host runs as many jobs without GPUs as it may",
    "order": "others come first",
}


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
    out(f"starts   {_starts(found)}")
    if found.rule:
        out(f"rule     {found.rule}: {RULES.get(found.rule, 'a rule of a newer daemon')}")
    if found.ahead:
        out(f"ahead    {', '.join(f'job {one.job} of {one.user}{_gpus(one.gpus)}' for one in found.ahead)}{_more(found)}")
    for change in found.sooner:
        out(f"now      {change}")
    if simulated:
        out("GPUs are simulated.")
    return 0


def _starts(found: Why) -> str:
    if found.starts_in is not None and found.at_latest:
        return f"in {span(found.starts_in)} at the latest, if what runs takes its whole time limit and nothing comes before it"
    if found.starts_in is not None:
        return f"in about {span(found.starts_in)}, if every job takes its whole time limit and no other comes before it"
    if found.endless:
        numbers, many = ", ".join(map(str, found.endless)), len(found.endless) > 1
        return f"nobody can say: job{'s' if many else ''} {numbers} {'have' if many else 'has'} no time limit"
    return "nobody can say yet"


def _gpus(count: int) -> str:
    return f" ({count} GPU{'' if count == 1 else 's'})" if count else ""


def _more(found: Why) -> str:
    left = found.place - 1 - len(found.ahead)
    return f" and {left} more" if left > 0 else ""
