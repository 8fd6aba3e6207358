"""A second run of the tests on the same machine: what it starts is no leftover of ours, and its names do not collide with ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import apart, residue
from support.requires import requires

from dockless.cgroups import find_delegation
from dockless.errors import BadInput
from dockless.sandbox.run import detached
from dockless.sandbox.spec import Spec

pytestmark = requires("userns", "overlay")
TESTS = Path(__file__).resolve().parents[1]

OTHER = """
import sys
from support import apart
apart.mark()
from dockless.cgroups import find_delegation
from dockless.errors import BadInput
from dockless.sandbox.run import detached
from dockless.sandbox.spec import Spec
box = detached.start(Spec(argv=("sleep", "1000")), id="same")
print("there", flush=True)
sys.stdin.read()
box.remove()
"""


@pytest.fixture
def other_run(tmp_path):
    home = tmp_path / "o"
    home.mkdir()
    env = {**os.environ, "DOCKLESS_HOME": str(home), "PYTHONPATH": str(TESTS)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    try:
        assert process.stdout.readline() == "there\n", process.stderr.read()
        yield process
    finally:
        process.communicate()
    assert process.returncode == 0


def test_what_another_run_starts_is_not_ours(request):
    before = residue.snapshot()
    process = request.getfixturevalue("other_run")
    keepers = _called("dockless same")
    assert keepers and all(map(apart.is_another_runs, keepers))
    seen = {one for one in residue._difference(before, residue.snapshot()) if not one.startswith((f"process {process.pid} ", "fd "))}
    assert seen == set()


def _called(name):
    return {pid for pid in filter(str.isdigit, os.listdir("/proc")) if _command(pid).partition(".")[0] == name}


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
    except OSError:
        return ""


def test_what_we_start_is_ours():
    before = residue.snapshot()
    box = detached.start(Spec(argv=("sleep", "1000")), id="ours")
    try:
        seen = residue._difference(before, residue.snapshot())
    finally:
        box.remove()
    assert any("dockless-keeper" in one for one in seen)
    if find_delegation(ask_systemd=False).path is not None:
        assert any("/ours." in one for one in seen if one.startswith("cgroup "))


def test_the_same_name_under_two_homes(other_run):
    """Both have a sandbox called ``same``: neither start fails, and removing one leaves the other alone."""
    others = _called("dockless same")
    assert others
    box = detached.start(Spec(argv=("sleep", "1000")), id="same")
    box.remove()
    assert _called("dockless same") == others


def test_a_name_that_is_taken_costs_nobody_anything(other_run):
    """A start that failed tidies up its own group, never another home's of the same name."""
    box = detached.start(Spec(argv=("sleep", "1000")), id="same")
    with pytest.raises(BadInput, match="there is a sandbox same already"):
        detached.start(Spec(argv=("true",)), id="same")
    assert box.state() == "running"
    box.remove()
