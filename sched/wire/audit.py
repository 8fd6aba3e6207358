"""Who asked the daemon for what: a line for each request that changes something, or reads another user's output, specification or
events, in ``audit.log`` beside the queue.

::

    2026-11-23T18:10:04Z uid=1000 user=anna op=submit jobs=17,18,19 ok
    2026-11-23T18:10:09Z uid=1001 user=ben op=cancel jobs=17 not_permitted
    2026-11-23T18:11:30Z uid=0 user=root op=reload changed=quota.users.anna ok

Numbers, names of accounts, keys of settings and our own words only: nothing of a job's command, environment or files. Root's file can be
read by members of the group ``adm``, as the host's other logs. It is renamed to ``audit.log.1`` when it is full, so there are ``2 * SIZE``
bytes at most; and nobody can push out what others did, for each user has so many lines in a while, and of what is beyond only the number
is kept: ``unwritten=4211`` in the next line.
"""

from __future__ import annotations

import contextlib
import grp
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dockless.base.text import escaped
from dockless.base.typing import Any
from dockless.sched.callers import Caller

READING = frozenset(("ping", "queue", "job", "why", "wait", "info", "quotas", "exceeded", "top", "usage", "logs", "spec", "part", "events"))
"""Verbs that change nothing. No line is written of them, unless ``logs``, ``spec`` or ``events`` is asked of another's job."""
SIZE = 8 << 20
_NAMED = 20
"""Numbers of jobs, or keys of settings, that one line names."""
BURST, EVERY = 1000, 5.0
"""Lines of a user at once; seconds until she has another."""


class Audit:
    """``directory``: where the file is. A disk that is full loses lines, and nothing else."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "audit.log"
        self._spent: dict[int, tuple[float, float, int]] = {}  # by user id: lines at that moment, and how many were not written

    def note(self, caller: Caller, request: Mapping[str, Any], answer: Mapping[str, Any], outcome: str = "ok", *, owner: int = -1) -> None:
        """``outcome``: the code of an error. ``owner``: the user id of whose job is read, where one is."""
        op = request.get("op")
        if not isinstance(op, str) or not op.isidentifier() or (op in READING and owner in (-1, caller.uid)):
            return
        unwritten = self._unwritten(caller.uid)
        if unwritten is None:
            return
        jobs = _numbers(answer) or _numbers(request)
        new = sorted({*answer.get("new", ())} - {*jobs})  # submitted again
        words = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), f"uid={caller.uid}", f"user={escaped(caller.user)}", f"op={op[:40]}"]
        words += [f"{name}={_listed(numbers)}" for name, numbers in (("jobs", jobs), ("new", new)) if numbers]
        for name in ("changed", "next_start"):
            if keys := [escaped(key).replace(" ", "_") for key in answer.get(name, ())]:
                words.append(f"{name}={','.join(keys[:_NAMED])}" + (f",…{len(keys)}" if len(keys) > _NAMED else ""))
        if unwritten:
            words.append(f"unwritten={unwritten}")
        with contextlib.suppress(OSError):
            self._append(" ".join((*words, outcome)) + "\n")

    def _unwritten(self, uid: int) -> int | None:
        """How many lines of a user were not written since the last one that was; None where this is another."""
        now = time.monotonic()
        spent, at, unwritten = self._spent.get(uid, (0.0, now, 0))
        spent = max(0.0, spent - (now - at) / EVERY)
        if spent + 1 > BURST and uid:
            self._spent[uid] = spent, now, unwritten + 1
            return None
        self._spent[uid] = spent + 1, now, 0
        return unwritten

    def _append(self, line: str) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            about = os.fstat(fd)
            if not about.st_size and os.geteuid() == 0:
                with contextlib.suppress(KeyError):
                    os.fchown(fd, 0, grp.getgrnam("adm").gr_gid)
                    os.fchmod(fd, 0o640)
            os.write(fd, line.encode())
        finally:
            os.close(fd)
        if about.st_size + len(line) >= SIZE:
            os.replace(self.path, f"{self.path}.1")


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers[:_NAMED])) + (f",…{len(numbers)}" if len(numbers) > _NAMED else "")


def _numbers(message: Mapping[str, Any]) -> list[int]:
    """The jobs that a request or its answer names by number."""
    found: list[Any] = []
    for name in ("ids", "jobs"):
        if isinstance(listed := message.get(name), (list, tuple)):
            found += listed
    found += [message[name] for name in ("first", "job") if name in message]
    return [number for number in found if isinstance(number, int) and not isinstance(number, bool) and 0 < number < 1 << 62]
