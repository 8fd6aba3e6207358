"""Another user's output on a terminal: escaped, each stream where it belongs; and as it is everywhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

LOGS = """
import os, sys
from types import SimpleNamespace
from dockless.cli import logs
lines = [logs.Row("T1", "stdout", b"one\\x1b[31m", False, 0), logs.Row("T2", "stderr", b"two\\x1b[32m", False, 0)]
logs._job = lambda number, options, follow: iter(lines)
logs._known = lambda number: SimpleNamespace(uid=os.geteuid() + (sys.argv[1] == "theirs"), gang=0)
asked = dict(id="1", json=False, timestamps=sys.argv[2] == "times", follow=False, attempt=0, tail=None, since=None, until=None)
sys.exit(logs.logs(SimpleNamespace(**asked)))
"""


def shown(whose, times):
    """(what the terminal at stdout got, what the one at stderr got)."""
    pairs = [pty.openpty() for _ in range(2)]
    try:
        command = [sys.executable, "-P", "-c", LOGS, whose, times]
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=pairs[0][1], stderr=pairs[1][1], check=True, env={**os.environ, "TERM": "xterm"}
        )
        got = []
        for ours, peer in pairs:
            os.write(peer, b"the end\n")
            text = b""
            while not text.endswith(b"the end\r\n"):
                text += os.read(ours, 4096)
            got.append(text.removesuffix(b"the end\r\n"))
        return got
    finally:
        for pair in pairs:
            for fd in pair:
                os.close(fd)


@pytest.mark.parametrize(("times", "first", "second"), [("times", b"T1 ", b"T2 "), ("none", b"", b"")])
def test_anothers_is_escaped_on_the_stream_it_was_written_to(times, first, second):
    out, err = shown("theirs", times)
    assert b"\x1b" not in out + err
    assert out.startswith(first + b"one") and b"two" not in out
    assert err.startswith(second + b"two") and b"one" not in err


@pytest.mark.parametrize(("times", "first", "second"), [("times", b"T1 ", b"T2 "), ("none", b"", b"")])
def test_ones_own_is_as_it_was_written(times, first, second):
    assert shown("ours", times) == [first + b"one\x1b[31m\r\n", second + b"two\x1b[32m\r\n"]
