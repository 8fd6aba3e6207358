"""``top`` without a sandbox: GPUs, jobs and users, again and again."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING
from dockless.base.units import format_size, parse_duration
from dockless.cli.output import age, cut, out, print_json, span, table
from dockless.cli.parser import Namespace
from dockless.errors import DaemonUnavailable, GpuDriverMissing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from dockless.sched import GpuInfo
    from dockless.sched.wire.top import GpuShare, GpuUse, JobUse, Top, UserUse

    Table = tuple[Sequence[str], list[tuple[object, ...]]]


def overview(options: Namespace) -> int:
    """Live on a terminal, else once."""
    import sys

    every = parse_duration(options.interval, "--interval")
    if options.json:
        print_json(look().as_dict())
    elif options.once or sys.stdout is None or not sys.stdout.isatty():
        print_lines(look())
    else:
        from dockless.cli.live import show

        show(look, max(every, 1.0))
    return 0


def look() -> Top:
    """By the daemon, else what the host itself says."""
    from dockless.sched import connect

    try:
        with connect() as queue:
            return queue.top()
    except DaemonUnavailable as error:
        return without_daemon(str(error))


def without_daemon(problem: str) -> Top:
    """The GPUs, and whose they are. ``problem``: why no daemon is asked."""
    import time
    from collections import Counter

    from dockless.sandbox.gpus import gpu, handed_out, lease
    from dockless.sandbox.gpus.watch import Reading, readings
    from dockless.sched.wire.top import GpuProgram, GpuUse, Top, UserUse

    units: tuple[gpu.Gpu, ...] = ()
    found: tuple[Reading, ...] = ()
    try:
        with gpu.session() as nvml:
            units = gpu.units(gpu.inventory(links=False))
            found = tuple(readings(nvml, [unit.uuid for unit in units]))
    except GpuDriverMissing as missing:
        problem = f"{problem}; {missing}"
    devices = handed_out.beside(units)
    units, found = lease.told(units + devices), found + tuple(Reading(unit.uuid) for unit in devices)
    held, parts = lease.users([unit.uuid for unit in units]), shares([unit.uuid for unit in units])
    gpus = tuple(
        GpuUse(
            unit.index,
            unit.uuid,
            unit.model,
            unit.memory,
            unit.simulated,
            user=held.get(unit.uuid, ""),
            outside=bool(unit.used_by) or unit.uuid in held,
            trouble=unit.trouble,
            busy=reading.busy,
            used=reading.used,
            temperature=reading.temperature,
            power=reading.power,
            programs=tuple(GpuProgram(process.pid, memory=process.memory) for process in unit.processes),
            shares=parts.get(unit.uuid, ()),
            ecc_corrected=reading.ecc_corrected,
            ecc_uncorrected=reading.ecc_uncorrected,
        )
        for unit, reading in zip(units, found, strict=True)
    )
    having = Counter(user for gpu in gpus for user in {share.user for share in gpu.shares} or {gpu.user} if user)
    users = tuple(UserUse(user, gpus=count) for user, count in having.most_common())
    return Top(time.time(), gpus, users=users, gpu_error=problem)


def shares(uuids: Collection[str]) -> dict[str, tuple[GpuShare, ...]]:
    """Of those of these GPUs that are shared, as everybody may see them."""
    from dockless.base.idmaps import user_name
    from dockless.sandbox.gpus import lease
    from dockless.sched.wire.top import GpuShare

    found: dict[str, tuple[GpuShare, ...]] = {}
    for one in lease.shares(uuids) if uuids else ():
        found[one.uuid] = (*found.get(one.uuid, ()), GpuShare(user_name(one.uid) or str(one.uid), one.memory << 20))
    return found


def print_lines(top: Top) -> None:
    """Tables of what there is."""
    out(headline(top))
    tables = (gpu_table(top.gpus), job_table(top.jobs), user_table(top.users))
    for heads, rows in tables:
        if rows:
            out("")
            table(heads, rows)
    notes = [*remarks(top)]
    if notes:
        out("", *notes)


def headline(top: Top) -> str:
    free = sum(1 for gpu in top.gpus if holder(gpu) == "free")
    gpus = f"{free} of {len(top.gpus)} GPUs free" if top.gpus else "no GPUs"
    asked = f", {top.cores_used:g} of {top.cores:g} cores" if top.cores_used else ""
    asked += f", {format_size(top.memory_used)} of {format_size(top.memory)} memory" if top.memory_used else ""
    return f"{gpus}{asked}, {top.running} {'job' if top.running == 1 else 'jobs'} running, {top.waiting} waiting"


def holder(gpu: GpuUse | GpuInfo) -> str:
    """Who or what has it, in words."""
    if gpu.shares:
        return f"{len(gpu.shares)} share{'s' if len(gpu.shares) > 1 else ''}, {format_size(sum(share.memory for share in gpu.shares))}"
    if gpu.job:
        return f"job {gpu.job}"
    if gpu.user:  # a sandbox of hers, or anything else that has bound the name
        return f"a process of {gpu.user}"
    return "out of service" if gpu.trouble else "in use outside" if gpu.outside else "free"


def users_of(gpu: GpuUse | GpuInfo) -> str:
    return ", ".join(sorted({share.user for share in gpu.shares})) or gpu.user


def size_of(gpu: GpuUse | GpuInfo) -> str:
    """Of its memory, empty where nobody tells it."""
    return format_size(gpu.memory) if gpu.memory else ""


def gpu_table(gpus: Iterable[GpuUse]) -> Table:
    rows: list[tuple[object, ...]] = [
        (
            *(gpu.index, gpu.model, share(gpu.busy), memory(gpu.used, gpu.memory), _unit(gpu.temperature, "°C"), _unit(gpu.power, "W")),
            *(holder(gpu), users_of(gpu), age(gpu.since)),
        )
        for gpu in gpus
    ]
    return ("GPU", "MODEL", "BUSY", "MEMORY", "TEMP", "POWER", "HOLDER", "USER", "SINCE"), rows


def job_table(jobs: Iterable[JobUse]) -> Table:
    rows: list[tuple[object, ...]] = [
        (
            *(job.job, job.user, ",".join(map(str, job.gpus)), share(job.busy), memory(job.used, job.share), age(job.started)),
            *(span(job.time_limit) if job.time_limit else "", cut(job.name, 40)),
        )
        for job in jobs
    ]
    return ("JOB", "USER", "GPUS", "BUSY", "MEMORY", "TIME", "LIMIT", "NAME"), rows


def user_table(users: Iterable[UserUse]) -> Table:
    rows: list[tuple[object, ...]] = [
        (
            *(one.user, one.gpus or "", one.running or "", one.waiting or ""),
            *(f"job {one.next}" if one.next else "", one.place or "", "" if one.starts_in is None else f"in {span(one.starts_in)}"),
        )
        for one in users
    ]
    return ("USER", "GPUS", "RUNNING", "WAITING", "NEXT", "PLACE", "STARTS"), rows


def remarks(top: Top) -> Iterable[str]:
    """What does not fit in a table."""
    for gpu in top.gpus:
        if gpu.trouble:
            yield f"GPU {gpu.index} is out of service: {gpu.trouble}."
        jobs = {one.job for one in gpu.shares} or {gpu.job}
        strangers = [one for one in gpu.programs if one.job not in jobs - {0}] if not gpu.user or 0 not in jobs else []
        for one in strangers:
            whose, size = f" of {one.user}" if one.user else "", "" if one.memory is None else f", {format_size(one.memory)} of its memory"
            yield f"GPU {gpu.index} is used by process {one.pid}{whose}, which has no lease{size}."
    if top.more_jobs or top.more_users:
        yield f"Not shown: {top.more_jobs} more jobs, {top.more_users} more users."
    if top.gpu_error:
        yield f"{top.gpu_error}."
    if any(gpu.simulated for gpu in top.gpus):
        yield "GPUs are simulated."


def share(busy: float | None) -> str:
    return "" if busy is None else f"{busy * 100:.0f} %"


def memory(used: int | None, whole: int = 0) -> str:
    if used is None:
        return ""
    return f"{format_size(used)} of {format_size(whole)}" if whole else format_size(used)


def _unit(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f} {unit}"
