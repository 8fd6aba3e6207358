"""Runs that share the files of a suite run each of them once."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
FILE = """
import os, pathlib, pytest

@pytest.fixture(scope="module")
def of_the_file():
    yield
    note("end")

def note(word):
    with open({log!r}, "a") as log:
        log.write(f"{{pathlib.Path(__file__).stem}} {{word}} {{os.getpid()}}\\n")

@pytest.mark.parametrize("number", range({count}))
def test_it(of_the_file, number):
    note(number)
"""


def test_each_file_is_run_once_and_whole(tmp_path):
    log, share = tmp_path / "log", tmp_path / "share"
    share.mkdir()
    for place, count in (("a", 1), ("a", 5), ("b", 1), ("b", 2), ("c", 3)):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / f"test_{place}{count}.py").write_text(FILE.format(log=str(log), count=count))
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "-c", str(TREE / "pyproject.toml")]
    command += ["--rootdir", str(tmp_path), "--share", str(share), str(tmp_path)]
    runs = [subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(TREE / "tests")}) for _ in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    noted = [line.split() for line in log.read_text().splitlines()]
    whole = {"test_a1": 1, "test_a5": 5, "test_b1": 1, "test_b2": 2, "test_c3": 3}
    assert Counter((file, word) for file, word, _ in noted) == {
        (file, str(word)): 1 for file, count in whole.items() for word in (*range(count), "end")
    }
    assert len({(file, pid) for file, _, pid in noted}) == len(whole), "a file was run by both"
