"""``make bench`` runs on this tree: its scene is made, its C program compiles, and what is measured does what it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
