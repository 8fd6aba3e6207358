"""``make bench`` runs on this tree: its scene is made, its C program compiles, and what is measured does what it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.requires import requires

TOP = Path(__file__).resolve().parents[2]

pytestmark = [
    requires("userns", "overlay", "gcc"),
    pytest.mark.skipif(not (TOP / "benchmarks").is_dir(), reason="no benchmarks beside the tests"),
]


def test_start_and_keeper_and_driver():
    options = ["--starts", "1", "--burst", "1", "--peers", "none", "--only", "start,keeper,driver", "--json", "-"]
    ran = subprocess.run([sys.executable, "-P", TOP / "benchmarks/run.py", *options], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)["measurements"]
    assert set(found) == {"start", "keeper", "driver"} and "not measured" not in ran.stderr
    names = {"dockless", "dockless.run"} | (
        {"floor.c", "floor.c - overlay"} if os.geteuid() == 0 else set()
    )  # whose system calls are root's
    assert names <= {one["name"] for one in found["start"]["contenders"]}
    assert [one for one in found["start"]["contenders"] if one["failed"] or not one["starts"]] == []


@requires("root", "netns", "program:ip", "pasta")
def test_networks(tmp_path):
    code = """import json, sys
from benchmarks.networks import networks
from benchmarks.scene import scene
with scene() as place:
    table = networks(place, 1, 2, 1)
print(json.dumps({"extra": table.extra, "notes": table.notes}))"""
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    ran = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    ways = [name for name in found["extra"] if name.startswith("through ")]
    assert ways[:2] == ["through the host itself", "through our bridge"] and "through our pasta" in ways, found["notes"]
    assert found["extra"]["taken, bridge"]["median_ms"] > 0 and found["extra"]["many"]["sandboxes"] == 2
    assert all(note.startswith(("podman", "docker", "through podman")) for note in found["notes"]), found["notes"]


@pytest.fixture
def short():
    """A directory in which the path of a socket is short enough."""
    with tempfile.TemporaryDirectory(prefix="dk-") as place:
        yield Path(place)


def test_submits_by_library(short):
    (short / "dockless-slurm").mkdir()
    code = "import json, beside_slurm; print(json.dumps(beside_slurm.by_library(1, full=1500, submits=8)))"
    environment = {**os.environ, "XDG_CACHE_HOME": str(short), "PYTHONPATH": str(TOP / "benchmarks")}
    ran = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert [*found] == [
        *("submits by library from 8 clients, per s", "array of 1,000 by library, ms", "99 of 100 submits by library, ms"),
        *("99 of 100 beside 1,500, ms", "99 of 100, beside 1,500 / alone"),
    ]
    assert all(row["dockless"] > 0 for row in found.values())
