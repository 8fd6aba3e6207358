"""Settings of the kernel that a sandbox can have of its own, since the kernel keeps them per namespace; every other one is the host's.

namespaces(7), ipc_namespaces(7), Documentation/admin-guide/sysctl
"""

from __future__ import annotations

import re

from dockless.errors import BadInput

_NAME = r"[a-z]+(\.[A-Za-z0-9_-]+)+\Z"  # no part can be '.' or '..', so that it leads nowhere but below /proc/sys
_VALUE = r"[\t -~]{0,1024}\Z"
_OF_IPC = frozenset(f"kernel.{name}" for name in "msgmax msgmnb msgmni sem shmall shmmax shmmni shm_rmid_forced".split())
_ELSEWHERE = {"kernel.hostname": "hostname", "kernel.domainname": "domainname"}


def check_sysctls(sysctls: tuple[tuple[str, str], ...], *, shared: dict[str, str]) -> None:
    """``BadInput`` for a setting that would be another's, or is none. ``shared``: whose the ``network`` and ``ipc`` namespaces
    are, ``the host's``, empty for its own."""
    for name, value in sysctls:
        if len(name) > 200 or not re.match(_NAME, name):
            raise BadInput(
                f"sysctl {name[:80]!r} is no name of a setting", subject="sysctls", hint="write NAME=VALUE: net.core.somaxconn=1024"
            )
        if not re.match(_VALUE, value):
            raise BadInput(f"sysctl {name}: the value is not one line of text", subject="sysctls", hint="write numbers and words")
        if name in _ELSEWHERE:
            word = _ELSEWHERE[name]
            raise BadInput(f"sysctl {name} has an option of its own", subject="sysctls", hint=f"use --{word} ({word}=)")
        namespace = _namespace(name)
        if namespace is None:
            raise BadInput(
                f"sysctl {name} holds for the whole host, so no sandbox can have its own",
                subject="sysctls",
                hint="a sandbox can have net.*, fs.mqueue.*, kernel.msg*, kernel.sem and kernel.shm*; on the host root sets it: sysctl -w",
            )
        if shared[namespace]:
            raise BadInput(
                f"sysctl {name} would change {shared[namespace]} own {namespace} namespace",
                subject="sysctls",
                hint=f"leave it out, or give the sandbox a {namespace} namespace of its own",
            )


def _namespace(name: str) -> str | None:
    """Which kind keeps it: ``network``, ``ipc``, or None for the host as a whole."""
    if name.startswith("net."):
        return "network"
    return "ipc" if name in _OF_IPC or name.startswith("fs.mqueue.") else None
