"""Contenders: processes that answer each line of input with ``NANOSECONDS STATUS``, timed by themselves.

Each lives for the whole measurement, so that a round is a few starts of each and nothing else; what it costs to wake it is in nobody's
figure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent


class ContenderFailed(Exception):
    """It ended, or its start did. The text says why."""


class Contender:
    """A process that speaks the protocol. ``note``: what the reader of a table has to know about it."""

    def __init__(self, name: str, argv: Sequence[str | Path], *, note: str = "", env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.note = note
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the contender
        self._process = subprocess.Popen(
            [os.fspath(word) for word in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=env, text=True
        )
        if self._line() != "ready":
            raise self._failed("it did not get ready")

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, starts: int = 1) -> list[float]:
        """So many starts in a row, after one that does not count: seconds by its own clock. ``ContenderFailed`` unless all exit with 0."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n" * (starts + 1))
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("it has ended") from None
        return [self._answer() for _ in range(starts + 1)][1:]

    def _answer(self) -> float:
        took, _, status = self._line().partition(" ")
        if status != "0":
            raise self._failed(f"exit {status or 'unknown'}")
        return int(took) / 1e9

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _failed(self, what: str) -> ContenderFailed:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return ContenderFailed(": ".join([what, *(line[:200] for line in lines[-3:])]))

    def close(self) -> None:
        """Let it end by itself: its input ends."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()


def worker(name: str, *options: str | Path, prefix: Sequence[str] = (), note: str = "", env: Mapping[str, str] | None = None) -> Contender:
    """A contender in Python: see ``worker.py`` for its options."""
    return Contender(name, [*prefix, sys.executable, HERE / "worker.py", *options], note=note, env=env)
