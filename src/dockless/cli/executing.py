"""``exec``: a command in a sandbox that runs."""

from __future__ import annotations

from collections.abc import Callable

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.parser import Namespace, Parser
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless._executing import Enterable, Execution
    from dockless.sandbox.run.process import Exit


def exec_in_options(parser: Parser) -> None:
    parser.takes_command = True
    parser.usage = "dockless exec [options] ID -- COMMAND …"
    parser.add_argument("id", metavar="ID", help="a sandbox of `dockless ps`, or the number of a job that runs")
    parser.add_argument("-u", "--user", default="", metavar="USER", help="name or number, [:group]; the sandbox's own if left out")
    command_options(parser, workdir="the sandbox's own if left out")
    parser.add_argument("-d", "--detach", action="store_true", help="go on without us; its output goes nowhere")


def command_options(parser: Parser, *, workdir: str) -> None:
    """Of whatever enters a sandbox."""
    from dockless.cli.sandbox_options import environment_options

    environment_options(parser)
    parser.add_argument("-w", "--workdir", default="", metavar="DIR", help=workdir)
    parser.add_argument("--timeout", metavar="TIME", help="then it ends, and all that it started")
    parser.add_argument("-t", "--tty", action="store_true", help="with a terminal of its own")
    parser.add_argument("-i", "--interactive", action="store_true", help="standard input is connected anyway; alone: never a terminal")
    parser.quiet("no warnings")
    parser.add_argument("--json", action="store_true", help="the result on standard error as JSON, errors too")


def wanted_of(options: Namespace) -> dict[str, Any]:
    """These as keywords."""
    from dockless.cli.sandbox_options import environment_of

    return {"env": environment_of(options), "workdir": options.workdir, "timeout": options.timeout}


def exec_in(options: Namespace) -> int:
    if not options.command:
        raise BadInput("there is no command", subject="COMMAND", hint=f"dockless exec {options.id} -- COMMAND …")
    if options.detach and options.tty:
        raise BadInput("--detach and --tty", subject="--tty", hint="nobody would see the terminal: leave one of them out")
    wanted = wanted_of(options) | {"user": options.user}
    box = opened(options.id)
    if options.detach:
        box.spawn_alone(*options.command, **wanted)
        return 0
    return run_in(options, box.spawn, wanted)


def run_in(options: Namespace, spawn: Callable[..., Execution[Any]], wanted: dict[str, Any]) -> int:
    """Until it has ended, with our terminal where that is wanted. Its exit code."""
    from dockless.cli.signals import Signals, on_terminals

    if options.tty or (on_terminals() and not options.interactive):
        from dockless.cli import terminal

        with spawn(*options.command, tty=True, size=terminal.size(), **{**wanted, "env": terminal.named(wanted["env"])}) as command:
            return _report(options, terminal.converse(command), command)
    with Signals() as signals, spawn(*options.command, **wanted) as command:
        return _report(options, signals.wait(command), command)


def opened(id: str) -> Enterable:
    """The sandbox or the job of that name."""
    from dockless.cli.job_names import find_job

    if (number := find_job(id)) is not None:
        from dockless._submitting import Submitted

        return Submitted(number)
    from dockless._box import Sandbox

    return Sandbox.open(id)


def _report(options: Namespace, ended: Exit, command: Execution[Any]) -> int:
    from dockless.base.records import plain
    from dockless.cli.output import err, json_text, warn

    if options.json:
        err(json_text({"command": list(command.args), "exit_code": ended.exit_code, **plain(ended)}))
    elif not options.quiet and (ended.timed_out or ended.unended):
        from dockless._result import UNENDED

        what = UNENDED if ended.unended else "all that it started was killed"
        warn(f"timed out, and {what}" if ended.timed_out else what)
    return ended.exit_code
