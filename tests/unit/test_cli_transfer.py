"""``load``, ``save``, ``import`` and ``export``: what they ask of the store, where files and standard streams come in, what they print."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dockless.cli import dispatch
from dockless.errors import BadImage, ImageError, SandboxGone, UnknownImage
from dockless.images import Store
from dockless.images.archive import export, importing, save
from dockless.images.archive.assemble import Edit
from dockless.images.archive.diff import WrittenLayer
from dockless.images.model import platforms
from dockless.images.progress import Progress
from dockless.sandbox import commit
from dockless.sandbox.run import detached

DIGEST = "sha256:" + "ab" * 32


def image(name: str) -> Any:
    return SimpleNamespace(
        name=name, reference=name, digest=DIGEST, config_digest="sha256:c", os="linux", architecture="amd64", variant="", size=2048,
        created="", layers=("layer",), warnings=("odd",) if name == "odd:1" else (), config={},
    )  # fmt: skip


def line(name: str) -> str:
    return f"{name}  abababababab  2 KiB, 1 layer\n"


class _Standard(io.TextIOWrapper):
    """A standard stream over these bytes, on a terminal or not."""

    def __init__(self, data: bytes = b"", terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data))
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


# -- load


@pytest.fixture
def loads(monkeypatch):
    """What the store was asked to load, with what was in it, and which pins of what came before were held then."""
    asked: list[Any] = []
    pins: list[int] = []

    def load(self, source, *, name, progress):
        text = Path(source).read_text() if os.path.isfile(source) else ""
        held = [fd for fd in pins if os.path.exists(f"/proc/self/fd/{fd}")]
        asked.append((Path(source).name, text, name, progress is not None, len(held)))
        if "bad" in text:
            error = BadImage(f"{source} is not an image", subject=str(source), hint="give one")
            error.add_note("a note")
            raise error
        if progress is not None:
            progress(Progress("a:1", 1, 1, DIGEST, 5, 5, "done"))
        return [image(name or f"{Path(source).name}:1")]

    def pin(self, found):
        pins.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        return pins[-1]

    monkeypatch.setattr(Store, "load", load)
    monkeypatch.setattr(Store, "pin", pin)
    return asked


READ = "a:1: layer 1/1 abababababab: done, 5 B read\n"


def test_load(loads, say, home):
    assert say("load", "odd") == (0, line("odd:1"), READ + "dockless: odd:1: odd\n")
    assert say("load", "-q", "--name", "x:1", "a") == (0, "x:1\n", "")
    code, out, err = say("load", "--json", "-i", "b", "a")
    assert (code, [row["reference"] for row in json.loads(out)], err) == (0, ["a:1", "b:1"], "")
    assert [(name, told) for name, _, _, told, _ in loads] == [("odd", True), ("a", False), ("a", False), ("b", False)]
    assert loads[1][2] == "x:1" and loads[2][2] is None


def test_what_was_loaded_makes_no_room_for_what_comes_next(loads, say, home):
    assert say("load", "-q", "a", "b", "c")[0] == 0
    assert [held for *_, held in loads] == [0, 1, 2]
    loads.clear()
    say("load", "-q", "a")
    assert loads[0][-1] == 0


def test_what_comes_alone_takes_no_descriptors(loads, say, home, monkeypatch):
    """However many images are in it."""
    monkeypatch.setattr(Store, "pin", lambda self, found: os.open("/nowhere", os.O_RDONLY))
    assert say("load", "-q", "a") == (0, "a:1\n", "")
    assert say("load", "-q", "a", "b")[0] == 125


def test_one_that_cannot_be_loaded_leaves_the_others(loads, say, tmp_path):
    (tmp_path / "bad").write_text("bad")
    code, out, err = say("load", "-q", tmp_path / "bad", "a")
    assert (code, out) == (125, "a:1\n") and err == f"dockless: {tmp_path}/bad is not an image\n  hint: give one\n  note: a note\n"
    code, out, err = say("load", "--json", tmp_path / "bad")
    assert (code, out, json.loads(err)["error"]) == (125, "[]\n", "bad_image")


@pytest.mark.parametrize("words", [(), ("-",), ("-i", "-"), ("--input", "-")])
def test_standard_input_is_loaded_as_a_file_of_the_store(loads, say, monkeypatch, home, words):
    monkeypatch.setattr(sys, "stdin", _Standard(b"x" * 5))
    assert say("load", "-q", "--name", "x:1", *words) == (0, "x:1\n", "")
    assert loads == [("stdin", "xxxxx", "x:1", False, 0)]
    assert list((home / "store/tmp").iterdir()) == []
    monkeypatch.setattr(sys, "stdin", _Standard())
    say("load", *words)
    assert loads[1][2:4] == (None, True)


def test_an_error_about_standard_input_names_it_so(loads, say, monkeypatch, home):
    monkeypatch.setattr(sys, "stdin", _Standard(b"bad"))
    assert say("load", "-") == (125, "", "dockless: standard input is not an image\n  hint: give one\n  note: a note\n")
    monkeypatch.setattr(sys, "stdin", _Standard(b"bad"))
    assert json.loads(say("load", "--json", "-")[2])["subject"] == "-"


@pytest.mark.parametrize("stdin", [None, _Standard(terminal=True)])
def test_nobody_types_an_archive(loads, say, monkeypatch, home, stdin):
    monkeypatch.setattr(sys, "stdin", stdin)
    refused = "dockless: no file is given, and standard input is a terminal\n  hint: dockless {} FILE, or pipe one in\n"
    assert say("load") == say("load", "a", "-") == (125, "", refused.format("load")) and loads == []
    assert say("import", "-") == (125, "", refused.format("import"))
    assert not (home / "store").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--name", "x", "a", "b"), "--name with several files\n  hint: load them one by one"),
        (("--name", "x", "a", "-i", "b"), "--name with several files\n  hint: load them one by one"),
        (("a", ""), "the name of a file is empty\n  hint: dockless load FILE"),
    ],
)
def test_loads_that_cannot_be_meant(loads, say, words, said):
    assert say("load", *words) == (125, "", f"dockless: {said}\n") and loads == []


# -- import


@pytest.fixture
def imports(monkeypatch):
    asked: list[Any] = []

    def import_root(store, source, **how):
        asked.append((source if isinstance(source, str) else source.read(), how))
        return image("odd:1")

    monkeypatch.setattr(importing, "import_root", import_root)
    return asked


PLAIN = {"reference": None, "edit": Edit.parse([]), "platform": None, "compression": None, "level": None}


def test_import(imports, say, monkeypatch, home):
    assert say("import", "root.tar") == (0, line("odd:1"), "dockless: odd:1: odd\n")
    assert say("import", "-q", "root.tar") == (0, "odd:1\n", "")
    monkeypatch.setattr(sys, "stdin", _Standard(b"a tar"))
    code, out, err = say("import", "--json", "-", "x:1")
    assert (code, json.loads(out)["reference"], err) == (0, "odd:1", "dockless: odd:1: odd\n")
    assert imports == [("root.tar", PLAIN), ("root.tar", PLAIN), (b"a tar", {**PLAIN, "reference": "x:1"})]


def test_every_option_of_an_import(imports, say, home):
    words = ["-c", "CMD true", "-m", "why", "-a", "me", "--platform", "linux/arm64", "--compression", "zstd", "--level", "3"]
    assert say("import", "-q", *words, "root.tar", "x:1")[0] == 0
    edit = Edit.parse(["CMD true"], author="me", comment="why")
    platform = platforms.parse("linux/arm64")
    how = {"reference": "x:1", "edit": edit, "platform": platform, "compression": "zstd", "level": 3}
    assert imports == [("root.tar", how)]


def test_an_import_of_no_name(imports, say, home):
    assert say("import", "") == (125, "", "dockless: the name of the file is empty\n  hint: dockless import FILE\n") and imports == []


# -- save


@pytest.fixture
def stdout(monkeypatch):
    """Standard output, on a terminal or not, and what has been written to it."""

    def stdout(terminal: bool = False) -> _Standard:
        monkeypatch.setattr(sys, "stdout", _Standard(terminal=terminal))
        return sys.stdout

    return stdout


@pytest.fixture
def saves(monkeypatch):
    asked: list[Any] = []

    def write(store, found, destination, *, progress, **how):
        asked.append(([one.name for one in found], destination, progress is not None, how))
        if progress is not None:
            progress(Progress("a:1", 1, 1, DIGEST, 64 << 20, 64 << 20, "done"))

    monkeypatch.setattr(save, "save", write)
    monkeypatch.setattr(Store, "get", lambda self, name: image(name))
    return asked


def how(form: str = "oci-tar", compression: str = "none", level: int | None = None) -> dict[str, Any]:
    return {"format": form, "compression": compression, "level": level}


def test_save_into_a_file(saves, say):
    written = "a:1: layer 1/1 abababababab: done, 64 MiB written\n"
    assert say("save", "a", "b", "-o", "x.tar") == (0, "a, b: saved to x.tar\n", written)
    assert say("save", "-q", "a", "-o", "x.tar") == (0, "", "")
    code, out, err = say("save", "--json", "a", "b", "-o", "x.tar")
    assert (code, json.loads(out), err) == (0, {"output": "x.tar", "images": ["a", "b"]}, "")
    told = [True, False, False]
    assert saves == [(["a", "b"][: 1 + (at != 1)], "x.tar", told[at], how()) for at in range(3)]


def test_every_option_of_a_save(saves, say):
    say("save", "-q", "a", "-o", "x", "--format", "docker", "--compression", "gzip", "--level", "3")
    say("save", "-q", "a", "-o", "x", "--format", "oci-dir")
    assert [asked[3] for asked in saves] == [how("docker-archive", "gzip", 3), how("oci-dir")]
    for words in ((), ("-o", "-")):
        refused = "dockless: an oci-dir is a directory, not a stream\n  hint: name it: -o DIRECTORY; or use --format oci\n"
        assert say("save", "a", "--format", "oci-dir", *words) == (125, "", refused) and len(saves) == 2


@pytest.mark.parametrize("words", [(), ("-o", "-")])
def test_an_archive_on_standard_output_is_alone_there(saves, stdout, say, words):
    out = stdout()
    assert say("save", "--json", "a", *words)[::2] == (0, "") and out.buffer.getvalue() == b""
    assert say("save", "a", *words)[0] == 0 and saves[1][1] is out.buffer and out.buffer.getvalue() == b""


def test_an_archive_does_not_belong_on_a_terminal(saves, stdout, say, monkeypatch):
    refused = "dockless: an archive does not belong on a terminal\n  hint: dockless {} -o FILE, or pipe it on\n"
    stdout(terminal=True)
    assert say("save", "a")[::2] == (125, refused.format("save")) and say("export", "a")[::2] == (125, refused.format("export"))
    monkeypatch.setattr(sys, "stdout", None)
    assert say("save", "a")[::2] == (125, refused.format("save")) and saves == []


@pytest.mark.parametrize(
    ("cause", "raised"), [(BrokenPipeError(32, "gone"), BrokenPipeError), (OSError(28, "full"), ImageError), (None, ImageError)]
)
def test_a_reader_that_has_gone_is_no_error_to_talk_about(stdout, monkeypatch, cause, raised):
    def write(*_, **__):
        raise ImageError("cannot write") from cause

    monkeypatch.setattr(save, "save", write)
    monkeypatch.setattr(Store, "get", lambda self, name: image(name))
    stdout()
    with pytest.raises(raised) as caught:
        dispatch(["save", "a"])
    assert raised is ImageError or caught.value.__suppress_context__


# -- export


@pytest.fixture
def exports(monkeypatch):
    """``box`` is a sandbox, ``img`` and ``x/y`` are images."""
    asked: list[Any] = []
    written = WrittenLayer(members=3, size=5, warnings=("odd",))

    def get(self, name):
        if name not in ("img", "x/y"):
            raise UnknownImage(f"there is no image {name}", hint="pull it")
        return name

    class Changes:
        def export(self, destination, **how):
            asked.append(("box", destination, how))
            return written

    class Box:
        held = contextlib.nullcontext

    def find(name):
        asked.append(("found", name))
        return Box() if name == "box" else None

    monkeypatch.setattr(Store, "get", get)
    monkeypatch.setattr(detached, "find", find)
    monkeypatch.setattr(commit, "changes_of", lambda box: Changes())
    monkeypatch.setattr(export, "export", lambda found, destination, **how: asked.append((found, destination, how)) or written)
    return asked


def test_export(exports, say):
    assert say("export", "box", "-o", "x.tar") == (0, "", "dockless: odd\n")
    assert exports == [("found", "box"), ("box", "x.tar", {"pause": True, "compression": "none", "level": None})]
    exports.clear()
    assert say("export", "-q", "box", "-o", "x.tar", "--no-pause", "--compression", "zstd", "--level", "3") == (0, "", "")
    assert exports[1:] == [("box", "x.tar", {"pause": False, "compression": "zstd", "level": 3})]
    exports.clear()
    code, out, err = say("export", "--json", "img", "-o", "x.tar")
    assert (code, err) == (0, "dockless: odd\n")
    assert json.loads(out) == {"output": "x.tar", "members": 3, "size": 5, "warnings": ["odd"]}
    assert exports == [("found", "img"), ("img", "x.tar", {"compression": "none", "level": None})]


@pytest.mark.parametrize("name", ["x/y", "x:1", "x@y"])
def test_what_can_only_be_an_image(exports, say, name):
    say("export", "-q", name, "-o", "x.tar")
    assert ("found", name) not in exports


def test_neither_a_sandbox_nor_an_image(exports, say, monkeypatch):
    assert say("export", "none", "-o", "x.tar") == (
        125,
        "",
        "dockless: there is neither an image nor a sandbox 'none'\n  hint: list them: dockless images, dockless ps --all\n",
    )
    assert say("export", "7", "-o", "x.tar")[2].startswith("dockless: 7 is the number of a job, not a sandbox\n")

    def get(name):
        raise SandboxGone("nobody asks for a sandbox here")

    monkeypatch.setattr(detached, "get", get)
    assert "neither an image nor a sandbox" in say("export", "none", "-o", "x.tar")[2]


@pytest.mark.parametrize("words", [(), ("-o", "-")])
def test_an_export_to_standard_output_is_alone_there(exports, stdout, say, words):
    out = stdout()
    assert say("export", "--json", "img", *words)[::2] == (0, "dockless: odd\n")
    assert exports[1][1] is out.buffer and out.buffer.getvalue() == b""
