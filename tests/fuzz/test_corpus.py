"""Every input that fuzzing has kept, old findings among them, through the parsers once more: without atheris or clang, in seconds.

``corpus/<target>/`` holds them; run.py and differential.py look for more, and docs/fuzzing.md says how they get here.
"""

import os
from pathlib import Path

import pytest
from fuzz import differential, seeds
from fuzz.properties import speakable
from fuzz.targets import TARGETS
from support.indexed import build, facts, mounted
from support.layers import Scene, snapshot
from support.requires import requires

from dockless.errors import DocklessError
from dockless.native.layers import Fault, Member, TarLister

CORPUS = Path(__file__).resolve().parent / "corpus"
FAULTS = {"malformed", "unsafe", "limit", "system", "declined", "wrong", "room"}


def inputs(target: str) -> list[Path]:
    found = sorted((CORPUS / target).iterdir())
    assert found, f"nothing is kept for {target}"
    return found


def test_the_corpus_is_small_and_known():
    places = {path.name for path in CORPUS.iterdir()}
    assert places == {*TARGETS, "tar", "writer", "index", "differential"}
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 1 << 20


@pytest.mark.parametrize("target", TARGETS)
def test_parsers(target):
    for path in inputs(target):
        try:
            TARGETS[target](path.read_bytes())
        except Exception as error:
            raise AssertionError(f"{path.relative_to(CORPUS)}: {type(error).__name__}: {error}") from error


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
    for path in inputs("tar"):
        raw = path.read_bytes()
        members, fault = listed(raw, len(raw) + 1)
        assert listed(raw, 509) == (members, fault), path
        for member in members:
            assert member.name and b"\0" not in member.name + member.link and 0 <= member.offset <= len(raw), path


@requires("program:tar")
def test_gnu_tar_sees_what_we_see():
    for path in inputs("differential"):
        found = [what for reader, what in differential.disagreement(path.read_bytes()) if reader == "gnu"]
        assert not found, path


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
    for number, path in enumerate(inputs("writer")):
        target = tmp_path / f"target-{number}"
        target.mkdir()
        try:
            scene.write(path.read_bytes(), target, [lower] if number % 2 else [])
        except DocklessError as error:
            speakable(error)
        else:
            assert not [name for _, _, names in os.walk(target) for name in names if name.startswith(".wh.")], path
        scene.beside.append(target.name)
    scene.unharmed()
    assert snapshot(lower) == before


@requires("root", "erofs")
def test_the_index_mounted_is_what_the_writer_writes(tmp_path):
    built = 0
    for number, path in enumerate(inputs("index")):
        raw = path.read_bytes()
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
        assert found == expected, path
    assert built, "no input of these is sound"
