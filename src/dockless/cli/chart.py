"""Who has how many GPUs over time, as a picture. Drawn by Matplotlib, which is installed with ``dockless[chart]``."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.output import span
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless.sched.policy.replay import Replay

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


def draw(found: dict[str, Replay], file: str) -> None:
    """One panel below the other, over the same time."""
    import io

    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 1 + 2.6 * len(found)), layout="constrained")
    panels: Any = figure.subplots(len(found), 1, sharex=True, sharey=True, squeeze=False)
    begins = min(one.begins for one in found.values())
    longest = max(one.ends for one in found.values()) - begins
    _, second, unit = next(row for row in _UNITS if longest >= row[0])
    users = [*next(iter(found.values())).by_user()]
    for (panel,), (name, one) in zip(panels, found.items(), strict=True):
        series = _series(one, users)
        length = (one.ends - one.begins) / PIECES / second
        times = [(one.begins - begins) / second + length * place for place in range(PIECES)]
        panel.stackplot(times, *series.values(), labels=[user or "-" for user in series], step="post", linewidth=0)
        panel.axhline(one.gpus, color="black", linewidth=0.8)
        wait = one.wait()
        panel.set_title(f"{name}: mean wait {span(wait.mean)}, {100 * one.utilisation:.1f} % used", loc="left", fontsize=10)
        panel.set_ylabel("GPUs")
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


def _series(one: Replay, users: list[str]) -> dict[str, list[float]]:
    """The GPUs of those who have most, and of all others together."""
    rows = one.over_time(PIECES)
    nothing = [0.0] * PIECES
    shown = {user: rows.get(user, nothing) for user in users[:USERS]}
    if others := [rows.get(user, nothing) for user in users[USERS:]]:
        shown[f"{len(others)} others"] = [sum(column) for column in zip(*others, strict=True)]
    return shown
