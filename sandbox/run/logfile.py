"""The output of a detached sandbox as its keeper wrote it: two files at most, ``log.1`` and ``log``; native/launcher/log.c.

Each record is a line, ``<RFC 3339 with nanoseconds> stdout|stderr F|P text``, the format of Kubernetes' CRI. A record ``<time> log D N``
says that N bytes of the run's output came before it: where fewer were read, the rest was dropped. With N 0 another run begins.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from dockless.base.dataclass import dataclass
from dockless.base.path import Path
from dockless.sandbox.run.places import open_directory

_CHUNK = 1 << 16
_DIGITS = 20
"""Of the largest number of bytes that a keeper can write, an unsigned one of 64 bits."""
_NO_LOG = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
"""Nothing is there, or something that is no plain file."""


_HEADS = tuple(f"{stream} {tag}".encode() for stream in ("stdout", "stderr") for tag in "FP")


@dataclass(frozen=True, slots=True)
class Row:
    """``partial``: no newline was written. ``dropped``: so many bytes of output are missing here; such a row has no text."""

    at: str
    stream: str
    text: bytes
    partial: bool = False
    dropped: int = 0

    @property
    def written(self) -> bytes:
        """What the program wrote."""
        return self.text if self.partial or self.dropped else self.text + b"\n"


def _is_of_dropped(line: bytes) -> bool:
    """A record ``D``."""
    words = line.split(b" ", 3)
    return len(words) == 4 and words[1:3] == [b"log", b"D"] and words[3].isdigit() and len(words[3]) <= _DIGITS


def _is_cut_off(line: bytes) -> bool:
    """The beginning of a record of which a full disk took no more. What it was about is counted by the record ``D`` after it."""
    at, _, rest = line.partition(b" ")
    return len(at) <= 30 and not at.strip(b"0123456789-:.TZ") and any(head.startswith(rest) for head in _HEADS)


def parse(line: bytes) -> Row:
    """A record. A line that is none is passed on as it is."""
    at, _, rest = line.partition(b" ")
    stream, _, rest = rest.partition(b" ")
    tag, _, text = rest.partition(b" ")
    if stream not in (b"stdout", b"stderr") or tag not in (b"F", b"P"):
        return Row("", "stdout", line)
    return Row(at.decode("ascii", "replace"), stream.decode(), text, tag == b"P")


def open_log(directory: Path, name: str) -> int | None:
    """A descriptor of a plain file with one name in a plain directory, None if there is none such: a link that somebody put there leads
    nowhere, and a FIFO keeps nobody waiting (attack A55). ``OSError`` where it is there and cannot be opened."""
    try:
        parent = open_directory(directory)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        finally:
            os.close(parent)
    except OSError as error:
        if error.errno in _NO_LOG:
            return None
        raise
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(fd)
        return None
    return fd


def last_rows(part: Callable[[str], int | None], count: int) -> list[Row] | None:
    """The last rows, read from the end of the newest file, so in a time that does not grow with it. None where they begin in the older one,
    or at a record of what came before: ``Log`` has to read them."""
    fd = part("log")
    if fd is None:
        return None
    try:
        begin, data = os.fstat(fd).st_size, b""
        while begin and data.count(b"\n") <= count:
            end, begin = begin, max(0, begin - max(_CHUNK, len(data)))
            data = os.pread(fd, end - begin, begin) + data
    finally:
        os.close(fd)
    lines = data.split(b"\n")[:-1]
    if len(lines) <= count:
        return None
    wanted = lines[len(lines) - count :]
    return None if any(_is_of_dropped(line) or _is_cut_off(line) for line in wanted) else [parse(line) for line in wanted]


class Log:
    """Reads both files in order while they grow and are replaced. ``part``: opens ``log.1`` or ``log``, None where it is not there.
    ``after``: bytes of output that the reader has already. ``position``: bytes of output so far, those that were dropped included."""

    def __init__(self, part: Callable[[str], int | None], after: int = 0) -> None:
        self._part = part
        self._after = after
        self._fd = -1
        self._rest = b""
        self._begun = 0  # position at which the run began
        self.position = 0

    def read(self) -> list[Row]:
        """The rows that are complete by now, about a chunk of them; none at the end of what there is."""
        if self._fd < 0:
            first = self._part("log.1")
            first = self._part("log") if first is None else first
            if first is None:
                return []
            self._fd = first
        while True:
            if rows := self._more():
                return rows
            following = self._following()
            if following is None:
                return []
            if rows := self._more():  # written between our last read and the rename
                os.close(following)
                return rows
            os.close(self._fd)
            self._fd, self._rest = following, b""

    def _more(self) -> list[Row]:
        """The rows of the next chunk of our file that completes any; none at its end."""
        while data := os.read(self._fd, _CHUNK):
            *lines, self._rest = (self._rest + data).split(b"\n")
            if rows := [row for line in lines for row in self._rows(line)]:
                return rows
        return []

    def _following(self) -> int | None:
        """The file after ours, None while ours is the newest. After two renames that is ``log.1``."""
        newest = self._part("log")
        if newest is None or os.path.sameopenfile(newest, self._fd):
            if newest is not None:
                os.close(newest)
            return None
        older = self._part("log.1")
        if older is None or os.path.sameopenfile(older, self._fd):
            if older is not None:
                os.close(older)
            return newest
        os.close(newest)
        return older

    def _rows(self, line: bytes) -> list[Row]:
        before = max(self.position, self._after)
        if _is_of_dropped(line):
            at, _, _, count = line.split(b" ", 3)
            if not int(count):
                self._begun = self.position
            self.position = max(self.position, self._begun + int(count))
            gap = self.position - before
            return [Row(at.decode("ascii", "replace"), "", b"", dropped=gap)] if gap > 0 else []
        if _is_cut_off(line):
            return []
        row = parse(line)
        self.position += len(row.text) + (not row.partial)
        return [row] if self.position > self._after else []

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
