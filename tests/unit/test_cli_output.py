"""What the command line prints: escaped, cut and aligned for people, plain for scripts, and honest where it cannot be written."""

from __future__ import annotations

import errno
import json
import sys
from types import SimpleNamespace

import pytest
from support.streams import Stream

from dockless.base.dataclass import dataclass
from dockless.base.records import plain
from dockless.base.text import escaped, shown
from dockless.cli import inspecting, output
from dockless.cli.progress import ProgressLine
from dockless.errors import BadInput, OutputLost, SandboxGone, UnknownImage


def replacing(monkeypatch, name):
    def put(**how):
        monkeypatch.setattr(sys, name, Stream(**how))
        return getattr(sys, name)

    return put


@pytest.fixture
def stdout(monkeypatch):
    return replacing(monkeypatch, "stdout")


@pytest.fixture
def stderr(monkeypatch):
    return replacing(monkeypatch, "stderr")


def test_lines(stdout, stderr):
    here, there = stdout(), stderr()
    output.out("a", 5, "b\nc")
    output.err("d")
    output.warn("w", hint="h\x1b")
    output.warn("w")
    assert here.said() == b"a\n5\nb\\nc\n"
    assert there.said() == b"d\ndockless: w\n  hint: h\\x1b\ndockless: w\n"


def test_a_document_goes_into_a_file_as_it_is_and_onto_a_terminal_escaped(stdout, monkeypatch):
    document = b"a\x1b\n\xff\n"
    here = stdout()
    output.out("before")
    output.raw(document)
    assert here.said() == b"before\n" + document
    here = stdout(terminal=True)
    output.raw(document)
    assert here.said() == b"a\\x1b\n\\xff\n"
    monkeypatch.setattr(sys, "stdout", None)
    output.raw(document)
    output.out("nobody reads it")


def test_characters_that_the_stream_does_not_know(stdout):
    here = stdout(encoding="ascii")
    output.out("caf\xe9")
    assert here.said() == b"caf\\xe9\n"


def test_what_cannot_be_written_is_told(stdout, stderr):
    """Of standard output, with the kernel's reason; of standard error nobody could be told; a reader that has gone is another thing."""
    for write in (lambda: output.out("x"), lambda: output.raw(b"x")):
        stdout(error=OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(OutputLost, match="No space left on device") as lost:
            write()
        assert (lost.value.subject, lost.value.errno) == ("standard output", errno.ENOSPC) and lost.value.hint
        stdout(error=OSError("odd"))
        with pytest.raises(OutputLost) as lost:
            write()
        assert lost.value.errno == 0
        stdout(error=BrokenPipeError(errno.EPIPE, "gone"))
        with pytest.raises(BrokenPipeError):
            write()
    stderr(error=OSError(errno.ENOSPC, "No space left on device"))
    output.err("x")
    stderr(error=BrokenPipeError(errno.EPIPE, "gone"))
    with pytest.raises(BrokenPipeError):
        output.err("x")


def test_a_line_that_is_replaced_and_a_question(stderr, monkeypatch):
    there = stderr()
    output.status("5\n%")
    output.ask("sure\x1b? ")
    assert there.said() == b"\r\x1b[K5\\n%sure\\x1b? "
    monkeypatch.setattr(sys, "stderr", None)
    output.ask("nobody")


@pytest.mark.parametrize(
    ("answer", "yes"), [("y\n", True), ("YES \n", True), (" yes", True), ("n\n", False), ("\n", False), ("", False), ("yep\n", False)]
)
def test_a_question_is_answered_on_a_terminal(stderr, monkeypatch, answer, yes):
    there = stderr()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True, readline=lambda: answer))
    assert output.confirmed("go on?") is yes and there.said() == b"go on? [y/N] "


def test_where_there_is_no_terminal_whoever_wrote_the_script_has_decided(stderr, monkeypatch):
    there = stderr()
    for stdin in (None, SimpleNamespace(isatty=lambda: False)):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert output.confirmed("go on?") is True
    assert there.said() == b""


def test_progress_without_anywhere_to_show_it(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert not ProgressLine(False)._terminal


def test_tables(stdout):
    here = stdout()
    output.table(("A", "LONG"), [("xyz", 1), ("", "b\n")], indent="  ")
    output.table(("A",), [])
    assert here.said() == b"  A    LONG\n  xyz  1\n       b\\n\nA\n"


def test_how_much_of_a_text_is_shown(monkeypatch):
    assert [output.cut("abcd", width) for width in (3, 4, 5)] == ["ab\u2026", "abcd", "abcd"]
    assert output.short("sha256:0123456789abcdef") == "0123456789ab"
    monkeypatch.setattr(output.time, "time", lambda: 1000.0)
    assert (output.age(0), output.age(940.0), output.age(1001.0)) == ("", "1m", "0s")
    for seconds, text in (
        (-5, "0s"),
        (3599, "59m59s"),
        (3600, "1h"),
        (3659, "1h"),
        (3660, "1h1m"),
        (86399, "23h59m"),
        (86400, "1d"),
        (90059, "1d1h"),
    ):
        assert output.span(seconds) == text, seconds


@dataclass(slots=True)
class Record:
    name: str
    more: object = None


def test_json(stdout):
    here = stdout()
    output.print_json({"a": [1, "\x7f\xe9"]})
    output.print_json([], indent=2)
    output.print_json({"a": [1]}, indent=1)
    assert here.said() == b'{"a": [1, "\\u007f\\u00e9"]}\n[]\n{\n "a": [\n  1\n ]\n}\n'
    record = Record("x", {5: (Record("y"), {"z"}), "type": Record})
    assert plain(record) == {"name": "x", "more": {"5": [{"name": "y", "more": None}, ["z"]], "type": Record}}
    assert json.loads(output.json_text({"path": output})) == {"path": str(output)}


def fail(error):
    raise error


def test_one_that_fails_is_reported_and_the_others_go_on(stderr):
    there, done = stderr(), []

    def do(item):
        if item == "bad":
            raise BadInput("not good", subject="it")
        if item == "gone":
            raise FileNotFoundError(2, "No such file or directory", "x")
        done.append(item)

    assert output.each(["a", "bad", "b", "gone", "c"], do) == 125 and done == ["a", "b", "c"]
    assert there.said().count(b"dockless: ") == 2
    assert output.each(["a"], do) == 0 and output.each([], do) == 0

    for error in (OutputLost("lost"), BrokenPipeError()):
        with pytest.raises(type(error)):
            output.each([error], fail)


def test_errors_of_each_as_json(stderr):
    there = stderr()
    output.each([BadInput("not good", subject="it", hint="do")], fail, as_json=True)
    assert json.loads(there.said())["message"] == "not good"


def test_values_in_messages():
    assert [shown(value) for value in (None, True, 1.5, 5, "a", b"a")] == ["None", "True", "1.5", "5", "'a'", "b'a'"]
    most = 10**20
    assert [shown(value) for value in (most - 1, 1 - most)] == [str(most - 1), str(1 - most)]
    assert shown(most) == shown(-most) == "a number of more than 20 digits"
    assert shown("a" * 60) == repr("a" * 60) and shown("a" * 61) == repr("a" * 57) + "..."
    assert shown(object()) == "of type object"
    assert escaped("a\xe9") == "a\xe9" and escaped("\u202e\ud800\x9b") == "\\u202e\\ud800\\x9b"


ABOUT = {
    "history": [
        {"created": "2026-01-02T03:04:05Z", "created_by": "/bin/sh -c #(nop)  ADD   x", "empty_layer": False},
        {"created_by": "ENV A=1", "comment": "why", "empty_layer": True},
        {"created_by": "RUN " + "y" * 100, "empty_layer": False},
        {"created_by": "more steps than layers"},
    ],
    "layers": [{"digest": "sha256:" + "1" * 64, "size": 2048}, {"digest": "sha256:" + "2" * 64, "size": 5}],
}


@pytest.fixture
def history(stdout, monkeypatch):
    def history(about, **how):
        monkeypatch.setattr(inspecting, "about_image", lambda name: about)
        here = stdout()
        options = SimpleNamespace(**{"image": "img", "json": False, "quiet": False, "no_trunc": False, "format": None, **how})
        assert inspecting.history(options) == 0
        return here.said().decode()

    return history


def test_the_history_of_an_image(history):
    lines = history(ABOUT).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["LAYER", "", "222222222222", "", "111111111111"]
    assert lines[0].split() == ["LAYER", "CREATED", "SIZE", "MADE", "BY"]
    assert lines[1].strip() == "more steps than layers" and lines[3].strip() == "ENV A=1  # why"
    assert lines[4].split("  ") == ["111111111111", "2026-01-02", "2 KiB", "ADD x"]
    assert lines[2].endswith("RUN " + "y" * 85 + "\u2026") and "5 B" in lines[2]
    assert "RUN " + "y" * 100 + "\n" in history(ABOUT, no_trunc=True)
    assert history(ABOUT, quiet=True).split() == ["sha256:" + "2" * 64, "sha256:" + "1" * 64]
    rows = json.loads(history(ABOUT, json=True))
    assert [(row["layer"], row["size"]) for row in rows] == [(None, 0), ("sha256:" + "2" * 64, 5), (None, 0), ("sha256:" + "1" * 64, 2048)]


def test_an_image_goes_before_a_sandbox_of_the_same_name(stdout, stderr, monkeypatch):
    def about_image(name):
        if name != "both":
            raise UnknownImage(f"there is no image {name!r}")
        return {"image": name}

    def get(name):
        if name not in ("both", "box"):
            raise SandboxGone(f"there is no sandbox {name!r}")
        return name

    def said(*names, kind=None, as_json=False):
        here, there = stdout(), stderr()
        code = inspecting.inspect(SimpleNamespace(raw=None, names=names, type=kind, json=as_json, format=None))
        return code, here.said().decode(), there.said().decode()

    monkeypatch.setattr(inspecting, "about_image", about_image)
    monkeypatch.setattr("dockless.sandbox.run.box.get", get)
    monkeypatch.setattr("dockless._life.described", lambda box: {"sandbox": box})
    assert said("both", "box") == (0, '[\n  {\n    "image": "both"\n  },\n  {\n    "sandbox": "box"\n  }\n]\n', "")
    assert said("both", as_json=True)[1] == '[{"image": "both"}]\n'
    assert json.loads(said("both", kind="sandbox")[1]) == [{"sandbox": "both"}]
    for kind, text in ((None, "neither an image nor a sandbox"), ("image", "there is no image"), ("sandbox", "there is no sandbox")):
        code, out, err = said("none", kind=kind)
        assert (code, out) == (125, "[]\n") and text in err
    assert "there is no sandbox '7'" in said("7")[2]  # the number of a job
    monkeypatch.setattr("dockless._life.described", lambda box: None)  # it is gone by now
    assert "neither an image nor a sandbox" in said("box")[2]


def test_an_image_without_a_history_has_its_layers_all_the_same(history):
    assert history({"history": [], "layers": ABOUT["layers"]}, quiet=True).split() == ["sha256:" + "2" * 64, "sha256:" + "1" * 64]
    with pytest.raises(BadInput, match="no image with a history"):
        history({})


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        ({}, []), ({"history": None}, []), ({"history": {}}, []), ({"history": [1, "a", None]}, []),
        ({"history": [{}]}, [{"empty_layer": False}]),
        ({"history": [{"created": 5, "created_by": "x", "author": "a", "comment": "c", "empty_layer": True, "other": "o"}]},
         [{"created_by": "x", "author": "a", "comment": "c", "empty_layer": True}]),
        ({"history": [{"created": "t", "empty_layer": 1}]}, [{"created": "t", "empty_layer": False}]),
    ],
)  # fmt: skip
def test_the_steps_of_a_configuration(config, steps):
    assert inspecting.history_of(json.dumps(config).encode()) == steps
