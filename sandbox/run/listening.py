"""What is left for who listens to events, of sandboxes that may come and go before they are looked at.

Those are removed by their keeper as soon as they have ended. Who listens has a directory of its own, and holds a lock on it; who starts
such a sandbox leaves there what is known of it, and a second name of the file into which its keeper writes how it ended::

    <state>/events/<who listens>/<id>/<when>.json    its document
                                      <when>.exit    the same file as exit.tmp in its directory
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator

from dockless.base import paths
from dockless.base.locks import is_locked, opened
from dockless.base.path import Path
from dockless.sandbox.run import documents, records
from dockless.sandbox.run.documents import Document
from dockless.sandbox.run.places import root
from dockless.sandbox.run.process import Exit

_EVENTS = "events"
_NOTE, _EXIT = ".json", ".exit"


@contextlib.contextmanager
def told(directory: Path, content: Callable[[], bytes]) -> Iterator[None]:
    """Around a start: everybody who listens will be told of it. ``directory``: the sandbox's. ``content``: of its document. Where that
    cannot be left for somebody, that one is not told."""
    place = directory.parent.parent / _EVENTS
    try:
        listening = [place / name for name in os.listdir(place) if is_locked(place / name)]
    except OSError:  # nobody ever did
        listening = []
    left = [when for who in listening if (when := _leave(who / directory.name, directory / "exit.tmp", content)) is not None]
    try:
        yield
    except BaseException:
        for when in left:
            _remove(when)
        raise


def _leave(where: Path, record: Path, content: Callable[[], bytes]) -> Path | None:
    when = where / str(time.time_ns())
    for _ in range(2):
        try:
            where.mkdir(0o700, exist_ok=True)
            os.close(os.open(record, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            os.link(record, f"{when}{_EXIT}", follow_symlinks=False)
            documents.note(where, when.name + _NOTE, content())
            return when
        except FileNotFoundError:  # who listens has just removed what was left before
            continue
        except OSError:
            break
    _remove(when)
    return None


class Listening:
    """One who listens. ``close`` removes what was left for it."""

    def __init__(self, state_root: Path | None) -> None:
        self._place = root(_EVENTS, state_root)
        paths.make(self._place)
        self._sweep()
        while True:
            self._own = self._place / f"{os.getpid()}-{os.urandom(4).hex()}"
            self._lock = _make_locked(self._own)
            if self._lock >= 0:
                return

    def _sweep(self) -> None:
        """Of those who were killed."""
        from dockless.sandbox.run.removal import remove_tree

        for name in os.listdir(self._place):
            with contextlib.suppress(FileNotFoundError, BlockingIOError), opened(self._place / name) as fd:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # one that is just being made waits, and finds it gone
                remove_tree(self._place / name)

    def ids(self) -> list[str]:
        """Of sandboxes of which something was left."""
        return os.listdir(self._own)

    def take(self, id: str) -> tuple[Exit, Document | None] | None:
        """The oldest end of a sandbox of this name, and what it was; None where there is none."""
        where = self._own / id
        try:
            found = sorted(name.removesuffix(_EXIT) for name in os.listdir(where) if name.endswith(_EXIT))
        except OSError:
            return None
        for when in found:
            with contextlib.suppress(OSError, ValueError):
                ended = records.parse_exit(records.read(where / f"{when}{_EXIT}"))
                document = None
                with contextlib.suppress(OSError, ValueError, RecursionError):
                    document = documents.parse((where / f"{when}{_NOTE}").read_bytes())
                _remove(where / when)
                return ended, document
        return None

    def close(self) -> None:
        from dockless.sandbox.run.removal import remove_tree

        if self._lock >= 0:
            remove_tree(self._own)
            os.close(self._lock)
            self._lock = -1


def _make_locked(directory: Path) -> int:
    """Our lock on a new directory; -1 where somebody has taken it for one that was left behind."""
    directory.mkdir(0o700)
    with contextlib.suppress(FileNotFoundError), opened(directory) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if directory.exists():
            return os.dup(fd)
    return -1


def _remove(when: Path) -> None:
    for kind in (_NOTE, _EXIT):
        with contextlib.suppress(OSError):
            os.unlink(f"{when}{kind}")
    with contextlib.suppress(OSError):  # there are others of the same name
        when.parent.rmdir()
