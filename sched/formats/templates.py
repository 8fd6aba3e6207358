"""``<% $parameters.model %>`` in texts, as OpenPAI has it: what each stands for is put in. The place of a secret stays as it is until the
job starts, so that whatever shows a job shows the place and not the value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from dockless.base.later import re
from dockless.base.typing import Any
from dockless.errors import BadInput

IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
"""A name that can be referred to."""
_REFERENCE = rf"<%\s{{0,20}}\$({IDENTIFIER})" r"((?:\.[A-Za-z0-9_-]{1,64}|\[[0-9]{1,6}\]){0,16})\s{0,20}%>"
_SECRET = rf"<%\s{{0,20}}\$secrets\.({IDENTIFIER})\s{{0,20}}%>"
_OPENING = r"<%\s{0,20}\$(?:(?!%>|<%)[\s\S]){0,1200}(?:%>)?"
"""What looks like a reference; longer than any."""
_STEP = r"\.([A-Za-z0-9_-]+)|\[([0-9]+)\]"
Variables = tuple[tuple[str, str], ...]
LONGEST = 1 << 20
"""Characters of what becomes of a text."""
MOST_SECRETS = 100
"""Of a job."""


def filled(text: str, scope: Mapping[str, Any], wrong: Callable[[str, str], Any]) -> str:
    """``wrong``: told what is not there, and a hint."""
    left = LONGEST - len(text)

    def one(opening: Any) -> str:
        nonlocal left
        match = re.fullmatch(_REFERENCE, opening[0])
        if match is None or (match[1] == "secrets" and not secrets_in(opening[0])):
            hint = "write <% $parameters.NAME %>, or <% $secrets.NAME %> with a NAME of letters, digits and _"
            wrong(unreadable(opening[0])[0], hint)
            return ""
        name, steps = match[1], match[2]
        if name == "secrets":
            return str(match[0])
        found: Any = scope.get(name)
        for key, index in re.findall(_STEP, steps):
            inner = found.get(key) if isinstance(found, dict) and key else None
            if isinstance(found, list) and index and int(index) < len(found):
                inner = found[int(index)]
            found = inner
        if found is None or isinstance(found, (dict, list)):
            wrong(f"refers to ${name}{steps}, which is no value", f"there are {', '.join(f'${key}' for key in scope)} and what is in them")
            return ""
        put = {True: "true", False: "false"}.get(found, str(found)) if isinstance(found, bool) else str(found)
        left -= len(put)
        return put if left >= 0 else ""

    whole = re.sub(_OPENING, one, text)
    if left < 0:
        wrong(f"becomes longer than {LONGEST} characters", "give shorter values")
    return whole


def texts_of(value: Any) -> Iterator[str]:
    """All texts in lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts_of([*value, *value.values()])
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from texts_of(one)


def secrets_in(text: str) -> list[str]:
    """The names of the secrets that a text refers to."""
    return re.findall(_SECRET, text)


def references(text: str) -> list[str]:
    """All that looks like a reference, to a secret or to what else, as it is written."""
    return re.findall(_OPENING, text)


def unreadable(written: str) -> tuple[str, str]:
    """What is wrong with such a text that is no reference to a secret, and a hint."""
    return f"has {written[:60]!r}, which is no reference", "write <% $secrets.NAME %>, with a NAME of letters, digits and _"


def literal_in(text: str, secrets: Collection[str]) -> list[str]:
    """What looks like a reference, and is none to one of these secrets: it stays as it is when the job starts."""
    return [written for written in references(text) if not secrets_in(written) or secrets_in(written)[0] not in secrets]


def with_values(env: Variables, secrets: Mapping[str, str]) -> Variables:
    """The variables with the values of these secrets. A reference to another secret stays as it is."""
    return tuple((name, re.sub(_SECRET, lambda match: secrets.get(match[1], match[0]), text)) for name, text in env)


def check_names(names: Collection[str]) -> None:
    """``BadInput`` where these cannot be the names of a job's secrets."""
    if len(names) > MOST_SECRETS or len({name for name in names if re.fullmatch(IDENTIFIER, name)}) < len(names):
        hint = "letters, digits and _, at most 64 of them, and each name once"
        raise BadInput(f"a job has at most {MOST_SECRETS} secrets, each with a name of its own", subject="secrets", hint=hint)


def check_room(env: Variables, secrets: Mapping[str, str]) -> None:
    """``BadInput`` where variables with the secrets' values are longer than ``LONGEST`` characters together."""
    if sum(len(text) + sum(len(secrets.get(name, "")) for name in secrets_in(text)) for _, text in env) > LONGEST:
        hint = "give shorter secrets, or refer to them in fewer places"
        raise BadInput(f"variables with secrets have more than {LONGEST} characters", subject="secrets", hint=hint)
