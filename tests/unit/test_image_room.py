"""Tags, removal, leases, pruning, the bound: on a real store with small images."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support import make_image as make
from support.layers import load, tree

from dockless.errors import BadInput, ImageInUse, NoRoom, UnknownImage
from dockless.images import Store, lease, room
from dockless.images.files import locked
from dockless.images.importing import import_root


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
    freed = room.remove(Store(), "a:1")
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
    assert room.remove(Store(), "b:1").size > 0
    assert parts() == before
    assert room.remove(Store(), "a:1").images == ("docker.io/library/a:1",)
    assert (parts(), names(), os.listdir(Store().root / "leases")) == (set(), [], [])
    with pytest.raises(UnknownImage):
        room.remove(Store(), "a:1")


def test_by_digest_all_tags_go_but_not_by_mistake(tmp_path):
    found = image(tmp_path, "a:1", "x")
    Store().tag("a:1", "a:2")
    with pytest.raises(ImageInUse, match="2 tags"):
        room.remove(Store(), found.digest)
    assert len(room.remove(Store(), found.digest, force=True).images) == 2
    assert names() == []


def test_what_runs_keeps_its_image(tmp_path):
    found = image(tmp_path, "a:1", "x")
    fd = lease.lease(Store(), found)
    with pytest.raises(ImageInUse, match="a sandbox uses"):
        room.remove(Store(), "a:1")
    assert names() == ["docker.io/library/a:1"]
    assert room.room(Store()).images[0].in_use
    room.remove(Store(), "a:1", force=True)
    room.prune(Store(), all_images=True)
    assert tree(found.layers) == {"f": "file:x"}
    assert names() == [None]
    os.close(fd)
    assert room.prune(Store()).size > 0
    assert names() == []
    with pytest.raises(UnknownImage, match="just been removed"):
        lease.lease(Store(), found)


def test_nothing_goes_while_something_comes(tmp_path):
    image(tmp_path, "a:1", "x")
    before = parts()
    with Store().using():
        freed = room.remove(Store(), "a:1")
        assert (freed.busy, freed.size) == (True, 0)
        assert parts() == before
        load(tmp_path, [[make.file("f", "x")]], ref="b:1", config={"Labels": {"name": "a:1"}})
    assert room.prune(Store()).size == 0
    assert tree(Store().get("b:1").layers) == {"f": "file:x"}


def test_pruning(tmp_path):
    for name in ("a:1", "a:2", "b:1"):
        image(tmp_path, name, name)
    image(tmp_path, "a:1", "moved")  # the old a:1 has no tag any more
    assert names().count(None) == 1
    would = room.prune(Store(), dry_run=True)
    assert names().count(None) == 1
    assert room.prune(Store()) == would
    assert names() == ["docker.io/library/a:1", "docker.io/library/a:2", "docker.io/library/b:1"]
    age("docker.io/library/a:2", 7200)
    assert room.prune(Store(), unused_for=86400).images == ()
    assert room.prune(Store(), keep_last=1, dry_run=True).images == ("docker.io/library/a:2",)
    assert room.prune(Store(), unused_for=3600).images == ("docker.io/library/a:2",)
    blobs = room.prune(Store(), blobs=True)
    assert blobs.size > 0
    assert tree(Store().get("b:1").layers) == {"f": "file:b:1"}
    assert room.prune(Store(), all_images=True).images == ("docker.io/library/a:1", "docker.io/library/b:1")
    assert parts() == set()


def test_pruning_more_images_than_files_may_be_open(tmp_path):
    for number in range(40):
        image(tmp_path, f"n{number}:1", str(number))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(room, "_AT_ONCE", 10)
            freed = room.prune(Store(), all_images=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(freed.images) == 40 and freed.size > 0 and names() == [] and parts() == set()


def test_the_whole_store_is_gone_through_once_however_many_images_there_are(tmp_path, monkeypatch):
    calls = 0
    look = room._Catalog.unneeded

    def counted(*arguments):
        nonlocal calls
        calls += 1
        return look(*arguments)

    monkeypatch.setattr(room._Catalog, "unneeded", counted)
    for number in range(6):
        image(tmp_path, f"n{number}:1", "base", str(number))
    assert len({entry.own for entry in room.room(Store()).images} - {0}) >= 1 and calls == 1


def test_what_takes_room(tmp_path):
    image(tmp_path, "a:1", "base" * 3000, "a" * 9000)
    image(tmp_path, "b:1", "base" * 3000)
    found = room.room(Store())
    a, b = sorted(found.images, key=lambda image: image.tags)
    assert a.size > b.size > 0
    assert 0 < a.own < a.size
    assert b.own < b.size
    assert found.unneeded == 0
    assert found.free > 0
    assert found.used == found.blobs + found.layers + found.partial


def bounded(size: str) -> None:
    from dockless import paths

    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text(f'[images]\nmax_size = "{size}"\n')


def test_the_bound_pushes_out_what_was_not_used_for_longest(tmp_path):
    kept = image(tmp_path, "a:1", "x" * 50_000)
    for name in ("b:1", "c:1"):
        image(tmp_path, name, name * 20_000)
    for name, seconds in (("a:1", 300), ("b:1", 200), ("c:1", 100)):
        age(f"docker.io/library/{name}", seconds)
    fd = lease.lease(Store(), kept)
    os.utime(fd, (0, 0))
    used = room.room(Store()).used
    bounded(str(used))
    with room.reserved(Store(), 50_000, "a pull"):
        assert names() == ["docker.io/library/a:1", "docker.io/library/c:1"]
    with pytest.raises(NoRoom, match="the store may hold") as error, room.reserved(Store(), used, "a pull"):
        pass
    assert error.value.missing > 0
    assert names() == ["docker.io/library/a:1", "docker.io/library/c:1"]
    os.close(fd)
    with room.reserved(Store(), used, "a pull"):
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
    with pytest.raises(NoRoom, match="more are needed") as error, room.reserved(Store(), 1 << 60, "a pull"):
        pass
    assert error.value.missing > 1 << 59


HOLD = """
import sys
import tarfile
from dockless.images import Store, room
with room.reserved(Store(), int(sys.argv[1]), "one"):
    print(flush=True)
    input()
"""
LEASE = """
from dockless.images import Store, lease
image = Store().get("a:1")
print(flush=True)
input()
lease.lease(Store(), image)
"""


def test_a_promise_counts_while_its_holder_lives(tmp_path):
    Store().prepare()
    free = os.statvfs(Store().root)
    most = free.f_bavail * free.f_frsize // 2
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(most)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"\n"
        with pytest.raises(NoRoom), room.reserved(Store(), most, "two"):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with room.reserved(Store(), most // 2, "two"):
        assert len(os.listdir(Store().root / "reserved")) == 1


def test_a_lease_waits_for_a_removal_and_then_knows(tmp_path):
    found = image(tmp_path, "a:1", "x")
    code = "from dockless.images import Store, lease\nimage = Store().get('a:1')\nprint(flush=True)\ninput()\nlease.lease(Store(), image)"
    waiting = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert waiting.stdout.readline() == "\n"
    with lease.seized(Store(), [found.digest]), locked(Store().root / "locks" / "test"):
        waiting.stdin.write("\n")
        waiting.stdin.flush()
        room.unlist(Store(), {found.digest})
        room._collect(Store())
    assert "just been removed" in waiting.communicate()[1]
