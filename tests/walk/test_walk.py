"""Two hundred random operations, always the same ones; ``make walk`` does ten thousand others. See docs/walk.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.requires import requires
from walk import keyed

HERE = Path(__file__).resolve().parent


@requires("userns", "overlay", "busybox")
@pytest.mark.timeout(400)
def test_walk():
    """No byte is wrong, and nothing is left."""
    walked = subprocess.run(
        [sys.executable, "-P", str(HERE / "run.py"), "--steps", "200", "--seed", "suite"], capture_output=True, text=True
    )
    assert walked.returncode == 0, f"{_wrong(walked.stderr)}\n\n{walked.stdout}{walked.stderr}"
    assert "operations" in walked.stdout and "nothing left" in walked.stdout


HANGS = """import threading
from walk import lanes, machine, run, verbs

async def hang(t):
    if type(t.lane) is lanes.Lane:
        MAIN and threading.Event().wait()
    elif not MAIN:
        await t.lane.blocking(threading.Event().wait)

machine.PATIENCE = 5.0
verbs.CALM.update(dict.fromkeys(verbs.CALM, hang))
run.main()
"""


@requires("userns", "overlay", "busybox")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("main", [False, True])
def test_a_call_that_hangs_is_told(main):
    """Where it does, and what was done before; and the walk ends."""
    words = [sys.executable, "-P", "-c", HANGS.replace("MAIN", str(main)), "--steps", "200", "--seed", "hangs"]
    paths = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))
    walked = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert walked.returncode == 1
    assert re.search(r"^AssertionError: \w+ hangs$", walked.stderr, re.MULTILINE), walked.stderr
    assert "most recent call first" in walked.stderr and "what was done before:" in walked.stderr


def _wrong(said: str) -> str:
    """The error itself, without the lines that it was raised from: pytest's summary shows it."""
    return next((line for line in reversed(said.splitlines()) if re.match(r"[\w.]+: ", line)), said[-300:])


@pytest.mark.parametrize(
    "data",
    [b"k.1\nk.3\n", b"k.1\nk.1\n", b"k.2\n", b"k.1\nk.2\nk.3\nk.4\n", b"k.1\nj.2\n", b"k.1\r\n", b"x"],
)
def test_a_reader_tells_what_is_wrong(data):
    assert keyed.text("k", 3) == b"k.1\nk.2\nk.3\n"
    keyed.check("k", 3, keyed.text("k", 3), whole=True)
    keyed.check("k", 3, keyed.text("k", 3)[:5], whole=False)
    with pytest.raises(AssertionError, match="stream k"):
        keyed.check("k", 3, data, whole=False)
    with pytest.raises(AssertionError, match="ended after"):
        keyed.check("k", 3, b"k.1\n", whole=True)
