"""Which table of leases a program uses: names of sockets belong to its network namespace.

Two programs in two namespaces give one GPU twice, and neither sees the other. A program has to share a table with each daemon that it can
reach (its user's, root's), and with the first process where GPUs are leased in the namespace of that. A container that has all of dockless
inside has a table of its own, and nothing of this is so.

``/proc/<pid>/net`` shows the namespace of any process to everybody; /proc/<pid>/ns/net is for whoever may trace it. proc(5)
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from dockless.base import paths
from dockless.errors import GpuError
from dockless.sandbox.gpus.nvml import simulated_host

_CREDENTIALS = struct.Struct("=iII")
_NAMES = "net/unix"
_OF_FIRST = f"/proc/1/{_NAMES}"


def check_daemons() -> None:
    """``GpuError`` where a daemon that this program can reach leases GPUs in another network namespace than this one."""
    own = paths.runtime() / "daemon.sock"
    for path in dict.fromkeys([own] if simulated_host() else [own, paths.SOCKET_OF_ROOT]):
        pid, _ = listener(path)
        if pid and not _is_ours(f"/proc/{pid}/{_NAMES}"):
            raise GpuError(
                f"the daemon at {path}, process {pid}, leases GPUs in another network namespace than this one",
                subject="network namespace",
                hint="start it in that one (ip netns, PrivateNetwork=, unshare), or ask the daemon: dockless submit",
            )


def of_first_process() -> str:
    """The file with the names of the first process, where they are not those of this one."""
    return "" if _is_ours(_OF_FIRST) else _OF_FIRST


def _is_ours(names: str) -> bool:
    """True as well where that cannot be seen."""
    try:
        theirs, ours = os.stat(names), os.stat(f"/proc/thread-self/{_NAMES}")
    except OSError:
        return True
    return (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)


def listener(path: Path) -> tuple[int, int]:
    """The process that made this socket listen, 0 if it has no number here, and its user id; 0 and -1 where there is none. unix(7)"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as asked:
        try:
            asked.connect(os.fspath(path))
            raw = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return 0, -1
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid
