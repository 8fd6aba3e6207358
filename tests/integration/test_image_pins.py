"""A sandbox keeps its image in the store: a foreground one while it runs, a detached one until it is removed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support import boxes
from support.requires import requires

from dockless.errors import ImageInUse, NoRoom, UnknownImage
from dockless.images import Store
from dockless.images.catalog.reserving import reserved
from dockless.sandbox.commit import changes_of
from dockless.sandbox.run import detached
from dockless.sandbox.run.foreground import ForegroundSandbox
from dockless.sandbox.spec import Spec

pytestmark = requires("userns", "overlay")


def test_attached(tmp_path: Path):
    ref = boxes.load(tmp_path, [])
    with (
        boxes.files() as (source, out, err),
        ForegroundSandbox(Spec(image=ref, argv=("sleep", "100")), stdin=source.fileno(), stdout=out.fileno(), stderr=err.fileno()),
    ):
        with pytest.raises(ImageInUse):
            Store().remove(ref)
        assert Store().disk_usage().images[0].in_use
    assert Store().remove(ref).size > 0
    with pytest.raises(UnknownImage):
        boxes.run(Spec(image=ref, argv=("true",)))


@pytest.mark.parametrize("use", [
    lambda ref: boxes.run(Spec(image=ref, argv=("true",))),
    lambda ref: detached.create(Spec(image=ref, argv=("true",))).remove(),
    lambda ref: Store().tag(ref, "another:1"),
    lambda ref: Store().remove(ref),
], ids=["run", "create", "tag", "remove"])  # fmt: skip
def test_a_store_of_an_earlier_version_gets_the_directories_that_it_lacks(tmp_path: Path, use):
    ref = boxes.load(tmp_path, [])
    root = Store().root
    for name in ("pins", "reserved", "uploads", "locks", "tmp"):
        shutil.rmtree(root / name)
    use(ref)
    assert (root / "pins").stat().st_mode & 0o777 == 0o700


def test_detached(tmp_path: Path):
    ref = boxes.load(tmp_path, [])
    box = detached.start(Spec(image=ref, argv=("sleep", "100")))
    try:
        with pytest.raises(ImageInUse):
            Store().remove(ref)
        box.kill()
        box.wait(boxes.DEADLINE)
        with pytest.raises(ImageInUse):
            Store().remove(ref)
        assert Store().disk_usage().images[0].in_use
        assert Store().prune(all_images=True).images == ()
    finally:
        box.remove()
    assert Store().remove(ref).size > 0


def test_a_bounded_store_keeps_what_can_still_be_committed(tmp_path: Path, home: Path):
    ref = boxes.load(tmp_path, [])
    box = detached.start(Spec(image=ref, argv=("sh", "-c", "echo new > /new")))
    try:
        box.wait(boxes.DEADLINE)
        (home / "dockless.toml").write_text('[images]\nmax_size = "1K"\n')
        with pytest.raises(NoRoom, match="in use"), reserved(Store(), 1024, "a pull"):
            pass
        (home / "dockless.toml").unlink()
        assert changes_of(box).commit("mine:1").reference is not None
        assert boxes.sh("cat /new", image="mine:1").out == "new\n"
    finally:
        box.remove()


@requires("root")
def test_a_store_on_another_file_system_is_said(tmp_path: Path, home: Path):
    ref = boxes.load(tmp_path, [])
    (home / "state").mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "none", home / "state"], check=True)
    try:
        box = detached.start(Spec(image=ref, argv=("true",)))
        box.wait(boxes.DEADLINE)
        assert "its image may be removed" in box.document.warnings[-1]
        Store().remove(ref)
        box.remove()
    finally:
        subprocess.run(["umount", home / "state"], check=True)


def test_the_pin_is_not_the_programs(tmp_path: Path):
    ran = boxes.run(Spec(image=boxes.load(tmp_path, []), argv=("ls", "/proc/self/fd")))
    assert ran.out.split() in (["0", "1", "2", "3"], ["0", "1", "2"])
