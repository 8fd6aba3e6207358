"""Whatever takes its place under its final name is on disk before that, and the name is on disk after it: seen by a recorder of the calls,
for each way in which the store and the records publish something."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import make_image as make
from support.layers import load
from support.requires import requires

from dockless.images import Store, files
from dockless.images.archive import ingest

CALLS = ("fsync", "rename", "replace", "link")


class Recorder:
    """Order of flushes and names. ``unsafe``: what got a name before it was flushed, and directories that nobody flushed afterwards."""

    def __init__(self) -> None:
        self.flushed: set[tuple[int, int]] = set()
        self.named: list[tuple[str, str, bool]] = []
        self.owed: dict[tuple[int, int], str] = {}
        self.below: list[tuple[int, int]] = []

    def fsync(self, plain):
        def call(fd):
            plain(fd)
            info = os.fstat(fd)
            self.flushed.add((info.st_dev, info.st_ino))
            self.owed.pop((info.st_dev, info.st_ino), None)

        return call

    def naming(self, plain):
        def call(source, target, **how):
            if not how:
                self._note(os.fspath(source), os.fspath(target))
            return plain(source, target, **how)

        return call

    def _note(self, source, target) -> None:
        info, folder = os.stat(source, follow_symlinks=False), os.stat(os.path.dirname(target) or ".")
        flushed = (info.st_dev, info.st_ino) in self.flushed
        self.named.append((source, target, flushed))
        self.owed[folder.st_dev, folder.st_ino] = target

    def syncfs(self, plain):
        def call(path):
            plain(path)
            for place in [Path(path), *Path(path).rglob("*")]:
                info = os.stat(place, follow_symlinks=False)
                self.flushed.add((info.st_dev, info.st_ino))

        return call

    @property
    def unsafe(self) -> list[str]:
        return [target for _, target, flushed in self.named if not flushed] + [f"the name of {target}" for target in self.owed.values()]


@pytest.fixture
def recorded(monkeypatch):
    @contextmanager
    def record():
        seen = Recorder()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", seen.fsync(os.fsync))
            for name in ("rename", "replace", "link"):
                patch.setattr(os, name, seen.naming(getattr(os, name)))
            patch.setattr(ingest, "sync_filesystem", seen.syncfs(files.sync_filesystem))
            yield seen

    return record


def test_the_recorder_sees_what_is_missing(tmp_path, recorded):
    with recorded() as seen:
        (tmp_path / "a").write_text("x")
        os.rename(tmp_path / "a", tmp_path / "b")
    assert seen.unsafe == [str(tmp_path / "b"), f"the name of {tmp_path / 'b'}"]


@pytest.mark.parametrize("write", [lambda path: files.write_atomic(path, b"x"), lambda path: _replacing(path)], ids=["whole", "block"])
def test_one_file(tmp_path, recorded, write):
    with recorded() as seen:
        write(tmp_path / "file")
        write(tmp_path / "file")
    assert len(seen.named) == 2 and seen.unsafe == []


def _replacing(path):
    with files.replacing(path) as out:
        out.write(b"x")


@requires("overlay")
@pytest.mark.parametrize("index", [False, pytest.param(True, marks=requires("root", "erofs"))], ids=["unpacked", "indexed"])
def test_an_image_from_an_archive_to_its_name(tmp_path, recorded, index):
    store = Store(index=index)
    with recorded() as seen:
        image = load(tmp_path, [make.rootfs_entries(), [make.file("a", "one"), *(make.file(f"many/{n}", "x") for n in range(300))]], store)
        store.tag(image.name, "other:1")
        store.remove("other:1")
    below = [row for row in seen.named if row[1].startswith(str(store.root))]
    places = {Path(target).relative_to(store.root).parts[0] for _, target, _ in below}
    assert {"layers", "images.json"} <= places, places
    # What a lease or a scratch place names is nothing that a reader trusts.
    lasting = [one for one in seen.unsafe if f"{store.root}/tmp" not in one and "/pins" not in one and "/links" not in one]
    assert lasting == []
