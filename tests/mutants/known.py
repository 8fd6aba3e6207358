"""Changes that once survived, from ``known.txt``: each with the tests that notice it now."""

from __future__ import annotations

from pathlib import Path

from mutants.mutation import Mutant

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]


def read() -> dict[Mutant, list[str]]:
    """Each mutant and its tests. ``SystemExit`` for a row whose text is no longer there, or more than once a whole line's: mend the row."""
    rows = (line for line in (HERE / "known.txt").read_text().splitlines() if line and not line.startswith("#"))
    return dict(map(_parsed, rows))


def fields(row: str) -> list[str]:
    """What stands between the bars of a row; a bar in one is written \\|, an end of line \\n."""
    return [part.replace("\\|", "|").replace("\\n", "\n") for part in row.split(" | ")]


def _parsed(row: str) -> tuple[Mutant, list[str]]:
    path, before, after, tests = fields(row)
    source = (TOP / path).read_text()
    if before not in source:
        raise SystemExit(f"known.txt: {path} has no {before!r} any more: mend the row")
    start = len(source[: source.index(before)].encode())
    line = source[: source.index(before)].count("\n") + 1
    return Mutant(path, line, "known", start, start + len(before.encode()), after.encode()), tests.split()
