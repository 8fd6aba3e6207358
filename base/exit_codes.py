"""Exit codes, as shells and the field's tools have them: a command's own, or what stands for the way it ended.

::

    0-255    the command's own
    124      it timed out, timeout(1)
    125      an error of dockless: the command was not started, or what was asked for could not be done
    126      the command cannot be executed
    127      the command was not found
    128+N    signal N ended it: 130 Ctrl-C, 141 nobody reads the output any more
"""

from __future__ import annotations

TIMED_OUT, ERROR, NOT_EXECUTABLE, NOT_FOUND = 124, 125, 126, 127
INTERRUPTED, NO_READER = 130, 141
_SIGNALLED = 128


def exit_code(returncode: int, timed_out: bool = False) -> int:
    """The exit code of a command by its return code, which is minus the signal that ended it, as ``subprocess`` has it."""
    if timed_out:
        return TIMED_OUT
    return returncode if returncode >= 0 else _SIGNALLED - returncode
