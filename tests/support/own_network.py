"""A network namespace of a test's own: what it makes of links, tables and settings is gone with it, and the host's stays as it is."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def own_network(*, forwards: bool = True) -> Iterator[None]:
    """The calling thread, and what it starts, is in a new one. ``forwards``: whether it sends packets on. setns(2)"""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.unshare(_CLONE_NEWNET))
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        for name in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            with contextlib.suppress(FileNotFoundError):
                Path("/proc/sys/net", name).write_text(str(int(forwards)))
        yield
    finally:
        _check(_libc.setns(before, _CLONE_NEWNET))
        os.close(before)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
