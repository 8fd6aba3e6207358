"""What is put back also when the program that changed it is killed: a small process outside of it waits for its end.

It is the launcher with a plan of two operations, in a session of its own, so that a signal to the program's process group spares it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

from dockless import native
from dockless.sandbox.plan.plan import SLOT_FREE, SLOT_LEASH, SLOT_PLAN, Op, Plan, encode, in_memory

_TCGETS, _MODES = 0x5401, 36
"""And the bytes of the kernel's struct termios, ioctl_tty(2)."""


class Guard:
    """Carries out ``op`` with ``fd`` when we are killed. ``release`` when there is nothing to put back. ``OSError``"""

    def __init__(self, op: Op, fd: int, name: str) -> None:
        plan = in_memory(encode(Plan((Op("SETSID"), op), None)))
        reader, self._leash = os.pipe2(os.O_CLOEXEC)
        try:
            self._launched = native.launch({SLOT_PLAN: plan, SLOT_LEASH: reader, SLOT_FREE: fd}, name=name)
        except BaseException:
            os.close(self._leash)
            raise
        finally:
            os.close(plan)
            os.close(reader)

    def release(self) -> None:
        """Nobody has to put anything back any more."""
        with contextlib.suppress(BrokenPipeError):  # somebody has ended it
            os.write(self._leash, b"K")
        os.close(self._leash)
        native.reap(self._launched.pidfd)
        os.close(self._launched.pidfd)


def restores_terminal(fd: int) -> Guard:
    """Gives a terminal the modes back that it has now. ``OSError`` for what is no terminal."""
    modes = fcntl.ioctl(fd, _TCGETS, bytes(_MODES))
    return Guard(Op("RESTORE", SLOT_FREE, a=modes), fd, "dockless-terminal")


def thaws_cgroup(fd: int) -> Guard:
    """Thaws a cgroup: ``fd`` is its cgroup.freeze, open for writing. ``OSError``"""
    return Guard(Op("THAW", SLOT_FREE), fd, "dockless-thaw")
