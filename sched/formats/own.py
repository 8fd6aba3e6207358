"""dockless's own job file, TOML or JSON: the keywords of ``dockless.submit`` as keys, for one role or for several.

::

    name = "train"
    image = "python:3.12"
    command = ["python", "train.py"]
    gpus = 2
    memory = "64G"
    time_limit = "2h"
    env = { TOKEN = "<% $secrets.token %>" }
    [secrets]
    token = { env = "TOKEN" }          # in the environment of whoever submits it

With ``[roles.NAME]`` each role has such keys of its own; those at the top are then for all of them. Its instances start together.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from dockless.base.later import re
from dockless.base.typing import Any
from dockless.errors import BadInput
from dockless.sched.formats.jobfile import JobFile, Role, Secret
from dockless.sched.formats.tables import MOST, Source, Table
from dockless.sched.formats.templates import IDENTIFIER, secrets_in, texts_of

QUEUE = (
    "time_limit",
    "priority",
    "group",
    "on_reboot",
    "array",
    "hold",
    "begin",
    "after",
    "singleton",
    "retries",
    "retry_on",
    "warn",
    "notify",
    "notify_to",
)
_OF_ROLE = ("image", "command", "script", "gpus", "count", "reserve_cpus", "ports", "min_failed", "min_succeeded")
_OF_EACH = ("ports", "min_failed", "min_succeeded")
"""What of these is never for all roles."""
_FOR_ALL = ("image", "command", "script", "gpus", "count", "reserve_cpus")
_BARE = r"[A-Za-z0-9_-]{1,200}"


def parse(values: Any, source: Source, keywords: Collection[str]) -> JobFile:
    """``keywords``: those of ``dockless.run``. ``BadInput``"""
    top = Table(source, values)
    known = (*QUEUE, *_OF_ROLE, *keywords, "name", "roles", "secrets")
    name = top.text("name")
    queue = _queue(top)
    secrets = {key: _secret(table, top.values["secrets"][key], key) for key, table in _secrets(top)}
    roles = tuple(_role(table, role, top, keywords) for role, table in top.tables("roles"))
    if top.has("roles") and not roles:
        top.wrong("roles", "is empty", "leave it out for a job of one role")
    for key in _OF_EACH if roles else ():
        if top.has(key):
            top.wrong(key, "stands beside the roles", "write it into the role that it is for")
    for key in _FOR_ALL if roles else ():
        if top.has(key) and all(_own(table, key) for _, table in top.tables("roles")):
            top.note(key, "has no effect: every role has its own")
    if not roles:
        roles = (_role(top, "main", None, keywords),)
    top.done(known)
    return JobFile("dockless", name, roles, queue, secrets, tuple(source.notes), top.has("roles"), source)


def _queue(top: Table) -> dict[str, Any]:
    found = {key: top.value(key) for key in QUEUE if top.has(key)}
    for key in ("after", "notify"):
        if not isinstance(found.get(key, ""), str):
            found[key] = top.texts(key)
    if "retry_on" in found:
        found["retry_on"] = top.items("retry_on")
    return found


def _secrets(top: Table) -> list[tuple[str, Table]]:
    return [(key, top.table("secrets")) for key in top.table("secrets").values]


def _secret(table: Table, value: Any, name: str) -> Secret:
    if not re.fullmatch(IDENTIFIER, name):
        table.wrong(name, "is no name of a secret", "letters, digits and _ make one")
    if not isinstance(value, dict):
        return Secret(table.text(name))
    inner = table.table(name)
    env = inner.text("env", like=IDENTIFIER, hint="give the name of a variable")
    inner.done()
    inner.required("env")
    return Secret(env=env)


def _role(table: Table, name: str, top: Table | None, keywords: Collection[str]) -> Role:
    """``top``: where keys stand that are for all roles, None where this is the top itself."""
    if top is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,63}", name):
        table.wrong("", "is no name of a role", "letters, digits, '-', '_' and '.' make one")
    options = dict[str, Any]()
    for one in (*([top] if top is not None else []), table):
        options |= {key: one.value(key) for key in keywords if one.has(key) and key not in _OF_ROLE}

    def of(key: str) -> Table:
        return top if top is not None and top.has(key) and not table.has(key) else table

    source, count = of("image"), of("count").whole("count", 1, least=1, most=10_000)
    common = () if top is None else _command(top)
    command = _command(table) or common
    gpus = of("gpus").text("gpus")
    if isinstance(table.value("ports"), list):
        hint = 'publish = ["8080:80"] leads from the host inside; ports = {name = 1} is how many free ports a role has under a label'
        table.wrong("ports", "is a list, not a mapping", hint)
        ports = {}
    else:
        ports = {label: _port(table, label) for label in table.table("ports").values}
    found = Role(
        name,
        count,
        source.text("image", "host"),
        command,
        gpus,
        options,
        ports,
        _limit(table, "min_failed", "never", 1),
        _limit(table, "min_succeeded", "all", None, MOST if of("count").wrong_at("count") else count),
        of("reserve_cpus").number("reserve_cpus") if of("reserve_cpus").has("reserve_cpus") else 0.0,
    )
    if top is not None:
        table.done((*_OF_ROLE, *keywords))
    return found


def _own(table: Table, key: str) -> bool:
    """Whether a role says it itself; command and script are the same thing."""
    return any(table.has(one) for one in (("command", "script") if key in ("command", "script") else (key,)))


def _port(table: Table, label: str) -> int:
    ports = table.table("ports")
    if not re.fullmatch(r"[A-Za-z0-9._~-]{1,64}", label):
        ports.wrong(label, "is no label of ports", "letters, digits, '-', '_' and '.' make one")
    return ports.whole(label, least=1, most=1000)


def _limit(table: Table, key: str, word: str, default: int | None, most: int = MOST) -> int | None:
    if not table.has(key):
        return default
    return None if table.value(key) == word else table.whole(key, least=1, most=most)


def _command(table: Table) -> tuple[str, ...]:
    if table.has("script"):
        if table.has("command"):
            table.wrong("script", "stands beside command", "give one of them")
        return ("sh", "-c", table.text("script"))
    if isinstance(table.value("command"), str):
        table.wrong("command", "is one text, not a list", 'give a list, ["python", "train.py"], or a line for a shell as script')
        return ()
    return tuple(table.texts("command"))


# -- and back


def document(job: JobFile) -> dict[str, Any]:
    """The same in our own form. Values of secrets are left out: who submits it has them in the environment. So are secrets to which nothing
    refers."""
    found: dict[str, Any] = {"name": job.name} if job.name else {}
    found |= {key: job.queue[key] for key in QUEUE if key in job.queue}
    alone = len(job.roles) == 1 and job.roles[0].count == 1 and not job.together
    if alone:
        found |= _of_role(job.roles[0])
    else:
        found["roles"] = {role.name: _of_role(role) for role in job.roles}
    used = {name for role in job.roles for text in texts_of([role.image, role.command, role.options]) for name in secrets_in(text)}
    if secrets := {name: secret for name, secret in job.secrets.items() if name in used}:
        found["secrets"] = {name: {"env": variable} for name, variable in _variables(secrets).items()}
    return found


def _variables(secrets: Mapping[str, Secret]) -> dict[str, str]:
    """The variable of each secret: its own, else one made of its name, with a number where another secret has that one."""
    found = {name: secret.env for name, secret in secrets.items()}
    for name in (name for name, env in found.items() if not env):
        variable = made = re.sub("[^A-Z0-9_]", "_", f"SECRET_{name.upper()}")[:64]
        number = 1
        while variable in found.values():
            number += 1
            variable = f"{made[: 63 - len(str(number))]}_{number}"
        found[name] = variable
    return found


def _of_role(role: Role) -> dict[str, Any]:
    found: dict[str, Any] = {"count": role.count} if role.count != 1 else {}
    if role.image != "host":
        found["image"] = role.image
    if role.command:
        found["command"] = list(role.command)
    if role.gpus:
        found["gpus"] = int(role.gpus) if role.gpus.isdecimal() else role.gpus
    if role.reserve_cpus:
        found["reserve_cpus"] = role.reserve_cpus
    if role.min_failed != 1:
        found["min_failed"] = role.min_failed or "never"
    if role.min_succeeded is not None:
        found["min_succeeded"] = role.min_succeeded
    found |= {key: value for key, value in sorted(role.options.items()) if value not in ({}, [], None)}
    if role.ports:
        found["ports"] = dict(role.ports)
    return found


def toml(values: Mapping[str, Any]) -> str:
    """A document as TOML, toml.io: plain values first, then the tables."""
    lines: list[str] = []
    _table(values, (), lines)
    return "\n".join(lines).strip("\n") + "\n"


def _table(values: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    inner = {key: value for key, value in values.items() if isinstance(value, dict) and (key == "roles" or path in ((), ("roles",)))}
    plain = {key: value for key, value in values.items() if key not in inner}
    if path and (plain or not inner):
        lines += ["", f"[{'.'.join(map(_key, path))}]"]
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in inner.items():
        _table(value, (*path, key), lines)


def _key(name: str) -> str:
    return name if re.fullmatch(_BARE, name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return _text(value) if isinstance(value, str) else repr(value)


def _text(value: str) -> str:
    """Several lines as several lines, where nothing in them needs to be written otherwise."""
    if not _speakable(value):
        raise BadInput("a text has half a character", subject="document", hint="save the file as UTF-8")
    escaped = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if "\n" not in value.strip("\n") or '"""' in value or '"' in value[-1:]:
        return escaped
    lines = value.split("\n")
    return (
        '"""\n'
        + "\n".join(json.dumps(line, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("\x7f", "\\u007f") for line in lines)
        + '"""'
    )


def _speakable(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)
