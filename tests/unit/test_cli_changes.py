"""``diff`` and ``commit``: what they ask of a sandbox's changes, and what they print of the answer; the same as calls of the library."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace

import pytest

from dockless import _committing as committing
from dockless._box import Sandbox
from dockless.images.archive.assemble import Edit
from dockless.images.archive.diff import Change
from dockless.sandbox import commit
from dockless.sandbox.run.box import Box

CHANGES = [Change("A", "/etc/new"), Change("D", "/etc/old")]
DIGEST = "sha256:" + "ab" * 32
IMAGE = SimpleNamespace(
    name="mine:1", reference="mine:1", digest=DIGEST, config_digest="sha256:c", os="linux", architecture="amd64", variant="", size=2048,
    created="2026-01-02T03:04:05Z", layers=("a", "b", "c"), warnings=("odd",), config={}, paused=0.0,
)  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """What was asked of whose changes."""
    asked = []

    class Found:
        def __init__(self, whose):
            self.whose = whose

        def changes(self, **how):
            asked.append((self.whose, how))
            return CHANGES

        def commit(self, name, **how):
            asked.append((self.whose, name, how))
            return IMAGE

    monkeypatch.setattr(commit, "find", lambda name: contextlib.nullcontext(Found(name)))
    monkeypatch.setattr(commit, "changes_of", lambda box: Found(("changes of", getattr(box, "id", box))))
    return asked


def test_diff(asked, say):
    assert say("diff", "box") == (0, "A /etc/new\nD /etc/old\n", "")
    assert say("diff", "-q", "--no-pause", "box") == (0, "/etc/new\n/etc/old\n", "")
    code, out, err = say("diff", "--json", "box")
    assert (code, json.loads(out), err) == (0, [{"kind": "A", "path": "/etc/new"}, {"kind": "D", "path": "/etc/old"}], "")
    assert asked == [("box", {"pause": True}), ("box", {"pause": False}), ("box", {"pause": True})]


PLAIN = {"edit": Edit.parse([]), "compression": "gzip", "level": None, "pause": True}


def test_commit(asked, say):
    assert say("commit", "box", "mine:1") == (0, "mine:1  abababababab  2 KiB, 3 layers\n", "dockless: mine:1: odd\n")
    assert say("commit", "-q", "box") == (0, "mine:1\n", "")
    code, out, err = say("commit", "--json", "box")
    assert (code, json.loads(out)["digest"], err) == (0, DIGEST, "dockless: mine:1: odd\n")
    assert asked == [("box", "mine:1", PLAIN), ("box", None, PLAIN), ("box", None, PLAIN)]


def test_every_option_of_a_commit(asked, say):
    words = ["-c", "CMD true", "--change", "ENV A=1", "-m", "why", "-a", "me", "--compression", "zstd", "--level", "3", "--no-pause"]
    assert say("commit", "-q", *words, "box", "mine:1")[0] == 0
    edit = Edit.parse(["CMD true", "ENV A=1"], author="me", comment="why")
    assert asked == [("box", "mine:1", {"edit": edit, "compression": "zstd", "level": 3, "pause": False})]
    assert say("commit", "-q", "--message", "why", "--author", "me", "box")[0] == 0
    assert asked[1][2]["edit"] == Edit.parse([], author="me", comment="why")


def test_the_calls(asked, home):
    """By a name, by what is detached, by what runs."""
    box = Box("box", home / "box")
    box.directory.mkdir()
    running = Sandbox(["true"])
    running._box = inner = object()
    assert committing.diff("box") == committing.diff(box, pause=False) == committing.diff(running) == CHANGES
    assert asked == [("box", {"pause": True}), (box, {"pause": False}), (("changes of", inner), {"pause": True})]
    asked.clear()
    assert committing.commit("box") is IMAGE
    words = {"compression": "zstd", "level": 3, "created": 5.0, "pause": False}
    committing.commit(box, "mine:1", changes=["CMD true"], author="me", message="why", **words)
    edit = Edit.parse(["CMD true"], author="me", comment="why")
    assert asked == [("box", None, {**PLAIN, "created": None}), (box, "mine:1", {"edit": edit, **words})]
