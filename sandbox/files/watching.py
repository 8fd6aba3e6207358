"""What happens to files of a sandbox, as inotify(7) tells it inside."""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType

from dockless.base.checks import checked
from dockless.base.dataclass import dataclass
from dockless.base.typing import Literal
from dockless.sandbox.files import wire
from dockless.sandbox.files.agent import Agent
from dockless.sandbox.files.calls import ask, failed, is_directory, listing, look, named
from dockless.sandbox.files.wire import Request, nonsense

Happened = Literal["created", "modified", "removed", "lost"]
_CREATED, _REMOVED, _ITSELF_GONE = 0x100 | 0x80, 0x200 | 0x40, 0x400 | 0x800
_MODIFIED, _OVERFLOW, _IGNORED, _UNMOUNTED, _DIRECTORY = 0x2 | 0x4 | 0x8, 0x4000, 0x8000, 0x2000, 0x40000000
_SLICE = 5.0
"""Seconds of one request, so that one that is not answered is noticed."""
_MOST_DIRECTORIES = 100_000


@dataclass(frozen=True, slots=True)
class FileEvent:
    """``kind``: a name was ``created`` or ``removed``, by a rename too; contents or facts were ``modified``; ``lost``: more happened at
    once than the kernel kept, look again at all of it."""

    path: str
    kind: Happened
    is_directory: bool = False


class Watch:
    """Made by ``Files.watch``. Iterate over it, or ask it with a timeout. Leaving its ``with`` ends it."""

    def __init__(self, agent: Agent, path: bytes, recursive: bool) -> None:
        self._agent, self._path, self._recursive = agent, path, recursive
        self._places: dict[int, bytes] = {}
        self._waiting: deque[FileEvent] = deque()
        try:
            self._add(path)
            if recursive and is_directory(look(agent, path)[0]):
                self._below(path, announce=False)
        except BaseException:
            agent.close()
            raise

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._agent.close()

    def __iter__(self) -> Iterator[FileEvent]:
        """Each event, when it happens; until ``SandboxGone`` where the sandbox ends."""
        while True:
            event = self.next()
            if event is not None:
                yield event

    @checked
    def next(self, timeout: float | None = None) -> FileEvent | None:
        """The next event, None where nothing happens for ``timeout`` seconds. ``SandboxGone``"""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._waiting:
            left = _SLICE if deadline is None else min(_SLICE, max(0.0, deadline - time.monotonic()))
            answer = ask(self._agent, self._path, Request(wire.EVENTS, length=int(left * 1e9)))
            for number, mask, name in wire.events(answer.contents):
                self._take(number, mask, name)
            if not self._waiting and deadline is not None and time.monotonic() >= deadline:
                return None
        return self._waiting.popleft()

    def _take(self, number: int, mask: int, name: bytes) -> None:
        if mask & _OVERFLOW:
            self._tell(self._path, "lost", False)
            return
        place = self._places.get(number)
        if place is None:  # of a directory that is gone
            return
        if mask & _IGNORED:
            del self._places[number]
            return
        path = os.path.join(place, name) if name else place
        directory = bool(mask & _DIRECTORY)
        if mask & _CREATED:
            self._tell(path, "created", directory)
            if directory and self._recursive:
                self._below(path, announce=True)
        elif mask & _MODIFIED:
            self._tell(path, "modified", directory)
        elif mask & _REMOVED or (mask & (_ITSELF_GONE | _UNMOUNTED) and place == self._path):
            self._tell(path, "removed", directory)

    def _tell(self, path: bytes, kind: Happened, directory: bool) -> None:
        event = FileEvent(os.fsdecode(path), kind, directory)
        if not self._waiting or self._waiting[-1] != event:
            self._waiting.append(event)

    def _add(self, path: bytes, flags: int = 0) -> None:
        number = ask(self._agent, path, named(wire.WATCH, path, flags=flags)).result
        self._places[number] = path
        if len(self._places) > _MOST_DIRECTORIES:
            raise failed(errno.EFBIG, path)

    def _below(self, path: bytes, *, announce: bool) -> None:
        """Watch a directory's directories, too. ``announce``: it is new, and what came into it before it was watched is an event."""
        waiting = [path]
        while waiting:
            above = waiting.pop()
            try:
                if above != self._path:
                    self._add(above, wire.WITH_NOFOLLOW)
                entries = listing(self._agent, above, flags=0 if above == self._path else wire.WITH_NOFOLLOW)
            except (FileNotFoundError, NotADirectoryError, PermissionError):  # gone since, or not to be read
                continue
            for name, about in entries:
                below = os.path.join(above, name)
                if len(below) > 4095:
                    raise nonsense("a path without end")
                if announce:
                    self._tell(below, "created", is_directory(about))
                if is_directory(about):
                    waiting.append(below)
