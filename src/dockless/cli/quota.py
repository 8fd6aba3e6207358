"""``quota``: what users and groups have of the host, and may have."""

from __future__ import annotations

from dockless.cli.output import out, print_json, table
from dockless.cli.parser import Namespace, Parser


def quota_options(parser: Parser) -> None:
    parser.usage = "dockless quota show"
    parser.add_argument("action", choices=("show",), help="who has what, and may have: the settings are those of [quota]")
    parser.json()


def quota(options: Namespace) -> int:
    """Of all who have a quota, or a job."""
    from dockless.sched import connect

    with connect() as queue:
        found = queue.quotas()
    if options.json:
        print_json([one.as_dict() for one in found])
    elif not found:
        out("No quotas are set, and nobody has a job.")
    else:
        rows = [
            (
                *(f"{one.kind} {one.name}", _of(one.gpus, one.limit), _shown(one.guarantee), _shown(one.weight)),
                *(_of(one.running, one.jobs), _of(one.running_without_gpus, one.cpu_jobs), one.waiting),
            )
            for one in found
        ]
        table(("QUOTA", "GPUS", "GUARANTEE", "WEIGHT", "JOBS", "WITHOUT GPUS", "WAITING"), rows)
    return 0


def _of(used: int, limit: int | None) -> str:
    return str(used) if limit is None else f"{used} of {limit}"


def _shown(value: int | None) -> str:
    return "-" if value is None else str(value)
