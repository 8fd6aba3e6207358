"""The output of ended attempts, in one directory: ``job-7-1-3f2a90bc.log.1`` and ``….log``. Bounded by age and, for each user, by size."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

SUFFIXES = (".log.1", ".log")


class Kept:
    """Which user has how much output kept. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._uids: dict[str, int] = {}
        self._of_user: dict[int, dict[str, tuple[int, float]]] = {}  # by name, oldest first: bytes, and when they came
        self._bytes: dict[int, int] = {}

    def look(self, owners: Callable[[Collection[int]], Mapping[int, int]], queue: str, before: float) -> None:
        """Count what earlier daemons of this queue kept. ``owners``: whose jobs of these numbers are, of those that are remembered. Output
        of forgotten jobs is removed, and that of other queues where it is older than ``before``."""
        found: dict[str, float] = {}
        for entry in os.scandir(self.directory):
            name = entry.name.removesuffix(".1").removesuffix(".log")
            at = entry.stat(follow_symlinks=False).st_mtime
            if name.startswith("job-") and name.endswith(f"-{queue[:8]}"):
                found[name] = max(found.get(name, 0.0), at)
            elif at < before and not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
        numbers = {name: int(number) for name in found if (number := name.split("-")[1]).isdecimal()}
        whose = owners({*numbers.values()})
        for name in sorted(found, key=lambda name: found[name]):
            uid = whose.get(numbers.get(name, 0))
            if uid is None:
                self.remove(name)
            else:
                self.add(uid, name, found[name])

    def add(self, uid: int, name: str, at: float | None = None) -> None:
        size = 0
        for suffix in SUFFIXES:
            with contextlib.suppress(OSError):
                size += os.stat(self.directory / (name + suffix), follow_symlinks=False).st_size
        if size and name not in self._uids:
            self._uids[name] = uid
            self._of_user.setdefault(uid, {})[name] = size, time.time() if at is None else at
            self._bytes[uid] = self._bytes.get(uid, 0) + size

    def trim(self, uid: int, most: int) -> int:
        """Remove the oldest of a user's until ``most`` bytes are left, but never the newest; how many went."""
        mine = self._of_user.get(uid, {})
        gone = 0
        while self._bytes.get(uid, 0) > most and len(mine) > 1:
            self.remove(next(iter(mine)))
            gone += 1
        return gone

    def prune(self, before: float) -> int:
        """Remove what came before that moment; how many went."""
        old = [name for mine in self._of_user.values() for name, (_, at) in mine.items() if at < before]
        for name in old:
            self.remove(name)
        return len(old)

    def remove(self, name: str) -> None:
        """Forget it and unlink its files; no error if there are none."""
        for suffix in SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.directory / (name + suffix))
        uid = self._uids.pop(name, None)
        if uid is not None:
            mine = self._of_user[uid]
            self._bytes[uid] -= mine.pop(name)[0]
            if not mine:
                del self._of_user[uid], self._bytes[uid]
