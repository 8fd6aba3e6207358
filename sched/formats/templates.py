"""``<% $parameters.model %>`` in texts, as OpenPAI has it: what each stands for is put in; a secret's place stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dockless.base.later import re
from dockless.base.typing import Any
from dockless.errors import BadInput

_REFERENCE = r"<%\s{0,20}\$([A-Za-z_][A-Za-z0-9_]{0,63})((?:\.[A-Za-z0-9_-]{1,64}|\[[0-9]{1,6}\]){0,16})\s{0,20}%>"
_SECRET = r"<%\s{0,20}\$secrets\.([A-Za-z_][A-Za-z0-9_]{0,63})\s{0,20}%>"
_STEP = r"\.([A-Za-z0-9_-]+)|\[([0-9]+)\]"
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


def told(text: str, secrets: Mapping[str, str], where: str) -> str:
    """``text`` with the secrets' values. ``BadInput`` for one that there is not."""

    def one(match: Any) -> str:
        if match[1] not in secrets:
            raise BadInput(
                f"{where} refers to the secret {match[1]!r}, which there is not", subject=where, hint="write it down under secrets"
            )
        return secrets[match[1]]

    return re.sub(_SECRET, one, text)
