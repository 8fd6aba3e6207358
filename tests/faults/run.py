"""Every operation that writes, its disk failing at one call after the other: ``make faults``; writes the table of docs/faults.md.

``python -P tests/faults/run.py [--most N] [--only WORD] [--markdown FILE]``

``--most``: calls of each operation and kind (0: all). Needs root. Ends with 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.fault_table import KINDS, OPERATIONS, Row, scenes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="dk-") as place:
        os.environ["DOCKLESS_HOME"] = str(Path(place) / "disk" / "h")
        with scenes(Path(place)) as bench:
            for operation in OPERATIONS:
                if options.only in operation.name:
                    prepared = bench(operation)
                    for kind in KINDS:
                        rows.append(prepared.row(kind, options.most))
                        print(_line(rows[-1]), *rows[-1].wrong, sep="\n   ", flush=True)
    if options.markdown:
        options.markdown.write_text(table(rows))
    return 1 if any(row.wrong for row in rows) else 0


def table(rows: list[Row]) -> str:
    """The rows as Markdown, and their sums."""
    head = "| operation | fault | calls | failed | refused | done all the same | wrong |\n|---|---|--:|--:|--:|--:|--:|\n"
    total = Row("all", "", 0, *(sum(getattr(row, name) for row in rows) for name in ("tried", "refused", "done", "not_hit")))
    total.wrong = [line for row in rows for line in row.wrong]
    return head + "".join(_line(row) + "\n" for row in (*rows, total))


def _line(row: Row) -> str:
    counts = (row.points or "", row.tried - row.not_hit, row.refused, row.done - row.not_hit, len(row.wrong))
    return f"| {row.operation} | {row.kind} | {' | '.join(map(str, counts))} |"


if __name__ == "__main__":
    sys.exit(main())
