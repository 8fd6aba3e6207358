"""``check`` on a sound store, and on one where each thing in turn has been damaged; and what ``repair`` makes of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support import make_image as make
from support.layers import load, tree
from support.requires import requires

from dockless.errors import UnknownImage
from dockless.images import Store
from dockless.images.check import check

BASE = [make.directory("d"), make.file("d/f", "hello"), make.symlink("l", "d"), make.file("l/through", "x"), make.hardlink("h", "d/f")]
TOP = [make.whiteout("h"), make.file("d/f", "hallo"), make.file("d/g", "1"), make.file("d/g", "22")]
EXPECTED = {"d": "dir", "d/f": "file:hallo", "d/g": "file:22", "d/through": "file:x", "l": "link:d"}


@pytest.fixture(params=["written", pytest.param("indexed", marks=requires("root", "erofs"))])
def store(request, tmp_path: Path) -> Store:
    store = Store(index=request.param == "indexed")
    load(tmp_path, [BASE, TOP], store)
    return store


def the(store: Store, pattern: str) -> Path:
    return min(store.root.glob(pattern))


def test_a_sound_store(store):
    report = check(store)
    assert (report.problems, report.sound, report.images) == ((), True, 1)
    assert report.parts >= 8
    assert check(Store(store.root / "nowhere")).images == 0


def damage_blob(store: Store) -> None:
    (layer,) = (store.blob_path(store.documents(image.digest, "")[1].layers[0].digest) for image in store.list())
    layer.write_bytes(layer.read_bytes()[:-1] + b"!")


def damage_layer(store: Store) -> None:
    layer = store.get("test").layers[0]
    if layer.tar is not None:
        layer.path.write_bytes(layer.path.read_bytes()[:-1] + b"!")
    else:
        (layer.path / "d/f").write_text("longer than it was")


def remove_layer(store: Store) -> None:
    shutil.rmtree(store.get("test").layers[1].path.parent)


def damage_description(store: Store) -> None:
    (store.get("test").layers[1].path.parent / "layer.json").write_text("{")


def damage_note(store: Store) -> None:
    the(store, "diffs/*/*").write_text("nothing")


@pytest.mark.parametrize("damage", [damage_layer, remove_layer, damage_description, damage_note])
def test_what_can_be_made_again(store, damage):
    damage(store)
    report = check(store)
    assert len(report.problems) == 1
    assert not report.sound
    assert check(store, repair=True).sound
    assert check(store).problems == ()
    assert tree(store.get("test").layers) == EXPECTED


@requires("root", "erofs")
def test_a_damaged_tar(tmp_path):
    store = Store(index=True)
    load(tmp_path, [BASE[:2], TOP[2:]], store)
    tar = store.get("test").layers[0].tar
    tar.write_bytes(tar.read_bytes().replace(b"hello", b"HELLO"))
    report = check(store, repair=True)
    assert {problem.path.split("/")[0] for problem in report.problems} == {"tars", "layers"}
    assert check(store).problems == ()
    assert tree(store.get("test").layers)["d/f"] == "file:hello"


def test_a_damaged_blob_goes_and_the_layer_stays(store):
    damage_blob(store)
    (problem,) = check(store, repair=True).problems
    assert "digest" in problem.why
    assert check(store).problems == ()
    assert tree(store.get("test").layers) == EXPECTED


def test_an_image_that_cannot_be_completed_is_given_up(store):
    name = store.get("test").digest
    config = store.blob_path(store.documents(name, "")[1].config.digest)
    config.write_bytes(b"{}")
    assert check(store).problems[0].images == (name,)
    check(store, repair=True)
    assert check(store).problems == ()
    with pytest.raises(UnknownImage):
        store.get("test")


def test_strange_things_and_tags_without_an_image(store):
    (store.root / "blobs" / "sha256" / "README").write_text("x")
    with store.changing() as index:
        index["tags"]["docker.io/library/ghost:1"] = "sha256:" + "0" * 64
    assert {problem.path for problem in check(store).problems} == {"blobs/sha256/README", "images.json"}
    check(store, repair=True)
    assert check(store).problems == ()
