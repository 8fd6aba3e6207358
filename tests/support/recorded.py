"""Detached sandboxes as their directories alone: what a keeper would have written, with a lock that the test holds for the living."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dockless.base import paths
from dockless.sandbox.run import documents
from dockless.sandbox.run.box import Box
from dockless.sandbox.run.documents import Document
from dockless.sandbox.spec import Spec

AT = 1_700_000_000
OOM_KILLED = b"[memory.events]\noom_kill 1\n"


def exit_record(code: int = 0, *, outcome: int = 0, seconds: int = 1, accounts: bytes = b"") -> bytes:
    """Begun at ``AT``."""
    numbers = {"status": code << 8, "outcome": outcome, "user_us": 12, "system_us": 3, "max_rss_kb": 400}
    numbers |= {"started_ns": AT * 10**9, "ended_ns": (AT + seconds) * 10**9}
    return b"".join(b"%s %d\n" % (name.encode(), number) for name, number in numbers.items()) + accounts


def recorded(name: str, spec: Spec, *, pids: tuple[int, int] | None = (4242, 4243), end: bytes | None = None, **document: Any) -> Box:
    """One that is not alive. ``pids``: of keeper and init; ``end``: its exit record."""
    box = Box(name, paths.make(paths.state() / "sandboxes" / name))
    fields = {"boot_id": documents.boot_id(), "created": float(AT), "owner": os.geteuid(), **document}
    documents.write(box.directory, Document(spec, **fields))
    if pids:
        (box.directory / "started").write_text("keeper {}\ninit {}\n".format(*pids))
    if end is not None:
        (box.directory / "exit").write_bytes(end)
    return box


@contextmanager
def alive(box: Box) -> Iterator[None]:
    """Its lock is held."""
    with open(Path(box.directory / "lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
