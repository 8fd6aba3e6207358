"""Tags, removal, pins, pruning, the bound: on a real store with small images."""

from __future__ import annotations

import fcntl
import io
import os
import resource
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from support import make_image as make
from support.layers import load, tree
from support.requires import requires

from dockless.errors import BadInput, ImageError, ImageInUse, NoRoom, UnknownImage
from dockless.images import Store
from dockless.images.archive.importing import import_root
from dockless.images.catalog import disk_usage, pins, pruning, reserving
from dockless.images.catalog.pruning import Freed
from dockless.images.files import locked
from dockless.images.model import reference


def image(tmp_path: Path, name: str, *contents: str):
    return load(tmp_path, [[make.file("f", content)] for content in contents], ref=name, config={"Labels": {"name": name}})


def names() -> list[str | None]:
    return [image.reference for image in Store().list()]


def parts() -> set[str]:
    root = Store().root
    return {str(path.relative_to(root)) for folder in ("blobs", "layers", "tars", "diffs") for path in (root / folder).glob("*/*")}


def age(reference: str, seconds: float) -> None:
    """Make an image look unused for so long."""
    store = Store()
    with store.changing() as index:
        entry = index["images"][index["tags"][reference]]
        entry["added"] -= seconds


def test_a_second_tag(tmp_path):
    first = image(tmp_path, "a:1", "x")
    assert Store().tag("a:1", "b") == "docker.io/library/b:latest"
    assert Store().get("b").digest == first.digest
    freed = pruning.remove(Store(), "a:1")
    assert (freed.images, freed.size) == (("docker.io/library/a:1",), 0)
    assert tree(Store().get("b").layers) == {"f": "file:x"}
    for wrong in ("host", "b@sha256:" + "0" * 64, "B"):
        with pytest.raises(BadInput):
            Store().tag("b", wrong)
    with pytest.raises(UnknownImage):
        Store().tag("a:1", "c")


def test_with_its_last_tag_goes_what_nobody_else_needs(tmp_path):
    image(tmp_path, "a:1", "base", "a")
    before = parts()
    image(tmp_path, "b:1", "base", "b")
    assert pruning.remove(Store(), "b:1").size > 0
    assert parts() == before
    assert pruning.remove(Store(), "a:1").images == ("docker.io/library/a:1",)
    assert (parts(), names(), os.listdir(Store().root / "pins")) == (set(), [], [])
    with pytest.raises(UnknownImage):
        pruning.remove(Store(), "a:1")


def test_by_digest_all_tags_go_but_not_by_mistake(tmp_path):
    found = image(tmp_path, "a:1", "x")
    Store().tag("a:1", "a:2")
    with pytest.raises(ImageInUse, match="2 tags"):
        pruning.remove(Store(), found.digest)
    assert len(pruning.remove(Store(), found.digest, force=True).images) == 2
    assert names() == []


def test_what_runs_keeps_its_image(tmp_path):
    found = image(tmp_path, "a:1", "x")
    fd = pins.pin(Store(), found)
    with pytest.raises(ImageInUse, match="a sandbox uses"):
        pruning.remove(Store(), "a:1")
    assert names() == ["docker.io/library/a:1"]
    assert disk_usage.disk_usage(Store()).images[0].in_use
    pruning.remove(Store(), "a:1", force=True)
    pruning.prune(Store(), all_images=True)
    assert tree(found.layers) == {"f": "file:x"}
    assert names() == [None]
    os.close(fd)
    assert pruning.prune(Store()).size > 0
    assert names() == []
    with pytest.raises(UnknownImage, match="just been removed"):
        pins.pin(Store(), found)


def test_nothing_goes_while_something_comes(tmp_path):
    image(tmp_path, "a:1", "x")
    before = parts()
    with Store().using():
        freed = pruning.remove(Store(), "a:1")
        assert (freed.busy, freed.size) == (True, 0)
        assert parts() == before
        load(tmp_path, [[make.file("f", "x")]], ref="b:1", config={"Labels": {"name": "a:1"}})
    assert pruning.prune(Store()).size == 0
    assert tree(Store().get("b:1").layers) == {"f": "file:x"}


def test_pruning(tmp_path):
    for name in ("a:1", "a:2", "b:1"):
        image(tmp_path, name, name)
    image(tmp_path, "a:1", "moved")  # the old a:1 has no tag any more
    assert names().count(None) == 1
    would = pruning.prune(Store(), dry_run=True)
    assert names().count(None) == 1
    assert pruning.prune(Store()) == would
    assert names() == ["docker.io/library/a:1", "docker.io/library/a:2", "docker.io/library/b:1"]
    age("docker.io/library/a:2", 7200)
    assert pruning.prune(Store(), unused_for=86400).images == ()
    assert pruning.prune(Store(), keep_last=1, dry_run=True).images == ("docker.io/library/a:2",)
    assert pruning.prune(Store(), unused_for=3600).images == ("docker.io/library/a:2",)
    blobs = pruning.prune(Store(), blobs=True)
    assert blobs.size > 0
    assert tree(Store().get("b:1").layers) == {"f": "file:b:1"}
    assert pruning.prune(Store(), all_images=True).images == ("docker.io/library/a:1", "docker.io/library/b:1")
    assert parts() == set()


def test_pruning_more_images_than_files_may_be_open(tmp_path):
    for number in range(40):
        image(tmp_path, f"n{number}:1", str(number))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pruning, "_AT_ONCE", 10)
            freed = pruning.prune(Store(), all_images=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(freed.images) == 40 and freed.size > 0 and names() == [] and parts() == set()


def test_the_whole_store_is_gone_through_once_however_many_images_there_are(tmp_path, monkeypatch):
    calls = 0
    look = disk_usage.Inventory.unneeded

    def counted(*arguments):
        nonlocal calls
        calls += 1
        return look(*arguments)

    monkeypatch.setattr(disk_usage.Inventory, "unneeded", counted)
    for number in range(6):
        image(tmp_path, f"n{number}:1", "base", str(number))
    assert len({entry.own for entry in disk_usage.disk_usage(Store()).images} - {0}) >= 1 and calls == 1


def on_disk(*folders: str) -> int:
    """Bytes of everything in these folders of the store: as blocks, layers as their content."""
    found = [path for folder in folders for path in (Store().root / folder).glob("*/*")]
    return sum(disk_usage._layer_size(path) if path.is_dir() else path.stat().st_blocks * 512 for path in found)


@pytest.mark.parametrize("index", [False, pytest.param(True, marks=requires("root", "erofs"))], ids=["written", "indexed"])
def test_what_takes_room(tmp_path, index):
    store = Store(index=index)
    base, own = [make.file("f", "base" * 3000)], [make.file("g", "a" * 9000)]
    for name, layers in (("a:1", [base, own]), ("b:1", [base])):
        load(tmp_path, layers, store, ref=name, config={"Labels": {"name": name}})
    Store().tag("b:1", "b:2")
    age("docker.io/library/b:1", 100)
    torn = Store().root / "partial" / "sha256"
    torn.mkdir(parents=True, exist_ok=True)
    (torn / ".torn-1").write_bytes(os.urandom(10_000))
    found = disk_usage.disk_usage(Store())
    a, b = found.images
    assert (a.tags, b.tags) == (("docker.io/library/a:1",), ("docker.io/library/b:1", "docker.io/library/b:2")), "the last used is first"
    assert (found.blobs, found.layers, found.partial) == (on_disk("blobs", "diffs"), on_disk("layers", "tars"), on_disk("partial"))
    assert found.used == found.blobs + found.layers + found.partial and found.partial >= 10_000
    assert (found.unneeded, found.bound, a.in_use, b.in_use) == (0, None, False, False)
    assert abs(a.last_used - b.last_used - 100) < 60
    shared = a.size - a.own
    assert a.size + b.own == on_disk("blobs", "diffs", "layers", "tars") and b.size == b.own + shared
    assert a.own > (9000 if not index else 0) and shared > (12_000 if not index else 0)
    bounded("7M")
    assert disk_usage.disk_usage(Store()).bound == 7 << 20
    before = on_disk("blobs", "diffs", "layers", "tars")
    assert pruning.remove(Store(), "a:1").size == a.own == before - on_disk("blobs", "diffs", "layers", "tars")
    pruning.unlist(Store(), {b.digest})
    assert disk_usage.disk_usage(Store()).unneeded == b.size


def test_room_of_a_store_that_is_not_there(tmp_path):
    found = disk_usage.disk_usage(Store(tmp_path / "none" / "at" / "all"))
    about = os.statvfs(tmp_path)
    assert (found.images, found.used, found.unneeded) == ((), 0, 0)
    assert found.free == pytest.approx(about.f_bavail * about.f_frsize, rel=0.5)


@pytest.mark.parametrize("about", [None, b"", b"{}", b"[]", b'{"size": "x"}', b'{"size": null}'])
def test_a_layer_that_does_not_say_its_size_counts_nothing(tmp_path, about):
    (layer,) = image(tmp_path, "a:1", "x" * 5000).layers
    assert disk_usage._layer_size(layer.path.parent) == 5000
    place = layer.path.parent / "layer.json"
    place.unlink()
    if about is not None:
        place.write_bytes(about)
    assert disk_usage._layer_size(layer.path.parent) == 0
    assert disk_usage.disk_usage(Store()).layers == 0


def test_a_damaged_image_keeps_what_is_still_known_of_it(tmp_path):
    found = image(tmp_path, "a:1", "x")
    (Store().root / "blobs" / found.digest.replace(":", "/")).write_bytes(b"{")
    pruning.prune(Store())
    left = {path.name for path in (Store().root / "blobs" / "sha256").iterdir()}
    assert left == {name.partition(":")[2] for name in (found.digest, found.config_digest)}


def test_what_was_torn_off_a_week_ago_goes(tmp_path):
    image(tmp_path, "a:1", "x")
    place = Store().root / "partial" / "sha256"
    place.mkdir(parents=True, exist_ok=True)
    week = 7 * 86400
    for name, seconds in (("old", week + 3600), ("young", week - 3600)):
        (place / name).write_bytes(os.urandom(5000))
        os.utime(place / name, (0, time.time() - seconds))
    size = on_disk("partial") // 2
    assert pruning.prune(Store(), dry_run=True).size == size
    assert pruning.remove(Store(), "a:1").size > size
    assert os.listdir(place) == ["young"]
    assert pruning.prune(Store(), all_images=True, dry_run=True).size == size
    assert pruning.prune(Store(), all_images=True).size == size
    assert os.listdir(place) == []


def test_the_last_used_of_each_repository_stay(tmp_path):
    for age_of, name in enumerate(("a:3", "a:2", "a:1", "b:1", "example.com/a:1")):
        image(tmp_path, name, name)
        age(str(reference.parse(name)), 100 * age_of)
    Store().tag("a:3", "a:latest")
    gone = [pruning.prune(Store(), keep_last=count, dry_run=True).images for count in (1, 2, 3)]
    assert gone == [("docker.io/library/a:1", "docker.io/library/a:2"), ("docker.io/library/a:1",), ()]
    assert pruning.prune(Store(), keep_last=0, dry_run=True).images == tuple(sorted(filter(None, names())))
    assert pruning.prune(Store(), keep_last=1, unused_for=150, dry_run=True).images == ("docker.io/library/a:1",)
    would = pruning.prune(Store(), keep_last=1, dry_run=True)
    assert pruning.prune(Store(), keep_last=1) == would


def test_what_is_used_is_not_told_to_go(tmp_path):
    fd = pins.pin(Store(), image(tmp_path, "a:1", "x"))
    image(tmp_path, "b:1", "y")
    os.utime(fd, (0, 0))
    age("docker.io/library/a:1", 1000)
    would = pruning.prune(Store(), unused_for=500, dry_run=True)
    assert would.images == pruning.prune(Store(), unused_for=500).images == ()
    assert pruning.prune(Store(), all_images=True, dry_run=True).images == ("docker.io/library/b:1",)
    os.close(fd)
    assert pruning.prune(Store(), unused_for=500).images == ("docker.io/library/a:1",)


def test_blobs_of_layers_that_are_unpacked(tmp_path):
    """They go on demand, the documents stay; what is told beforehand is what goes."""
    found = image(tmp_path, "a:1", os.urandom(20_000).hex(), "y")
    would = pruning.prune(Store(), blobs=True, dry_run=True)
    assert 20_000 < would.size <= on_disk("blobs")
    assert pruning.prune(Store(), blobs=True) == would
    left = {path.name for path in (Store().root / "blobs" / "sha256").iterdir()}
    assert left == {name.partition(":")[2] for name in (found.digest, found.config_digest)}
    assert pruning.prune(Store(), blobs=True).size == 0
    assert pruning.prune(Store(), all_images=True, blobs=True, dry_run=True).size == on_disk("blobs", "diffs", "layers", "tars")


def test_removal_names_what_it_removed(tmp_path):
    found = image(tmp_path, "a:1", "x")
    Store().tag("a:1", "b:1")
    fd = pins.pin(Store(), found)
    assert pruning.remove(Store(), "a:1") == Freed(("docker.io/library/a:1",), 0), "the image keeps a tag, so nobody loses it"
    with pytest.raises(ImageInUse, match=r"^a sandbox uses docker.io/library/b:1$"):
        pruning.remove(Store(), "b:1")
    with pytest.raises(ImageInUse):
        pruning.remove(Store(), found.digest)
    assert pruning.remove(Store(), found.digest, force=True) == Freed(("docker.io/library/b:1",), 0)
    os.close(fd)
    assert Store().find(found.digest).digest == found.digest, "it was in use"
    assert pruning.remove(Store(), found.digest).images == (found.digest,)
    assert parts() == set()


def test_an_image_by_its_digest(tmp_path):
    """With its one tag it goes without force."""
    found = image(tmp_path, "a:1", "x")
    assert pruning.remove(Store(), found.digest).images == ("docker.io/library/a:1",)
    assert parts() == set()


def test_when_an_image_was_last_used(tmp_path):
    found = image(tmp_path, "a:1", "x")
    place = Store().root / "pins" / found.digest.replace(":", "-")
    with Store().changing() as index:
        del index["images"][found.digest]["added"]
    place.unlink(missing_ok=True)
    assert disk_usage.disk_usage(Store()).images[0].last_used == 0.0
    before = time.time()
    with pins.pinned(Store(), [found]):
        assert pins.is_used(Store(), found.digest)
    assert not pins.is_used(Store(), found.digest)
    assert disk_usage.disk_usage(Store()).images[0].last_used >= before - 60
    os.utime(place, (50, 50))
    assert not pins.is_used(Store(), found.digest)
    assert disk_usage.disk_usage(Store()).images[0].last_used == 50, "a look is no use"


def test_a_lease_on_a_file_that_was_removed_meanwhile(tmp_path, monkeypatch):
    """Who held the image is gone with the file; the next one of that name counts."""
    found = image(tmp_path, "a:1", "x")
    place = Store().root / "pins" / found.digest.replace(":", "-")
    lock, removals = fcntl.flock, [place.unlink, lambda: (place.unlink(), place.touch())]

    def locked_late(fd, how):
        if removals:
            removals.pop()()
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", locked_late)
    fd = pins.pin(Store(), found)
    assert removals == [] and os.fstat(fd).st_ino == place.stat().st_ino
    os.close(fd)


def test_pruning_waits_for_what_comes(tmp_path):
    image(tmp_path, "a:1", "x")
    with Store().using():
        freed = pruning.prune(Store(), all_images=True)
    assert freed == Freed(("docker.io/library/a:1",), 0, busy=True)
    assert pruning.prune(Store()).size > 0


def test_a_promise_ends_with_its_block(tmp_path):
    Store().prepare()
    place = Store().root / "reserved"
    (place / "left").write_text("1")
    (place / "beginning").write_text("")
    with reserving.reserved(Store(), 100, "one"):
        (mine,) = set(os.listdir(place)) - {"left", "beginning"}
        assert (place / mine).read_text() == "100" and not (place / "left").exists()
        with pytest.raises(RuntimeError), reserving.reserved(Store(), 50, "two"):
            assert list(reserving._promises(Store())) in ([100, 50], [50, 100])
            raise RuntimeError
        assert list(reserving._promises(Store())) == [100]
        with (place / "beginning").open() as beginning:
            fcntl.flock(beginning, fcntl.LOCK_EX)
            assert sorted(reserving._promises(Store())) == [0, 100]
        (place / mine).unlink()
    assert os.listdir(place) == ["beginning"], "one that is just being made has no size yet"


def test_links_in_the_store_are_not_followed(tmp_path):
    """Whatever put them there: what they lead to is neither opened, nor made, nor removed."""
    found = image(tmp_path, "a:1", "x")
    root, victim = Store().root, tmp_path / "victim"
    victim.write_text("1")
    pin = root / "pins" / found.digest.replace(":", "-")
    for place, look in (
        (pin, lambda: pins.pin(Store(), found)),
        (pin, lambda: pins.is_used(Store(), found.digest)),
        (pin, lambda: pruning.prune(Store(), all_images=True)),
        (root / "locks" / "using", lambda: pruning.prune(Store())),
        (root / "reserved" / "x", lambda: list(reserving._promises(Store()))),
    ):
        place.unlink(missing_ok=True)
        place.symlink_to(victim)
        with pytest.raises((OSError, ImageError), match="symbolic links"):
            look()
        place.unlink()
    assert victim.read_text() == "1"
    assert tree(Store().get("a:1").layers) == {"f": "file:x"}


def bounded(size: str) -> None:
    from dockless.base import paths

    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text(f'[images]\nmax_size = "{size}"\n')


def test_the_bound_pushes_out_what_was_not_used_for_longest(tmp_path):
    kept = image(tmp_path, "a:1", "x" * 50_000)
    for name in ("b:1", "c:1"):
        image(tmp_path, name, name * 20_000)
    for name, seconds in (("a:1", 300), ("b:1", 200), ("c:1", 100)):
        age(f"docker.io/library/{name}", seconds)
    fd = pins.pin(Store(), kept)
    os.utime(fd, (0, 0))
    used = disk_usage.disk_usage(Store()).used
    bounded(str(used))
    with reserving.reserved(Store(), 50_000, "a pull"):
        assert names() == ["docker.io/library/a:1", "docker.io/library/c:1"]
    with pytest.raises(NoRoom, match="the store may hold") as error, reserving.reserved(Store(), used, "a pull"):
        pass
    assert error.value.missing > 0
    assert names() == ["docker.io/library/a:1", "docker.io/library/c:1"]
    os.close(fd)
    with reserving.reserved(Store(), used, "a pull"):
        assert names() == []


def test_the_bound_holds_for_what_is_loaded_and_imported(tmp_path):
    """Not only for what is pulled."""
    bounded("9K")
    with pytest.raises(NoRoom, match="the store may hold"):
        image(tmp_path, "a:1", os.urandom(20_000).hex())
    root = tmp_path / "root.tar"
    with tarfile.open(root, "w") as tar:
        tar.addfile(tarfile.TarInfo("file"), io.BytesIO())
    with pytest.raises(NoRoom, match="the store may hold"):
        import_root(Store(), root, reference="b:1")
    assert names() == []
    bounded("10M")
    image(tmp_path, "a:1", "x")
    assert names() == ["docker.io/library/a:1"]


def test_more_than_the_disk_has(tmp_path):
    with pytest.raises(NoRoom, match="more are needed") as error, reserving.reserved(Store(), 1 << 60, "a pull"):
        pass
    assert error.value.missing > 1 << 59


HOLD = """
import sys
import tarfile
from dockless.images import Store
from dockless.images.catalog import reserving
with reserving.reserved(Store(), int(sys.argv[1]), "one"):
    print(flush=True)
    input()
"""
PIN = """
from dockless.images import Store
from dockless.images.catalog import pins
image = Store().get("a:1")
print(flush=True)
input()
pins.pin(Store(), image)
"""


def test_a_promise_counts_while_its_holder_lives(tmp_path):
    Store().prepare()
    free = os.statvfs(Store().root)
    most = free.f_bavail * free.f_frsize // 2
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(most)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"\n"
        with pytest.raises(NoRoom), reserving.reserved(Store(), most, "two"):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with reserving.reserved(Store(), most // 2, "two"):
        assert len(os.listdir(Store().root / "reserved")) == 1


def test_a_lease_waits_for_a_removal_and_then_knows(tmp_path):
    found = image(tmp_path, "a:1", "x")
    waiting = subprocess.Popen(
        [sys.executable, "-c", PIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert waiting.stdout.readline() == "\n"
    with pins.unpinned(Store(), [found.digest]), locked(Store().root / "locks" / "test"):
        waiting.stdin.write("\n")
        waiting.stdin.flush()
        pruning.unlist(Store(), {found.digest})
        pruning.collect(Store())
    assert "just been removed" in waiting.communicate()[1]
