"""What the daemon's log may say about an error that it did not expect: its kind and where it arose.

Never its text, and never what was asked: a request holds its user's arguments and environment, and those hold secrets (attack A67).
Everybody who may read the service's journal reads this.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback

from dockless.base.text import escaped
from dockless.errors import SchedError

_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
"""Where dockless's own modules are."""


def say(text: str) -> None:
    """One line of the daemon's log. One that cannot be written, as on a full disk, is no reason to fail."""
    with contextlib.suppress(OSError):
        print(f"dockless daemon: {escaped(text)}", file=sys.stderr)


def describe(error: BaseException) -> str:
    """``TypeError in engine.py:311 submit``. In full only what is made of our own words: errors of the queue and of the kernel."""
    if isinstance(error, SchedError):
        return str(error)
    text = type(error).__name__
    if isinstance(error, OSError) and error.errno:
        text += f" ({os.strerror(error.errno)})"
    frames = traceback.extract_tb(error.__traceback__, limit=-32)
    if frames:
        own = next((frame for frame in reversed(frames) if frame.filename.startswith(_OWN)), frames[-1])
        text += f" in {os.path.basename(own.filename)}:{own.lineno} {own.name}"
    return text
