"""Every input that fuzzing has kept, old findings among them, through the parsers once more: without atheris or clang, in seconds.

kept.py says where they are; run.py and differential.py look for more, and docs/fuzzing.md says how they get here.
"""

import os
import tarfile

import pytest
from fuzz import differential, kept, seeds
from fuzz.properties import speakable
from fuzz.targets import TARGETS
from support.indexed import build, facts, mounted
from support.layers import Scene, snapshot
from support.requires import requires

from dockless.errors import DocklessError
from dockless.native.layers import Fault, Member, TarLister

FAULTS = {"malformed", "unsafe", "limit", "system", "declined", "wrong", "room"}


def inputs(target: str) -> list[tuple[str, bytes]]:
    return sorted(kept.inputs()[target].items())


def test_the_corpus_is_small_and_known():
    assert set(kept.inputs()) == {*TARGETS, "tar", "writer", "index", "differential"}
    assert kept.ARCHIVE.stat().st_size < 1 << 18 and len(list(kept.NAMED.glob("*/*"))) < 100


def test_the_same_inputs_are_the_same_archive(tmp_path, monkeypatch):
    kept.unpack(tmp_path / "all")
    monkeypatch.setattr(kept, "ARCHIVE", tmp_path / "again")
    kept.pack(tmp_path / "all")
    first = kept.ARCHIVE.read_bytes()
    kept.pack(tmp_path / "all")
    assert kept.ARCHIVE.read_bytes() == first
    with tarfile.open(kept.HERE / "corpus.tar.gz") as before, tarfile.open(kept.ARCHIVE) as after:
        assert before.getnames() == after.getnames() and len(after.getnames()) > 1000


@pytest.mark.parametrize("target", TARGETS)
def test_parsers(target):
    for name, raw in inputs(target):
        try:
            TARGETS[target](raw)
        except Exception as error:
            raise AssertionError(f"{target}/{name}: {type(error).__name__}: {error}") from error


def listed(raw: bytes, step: int) -> tuple[list[Member], str]:
    lister = TarLister(10_000)
    try:
        for at in range(0, len(raw), step):
            lister.feed(raw[at : at + step])
        lister.finish()
    except Fault as fault:
        assert fault.kind in FAULTS and fault.text.isprintable()
        return lister.members, fault.text
    return lister.members, ""


def test_the_tar_parser():
    for name, raw in inputs("tar"):
        members, fault = listed(raw, len(raw) + 1)
        assert listed(raw, 509) == (members, fault), name
        for member in members:
            assert member.name and b"\0" not in member.name + member.link and 0 <= member.offset <= len(raw), name


@requires("program:tar")
def test_gnu_tar_sees_what_we_see():
    for name, raw in inputs("differential"):
        found = [what for reader, what in differential.disagreement(raw) if reader == "gnu"]
        assert not found, name


@pytest.mark.parametrize("name", seeds.two_minded())
def test_what_others_read_in_two_ways_is_refused(name):
    assert differential.ours(seeds.two_minded()[name]) is None


def test_the_layer_writer(tmp_path):
    scene = Scene(tmp_path)
    lower = tmp_path / "lower"
    (lower / "a/b").mkdir(parents=True)
    (lower / "low/d").mkdir(parents=True)
    (lower / "low/f").write_text("low")
    (lower / "lowlink").symlink_to("low")
    (lower / "out").symlink_to("../victim")
    before = snapshot(lower)
    for number, (kept_as, raw) in enumerate(inputs("writer")):
        target = tmp_path / f"target-{number}"
        target.mkdir()
        try:
            scene.write(raw, target, [lower] if number % 2 else [])
        except DocklessError as error:
            speakable(error)
        else:
            assert not [name for _, _, names in os.walk(target) for name in names if name.startswith(".wh.")], kept_as
        scene.beside.append(target.name)
    scene.unharmed()
    assert snapshot(lower) == before


@requires("root", "erofs")
def test_the_index_mounted_is_what_the_writer_writes(tmp_path):
    built = 0
    for number, (kept_as, raw) in enumerate(inputs("index")):
        place, written = tmp_path / f"index-{number}", tmp_path / f"written-{number}"
        try:
            layer, _ = build(raw, place)
        except Fault as fault:
            assert fault.kind in FAULTS and fault.text.isprintable()
            continue
        built += 1
        written.mkdir()
        Scene.write(raw, written, [])
        with mounted(layer) as root:
            found = facts(root)
        expected = facts(written)
        # What the archive does not list, and the root, have times of their own.
        unlisted = found.keys() - {os.path.normpath(os.fsdecode(member.name)).lstrip("/") for member in listed(raw, len(raw))[0]}
        for name in unlisted | {"."}:
            found[name], expected[name] = ((*one[:3], *one[4:]) for one in (found[name], expected[name]))
        assert found == expected, kept_as
    assert built, "no input of these is sound"
