"""The command line with real sandboxes: exit codes, streams, signals, detached sandboxes, images, explanations."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.make_image import busybox_image
from support.requires import requires

from dockless.cli import main

pytestmark = requires("userns")
COMMAND = [sys.executable, "-P", "-m", "dockless"]


def dockless(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL} | options
    if "input" in options:
        del options["stdin"]
    return subprocess.run([*COMMAND, *arguments], **options)


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


# -- exit codes


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--", "true"], 0, ""),
        (["host", "--", "sh", "-c", "exit 7"], 7, ""),
        (["--", "sh", "-c", "kill -TERM $$"], 143, ""),
        (["--", "no-such-program"], 127, "command not found"),
        (["--", "/etc/passwd"], 126, "cannot be executed"),
        (["--pull", "never", "no-such-image"], 125, "no image"),
        (["-v", "/no/such/source:/x", "--", "true"], 125, "does not exist"),
        (["-m", "nonsense", "--", "true"], 125, "cannot be read"),
        (["-u", "no-such-user", "--", "true"], 125, "no-such-user"),
        (["-w", "relative", "--", "true"], 125, "not absolute"),
        (["--gpus", "1", "--", "true"], 125, "NVIDIA driver"),
        (["--timeout", "0.1", "--", "sleep", "300"], 124, "timed out after 100ms,"),
        (["--name", "../x", "--", "true"], 125, "not usable as a name"),
        (["--name", "12", "--", "true"], 125, "job"),
    ],
)
def test_exit_codes_and_errors(arguments, code, said, capfd, monkeypatch):
    monkeypatch.delenv("DOCKLESS_SIMULATED_GPUS", raising=False)
    if "--gpus" in arguments and os.path.exists("/dev/nvidiactl"):
        pytest.skip("this host has a GPU")
    assert main(["run", *arguments]) == code
    out, err = capfd.readouterr()
    assert out == "" and said in err
    if said and code != 124:
        assert re.fullmatch(r"dockless: .+\n  hint: .+\n", err), err


def test_the_streams_are_the_programs_own():
    ran = dockless("run", "--", "sh", "-c", "cat; echo err >&2", input="in\n")
    assert (ran.stdout, ran.stderr, ran.returncode) == ("in\n", "err\n", 0)


def test_closed_standard_streams_are_no_obstacle():
    ran = subprocess.run(
        ["sh", "-c", '"$@" <&- 2>&-', "sh", *COMMAND, "run", "--", "sh", "-c", "cat; echo out"], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (0, "out\n")


def test_the_result_as_json():
    ran = dockless("run", "--json", "--", "sh", "-c", "echo out; exit 3")
    document = json.loads(ran.stderr)
    assert ran.returncode == document["exit_code"] == document["code"] == 3
    assert ran.stdout == "out\n" and document["usage"]["cpu_seconds"] is not None


@requires("hybrid")
def test_best_effort_makes_a_missing_controller_a_warning(capfd):
    assert main(["run", "-m", "1G", "--", "true"]) == 125
    assert "\n  hint: " in capfd.readouterr().err
    assert main(["run", "-m", "1G", "--best-effort", "--", "true"]) == 0
    assert re.search("memory|no limit is enforced", capfd.readouterr().err)
    assert main(["run", "-q", "-m", "1G", "--best-effort", "--", "true"]) == 0
    assert capfd.readouterr().err == ""


# -- signals


class Running:
    """A command line that runs, with what its program has said so far."""

    def __init__(self, script: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "run", "--", "sh", "-c", script], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def end(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=30)
        return self.process.returncode, out


def test_the_first_interrupt_goes_to_the_program():
    box = Running("trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.02; done")
    box.process.send_signal(signal.SIGINT)
    assert box.end() == (9, "caught\n")


def test_the_second_interrupt_kills():
    box = Running("trap 'echo caught' INT; echo ready; while :; do sleep 0.02; done")
    box.process.send_signal(signal.SIGINT)
    assert box.process.stdout is not None and box.process.stdout.readline() == "caught\n"
    box.process.send_signal(signal.SIGINT)
    assert box.end()[0] == 137


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on(number):
    box = Running(f"trap 'exit 5' {number}; echo ready; while :; do sleep 0.02; done")
    box.process.send_signal(number)
    assert box.end()[0] == 5


def test_a_killed_command_line_takes_its_program_along():
    mark = f"88{os.getpid()}"
    box = Running(f"echo ready; sleep {mark}")
    box.process.kill()
    box.end()
    until(lambda: not any(mark.encode() in _command(pid) for pid in os.listdir("/proc") if pid.isdigit()))


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# -- detached


def detach(*arguments: str) -> str:
    """Started by a process of its own, as in life: nobody of ours is its parent."""
    ran = dockless("run", "-d", "-q", *arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_the_life_of_a_detached_sandbox(capfd):
    assert detach("--name", "box", "--", "sh", "-c", "echo out; echo err >&2; while [ ! -e /tmp/x ]; do sleep 0.02; done") == "box"
    assert main(["run", "-d", "--name", "box", "--", "true"]) == 125
    assert "rm box" in capfd.readouterr().err
    assert main(["ps", "--json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)
    assert (row["id"], row["state"], row["image"]) == ("box", "running", "host") and row["pid"] > 0
    assert main(["rm", "box"]) == 125
    assert "stop box" in capfd.readouterr().err
    assert main(["wait", "--timeout", "0.05", "box"]) == 124
    assert main(["stop", "-q", "--grace", "5", "box"]) == 0
    capfd.readouterr()
    assert main(["wait", "box"]) == 143
    assert main(["logs", "box"]) == 0
    out, err = capfd.readouterr()
    assert out.endswith("out\n") and err == "err\n"
    assert main(["ps"]) == 0 and "box" not in capfd.readouterr().out
    assert main(["ps", "-a"]) == 0 and "exit 143" in capfd.readouterr().out
    assert main(["rm", "-q", "box"]) == 0
    assert main(["ps", "-a", "-q"]) == 0 and capfd.readouterr().out == ""
    assert main(["logs", "box"]) == 125


def test_logs_follow_to_the_end():
    name = detach("--", "sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.1; done; printf half; exit 4")
    followed = dockless("logs", "-f", name)
    assert followed.stdout == "1\n2\n3\nhalf"
    stamped = dockless("logs", "-t", name).stdout.splitlines()
    assert re.match(r"\d{4}-\d\d-\d\dT\S+ 1$", stamped[0])
    assert [json.loads(line)["text"] for line in dockless("logs", "--json", name).stdout.splitlines()] == ["1", "2", "3", "half"]
    assert dockless("wait", "-q", name).returncode == 4
    assert dockless("rm", name).returncode == 0


def test_kill_and_several_at_once(capfd):
    for name in ("a", "b"):
        detach("--name", name, "--", "sleep", "300")
    assert main(["kill", "a", "nobody", "b"]) == 125
    out, err = capfd.readouterr()
    assert out.split()[-2:] == ["a", "b"] and "nobody" in err
    assert main(["wait", "a", "b"]) == 137
    assert main(["rm", "a", "b"]) == 0


def test_a_detached_sandbox_holds_its_gpus(monkeypatch, capfd):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    detach("--name", "holder", "--gpus", "2", "--", "sleep", "300")
    assert main(["ps"]) == 0
    assert "simulated" in capfd.readouterr().out
    assert main(["run", "--gpus", "1", "--", "true"]) == 125
    assert "leased" in capfd.readouterr().err
    assert main(["rm", "-f", "holder"]) == 0
    assert main(["run", "--gpus", "2", "--", "true"]) == 0
    assert "simulated" in capfd.readouterr().err
    assert main(["run", "--json", "--gpus", "2", "--", "true"]) == 0
    document = json.loads(capfd.readouterr().err)
    assert document["simulated"] and len(document["gpus"]) == 2


def test_an_error_leaves_no_detached_sandbox(capfd):
    assert main(["run", "-d", "--", "no-such-program"]) == 127
    assert main(["ps", "-a", "-q"]) == 0
    assert capfd.readouterr().out == ""


# -- images


@requires("overlay")
def test_load_images_and_run_one(tmp_path, capfd):
    layout = busybox_image(tmp_path, ref="tools:1", cmd=("echo", "its own command"))
    assert main(["load", str(layout)]) == 0
    out, err = capfd.readouterr()
    assert "tools:1" in out and "layer 1/1" in err
    assert main(["load", "-q", str(layout)]) == 0
    assert capfd.readouterr() == ("docker.io/library/tools:1\n", "")
    assert main(["load", "--json", "--name", "other:2", str(layout)]) == 0
    assert json.loads(capfd.readouterr().out)[0]["reference"] == "docker.io/library/other:2"
    assert main(["images", "-q"]) == 0
    assert capfd.readouterr().out.split() == ["docker.io/library/other:2", "docker.io/library/tools:1"]
    assert main(["images"]) == 0 and "linux/" in capfd.readouterr().out
    assert main(["images", "--json"]) == 0 and json.loads(capfd.readouterr().out)[0]["layers"] == 1
    assert dockless("run", "tools:1").stdout == "its own command\n"
    ran = dockless("run", "--entrypoint", "sh", "-e", "A=1", "tools:1", "--", "-c", "echo $A; id -u; cat /etc/hostname")
    assert ran.stdout == "1\n0\ndockless\n"


@pytest.mark.parametrize("content", [b"", b"no archive at all", b"\x1f\x8b\x08torn"])
def test_what_is_no_image_is_refused(content, tmp_path, capfd):
    (tmp_path / "x.tar").write_bytes(content)
    assert main(["load", str(tmp_path / "x.tar")]) == 125
    assert re.search(r"dockless: .+\n  hint: .+", capfd.readouterr().err)
    assert main(["load", str(tmp_path / "absent.tar")]) == 125
    assert main(["images", "-q"]) == 0


# -- explanations


def test_explain_prints_and_stops(capfd, tmp_path):
    assert main(["run", "--explain", "-v", f"{tmp_path}:/x", "--", "touch", "/x/ran"]) == 0
    out = capfd.readouterr().out
    assert "keeper:" in out and "init:" in out and "program:" in out and "pivot_root" in out and "run touch" in out
    assert not (tmp_path / "ran").exists()


def test_explain_as_json_with_times(capfd):
    assert main(["run", "--explain", "--json", "--", "true"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [row["index"] for row in document["operations"]] == list(range(len(document["operations"])))
    assert {row["actor"] for row in document["operations"]} == {"keeper", "init", "program"} and all(
        row["shell"] for row in document["operations"]
    )
    assert main(["run", "--explain", "--time", "--json", "--", "sh", "-c", "exit 3"]) == 3
    document = json.loads(capfd.readouterr().out)
    took = [row["seconds"] for row in document["operations"] if row["seconds"] is not None]
    assert len(took) > len(document["operations"]) / 2 and min(took) >= 0 and sum(took) < 30 and document["seconds"]["launch"] > 0


def test_explain_shows_limits_and_gpus(capfd, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    assert main(["run", "--explain", "-m", "1G", "--gpus", "1", "--", "true"]) == 0
    out = capfd.readouterr().out
    assert "limit memory.max to 1073741824" in out and "simulated" in out and "/nvidia1" in out


def test_output_into_a_closed_pipe_is_no_error_message():
    ran = subprocess.run(
        ["bash", "-c", '"$@" | head -1; exit ${PIPESTATUS[0]}', "bash", *COMMAND, "run", "--explain", "--", "true"], capture_output=True
    )
    assert ran.stderr == b"" and ran.returncode in (0, 141)
