"""What a mutant is: one small change of meaning at one place of one file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """``start`` and ``end`` are offsets in the file's bytes; ``new`` replaces what stands between them."""

    path: str
    line: int
    kind: str
    start: int
    end: int
    new: bytes

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line} {self.kind}"

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.new + source[self.end :]

    def diff(self, source: bytes) -> str:
        before, after = (text.decode(errors="replace").splitlines() for text in (source, self.applied(source)))
        return "\n".join(difflib.unified_diff(before, after, self.path, self.path, lineterm="", n=1))

    def change(self, source: bytes) -> tuple[str, str]:
        """The changed lines before and after, stripped: by these an equivalent one is known again when lines have moved."""
        rows = self.diff(source).splitlines()[2:]
        sides = (" ".join(row[1:].strip() for row in rows if row.startswith(sign)) for sign in "-+")
        before, after = sides
        return before, after
