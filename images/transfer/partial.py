"""A blob that is still on its way: one file that holds its bytes and, behind them, how many of each chunk have come.

::

    0                                       size   (to 8)              end
    ├──── chunk 0 ────┬──── chunk 1 ────┬─ … ─┤ magic size chunk length │ u32 per chunk: bytes of it that are here, from its beginning │

Bytes are written first, then counted, so a process killed at any moment leaves a count that claims no byte which is not there; the next
one goes on where it stopped. A whole blob has exactly its own size: the counts are cut off. After a crash of the machine the counts may
have reached the disk before the bytes; then the digest, which is checked over every blob anyway, says so and the file goes.

Who writes holds flock(2) on the file itself. So there are no lock files to leave behind: a file here that nobody has locked is a
left-over, whole or not, and may be taken over or removed (under its lock). A file is never cut or written but by its holder, and never
once it is whole, so whoever has it open may go on reading while it is renamed or unlinked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
from pathlib import Path

from dockless.images.files import make_private

CHUNK = 8 << 20
_MAGIC = b"dl-part1"
_HEAD = struct.Struct("<8sQII")  # magic, size of the blob, size of a chunk, nothing


class Partial:
    """The file at ``path``, held. ``whole``: all bytes are here. ``inherited``: bytes that an earlier process left. Threads may write at
    once, each in chunks of its own."""

    def __init__(self, fd: int, path: Path, size: int, chunk: int, counts: list[int], *, whole: bool) -> None:
        self.fd = fd
        self.path = path
        self.size = size
        self.chunk = chunk
        self.whole = whole
        self._counts = counts
        self._lock = threading.Lock()
        self._claimed: set[int] = set()
        self._base = _base(size)
        self._first = 0  # all chunks before this one are complete
        self.have = self.inherited = size if whole else sum(counts)
        self.prefix = size if whole else self._advance()

    @classmethod
    def take(cls, path: Path, size: int, chunk: int = CHUNK) -> Partial | None:
        """Hold the file, made if it is not there; None while another process or thread holds it. What is of no use is replaced."""
        make_private(path.parent)
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (held := cls._begun(fd, path, size, chunk)) is not None:
                    return held
            except BlockingIOError:
                os.close(fd)
                return None
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    @classmethod
    def _begun(cls, fd: int, path: Path, size: int, chunk: int) -> Partial | None:
        """What the locked file holds, a head written to a new one; None where ``path`` names another file by now, or will."""
        if not _still(path, fd):
            return None
        found = os.fstat(fd).st_size
        if found == size:
            return cls(fd, path, size, chunk, [], whole=True)
        counts = _read_counts(fd, size, found, chunk)
        if counts is None and found:
            os.unlink(path)  # of another size, or torn: begin anew, in a new file because somebody may be reading this one
            return None
        if counts is None:
            counts = [0] * -(-size // chunk)
            _write(fd, _HEAD.pack(_MAGIC, size, chunk, 0) + bytes(4 * len(counts)), _base(size))
        return cls(fd, path, size, chunk, counts, whole=False)

    # -- writing ---------------------------------------------------------------------------------------------------------------------

    def claim(self, most: int) -> tuple[int, int] | None:
        """The next stretch of missing bytes, ``(begin, end)``, of at most ``most`` chunks; nobody else gets it before ``release``."""
        with self._lock:
            for at in range(self._first, len(self._counts)):
                if at not in self._claimed and self._counts[at] < self._length(at):
                    end = at + 1
                    while end < len(self._counts) and end - at < most and not self._counts[end] and end not in self._claimed:
                        end += 1
                    self._claimed.update(range(at, end))
                    return at * self.chunk + self._counts[at], min(end * self.chunk, self.size)
            return None

    def have_in(self, begin: int, end: int) -> int:
        """How many bytes of a stretch are here."""
        with self._lock:
            return sum(
                max(0, min(at * self.chunk + self._counts[at], end) - max(at * self.chunk, begin))
                for at in range(begin // self.chunk, -(-end // self.chunk))
            )

    def release(self, begin: int, end: int) -> None:
        with self._lock:
            self._claimed.difference_update(range(begin // self.chunk, -(-end // self.chunk)))

    def write(self, offset: int, data: bytes | memoryview) -> int:
        """Put bytes in their place, then count them. Bytes that were here already are not written again. The number of new ones."""
        view = memoryview(data)
        new = 0
        # One at a time: where an answer is longer than what was asked for, two threads may come to the same chunk.
        with self._lock:
            while len(view):
                at = offset // self.chunk
                piece = view[: at * self.chunk + self._length(at) - offset]
                here = at * self.chunk + self._counts[at] - offset
                assert here >= 0, "a gap within a chunk"
                if here < len(piece):
                    count = self._counts[at] + len(piece) - here
                    _write(self.fd, piece[here:], offset + here)
                    _write(self.fd, count.to_bytes(4, "little"), self._base + _HEAD.size + 4 * at)
                    new += len(piece) - here
                    self.have += len(piece) - here
                    self._counts[at] = count
                    self.prefix = self._advance()
                offset += len(piece)
                view = view[len(piece) :]
        return new

    def finish(self) -> None:
        """All bytes are here: cut off the counts."""
        assert self.have == self.size, f"{self.path}: {self.have} of {self.size}"
        os.ftruncate(self.fd, self.size)
        self.whole, self.prefix = True, self.size

    # -- the end ---------------------------------------------------------------------------------------------------------------------

    def discard(self) -> None:
        """Remove the file; who reads it may go on."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def close(self) -> None:
        """Let go of it. A duplicate of the descriptor would keep the lock, so it is unlocked by name."""
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        os.close(self.fd)

    # -- within ----------------------------------------------------------------------------------------------------------------------

    def _length(self, at: int) -> int:
        return min(self.chunk, self.size - at * self.chunk)

    def _advance(self) -> int:
        """How far the bytes reach without a gap."""
        while self._first < len(self._counts) and self._counts[self._first] == self._length(self._first):
            self._first += 1
        return self.size if self._first == len(self._counts) else self._first * self.chunk + self._counts[self._first]


def _base(size: int) -> int:
    """Where the bookkeeping begins: aligned, so that no count straddles two pages and could be written by half."""
    return (size + 7) & ~7


def _still(path: Path, fd: int) -> bool:
    """Is the file we have locked still the one of that name?"""
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    own = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)


def _read_counts(fd: int, size: int, found: int, chunk: int) -> list[int] | None:
    number = -(-size // chunk)
    base = _base(size)
    if found != base + _HEAD.size + 4 * number:
        return None
    raw = os.pread(fd, _HEAD.size + 4 * number, base)
    if len(raw) != found - base or _HEAD.unpack_from(raw) != (_MAGIC, size, chunk, 0):
        return None
    counts = list(struct.unpack_from(f"<{number}I", raw, _HEAD.size))
    return counts if all(count <= min(chunk, size - at * chunk) for at, count in enumerate(counts)) else None


def _write(fd: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while len(view):
        done = os.pwrite(fd, view, offset)
        offset += done
        view = view[done:]
