"""The life of sandboxes on the command line, and how it is told: real sandboxes of the host's own system."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from support.boxes import load, until
from support.make_image import file
from support.requires import requires

import dockless
from dockless.cli import boxes, main
from dockless.cli.logs import moment
from dockless.errors import BadInput
from dockless.sandbox.run.logfile import Log

pytestmark = requires("userns")


@pytest.fixture
def say(capfd):
    """A command line that ends with ``code``: what it said on standard output, or on standard error if that is not 0."""

    def say(*words, code=0):
        got = main([*words])
        said = capfd.readouterr()
        assert got == code, said
        return said.err if code else said.out

    yield say
    for box in dockless.list():
        box.rm(force=True)


def test_started_stopped_started_again_and_removed(say, tmp_path):
    ids = tmp_path / "id"
    assert (
        say("run", "-d", "--name", "box", "-l", "team=a", "--label", "x", "--cidfile", str(ids), "--", "sh", "-c", "echo hi; sleep 1000")
        == "box\n"
    )
    assert ids.read_text() == "box\n"
    assert "is the file" not in say("run", "-d", "--cidfile", str(ids), "--", "true", code=125) and dockless.list()[0].id == "box"
    assert say("ps", "--format", "{{.ID}} {{.State}} {{json .Labels}} {{.ExitCode}}|") == 'box running {"team": "a", "x": ""} |\n'
    assert say("start", "box", code=125).startswith("dockless: sandbox box runs already")
    until(lambda: say("logs", "box") == "hi\n", "it has said something")
    assert say("container", "stop", "-t", "0", "box") == "box\n"
    assert say("ps", "-q") == "" and say("ps", "-q", "--filter", "status=exited") == "box\n" == say(
        "ps", "-aq", "-f", "exited=137", "-f", "exited=143"
    )
    assert say("start", "box") == "box\n" and say("inspect", "--format", "{{.State}}", "box") == "running\n"
    until(lambda: say("logs", "box") == "hi\nhi\n", "its second start has said something")
    assert say("rename", "box", "other") == "other\n" and say("restart", "-t", "0", "-q", "other") == ""
    until(lambda: say("logs", "other") == "hi\nhi\nhi\n", "each of its three starts has said something")
    assert say("prune", "--sandboxes", "-y") == "" and say("kill", "other") == "other\n"
    dockless.Sandbox.open("other").wait(20)
    assert say("container", "prune", "-f", "--filter", "label=team=b") == ""
    assert say("container", "prune", "-f", "--filter", "label=team=a") == "other\n" and say("ps", "-aq") == ""


def test_several_are_stopped_at_once(say, tmp_path):
    """The first ends only after the second has got its stop signal."""
    place = tmp_path / "place"
    place.mkdir()
    for name, end in (("one", "until [ -e /place/two ]; do sleep 0.01; done"), ("two", "touch /place/two")):
        script = f"trap '{end}; echo {name} ends; exit 4' TERM; echo set; while :; do sleep 0.01; done"
        say("run", "-d", "--name", name, "-v", f"{place}:/place", "--", "sh", "-c", script)
        until(lambda name=name: say("logs", name) == "set\n", "its trap is set")
    assert say("restart", "-t", "30", "one", "two") == "one\ntwo\n"
    for name in ("one", "two"):
        until(lambda name=name: say("logs", name) == f"set\n{name} ends\nset\n", "it was stopped by its signal, and runs again")
    (place / "two").unlink()
    assert "there is no sandbox none" in say("stop", "-q", "-t", "30", "one", "none", "two", code=125)
    assert say("ps", "-a", "--format", "{{.ID}} {{.ExitCode}}") == "one 4\ntwo 4\n"


def test_more_than_are_stopped_at_once(say, monkeypatch):
    """What goes wrong with one of them keeps nobody of the next from being stopped."""
    monkeypatch.setattr(boxes, "_AT_ONCE", 2)
    for name in ("one", "two", "three", "four", "five"):
        say("run", "-d", "--name", name, "--", "sleep", "1000")
    assert "there is no sandbox none" in say("stop", "-t", "0", "one", "none", "two", "three", "four", "five", code=125)
    assert say("ps", "-q") == ""


def test_a_file_of_the_id_goes_where_nothing_starts(say, tmp_path):
    ids = tmp_path / "id"
    assert "no-such-program" in say("run", "-d", "--cidfile", str(ids), "--", "no-such-program", code=127) and not ids.exists()
    say("run", "--rm", "--cidfile", str(ids), "--", "true")
    assert ids.read_text().startswith("s-")


def test_the_end_of_one_that_removes_itself(say):
    say("run", "-d", "--rm", "--name", "gone", "--", "sh", "-c", "trap 'exit 4' TERM; echo set; while :; do sleep 0.01; done")
    until(lambda: say("logs", "gone") == "set\n", "its trap is set")
    waiting = subprocess.Popen([sys.executable, "-P", "-m", "dockless", "wait", "--json", "gone"], stdout=subprocess.PIPE, text=True)
    until(lambda: _has_open(waiting.pid, "exit.tmp"), "it is waited for")
    say("stop", "gone")
    out, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 4 and json.loads(out)[0]["exit_code"] == 4 and say("ps", "-aq") == ""


def _has_open(pid, name):
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{fd}").endswith(name) for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def test_a_foreground_run_is_known_to_others(say):
    command = [sys.executable, "-P", "-m", "dockless", "run", "--name", "front", "--label", "a=b", "--", "sleep", "1000"]
    program = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        until(lambda: say("ps", "-q", "-f", "label=a=b") == "front\n", "it is listed")
        until(lambda: dockless.Sandbox.open("front").state == "running", "it runs")
        row = json.loads(say("inspect", "--json", "front"))[0]
        assert row["foreground"] and row["command"] == ["sleep", "1000"] and os.path.exists(f"/proc/{row['pid']}")
        assert "goes to the program that started it" in say("logs", "front", code=125)
        assert "keeps its name" in say("rename", "front", "back", code=125) and "runs once" in say("restart", "front", code=125)
        assert say("stop", "front") == "front\n"
        assert program.wait(20) == 143
    finally:
        program.kill()
        program.communicate()
    assert say("ps", "-aq") == ""


@requires("cgroup2")
def test_it_stands_still(say):
    say("run", "-d", "--name", "box", "--", "sleep", "1000")
    assert say("pause", "box") == "box\n" and "paused" in say("ps")
    assert say("ps", "-q", "--filter", "state=paused") == "box\n"
    assert say("unpause", "box") == "box\n" and "running" in say("ps")
    assert "nothing is named" in say("update", "box", code=125)


def test_some_lines_of_the_log(say, monkeypatch):
    say("run", "-d", "--name", "box", "--", "sh", "-c", "for i in 1 2 3 4; do echo $i; done")
    dockless.Sandbox.open("box").wait(20)
    with monkeypatch.context() as patched:
        patched.setattr(Log, "read", None)
        assert say("logs", "--tail", "2", "box") == "3\n4\n", "without reading the rest"
    between = time.time() + 1
    assert say("logs", "--tail", "2", "box") == "3\n4\n" == say("logs", "-n", "2", "-f", "box")
    assert say("logs", "-n", "0", "box") == "" and say("logs", "-n", "9", "box") == "1\n2\n3\n4\n"
    assert say("logs", "--until", str(between), "box") == "1\n2\n3\n4\n" == say("logs", "--since", "1h", "box")
    assert say("logs", "--since", str(between), "box") == "" == say("logs", "--until", "2020-01-01T00:00:00Z", "box")
    assert "--since 'soon' cannot be read" in say("logs", "--since", "soon", "box", code=125)


def test_moments():
    assert (
        moment("1700000000.5", "x")
        == 1700000000.5
        == moment("2023-11-14T22:13:20.5Z", "x")
        == moment("2023-11-14T23:13:20.500000000+01:00", "x")
    )
    assert moment("2023-11-14T22:13:20", "x") == 1700000000 and abs(moment("1h", "x") - time.time() + 3600) < 60
    with pytest.raises(BadInput):
        moment("tomorrow", "x")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{.Nope}}", "there is no field .Nope"),
        ("{{.ID.Deeper}}", "there is no field .ID.Deeper"),
        ("{{range .}}", "the template '{{range .}}' cannot be read"),
        ("{{.ID", "cannot be read"),
        ("}}", "cannot be read"),
    ],
)
def test_templates_that_are_none(say, template, said):
    say("run", "-d", "--name", "box", "--", "true")
    assert said in say("ps", "-a", "--format", template, code=125)


def test_templates(say):
    say("run", "-d", "--name", "box", "-l", "a=b", "--", "echo", "\x1b[2J")
    dockless.Sandbox.open("box").wait(20)
    assert (
        say("ps", "-a", "--format", r"{{.Names}}\t{{ .exit.code }}{{.Simulated}} {{.Labels}} {{json .Exit.Code}}") == "box\t0false a=b 0\n"
    )
    assert "\x1b" not in say("ps", "-a", "--format", "{{.Command}}")
    assert say("ps", "-a", "--format", r"table {{.ID}}\t{{.State}}") == "ID   STATE\nbox  exited\n"
    assert json.loads(say("ps", "-a", "--format", "json"))["id"] == "box"
    assert say("ps", "-a", "--format", "{{.Labels.a}} {{.Labels.none}}|{{json .Labels.a}}") == 'b |"b"\n'
    assert json.loads(say("inspect", "-f", "{{json .}}", "box"))["labels"] == {"a": "b"}


@pytest.mark.parametrize("text", ["state=ran", "nothing", "size=3", "label="])
def test_filters_that_are_none(say, text):
    assert "--filter" in say("ps", "--filter", text, code=125)


def test_labels_and_filters_of_volumes(say):
    assert say("volume", "create", "--label", "team=a", "--label", "old", "one") == "one\n"
    say("volume", "create", "-l", "team=b", "two")
    say("volume", "create", "three")
    assert say("volume", "create", "one", "three") == "one\nthree\n"
    assert "other labels" in say("volume", "create", "--label", "team=b", "one", code=125)
    assert json.loads(say("volume", "inspect", "one"))[0]["labels"] == {"team": "a", "old": ""}
    say("run", "-d", "--name", "box", "-v", "two:/v", "--", "true")
    for filters, found in {
        "label=team": "one two", "label=team=b": "two", "label=team label=old": "one", "name=t": "three two", "dangling=false": "two",
        "dangling=true label=team": "one", "label=none": "", "name=one name=two": "one two",
    }.items():  # fmt: skip
        given = [word for one in filters.split() for word in ("--filter", one)]
        assert say("volume", "ls", "-q", *given).split() == found.split(), filters
    assert say("volume", "prune", "-f", "--filter", "label=team") == "one\n" and say("volume", "ls", "-q") == "three\ntwo\n"
    say("volume", "create", "one")
    assert json.loads(say("volume", "inspect", "one"))[0]["labels"] == {}, "they went with the volume"
    for wrong in ("label", "size=3", "dangling=maybe", "name="):
        assert "KEY=VALUE" in say("volume", "ls", "--filter", wrong, code=125)
    assert "takes no --label" in say("volume", "ls", "--label", "a=b", code=125)
    assert "NAME=VALUE" in say("volume", "create", "--label", "=b", "x", code=125)


def test_volumes(say):
    assert say("volume", "create", "one", "two") == "one\ntwo\n"
    say("run", "-d", "--name", "box", "-v", "one:/v", "--", "sh", "-c", "echo x > /v/file")
    dockless.Sandbox.open("box").wait(20)
    assert say("volume", "ls", "-q") == "one\ntwo\n" and say("volume", "ls", "--format", "{{.Name}}:{{.Sandboxes}}") == "one:box\ntwo:\n"
    (about,) = json.loads(say("volume", "inspect", "one"))
    assert os.listdir(about["directory"]) == ["file"]
    assert "belongs to 1 sandboxes: box" in say("volume", "rm", "one", code=125)
    assert say("volume", "prune", "-f") == "two\n"
    say("rm", "-q", "box")
    assert say("volume", "rm", "one") == "one\n" and say("volume", "ls", "-q") == "" and not os.path.exists(about["directory"])
    assert "there is no volume one" in say("volume", "rm", "one", code=125) and "wants a name" in say("volume", "create", code=125)
    assert "takes no name" in say("volume", "ls", "one", code=125) and "not usable as a name" in say("volume", "rm", "../x", code=125)


def test_two_words(say):
    for group in ("container", "image", "system"):
        assert f"{group} goes before" in say(group, code=125) and f"unknown verb '{group} nope'" in say(group, "nope", code=125)
    assert say("container", "ls", "-q") == "" == say("image", "ls", "-q") and "store" in say("system", "df")
    assert "there is no image" in say("image", "inspect", "box", code=125) and "there is no sandbox" in say(
        "container", "inspect", "box", code=125
    )
    assert "usage: dockless ps" in say("help", "container", "ls")


def test_formats_of_lists(say, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKLESS_HOME", str(tmp_path / "home"))
    (tmp_path / "image").mkdir()
    reference = load(tmp_path / "image", [file("a", "x")])
    named = say("images", "--format", "{{.Repository}}:{{.Tag}} {{.Size}}").split()
    assert named[0] == reference.removeprefix("docker.io/library/") and int(named[1]) > 0
    for given, found in {"dangling=false": 1, "dangling=true": 0, "reference=nosuch": 0, "label=none": 0, "reference=*": 1}.items():
        assert len(say("images", "-q", "-f", given).split()) == found, given
    for wrong in ("size=3", "dangling=perhaps", "label="):
        assert "KEY=VALUE" in say("images", "--filter", wrong, code=125)
    assert "neither" in say("images", "--shared", "--format", "json", code=125)
    assert all(line.isdigit() for line in say("history", "--format", "{{.Size}}", reference).split())
    box = dockless.start(reference, ["sh", "-c", "echo x > /made; sleep 1000"], id="box")
    until(lambda: box.files.exists("/made"), "it is made")
    assert "A=/made\n" in say("diff", "--no-pause", "--format", "{{.Kind}}={{.Path}}", "box")
    assert say("stats", "--no-stream", "--format", "{{.ID}}", "box") == "box\n"
    assert say("events", "--since", "1h", "--until", "0s", "--format", "{{.Kind}} {{.ID}}") == "create box\nstart box\n"
    assert "no field .Nope" in say("events", "--since", "1h", "--until", "0s", "--format", "{{.Nope}}", code=125)
    box.rm(force=True)
