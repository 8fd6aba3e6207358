"""``usage``: GPU time, by user, group, model of GPU, or by day, week, month."""

from __future__ import annotations

from dockless.cli.output import print_csv, print_json, table
from dockless.cli.parser import Namespace, Parser
from dockless.errors import BadInput

_BY = ("user", "group", "gpu", "day", "week", "month")


def usage_options(parser: Parser) -> None:
    parser.add_argument(
        "--since",
        default="30d",
        metavar="TIME",
        help="from that day on: 7d for seven days ago (default: 30d), 2026-01-31, seconds since 1970",
    )
    parser.add_argument("--until", metavar="TIME", help="to the end of that day (default: today)")
    parser.add_argument("--by", choices=_BY, default="user", help="one line for each (default: user)")
    parser.add_argument("--csv", action="store_true", help="comma-separated values")
    parser.json()


def usage(options: Namespace) -> int:
    from dockless.base.records import plain
    from dockless.cli.logs import moment
    from dockless.sched import connect

    if options.csv and options.json:
        raise BadInput("--csv and --json together", subject="--csv", hint="give one of them")
    since = moment(options.since, "--since")
    until = None if options.until is None else moment(options.until, "--until")
    if until is not None and until < since:
        raise BadInput("--until is before --since", subject="--until", hint="give the earlier day as --since")
    with connect() as queue:
        found = queue.usage(since=since, until=until, by=options.by)
    if options.json:
        print_json([plain(used) for used in found])
    elif options.csv:
        values = [(used.key, used.gpu_seconds, used.cpu_seconds, used.jobs, used.attempts, used.outside_seconds) for used in found]
        print_csv((options.by, "gpu_seconds", "cpu_seconds", "jobs", "attempts", "outside_seconds"), values)
    else:
        rows = [
            (
                *(used.key or "-", f"{used.gpu_seconds / 3600:.2f}", f"{used.outside_seconds / 3600:.2f}"),
                *(f"{used.cpu_seconds / 3600:.2f}", used.jobs, used.attempts),
            )
            for used in found
        ]
        table((options.by.upper(), "GPU-HOURS", "OUTSIDE", "CPU-JOB-HOURS", "JOBS", "ATTEMPTS"), rows)
    return 0
