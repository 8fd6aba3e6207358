"""Which commands ``exec`` has run in a sandbox and how each ended, beside its records, for ``events`` alone: written by its caller.

A line each, ``<nanoseconds since 1970> start <id> <argv as JSON>`` and ``<…> die <id> <exit code>``, in two files at most: who comes when
``executed`` is full makes it ``executed.1``. A client that is killed writes no end, and nobody the one of what was left to itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence

from dockless.base import json
from dockless.base.dataclass import dataclass
from dockless.base.path import Path
from dockless.sandbox.run import records
from dockless.sandbox.run.places import open_directory

NAME, OLDER = "executed", "executed.1"
_FULL = 1 << 16
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_ARGV = 200
"""Characters of a command's arguments that are kept."""
_FIRST = 40
"""Bytes by which one file is known from another."""


@dataclass(frozen=True, slots=True)
class ExecNote:
    """``argv``: of a start, cut to so many characters; ``exit_code``: of an end."""

    at: float
    id: str
    argv: tuple[str, ...] | None = None
    exit_code: int | None = None


def note_start(directory: Path, id: str, argv: tuple[str, ...]) -> int:
    """A descriptor of the sandbox's directory for ``note_end``, -1 where there is none; the caller closes it. What cannot be written is not
    noted: a full disk keeps nobody from an exec."""
    try:
        place = open_directory(directory, os.O_PATH)
    except OSError:
        return -1
    with contextlib.suppress(OSError):
        if _note(place, NAME, f"start {id} {json.dumps(_cut(argv))}", os.O_CREAT) > _FULL:
            os.rename(NAME, OLDER, src_dir_fd=place, dst_dir_fd=place)
    return place


def note_end(place: int, id: str, exit_code: int) -> None:
    """The same; nothing where the sandbox is being removed. The file of its start may just have become the older one."""
    for name in (NAME, OLDER):
        with contextlib.suppress(OSError):
            _note(place, name, f"die {id} {exit_code}", 0)
            return


def _note(place: int, name: str, text: str, create: int) -> int:
    """Bytes in the file behind it."""
    fd = os.open(name, _APPEND | create, 0o600, dir_fd=place)
    try:
        os.write(fd, f"{time.time_ns()} {text}\n".encode("ascii"))
        return os.lseek(fd, 0, os.SEEK_CUR)
    finally:
        os.close(fd)


def _cut(argv: tuple[str, ...]) -> Sequence[str]:
    if sum(map(len, argv)) + len(argv) <= _MOST_ARGV:
        return argv
    kept: list[str] = []
    left = _MOST_ARGV
    for argument in argv:
        if len(argument) > left:
            kept.append(argument[:left] + "…")
            break
        kept.append(argument)
        left -= len(argument) + 1
    return kept


class Notes:
    """Those of one sandbox, as they come. ``directory``: of the sandbox, by the name that it has."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._read: dict[bytes, int] = {}

    def read(self) -> Iterator[ExecNote]:
        """What is new. A line that is none is passed over."""
        seen: dict[bytes, int] = {}
        for name in (OLDER, NAME):
            with contextlib.suppress(OSError, ValueError):
                raw = records.read(self.directory / name)
                first = raw[:_FIRST]  # its time: an inode may be another file's by now
                begin, seen[first] = self._read.get(first, 0), raw.rfind(b"\n") + 1
                for line in raw[begin : seen[first]].splitlines():
                    with contextlib.suppress(ValueError, RecursionError):
                        yield _parse(line)
        self._read = seen


def _parse(line: bytes) -> ExecNote:
    at, what, id, rest = line.decode("ascii").split(" ", 3)
    if what == "die":
        return ExecNote(int(at[:20]) / 1e9, id[:40], exit_code=int(rest[:4]))
    argv = json.loads(rest)
    if what != "start" or not isinstance(argv, list) or not all(isinstance(one, str) for one in argv):
        raise ValueError("it is no note")
    return ExecNote(int(at[:20]) / 1e9, id[:40], argv=tuple(argv))
