"""``run``: what it starts, what it says of the end, what goes together; in front, detached, or only explained."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from dockless._options import make_spec
from dockless.cli import explained, main
from dockless.cli import run as cli_run
from dockless.cli.signals import Signals
from dockless.errors import SandboxGone
from dockless.sandbox.gpus import lease as gpu_lease
from dockless.sandbox.plan.explain import ExplainedStep, rows, text
from dockless.sandbox.run import detached
from dockless.sandbox.run import start as sandbox
from dockless.sandbox.run.process import Exit
from dockless.sandbox.script import script

ENDED = Exit(3, None, started=5.0, ended=7.5)


class _Box:
    """A sandbox that ends as it is told. ``asked``: what it was asked to do, in order; ``ends_at``: after how many looks."""

    def __init__(self, ended: Exit = ENDED, warnings: tuple[str, ...] = (), ends_at: int = 1) -> None:
        self.ended, self.warnings, self.ends_at = ended, warnings, ends_at
        self.asked: list[object] = []
        self.id, self.gpus = "s-1", ("GPU-1",)
        self.simulated, self.spec = True, SimpleNamespace(timeout=90.0, tty=False)
        self._fd, writer = os.pipe()
        os.close(writer)

    def __call__(self, *arguments: object, **keywords: object) -> _Box:
        self.asked.append((arguments, keywords))
        return self

    def __enter__(self) -> _Box:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # signals are collected before it exists
        return self

    def __exit__(self, *_: object) -> None:
        self.asked.append("left")
        os.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    def poll(self) -> Exit | None:
        self.ends_at -= 1
        return self.ended if self.ends_at < 1 else None

    def send_signal(self, number: int) -> None:
        self.asked.append(number)

    def kill(self) -> None:
        self.asked.append("kill")


@pytest.fixture
def start(monkeypatch, capfd):
    """What a command line that starts this sandbox says: its exit code, standard output and standard error."""

    def start(box: _Box, *words: str) -> tuple[int, str, str]:
        if box is not None:
            monkeypatch.setattr("dockless._box.Sandbox", box)
        monkeypatch.setattr(cli_run, "fetched", lambda image, options: f"fetched-{image}")
        code = main(["run", *words])
        return code, *capfd.readouterr()

    return start


def test_what_is_started(start):
    box = _Box()
    assert start(box, "--name", "night", "-w", "/w", "img", "--", "a", "b") == (3, "", "")
    ((arguments, keywords), left) = box.asked
    assert (arguments, left) == (("fetched-img", ["a", "b"]), "left")
    assert (keywords.pop("id"), keywords.pop("pull"), keywords.pop("size"), keywords["workdir"]) == ("night", "never", None, "/w")
    make_spec("img", (), **keywords)


@pytest.mark.parametrize(
    ("ended", "code", "said"),
    [
        (ENDED, 3, ""),
        (Exit(None, 15), 143, ""),
        (Exit(None, 9, timed_out=True), 124, "dockless: timed out after 1m30s, everything inside was killed\n"),
        (Exit(None, 9, oom_killed=True), 137, "dockless: the kernel killed something inside for memory\n  hint: raise --memory\n"),
        (Exit(None, 9, timed_out=True, oom_killed=True), 124, "dockless: timed out after 1m30s, everything inside was killed\n"),
    ],
)
def test_what_is_said_of_the_end(start, ended, code, said):
    assert start(_Box(ended), "img") == (code, "", said)
    assert start(_Box(ended), "-q", "img") == (code, "", "")
    got, out, err = start(_Box(ended), "--json", "img", "--", "a")
    assert (got, out) == (code, "") and json.loads(err) == {
        "image": "fetched-img", "command": ["a"], "exit_code": code, "gpus": ["GPU-1"], "simulated": True, **asdict(ended)
    }  # fmt: skip


def test_warnings_come_before_the_end(start):
    warned = ("no io here", "nothing computes")
    timed_out = Exit(None, 9, timed_out=True)
    lines = "dockless: no io here\ndockless: nothing computes\ndockless: timed out after 1m30s, everything inside was killed\n"
    assert start(_Box(timed_out, warned), "img") == (124, "", lines)
    assert start(_Box(timed_out, warned), "-q", "img")[2] == ""
    assert start(_Box(timed_out, warned), "--json", "img")[2].startswith("{")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--time"], "--time without --explain\n  hint: dockless run --explain --time …"),
        (["--script"], "--script without --explain\n  hint: dockless run --explain --script …"),
        (["--explain", "--script", "--time"], "--script goes with neither --time nor --json\n  hint: leave --time and --json out"),
        (["-d", "--explain"], "--detach and --explain\n  hint: explain it first"),
    ],
)
def test_what_does_not_go_together(start, words, said):
    assert start(None, *words, "img") == (125, "", f"dockless: {said}\n")


def test_a_script_is_no_json(capfd):
    assert main(["run", "--explain", "--script", "--json", "--", "true"]) == 125
    assert json.loads(capfd.readouterr().err)["message"] == "--script goes with neither --time nor --json"


def test_rm_is_the_default(start):
    assert start(_Box(), "--rm", "img")[0] == 3


# -- signals while it runs


def waited(box: _Box, *numbers: int) -> list[object]:
    """What a sandbox is asked for, if these signals come while somebody waits for it."""
    poll, coming = box.poll, list(numbers)

    def looked() -> Exit | None:
        while coming:
            signal.raise_signal(coming.pop(0))
        return poll()

    box.poll = looked
    with Signals() as signals, box:
        assert signals.wait(box) is box.ended
        with pytest.raises(BlockingIOError):  # what woke us has been read
            os.read(signals.woken, 1)
    return box.asked[:-1]


def test_signals_are_passed_on_and_the_second_interrupt_kills():
    assert waited(_Box(ends_at=2), signal.SIGTERM, signal.SIGINT, signal.SIGUSR1) == [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
    assert waited(_Box(ends_at=2), signal.SIGINT, signal.SIGINT) == [signal.SIGINT, "kill"]
    assert waited(_Box(ends_at=2), signal.SIGINT, signal.SIGINT, signal.SIGTERM) == [signal.SIGINT, "kill", "kill"]
    assert waited(_Box(ends_at=3)) == []


def test_what_came_before_the_start_is_passed_on_first():
    with Signals() as signals, _Box() as box:
        signal.raise_signal(signal.SIGINT)
        assert signals.wait(box) is ENDED
    assert box.asked[:-1] == [signal.SIGINT]


def test_one_that_is_just_ending_gets_no_signal():
    class Ending(_Box):
        def send_signal(self, number: int) -> None:
            raise SandboxGone("it is just ending")

    assert waited(Ending(ends_at=2), signal.SIGTERM) == []


# -- detached


@pytest.fixture
def detach(start, monkeypatch):
    """What ``run -d`` says, and what it has started: the spec, the id, the labels, and which GPUs were leased meanwhile."""

    def detach(*words: str, warnings: tuple[str, ...] = ()) -> tuple[tuple[int, str, str], tuple[object, ...]]:
        started = []

        def begin(spec, *, id, labels, remove, restart, leased):
            assert len(leased) == len(spec.gpus)
            started.append((spec, id, labels, gpu_lease.holders().keys() & spec.gpus))
            assert remove == ("--rm" in words) and not restart
            return SimpleNamespace(id=id or "s-1", warnings=warnings, spec=spec, labels=labels)

        monkeypatch.setattr(detached, "start", begin)
        said = start(None, "-d", *words)
        return said, *started

    return detach


def test_a_detached_one(detach, home):
    said, (spec, id, labels, held) = detach("-w", "/w", "img", "--", "a", warnings=("no io here",))
    assert said == (0, "s-1\n", "dockless: no io here\n")
    assert spec == make_spec("fetched-img", ["a"], workdir="/w", log_size=128 << 20)
    assert (id, labels, held) == (None, {}, set())
    assert detach("--rm", "--", "a")[0] == (0, "s-1\n", "")
    assert detach("-q", "--name", "night", "--", "a", warnings=("no io here",))[0] == (0, "night\n", "")
    code, out, err = detach("--json", "--", "a", warnings=("no io here",))[0]
    assert (code, json.loads(out), err) == (0, {"id": "s-1", "gpus": [], "warnings": ["no io here"]}, "")


def test_how_much_is_kept_of_its_output(detach, home):
    (home / "dockless.toml").write_text('[logs]\nsize = "1M"\n')
    assert [detach(*words, "--", "a")[1][0].log_size for words in ((), ("--log-size", "2M"))] == [1 << 20, 2 << 20]


def test_a_detached_one_with_gpus(detach, monkeypatch):
    """Held until it runs, and no longer: then its keeper does."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    said, (spec, _, labels, held) = detach("--gpus", "1", "--", "a", warnings=("no io here",))
    simulated = "the GPUs are simulated: nothing computes on them"
    assert said == (0, "s-1\n", f"dockless: {simulated}\ndockless: no io here\n")
    assert len(spec.gpus) == 1 and held == set(spec.gpus) and gpu_lease.holders() == {}
    assert labels == {"gpus": "simulated"}
    said, (spec, *_) = detach("--json", "--gpus", "all", "--", "a")
    assert json.loads(said[1]) == {"id": "s-1", "gpus": list(spec.gpus), "warnings": [simulated]} and len(spec.gpus) == 2
    monkeypatch.setattr(gpu_lease.GpuLease, "simulated", False)
    said, (_, _, labels, _) = detach("--gpus", "1", "--", "a")
    assert (said, labels) == ((0, "s-1\n", ""), {})


# -- explained


def said(capfd, *words: str, code: int = 0) -> str:
    assert main(["run", "--explain", *words]) == code
    out, err = capfd.readouterr()
    assert err == ""
    return out


def test_an_explanation(capfd):
    spec = make_spec("host", ["true"], timeout=90, grace=5)
    words = ("--timeout", "90", "--grace", "5", "--", "true")
    ready = sandbox.explain(spec)
    notes = sandbox.besides(ready)
    steps = text(rows(ready.plan))
    assert "1m30s" in notes[-1]
    about = "".join(f"      # not possible in shell: {note}\n" for note in notes)
    assert said(capfd, *words) == f"besides the plan:\n{about}\n{steps}\n"
    assert json.loads(said(capfd, "--json", *words)) == {
        "image": "host", "limits": [], "besides": notes, "gpus": [], "networks": [], "operations": [asdict(row) for row in rows(ready.plan)]
    }  # fmt: skip
    assert said(capfd, "--script", *words) == script(ready.resolved, ready.plan, notes)


def test_an_explanation_without_anything_besides(capfd, monkeypatch):
    monkeypatch.setattr(sandbox, "besides", lambda ready: [])
    assert said(capfd, "--", "true").startswith("keeper:\n")


def test_an_explanation_with_gpus_and_limits(capfd, monkeypatch):
    """The GPUs that it would have got, by which its plan is made; they are free again."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    monkeypatch.setattr(sandbox, "besides", lambda ready: [])
    shown = json.loads(said(capfd, "--json", "--gpus", "1", "--pids-limit", "7", "--", "true"))
    (gpu,) = shown["gpus"]
    assert gpu["simulated"] is True and gpu_lease.holders() == {}
    assert shown["limits"] == [{"file": "pids.max", "value": "7", "controller": "pids", "asked": ""}]
    assert f"/nvidia{gpu['minor']}" in str(shown["operations"])
    lines = said(capfd, "--gpus", "1", "--", "true").splitlines()
    assert lines[0].startswith("gpu: ") and gpu["uuid"] in lines[0] and lines[1] == "keeper:"


def test_what_each_step_took(start, monkeypatch):
    """The launcher notes its start by the wall clock: 2 s before the sandbox was ready, 1 s after we began to prepare it."""
    table = [
        ExplainedStep(0, "keeper", "A", "a", "# a", 0.002),
        ExplainedStep(1, "keeper", "B", "b", "# b", 0.004),
        ExplainedStep(2, "init", "C", "c", "# c"),
        ExplainedStep(3, "program", "D", "d", "# d", 0.001),
        ExplainedStep(4, "program", "E", "e", "# e", 0.003),
    ]
    asked = []
    monkeypatch.setattr(explained, "rows", lambda *arguments: asked.append(arguments) or table)
    monkeypatch.setattr("time.time_ns", lambda: 1_002 * 10**9)

    def measured(*words: str) -> tuple[tuple[int, str, str], _Box]:
        clock = iter((50 * 10**9, 53 * 10**9))
        monkeypatch.setattr("time.monotonic_ns", lambda: next(clock))
        box = _Box()
        box._running = SimpleNamespace(plan="the plan")
        box.process = SimpleNamespace(record=lambda: SimpleNamespace(started=1000.0, times=(1, 2)))
        return start(box, "--explain", "--time", *words, "img", "--", "a"), box

    said, box = measured()
    lines = ["", "slowest: 1 (B) 4ms, 4 (E) 3ms, 0 (A) 2ms", "prepare 1s, launch 2s, run 2.5s; exit code 3", ""]
    assert said == (3, text(table) + "\n" + "\n".join(lines), "")
    assert asked == [("the plan", (1, 2), 51 * 10**9)]
    ((arguments, keywords), left) = box.asked
    assert (arguments, left) == (("fetched-img", ["a"]), "left")
    assert (keywords.pop("measure"), keywords.pop("pull")) == (True, "never")
    make_spec("img", (), **keywords)
    code, out, err = measured("--json")[0]
    assert (code, err) == (3, "") and json.loads(out) == {
        "image": "fetched-img", "seconds": {"prepare": 1.0, "launch": 2.0, "run": 2.5}, "exit_code": 3,
        "operations": [asdict(row) for row in table],
    }  # fmt: skip
    table[:] = [replace(table[0], seconds=0.0), table[2], table[3]]
    assert measured()[0][1].splitlines()[-2] == "slowest: 3 (D) 1ms, 0 (A) 0s"
