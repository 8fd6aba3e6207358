"""The list of files that `.ci/run` runs once: each line finds something, and none of these asks who runs it."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
OF_AN_ACCOUNT = re.compile(
    r"""get(?:e|res)?uid\(|setuid\(|chown\(|requires\([^)]*"(?:user|userns|subuid|single-id|overlay|cgroup2[^"]*)\""""
)


def test_the_list_keeps_its_word():
    lines = [line for line in (TESTS / "same-for-all").read_text().splitlines() if not line.startswith("#")]
    files = {line: list(TESTS.glob(line)) for line in lines}
    assert [line for line, found in files.items() if not found] == []
    texts = {file: file.read_text() for found in files.values() for file in found if file != Path(__file__)}
    assert {file.name: found[0] for file, text in texts.items() if (found := OF_AN_ACCOUNT.search(text))} == {}
