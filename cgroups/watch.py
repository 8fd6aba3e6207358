"""Waiting for what happens in a group, without polling.

The kernel wakes pollers of ``cgroup.events`` and ``memory.events`` with POLLPRI when a number in them changes. A ``GroupWatch`` holds both
files in one epoll set that listens to POLLPRI alone, so its own ``fileno()`` becomes readable exactly when there is news: it can be
given to ``poll``, ``select`` or ``loop.add_reader`` like any socket (the files themselves cannot: they always claim to be readable).
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from types import TracebackType

from dockless.base.dataclass import dataclass
from dockless.cgroups.usage import parse_flat


@dataclass(frozen=True, slots=True)
class OomEvent:
    """``kills`` processes were killed for memory since the last event, ``total`` since the group was made."""

    kills: int
    total: int


@dataclass(frozen=True, slots=True)
class Populated:
    """The group, or one below it, has living processes (or no longer)."""

    populated: bool


@dataclass(frozen=True, slots=True)
class Frozen:
    """All processes of the group are frozen (or no longer)."""

    frozen: bool


#: How many processes of a group are waited for one by one.
MOST_PIDFDS = 32

Event = OomEvent | Populated | Frozen


class GroupWatch:
    """The events of one group from now on. A context manager; iterate it, ``wait`` on it, or register ``fileno()`` and call ``read``."""

    __slots__ = ("_epoll", "_files", "_last")

    def __init__(self, directory_fd: int) -> None:
        self._epoll = select.epoll(flags=select.EPOLL_CLOEXEC)
        self._files: list[int] = []
        self._last: dict[str, int] = {}
        try:
            for name in ("cgroup.events", "memory.events"):
                try:
                    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory_fd)
                except FileNotFoundError:
                    continue  # no memory controller here
                self._files.append(fd)
                self._epoll.register(fd, select.EPOLLPRI)
                self._last |= parse_flat(os.pread(fd, 4096, 0).decode())
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Readable when ``read`` has news."""
        return self._epoll.fileno()

    def state(self) -> dict[str, int]:
        """The counters as last read: populated, frozen, and memory's oom, oom_kill, max, high …"""
        return dict(self._last)

    def read(self) -> tuple[Event, ...]:
        """What happened since the last call; empty if nothing of note. Does not block. A removed group counts as empty."""
        now: dict[str, int] = {}
        for fd in self._files:
            try:
                now |= parse_flat(os.pread(fd, 4096, 0).decode())
            except OSError:  # ENODEV: the group was removed
                now |= {"populated": 0}
                self._epoll.unregister(fd)
                self._files.remove(fd)
                os.close(fd)
                break
        last, self._last = self._last, self._last | now
        events: list[Event] = []
        kills = self._last.get("oom_kill", 0) - last.get("oom_kill", 0)
        if kills > 0:
            events.append(OomEvent(kills, self._last["oom_kill"]))
        if self._last.get("frozen") != last.get("frozen"):
            events.append(Frozen(bool(self._last["frozen"])))
        if self._last.get("populated") != last.get("populated"):
            events.append(Populated(bool(self._last["populated"])))
        return tuple(events)

    def wait(self, timeout: float | None = None) -> tuple[Event, ...]:
        """Block until something happens; empty after ``timeout`` seconds, or once the group is gone."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            events = self.read()
            if events or not self._files:
                return events
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return ()
            self._epoll.poll(left)

    def __iter__(self) -> Iterator[Event]:
        """Events until the group is empty (or gone): it may be empty when this begins, but then news is waited for. A process that came and
        went between two looks is no event, and yet the end."""
        news = bool(self._files) and self._group_has_news(0)
        while True:
            events = self.read()
            yield from events
            if not self._files or ((events or news) and not self._last.get("populated", 0)):
                return
            news = self._group_has_news(None)

    def _group_has_news(self, timeout: float | None) -> bool:
        """Whether cgroup.events, not only memory.events, was changed since the last ``read``, if only forth and back."""
        return self._files[0] in (fd for fd, _ in self._epoll.poll(timeout))

    def close(self) -> None:
        """Give the files back. Harmless twice."""
        for fd in self._files:
            os.close(fd)
        self._files = []
        self._epoll.close()

    def __enter__(self) -> GroupWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def wait_empty(directory_fd: int, timeout: float | None) -> bool:
    """Wait until no process is left in the group or below; False after ``timeout`` seconds. A removed group is empty.

    The kernel tells of changes in cgroup.events at most once in 10 ms, an age for a group whose last process has just been killed: so the
    processes themselves (pidfds of some) are waited for as well, and whichever comes first makes us look again.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    gone: set[int] = set()
    try:
        fd = os.open("cgroup.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory_fd)
    except FileNotFoundError:
        return True
    try:
        while parse_flat(os.pread(fd, 4096, 0).decode()).get("populated") != 0:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            _wait_for_one(directory_fd, fd, gone, left)
        return True
    except OSError:  # ENODEV
        return True
    finally:
        os.close(fd)


def _wait_for_one(directory_fd: int, events: int, gone: set[int], left: float | None) -> None:
    """Return when cgroup.events has news or one of the group's processes ends, which then joins ``gone`` and is not asked again."""
    poll = select.poll()
    poll.register(events, select.POLLPRI)
    pidfds: dict[int, int] = {}
    procs = os.open("cgroup.procs", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        for pid in os.read(procs, 4096).split(b"\n")[:MOST_PIDFDS]:
            # 0: a process that our pid namespace does not see
            if pid.isdigit() and int(pid) not in gone | {0}:
                try:
                    pidfd = os.pidfd_open(int(pid))
                except OSError:
                    gone.add(int(pid))
                    continue
                pidfds[pidfd] = int(pid)
                poll.register(pidfd, select.POLLIN)
        ready = poll.poll(None if left is None else int(left * 1000) + 1)
        gone.update(pidfds[fd] for fd, _ in ready if fd in pidfds)
    finally:
        for fd in (procs, *pidfds):
            os.close(fd)


def wait_for(directory_fd: int, key: str, value: int, timeout: float | None) -> bool:
    """Wait until ``key`` in cgroup.events is ``value``; False after ``timeout`` seconds. A removed group is neither of them."""
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        fd = os.open("cgroup.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory_fd)
    except FileNotFoundError:
        return value == 0
    try:
        poll = select.poll()
        poll.register(fd, select.POLLPRI)
        while parse_flat(os.pread(fd, 4096, 0).decode()).get(key) != value:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            # Rounded up: a wait cut to 0 ms would turn the last millisecond into a busy loop.
            poll.poll(None if left is None else int(left * 1000) + 1)
        return True
    except OSError:  # ENODEV
        return value == 0
    finally:
        os.close(fd)
