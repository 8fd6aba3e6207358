"""A running plan by its descriptors, of which several threads make use."""

from __future__ import annotations

import os
import threading
import time

from dockless import native
from dockless.base.waits import readable
from dockless.sandbox.plan.plan import Plan
from dockless.sandbox.run.process import Process


def test_what_is_closed_is_not_killed_any_more_and_what_is_killed_not_closed():
    """Else the byte for its keeper comes to whoever has that descriptor next."""
    plan_fd, (report, other), (leash_end, leash) = os.open(os.devnull, os.O_RDONLY), os.pipe(), os.pipe()
    pidfd = os.pidfd_open(os.getpid())
    process = Process(native.Launched(os.getpid(), pidfd, False), Plan((), None), plan_fd, report, leash, time.time())
    closing = threading.Thread(target=process.release)
    try:
        with process._lock:  # as who kills it has it
            closing.start()
            closing.join(0.2)
            os.fstat(leash)
        closing.join(20)
        reader, writer = os.pipe()
        os.dup2(writer, leash)  # it is another's by now
        process.kill()
        assert not readable(reader, 0)
    finally:
        for fd in (other, leash_end, leash, reader, writer):
            os.close(fd)
