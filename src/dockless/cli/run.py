"""``dockless run``: attached (our stdin, stdout, stderr are the job's), detached, or only explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dockless.cli.parser import Namespace, Parser
from dockless.cli.sandbox_options import fetched, image_and_command, image_options, keywords, pull_option, sandbox_options
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless._box import Sandbox
    from dockless.sandbox.run.process import Exit


def run_options(parser: Parser) -> None:
    image_options(parser, "dockless run [options] [IMAGE] [-- COMMAND …]")
    parser.add_argument("--name", "--id", metavar="NAME", help="call the sandbox that")
    pull_option(parser)
    parser.add_argument("-d", "--detach", action="store_true", help="go on without us: print its id; see ps, logs, wait, stop, rm")
    parser.add_argument("--explain", action="store_true", help="print every step of the plan, and stop; with --time: run, then print")
    parser.add_argument("--time", action="store_true", help="with --explain: what each step took")
    parser.add_argument("--script", action="store_true", help="with --explain: one shell script that does the same, for looking")
    parser.quiet("no warnings; with -d the id alone")
    parser.add_argument(
        "--json", action="store_true", help="the result on standard error as JSON, errors too; -d, --explain: on standard output"
    )
    sandbox_options(parser)


def run(options: Namespace) -> int:
    image, command = image_and_command(options)
    wanted = keywords(options)
    for flag in ("time", "script"):
        if getattr(options, flag) and not options.explain:
            raise BadInput(f"--{flag} without --explain", subject=f"--{flag}", hint=f"dockless run --explain --{flag} …")
    if options.script and (options.time or options.json):
        raise BadInput("--script goes with neither --time nor --json", subject="--script", hint="leave --time and --json out")
    if options.detach and options.rm:
        raise BadInput("--rm and --detach", subject="--rm", hint="a detached sandbox is kept, with its logs, until: dockless rm NAME")
    if options.detach and options.explain:
        raise BadInput("--detach and --explain", subject="--explain", hint="explain it first")
    if options.explain:
        if options.time:
            image = fetched(image, options)
        from dockless.cli.explained import explained

        return explained(image, command, wanted, timed=options.time, as_script=options.script, as_json=options.json)
    image = fetched(image, options)
    if options.detach:
        return _detached(image, command, wanted, options)
    return _attached(image, command, wanted, options)


def _attached(image: str, command: list[str], wanted: dict[str, Any], options: Namespace) -> int:
    from dockless._box import Sandbox
    from dockless.cli.attached import Signals

    with Signals() as signals, Sandbox(image, command, id=options.name, pull="never", **wanted) as box:
        for warning in () if options.quiet or options.json else box.warnings:
            from dockless.cli.output import warn

            warn(warning)
        ended = signals.wait(box)
    if options.json:
        print_exit(image, command, ended, box)
    elif not options.quiet and (ended.timed_out or ended.oom_killed):
        from dockless.cli.output import warn

        if ended.timed_out:
            from dockless.base.units import format_duration

            warn(f"timed out after {format_duration(box.spec.timeout)}, everything inside was killed")
        else:
            warn("the kernel killed something inside for memory", hint="raise --memory")
    return ended.exit_code


def print_exit(image: str, command: list[str], ended: Exit, box: Sandbox) -> None:
    from dockless.cli.output import err, json_text, plain

    document = {
        "image": image,
        "command": command,
        "exit_code": ended.exit_code,
        "gpus": list(box.gpus),
        "simulated": box.simulated,
        **plain(ended),
    }
    err(json_text(document))


def _detached(image: str, command: list[str], wanted: dict[str, Any], options: Namespace) -> int:
    import contextlib
    from dataclasses import replace

    from dockless._options import make_spec
    from dockless.base import settings
    from dockless.sandbox.run import detached

    spec = make_spec(image, command, **wanted)
    spec = replace(spec, log_size=spec.log_size or settings.load()["logs.size"])
    labels: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        if wanted.get("gpus") is not None:
            from dockless import _gpus as gpus

            # Held until the sandbox runs; from then on its own record keeps others away.
            lease = stack.enter_context(gpus.lease(wanted["gpus"]))
            spec = replace(spec, gpus=lease.uuids)
            labels = {"gpus": "simulated"} if lease.simulated else {}
        box = detached.start(spec, id=options.name, labels=labels)
    from dockless.cli.output import out, print_json, warn

    warnings = box.document.warnings
    if labels:
        warnings = ("the GPUs are simulated: nothing computes on them", *warnings)
    if options.json:
        print_json({"id": box.id, "gpus": spec.gpus, "warnings": warnings})
        return 0
    if not options.quiet:
        for warning in warnings:
            warn(warning)
    out(box.id)
    return 0
