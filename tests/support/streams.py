"""Standard streams of a kind: a terminal or not, of an encoding, one that fails."""

from __future__ import annotations

import io


class Stream(io.TextIOWrapper):
    def __init__(self, encoding: str = "utf-8", terminal: bool = False, error: BaseException | None = None) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="")
        self.terminal, self.error = terminal, error

    def isatty(self) -> bool:
        return self.terminal

    def flush(self) -> None:
        if self.error is not None:
            raise self.error
        super().flush()

    def said(self) -> bytes:
        self.flush()
        return self.buffer.getvalue()
