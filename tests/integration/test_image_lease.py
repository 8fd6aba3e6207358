"""What runs from an image keeps it in the store, attached and detached, and no longer."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import boxes
from support.requires import requires

from dockless.errors import ImageInUse, UnknownImage
from dockless.images import Store
from dockless.sandbox import detached
from dockless.sandbox.sandbox import Sandbox
from dockless.sandbox.spec import Spec

pytestmark = requires("userns", "overlay")


def test_attached(tmp_path: Path):
    ref = boxes.load(tmp_path, [])
    with (
        boxes.files() as (source, out, err),
        Sandbox(Spec(image=ref, argv=("sleep", "100")), stdin=source.fileno(), stdout=out.fileno(), stderr=err.fileno()),
    ):
        with pytest.raises(ImageInUse):
            Store().remove(ref)
        assert Store().room().images[0].in_use
    assert Store().remove(ref).size > 0
    with pytest.raises(UnknownImage):
        boxes.run(Spec(image=ref, argv=("true",)))


def test_detached(tmp_path: Path):
    ref = boxes.load(tmp_path, [])
    box = detached.start(Spec(image=ref, argv=("sleep", "100")))
    try:
        with pytest.raises(ImageInUse):
            Store().remove(ref)
        box.kill()
        box.wait(boxes.DEADLINE)
        Store().remove(ref)
    finally:
        box.remove()


def test_the_lease_is_not_the_jobs(tmp_path: Path):
    ran = boxes.run(Spec(image=boxes.load(tmp_path, []), argv=("ls", "/proc/self/fd")))
    assert ran.out.split() in (["0", "1", "2", "3"], ["0", "1", "2"])
