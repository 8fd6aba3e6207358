"""The command line: ``dockless VERB …``. One small module per group of verbs, imported only when one of them is used.

Exit codes, as the field has them: the command's own; 128+N if signal N ended it; 124 timed out; 125 an error of dockless, 126 the command
cannot be executed, 127 it was not found. Errors are two lines on standard error (``--json``: one JSON object)::

    dockless: there is no image 'x'
      hint: pull it: dockless pull x; or load it: dockless load FILE; list what is there: dockless images
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

TYPE_CHECKING = False  # importing typing takes as long as all of the rest
if TYPE_CHECKING:
    from dockless.cli.parser import Parser


class Verb:
    """``module`` below ``dockless.cli`` has two functions: ``<verb>_options(parser)`` and ``<verb>(options) -> exit code``. ``function``:
    their name, where the verb itself is a word of Python."""

    def __init__(self, module: str, about: str, group: str, function: str = "") -> None:
        self.module, self.about, self.group, self.function = module, about, group, function


VERBS = {
    "run": Verb("run", "run a command in a sandbox of its own", "now"),
    "create": Verb("run", "write a sandbox down without starting it", "now"),
    "ps": Verb("boxes", "list sandboxes", "now"),
    "exec": Verb("executing", "run a command in a sandbox that runs", "now", "exec_in"),
    "debug": Verb("debugging", "look into a sandbox that runs with another image's tools", "now"),
    "attach": Verb("attaching", "come back to a detached sandbox or a job: its terminal, its streams", "now"),
    "top": Verb("seen", "GPUs, jobs and users, live; or the processes of a sandbox", "now"),
    "events": Verb("events", "what happens to sandboxes, as it happens", "now"),
    "stats": Verb("seen", "what sandboxes take, again and again", "now"),
    "port": Verb("networks", "which ports of the host lead into a sandbox", "now"),
    "logs": Verb("logs", "show what a job or a detached sandbox wrote; -f follows", "now"),
    "cp": Verb("copying", "copy files into a sandbox, or out of it", "now"),
    "stop": Verb("boxes", "end sandboxes: stop signal, then by force", "now"),
    "kill": Verb("boxes", "send a signal to sandboxes (default KILL: everything inside)", "now"),
    "rm": Verb("boxes", "remove sandboxes: logs, records, private layer", "now"),
    "start": Verb("life", "start sandboxes that were created, or have ended", "now"),
    "restart": Verb("life", "stop sandboxes, and start them again", "now"),
    "pause": Verb("life", "pause sandboxes", "now"),
    "unpause": Verb("life", "let them go on", "now"),
    "update": Verb("life", "other limits for sandboxes that run", "now"),
    "rename": Verb("life", "give a detached sandbox another name", "now"),
    "pool": Verb("pools", "sandboxes that are made before they are needed, for run --pool", "now"),
    "images": Verb("images", "list the images of the store; check that it is sound", "images"),
    "pull": Verb("registry", "fetch images from registries; a cut pull goes on where it stopped", "images"),
    "load": Verb("transfer", "load images: OCI layout or tar, docker save archive", "images"),
    "inspect": Verb("inspecting", "everything about images or sandboxes, as JSON", "images"),
    "history": Verb("inspecting", "how an image was made, layer by layer", "images"),
    "search": Verb("images", "find images of the store by a text", "images"),
    "tag": Verb("images", "give an image further names", "images"),
    "rmi": Verb("images", "remove images, or names of them", "images"),
    "df": Verb("disk_usage", "what takes how much of the disk", "images"),
    "prune": Verb("disk_usage", "remove what is not needed", "images"),
    "diff": Verb("changes", "what a detached sandbox changed of its image", "make"),
    "commit": Verb("changes", "make an image of what a detached sandbox changed", "make"),
    "snapshot": Verb("changes", "make an image of a sandbox's files as they are now, quickly", "make"),
    "fork": Verb("changes", "start more sandboxes with the files of one", "make"),
    "push": Verb("registry", "send an image to a registry; a cut push goes on where it stopped", "make"),
    "save": Verb("transfer", "write images to a file: OCI layout or docker archive", "make"),
    "export": Verb("transfer", "write the root of an image or a sandbox as one tar", "make"),
    "import": Verb("transfer", "make an image of the tar of a root file system", "make", "import_root"),
    "login": Verb("registry", "keep a user name and password for a registry", "make"),
    "logout": Verb("registry", "forget them", "make"),
    "network": Verb("networks", "networks that sandboxes are on, and who is on which", "host"),
    "volume": Verb("volumes", "named directories that are kept between sandboxes", "host"),
    "submit": Verb("jobs", "queue a command, or the jobs of a file", "queue"),
    "convert": Verb("job_files", "print a job file of any format in dockless's own form", "queue"),
    "queue": Verb("jobs", "list jobs, and why each waiting one waits", "queue"),
    "why": Verb("why", "why a job waits, when it starts, and what would let it start now", "queue"),
    "simulate": Verb("simulate", "what the scheduler would do with the jobs of a trace", "queue"),
    "wait": Verb("jobs", "wait until jobs or sandboxes have ended", "queue"),
    "cancel": Verb("jobs", "end jobs, waiting or running", "queue"),
    "hold": Verb("job_orders", "keep waiting jobs from starting", "queue"),
    "release": Verb("job_orders", "let held jobs start when their turn comes", "queue"),
    "drain": Verb("draining", "start nothing more on GPUs, or on the host", "queue"),
    "undrain": Verb("draining", "start jobs there again", "queue"),
    "requeue": Verb("job_orders", "end what jobs run, and let them start again; submit again what has ended", "queue"),
    "clone": Verb("cloning", "submit a job again, as it was or changed", "queue"),
    "gpu": Verb("gpus", "this host's GPUs and their slices; describe them for other programs (CDI)", "queue"),
    "info": Verb("host", "GPUs and who holds them, quotas", "queue"),
    "quota": Verb("quota", "what users and groups have of the host, and may have", "queue"),
    "usage": Verb("usage", "GPU-hours and jobs, by user, group, GPU, day, week or month", "queue"),
    "metrics": Verb("metrics", "GPUs, quotas and jobs in numbers, as Prometheus reads them", "queue"),
    "daemon": Verb("host", "start queued jobs; stays in the foreground", "queue"),
    "config": Verb("config", "check and show the settings in dockless.toml", "host"),
    "doctor": Verb("host", "what this machine can do, and the next step for what it cannot", "host"),
    "demo": Verb("host", "two users, four GPUs, a queue: everything in half a minute", "host"),
    "completion": Verb("completion", "shell completion: bash, zsh or fish", "host"),
    "version": Verb("host", "the version", "host"),
}
GROUPS = {"now": "Run now", "images": "Images", "make": "Images made and handed on", "queue": "The queue", "host": "This machine"}

_SANDBOX_VERBS = (
    "attach commit cp create diff exec export kill logs pause port ps rename restart rm run start stats stop top unpause update wait"
)
_IMAGE_VERBS = "history import load prune pull push save tag"
ALIASES = {
    "container": {verb: verb for verb in _SANDBOX_VERBS.split()}
    | {"ls": "ps", "list": "ps", "inspect": "inspect --type sandbox", "prune": "prune --sandboxes"},
    "image": {verb: verb for verb in _IMAGE_VERBS.split()}
    | {"ls": "images", "list": "images", "rm": "rmi", "remove": "rmi", "inspect": "inspect --type image"},
    "system": {"df": "df", "events": "events", "prune": "prune", "info": "info"},
}
"""Docker's verbs of two words, and what they are here."""

STORY = """dockless runs jobs from OCI images on one GPU host: no Docker, no engine.

  dockless run -- echo hello                     a sandbox of the host's own system, gone when the command ends
  dockless pull python:3.12                      from a registry; dockless load FILE from an archive
  dockless run -m 4G --gpus 1 python:3.12 -- python train.py
  dockless submit --gpus 2 IMAGE -- python train.py        into the queue (a daemon starts it: dockless daemon)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of one command line. Without ``argv`` this is the whole program, and it ends here."""
    if argv is not None:
        return _guarded(list(argv))
    arguments = sys.argv[1:]
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _fill_standard_streams()
    os.umask(os.umask(0o077) & 0o077)  # what we make is ours to read and write, whatever the umask
    import gc

    gc.set_threshold(50_000)  # looking for garbage while everything is imported costs milliseconds
    code = _guarded(arguments)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed, or never open
            pass
    if layers := sys.modules.get("dockless.images.layers.erofs"):
        layers.forget_notes()
    os._exit(code)  # taking the interpreter apart would take as long as a sandbox lives


def _fill_standard_streams() -> None:
    """Descriptors 0 to 2 that were closed become /dev/null: a file that we open would otherwise get such a number, and be the program's."""
    fd = os.open(os.devnull, os.O_RDWR)
    while fd < 2:
        fd = os.dup(fd)
    if fd > 2:
        os.close(fd)


def _guarded(arguments: list[str]) -> int:
    """Every error becomes two lines and an exit code."""
    try:
        code = dispatch(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        from dockless.base.exit_codes import INTERRUPTED
        from dockless.cli.output import warn

        if said := str(interrupt):
            warn(f"interrupted: {said}")
        return INTERRUPTED
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except BrokenPipeError:
        # Whoever reads us has gone; a second complaint at exit would be noise.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        from dockless.base.exit_codes import NO_READER

        return NO_READER
    except Exception as error:
        return report(error, as_json="--json" in arguments[: arguments.index("--") if "--" in arguments else None])


def dispatch(arguments: list[str]) -> int:
    """Find the verb, parse its options, call it."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return _help(arguments[1:])
    if arguments in (["version"], ["--version"], ["-V"], ["-v"]):
        return _version()
    from dockless.base.checks import check

    check("the command line", arguments, list[str])
    name, *rest = arguments
    if name in ("-v", "-V", "--version"):
        name = "version"
    name, *rest = _in_one_word([name, *rest])
    _known(name)
    before, command = split(rest)
    parser = parser_of(name)
    options = parser.parse(before)
    options.command = command
    if command is not None and not parser.takes_command:
        parser.error("takes no command after '--'")
    return int(getattr(_module(name), VERBS[name].function or name)(options))


def _version() -> int:
    """What scripts ask at every step: nothing is imported for it, as long as it can be written."""
    from dockless._version import __version__

    try:
        sys.stdout.write(f"dockless {__version__}\n")
        sys.stdout.flush()
    except (OSError, AttributeError):
        from dockless.cli.output import out

        out()  # says what is wrong
    return 0


def _in_one_word(arguments: list[str]) -> list[str]:
    """``container ls …`` as ``ps …``. ``BadInput`` for a second word that is none."""
    name, *rest = arguments
    if name not in ALIASES:
        return arguments
    second = rest[0] if rest else ""
    if second in ALIASES[name]:
        return [*ALIASES[name][second].split(), *rest[1:]]
    from dockless.cli import docker_words
    from dockless.errors import BadInput

    word = docker_words.VERBS.get(second)
    hint = word.hint if word else f"{name} goes before {' '.join(sorted(ALIASES[name]))}"
    raise BadInput(f"unknown verb {f'{name} {second}'.strip()[:60]!r}", subject=name, hint=hint)


def _known(name: str) -> None:
    """``BadInput``, with what to use instead, unless that is a verb."""
    if name in VERBS:
        return
    import difflib

    from dockless.cli import docker_words
    from dockless.errors import BadInput

    if name[:1] == "-":
        option = name.partition("=")[0][:60]
        word = docker_words.before(option)
        raise BadInput(
            f"there is no option {option} before the verb",
            subject=option,
            hint=word.hint if word else "options stand behind the verb: dockless run --help lists those of run",
        )
    word = docker_words.VERBS.get(name)
    if name == "array":
        raise BadInput("unknown verb 'array'", subject=name, hint="many jobs of one kind: dockless submit --array 10 IMAGE -- COMMAND")
    near = difflib.get_close_matches(name, VERBS, 1)
    nearest = f"did you mean `dockless {near[0]}`?" if near else "`dockless help` lists the verbs"
    raise BadInput(f"unknown verb {name[:60]!r}", subject=name[:80], hint=word.hint if word else nearest)


def split(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """What stands before the first ``--``, and what after it: the command, None where there is no ``--``."""
    if "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def parser_of(name: str) -> Parser:
    """The parser of one verb."""
    from dockless.cli.parser import Parser

    parser = Parser(f"dockless {name}", VERBS[name].about)
    getattr(_module(name), f"{VERBS[name].function or name}_options")(parser)
    return parser


def _module(name: str) -> object:
    # Not importlib.import_module: importing importlib itself takes as long as a small module.
    return getattr(__import__(f"dockless.cli.{VERBS[name].module}").cli, VERBS[name].module)


def _help(rest: list[str]) -> int:
    if rest and rest[0] not in ("-h", "--help", "help"):
        rest = _in_one_word(rest)
        _known(rest[0])
        parser_of(rest[0]).print_help()
        return 0
    lines = [STORY]
    for group, title in GROUPS.items():
        lines.append(f"{title}:")
        lines += [f"  {name:<12}{verb.about}" for name, verb in VERBS.items() if verb.group == group]
        lines.append("")
    lines.append("`dockless VERB --help` has the options; `dockless doctor` says what this machine can do.")
    from dockless.cli.output import out

    out(*"\n".join(lines).split("\n"))
    return 0


def _not_ours(error: Exception) -> tuple[str, str, str, str, int]:
    """Kind, message, subject, hint and exit code of what is no error of ours."""
    from dockless.base import exit_codes

    if isinstance(error, TimeoutError):
        return "timeout", str(error), "", "the job or sandbox goes on", exit_codes.TIMED_OUT
    if isinstance(error, OSError):
        from dockless.base.paths import HINTS

        subject = str(error.filename or "")
        message = f"{subject}: {error.strerror}" if subject and error.strerror else str(error)
        return "os", message, subject, HINTS.get(error.errno or 0, "see `dockless doctor`"), exit_codes.ERROR
    if os.environ.get("DOCKLESS_TRACEBACK"):
        raise error
    hint = "this is a bug in dockless; DOCKLESS_TRACEBACK=1 shows where"
    return "bug", f"{type(error).__name__}: {error}", "", hint, exit_codes.ERROR


def report(error: Exception, *, as_json: bool) -> int:
    """Print an error; its exit code. What is no error of ours is a bug, or the operating system's."""
    from dockless.errors import DocklessError

    if isinstance(error, DocklessError):
        document, code = error.as_dict(), error.exit_code
        document["hint"] = document["hint"] or _HINTS.get(error.code, "")
    else:
        kind, message, subject, hint, code = _not_ours(error)
        document = {"error": kind, "message": message, "subject": subject, "hint": hint}
    notes = list(getattr(error, "__notes__", ()))
    from dockless.cli.output import err, json_text, warn

    if as_json:
        err(json_text(document | {"exit_code": code, "notes": notes}))
        return code
    warn(document["message"], hint=document["hint"])
    err(*(f"  note: {note}" for note in notes))
    return code


_HINTS = dict.fromkeys(
    ("bad_image", "bad_digest", "unsafe_layer"), "give a sound OCI layout (directory or tar), or the output of `docker save`"
)
