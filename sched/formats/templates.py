"""``<% $parameters.model %>`` in texts, as OpenPAI has it: what each stands for is put in. The place of a secret stays as it is until the
job starts, so that whatever shows a job shows the place and not the value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from dockless.base.later import re
from dockless.base.typing import Any
from dockless.errors import BadInput

_REFERENCE = r"<%\s{0,20}\$([A-Za-z_][A-Za-z0-9_]{0,63})((?:\.[A-Za-z0-9_-]{1,64}|\[[0-9]{1,6}\]){0,16})\s{0,20}%>"
_SECRET = r"<%\s{0,20}\$secrets\.([A-Za-z_][A-Za-z0-9_]{0,63})\s{0,20}%>"
_STEP = r"\.([A-Za-z0-9_-]+)|\[([0-9]+)\]"
Variables = tuple[tuple[str, str], ...]
LONGEST = 1 << 20
"""Characters of what becomes of a text."""


def filled(text: str, scope: Mapping[str, Any], wrong: Callable[[str, str], Any]) -> str:
    """``wrong``: told what is not there, and a hint."""
    left = LONGEST - len(text)

    def one(match: Any) -> str:
        nonlocal left
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

    whole = re.sub(_REFERENCE, one, text)
    if left < 0:
        wrong(f"becomes longer than {LONGEST} characters", "give shorter values")
    return whole


def secrets_in(text: str) -> list[str]:
    """The names of the secrets that a text refers to."""
    return re.findall(_SECRET, text)


def with_known(text: str, secrets: Collection[str], where: str) -> str:
    """``text``, unchanged. ``BadInput`` where it refers to a secret that is not among these names."""
    for name in secrets_in(text):
        if name not in secrets:
            hint = "write it down under secrets"
            raise BadInput(f"{where} refers to the secret {name!r}, which the file does not have", subject=where, hint=hint)
    return text


def with_values(env: Variables, secrets: Mapping[str, str]) -> Variables:
    """The variables with the values of these secrets. A reference to another secret stays as it is."""
    return tuple((name, re.sub(_SECRET, lambda match: secrets.get(match[1], match[0]), text)) for name, text in env)


def check_room(env: Variables, secrets: Mapping[str, str]) -> None:
    """``BadInput`` where variables with the secrets' values are longer than ``LONGEST`` characters together."""
    if sum(len(text) + sum(len(secrets.get(name, "")) for name in secrets_in(text)) for _, text in env) > LONGEST:
        hint = "give shorter secrets, or refer to them in fewer places"
        raise BadInput(f"variables with secrets have more than {LONGEST} characters", subject="secrets", hint=hint)
