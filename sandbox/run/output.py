"""The output of a detached sandbox as its keeper wrote it down (``logfile``): all of it, the last of it, or what comes until it ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from dockless.base.typing import TYPE_CHECKING
from dockless.base.waits import Pause, readable
from dockless.errors import SandboxGone, Unsupported
from dockless.sandbox.run import logfile
from dockless.sandbox.run.logfile import Log, Row, open_log
from dockless.sandbox.run.process import missing

if TYPE_CHECKING:
    from dockless.sandbox.run.box import Box

_POLL = 0.1
"""Seconds between looks for new output."""


def check_logged(box: Box) -> None:
    """``Unsupported`` for one whose output is not kept, ``SandboxGone`` for one that was removed."""
    if box.foreground:
        hint = "begin detached to have it kept: dockless run -d"
        raise Unsupported(f"the output of sandbox {box.id} goes to the program that started it", subject=box.id, hint=hint)
    with contextlib.suppress(SandboxGone):
        if not box.spec.keep_log:
            hint = "start it without --log-driver none (keep_log=False)"
            raise Unsupported(f"the output of sandbox {box.id} is not kept", subject=box.id, hint=hint)
    if not box.directory.is_dir():
        raise missing(box.id)


def last_rows(box: Box, count: int) -> list[Row] | None:
    """See ``Box.last_rows``."""
    return logfile.last_rows(lambda name: open_log(box.directory, name), count)


def rows(box: Box, follow: bool) -> Iterator[Row | Pause]:
    """See ``Box.reading``."""
    alive = _ends(box) if follow else -1
    log = Log(lambda name: open_log(box.directory, name))
    try:
        while True:
            over = alive < 0 or readable(alive, 0)
            last = over and (not follow or not box.alive)
            while rows := log.read():
                yield from rows
            if last:
                return
            if not over:
                yield Pause(alive, _POLL)
            else:  # its restart policy restarts it
                gone_by, alive = alive, _ends(box)
                if gone_by >= 0:
                    os.close(gone_by)
                if alive < 0:
                    yield Pause(-1, _POLL)
    finally:
        log.close()
        if alive >= 0:
            os.close(alive)


def _ends(box: Box) -> int:
    """A descriptor that is readable when it has ended, -1 where there is none."""
    with contextlib.suppress(SandboxGone):
        return box.pidfd()
    return -1
