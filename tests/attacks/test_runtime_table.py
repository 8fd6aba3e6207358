"""README.md beside this file: every attack has a row, every row a test that exists, or the reason why there is none."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROWS = {int(match[1]): match[2] for match in re.finditer(r"^\| A(\d+) \| [^|]+ \| (.+) \|$", (HERE / "README.md").read_text(), re.M)}


def test_every_attack_has_a_row():
    assert sorted(ROWS) == list(range(1, 87))


def test_every_test_named_exists():
    missing = []
    for number, text in ROWS.items():
        if not re.search(r"\btest_\w+", text):
            assert "not yet" in text, f"A{number} names neither a test nor a reason"
        for group in re.finditer(r"((?:tests/\w+/)?test_\w+): (test_\w+(?:, test_\w+)*)", text):
            module = group[1] if "/" in group[1] else f"tests/attacks/{group[1]}"
            source = (HERE.parents[1] / f"{module}.py").read_text()
            missing += [f"A{number} {module}: {name}" for name in group[2].split(", ") if f"def {name}(" not in source]
    assert missing == []
