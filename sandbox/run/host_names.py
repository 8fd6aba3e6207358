"""What a detached sandbox is called on the host: its cgroup, and the command line of its keeper."""

from __future__ import annotations

import contextlib
import os

from dockless.base.later import zlib
from dockless.base.path import Path
from dockless.sandbox.run.places import by_name


def group_name(directory: Path) -> str:
    """Ids are unique in one state directory, cgroups on the host: two programs with homes of their own may both have a sandbox ``box``, and
    after a renaming one home may have had two."""
    return f"{by_name(directory).name}.{_mark(directory)}"


def _mark(directory: Path) -> str:
    """What stays when a directory gets another name."""
    return f"{os.stat(directory).st_ino:x}.{_place(by_name(directory).parent)}"


def _place(parent: Path) -> str:
    return f"{zlib.crc32(os.fsencode(os.path.realpath(parent))):08x}"


def directory_of(group: str, parent: Path) -> int:
    """The inode number of the directory below ``parent`` that a cgroup of this name belongs to; 0 for another's."""
    named, _, place = group.rpartition(".")
    number = named.rpartition(".")[2]
    return int(number, 16) if number and place == _place(parent) and not number.strip("0123456789abcdef") else 0


def keeper_name(group: str) -> str:
    """What the host shows as the command line of the keeper of a sandbox whose ``group_name`` that is."""
    return f"dockless {group}"


def is_keeper(command: bytes, directory: Path) -> bool:
    """Whether that is the command line of its keeper, which has the name that it had at its start. The same error."""
    return command.startswith(b"dockless ") and command.endswith(f".{_mark(directory)}".encode())


def is_restarter(pid: int, directory: Path) -> bool:
    """Whether the host shows that process as the sandbox's restarter, which has the keeper's name with another first word."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
        return command.startswith(b"restarts ") and command.endswith(f".{_mark(directory)}".encode())
    except OSError:
        return False


def keeper_by_name(directory: Path) -> int:
    """The living keeper of a sandbox whose ``started`` is no use, by the name that the host gave it; 0 if there is none."""
    if not os.path.exists(directory):
        return 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
            if is_keeper(command, directory) and os.stat(f"/proc/{pid}").st_uid in (os.geteuid(), 0):
                return int(pid)
    return 0
