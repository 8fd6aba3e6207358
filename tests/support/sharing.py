"""Several runs at once share the files of a suite: each takes the next one that none has taken. A name in a directory of theirs says so."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import pytest


def in_turn(items: Sequence[pytest.Item], taken: Path) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """Each test of the files that this run takes, and the one that comes after it. The next file is taken before the last test of a file:
    what ends with a test is known only then."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    free = (tests for file, tests in files.items() if _take(taken / quote(str(file), safe="")))
    tests = next(free, None)
    while tests is not None:
        yield from pairwise(tests)
        following = next(free, None)
        yield tests[-1], following[0] if following else None
        tests = following


def _take(name: Path) -> bool:
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True
