"""docs/labs/a-packet.md, run as it stands, in a network namespace of its own; and that what it shows is what docs/networks.md says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.requires import requires

LAB = Path(__file__).resolve().parents[2] / "docs" / "labs" / "a-packet.md"
pytestmark = [
    requires("root", "netns", "program:nft", "program:tcpdump", "program:curl"),
    pytest.mark.skipif(not LAB.is_file(), reason="only the installed package is here, not the sources"),
]


def hooks(text):
    """Where a packet met our tables, in order, as ``nft monitor trace`` has it."""
    return [f"{family} {name}" for family, name in re.findall(r"^(inet|bridge) dockless\S* (\w+) packet:", text, re.MULTILINE)]


def test_the_lab(tmp_path):
    (tmp_path / "dockless").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m dockless "$@"\n')
    (tmp_path / "dockless").chmod(0o755)
    blocks = re.findall(r"(?<!-->\n)```sh\n(.*?)```", LAB.read_text(), re.DOTALL)
    script = "set -eu\n" + "".join(f"echo '### {number}'\n{block}" for number, block in enumerate(blocks, 1))
    ending = "trap 'dockless rm -f web a b c || :; kill ${SERVER-} ${WORLD-} 2>/dev/null || :; rm -rf \"$DOCKLESS_HOME\"' EXIT"
    command = ["unshare", "--net", "bash", "-xc", f"PATH={tmp_path}:$PATH\n{ending}\n{script}"]
    with open(tmp_path / "said", "w") as said:  # no pipe: what goes on in the background would keep it open
        code = subprocess.run(command, cwd=tmp_path, stdout=said, stderr=said, stdin=subprocess.DEVNULL, timeout=200).returncode
    text = (tmp_path / "said").read_text()
    assert code == 0, text[-6000:]
    shown = dict(re.findall(r"^### (\d+)\n(.*?)(?=^### |\Z)", text, re.DOTALL | re.MULTILINE))
    assert hooks(shown["4"]) == ["bridge prerouting", "inet prerouting", "inet nat_prerouting", "inet forward", "inet nat_postrouting"]
    assert hooks(shown["5"]) == ["inet prerouting", "inet nat_prerouting", "inet forward", "inet nat_postrouting"]
    assert hooks(shown["6"]) == ["inet nat_output", "inet output", "inet nat_postrouting"]
    assert hooks(shown["7"])[0] == "bridge prerouting" and "inet nat_output" not in hooks(shown["7"])
    for line in ("192.0.2.2 - - ", "10.112.0.1 - - "):
        assert f"\n{line}" in shown["6"], "whom the server logs"
    for line in ("b does not reach web", "c does not reach web", "nobody answers the wrong sender", "the port is gone", "and there again"):
        assert f"\n{line}\n" in text
    assert "dockless" not in shown["10"].partition("nft list ruleset")[2].partition("+ kill")[0]
