"""``exec``: a command in a sandbox that runs."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.parser import Namespace, Parser
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless._executing import Enterable, Execution
    from dockless.sandbox.run.process import Exit


def exec_in_options(parser: Parser) -> None:
    from dockless.cli.sandbox_options import environment_options

    parser.takes_command = True
    parser.usage = "dockless exec [options] ID -- COMMAND …"
    parser.add_argument("id", metavar="ID", help="a sandbox of `dockless ps`, or the number of a job that runs")
    environment_options(parser)
    parser.add_argument("-u", "--user", default="", metavar="USER", help="name or number, [:group]; the sandbox's own if left out")
    parser.add_argument("-w", "--workdir", default="", metavar="DIR", help="the sandbox's own if left out")
    parser.add_argument("--timeout", metavar="TIME", help="then it ends, and all that it started")
    parser.add_argument("-t", "--tty", action="store_true", help="with a terminal of its own")
    parser.add_argument("-i", "--interactive", action="store_true", help="standard input is connected anyway; alone: never a terminal")
    parser.add_argument("-d", "--detach", action="store_true", help="go on without us; its output goes nowhere")
    parser.quiet("no warnings")
    parser.add_argument("--json", action="store_true", help="the result on standard error as JSON, errors too")


def exec_in(options: Namespace) -> int:
    from dockless.cli.sandbox_options import environment_of
    from dockless.cli.signals import Signals, on_terminals

    if not options.command:
        raise BadInput("there is no command", subject="COMMAND", hint=f"dockless exec {options.id} -- COMMAND …")
    if options.detach and options.tty:
        raise BadInput("--detach and --tty", subject="--tty", hint="nobody would see the terminal: leave one of them out")
    wanted: dict[str, Any] = {
        "env": environment_of(options), "workdir": options.workdir, "user": options.user, "timeout": options.timeout
    }  # fmt: skip
    with_terminal = options.tty or (on_terminals() and not options.interactive and not options.detach)
    box = opened(options.id)
    if options.detach:
        box.spawn_alone(*options.command, **wanted)
        return 0
    if with_terminal:
        from dockless.cli import terminal

        with box.spawn(*options.command, tty=True, size=terminal.size(), **{**wanted, "env": terminal.named(wanted["env"])}) as command:
            return _report(options, terminal.converse(command), command)
    with Signals() as signals, box.spawn(*options.command, **wanted) as command:
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
    elif ended.timed_out and not options.quiet:
        warn("timed out, and all that it started was killed")
    return ended.exit_code
