"""Processes held by a descriptor: their numbers may be another's in the next moment."""

from __future__ import annotations

import errno
import os


def hold(pid: int) -> int:
    """A pidfd of the process, for the caller to close. ``ProcessLookupError`` where there is none of that number. pidfd_open(2)

    As long as a group or a session of others has the number of a process that is gone, Linux before 6.15 says ``EINVAL``."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from None
