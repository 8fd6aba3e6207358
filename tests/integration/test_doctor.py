"""``dockless doctor`` on this machine, and the demo from beginning to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.requires import requires

from dockless import doctor
from dockless.cli import main
from dockless.doctor import Finding


@requires("userns")
def test_a_machine_that_can_run_is_told_so(capfd):
    assert main(["doctor"]) == 0
    out = capfd.readouterr().out
    assert "can run sandboxes" in out and all(name in out for name, _ in doctor.CHECKS)
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["can_run"] and {check["name"] for check in document["checks"]} == {name for name, _ in doctor.CHECKS}
    assert all(check["next_step"] for check in document["checks"] if check["status"] != "ok")


def test_every_failure_has_a_next_step_and_fails_the_doctor(capfd, monkeypatch):
    def broken():
        raise RuntimeError("oh")

    monkeypatch.setattr(
        doctor, "CHECKS", (("one", broken), ("two", lambda: ("note", "less", "do this")), ("three", lambda: ("ok", "fine", "")))
    )
    assert main(["doctor", "-q"]) == 1
    out = capfd.readouterr().out
    assert "RuntimeError: oh" in out and "next: do this" in out and "fine" not in out and "cannot run" in out


def test_simulated_gpus_are_called_simulated(monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    finding = next(finding for finding in doctor.examine() if finding.name == "GPUs")
    assert finding.status == "note" and "2 simulated GPUs" in finding.what


def test_the_apparmor_profile_names_the_launcher(monkeypatch):
    from dockless.native import LAUNCHER_PATH

    text = doctor.PROFILE.format(path=LAUNCHER_PATH)
    assert f"profile dockless-launcher {LAUNCHER_PATH} flags=(unconfined) {{" in text and "userns," in text


def test_a_store_that_cannot_be_written_is_a_failure(monkeypatch):
    if os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    monkeypatch.setenv("DOCKLESS_HOME", "/proc/dockless")
    finding = next(finding for finding in doctor.examine() if finding.name == "image store")
    assert finding == Finding("image store", "fail", finding.what, "set DOCKLESS_HOME to a directory of yours")


@requires("userns", "overlay")
def test_the_demo_is_true_and_leaves_nothing():
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "dockless.demo"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Nothing is left behind" in ran.stdout and ran.stderr == ""
    if not os.path.exists("/dev/nvidiactl"):
        assert "GPUs ARE SIMULATED" in ran.stdout
