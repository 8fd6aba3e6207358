"""``images``, ``images check``, ``search``, ``tag`` and ``rmi`` over a store that is made up: all that they print, and what they ask."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from support.streams import Stream

from dockless.base import paths
from dockless.cli.images import matches
from dockless.errors import BadInput, UnknownImage
from dockless.images import Store
from dockless.images.catalog.disk_usage import ImageUsage
from dockless.images.catalog.pruning import Freed
from dockless.images.check import Problem, Report

HUB = "docker.io/library"
CONFIG = SimpleNamespace(labels=(("title", "First"),), env=(("PATH", "/bin"),), entrypoint=("sh", "-c"), cmd=("echo", "x" * 200))


def image(name: str | None, letter: str, **fields: Any) -> Any:
    about = {"config_digest": "sha256:c", "os": "linux", "architecture": "arm64", "variant": "v8", "size": 2048, "layers": ("layer",) * 3}
    about |= {"created": "2026-01-02T03:04:05Z", "warnings": ("odd",), "config": CONFIG, **fields}
    digest = "sha256:" + letter * 64
    return SimpleNamespace(name=name or digest, reference=name, digest=digest, **about)


IMAGES = [image(f"{HUB}/one:1", "a"), image("reg.example:5000/team/two:latest", "b"), image(None, "c"), image(f"{HUB}/four:4", "d")]
USAGE = (
    ImageUsage(IMAGES[0].digest, (), 9, 8, 940.0, False),
    ImageUsage(IMAGES[1].digest, (), 7, 6, 940.0, True),
    ImageUsage(IMAGES[2].digest, (), 5, 4, 0.0, False),
)


@pytest.fixture
def say(say, monkeypatch):
    """The exit code, standard output and standard error of a command line, at 1000 seconds of the clock."""
    monkeypatch.setattr("dockless.cli.output.time.time", lambda: 1000.0)
    monkeypatch.setattr(Store, "listed", lambda self: (IMAGES, {}))
    monkeypatch.setattr(Store, "disk_usage", lambda self: SimpleNamespace(images=USAGE))
    monkeypatch.setattr(Store, "last_uses", lambda self: {one.digest: (one.last_used, one.in_use) for one in USAGE})
    return say


# -- images


def test_images(say):
    assert say("images") == (
        0,
        "IMAGE                             ID            PLATFORM     SIZE   CREATED     USED\n"
        "docker.io/library/one:1           aaaaaaaaaaaa  linux/arm64  2 KiB  2026-01-02  1m ago\n"
        "reg.example:5000/team/two:latest  bbbbbbbbbbbb  linux/arm64  2 KiB  2026-01-02  in use\n"
        "<none>                            cccccccccccc  linux/arm64  2 KiB  2026-01-02\n"
        "docker.io/library/four:4          dddddddddddd  linux/arm64  2 KiB  2026-01-02\n",
        "",
    )
    assert say("images", "-q") == (0, "".join(f"{one.name}\n" for one in IMAGES), "")
    assert say("images", "-q", "two", "*four*") == (0, f"{HUB}/four:4\n", "")


def test_images_for_scripts(say):
    code, out, err = say("images", "--json", "one", "four")
    about = {
        "config_digest": "sha256:c", "os": "linux", "architecture": "arm64", "variant": "v8", "size": 2048, "layers": 3,
        "created": "2026-01-02T03:04:05Z", "warnings": ["odd"],
    }  # fmt: skip
    rows = json.loads(out)
    configs = [row.pop("config") for row in rows]
    assert (code, err, len(configs)) == (0, "", 2) and rows == [
        {
            "reference": f"{HUB}/one:1",
            "digest": IMAGES[0].digest,
            **about,
            "disk_usage": 9,
            "unique_size": 8,
            "last_used": 940.0,
            "in_use": False,
        },
        {"reference": f"{HUB}/four:4", "digest": IMAGES[3].digest, **about},
    ]


@pytest.mark.parametrize(("count", "what"), [(1, "1 image is"), (2, "2 images are")])
def test_images_that_are_left_out_are_said(say, monkeypatch, count, what):
    monkeypatch.setattr(Store, "listed", lambda self: (IMAGES, dict.fromkeys(range(count), "damaged")))
    left_out = f"dockless: {what} left out: damaged, or of a form that this version refuses\n"
    assert say("images", "-q", "one") == (
        0,
        f"{HUB}/one:1\n",
        left_out + "  hint: dockless images check says why; dockless rmi removes\n",
    )


@pytest.mark.parametrize(
    ("name", "patterns", "found"),
    [
        (f"{HUB}/one:1", [], True), (None, [], True),
        (f"{HUB}/one:1", ["one"], True), (f"{HUB}/one:1", ["one:1"], True), (f"{HUB}/one:1", [f"{HUB}/one"], True),
        (f"{HUB}/one:1", [f"{HUB}/one:1"], True), (f"{HUB}/one:1", ["library/one"], False), (f"{HUB}/one:1", ["on"], False),
        (f"{HUB}/one:1", ["one:2"], False), (f"{HUB}/one:1", ["ONE"], False), (f"{HUB}/one:1", ["x", "o*"], True),
        (f"{HUB}/one:1", ["<none>"], False), (f"{HUB}/one:1", ["sha256:1"], False),
        (None, ["<none>"], True), (None, ["sha256:1"], True), (None, ["sha256:2"], False), (None, ["x", "<none>"], True),
        (None, ["*"], False),
    ],
)  # fmt: skip
def test_what_a_pattern_means(name, patterns, found):
    assert matches(name, "sha256:1", patterns) is found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "one"), "check looks at the whole store, not at one image\n  hint: dockless images check"),
        (("--repair",), "--repair without check\n  hint: dockless images check --repair"),
        (("--repair", "one"), "--repair without check\n  hint: dockless images check --repair"),
    ],
)
def test_what_images_cannot_mean(say, words, said):
    assert say("images", *words) == (125, "", f"dockless: {said}\n")


def test_images_of_roots_store(say, monkeypatch, tmp_path):
    """By name; an image without a record has no size that anybody knows."""
    digests = ["sha256:" + letter * 64 for letter in "ab"]
    index = {"tags": {f"{HUB}/two:2": digests[1], f"{HUB}/one:1": digests[0]}, "images": {digests[0]: {"size": "2048"}, digests[1]: {}}}
    places = []
    monkeypatch.setattr(paths, "shared_store", lambda: tmp_path / "shared")
    monkeypatch.setattr(Store, "read_index", lambda self: places.append(self.root) or index)
    assert say("images", "--shared") == (
        0, f"IMAGE                    ID            SIZE\n{HUB}/one:1  aaaaaaaaaaaa  2 KiB\n{HUB}/two:2  bbbbbbbbbbbb  0 B\n", ""
    )  # fmt: skip
    assert say("images", "--shared", "-q", "two") == (0, f"{HUB}/two:2\n", "")
    code, out, err = say("images", "--shared", "--json")
    rows = [
        {"reference": f"{HUB}/one:1", "digest": digests[0], "size": 2048},
        {"reference": f"{HUB}/two:2", "digest": digests[1], "size": 0},
    ]
    assert (code, json.loads(out), err, set(places)) == (0, rows, "", {tmp_path / "shared"})

    def refused(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Store, "read_index", refused)
    place = tmp_path / "shared"
    said = f"dockless: cannot read the image store {place}: Permission denied\n  hint: root keeps its store to itself here\n"
    assert say("images", "--shared") == (125, "", said)


# -- check


@pytest.fixture
def checked(say, monkeypatch):
    """What ``images check`` says of this report, and what was asked: whether to repair, and to tell of each file."""

    def checked(report: Report, *words: str) -> tuple[tuple[int, str, str], list[Any]]:
        asked = []

        def check(self, *, repair, tell):
            asked.append((repair, tell is not None))
            if tell is not None:
                tell("blobs/" + "x" * 100)
            return report

        monkeypatch.setattr(Store, "check", check)
        return say("images", "check", *words), asked

    return checked


SOUND = Report(images=2, parts=3, size=2048, problems=())
ROTTEN = Problem("blobs/x", "it is rotten", ("sha256:" + "a" * 64, "sha256:" + "b" * 64))
MADE_AGAIN = Problem("layers/y", "it was gone", repaired=True)
LINES = "blobs/x: it is rotten\n    part of image aaaaaaaaaaaa\n    part of image bbbbbbbbbbbb\nlayers/y: it was gone (repaired)\n"


def test_a_sound_store(checked, home):
    assert checked(SOUND) == ((0, f"{home}/store is sound: 2 images, 3 parts, 2 KiB read\n", ""), [(False, False)])
    assert checked(SOUND, "-q", "--repair") == ((0, "", ""), [(True, False)])
    repaired = Report(2, 3, 2048, (MADE_AGAIN,))
    said = f"layers/y: it was gone (repaired)\n{home}/store is sound: 2 images, 3 parts, 2 KiB read\n"
    assert checked(repaired)[0] == (0, said, "") and checked(repaired, "--json")[0][0] == 0


def test_a_store_that_is_not_sound(checked, home):
    report = Report(2, 3, 2048, (ROTTEN, MADE_AGAIN))
    read = f"{home}/store is not sound: 2 images, 3 parts, 2 KiB read\n"
    assert checked(report)[0] == (1, LINES + read, "dockless: not sound\n  hint: dockless images check --repair\n")
    assert checked(report, "-q")[0] == (1, LINES, "")
    (code, out, err), _ = checked(report, "--json")
    problems = [
        {"path": "blobs/x", "why": "it is rotten", "images": list(ROTTEN.images), "repaired": False},
        {"path": "layers/y", "why": "it was gone", "images": [], "repaired": True},
    ]
    assert (code, err) == (1, "")
    assert json.loads(out) == {"sound": False, "images": 2, "layers": 3, "size": 2048, "problems": problems}


def test_what_is_looked_at_is_shown_on_a_terminal(checked, monkeypatch):
    for words, shown in (((), True), (("-q",), False), (("--json",), False)):
        stderr = Stream(terminal=True)
        monkeypatch.setattr(sys, "stderr", stderr)
        assert checked(SOUND, *words)[1] == [(False, shown)]
        line = b"\r\x1b[Kblobs/" + b"x" * 94
        assert stderr.said() == (line + b"\r\x1b[K" if shown else b"")


# -- search


def test_search(say):
    row = "docker.io/library/one:1  aaaaaaaaaaaa  name\n"
    assert say("search", "--local", "ONE:1") == (0, "IMAGE                    ID            FOUND\n" + row, "")
    assert say("search", "--local", "cccccccc")[1].splitlines()[1] == "<none>  cccccccccccc  name"
    assert say("search", "-q", "--local", "four") == (0, f"{HUB}/four:4\n", "")
    assert say("search", "--local", "nowhere") == (1, "IMAGE  ID  FOUND\n", "")
    command = say("search", "--local", "echo")[1].splitlines()[1]
    assert command.endswith("  command: echo " + "x" * 86)
    refused = "dockless: the registries' protocol has no search\n  hint: search the store: dockless search --local one\n"
    assert say("search", "one") == (125, "", refused)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("label title", ["label title: First"]), ("env path", ["env PATH: /bin"]), ("sh -c", ["entrypoint: sh -c"]),
        ("name: d", ["name"]), ("/bin", ["env PATH: /bin"]), ("a" * 9, ["digest: sha256:" + "a" * 64]),
        ("i", ["name", "digest: sha256:" + "a" * 64, "label title: First", "env PATH: /bin", "entrypoint: sh -c"]),
    ],
)  # fmt: skip
def test_where_a_text_was_found(say, text, found):
    rows = json.loads(say("search", "--json", "--local", text)[1])
    assert next(row["found"] for row in rows if row["reference"] == f"{HUB}/one:1") == found and "config" in rows[0]


# -- tag and rmi


def test_tag(say, monkeypatch):
    asked = []
    monkeypatch.setattr(Store, "get", lambda self, name: IMAGES[0])
    monkeypatch.setattr(Store, "tag", lambda self, name, new: asked.append((name, new)) or f"full/{new}")
    assert say("tag", "one", "two", "three") == (0, "full/two\nfull/three\n", "")
    assert asked == [("one", "two"), ("one", "three")]
    assert say("tag", "-q", "one", "two") == (0, "", "")
    code, out, err = say("tag", "--json", "one", "two")
    assert (code, json.loads(out), err) == (0, {"digest": IMAGES[0].digest, "tags": ["full/two"]}, "")
    asked.clear()
    assert say("tag", "one", "two", "Bad")[0] == 125 and asked == []


@pytest.fixture
def rmi(say, monkeypatch):
    """What ``rmi`` says and what the store was asked. ``none`` there is not; ``busy`` goes while a pull is at work."""
    asked = []

    def remove(self, name, *, force):
        asked.append((name, force))
        if name == "none":
            raise UnknownImage("there is no image none", hint="list them")
        if name == "bad":
            raise BadInput("no name")
        return Freed((f"{name}:1", f"{name}:2"), 1024, name == "busy")

    monkeypatch.setattr(Store, "remove", remove)
    return lambda *words: (say("rmi", *words), asked)


LATER = "dockless: a pull or load is at work, so the rest has to stay for now: dockless prune later\n"


def test_rmi(rmi):
    said, asked = rmi("one", "busy")
    assert said == (0, "one:1\none:2\nbusy:1\nbusy:2\n", "2 KiB freed\n" + LATER) and asked == [("one", False), ("busy", False)]
    assert rmi("-f", "one") == ((0, "one:1\none:2\n", "1 KiB freed\n"), [*asked[:2], ("one", True)])
    assert rmi("-q", "one", "busy")[0] == (0, "", "")
    (code, out, err), _ = rmi("--json", "one", "busy")
    assert (code, err) == (0, "") and json.loads(out) == [
        {"removed": ["one:1", "one:2"], "freed": 1024, "busy": False},
        {"removed": ["busy:1", "busy:2"], "freed": 1024, "busy": True},
    ]


def test_rmi_goes_on_after_one_that_there_is_not(rmi):
    missing = "dockless: there is no image none\n  hint: list them\n"
    assert rmi("none", "one")[0] == (125, "one:1\none:2\n", missing + "1 KiB freed\n")
    assert rmi("none", "bad")[0] == (125, "", missing + "dockless: no name\n")
    (code, out, err), _ = rmi("--json", "none", "one")
    assert (code, len(json.loads(out)), json.loads(err)["error"]) == (125, 1, "unknown_image")
