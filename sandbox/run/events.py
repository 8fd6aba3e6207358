"""What happens to sandboxes: made, started, ended, out of memory, asked to end, paused, healthy or not, renamed, changed, removed;
what ``exec`` runs in them.

It is read from what there is. inotify(7) says that something has changed about a sandbox, then its records are
compared with what was known of it. So a record that is torn or garbage is no event, and what was missed is made up for by looking at all.
What is removed at its end may be gone before anybody looks: of that, whoever starts it leaves a note (``listening``).

::

    sandboxes/, running/     directories come, go, get another name
    <id>/spec.json           create, update <id>/health        health_status
    <id>/started             start          <id>/asked-*       stop, kill
    <id>/exit, exit.tmp      oom, die       its cgroup's cgroup.events, memory.events: pause, unpause, oom
    <id>/lock                let go of without an exit: die
    <id>/executed            exec_start, exec_die
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from dockless.base import paths
from dockless.base.dataclass import dataclass, field
from dockless.base.locks import is_locked
from dockless.base.typing import Any, Literal
from dockless.base.waits import readable
from dockless.cgroups.usage import parse_flat
from dockless.errors import SandboxError, SandboxGone
from dockless.native import inotify
from dockless.native.inotify import Happened, Inotify
from dockless.sandbox.run import asked, exec_notes, records
from dockless.sandbox.run.box import Box
from dockless.sandbox.run.documents import NAME as DOCUMENT
from dockless.sandbox.run.documents import Document
from dockless.sandbox.run.health import NAME as HEALTH
from dockless.sandbox.run.health import last_change
from dockless.sandbox.run.listening import Listening
from dockless.sandbox.run.places import DETACHED, FOREGROUND, root
from dockless.sandbox.run.process import Exit

Kind = Literal[
    "create", "start", "die", "oom", "kill", "stop", "pause", "unpause", "health_status", "rename", "remove", "update", "exec_start",
    "exec_die",
]  # fmt: skip
KINDS: tuple[Kind, ...] = (
    "create", "start", "die", "oom", "kill", "stop", "pause", "unpause", "health_status", "rename", "remove", "update", "exec_start",
    "exec_die",
)  # fmt: skip
_INSIDE = inotify.MOVED_TO | inotify.CLOSED_WRITTEN | inotify.CREATED | inotify.ONLY_DIRECTORY | inotify.NO_FOLLOW
_ABOVE = inotify.CREATED | inotify.DELETED | inotify.MOVED_FROM | inotify.MOVED_TO | inotify.ONLY_DIRECTORY


@dataclass(frozen=True, slots=True)
class Event:
    """``time``: seconds since 1970. ``image``: as it was named, empty where that is not known. ``details``: of ``die`` ``exit_code``
    (None where nobody knows), ``signal``, ``limit``, ``killed``; of ``kill`` and ``stop`` ``signal``; of ``health_status`` ``status``,
    ``streak``, ``exit_code``, as they were then; of ``rename`` ``old``; of ``update`` ``changed``: names of limits, ``restart``,
    ``networks``, ``ttl``; of ``exec_start`` ``exec``, a number of its own, and ``argv``, cut to 200 characters; of ``exec_die`` ``exec``
    and ``exit_code``."""

    time: float
    kind: Kind
    id: str
    image: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


Stamp = tuple[int, int]


class _Known:
    """One sandbox, and what is known of it."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.document: Document | None = None
        self.exit_fd = -1
        self.directory = _stamp(box.directory, changes=False)
        self.started: Stamp | None = None
        self.running = False
        self.health = "starting"
        self.asked: dict[str, float] = {}
        self.frozen = False
        self.kills = 0
        self.execs = exec_notes.Notes(box.directory)

    def event(self, kind: Kind, at: float, **details: Any) -> Event:
        image, labels = (self.document.spec.image, self.document.labels) if self.document is not None else ("", {})
        return Event(at, kind, self.box.id, image, labels, details)

    def look(self, *, lock: bool = False) -> Iterator[Event]:
        """What is new of it. ``lock``: its keeper may be gone."""
        if self.document is None:
            with contextlib.suppress(SandboxGone):
                self.document = self.box.document
                yield self.event("create", self.document.created)
        if self.document is None:
            return
        yield from self._start()
        yield from self._health()
        yield from self._execs()
        for name in asked.NAMES:
            with contextlib.suppress(OSError, ValueError):
                number, at = asked.parse(records.read(self.box.directory / name))
                if at != self.asked.get(name):
                    self.asked[name] = at
                    yield self.event("stop" if name == asked.STOP else "kill", at, signal=number)
        if self.running and not self.box.foreground:
            ended = self.box.exit()
            if ended is not None:
                yield from self.end(ended)
            elif lock and not is_locked(self.box.directory / "lock"):
                yield from self.end(None)

    def _start(self) -> Iterator[Event]:
        if self.box.foreground:
            if self.started is None and self.document is not None:
                self.started, self.running = (0, 0), True
                yield self.event("start", self.document.created)
            return
        found = _stamp(self.box.directory / "started")
        if found is not None and found != self.started:
            yield from self.end(self._exit())
            self.started, self.running, self.health, self.kills = found, True, "starting", 0
            with contextlib.suppress(SandboxGone):
                self.document = self.box.document
            yield self.event("start", found[1] / 1e9)

    def _execs(self) -> Iterator[Event]:
        for note in self.execs.read():
            if note.argv is not None:
                yield self.event("exec_start", note.at, exec=note.id, argv=[*note.argv])
            else:
                yield self.event("exec_die", note.at, exec=note.id, exit_code=note.exit_code)

    def read_document(self) -> Iterator[Event]:
        """It is another one: of a start, or what somebody has changed while it runs."""
        before = self.document
        with contextlib.suppress(SandboxGone):
            self.document = self.box.document
        if before is not None and self.document is not None and (changed := _changed(before, self.document, self.running)):
            yield self.event("update", time.time(), changed=changed)

    def _health(self) -> Iterator[Event]:
        changed = last_change(self.box)
        if changed is not None and changed[0].status != self.health:
            found, streak, exit_code = changed
            self.health = found.status
            if found.status != "starting":
                yield self.event("health_status", found.since, status=found.status, streak=streak, exit_code=exit_code)

    def group_changed(self) -> Iterator[Event]:
        """In the files of its cgroup."""
        if self.document is None or not self.running:
            return
        group = Path(self.document.cgroup)
        frozen = _numbers(group / "cgroup.events").get("frozen")
        if frozen is not None and bool(frozen) != self.frozen:
            self.frozen = bool(frozen)
            yield self.event("pause" if self.frozen else "unpause", time.time())
        yield from self._oom(_numbers(group / "memory.events").get("oom_kill", 0), time.time())

    def _oom(self, kills: int, at: float) -> Iterator[Event]:
        if kills > self.kills:
            self.kills = kills
            yield self.event("oom", at)

    def end(self, ended: Exit | None) -> Iterator[Event]:
        """``ended`` None: nobody knows how."""
        if not self.running:
            return
        self.running = self.frozen = False
        if ended is None:
            yield self.event("die", time.time(), exit_code=None, signal=None, limit="", killed=False)
            return
        kills = ended.usage.oom_kills if ended.usage is not None else 0
        yield from self._oom(kills or 0, ended.ended)
        yield self.event("die", ended.ended, exit_code=ended.exit_code, signal=ended.signal, limit=ended.limit, killed=ended.killed)

    def hold_exit(self) -> None:
        """The file into which its keeper will write how it ended: it can be read when the directory is gone."""
        if not self.box.foreground or os.path.lexists(self.box.directory / "door"):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_CREAT if self.box.foreground else 0)
            with contextlib.suppress(OSError):
                self.exit_fd = os.open(self.box.directory / "exit.tmp", flags, 0o600)

    def _exit(self) -> Exit | None:
        with contextlib.suppress(OSError, ValueError):
            return records.parse_exit(os.pread(self.exit_fd, records.MOST, 0)) if self.exit_fd >= 0 else None
        return None

    def gone(self, left: tuple[Exit, Document | None] | None) -> Iterator[Event]:
        """Its directory is no more. ``left``: for who listens, ``listening``."""
        ended = self._exit() or (left and left[0])
        if self.document is None:
            if ended is None:
                return  # nothing was ever started there
            self.document = left and left[1]
            yield self.event("create", ended.started if self.document is None else self.document.created)
        if ended is not None and self.started is None:  # gone before anybody looked
            self.running = True
            yield self.event("start", ended.started)
        yield from self.end(ended)
        yield self.event("remove", time.time())

    def let_go(self) -> None:
        if self.exit_fd >= 0:
            os.close(self.exit_fd)
            self.exit_fd = -1


class Events:
    """First the past since ``since``, by time, as far as records still tell it (nothing of removed sandboxes); then events as they are
    noticed: of one look start, health, exec, stop and kill, end, so ``time`` may be earlier than that of the one before.

    An iterator and a context manager; without ``until`` it has no end. Times: seconds since 1970. ``wanted``: which of them are given.

    ``SandboxError`` where this user has too many of the kernel's watches, with what to raise."""

    def __init__(
        self,
        since: float | None = None,
        until: float | None = None,
        wanted: Callable[[Event], bool] = lambda event: True,
        *,
        state_root: Path | None = None,
    ) -> None:
        self._until, self._wanted = until, wanted
        self._ready: deque[Event] = deque()
        self._known: dict[tuple[str, str], _Known] = {}
        self._places: dict[int, tuple[str, str]] = {}
        self._roots = {kind: root(kind, state_root) for kind in (DETACHED, FOREGROUND)}
        self._above: dict[int, str] = {}
        self._moving: dict[int, _Known] = {}
        self._budget = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2  # descriptors of exit records; the rest is the program's
        with contextlib.ExitStack() as opened:
            self._queue = opened.enter_context(_explained(Inotify))
            opened.callback(self._let_go)
            self._listening = opened.enter_context(contextlib.closing(Listening(state_root)))
            for kind, place in self._roots.items():
                paths.make(place, 0o711)
                self._above[self._watch(place, _ABOVE)] = kind
            past = sorted((event for event in self._look_at_all() if since is not None), key=lambda event: event.time)
            self._ready.extend(event for event in past if event.time >= (since or 0.0) and self._fits(event))
            self._opened = opened.pop_all()

    def _fits(self, event: Event) -> bool:
        return (self._until is None or event.time <= self._until) and self._wanted(event)

    def fileno(self) -> int:
        """Readable when ``read`` may have something to say."""
        return self._queue.fileno()

    def read(self) -> list[Event]:
        """What has happened since the last time; does not block."""
        self._take()
        found = [*self._ready]
        self._ready.clear()
        return found

    def left(self) -> float | None:
        """Seconds until there is no more to wait for, None for ever."""
        return None if self._until is None else max(0.0, self._until - time.time())

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> Event:
        while not self._ready:
            left = self.left()
            happened = readable(self._queue.fileno(), left)
            self._take()
            if not happened and left is not None and not self._ready:
                raise StopIteration
        return self._ready.popleft()

    def _take(self) -> None:
        for happened in self._queue.read():
            self._ready.extend(event for event in self._about(happened) if self._fits(event))

    def _about(self, happened: Happened) -> Iterator[Event]:
        if happened.mask & inotify.OVERFLOW:
            yield from self._look_at_all()
        elif happened.watch in self._above:
            if happened.mask & inotify.IS_DIRECTORY:
                yield from self._name(self._above[happened.watch], happened)
        elif happened.mask & inotify.IGNORED:
            self._places.pop(happened.watch, None)
        elif (place := self._places.get(happened.watch)) in self._known:
            known = self._known[place]
            if not happened.name:
                yield from known.group_changed()
            elif happened.name == DOCUMENT and known.document is not None:
                yield from known.read_document()
            elif happened.name in (DOCUMENT, exec_notes.NAME, exec_notes.OLDER, "started", "exit", "lock", HEALTH, *asked.NAMES):
                yield from self._look(known, lock=happened.name == "lock")
            elif happened.name == ("door" if known.box.foreground else "exit.tmp"):
                self._hold(known)

    def _name(self, kind: str, happened: Happened) -> Iterator[Event]:
        """A directory has come, gone, or got another name."""
        place = (kind, happened.name)
        if happened.mask & inotify.CREATED:
            yield from self._come(*place)
        elif happened.mask & inotify.MOVED_FROM:
            if place in self._known:
                self._forget_moving()
                self._moving = {happened.cookie: self._known.pop(place)}
        elif happened.mask & inotify.MOVED_TO:
            yield from self._renamed(place, self._moving.pop(happened.cookie, None))
        elif happened.mask & inotify.DELETED:
            yield from self._gone(place)

    def _renamed(self, place: tuple[str, str], known: _Known | None) -> Iterator[Event]:
        """In the place of an empty directory, which may be known already."""
        self._forget(self._known.pop(place, None))
        if known is None:
            yield from self._come(*place)
            return
        old, known.box = known.box.id, Box(place[1], self._roots[place[0]] / place[1])
        known.execs.directory = known.box.directory
        self._known[place] = known
        self._places |= {watch: place for watch, was in self._places.items() if was == (place[0], old)}
        if known.document is not None:
            yield known.event("rename", time.time(), old=old)
        yield from self._look(known)

    def _come(self, kind: str, name: str) -> Iterator[Event]:
        place = (kind, name)
        if place in self._known:
            return
        directory = self._roots[kind] / name
        try:
            watch = self._watch(directory, _INSIDE)
        except FileNotFoundError:
            return
        if watch in self._places:
            return  # one that we know, which is just getting this name
        self._places[watch] = place
        known = self._known[place] = _Known(Box(name, directory))
        self._hold(known)
        yield from self._look(known)

    def _look(self, known: _Known, *, lock: bool = False) -> Iterator[Event]:
        started = known.started
        yield from known.look(lock=lock)
        if known.started != started:
            self._hold(known)
            yield from self._watch_group(known)

    def _watch_group(self, known: _Known) -> Iterator[Event]:
        if known.document is None or not known.document.cgroup or not known.running:
            return
        place = (known.box.directory.parent.name, known.box.id)
        for name in ("cgroup.events", "memory.events"):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._places[self._watch(Path(known.document.cgroup, name), inotify.MODIFIED)] = place
        yield from known.group_changed()

    def _hold(self, known: _Known) -> None:
        self._budget += known.exit_fd >= 0
        known.let_go()
        if self._budget > 0:
            known.hold_exit()
        self._budget -= known.exit_fd >= 0

    def _gone(self, place: tuple[str, str]) -> Iterator[Event]:
        left = self._listening.take(place[1])
        known = self._known.pop(place, None) or (left and _Known(Box(place[1], self._roots[place[0]] / place[1])))
        if known:
            try:
                yield from known.gone(left)
            finally:
                self._forget(known)

    def _forget(self, known: _Known | None) -> None:
        if known is not None:
            self._budget += known.exit_fd >= 0
            known.let_go()

    def _forget_moving(self) -> None:
        """It went elsewhere."""
        for known in self._moving.values():
            self._forget(known)
        self._moving = {}

    def _look_at_all(self) -> Iterator[Event]:
        for kind, directory in self._roots.items():
            names = {name: _stamp(directory / name, changes=False) for name in os.listdir(directory) if os.path.isdir(directory / name)}
            for place in [place for place in self._known if place[0] == kind and names.get(place[1]) != self._known[place].directory]:
                known = self._known[place]
                now = next((name for name, found in names.items() if found == known.directory), None)
                yield from self._gone(place) if now is None else self._renamed((kind, now), self._known.pop(place))
            for name in sorted(names):
                if (kind, name) in self._known:
                    yield from self._look(self._known[kind, name], lock=True)
                    yield from self._known[kind, name].group_changed()
                else:
                    yield from self._come(kind, name)
        for place in [(FOREGROUND, name) for name in self._listening.ids() if (FOREGROUND, name) not in self._known]:
            yield from self._gone(place)

    def _watch(self, path: Path, mask: int) -> int:
        try:
            return self._queue.add(path, mask)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            hint = "raise sysctl fs.inotify.max_user_watches"
            raise SandboxError("this user has too many inotify watches", subject=str(path), hint=hint) from None

    def _let_go(self) -> None:
        for known in (*self._known.values(), *self._moving.values()):
            known.let_go()

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Events:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@contextlib.contextmanager
def _explained(make: Callable[[], Inotify]) -> Iterator[Inotify]:
    try:
        made = make()
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        hint = "raise ulimit -n, or sysctl fs.inotify.max_user_instances"
        raise SandboxError("no inotify queue is to be had", subject="inotify", hint=hint) from None
    with made:
        yield made


def _changed(before: Document, now: Document, running: bool) -> list[str]:
    """What ``update`` and ``extend`` change."""
    was, limits = before.spec.limits, now.spec.limits
    names = [name for name in limits.__slots__ if getattr(limits, name) != getattr(was, name)]
    names += ["restart"] if now.restart != before.restart else []
    names += ["networks"] if now.spec.endpoints != before.spec.endpoints else []
    return names + (["ttl"] if running and now.ends != before.ends else [])


def _stamp(path: Path, *, changes: bool = True) -> Stamp | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns if changes else 0


def _numbers(path: Path) -> dict[str, int]:
    try:
        return parse_flat(path.read_text())
    except (OSError, ValueError):
        return {}
