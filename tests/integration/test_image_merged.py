"""Images of many indexed layers have one index of all of them: starts mount that one, and it comes and goes with its image."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from support import make_image as make
from support.indexed import build, facts, mounted
from support.layers import load
from support.requires import requires

import dockless
from dockless.images import Image, Store
from dockless.images.check import check
from dockless.images.layers.layers import MERGED_FILE, MERGED_FROM, Layer
from dockless.images.layers.merging import merge
from dockless.sandbox.features import probe
from dockless.sandbox.resolve import resolve
from dockless.sandbox.spec import Spec

pytestmark = requires("root", "erofs", "busybox")

HIDING = [make.whiteout("d1"), make.directory("d2"), make.opaque("d2"), make.file("d2/new", "2"), make.hardlink("again", "d2/new")]


def layers(count: int) -> list[list[make.Entry]]:
    """A base that runs, then a directory in each, and a last one that hides some of it."""
    between = [[make.directory(f"d{at}"), make.file(f"d{at}/f", str(at) * 600), make.file("last", str(at))] for at in range(1, count - 1)]
    return [make.rootfs_entries(), *between, HIDING]


@pytest.fixture
def image(tmp_path) -> Image:
    return load(tmp_path, layers(MERGED_FROM + 1), Store())


def said(name: str, line: str) -> str:
    return dockless.run(name, ["sh", "-c", line], capture_output=True, text=True, check=True, best_effort=True).stdout


LOOK = "ls -d /d*; cat /last /d3/f /d2/new /again; ls /d2; stat -c %h /again; echo more > /d3/f; cat /d3/f"


def test_a_start_mounts_one_layer_and_shows_the_same(tmp_path, image):
    assert image.merged is not None and image.merged.tars == tuple(layer.tar for layer in image.layers)
    spec = Spec(argv=("true",), image=image.name)
    assert resolve(spec, image, probe()).layers[1:] == (image.merged,)
    one = said(image.name, LOOK)
    image.merged.path.rename(tmp_path / "aside")
    Store().tag(image.name, "again:1")  # so that what a process keeps of the list is looked at anew
    assert Store().get("again:1").merged is None
    assert said("again:1", LOOK) == one
    assert resolve(spec, Store().get("again:1"), probe()).layers[1:] == image.layers
    assert resolve(spec, image, replace(probe(), detached_clones=False)).layers[1:] == image.layers, "each start mounts for itself"


def test_it_goes_with_its_image(image):
    assert image.merged is not None and image.merged.path.is_file()
    Store().remove(image.name)
    assert not list(Store().root.rglob(MERGED_FILE))


def test_few_layers_and_written_ones_have_none(tmp_path):
    assert load(tmp_path, layers(MERGED_FROM - 1), Store(), ref="few:1").merged is None
    assert load(tmp_path, layers(MERGED_FROM), Store(tmp_path / "written", index=False), ref="written:1").merged is None


def test_a_damaged_one_is_found_and_made_again(image):
    assert image.merged is not None
    path = image.merged.path
    sound = path.read_bytes()
    assert check(Store()).problems == ()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    (problem,) = check(Store()).problems
    assert problem.path.endswith(MERGED_FILE) and problem.images == (image.digest,)
    check(Store(), repair=True)
    assert path.read_bytes() == sound and check(Store()).problems == ()


def test_more_layers_than_an_overlay_of_each_could_have_slots_for(tmp_path):
    """As many as dockless takes at all, each with its own tar."""
    image = load(tmp_path, layers(120), Store(), ref="many:1")
    assert image.merged is not None
    assert said("many:1", "cat /d118/f /last") == "118" * 600 + "118"


def test_what_is_made_of_damaged_indexes_is_nothing_or_an_index(tmp_path):
    """No crash and no endless walk, whatever the bytes are; what comes out can be walked through."""
    dice = random.Random(5)
    made: list[Layer] = []
    for number, entries in enumerate([[make.directory("d"), make.file("d/f", "x" * 900), make.symlink("d/s", "y" * 600)], HIDING]):
        made.append(build(make.layer_tar(entries), tmp_path / f"l{number}", below=made or None)[0])
    sound = [layer.path.read_bytes() for layer in made]
    for turn in range(400):
        for layer, raw in zip(made, sound, strict=True):
            spoilt = bytearray(raw)
            for _ in range(dice.randrange(3)):
                spoilt[dice.randrange(1024, len(raw))] = dice.choice([0, 1, 0x7F, 0xFF, dice.randrange(256)])
            layer.path.write_bytes(spoilt[: dice.choice([len(raw), len(raw), dice.randrange(len(raw))])] or b"x")
        merge(made, target := tmp_path / f"merged{turn}")
        assert not target.exists() or target.stat().st_size < 1 << 16
    for layer, raw in zip(made, sound, strict=True):
        layer.path.write_bytes(raw)
    target = Path(tmp_path / "whole")
    assert merge(made, target)
    with mounted(Layer(target, made[0].tar, (made[1].tar,)) if made[0].tar and made[1].tar else made[0]) as root:
        assert sorted(facts(root)) == [".", "again", "d", "d/f", "d/s", "d2", "d2/new"]
