"""``dockless run``: in the foreground (with our standard streams), detached, or only explained; ``dockless create``: written down."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.parser import Namespace, Parser
from dockless.cli.sandbox_options import fetched, image_and_command, image_options, keywords, lines_of, pull_option, sandbox_options
from dockless.errors import BadInput, SandboxGone

if TYPE_CHECKING:
    from dockless._box import Sandbox
    from dockless.sandbox.run.process import Exit


def _named_options(parser: Parser, verb: str) -> None:
    """Of what has an image, a name and labels."""
    image_options(parser, f"dockless {verb} [options] [IMAGE] [-- COMMAND …]")
    parser.add_argument("--name", "--id", metavar="NAME", help="call the sandbox that")
    pull_option(parser)
    parser.add_argument("-l", "--label", action="append", default=[], metavar="NAME[=VALUE]", help="by which it can be found: ps --filter")
    parser.add_argument("--label-file", action="append", default=[], metavar="FILE", help="labels, one NAME[=VALUE] per line")
    parser.add_argument("--cidfile", metavar="FILE", help="write its id into a new file")
    parser.add_argument(
        "--restart",
        metavar="POLICY",
        help="restart policy of a detached sandbox: no (default), on-failure[:N], unless-stopped, always; see start --all",
    )


def _wanted(options: Namespace) -> dict[str, Any]:
    of_files = (line for path in options.label_file for _, line in lines_of("--label-file", path))
    return keywords(options) | {"labels": dict(one.partition("=")[::2] for one in (*of_files, *options.label))}


def create_options(parser: Parser) -> None:
    _named_options(parser, "create")
    parser.add_argument("-t", "--tty", action="store_true", help="with a terminal of its own, see attach")
    parser.add_argument("-i", "--interactive", action="store_true", help="its standard input stays open, for attach")
    parser.quiet("the id alone, no warnings")
    parser.json()
    sandbox_options(parser)


def create(options: Namespace) -> int:
    from dockless._finding import create

    image, command = image_and_command(options)
    return _goes_on(fetched(image, options), command, _wanted(options) | _streams(options), options, create)


def run_options(parser: Parser) -> None:
    _named_options(parser, "run")
    parser.add_argument("-d", "--detach", action="store_true", help="go on without us: print its id; see ps, logs, wait, stop, rm")
    parser.add_argument(
        "-t", "--tty", action="store_true", help="with a terminal of its own: as by itself where all three of ours are; with -d see attach"
    )
    parser.add_argument(
        "-i", "--interactive", action="store_true", help="with -d its standard input stays open, see attach; else it is connected anyway"
    )
    parser.add_argument("--pool", metavar="NAME", help="in a sandbox of this pool, which waits already: see pool create")
    parser.add_argument("--explain", action="store_true", help="print every step of the plan, and stop; with --time: run, then print")
    parser.add_argument("--time", action="store_true", help="with --explain: what each step took")
    parser.add_argument("--script", action="store_true", help="with --explain: one shell script that does the same, for looking")
    parser.quiet("no warnings; with -d the id alone")
    parser.add_argument(
        "--json", action="store_true", help="the result on standard error as JSON, errors too; -d, --explain: on standard output"
    )
    sandbox_options(parser)


def run(options: Namespace) -> int:
    if options.pool is not None:
        from dockless.cli.pools import taken

        box = taken(options)
        return _in_front(box, box.spec.image, options.command or [], options)
    image, command = image_and_command(options)
    wanted = _wanted(options)
    for flag in ("time", "script"):
        if getattr(options, flag) and not options.explain:
            raise BadInput(f"--{flag} without --explain", subject=f"--{flag}", hint=f"dockless run --explain --{flag} …")
    if options.script and (options.time or options.json):
        raise BadInput("--script goes with neither --time nor --json", subject="--script", hint="leave --time and --json out")
    if options.restart and not options.detach:
        hint = "dockless run -d --restart …, or dockless create --restart …"
        raise BadInput("--restart needs -d: a foreground run ends with its program", subject="--restart", hint=hint)
    if options.detach and options.explain:
        raise BadInput("--detach and --explain", subject="--explain", hint="explain it first")
    if options.explain:
        if options.time:
            image = fetched(image, options)
        elif options.platform:
            from dockless._pulling import present

            present(image, "never", platform=options.platform)
        from dockless.cli.explained import explained

        return explained(image, command, wanted, timed=options.time, as_script=options.script, as_json=options.json)
    image = fetched(image, options)
    if options.detach:
        from dockless._finding import start

        return _goes_on(image, command, wanted | _streams(options), options, start)
    return _foreground(image, command, wanted, options)


@contextlib.contextmanager
def _id_file(path: str | None) -> Iterator[Callable[[str], None]]:
    """A function that writes the id into a new file, which goes again if there is no start. ``BadInput`` where there is one."""
    if path is None:
        yield lambda id: None
        return
    try:
        stream = open(path, "x")  # noqa: SIM115 - closed below
    except OSError as error:
        hint = "give a new file, in a directory of yours"
        raise BadInput(f"--cidfile {path}: {error.strerror}", subject="--cidfile", hint=hint) from None
    written: list[str] = []

    def tell(id: str) -> None:
        stream.write(f"{id}\n")
        stream.flush()
        written.append(id)

    with stream:
        try:
            yield tell
        finally:
            if not written:
                os.unlink(path)


def _foreground(image: str, command: list[str], wanted: dict[str, Any], options: Namespace) -> int:
    from dockless._box import Sandbox
    from dockless.cli.signals import on_terminals

    size = None
    if options.tty or (not options.interactive and on_terminals()):
        from dockless.cli import terminal

        size, wanted = terminal.size(), {**wanted, "tty": True, "env": terminal.named(wanted["env"])}
    return _in_front(Sandbox(image, command, id=options.name, pull="never", size=size, **wanted), image, command, options)


def _in_front(made: Sandbox[Any], image: str, command: list[str], options: Namespace) -> int:
    """A run from its start to its end."""
    from dockless.cli.signals import Signals

    with _id_file(options.cidfile) as tell, Signals() as signals, made as box:
        tell(box.id)
        for warning in () if options.quiet or options.json else box.warnings:
            from dockless.cli.output import warn

            warn(warning)
        if box.spec.tty:
            from dockless.cli import terminal

            ended: Exit = terminal.converse(box, used_of(box))
        else:
            ended = signals.wait(box)
    if options.json:
        print_exit(image, command, ended, box)
    elif not options.quiet and (ended.timed_out or ended.oom_killed or ended.unended):
        from dockless.cli.output import warn

        if ended.unended:
            from dockless._result import UNENDED

            warn(UNENDED)
        elif ended.timed_out:
            from dockless._result import DEADLINES
            from dockless.base.units import format_duration

            seconds = getattr(box.spec, ended.limit or "timeout")
            after = "" if ended.limit == "ttl" else f" after {format_duration(seconds)}"  # which may have been moved
            warn(f"{DEADLINES[ended.limit]}{after}, everything inside was killed")
        else:
            warn("the kernel killed something inside for memory", hint="raise --memory")
    return ended.exit_code


def used_of(box: Sandbox[Any]) -> Callable[[], object]:
    """What is to be called when somebody types into it."""
    if not box.spec.idle_timeout:
        return bool
    from dockless.sandbox.run.door import Used

    with contextlib.suppress(SandboxGone):
        return Used(box.inner.entrance())
    return bool


def print_exit(image: str, command: list[str], ended: Exit, box: Sandbox[Any]) -> None:
    from dockless.base.records import plain
    from dockless.cli.output import err, json_text

    document = {
        "image": image,
        "command": command,
        "exit_code": ended.exit_code,
        "gpus": list(box.gpus),
        "simulated": box.simulated,
        **plain(ended),
    }
    err(json_text(document))


def _streams(options: Namespace) -> dict[str, Any]:
    return {"tty": options.tty, "interactive": options.interactive}


def _goes_on(image: str, command: list[str], wanted: dict[str, Any], options: Namespace, make: Callable[..., Sandbox[Any]]) -> int:
    """``make``: ``dockless.start`` or ``dockless.create``."""
    from dockless.cli.output import out, print_json, warn

    wanted = {**wanted, "pull": "never"}
    with _id_file(options.cidfile) as tell:
        box = make(image, command, id=options.name, remove=options.rm, restart=options.restart, **wanted)
        tell(box.id)
    warnings = box.warnings
    if options.json:
        print_json({"id": box.id, "gpus": box.gpus, "warnings": warnings})
        return 0
    if not options.quiet:
        for warning in warnings:
            warn(warning)
    out(box.id)
    return 0
