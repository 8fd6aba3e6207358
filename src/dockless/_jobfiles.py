"""Job files as jobs of the queue, for ``submit_file`` and ``dockless submit FILE``. What the formats are: ``dockless.sched.formats``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from dockless._submitting import Order, make_job
from dockless.base import json
from dockless.base.dataclass import replace
from dockless.base.findings import Findings
from dockless.base.idmaps import user_name
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import BadInput, DocklessError
from dockless.sched.formats import LONGEST, SUFFIXES, JobFile, Role, read_on, read_own
from dockless.sched.formats.keyword_places import in_its_words, is_unread, place_of
from dockless.sched.formats.tables import Source, shown_value
from dockless.sched.formats.templates import literal_in, references, secrets_in, texts_of, unreadable
from dockless.sched.parsing import NONE_QUEUED, with_line

if TYPE_CHECKING:
    from dockless.sched import JobSpec
    from dockless.sched.parsing import ArrayCount

_NOT_IN_FILES = ("gpus", "labels", "limits", "egress")
"""Of the keywords of ``dockless.run``: one that is read apart, one that jobs do not have, and two that only Python can give."""
_OF_PULLS = ("pull", "platform")
_HIDDEN = "DOCKLESS_COMMANDS"
_FROM_HIDDEN = f'commands=${_HIDDEN}; unset {_HIDDEN}; eval "$commands"'
"""Commands of a shell that come in a variable."""
_OF_OPENPAI = "PAI_TASK_ROLE_LIST"
"""A variable that each of its jobs has, also in our own form."""
_FIRST = ("master", "chief")
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash")
_LONGEST_LIST = 64 << 20
_TOLD_EVERY = 200


def order_of(file: JobFile, what: str, *, array: ArrayCount | None = None, **queue: Any) -> Order:
    """What is queued of a file. ``array`` and ``queue``: instead of what it says, where not None. ``BadInput`` with all that is wrong."""
    wrong = _wrong_of(file, what)
    own_array = array_of(file, what, wrong) if array is None else None
    pulls: Mapping[str, Mapping[str, str]] = {}
    with wrong.noted():
        pulls = pulls_of(file, what)
    if together := start_together(file, array=array is not None or "array" in file.queue):
        if array is not None:
            _refuse_array(file, what)
        jobs = _gang_of(file, what, queue, wrong)
    else:
        jobs = [job] if (job := _job_of(file, what, queue, wrong)) is not None else []
    wrong.refuse()
    return Order(tuple(jobs), array or own_array, together, pulls, file.format == "sbatch")


def _wrong_of(file: JobFile, what: str) -> Source:
    """What was found wrong when it was read, to be told with all else. ``BadInput`` with it where no role could be read."""
    if file.source is None:
        return Source(what)
    if not file.roles:
        file.source.refuse()
    return file.source.further()


def keywords() -> list[str]:
    """The keys that a role may have in dockless's own form, beside its own."""
    from dockless._keywords import Options

    return [name for name in Options.__annotations__ if name not in _NOT_IN_FILES]


def is_job_file(name: str) -> bool:
    """Whether a word where an image could stand is a file: ``-``, a path (no image's name begins so), or a file of such a name."""
    return name[:1] in "-./~" or (name.endswith(SUFFIXES) and os.path.isfile(name))


def refuse_missing(name: str) -> None:
    """``BadInput`` for a word that looks like a job file, not like an image's name, and is not there."""
    if name.endswith(SUFFIXES) and not any(sign in name for sign in ":@") and not os.path.lexists(name):
        hint = "name a file that is there; or an image, with its tag: dockless submit NAME:TAG"
        raise BadInput(f"there is no file {name[:200]}", subject=name[:80], hint=hint)


def read_job_file(path: str, *, format: str = "", arguments: Sequence[str] = ()) -> JobFile:
    """``path``: ``-`` for standard input. What is wrong as in ``read_on``; ``BadInput``"""
    text = _text(path, LONGEST)
    what = "standard input" if path == "-" else path
    directory = os.path.dirname(os.path.abspath(os.path.expanduser(path))) if path != "-" else os.getcwd()
    return read_text(text, what, directory, format, arguments)


def read_text(text: str, what: str, directory: str, format: str, arguments: Sequence[str]) -> JobFile:
    return read_on(text, what, format=format, keywords=keywords(), directory=directory, environment=os.environ, arguments=arguments)


def _text(path: str, longest: int) -> str:
    hint = "give a file of text: docs/queue.md has the formats"
    try:
        with open(0 if path == "-" else os.path.expanduser(path), "rb", closefd=path != "-") as stream:
            data = stream.read(longest + 1)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadInput(f"{path}:{line}: this is not UTF-8", subject=path, hint="save the file as UTF-8") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {path}: {getattr(error, 'strerror', None) or error}", subject=path, hint=hint) from None
    if len(data) > longest:
        raise BadInput(f"{path} has more than {longest} bytes", subject=path, hint=hint)
    if "\0" in text:
        raise BadInput(f"{path} has a NUL byte in it", subject=path, hint=hint)
    return text.replace("\r\n", "\n")


def jobs_of_list(path: str, progress: Callable[[int, int], None] = lambda done, of: None) -> list[JobSpec]:
    """The jobs of a file of lines, each a job in dockless's own form, JSON. ``progress``: told now and then how many of how many lines are
    read. ``BadInput`` with a note for each further mistake; an interrupt says that nothing is queued."""
    try:
        return _jobs_of_list(path, progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(NONE_QUEUED) from None


def _jobs_of_list(path: str, progress: Callable[[int, int], None]) -> list[JobSpec]:
    found: list[JobSpec] = []
    wrong = Findings(NONE_QUEUED)
    lines = _text(path, _LONGEST_LIST).rstrip("\n").split("\n")
    if not any(map(str.strip, lines)):
        raise BadInput(f"{path} is empty", subject=path, hint='write a job on each line: {"command": ["true"]}')
    known = keywords()
    for number, line in enumerate(lines, 1):
        if number % _TOLD_EVERY == 0:
            progress(number, len(lines))
        try:
            found.append(_job_of_line(line, f"{path}:{number}", known))
        except DocklessError as error:
            wrong.add(error)
    wrong.refuse()
    return found


def name_lines(error: DocklessError, path: str) -> None:
    """What the daemon refuses of a list is told by the lines of its file."""
    told = with_line(str(error), path)
    if error.number and told == str(error):  # it names no place in a list of one job
        told = f"{path}:{error.number}: {told}"
    error.args = (told, *error.args[1:])
    if notes := getattr(error, "__notes__", None):
        notes[:] = [with_line(note, path) for note in notes]


def _job_of_line(line: str, what: str, known: Sequence[str]) -> JobSpec:
    """``BadInput`` with all that is wrong."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise BadInput(f"{what} is not JSON", subject=what, hint="write one object on each line") from None
    file = read_own(values, Source(what), known)
    wrong = _wrong_of(file, what)
    for name in _OF_PULLS:
        if any(role.options.get(name) is not None for role in file.roles):
            wrong.add(BadInput(f"{what}: {name} stands in a list of jobs", subject=name, hint=f"say it for all of them: --{name}"))
    if "array" in file.queue:
        hint = "submit the array alone, or write its jobs out"
        wrong.add(BadInput(f"{what}: array stands in a list of jobs", subject="array", hint=hint))
    job = _job_of(file, what, {}, wrong)
    wrong.refuse()
    assert job is not None
    return job


def _job_of(file: JobFile, what: str, queue: Mapping[str, Any], wrong: Findings) -> JobSpec | None:
    """None where something is wrong, which is noted."""
    if _is_several(file):
        listed = ", ".join(f"{role.name} ({role.count})" for role in file.roles)
        hint = "submit it as a file: dockless submit FILE"
        wrong.add(BadInput(f"{what} has several instances: {listed[:200]}; here stands one", subject=what, hint=hint))
        return None
    job = _make_job(file, file.roles[0], what, queue, wrong)
    return _with_variables(job, file.roles[0]) if job is not None and file.together else job


def _is_several(file: JobFile) -> bool:
    return len(file.roles) != 1 or file.roles[0].count != 1


def start_together(file: JobFile, *, array: bool = False) -> bool:
    """Whether it becomes several jobs, or one that is told of its rank and its ports. ``array``: of many of it, which start one after the
    other."""
    return _is_several(file) or bool(file.roles[0].ports) or (file.together and not array)


def _refuse_array(file: JobFile, what: str) -> None:
    """``BadInput``: what starts together is no array."""
    with _placed(file, file.roles[0], what):
        beside = "several roles or instances" if _is_several(file) else "ports"
        raise BadInput(f"array stands beside {beside}", subject="array", hint="give one of them")


def _with_variables(job: JobSpec, role: Role) -> JobSpec:
    """A job of an array with the variables that say its rank, its port and the cluster: it is the only one there, and its port is in its
    own network. Those that start together get theirs from the daemon."""
    from dockless.sched.jobs import JobOptions
    from dockless.sched.roles import FIRST_PORT, LOOPBACK, environment

    if job.spec.network == "host":
        return job
    own = dict(job.spec.env)
    found = environment([JobOptions(role=role.name, ports=(FIRST_PORT,))], 0, [LOOPBACK], [LOOPBACK], openpai=_OF_OPENPAI in own)
    return replace(job, spec=replace(job.spec, env=tuple((found | own).items())))


def _gang_of(file: JobFile, what: str, queue: Mapping[str, Any], wrong: Findings) -> list[JobSpec]:
    """The jobs that start together, by rank: a role that is called master or chief comes first. What is wrong is noted."""
    from dockless.sched.jobs import MAX_MEMBERS

    count = sum(role.count for role in file.roles)
    if count > MAX_MEMBERS:
        hint = "submit an array, of jobs that start one after the other: --array"
        wrong.add(BadInput(f"{what} has {count} instances, and at most {MAX_MEMBERS} can start together", subject=what, hint=hint))
        return []
    if "array" in file.queue:
        with wrong.noted():
            _refuse_array(file, what)
    found: list[JobSpec] = []
    for role in sorted(file.roles, key=lambda role: role.name.lower() not in _FIRST):
        ports = tuple(f"{label}:{count}" for label, count in role.ports.items())
        failed, succeeded = (min(number or 0, MAX_MEMBERS) for number in (role.min_failed, role.min_succeeded))
        if (job := _make_job(file, role, what, queue, wrong)) is None:
            continue
        name, ports = ("main" if is_unread(file, role, "role") else role.name), (() if is_unread(file, role, "ports") else ports)
        with wrong.noted(), _placed(file, role, what):
            found += [replace(job, role=name, ports=ports, min_failed=failed, min_succeeded=succeeded)] * role.count
    return found


def _make_job(file: JobFile, role: Role, what: str, queue: Mapping[str, Any], wrong: Findings) -> JobSpec | None:
    """None where something is wrong, which is noted."""
    from dockless._keywords import QueueOptions

    given = {name: value for name, value in queue.items() if value is not None}
    said = {**file.queue, "name": file.name} | given
    said.pop("array", None)
    for name in said:
        if name not in QueueOptions.__annotations__:
            raise BadInput(f"{what}: {name} is not possible yet", subject=name, hint="leave it out")
    if isinstance(env := role.options.get("env"), Mapping) and _OF_OPENPAI in env:
        user = {"PAI_USER_NAME": user_name(os.geteuid()) or str(os.geteuid())}
        role = replace(role, options={**role.options, "env": {**user, **env}})
    unread = {name for name in (*said, *role.options, *_NAMES, "secrets") if name not in given and is_unread(file, role, name)}
    for name, check in _NAMES.items():
        with wrong.noted(), _placed(file, role, what, name):
            if name not in unread:
                unread.add(name)
                check(role)
                unread.remove(name)
    env = role.options.get("env")
    for name, value in env.items() if isinstance(env, Mapping) else ():
        with wrong.noted(), _placed(file, role, what, "env"):
            _text_of(value, name)
    options = {name: value for name, value in role.options.items() if name != "env"}
    hidden = replace(role, options=options)  # without variables, where one is wrong
    secrets: Mapping[str, str] = {}
    if "secrets" not in unread:
        with wrong.noted(), _placed(file, role, what):
            secrets = _secrets(file)
            hidden = _hidden(role, secrets, file)
    found = _made(file, hidden, what, said, given, unread, wrong)
    if found is not None and role.reserve_cpus:
        with wrong.noted(), _placed(file, role, what, "reserve_cpus"):
            found = replace(found, reserve_cpus=role.reserve_cpus)
    if found is not None and secrets:
        with wrong.noted(), _placed(file, role, what, "secrets"):
            used = {name for _, text in found.spec.env for name in secrets_in(text)}
            found = replace(found, secrets=tuple((name, value) for name, value in secrets.items() if name in used))
    if role.image == "host" and not role.command and not role.options.get("entrypoint") and not wrong.errors:
        hint = "give a command, or an image that has one of its own; docs/queue.md shows what a job file says"
        wrong.add(BadInput(f"{what} says no command, and the image host has none", subject=what, hint=hint))
    return found


_NEEDED_BY: Mapping[str, Sequence[str]] = {
    "time_limit": ("warn",), "name": ("singleton", "after"), "cpus": ("cpu_burst",), "image": ("root_size", "disk"),
    "root": ("root_size", "disk"), "network": ("add_hosts",),
}  # fmt: skip
"""Keywords that are refused where another one is not there."""


def _made(
    file: JobFile,
    role: Role,
    what: str,
    said: Mapping[str, Any],
    given: Mapping[str, Any],
    unread: Collection[str],
    wrong: Findings,
) -> JobSpec | None:
    """The job without the keywords that are wrong; each is noted, and the others are looked at without it. None where there is none.
    ``given``: what of ``said`` the file does not say. ``unread``: what is known to be wrong."""
    queue, options = dict(said), dict(role.options)
    image = "unread" if "image" in unread else role.image
    gpus = "" if "gpus" in unread else role.gpus

    def leave_out(name: str) -> None:
        for one in (name, *_NEEDED_BY.get(name, ())):
            queue.pop(one, None)
            options.pop(one, None)

    def attempt(without: str = "") -> JobSpec:
        kept = [{key: value for key, value in of.items() if key != without} for of in (queue, options)]
        return make_job(image, role.command, _options(replace(role, gpus=gpus, options=kept[1])), **kept[0])

    for name in unread:
        leave_out(name)
    while True:
        try:
            return attempt()
        except BadInput as error:
            name = error.subject if error.subject in {*queue, *options} else _keyword_of(error, attempt, (*options, *queue))
            with wrong.noted(), contextlib.nullcontext() if name in given else _placed(file, role, what, name):
                raise
            if not name:
                return None
            leave_out(name)


def _keyword_of(error: BadInput, attempt: Callable[[str], object], names: Sequence[str]) -> str:
    """The keyword without which it does not come, where its subject is a part of the value; "" for none."""
    for name in names:
        try:
            attempt(name)
        except BadInput as other:
            if str(other) == str(error):
                continue
        return name
    return ""


@contextlib.contextmanager
def _placed(file: JobFile, role: Role, what: str, key: str = "") -> Iterator[None]:
    """An error of a keyword names the file, and its line where that is known; in another's format the role, too. ``key``: the keyword,
    where the error is about a part of its value."""
    try:
        yield
    except BadInput as error:
        if str(error).startswith(what):
            raise
        keyword = key or error.subject
        line, above = place_of(file, role, keyword)
        why = in_its_words(file, role, keyword, str(error))
        raise BadInput(f"{what}{f':{line}' if line else ''}: {above}{why}", subject=error.subject, hint=error.hint) from None


def _check_gpus(role: Role) -> None:
    """They are looked up later. ``BadInput``"""
    from dockless.sandbox.gpus.request import parse_request

    if role.gpus:
        parse_request(role.gpus)


def _check_image(role: Role) -> None:
    """It is looked up later. ``BadInput``"""
    from dockless.images.model.reference import parse

    if role.image != "host":
        parse(role.image)


_NAMES: Mapping[str, Callable[[Role], None]] = {"gpus": _check_gpus, "image": _check_image}


def pulls_of(file: JobFile, what: str) -> dict[str, dict[str, str]]:
    """What the file says of how its images are pulled: ``pull`` and ``platform`` of each. ``BadInput``"""
    found: dict[str, dict[str, str]] = {}
    for role in file.roles:
        if any(is_unread(file, role, name) for name in ("image", *_OF_PULLS)):
            continue
        said = {name: role.options[name] for name in _OF_PULLS if role.options.get(name) is not None}
        if found.setdefault(role.image, said) != said:
            hint = "say the same in each role, or say it at the top of the file"
            raise BadInput(f"{what}: the image {role.image} is to be pulled in two ways", subject=role.image, hint=hint)
    return found


def array_of(file: JobFile, what: str, wrong: Findings) -> ArrayCount | None:
    """See ``parse_array``; what is wrong is noted."""
    from dockless.sched.parsing import parse_array

    role = file.roles[0]
    with wrong.noted(), _placed(file, role, what, "array"):
        return parse_array(file.queue["array"]) if "array" in file.queue and not is_unread(file, role, "array") else None
    return None


def _options(role: Role) -> dict[str, Any]:
    options = dict(role.options)
    if role.gpus:
        options["gpus"] = role.gpus
    if isinstance(options.get("health"), Mapping):
        options["health"] = _health(options["health"])
    return options


def _health(said: Mapping[str, Any]) -> Any:
    """A ``HealthCheck`` of plain values."""
    from dockless.base.healthcheck import HealthCheck
    from dockless.base.records import read as read_record
    from dockless.base.units import parse_duration

    times = ("interval", "timeout", "start_period")
    return read_record(
        HealthCheck, {name: parse_duration(value, f"health.{name}") if name in times else value for name, value in said.items()}, "health"
    )


def _secrets(file: JobFile) -> dict[str, str]:
    """The values of those that are there."""
    found = {}
    for name, secret in file.secrets.items():
        value = secret.value or os.environ.get(secret.env, "")
        if not value:
            hint = 'write it down, or { env = "NAME" }' if file.format == "dockless" else "write it down under secrets"
            if secret.env:
                hint = f"set the variable {secret.env}"
            raise BadInput(f"the secret {name} has no value", subject=f"secrets.{name}", hint=hint)
        found[name] = value
    return found


def _check_references(text: str, secrets: Collection[str], file: JobFile, where: str) -> str:
    """``text``, unchanged. ``BadInput`` where it refers to a secret that is not among these names, or to none in a file that has some: text
    of others may hold ``<%`` by itself."""
    for written in literal_in(text, secrets):
        if written in file.literal:
            continue
        if found := secrets_in(written):
            hint = "write it down under secrets" if file.source is not None else "clone it with --edit, and write it down under secrets"
            raise BadInput(f"{where} refers to the secret {found[0]!r}, which the file does not have", subject=where, hint=hint)
        if file.secrets or file.format == "openpai-2":
            why, hint = unreadable(written)
            raise BadInput(f"{where} {why}", subject=where, hint=hint)
    return text


def _hidden(role: Role, secrets: Mapping[str, str], file: JobFile) -> Role:
    """A secret goes into variables alone, which nothing lists. A shell's commands that need one come in a variable, too. The values are put
    in when the job starts."""
    env = role.options.get("env")
    options = dict(role.options)
    if isinstance(env, Mapping):
        options["env"] = {name: _check_references(_text_of(value, name), secrets, file, f"env.{name}") for name, value in env.items()}
    elif env is not None:
        if not isinstance(env, (list, tuple)):
            raise BadInput(f"env is {shown_value(env)}, not a mapping", subject="env", hint='write env = { NAME = "value" }')
        options["env"] = [_check_references(_text_of(one), secrets, file, "env") for one in env]
    command = role.command
    if len(command) >= 3 and command[0] in _SHELLS and command[1] == "-c":
        _check_references(command[2], secrets, file, "command")
        if not secrets.keys().isdisjoint(secrets_in(command[2])):
            options["env"] = dict(_pairs(options.get("env"))) | {_HIDDEN: command[2]}
            command = (*command[:2], _FROM_HIDDEN, *command[3:])
    listed = [("image", role.image), *(("command", one) for one in command)]
    listed += [(name, text) for name, value in options.items() if name != "env" for text in texts_of(value)]
    if elsewhere := [(name, text) for name, text in listed if any(one not in file.literal for one in references(text) if secrets_in(one))]:
        raise BadInput(
            f"a secret stands where everybody on the host can read it: {elsewhere[0][1][:60]!r}",
            subject=elsewhere[0][0],
            hint="put it into a variable (env), or into the commands of a shell: script",
        )
    for name, text in listed:
        _check_references(text, secrets, file, name)
    return replace(role, command=command, options=options)


def unhidden(role: Role) -> Role:
    """The inverse of ``_hidden``: the commands of the shell stand in ``command`` again."""
    env = role.options.get("env", {})
    if _HIDDEN not in env or role.command[2:3] != (_FROM_HIDDEN,):
        return role
    command = (*role.command[:2], env[_HIDDEN], *role.command[3:])
    return replace(role, command=command, options={**role.options, "env": {key: env[key] for key in env if key != _HIDDEN}})


def _text_of(value: Any, name: str = "") -> str:
    """A variable's value: truth as the format writes it. ``BadInput`` for a list or a table."""
    if isinstance(value, (list, dict)):
        raise BadInput(f"env{'.' * bool(name)}{name[:60]} is {shown_value(value)}, not a text", subject="env", hint="put it in quotes")
    return {None: "", True: "true", False: "false"}[value] if isinstance(value, (bool, type(None))) else str(value)


def _pairs(env: Any) -> Mapping[str, str]:
    from dockless._options import environment

    return dict(environment(env)) if env else {}
