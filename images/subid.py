"""Files that belong to an ordinary user's subordinate ids: only a process inside a namespace that maps them may change them. subuid(5)"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from pathlib import Path

from dockless.base import idmaps
from dockless.base.idmaps import IdMap
from dockless.base.locks import in_use
from dockless.native import inside, userns

INSIDE = "dockless.images.subid_inside"
"""What runs inside."""


@functools.cache
def ids() -> IdMap | None:
    """The map of this user's sandboxes; None for root, and for a user with a single id."""
    if os.geteuid() == 0:
        return None
    idmap = idmaps.default_map()
    return None if idmap.single else idmap


def remove(path: Path, idmap: IdMap) -> None:
    """Remove a tree with files of the map's ids. ``OSError``"""
    with contextlib.ExitStack() as stack:
        uses = []
        for place in (path.parent, path):  # one of them is the temporary directory
            with contextlib.suppress(FileNotFoundError, PermissionError):
                uses.append(in_use(place))
                stack.callback(os.close, uses[-1])
        process = inside.start(userns.namespace_fd(idmap), INSIDE, {"op": "remove", "tree": str(path)}, fds=uses, stdout=subprocess.PIPE)
    with process:
        answer, _ = process.communicate()
    if process.returncode or answer:
        raise OSError(int(answer or 5), f"cannot remove {path}: {os.strerror(int(answer or 5))}")
