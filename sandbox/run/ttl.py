"""A sandbox's time to live: its end, which its owner moves while it runs. What carries it out is native/launcher/deadlines.c."""

from __future__ import annotations

import time

from dockless.base.dataclass import replace
from dockless.errors import BadInput
from dockless.sandbox.run import door
from dockless.sandbox.run.box import Box
from dockless.sandbox.run.documents import Document

_LONGEST = 10**9


def extend(box: Box, seconds: float) -> float:
    """It ends ``seconds`` from now, whatever was said before: when that is, in seconds since 1970. ``SandboxGone``, ``BadInput``"""
    if not 0 < seconds <= _LONGEST:
        hint = f"give seconds, more than 0 and up to {_LONGEST:d}"
        raise BadInput(f"a sandbox cannot end in {seconds} s", subject="seconds", hint=hint)

    def moved(known: Document) -> Document:
        ends = time.time() + seconds
        door.extend(box.entrance(), seconds)
        return replace(known, ends=ends)

    return box.change(moved).ends
