"""A test that never ends is ended: by a failure where Python still runs, by the end of the run where it does not."""

import os
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]

HANGS = """
import threading
import pytest

@pytest.mark.timeout(0.3)
def test_waits():
    threading.Event().wait()

def test_next():
    pass
"""

HOLDS_THE_INTERPRETER = """
import ctypes, signal
import pytest

@pytest.mark.timeout(0.3)
def test_waits():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    ctypes.PyDLL(None).sleep(1000)
"""


def suite(place, text):
    (place / "test_it.py").write_text(text)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "-c", str(TREE / "pyproject.toml")]
    return subprocess.run(
        [*command, "--rootdir", str(place), str(place / "test_it.py")],
        capture_output=True, text=True, cwd=place, env={**os.environ, "PYTHONPATH": str(TREE / "tests")},
    )  # fmt: skip


def test_a_test_that_waits_for_ever_fails_and_the_next_one_runs(tmp_path):
    done = suite(tmp_path, HANGS)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout, done
    assert "Timeout" in done.stdout


def test_c_code_that_never_returns_ends_the_run_with_the_stacks(tmp_path):
    done = suite(tmp_path, HOLDS_THE_INTERPRETER)
    assert done.returncode == 1 and "passed" not in done.stdout, done
    assert "Timeout" in done.stderr and "in test_waits" in done.stderr
