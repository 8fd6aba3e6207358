"""Who has how many GPUs of each kind, cores and memory over time, as a picture. Drawn by Matplotlib, which ``dockless[chart]`` installs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dockless.base.dataclass import dataclass
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.output import span
from dockless.errors import BadInput
from dockless.sched.policy.supplies import CORES

if TYPE_CHECKING:
    from dockless.cli.simulated_host import SimulatedHost
    from dockless.sched.policy.replay import Has, Replay, TraceJob

PIECES = 600
"""Of the time: about two points of the picture each."""
USERS = 9
"""That have a colour of their own."""
_UNITS = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))


def check_chart(file: str) -> None:
    """``BadInput`` for a file that is no picture, and without Matplotlib: before anything is simulated."""
    if not file.endswith((".svg", ".png")):
        raise BadInput(f"{file} is neither .svg nor .png", subject="--chart", hint="name a file that ends so: --chart gpus.svg")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise BadInput(
            "a chart needs Matplotlib, which is not installed", subject="--chart", hint="pip install 'dockless[chart]'"
        ) from None


@dataclass(frozen=True, slots=True)
class _Panel:
    """``total``: how much there is of it; ``has``: how much a job has."""

    label: str
    total: float
    has: Has


def _panels(host: SimulatedHost, one: Replay) -> list[_Panel]:
    """Of each kind of GPUs, and of what else is counted."""
    found = [_Panel(kind, len(of), partial(_of_kind, one, of)) for kind, of in host.kinds.items()] if len(host.kinds) > 1 else []
    found = found or [_Panel("GPUs", len(host.state.gpus), one.has)]
    for pool, supply in host.state.supplies.items():
        unit, label = (1000, "cores") if pool == CORES else (1 << 30, "GiB of memory")
        found.append(_Panel(label, supply.total / unit, partial(_of_supply, host, pool, unit)))
    return found


def _of_kind(one: Replay, kind: frozenset[str], job: TraceJob, gpus: Sequence[str]) -> float:
    return one.has(job, gpus) if job.share and not kind.isdisjoint(gpus) else len(kind.intersection(gpus))


def _of_supply(host: SimulatedHost, pool: str, unit: int, job: TraceJob, gpus: Sequence[str]) -> float:
    return host.asked(pool, job) / unit


def draw(found: dict[str, Replay], hosts: dict[str, SimulatedHost], file: str) -> None:
    """One panel below the other, over the same time. Reserved hours are grey."""
    import io

    import matplotlib
    from matplotlib.figure import Figure

    rows = [(name, one, row, not place) for name, one in found.items() for place, row in enumerate(_panels(hosts[name], one))]
    figure = Figure(figsize=(12, 1 + 2.6 * len(rows)), layout="constrained")
    panels: Any = figure.subplots(len(rows), 1, sharex=True, squeeze=False)
    begins = min(one.begins for one in found.values())
    longest = max(one.ends for one in found.values()) - begins
    _, second, unit = next(row for row in _UNITS if longest >= row[0])
    users = [*next(iter(found.values())).by_user()]
    for (panel,), (name, one, row, is_first) in zip(panels, rows, strict=True):
        series = _series(one, users, row.has)
        length = (one.ends - one.begins) / PIECES / second
        times = [(one.begins - begins) / second + length * place for place in range(PIECES)]
        panel.stackplot(times, *series.values(), labels=[user or "-" for user in series], step="post", linewidth=0)
        panel.axhline(row.total, color="black", linewidth=0.8)
        if is_first:
            wait = one.wait()
            panel.set_title(f"{name}: mean wait {span(wait.mean)}, {100 * one.utilisation:.1f} % used", loc="left", fontsize=10)
        for hours in hosts[name].hours_between(one.begins, one.ends):
            span_of = [(moment - begins) / second for moment in (max(hours.starts, one.begins), min(hours.ends, one.ends))]
            panel.axvspan(*span_of, color="black", alpha=0.15, linewidth=0, zorder=3)
            if is_first:
                panel.annotate(hours.name, (span_of[0], row.total), fontsize=7, verticalalignment="bottom")
        panel.set_ylabel(row.label)
        panel.margins(x=0)
    panels[-1][0].set_xlabel(unit)
    if len(users) > 1:
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", frameon=False)
    picture = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "dockless", "svg.fonttype": "none"}):
        figure.savefig(picture, format=file[-3:], metadata={"Date": None} if file.endswith(".svg") else None)
    with open(file, "wb") as out:
        out.write(picture.getvalue())


def _series(one: Replay, users: list[str], has: Has) -> dict[str, list[float]]:
    """What those have who have most GPUs, and all others together."""
    rows = one.over_time(PIECES, has)
    nothing = [0.0] * PIECES
    shown = {user: rows.get(user, nothing) for user in users[:USERS]}
    if others := [rows.get(user, nothing) for user in users[USERS:]]:
        shown[f"{len(others)} others"] = [sum(column) for column in zip(*others, strict=True)]
    return shown
