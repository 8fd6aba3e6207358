"""``clone``: a job of the queue once more, or all that start together, as it was or changed."""

from __future__ import annotations

import os

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.job_names import job_number
from dockless.cli.jobs import queue_group, submit_order
from dockless.cli.output import out, print_json
from dockless.cli.parser import Namespace, Parser
from dockless.cli.sandbox_options import keywords, sandbox_options
from dockless.errors import BadInput, Refused

if TYPE_CHECKING:
    from dockless.sched.formats import JobFile


_NAME_IT = "name your editor in the variable EDITOR"


def clone_options(parser: Parser) -> None:
    parser.takes_command = True
    parser.usage = "dockless clone [options] ID [-- COMMAND …]"
    parser.add_argument("id", metavar="ID", help="a job of yours, also one that has ended; the first of those that start together")
    parser.add_argument("--role", default="", metavar="NAME", help="of jobs that start together: change those of that role alone")
    parser.add_argument("--edit", action="store_true", help="open it as a job file in $EDITOR before it is submitted")
    parser.add_argument("--print", action="store_true", help="print it as a job file, and submit nothing")
    queue_group(parser)
    parser.quiet("the job id alone")
    parser.json()
    sandbox_options(parser)


def clone(options: Namespace) -> int:
    from dockless._cloning import file_of, with_options
    from dockless._jobfiles import order_of
    from dockless.base.dataclass import replace
    from dockless.sched import connect
    from dockless.sched.formats.own import document, toml

    number = job_number(options.id)
    if options.edit and options.print:
        raise BadInput("--edit and --print", subject="--edit", hint="leave one of them out")
    if options.command is not None and not options.command:
        raise BadInput("there is no command after '--'", hint="leave '--' out for the job's own")
    what = f"job {number}"
    with connect() as queue:
        job = queue.job(number)
        if job.options.members > 1 and (job.gang != number or "_" in options.id):
            hint = f"dockless clone {job.gang} submits all of them again, with --role {job.options.role} for changes to that role alone"
            raise BadInput(f"{what} has no clone of its own: it starts together with others", subject=options.id, hint=hint)
        file = file_of([queue.spec(number + rank) for rank in range(job.options.members or 1)])
        if not options.print and (owner := job.user) != queue.ping().user:
            hint = f"`dockless requeue {number}` submits one that has ended again as {owner}'s; --print shows it"
            raise Refused(f"{what} belongs to {owner}, and its clone would have your rights", subject=str(number), hint=hint)
    said = keywords(options) | {"tty": options.tty or None, "interactive": options.interactive or None}
    file = with_options(file, said, options.command or (), options.role)
    file = replace(file, name=options.name or file.name, queue={**file.queue, **_said(options)})
    if options.print:
        if options.json:
            print_json(document(file), indent=2)
        else:
            out(*toml(document(file)).removesuffix("\n").split("\n"))
        return 0
    if options.edit:
        return _edited(file, number, options)
    _refuse_unknown_secrets(file, said["env"], options)
    return submit_order(order_of(file, what), options)


def _refuse_unknown_secrets(file: JobFile, env: Any, options: Namespace) -> None:
    """``BadInput`` where the command line refers to a secret that the job does not have."""
    from dockless.sched.formats.templates import secrets_in

    texts = [("-e", text) for text in (env.values() if hasattr(env, "values") else env or ())]
    for where, text in [*texts, *(("the command", one) for one in options.command or ())]:
        for name in secrets_in(text):
            if name not in file.secrets:
                hint = f"dockless clone --edit {job_number(options.id)}, and write it down under secrets"
                raise BadInput(f"{where} refers to the secret {name!r}, which the job does not have", subject=where, hint=hint)


def _said(options: Namespace) -> dict[str, Any]:
    """What the command line says to the queue, as a job file says it."""
    from dockless.sched.formats.own import QUEUE

    said = {name: getattr(options, name, None) for name in QUEUE}
    said["on_reboot"] = options.on_reboot if options.on_reboot != "fail" else None
    if options.array is not None:
        said["array"] = f"{options.array}%{options.array.limit}" if options.array.limit else int(options.array)
    return {name: value for name, value in said.items() if value not in (None, "", 0, [])}


def _editor() -> list[str]:
    """The user's editor with its options. ``BadInput`` for a variable that names none."""
    import shlex

    name = next((name for name in ("VISUAL", "EDITOR") if os.environ.get(name)), "")
    try:
        found = shlex.split(os.environ[name]) if name else ["vi"]
    except ValueError as error:  # a quotation mark without its other one
        raise BadInput(f"the variable {name} is no command: {error}", subject="--edit", hint=_NAME_IT) from None
    if not found:
        raise BadInput(f"the variable {name} names no editor", subject="--edit", hint=_NAME_IT)
    return found


def _edited(file: JobFile, number: int, options: Namespace) -> int:
    """Submitted as the user's editor leaves it. A text that is wrong is not lost. Values of secrets are not in it: where neither
    the text nor the environment has one, the job's own is used."""
    import shlex
    import subprocess
    import tempfile

    from dockless._jobfiles import order_of, read_job_file
    from dockless.base.dataclass import replace
    from dockless.sched.formats.own import document, toml

    editor = _editor()
    fd, path = tempfile.mkstemp(prefix=f"job-{number}-", suffix=".toml")  # for its owner alone: variables may hold secrets, too
    with open(fd, "w", encoding="utf-8") as stream:
        stream.write(toml(document(file)))
    try:
        code = subprocess.run([*editor, path]).returncode
    except OSError as error:
        os.unlink(path)
        raise BadInput(f"{editor[0]} cannot be started: {error.strerror}", subject="--edit", hint=_NAME_IT) from None
    if code:
        os.unlink(path)
        raise BadInput(f"{editor[0]} ended with exit code {code}, so nothing was submitted", subject="--edit", hint="try again")
    try:
        edited = read_job_file(path)
        unsaid = {name for name, secret in edited.secrets.items() if not secret.value and not os.environ.get(secret.env)}
        own = {name: secret for name, secret in file.secrets.items() if name in unsaid}
        order = order_of(replace(edited, secrets={**edited.secrets, **own}, literal=file.literal), path)
    except BadInput as error:
        again = f"dockless submit {shlex.quote(path)}"
        if file.secrets:  # whose values the job has, and the text does not
            again = f"correct {path}, then VISUAL={shlex.quote(f'cp {shlex.quote(path)}')} dockless clone --edit {number}"
        error.hint = "; ".join(filter(None, (error.hint, f"your text is kept: {again}")))
        raise
    os.unlink(path)
    return submit_order(order, options)
