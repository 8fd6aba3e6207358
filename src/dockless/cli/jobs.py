"""The queue: ``submit``, ``queue``, ``wait``, ``cancel``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from dockless.base.records import plain
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.base.units import format_duration, parse_duration, parse_time
from dockless.cli.host import warn_of_outage
from dockless.cli.job_files import file_of, file_options, submit_file, submit_list
from dockless.cli.job_names import find_jobs, job_numbers, jobs_named, spoken_of, together
from dockless.cli.output import age, cut, out, print_csv, print_json, span, table, warn
from dockless.cli.parser import Namespace, Parser, whole
from dockless.cli.sandbox_options import fetched, image_and_command, image_options, keywords, pull_option, sandbox_options
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless._submitting import Order
    from dockless.sched import Client, DaemonInfo, Job
    from dockless.sched.parsing import ArrayCount


def submit_options(parser: Parser) -> None:
    image_options(parser, "dockless submit [options] [IMAGE | FILE] [-- COMMAND …]")
    queue_group(parser, files=True)
    parser.quiet("the job id alone")
    parser.json()
    sandbox_options(parser)


def queue_group(parser: Parser, *, files: bool = False) -> None:
    """What the queue is told of a job. ``files``: which may be one of a file."""
    queue = parser.add_argument_group("the queue")
    queue.add_argument("--name", default="", help="of the job, for listings")
    queue.add_argument("--time-limit", "--time", metavar="TIME", help="2h: it may be fitted in before a job that waits for more")
    queue.add_argument("--priority", type=whole(), default=0, metavar="N", help="higher starts earlier; above 0 for administrators")
    queue.add_argument("--group", default="", help="one of your groups, for listings")
    queue.add_argument(
        "--array",
        type=_array,
        metavar="N[%M]",
        help="N jobs, with DOCKLESS_ARRAY_INDEX 0 to N-1 (also 0-N); at most M run at once",
    )
    queue.add_argument("--retries", type=whole(0), default=0, metavar="N", help="run it again when it failed, N times at most")
    queue.add_argument("--retry-on", action="append", default=[], type=whole(1), metavar="CODE", help="retry after this exit code alone")
    queue.add_argument("--warn", default="", metavar="SIGNAL[@TIME]", help="send it that signal so long before its time limit: USR1@2m")
    queue.add_argument("--hold", action="store_true", help="it waits until it is released")
    queue.add_argument("--begin", metavar="TIME", help="not before: +2h, 2026-01-31T08:00:00Z, 2026-01-31 08:00 (UTC)")
    queue.add_argument(
        "--after", default="", metavar="LIST", help="when these jobs have ended: ok:12,not-ok:13,any:14 (also Slurm's afterok:12)"
    )
    queue.add_argument("--singleton", action="store_true", help="when no older job of yours with this --name is left")
    queue.add_argument(
        "--on-reboot", choices=("fail", "requeue"), default="fail", help="what becomes of it if the host reboots while it runs"
    )
    queue.add_argument("--notify", default="", metavar="EVENTS", help="be told of them: start,end,fail,preempt,idle, or all")
    queue.add_argument("--notify-to", default="", metavar="ADDRESS", help="for mail, instead of your own; in a domain that the host allows")
    queue.add_argument("-t", "--tty", action="store_true", help="with a terminal of its own, see attach")
    queue.add_argument("-i", "--interactive", action="store_true", help="its standard input stays open, see attach")
    if files:
        file_options(queue)
    pull_option(queue)
    queue.add_argument("--wait", action="store_true", help="until it has ended; its exit code is ours")


def submit(options: Namespace) -> int:
    path = file_of(options)
    if options.job_list is not None:
        return submit_list(options)
    if path:
        return submit_file(options, path)
    from dockless._submitting import Order, make_job

    image, command = image_and_command(options, "submit")
    if options.retry_on and not options.retries:
        raise BadInput("--retry-on without --retries", subject="--retry-on", hint="say how often: --retries 3")
    job = make_job(
        image,
        command,
        keywords(options) | {"tty": options.tty, "interactive": options.interactive},
        priority=options.priority,
        time_limit=options.time_limit,
        name=options.name,
        group=options.group,
        on_reboot=options.on_reboot,
    )
    return submit_order(Order((job,), options.array), options)


def submit_order(order: Order, options: Namespace) -> int:
    """Queue it, say the numbers. Of jobs that start together that of the first stands for all."""
    from dockless._pulling import present_for
    from dockless._submitting import queued
    from dockless.base.dataclass import replace
    from dockless.cli.counted import Counted
    from dockless.sched import connect

    def bring(daemon: DaemonInfo, image: str, said: Mapping[str, Any]) -> str:
        return fetched(image, options, partial(present_for, daemon), **said)

    jobs = order.jobs
    if options.best_effort:
        jobs = tuple(replace(job, spec=replace(job.spec, best_effort=True)) for job in jobs)
    if orders := _orders(options):
        jobs = tuple(replace(job, **orders) for job in jobs)
    with Counted(options.quiet) as counted:
        ids, daemon = queued(replace(order, jobs=jobs), bring, warn, partial(counted, "jobs sent"))
    said = ids[:1] if order.together else ids
    if options.json and not options.wait:
        alone = {"id": ids[0]} | ({"ids": ids} if order.together else {})
        print_json(alone if order.array is None and getattr(options, "job_list", None) is None else {"ids": ids})
    elif options.quiet:
        out(*said)
    elif not options.json:
        if daemon.simulated and any(_of_nvidia(job.gpus) for job in jobs):
            warn("the GPUs are simulated: nothing computes on them")
        out(together(ids[0], len(ids)) if order.together or len(ids) == 1 else f"jobs {ids[0]} to {ids[-1]}")
    if not options.wait:
        return 0
    with connect() as queue:
        return wait_jobs(queue, said, None, quiet=True, as_json=options.json)


def _orders(options: Namespace) -> dict[str, Any]:
    """What the command line says of when and how often jobs run and of whom it is told, also for those of a file."""
    from dockless.sched.parsing import parse_after, parse_events, parse_warning

    warning = parse_warning(options.warn)
    after, alone = parse_after(options.after)
    begin = 0.0 if options.begin is None else parse_time(options.begin, "begin")
    found = {"hold": options.hold, "begin": begin, "after": after, "singleton": options.singleton or alone}
    found |= {"retries": options.retries, "retry_on": tuple(options.retry_on)}
    found |= {"warn_signal": warning[0], "warn_before": warning[1]}
    found |= {"notify": parse_events(options.notify) if options.notify else (), "notify_to": options.notify_to}
    return {name: value for name, value in found.items() if value}


def _array(text: str) -> ArrayCount:
    """``parse_array``, for argparse."""
    from dockless.sched.parsing import parse_array

    try:
        return parse_array(text)
    except BadInput as error:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"{error}: {error.hint}") from None


def queue_options(parser: Parser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="these jobs in full, with their attempts")
    parser.add_argument("-a", "--all", action="store_true", help="those that have ended, too, the newest 50")
    parser.add_argument("--user", default="", help="one user's jobs")
    parser.add_argument("--group", default="", help="jobs that were submitted with this --group")
    parser.add_argument("--state", default="", metavar="STATE,…", help="jobs in one of these states: running, failed, oom")
    parser.add_argument("--since", metavar="TIME", help="those that had not ended before, with -a: 7d for seven days ago, 2026-01-31")
    parser.add_argument("--until", metavar="TIME", help="those that were submitted until then")
    parser.add_argument("--limit", type=whole(1), default=0, metavar="N", help="at most so many of each kind")
    parser.add_argument("--events", action="store_true", help="what happened to these jobs, and when")
    parser.add_argument("--csv", action="store_true", help="comma-separated values")
    parser.quiet("ids alone")
    parser.json()


def queue(options: Namespace) -> int:
    from dockless.sched import connect

    numbers = job_numbers(options.ids)
    if options.csv and (options.json or options.quiet):
        raise BadInput("--csv with --json or -q", subject="--csv", hint="give one of them")
    if options.events:
        from dockless.cli.job_events import show_events

        return show_events(options.ids, numbers, options)
    with connect() as client:
        if numbers:
            found, more = jobs_named(client, options.ids, numbers), 0
        else:
            found, more = _listed(client, options)
        daemon = client.ping()
    simulated = {job.id for job in found if daemon.simulated and _of_nvidia(job.gpus)}
    if not options.quiet:
        warn_of_outage(daemon)
    if options.quiet:
        for job in found:
            out(job.id)
    elif options.json:
        print_json([job.as_dict() | {"simulated": job.id in simulated} for job in found])
    elif options.csv:
        print_csv(_COLUMNS, [_cells(job) for job in found])
    elif options.ids:
        for job in found:
            _detail(job, job.id in simulated)
    else:
        print_queue(found, bool(simulated))
    if not found:
        _warn_of_strangers(options.user)
    if more:
        warn(f"{more} more {'job is' if more == 1 else 'jobs are'} not listed", hint="a higher --limit shows them")
    return 0


def _listed(client: Client, options: Namespace) -> tuple[list[Job], int]:
    """The jobs, and how many more there are. Who asks for ended ones by their state gets them."""
    from dockless.cli.logs import moment
    from dockless.sched.jobs import ENDED, State

    words = [word for word in options.state.split(",") if word]
    states = [word.upper() for word in words]
    for word in words:
        if word.upper() not in [*State]:
            raise BadInput(f"{word[:40]!r} is no state of a job", subject="--state", hint=f"write some of {', '.join(State).lower()}")
    since, until = (None if text is None else moment(text, what) for text, what in ((options.since, "--since"), (options.until, "--until")))
    if since is not None and until is not None and until < since:
        raise BadInput("--until is before --since", subject="--until", hint="give the earlier time as --since")
    ended = options.all or not ENDED.isdisjoint(states)
    listed = client.queue(
        ended=ended, user=options.user, group=options.group, states=states, since=since, until=until,
        limit=options.limit or (50 if ended else 0),
    )  # fmt: skip
    return list(listed), listed.more


def _warn_of_strangers(user: str) -> None:
    """Who asks for the jobs of a user that this host does not have may have misspelt the name; of one who is gone they would be listed."""
    if not user:
        return
    from dockless.base.settings_told import is_known

    if not is_known("user", user):
        warn(f"this host has no user {user[:40]!r}, and the queue no job of such a user")


_COLUMNS = (
    "id", "user", "group", "state", "name", "image", "command", "gpus", "priority", "time_limit", "submitted", "started", "ended",
    "exit_code", "attempt", "array", "index", "reason",
)  # fmt: skip


def _cells(job: Job) -> list[object]:
    """Of ``_COLUMNS``: GPUs as their number, times in seconds since 1970; empty where there is none."""
    shown = {name: getattr(job, name) for name in _COLUMNS} | {"gpus": job.gpu_count}
    if not job.array:
        shown["array"] = shown["index"] = ""
    return [("" if name in ("started", "ended") and not value else value) for name, value in shown.items()]


def print_queue(jobs: list[Job], simulated: bool) -> None:
    """The table of ``dockless queue``."""
    rows = [
        (
            job.id,
            job.user,
            job.state,
            job.gpu_count or "",
            job.priority or "",
            _time(job),
            job.place or "",
            _starts(job),
            cut(_role(job) + (job.name or job.command or job.image), 28),
            _why(job),
        )
        for job in jobs
    ]
    table(("ID", "USER", "STATE", "GPUS", "PRIO", "TIME", "PLACE", "STARTS", "JOB", "REASON"), rows)
    if simulated:
        out("GPUs are simulated.")


def _role(job: Job) -> str:
    return f"{job.options.role} {job.options.role_index}: " if job.gang else ""


def _starts(job: Job) -> str:
    if job.starts_in is not None:
        return span(job.starts_in)
    return "" if job.starts_after is None else f">{span(job.starts_after)}" if job.starts_after >= 1 else "later"


def _time(job: Job) -> str:
    """How long it has waited, or did before it was cancelled; runs, or ran."""
    since = job.started or job.submitted
    return span(job.ended - since) if job.ended else age(since)


def _why(job: Job) -> str:
    return job.reason or ("" if job.exit_code in (None, 0) else f"exit {job.exit_code}")


def _detail(job: Job, simulated: bool) -> None:
    note = " (simulated)" if simulated else ""
    facts: list[tuple[str, Any]] = [
        ("job", job.id),
        ("state", f"{job.state}{', ' + job.reason if job.reason else ''}"),
        ("name", job.name),
        ("role", _role(job).removesuffix(": ") + (f", starts together with job {job.gang}" if job.options.members > 1 else "")),
        ("user", f"{job.user} ({job.uid}){', group ' + job.group if job.group else ''}"),
        ("image", job.image),
        ("command", job.command),
        ("gpus", f"{_gpus(job)}{note}: {', '.join(job.devices) or 'none yet'}" if job.gpus else ""),
        ("time limit", format_duration(job.time_limit) if job.time_limit else ""),
        ("priority", job.priority or ""),
        ("submitted", f"{age(job.submitted)} ago"),
        ("exit code", "" if job.exit_code is None else job.exit_code),
    ]
    for name, value in facts:
        if value != "":
            out(f"{name:<12}{value}")
    for attempt in job.attempts:
        length = f", {span(attempt.ended - attempt.started)}" if attempt.ended and attempt.started else ""
        reason = f", {attempt.reason}" if attempt.reason else ""
        out(f"{'attempt':<12}{attempt.number}: {attempt.state}, sandbox {attempt.sandbox}{length}{reason}")
        for error in attempt.gpu_errors:
            out(f"{'':<12}{error}")
    out("")


def _of_nvidia(gpus: str) -> bool:
    """Whether a job asked for GPUs that can be simulated: not for other devices, nor for none."""
    if not gpus:
        return False
    from dockless.sandbox.gpus.request import parse_request

    try:
        return not parse_request(gpus).of_devices
    except BadInput:
        return False


def _gpus(job: Job) -> str:
    """What it asked for, and how many that are where the words do not say so; as it stands where a daemon of another version knows more."""
    from dockless.sandbox.gpus.request import ALL, parse_request

    try:
        asked = parse_request(job.gpus)
    except BadInput:
        return job.gpus
    return f"{asked} = {job.gpu_count}" if asked.devices or asked.count == ALL else f"{asked}"


def wait_options(parser: Parser) -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help="jobs (numbers) or detached sandboxes")
    parser.add_argument("--timeout", metavar="TIME", help="give up after that (exit code 124); they go on")
    parser.add_argument("--condition", choices=("ended", "healthy"), default="ended", help="wait for their end (default), or until healthy")
    parser.quiet("say nothing; the exit code tells")
    parser.json()


def wait(options: Namespace) -> int:
    timeout = None if options.timeout is None else parse_duration(options.timeout, "timeout")
    found = find_jobs(options.ids)
    numbers = [number for number in found if number is not None]
    names = [name for name, number in zip(options.ids, found, strict=True) if number is None]
    if numbers and names:
        raise BadInput("jobs and sandboxes together", subject=names[0], hint="wait for them one after the other")
    if numbers and options.condition == "healthy":
        raise BadInput("jobs have no --condition", subject="--condition", hint="give the sandbox that dockless queue JOB names")
    if names:
        return (_wait_healthy if options.condition == "healthy" else _wait_boxes)(names, timeout, options)
    from dockless.sched import connect

    with connect() as queue:
        return wait_jobs(queue, numbers, timeout, quiet=options.quiet, as_json=options.json)


def wait_jobs(queue: Client, ids: list[int], timeout: float | None, *, quiet: bool, as_json: bool) -> int:
    """The exit code of the first job that did not end well; 1 where it has none."""
    jobs = queue.wait_many(ids, timeout=timeout)
    if as_json:
        print_json([job.as_dict() for job in jobs])
    for job in jobs:
        if not quiet and not as_json:
            out(f"job {job.id}: {job.state}{', ' + job.reason if job.reason else ''}")
        elif quiet and not as_json and job.state != "COMPLETED":
            warn(f"job {job.id}: {job.state}{', ' + job.reason if job.reason else ''}")
    return next((job.exit_code or 1 for job in jobs if job.state != "COMPLETED"), 0)


def _wait_boxes(names: list[str], timeout: float | None, options: Namespace) -> int:
    import time

    from dockless._life import described
    from dockless.sandbox.run.box import get

    deadline = None if timeout is None else time.monotonic() + timeout
    code = 0
    rows = []
    for name in names:
        box = get(name)
        try:
            ended = box.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise TimeoutError(f"sandbox {name} still runs after {timeout} s") from None
        code = code or ended.exit_code
        rows.append(described(box) or {"id": name, "exit_code": ended.exit_code, "exit": plain(ended)})  # its keeper has removed it
        if not options.quiet and not options.json:
            out(f"{name}: exit code {ended.exit_code}")
    if options.json:
        print_json(rows)
    return code


def _wait_healthy(names: list[str], timeout: float | None, options: Namespace) -> int:
    import time

    from dockless.sandbox.run.box import get
    from dockless.sandbox.run.health import HealthWatch

    deadline = None if timeout is None else time.monotonic() + timeout
    rows = []
    for name in names:
        with HealthWatch(get(name)) as watch:
            try:
                found = watch.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise watch.late(timeout) from None
        rows.append({"id": name, **plain(found)})
        if not options.quiet and not options.json:
            out(f"{name}: {found.status}")
    if options.json:
        print_json(rows)
    return 0


def cancel_options(parser: Parser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="jobs of `dockless queue`")
    parser.add_argument("--mine", action="store_true", help="all of mine, waiting and running")
    parser.add_argument("--grace", metavar="TIME", help="between the stop signal and the kill (default: 10s)")
    parser.quiet("say nothing")
    parser.json()


def cancel(options: Namespace) -> int:
    from dockless.sched import connect

    if bool(options.ids) == options.mine:
        raise BadInput("which jobs?", hint="dockless cancel ID …, or --mine")
    numbers = job_numbers(options.ids)
    grace = None if options.grace is None else parse_duration(options.grace, "grace")
    with connect() as queue:
        # of those that start together the first stands for all
        ids = numbers or [job.id for job in queue.queue(user=queue.ping().user, limit=0) if job.gang in (0, job.id)]
        jobs = queue.cancel_many(ids, grace=grace)
    if options.json:
        print_json([job.as_dict() for job in jobs])
    elif not options.quiet:
        lines = []
        for job in jobs:
            alone = job.id != job.gang and (job.started or not job.state.ended)  # of those that wait one ends all
            who = f"job {job.id}" if alone else spoken_of(job)
            lines.append(f"{who}: {job.state if job.state.ended else 'ending'}{', ' + job.reason if job.reason else ''}")
        out(*dict.fromkeys(lines))
    return 0
