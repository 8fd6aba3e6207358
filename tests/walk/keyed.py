"""Streams whose every byte is known: lines ``KEY.1``, ``KEY.2``, … A reader can tell what is missing, doubled, moved or of another stream.

::

    box.exec("sh", "-c", script("a7", 5000))          the sandbox says it
    reader = Reader("a7", 5000); reader.feed(data); reader.end()
"""

from __future__ import annotations

_AT_ONCE = 4000  # lines


def text(key: str, lines: int, first: int = 1) -> bytes:
    return b"".join(b"%s.%d\n" % (key.encode(), number) for number in range(first, first + lines))


def script(key: str, lines: int) -> str:
    return f"seq 1 {lines} | sed s/^/{key}./"


class Reader:
    """What was read of a stream so far is checked as it comes. ``lines``: after so many it has to end."""

    def __init__(self, key: str, lines: int) -> None:
        self.key, self.lines = key, lines
        self.read = 0
        self._made = 0
        self._ahead = b""

    def feed(self, data: bytes) -> None:
        """``AssertionError`` for a byte that is not the next one."""
        while len(self._ahead) < len(data) and self._made < self.lines:
            count = min(_AT_ONCE, self.lines - self._made)
            self._ahead += text(self.key, count, self._made + 1)
            self._made += count
        wanted, self._ahead = self._ahead[: len(data)], self._ahead[len(data) :]
        if data != wanted:
            at = next((n for n, (a, b) in enumerate(zip(data, wanted, strict=False)) if a != b), min(len(data), len(wanted)))
            raise AssertionError(
                f"stream {self.key}, byte {self.read + at}: {data[max(0, at - 20) : at + 40]!r} for {wanted[max(0, at - 20) : at + 40]!r}"
            )
        self.read += len(data)

    def end(self) -> None:
        assert not self._ahead and self._made == self.lines, f"stream {self.key} ended after {self.read} bytes"


def check(key: str, lines: int, data: bytes, *, whole: bool) -> None:
    """The same for a stream that was read at once. ``whole``: its end, too."""
    reader = Reader(key, lines)
    reader.feed(data)
    if whole:
        reader.end()
