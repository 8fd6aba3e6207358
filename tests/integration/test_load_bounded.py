"""``load`` into a store with an upper bound: what it says that it loaded is there when it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import make_image as make

from dockless.errors import NoRoom
from dockless.images import Store

COMMAND = [sys.executable, "-P", "-m", "dockless"]
MEGABYTE = 1 << 20


def bound(home: Path, size: int) -> None:
    (home / "dockless.toml").write_text(f"[images]\nmax_size = {size}\n")


def archive(where: Path, name: str, *layers: bytes) -> Path:
    """A layout with one image, a layer for each of these contents."""
    contents = [[make.file(f"data-{number}", content)] for number, content in enumerate(layers)]
    return make.make_oci_layout(where / name, contents, make.config(), f"{name}:1", compression="none")


def test_files_loaded_together_do_not_make_room_for_each_other(home, tmp_path):
    paths = [archive(tmp_path, f"image{number}", os.urandom(MEGABYTE)) for number in range(6)]
    bound(home, 7 * MEGABYTE)
    ended = subprocess.run([*COMMAND, "load", "--json", *map(str, paths)], capture_output=True, text=True)
    said = {name for image in json.loads(ended.stdout) for name in [image["reference"]]}
    there = {image.reference for image in Store().list()}
    assert said == there and 0 < len(there) < 6
    errors = [json.loads(line) for line in ended.stderr.splitlines()]
    assert ended.returncode == 125 and {error["error"] for error in errors} == {"no_room"}
    assert {error["subject"] for error in errors} == {str(path) for path in paths[len(there) :]}


def test_room_is_asked_for_what_making_room_removed(home, tmp_path, monkeypatch):
    """The second image shares its largest layer with the first, which has to go: that layer is fetched anew and is counted."""
    from dockless.images.archive import load as loading

    shared, own = os.urandom(3 * MEGABYTE), os.urandom(2 * MEGABYTE)
    Store(index=False).load(archive(tmp_path, "old", shared, os.urandom(MEGABYTE)))
    new = archive(tmp_path, "new", shared, own)
    promised = []
    real = loading.reserved
    monkeypatch.setattr(loading, "reserved", lambda store, size, what: promised.append(size) or real(store, size, what))
    bound(home, 9 * MEGABYTE)
    Store(index=False).load(new)
    assert len(promised) == 2 and promised[0] < 3 * MEGABYTE < 5 * MEGABYTE <= promised[1]
    assert [image.reference for image in Store().list()] == ["docker.io/library/new:1"]


def test_nothing_in_use_is_not_said_to_be(home, tmp_path):
    bound(home, MEGABYTE)
    with pytest.raises(NoRoom) as caught:
        Store().load(archive(tmp_path, "large", os.urandom(2 * MEGABYTE)))
    assert "do not fit" in str(caught.value) and "in use" not in str(caught.value)
    assert caught.value.hint == "raise max_size below [images] in dockless.toml"
