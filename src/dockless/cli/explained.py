"""``--explain``: every step of a plan in plain words and as a shell command; ``--time`` runs it and adds what each step took;
``--script``: the commands as one script that can be run."""

from __future__ import annotations

import os

from dockless.base.records import plain
from dockless.base.typing import Any
from dockless.base.units import format_duration
from dockless.cli.output import out, print_json, raw
from dockless.sandbox.plan.explain import ExplainedStep, rows, text
from dockless.sandbox.plan.wording import IMPOSSIBLE


def explained(image: str, command: list[str], wanted: dict[str, Any], *, timed: bool, as_script: bool, as_json: bool) -> int:
    if timed:
        return _measured(image, command, wanted, as_json)
    from dockless._options import gpus_wanted, make_spec
    from dockless.base.dataclass import replace
    from dockless.sandbox.run.start import besides, explain, network_steps

    spec = make_spec(image, command, **wanted)
    asked = gpus_wanted(wanted)
    if asked is None:
        ready = explain(spec)
        gpus: tuple[Any, ...] = ()
    else:
        from dockless import _gpus as leases

        with leases.lease(asked) as lease:
            gpus = lease.gpus
            ready = explain(replace(spec, gpus=lease.uuids))
    notes, networks = besides(ready), network_steps(ready)
    if as_script:
        from dockless.sandbox.script import script

        raw(os.fsencode(script(ready.resolved, ready.plan, [*(f"{what}: {'; '.join(done)}" for what, done in networks), *notes])))
        return 0
    table = rows(ready.plan)
    if as_json:
        print_json(
            {
                "image": image,
                "limits": plain(list(spec.limits.writes())),
                "besides": notes,
                "gpus": plain(gpus),
                "networks": [{"what": what, "commands": list(done)} for what, done in networks],
                "operations": plain(table),
            }
        )
        return 0
    for gpu in gpus:
        out(f"gpu: {gpu}")
    if notes:
        out("besides the plan:")
        for note in notes:
            out(f"      {IMPOSSIBLE}{note}")
        out("")
    if networks:
        out("networks, before the keeper:")
        for what, done in networks:
            out(f"      {what}", *(f"        $ {command}" for command in done))
        out("")
    out(*text(table).split("\n"))
    return 0


def _measured(image: str, command: list[str], wanted: dict[str, Any], as_json: bool) -> int:
    import time

    from dockless._box import Sandbox
    from dockless.cli.signals import Signals

    before = time.monotonic_ns()
    with Signals() as signals, Sandbox(image, command, measure=True, pull="never", **wanted) as box:
        ready = time.monotonic_ns()
        record = box.process.record()
        plan = box._running.plan
        assert plan is not None
        # The launcher notes its start by the wall clock, and each operation's end by the monotonic one.
        started = ready - (time.time_ns() - int(record.started * 1e9))
        table = rows(plan, record.times, started)
        ended = signals.wait(box)
    took = {"prepare": (started - before) / 1e9, "launch": (ready - started) / 1e9, "run": max(0.0, ended.ended - ended.started)}
    if as_json:
        print_json({"image": image, "seconds": took, "exit_code": ended.exit_code, "operations": plain(table)})
    else:
        out(*text(table).split("\n"))
        slowest = sorted((row for row in table if row.seconds is not None), key=_seconds, reverse=True)[:3]
        out("", "slowest: " + ", ".join(f"{row.index} ({row.operation}) {format_duration(_seconds(row))}" for row in slowest))
        out(", ".join(f"{name} {format_duration(seconds)}" for name, seconds in took.items()) + f"; exit code {ended.exit_code}")
    return ended.exit_code


def _seconds(row: ExplainedStep) -> float:
    return row.seconds or 0.0
