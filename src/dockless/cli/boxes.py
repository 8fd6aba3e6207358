"""Sandboxes: ``ps``, ``stop``, ``kill``, ``rm``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from dockless._life import described, refuse_job, remove
from dockless.base import paths
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.filters import filter_option, filters, labels
from dockless.cli.output import age, cut, out, print_json, span, table, warn
from dockless.cli.parser import Namespace, Parser
from dockless.cli.template import format_option, show
from dockless.sandbox.filters import has_labels, is_image
from dockless.sandbox.state import ALIVE, HEALTHS, STATES

if TYPE_CHECKING:
    from dockless.sandbox.run.box import Box
    from dockless.sandbox.run.networks import Leased


FILTERS = "name=, state=, image=, exited=CODE, health=, network=, label=NAME[=VALUE]"


def ps_options(parser: Parser) -> None:
    parser.add_argument("-a", "--all", action="store_true", help="those that have ended, too")
    filter_option(parser, FILTERS, "-f")
    format_option(parser)
    parser.quiet("ids alone")
    parser.json()


def ps(options: Namespace) -> int:
    shown = chosen(
        options.filter, alive_alone=not (options.all or any(one.startswith(("state=", "status=", "exited=")) for one in options.filter))
    )
    if options.quiet:
        for row in shown:
            out(row["id"])
    elif options.json:
        print_json(shown)
    elif options.format:
        show(options.format, [_in_words(row) for row in shown])
    else:
        ports = any(row["ports"] for row in shown)  # a column for them only then
        rows = [
            (r["id"], r["image"], cut(" ".join(r["command"]), 40), _state(r), age(r["created"]), len(r["gpus"]) or "", *[_ports(r)][:ports])
            for r in shown
        ]
        table(("ID", "IMAGE", "COMMAND", "STATE", "AGE", "GPUS", *["PORTS"][:ports]), rows)
        if any(row["simulated"] for row in shown):
            out("GPUs are simulated.")
    return 0


def chosen(given: Sequence[str], *, alive_alone: bool) -> list[dict[str, Any]]:
    """Sandboxes as ``described`` has them, by id. ``BadInput`` for a filter that cannot be read."""
    from dockless.sandbox.run.box import everything

    wanted = filters(given, _KEYS, {"state": STATES, "health": (*HEALTHS, "none")})
    found = []
    known = _leased()
    for box in sorted(everything(), key=lambda one: one.id):
        row = described(box, known)
        if row and (not alive_alone or row["state"] in ALIVE) and all(_fits(row, key, values) for key, values in wanted.items()):
            found.append(row)
    return found


def _leased() -> Leased:
    """What sandboxes have on networks, empty where there are none."""
    if not os.path.lexists(paths.state() / "networks"):
        return {}
    from dockless.sandbox.run.networks import leased

    return leased()


_KEYS = {
    "name": "id",
    "id": "id",
    "status": "state",
    "state": "state",
    "ancestor": "image",
    "image": "image",
    "exited": "exited",
    "label": "label",
    "health": "health",
    "network": "network",
}
_DEADLINES = {"": "timed out", "timeout": "timed out", "idle_timeout": "idle", "ttl": "ttl over"}


def _fits(row: dict[str, Any], key: str, values: list[str]) -> bool:
    match key:
        case "id":
            return any(value in row["id"] for value in values)
        case "image":
            return is_image(row["image"], values)
        case "exited":
            return str(row["exit_code"]) in values
        case "health":
            return (row["health"]["status"] if row["health"] else "none") in values
        case "network":
            return row["network"] in values or any(one["name"] in values for one in row["networks"])
        case "label":
            return has_labels(row["labels"], labels(values))
        case _:
            return row["state"] in values


def _in_words(row: dict[str, Any]) -> dict[str, Any]:
    """With what Docker's templates name beside the fields of --json."""
    import datetime

    created = datetime.datetime.fromtimestamp(row["created"], datetime.UTC).isoformat(timespec="seconds")
    networks = ",".join(one["name"] for one in row["networks"])
    row = row | {"ports": _ports(row), "networks": networks or row["network"]}
    return row | {"name": row["id"], "names": row["id"], "status": _state(row), "running_for": age(row["created"]), "created_at": created}


def _ports(row: dict[str, Any]) -> str:
    """As docker shows them: ``127.0.0.1:8080->80/tcp``."""
    said = []
    for port in row["ports"]:
        address = f"[{port['address']}]:" if ":" in port["address"] else f"{port['address']}:" if port["address"] else ""
        more = port["count"] - 1
        outside, inside = (f"{first}-{first + more}" if more else str(first) for first in (port["outside"], port["inside"]))
        said.append(f"{address}{outside}->{inside}/{port['protocol']}")
    return ", ".join(said)


def _state(row: dict[str, Any]) -> str:
    said = [] if row["state"] == "exited" else [row["state"]]
    if row["health"] and row["state"] in ALIVE:
        said[-1] += f" ({row['health']['status']})"
    ended = row["exit"]
    if ended is not None:
        how = "oom" if ended["oom_killed"] else _DEADLINES[ended["limit"]] if ended["timed_out"] else f"exit {row['exit_code']}"
        if ended["unended"]:
            how += ": what a command started could not be ended"
        said.append(f"{how}, {span(ended['ended'] - ended['started'])}")
    return ": ".join([*said, row["reason"]] if row["reason"] else said)


RUNNING = "sandboxes of `dockless ps`"


def several(parser: Parser, what: str = "sandboxes of `dockless ps --all`") -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help=what)
    parser.quiet("say nothing")
    parser.json()


def stop_options(parser: Parser) -> None:
    several(parser)
    parser.add_argument(
        "-t", "--time", "--timeout", "--grace", dest="grace", metavar="TIME", help="until force is used (default: its own, or 10s)"
    )


def stop(options: Namespace) -> int:
    from dockless.base.units import parse_duration

    grace = None if options.grace is None else parse_duration(options.grace, "grace")
    return each_box(options, lambda box: _stop(box, grace))


def _stop(box: Box, grace: float | None) -> Iterator[None]:
    refuse_job(box)
    with box.held() as held:
        yield from held.stopping(grace)


def kill_options(parser: Parser) -> None:
    several(parser)
    parser.add_argument(
        "-s", "--signal", default="KILL", metavar="SIGNAL", help="KILL ends everything inside, any other goes to the program"
    )


def kill(options: Namespace) -> int:
    from dockless.base import signal
    from dockless.base.units import parse_signal

    number = parse_signal(options.signal)
    return each_box(options, lambda box: box.kill() if number == signal.SIGKILL else box.send_signal(number))


def rm_options(parser: Parser) -> None:
    several(parser)
    parser.add_argument("-f", "--force", action="store_true", help="end it first, if it still runs")


def rm(options: Namespace) -> int:
    return each_box(options, lambda box: remove(box, force=options.force))


_AT_ONCE = 200
"""So many are stopped together: each holds a descriptor meanwhile."""


def each_box(options: Namespace, action: Callable[[Box], Iterator[None] | None]) -> int:
    """Do it to every one; the first error is raised when all were tried, the others are said. Of an action in steps the first is done to
    many before the rest to any."""
    names = tuple(dict.fromkeys(options.ids))
    wrong: dict[str, Exception] = {}
    for at in range(0, len(names), _AT_ONCE):
        wrong |= _together(names[at : at + _AT_ONCE], action)
    done = [name for name in names if name not in wrong]
    if options.json:
        print_json(done)
    elif not options.quiet:
        for name in done:
            out(name)
    failed = [wrong[name] for name in names if name in wrong]
    for one in failed[1:]:
        warn(str(one))
    if failed:
        raise failed[0]
    return 0


def _together(names: Sequence[str], action: Callable[[Box], Iterator[None] | None]) -> dict[str, Exception]:
    """What went wrong, by name."""
    from dockless.sandbox.run.box import get

    begun: dict[str, Iterator[None]] = {}
    wrong: dict[str, Exception] = {}
    for name in names:
        try:
            begun[name] = iter(action(get(name)) or ())
            next(begun[name], None)
        except Exception as error:
            wrong[name] = error
    for name, rest in begun.items():
        try:
            for _ in rest:
                pass
        except Exception as error:
            wrong[name] = error
    return wrong
