"""Detached sandboxes: ``ps``, ``stop``, ``kill``, ``rm``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from dockless.cli.output import age, cut, out, plain, print_json, span, table, warn
from dockless.cli.parser import Namespace, Parser
from dockless.errors import BadInput, SandboxGone

if TYPE_CHECKING:
    from dockless.sandbox.run.detached import Detached


def ps_options(parser: Parser) -> None:
    parser.add_argument("-a", "--all", action="store_true", help="those that have ended, too")
    parser.quiet("ids alone")
    parser.json()


def ps(options: Namespace) -> int:
    from dockless.sandbox.run import detached

    shown = [row for box in detached.list_all() if (row := describe(box)) and (options.all or row["state"] in ("starting", "running"))]
    if options.quiet:
        for row in shown:
            out(row["id"])
    elif options.json:
        print_json(shown)
    else:
        rows = [(r["id"], r["image"], cut(" ".join(r["command"]), 40), _state(r), age(r["created"]), len(r["gpus"]) or "") for r in shown]
        table(("ID", "IMAGE", "COMMAND", "STATE", "AGE", "GPUS"), rows)
        if any(row["simulated"] for row in shown):
            out("GPUs are simulated.")
    return 0


def describe(box: Detached) -> dict[str, Any] | None:
    """One sandbox as a record for scripts; None if it went away while we looked. ``reason``: why a vanished one has no exit."""
    state = box.state()
    reason = box.loss() if state == "vanished" else ""
    try:
        document = box.document
    except SandboxGone:
        return _damaged(box, state, reason) if box.directory.is_dir() else None
    spec = document.spec
    return {
        "id": box.id,
        "image": spec.image,
        "command": [*(spec.entrypoint or ()), *spec.argv],
        "state": state,
        "pid": box.pid if state in ("starting", "running") else 0,
        "created": document.created,
        "gpus": list(spec.gpus),
        "simulated": bool(spec.gpus) and (document.labels.get("gpus") == "simulated" or _simulated()),
        "labels": document.labels,
        **_exit(box, state),
        "reason": reason,
        "directory": str(box.directory),
    }


def _damaged(box: Detached, state: str, reason: str) -> dict[str, Any]:
    """A sandbox of which nothing is known but that it is there."""
    known = {"id": box.id, "state": state, "reason": reason, "directory": str(box.directory)}
    unknown = {"image": "", "command": [], "pid": 0, "created": box.directory.stat().st_mtime, "gpus": [], "simulated": False}
    return {**unknown, "labels": {}, **_exit(box, state), **known}


def _exit(box: Detached, state: str) -> dict[str, Any]:
    ended = box.exit() if state == "exited" else None
    return {"exit_code": None if ended is None else ended.exit_code, "exit": plain(ended)}


def _simulated() -> bool:
    import os

    return bool(os.environ.get("DOCKLESS_SIMULATED_GPUS"))


def _state(row: dict[str, Any]) -> str:
    if row["state"] != "exited":
        return f"{row['state']}: {row['reason']}" if row["reason"] else str(row["state"])
    ended = row["exit"]
    how = "oom" if ended["oom_killed"] else "timed out" if ended["timed_out"] else f"exit {row['exit_code']}"
    return f"{how}, {span(ended['ended'] - ended['started'])}"


def _several(parser: Parser, what: str = "sandboxes of `dockless ps`") -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help=what)
    parser.quiet("say nothing")
    parser.json()


def stop_options(parser: Parser) -> None:
    _several(parser)
    parser.add_argument("--grace", default="10s", metavar="TIME", help="until it is ended by force (default: 10s)")


def stop(options: Namespace) -> int:
    from dockless.base.units import parse_duration

    grace = parse_duration(options.grace, "grace")
    return _each(options, lambda box: _stop(box, grace))


def _stop(box: Detached, grace: float) -> None:
    _refuse_job(box)
    box.stop(grace)


def kill_options(parser: Parser) -> None:
    _several(parser)
    parser.add_argument("-s", "--signal", default="KILL", metavar="SIGNAL", help="KILL ends everything inside, any other goes to the job")


def kill(options: Namespace) -> int:
    import signal

    from dockless.base.units import parse_signal

    number = parse_signal(options.signal)
    return _each(options, lambda box: box.kill() if number == signal.SIGKILL else box.send_signal(number))


def rm_options(parser: Parser) -> None:
    _several(parser)
    parser.add_argument("-f", "--force", action="store_true", help="end it first, if it still runs")


def rm(options: Namespace) -> int:
    def remove(box: Detached) -> None:
        _refuse_job(box)
        if not options.force and box.state() in ("starting", "running"):
            raise BadInput(f"sandbox {box.id} still runs", subject=box.id, hint=f"dockless stop {box.id}, or rm --force")
        box.remove()

    return _each(options, remove)


def _refuse_job(box: Detached) -> None:
    """A sandbox of the daemon's is ended through the daemon, which keeps the records."""
    with contextlib.suppress(SandboxGone):
        if "job" in box.labels or "queue" in box.labels:
            job = box.labels.get("job", box.id)
            raise BadInput(f"sandbox {box.id} belongs to job {job} of the queue", subject=box.id, hint=f"dockless cancel {job}")


def _each(options: Namespace, action: Any) -> int:
    """Do it to every one; the first error is raised when all were tried, the others are said."""
    from dockless.sandbox.run import detached

    first: Exception | None = None
    done = []
    for name in options.ids:
        try:
            action(detached.get(name))
            done.append(name)
        except Exception as error:
            if first is not None:
                warn(str(error))
            first = first or error
    if options.json:
        print_json(done)
    elif not options.quiet:
        for name in done:
            out(name)
    if first is not None:
        raise first
    return 0
