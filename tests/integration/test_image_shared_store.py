"""What root has pulled or loaded, a user gets without a network: of root's store the list and the blobs are readable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import make_image as make
from support.layers import load, tree
from support.requires import requires

from dockless.base import paths
from dockless.errors import UnknownImage
from dockless.images import Store

pytestmark = requires("user")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store(tmp_path / "roots")
    monkeypatch.setattr(paths, "shared_store", lambda: store.root)
    load(tmp_path, [[make.file("f", "1")], [make.file("g", "2")]], store, ref="a:1")
    store.tag("a:1", "a:2")
    return store


def test_an_image_of_roots_store_becomes_ones_own(shared):
    image = Store().get("a:1")
    assert (image.digest, tree(image.layers)) == (shared.get("a:1").digest, {"f": "file:1", "g": "file:2"})
    assert all(layer.path.is_relative_to(Store().root) for layer in image.layers)
    assert [one.reference for one in Store().list()] == ["docker.io/library/a:1"]


def test_what_root_does_not_have_or_not_keep(shared):
    with pytest.raises(UnknownImage):
        Store().get("b:1")
    shared.prune(blobs=True)
    with pytest.raises(UnknownImage):
        Store().get("a:1")


def test_a_store_that_may_not_be_read(shared):
    os.chmod(shared.root / "images.json", 0)
    with pytest.raises(UnknownImage):
        Store().get("a:1")
