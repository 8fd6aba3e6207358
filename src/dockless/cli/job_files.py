"""``submit FILE``, ``submit --from FILE`` and ``convert``: job files of several formats."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.output import out, print_json, warn
from dockless.cli.parser import Namespace, Parser
from dockless.cli.sandbox_options import GROUPS
from dockless.errors import BadInput, DocklessError

if TYPE_CHECKING:
    from dockless.sched.formats import JobFile

_FORMATS = ("dockless", "openpai", "openpai-2", "dlc", "compose", "sbatch")


def file_options(group: Any) -> None:
    """Those of ``submit``, beside a file in the place of the image."""
    group.add_argument("--format", choices=_FORMATS, help="of the file that is submitted (default: as it looks)")
    group.add_argument("--dlc", metavar="FILE", help="submit this parameter file of Alibaba's DLC")
    group.add_argument(
        "--from", dest="job_list", metavar="FILE", help="submit a job for each line, JSON, all or none; - for standard input"
    )


def file_of(options: Namespace) -> str:
    """The file that is submitted, "" where a command is."""
    if options.dlc is not None and options.job_list is not None:
        raise BadInput("--dlc and --from both name a file", subject="--from", hint="submit them one after the other")
    if options.dlc is not None:
        if options.image or options.format not in (None, "dlc"):
            raise BadInput("--dlc names the file, and says its format", subject="--dlc", hint="dockless submit --dlc FILE")
        return str(options.dlc)
    if options.job_list is not None and (options.image or options.format):
        raise BadInput("--from names the file, and says its format", subject="--from", hint="dockless submit --from FILE")
    if len(options.image) != 1:
        if len(options.image) > 1 and (options.format or _is_file(options.image[0])):
            hint = "submit them one after the other; arguments of a batch script stand behind --"
            raise BadInput(f"{options.image[1][:60]!r} stands beside a job file", subject=options.image[1][:80], hint=hint)
        if options.format:
            raise BadInput("--format without a file", subject="--format", hint="dockless submit --format compose FILE")
        return ""
    from dockless._jobfiles import is_job_file, refuse_missing

    name: str = options.image[0]
    if options.format or is_job_file(name):
        return name
    refuse_missing(name)
    return ""


def _is_file(name: str) -> bool:
    from dockless._jobfiles import is_job_file

    return is_job_file(name)


def submit_file(options: Namespace, path: str) -> int:
    """A job of a file of any format, or several that start together."""
    from dockless._jobfiles import order_of
    from dockless.cli.jobs import submit_order

    _refuse_beside(options, (), "it")
    file = _read(path, options)
    order = order_of(
        file,
        path,
        array=options.array,
        name=options.name or None,
        group=options.group or None,
        priority=options.priority or None,
        time_limit=options.time_limit,
        on_reboot=options.on_reboot if options.on_reboot != "fail" else None,
    )
    return submit_order(order, options)


def submit_list(options: Namespace) -> int:
    """Many jobs in one transaction."""
    if options.array is not None:
        hint = "submit the array alone, or write its jobs out as lines"
        raise BadInput("--array beside a list of jobs", subject="--array", hint=hint)
    _refuse_beside(options, ("name", "group", "priority", "time_limit", "on_reboot"), "each line")
    if options.command:
        raise BadInput("a command stands beside --from", subject="--from", hint="each line has its own")
    from functools import partial

    from dockless._jobfiles import jobs_of_list, name_lines
    from dockless._submitting import Order
    from dockless.cli.counted import Counted
    from dockless.cli.jobs import submit_order

    with Counted(options.quiet) as counted:
        jobs = jobs_of_list(options.job_list, partial(counted, "lines read"))
    try:
        return submit_order(Order(tuple(jobs)), options)
    except DocklessError as error:
        name_lines(error, options.job_list)
        raise


def _refuse_beside(options: Namespace, more: tuple[str, ...], where: str) -> None:
    """``BadInput`` for an option that the file says itself: all but what is so anyway, and how strictly this host is to be."""
    rows = [row for _, _, group in GROUPS for row in group if row.keyword not in ("", "best_effort")]
    given = [row.flags.split()[-1] for row in rows if getattr(options, row.place) != row.absent]
    given += [f"--{name}" for name in ("tty", "interactive") if getattr(options, name)]
    given += [f"--{name.replace('_', '-')}" for name in more if getattr(options, name) not in (None, "", 0, "fail")]
    if given:
        hint = f"write it into {where}; dockless convert FILE prints a job in dockless's own form"
        raise BadInput(f"{given[0]} beside a job file", subject=given[0], hint=hint)


def _read(path: str, options: Namespace) -> JobFile:
    from dockless._jobfiles import read_job_file

    file = read_job_file(path, format="dlc" if getattr(options, "dlc", None) else options.format or "", arguments=options.command or ())
    if not options.quiet:
        for note in file.notes:
            warn(note)
    return file


def convert_options(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="OpenPAI, DLC, Compose, #SBATCH or dockless's own; - for standard input")
    parser.add_argument("--format", choices=_FORMATS, help="of the file (default: as it looks)")
    parser.quiet("without notes on what has no effect")
    parser.json()


def convert(options: Namespace) -> int:
    from dockless.sched.formats.own import document, toml

    file = _read(options.file, options)
    if file.source is not None:
        file.source.refuse()
    if options.json:
        print_json(document(file), indent=2)
    else:
        out(*toml(document(file)).removesuffix("\n").split("\n"))
    return 0
