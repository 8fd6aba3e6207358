"""Where a program is looked for, and where it begins."""

from __future__ import annotations

import posixpath

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def candidates(program: str, path: str) -> tuple[str, ...]:
    """What execvp(3) would try. An empty or relative entry of PATH is left out: it would mean the working directory."""
    if "/" in program:
        return (program,)
    found = tuple(f"{entry.rstrip('/')}/{program}" for entry in path.split(":") if entry.startswith("/"))
    return found or (f"/{program}",)


def directory(path: str) -> str:
    """A working directory: an absolute path without ``..``."""
    return posixpath.normpath("/" + path.lstrip("/"))
