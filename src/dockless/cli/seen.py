"""``top``: the processes of a sandbox, or the GPUs, jobs and users of the host. ``stats``: what sandboxes take, again and again."""

from __future__ import annotations

import time

from dockless.base.records import plain
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.base.units import format_size
from dockless.cli.output import age, cut, json_text, out, over, print_json, span, table
from dockless.cli.parser import Namespace, Parser
from dockless.cli.template import format_option, show
from dockless.errors import SandboxGone

if TYPE_CHECKING:
    from dockless.cgroups import Usage
    from dockless.sandbox.run.box import Box

_EVERY = 1.0


def top_options(parser: Parser) -> None:
    parser.add_argument("id", nargs="?", metavar="ID", help="a sandbox of `dockless ps`; left out: GPUs, jobs and users")
    parser.add_argument("--once", action="store_true", help="without ID: print it once, and stop")
    parser.add_argument("--interval", default="2s", metavar="TIME", help="without ID: look again that often (default: 2s)")
    parser.json()


def top(options: Namespace) -> int:
    if options.id is None:
        from dockless.cli.overview import overview

        return overview(options)
    from dockless.sandbox.run import box, seen

    found = seen.processes(box.get(options.id))
    if options.json:
        print_json([plain(one) for one in found])
        return 0
    rows = [
        (one.pid, one.inside, one.uid, span(one.cpu_seconds), format_size(one.memory), age(one.started), cut(one.command, 60))
        for one in found
    ]
    table(("PID", "INSIDE", "UID", "CPU", "MEMORY", "AGE", "COMMAND"), rows)
    return 0


def stats_options(parser: Parser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="sandboxes of `dockless ps`; all of them if left out")
    parser.add_argument("--no-stream", action="store_true", help="once, and stop")
    format_option(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line, for each sandbox and second")


def stats(options: Namespace) -> int:
    """Until Ctrl-C, or until none is left."""
    from dockless.sandbox.run import box as boxes

    lines, before = 0, _look([boxes.get(name) for name in options.ids] or [*boxes.everything()])
    while True:
        time.sleep(_EVERY / 2 if options.no_stream else _EVERY)
        now = _look([box for box, _, _ in before.values()] if options.ids else [*boxes.everything()])
        rows = [_row(name, now[name], before[name]) for name in now if name in before]
        if options.json:
            for row in rows:
                out(json_text(row))
        elif options.format:
            show(options.format, rows)
        else:
            over(lines)
            shown = [
                (r["id"], f"{r['cpu_percent']:.1f} %", _size(r["memory"]), r["pids"], _size(r["read"]), _size(r["written"])) for r in rows
            ]
            table(("ID", "CPU", "MEMORY", "PIDS", "READ", "WRITTEN"), shown)
            lines = len(rows) + 1
        if options.no_stream or not now:
            return 0
        before = now


Look = dict[str, tuple["Box", float, "Usage"]]


def _look(found: list[Box]) -> Look:
    """Those that run, with what they have taken and when that was so."""
    from dockless.sandbox.run import seen

    looked: Look = {}
    for box in found:
        try:
            looked[box.id] = (box, time.monotonic(), seen.usage(box))
        except SandboxGone:
            continue
    return looked


def _row(name: str, now: tuple[Box, float, Usage], before: tuple[Box, float, Usage]) -> dict[str, Any]:
    """``cpu_percent``: of one processor. Bytes; None where this host does not count it."""
    used = (now[2].cpu_seconds or 0.0) - (before[2].cpu_seconds or 0.0)
    return {
        "id": name,
        "cpu_percent": round(max(0.0, used) / max(now[1] - before[1], 1e-6) * 100, 1),
        "memory": now[2].memory_current,
        "pids": now[2].pids_current,
        "read": now[2].io_read_bytes,
        "written": now[2].io_write_bytes,
    }


def _size(number: int | None) -> str:
    return "-" if number is None else format_size(number)
