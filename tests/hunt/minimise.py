"""The smallest case that still shows a finding: whatever can be left out is."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

from hunt.cases import Case
from hunt.judge import Finding

SECONDS = 45.0
_NEEDED = ("kind", "seed", "form", "image")


def smallest(case: Case, key: str, judged: Callable[[Case], list[Finding]]) -> Case:
    """Leaves out one thing after another, for as long as the finding called ``key`` stays; at most ``SECONDS``."""
    end = time.monotonic() + SECONDS
    if not _shows(case, key, judged):
        return case  # it takes luck, too: nothing can be said about its parts
    smaller = True
    while smaller:
        smaller = False
        for path in list(_parts(case)):
            if time.monotonic() > end:
                return case
            less = _without(case, path)
            if less is not None and _shows(less, key, judged):
                case, smaller = less, True
                break
    return case


def _shows(case: Case, key: str, judged: Callable[[Case], list[Finding]]) -> bool:
    return any(finding.key == key for finding in judged(case))


def _parts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Big things first: a whole layer before its entries."""
    if isinstance(value, dict):
        for key in value:
            if key not in _NEEDED:
                yield (*path, key)
        for key, item in value.items():
            yield from _parts(item, (*path, key))
    elif isinstance(value, list) and not (value and value[0] in ("file", "link", "dir", "white", "opaque", "node")):
        for index in reversed(range(len(value))):
            yield (*path, index)
        for index, item in enumerate(value):
            yield from _parts(item, (*path, index))
    elif isinstance(value, str) and value.startswith("PATH=") and ":" in value:
        for index in range(value.count(":") + 1):
            yield (*path, f":{index}")


def _without(case: Case, path: tuple[Any, ...]) -> Case | None:
    less = copy.deepcopy(case)
    at: Any = less
    try:
        for step in path[:-1] if not str(path[-1]).startswith(":") else path[:-2]:
            at = at[step]
        if str(path[-1]).startswith(":"):
            parts = at[path[-2]].removeprefix("PATH=").split(":")
            del parts[int(path[-1][1:])]
            at[path[-2]] = "PATH=" + ":".join(parts)
        else:
            del at[path[-1]]
    except (KeyError, IndexError):
        return None
    return less
