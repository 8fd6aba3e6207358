"""``simulate``: what the scheduler would do with the jobs of a trace."""

from __future__ import annotations

import sys

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.output import out, print_json, span, status, table, warn
from dockless.cli.parser import Namespace, Parser
from dockless.errors import BadInput
from dockless.sched.policy.supplies import CORES, MEMORY

if TYPE_CHECKING:
    from dockless.cli.simulated_host import SimulatedHost
    from dockless.sched.policy.replay import Replay, Wait
    from dockless.sched.traces import Trace

_USERS = 20
"""Users in the table; JSON has all."""
_LARGEST = 2 << 30
"""Bytes of a trace."""


def simulate_options(parser: Parser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="a file of jobs: CSV, SWF, or what queue --all --json prints; - for standard input")
    parser.add_argument(
        "--gpus", metavar="N", help="of the host (default: those of this one); of several classes: H100:80G=4,A100=2,1g.10gb=7"
    )
    parser.add_argument(
        "--policy",
        action="append",
        choices=("backfill", "fifo", "shortest"),
        help="backfill (default): the daemon's; fifo: strictly in order; shortest: the shortest first; several: beside each other",
    )
    parser.add_argument("--config", action="append", metavar="FILE", help="settings; several: beside each other")
    parser.add_argument(
        "--chart", metavar="FILE", help="draw GPUs, cores and memory over time: FILE.svg or FILE.png (needs dockless[chart])"
    )
    parser.json()


def simulate(options: Namespace) -> int:
    from dockless.cli.simulated_host import simulated_host, units_here, units_of
    from dockless.sched.policy.replay import replay

    if options.chart is not None:
        from dockless.cli.chart import check_chart

        check_chart(options.chart)
    trace = _read(options.trace)
    units = units_of(options.gpus) if options.gpus else units_here(options.config or ())
    found: dict[str, Replay] = {}
    hosts: dict[str, SimulatedHost] = {}
    policies = dict.fromkeys(options.policy or ("backfill",))
    for config in dict.fromkeys(options.config or (None,)):
        host = simulated_host(config, units, trace.jobs)
        for policy in policies:
            name = f"{policy}, {config}" if len(set(options.config or ())) > 1 else policy
            with _Progress(name, len(host.jobs)) as progress:
                hours = host.hours if host.reservations else None
                found[name] = replay(host.jobs, host.state, policy, progress, host.half_life, hours)
            hosts[name] = host
    if options.chart is not None:
        from dockless.cli.chart import draw

        draw(found, hosts, options.chart)
    if options.json:
        rows = [_as_dict(name, one, hosts[name]) for name, one in found.items()]
        print_json({"gpus": len(units), "left_out": trace.left_out, "results": rows})
    else:
        _show(found, hosts)
    _note(trace, found, hosts)
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


def _show(found: dict[str, Replay], hosts: dict[str, SimulatedHost]) -> None:
    rows = []
    supplies = list(dict.fromkeys(pool for host in hosts.values() for pool in host.state.supplies))
    for name, one in found.items():
        wait = one.wait()
        times = (span(wait.mean), span(wait.p95), span(wait.longest))
        asked = [f"{100 * part:.1f} %" if (part := _asked(one, hosts[name], pool)) is not None else "-" for pool in supplies]
        rows.append((name, wait.jobs, *times, f"{100 * one.utilisation:.1f} %", *asked, span(one.ends - one.begins)))
    heads = [f"{pool.upper()} ASKED" for pool in supplies]
    table(("POLICY", "JOBS", "MEAN WAIT", "P95", "LONGEST", "GPUS USED", *heads, "LASTS"), rows)
    first = next(iter(found.values()))
    if len(first.by_class()) > 1 and len({job.gpu_class for job in first.jobs}) > 1:
        _show_by_class(found)
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


def _show_by_class(found: dict[str, Replay]) -> None:
    out("")
    by_class = {name: one.by_class() for name, one in found.items()}
    names = dict.fromkeys(name for of in by_class.values() for name in of)
    heads = [f"{what}{f' {name}' if len(found) > 1 else ''}" for name in found for what in ("MEAN WAIT", "P95")]
    rows = []
    for name in names:
        jobs = max(wait.jobs for of in by_class.values() if (wait := of.get(name)) is not None)
        rows.append(("no GPUs" if name is None else name or "any", jobs, *_waits(of.get(name) for of in by_class.values())))
    table(("CLASS", "JOBS", *heads), rows)


def _asked(one: Replay, host: SimulatedHost, pool: str) -> float | None:
    """Which part of the host's cores, or memory, jobs have asked for while they ran; None where these are not counted."""
    supply = host.state.supplies.get(pool)
    if supply is None:
        return None
    whole = supply.total * (one.ends - one.begins)
    return sum(job.length * host.asked(pool, job) for job in one.jobs) / whole if whole else 0.0


def _waits(found: Any) -> list[str]:
    return [text for wait in found for text in ((span(wait.mean), span(wait.p95)) if wait is not None else ("-", "-"))]


def _as_dict(name: str, one: Replay, host: SimulatedHost) -> dict[str, Any]:
    work = one.gpu_seconds()
    users = [{"user": user, "gpu_seconds": round(work[user], 3), **_wait_dict(wait)} for user, wait in one.by_user().items()]
    return {
        "policy": name,
        **_wait_dict(one.wait()),
        "never": one.never,
        "utilisation": round(one.utilisation, 6),
        **{f"{pool}_asked": round(_asked(one, host, pool) or 0.0, 6) for pool in host.state.supplies},
        "slowdown": round(one.slowdown, 3),
        "lasts": round(one.ends - one.begins, 3),
        "users": users,
        "classes": [{"class": of, **_wait_dict(wait)} for of, wait in one.by_class().items()],
    }


def _wait_dict(wait: Wait) -> dict[str, Any]:
    times = {"mean_wait": wait.mean, "p95_wait": wait.p95, "longest_wait": wait.longest}
    return {"jobs": wait.jobs, **{what: round(seconds, 3) for what, seconds in times.items()}}


def _note(trace: Trace, found: dict[str, Replay], hosts: dict[str, SimulatedHost]) -> None:
    if trace.left_out:
        warn(f"{_jobs(trace.left_out)} of the trace left out: nobody knows how long {'they run' if trace.left_out > 1 else 'it runs'}")
    for name, one in found.items():
        for pool in (CORES, MEMORY):
            if pool not in hosts[name].state.supplies and any(getattr(kept, pool) for kept in hosts[name].reservations):
                warn(f"{name}: reserved {pool} are not counted", hint=f"say in the settings how much the host has: host.{pool}")
        if one.never:
            warn(f"{name}: {_jobs(one.never)} could never start", hint="they ask for more than the host has, or a quota allows")
        if one.lost:
            hours = sum(one.jobs[number].gpus * (end - start) for number, start, end in one.lost) / 3600
            jobs = _jobs(len({number for number, _, _ in one.lost}))
            warn(f"{name}: {jobs} gave GPUs back and started again from the beginning; {hours:.1f} GPU-hours were in vain")


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
