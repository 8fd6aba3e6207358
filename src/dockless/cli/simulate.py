"""``simulate``: what the scheduler would do with the jobs of a trace."""

from __future__ import annotations

import sys

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.output import out, print_json, span, status, table, warn
from dockless.cli.parser import Namespace, Parser, whole
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless.sched.policy.replay import Replay, TraceJob, Wait
    from dockless.sched.policy.state import QueueState
    from dockless.sched.traces import Trace

_USERS = 20
"""Users in the table; JSON has all."""
_LARGEST = 2 << 30
"""Bytes of a trace."""
_GPUS = 4096


def simulate_options(parser: Parser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="a file of jobs: CSV, SWF, or what queue --all --json prints; - for standard input")
    parser.add_argument("--gpus", type=whole(1), metavar="N", help="of the host (default: as many as this one has)")
    parser.add_argument(
        "--policy",
        action="append",
        choices=("backfill", "fifo", "shortest"),
        help="backfill (default): the daemon's; fifo: strictly in order; shortest: the shortest first; several: beside each other",
    )
    parser.add_argument("--config", action="append", metavar="FILE", help="settings with quotas and groups; several: beside each other")
    parser.add_argument("--chart", metavar="FILE", help="draw the GPUs over time: FILE.svg or FILE.png (needs dockless[chart])")
    parser.json()


def simulate(options: Namespace) -> int:
    from dockless.sched.policy.replay import replay

    if options.chart is not None:
        from dockless.cli.chart import check_chart

        check_chart(options.chart)
    trace = _read(options.trace)
    gpus = options.gpus or _gpus_here()
    if gpus > _GPUS:
        raise BadInput(f"{gpus} GPUs are more than one host has", subject="--gpus", hint=f"at most {_GPUS}")
    found: dict[str, Replay] = {}
    policies = dict.fromkeys(options.policy or ("backfill",))
    for config in dict.fromkeys(options.config or (None,)):
        host, members, half_life = _host(config, gpus)
        jobs = _with_groups(trace, members)
        for policy in policies:
            name = f"{policy}, {config}" if len(set(options.config or ())) > 1 else policy
            with _Progress(name, len(jobs)) as progress:
                found[name] = replay(jobs, host, policy, progress, half_life)
    if options.chart is not None:
        from dockless.cli.chart import draw

        draw(found, options.chart)
    if options.json:
        print_json({"gpus": gpus, "left_out": trace.left_out, "results": [_as_dict(name, one) for name, one in found.items()]})
    else:
        _show(found)
    _note(trace, found)
    return 0


def _read(name: str) -> Trace:
    from dockless.base.path import Path
    from dockless.sched.traces import parse

    if name == "-":
        if sys.stdin is None:
            raise BadInput("there is no standard input", subject="-", hint="name a file")
        data = sys.stdin.buffer.read(_LARGEST + 1)
    else:
        try:
            with open(Path(name), "rb") as file:
                data = file.read(_LARGEST + 1)
        except OSError as error:
            raise BadInput(f"cannot read {name}: {error.strerror}", subject=name, hint="give a trace: CSV, JSON or SWF") from None
    if len(data) > _LARGEST:
        raise BadInput(f"{name} is larger than {_LARGEST >> 30} GiB", subject=name, hint="cut it into parts")
    try:
        return parse(data.decode(), name)
    except UnicodeDecodeError:
        raise BadInput(f"{name} is not a text in UTF-8", subject=name, hint="give a trace: CSV, JSON or SWF") from None


def _gpus_here() -> int:
    from dockless.sched.engine.hostgpus import HostGpus

    gpus = HostGpus()
    try:
        if not gpus.uuids:
            raise BadInput("this host has no GPUs", subject="--gpus", hint="say of how many GPUs the host is: --gpus 8")
        return len(gpus.uuids)
    finally:
        gpus.close()


def _host(config: str | None, gpus: int) -> tuple[QueueState, Any, float]:
    """The host with nothing on it, the groups of each user that its settings name, and the half-life of a fair order."""
    from dockless.base.path import Path
    from dockless.sched.config import Config, load
    from dockless.sched.policy.state import QueueState
    from dockless.sched.policy.supplies import CORES, MEMORY, Supply

    if config is not None and not Path(config).exists():
        raise BadInput(f"{config} is not there", subject="--config", hint="name a file of settings: dockless config check FILE")
    settings = Config() if config is None else load(Path(config))
    groups: dict[str, tuple[str, ...]] = {}
    for group, members in settings.groups.items():
        for user in members if group in settings.quotas.groups else ():
            groups[user] = (*groups.get(user, ()), group)
    names = tuple(f"gpu{number}" for number in range(gpus))
    usage: dict[str, float] | None = {} if settings.order == "fair" else None
    supplies = {}
    if settings.cores is not None:
        supplies[CORES] = Supply(1000 * settings.cores, 1000 * settings.cores_per_gpu, 1000 * settings.cores_per_job)
    if settings.memory is not None:
        supplies[MEMORY] = Supply(settings.memory, settings.memory_per_gpu, settings.memory_per_job)
    host = QueueState(
        names, (), quotas=settings.quotas, cpu_jobs=settings.cpu_jobs, usage=usage, preemption=settings.preemption, supplies=supplies
    )  # fmt: skip
    return host, groups, settings.half_life


def _with_groups(trace: Trace, members: Any) -> list[TraceJob]:
    from dockless.base.dataclass import replace

    if not members:
        return [*trace.jobs]
    return [replace(job, groups=tuple(sorted({*job.groups, *members.get(job.user, ())}))) for job in trace.jobs]


class _Progress:
    """How far it is, on a terminal."""

    def __init__(self, name: str, jobs: int) -> None:
        self.name, self.jobs = name, jobs
        self.shown = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> Any:
        return self._step if self.shown else None

    def _step(self, ended: int) -> None:
        status(f"{self.name}: {100 * ended // self.jobs} % of {self.jobs} jobs")

    def __exit__(self, *_: object) -> None:
        if self.shown:
            status("")


def _show(found: dict[str, Replay]) -> None:
    rows = []
    for name, one in found.items():
        wait = one.wait()
        times = (span(wait.mean), span(wait.p95), span(wait.longest))
        rows.append((name, wait.jobs, *times, f"{100 * one.utilisation:.1f} %", span(one.ends - one.begins)))
    table(("POLICY", "JOBS", "MEAN WAIT", "P95", "LONGEST", "GPUS USED", "LASTS"), rows)
    first = next(iter(found.values()))
    users = [*first.by_user()]
    if len(users) < 2:
        return
    out("")
    by_user = {name: one.by_user() for name, one in found.items()}
    work = first.gpu_seconds()
    heads = [f"{what}{f' {name}' if len(found) > 1 else ''}" for name in found for what in ("MEAN WAIT", "P95")]
    table(
        ("USER", "JOBS", "GPU-HOURS", *heads),
        [
            (user or "-", first.by_user()[user].jobs, f"{work[user] / 3600:.1f}", *_waits(by_user[name].get(user) for name in found))
            for user in users[:_USERS]
        ],
    )
    if len(users) > _USERS:
        out(f"{len(users) - _USERS} more users; --json has all")


def _waits(found: Any) -> list[str]:
    return [text for wait in found for text in ((span(wait.mean), span(wait.p95)) if wait is not None else ("-", "-"))]


def _as_dict(name: str, one: Replay) -> dict[str, Any]:
    work = one.gpu_seconds()
    users = [{"user": user, "gpu_seconds": round(work[user], 3), **_wait_dict(wait)} for user, wait in one.by_user().items()]
    return {
        "policy": name,
        **_wait_dict(one.wait()),
        "never": one.never,
        "utilisation": round(one.utilisation, 6),
        "slowdown": round(one.slowdown, 3),
        "lasts": round(one.ends - one.begins, 3),
        "users": users,
    }


def _wait_dict(wait: Wait) -> dict[str, Any]:
    times = {"mean_wait": wait.mean, "p95_wait": wait.p95, "longest_wait": wait.longest}
    return {"jobs": wait.jobs, **{what: round(seconds, 3) for what, seconds in times.items()}}


def _note(trace: Trace, found: dict[str, Replay]) -> None:
    if trace.left_out:
        warn(f"{_jobs(trace.left_out)} of the trace left out: nobody knows how long {'they run' if trace.left_out > 1 else 'it runs'}")
    for name, one in found.items():
        if one.never:
            warn(f"{name}: {_jobs(one.never)} could never start", hint="they ask for more GPUs than the host has, or a quota allows")
        if one.lost:
            hours = sum(one.jobs[number].gpus * (end - start) for number, start, end in one.lost) / 3600
            jobs = _jobs(len({number for number, _, _ in one.lost}))
            warn(f"{name}: {jobs} gave GPUs back and started again from the beginning; {hours:.1f} GPU-hours were in vain")


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
