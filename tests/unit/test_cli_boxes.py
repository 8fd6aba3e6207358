"""The verbs for detached sandboxes: what they print of what lies in a sandbox's directory, and what they ask of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from dataclasses import asdict

import pytest
from support.recorded import AT, OOM_KILLED, alive, exit_record, recorded

from dockless._life import described
from dockless.errors import SandboxGone
from dockless.sandbox.run import box as boxes_module
from dockless.sandbox.run.box import Box
from dockless.sandbox.run.process import TIMED_OUT
from dockless.sandbox.spec import Spec

TRUE = Spec(argv=("true",), image="img")


@pytest.fixture
def boxes(home, monkeypatch):
    """One of each kind, made ten minutes ago, and one that goes away while we look."""
    monkeypatch.delenv("DOCKLESS_SIMULATED_GPUS", raising=False)
    monkeypatch.setattr("dockless.cli.output.time.time", lambda: AT + 600.0)
    long = Spec(argv=("-c", "echo " + "x" * 40), entrypoint=("sh",), image="img", gpus=("GPU-1", "GPU-2"))
    made = [
        recorded("busy", long, labels={"gpus": "simulated"}),
        recorded("damaged", TRUE),
        recorded("done", TRUE, end=exit_record(3, seconds=90)),
        recorded("fresh", TRUE, pids=None),
        recorded("late", TRUE, end=exit_record(0, outcome=TIMED_OUT)),
        recorded("lost", Spec(argv=(), image="img"), boot_id="another"),
        recorded("oom", TRUE, end=exit_record(9, outcome=TIMED_OUT, accounts=OOM_KILLED)),
    ]
    damaged = made[1].directory
    (damaged / "spec.json").write_text("{")
    os.utime(damaged, (AT, AT))
    monkeypatch.setattr(boxes_module, "everything", lambda: [*made, Box("gone", home / "gone")])
    with alive(made[0]), alive(made[3]):
        yield {box.id: box for box in made}


def test_ps_as_a_table(boxes, say):
    assert say("ps") == (
        0,
        "ID     IMAGE  COMMAND                                   STATE     AGE  GPUS\n"
        f"busy   img    sh -c echo {'x' * 28}…  running   10m  2\n"
        "fresh  img    true                                      starting  10m\n"
        "GPUs are simulated.\n",
        "",
    )
    lines = say("ps", "-a")[1].splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "ID IMAGE COMMAND STATE AGE GPUS",
        f"busy img sh -c echo {'x' * 28}… running 10m 2",
        "damaged vanished: sandbox damaged has vanished: its spec.json cannot be read: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1) 10m",
        "done img true exit 3, 1m30s 10m",
        "fresh img true starting 10m",
        "late img true timed out, 1s 10m",
        "lost img vanished: the host was rebooted while it ran 10m",
        "oom img true oom, 1s 10m",
        "GPUs are simulated.",
    ]


def test_ps_for_scripts(boxes, say):
    assert say("ps", "-q") == (0, "busy\nfresh\n", "")
    assert say("ps", "-aq") == (0, "busy\ndamaged\ndone\nfresh\nlate\nlost\noom\n", "")
    rows = {row["id"]: row for row in json.loads(say("ps", "-a", "--json")[1])}
    assert list(rows) == list(boxes)
    place = {name: str(box.directory) for name, box in boxes.items()}
    nothing = {
        "exit_code": None, "exit": None, "health": None, "ends": None, "reason": "", "foreground": False, "restart": "no", "restarts": 0,
        "next_start": None, "network": "none", "networks": [], "ports": [],
    }  # fmt: skip
    true = {"image": "img", "command": ["true"], "created": AT, "gpus": [], "simulated": False, "labels": {}, "pid": 0}
    assert rows["busy"] == {
        "id": "busy", "image": "img", "command": ["sh", "-c", "echo " + "x" * 40], "state": "running", "pid": 4242, "created": AT,
        "gpus": ["GPU-1", "GPU-2"], "simulated": True, "labels": {"gpus": "simulated"}, **nothing, "directory": place["busy"],
    }  # fmt: skip
    assert rows["fresh"] == {**true, **nothing, "id": "fresh", "state": "starting", "directory": place["fresh"]}
    done = rows["done"].pop("exit")
    assert rows["done"] == {
        **true, **{name: value for name, value in nothing.items() if name != "exit"}, "id": "done", "state": "exited", "exit_code": 3,
        "directory": place["done"],
    }  # fmt: skip
    assert done == json.loads(json.dumps(asdict(boxes["done"].exit()))) and done["code"] == 3
    assert rows["late"]["exit_code"] == 124
    lost = {"id": "lost", "command": [], "state": "vanished", "reason": "the host was rebooted while it ran", "directory": place["lost"]}
    assert rows["lost"] == {**true, **nothing, **lost}
    assert "cannot be read" in rows["damaged"].pop("reason")
    unknown = {name: value for name, value in nothing.items() if name != "reason"} | {"image": "", "command": []}
    assert rows["damaged"] == {**true, **unknown, "id": "damaged", "state": "vanished", "directory": place["damaged"]}


def test_one_that_is_gone_is_described_by_nothing(home):
    assert described(Box("gone", home / "gone")) is None


@pytest.mark.parametrize(
    ("gpus", "labels", "setting", "simulated"),
    [
        (("GPU-1",), {"gpus": "simulated"}, "", True),
        (("GPU-1",), {}, "2x80G", True),
        (("GPU-1",), {}, "", False),
        (("GPU-1",), {"gpus": "real"}, "", False),
        ((), {"gpus": "simulated"}, "2x80G", False),
    ],
)
def test_whether_gpus_are_simulated(monkeypatch, say, gpus, labels, setting, simulated):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", setting)
    box = recorded("box", Spec(argv=("true",), gpus=gpus), labels=labels)
    assert described(box)["simulated"] is simulated
    with alive(box):
        assert ("GPUs are simulated." in say("ps")[1]) is simulated


class _Box:
    """``asked``: what it was asked to do, in order."""

    def __init__(self, name: str = "box", state: str = "exited", labels: dict[str, str] | None = None, damaged: bool = False) -> None:
        self.id, self._state, self._labels, self._damaged = name, state, labels or {}, damaged
        self.asked: list[object] = []

    @property
    def labels(self) -> dict[str, str]:
        if self._damaged:
            raise SandboxGone("its spec.json cannot be read")
        return self._labels

    @property
    def alive(self) -> bool:
        return self._state in ("starting", "running")

    @contextlib.contextmanager
    def held(self):
        yield self

    def stopping(self, grace: float | None):
        self.asked.append(("stop", grace))
        yield

    def kill(self) -> None:
        self.asked.append("kill")

    def send_signal(self, number: int) -> None:
        self.asked.append(number)

    def remove(self) -> None:
        self.asked.append("remove")


@pytest.fixture
def known(monkeypatch):
    """Sandboxes by their names; others there are not."""

    def known(*made: _Box) -> tuple[_Box, ...]:
        by_name = {box.id: box for box in made}

        def get(name: str) -> _Box:
            with contextlib.suppress(KeyError):
                return by_name[name]
            raise SandboxGone(f"there is no sandbox {name}", subject=name, hint="list them")

        monkeypatch.setattr(boxes_module, "get", get)
        return made

    return known


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("kill",), "kill"), (("kill", "-s", "KILL"), "kill"), (("kill", "-s", "9"), "kill"),
        (("kill", "-s", "TERM"), signal.SIGTERM), (("kill", "-s", "SIGHUP"), signal.SIGHUP),
        (("stop",), ("stop", None)), (("stop", "--grace", "1m"), ("stop", 60.0)), (("stop", "--grace", "0"), ("stop", 0.0)),
        (("rm",), "remove"), (("rm", "-f"), "remove"),
    ],
)  # fmt: skip
def test_what_is_asked_of_a_sandbox(known, say, words, asked):
    """Also of one whose records are damaged: it is no job's that anybody could know of."""
    for damaged in (False, True):
        (box,) = known(_Box(damaged=damaged))
        assert say(*words, "box") == (0, "box\n", "") and box.asked == [asked]


@pytest.mark.parametrize("state", ["starting", "running"])
def test_what_still_runs_is_removed_by_force_alone(known, say, state):
    (box,) = known(_Box(state=state))
    assert say("rm", "box") == (125, "", "dockless: sandbox box still runs\n  hint: dockless stop box, or rm --force\n")
    assert box.asked == []
    assert say("rm", "--force", "box")[0] == 0 and box.asked == ["remove"]


@pytest.mark.parametrize(("labels", "job"), [({"job": "7", "queue": "q"}, "7"), ({"job": "7"}, "7"), ({"queue": "q"}, "box")])
def test_a_sandbox_of_the_daemons_is_ended_through_the_daemon(known, say, labels, job):
    (box,) = known(_Box(labels=labels))
    refused = (125, "", f"dockless: sandbox box belongs to job {job} of the queue\n  hint: dockless cancel {job}\n")
    assert say("stop", "box") == say("rm", "-f", "box") == refused and box.asked == []
    assert json.loads(say("stop", "--json", "box")[2])["subject"] == "box"
    assert say("kill", "box")[0] == 0 and box.asked == ["kill"]


def test_several_are_all_tried(known, say):
    """The first error is the one that counts."""
    known(_Box("one"), _Box("busy", "running"), _Box("two"))
    missing = "dockless: there is no sandbox {}\n"
    assert say("rm", "one", "none", "busy", "two", "more") == (
        125,
        "one\ntwo\n",
        "dockless: sandbox busy still runs\n" + missing.format("more") + missing.format("none") + "  hint: list them\n",
    )
    assert say("rm", "-q", "one", "two") == (0, "", "")
    assert say("rm", "--json", "one", "two") == (0, '["one", "two"]\n', "")
    assert say("rm", "-q", "--json", "one") == (0, '["one"]\n', "")
