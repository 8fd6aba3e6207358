"""``why``: why a job waits."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING
from dockless.cli.job_names import job_number
from dockless.cli.output import out, print_json, span
from dockless.cli.parser import Namespace, Parser

if TYPE_CHECKING:
    from dockless.sched import Awaited, Why

RULES = {
    "resources": "too little is free",
    "reserved": "it would delay a job that comes first, or what is kept is not for it",
    "quota": "its quota is used up, or the rest is kept for a job that comes first",
    "guarantee": "within its guarantee it gets back what others have borrowed",
    "jobs": "the host runs as many jobs without GPUs as it may",
    "order": "others come first",
    "held": "it may not start until it is released",
    "begin": "it may not start before that moment",
    "retry": "it failed or could not start, and tries again after a pause",
    "after": "it may not start until other jobs have ended",
    "singleton": "the jobs of one name run one after the other",
    "array": "as many of its array run, or stand in line, as its limit allows",
}
_ASIDE = ("held", "begin", "retry", "after", "singleton", "array")
"""Rules of jobs that may not start yet."""


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
    aside = found.rule in _ASIDE
    if not found.place and found.state == "PENDING" and not aside:
        out(f"job {found.job} waits: {found.reason.removeprefix('waits ')}")
        return 0
    if not found.place and not aside:
        out(f"job {found.job} does not wait: it is {found.state}{f' ({found.reason})' if found.reason else ''}")
        return 0
    out(f"job {found.job} waits: {found.reason.removeprefix('waits ')}")
    if found.place:
        out(f"place    {found.place} of {found.waiting}")
    out(f"starts   {_starts(found)}")
    if found.rule:
        out(f"rule     {found.rule}: {RULES.get(found.rule, 'a rule of a newer daemon')}")
    if found.ahead:
        out(f"ahead    {', '.join(f'job {one.job} of {one.user}{_gpus(one.gpus)}' for one in found.ahead)}{_more(found)}")
    if found.awaited:
        more = found.awaiting - len(found.awaited)
        out(f"behind   {', '.join(map(_awaited, found.awaited))}{f' and {more} more' if more > 0 else ''}")
    for change in found.sooner:
        out(f"now      {change}")
    for change in found.earlier:
        out(f"sooner   {change}")
    if simulated:
        out("GPUs are simulated.")
    return 0


def _starts(found: Why) -> str:
    if found.starts_in is not None and found.at_latest:
        return f"in {span(found.starts_in)} at the latest, if what runs takes its whole time limit and nothing comes before it"
    if found.starts_in is not None and found.rule in ("begin", "retry"):
        return f"in {span(found.starts_in)} at the earliest, if what it needs is free then"
    if found.starts_in is not None and found.rule in ("after", "singleton"):
        return f"in about {span(found.starts_in)}, if those jobs take their whole time limits and what it needs is free then"
    if found.starts_in is not None:
        return f"in about {span(found.starts_in)}, if every job takes its whole time limit and no other comes before it"
    if found.endless:
        numbers, many = ", ".join(map(str, found.endless)), len(found.endless) > 1
        return f"nobody can say: job{'s' if many else ''} {numbers} {'have' if many else 'has'} no time limit"
    if found.starts_after is not None:
        so_far = f"not in the next {span(found.starts_after)}; " if found.starts_after >= 1 else ""
        return f"{so_far}nothing further is foretold, as too much waits"
    return "nobody can say before it is released" if found.rule == "held" else "nobody can say yet"


def _awaited(one: Awaited) -> str:
    if one.ends_in is None:
        return f"job {one.job} ({one.state})"
    ends = f"ends in about {span(one.ends_in)}" if one.state == "PENDING" else f"ends in {span(one.ends_in)} at the latest"
    return f"job {one.job} ({one.state}, {ends})"


def _gpus(count: int) -> str:
    return f" ({count} GPU{'' if count == 1 else 's'})" if count else ""


def _more(found: Why) -> str:
    left = found.place - 1 - len(found.ahead)
    return f" and {left} more" if left > 0 else ""
