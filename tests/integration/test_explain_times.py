"""``run --explain --time`` for people: what it calls the slowest operations are those."""

from __future__ import annotations

import re

from support.requires import requires

from dockless.cli import explained, main

pytestmark = requires("userns", "overlay")


def test_the_slowest_operations_come_first(capfd, monkeypatch):
    measured: list[dict[int, float]] = []
    rows = explained.rows

    def kept(*args):
        table = rows(*args)
        measured.append({row.index: row.seconds for row in table if row.seconds is not None})
        return table

    monkeypatch.setattr(explained, "rows", kept)
    assert main(["run", "--explain", "--time", "--", "sh", "-c", "exit 3"]) == 3
    (line,) = (line for line in capfd.readouterr().out.splitlines() if line.startswith("slowest: "))
    said = [int(number) for number in re.findall(r"(\d+) \(\w+\)", line)]
    took = measured[0]
    assert len(said) == 3 and len(took) > 20
    assert [took[number] for number in said] == sorted(took.values(), reverse=True)[:3]
