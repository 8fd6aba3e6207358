"""``dockless.volumes`` and ``dockless.aio.volumes``; what the command line makes of the same: ``test_cli_life.py``."""

from __future__ import annotations

import asyncio
import os

import pytest
from support.requires import requires

import dockless
from dockless import aio, volumes
from dockless.errors import BadInput, UnknownVolume, VolumeInUse

pytestmark = requires("userns")


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKLESS_HOME", str(tmp_path))


def names(**wanted):
    return [volume.name for volume in volumes.list(**wanted)]


def test_made_found_and_removed():
    assert names() == [] and volumes.prune() == []
    made = volumes.create("one", labels={"team": "a", "old": ""})
    assert (made.name, made.labels, made.sandboxes) == ("one", {"team": "a", "old": ""}, ()) and os.listdir(made.directory) == []
    assert volumes.create("one") == made == volumes.get("one"), "one that is there stays as it is"
    with pytest.raises(BadInput, match="other labels"):
        volumes.create("one", labels={"team": "b"})
    volumes.create("two", labels={"team": "b"})
    dockless.run(["sh", "-c", "echo x > /v/file"], mounts=["three:/v"], check=True)
    assert names() == ["one", "three", "two"] and os.listdir(volumes.get("three").directory) == ["file"]
    assert names(labels={"team": None}) == ["one", "two"] and names(labels={"team": "b"}) == ["two"]
    assert names(names="t") == ["three", "two"] == names(names=["three", "tw"])
    volumes.remove("three")
    for missing in ("three", "nosuch"):
        with pytest.raises(UnknownVolume):
            volumes.get(missing)
        with pytest.raises(UnknownVolume):
            volumes.remove(missing)


def test_what_a_sandbox_has_stays():
    for name in ("one", "two", "free"):
        volumes.create(name)
    box = dockless.start(["true"], mounts=["one:/1", "two:/2", "one:/again"], id="box")
    box.wait(20)
    assert volumes.get("one").sandboxes == ("box",)
    assert names(dangling=False) == ["one", "two"] and names(dangling=True) == ["free"] and len(names(dangling=None)) == 3
    with pytest.raises(VolumeInUse, match="belongs to 1 sandboxes: box"):
        volumes.remove("one")
    assert volumes.prune(names="nothing") == [] and volumes.prune() == ["free"]
    box.rm()
    assert volumes.prune(names="tw") == ["two"] and names() == ["one"]


@pytest.mark.parametrize("call", [volumes.create, volumes.get, volumes.remove])
@pytest.mark.parametrize("name", ["../x", "", "a/b", ".new", 3, None])
def test_what_cannot_be_a_name(call, name):
    with pytest.raises(BadInput):
        call(name)


def test_labels_that_cannot_be():
    for labels in ({"": "x"}, {"a=b": ""}, {"a": 1}):
        with pytest.raises(BadInput, match="label"):
            volumes.create("one", labels=labels)
    assert names() == []


def test_awaited():
    async def main():
        made = await asyncio.gather(*(aio.volumes.create(f"v{number}", labels={"n": str(number)}) for number in range(5)))
        assert [one.name for one in made] == ["v0", "v1", "v2", "v3", "v4"]
        assert [one.name for one in await aio.volumes.list(labels={"n": "3"})] == ["v3"]
        await aio.volumes.remove("v3")
        with pytest.raises(UnknownVolume):
            await aio.volumes.get("v3")
        assert await aio.volumes.prune() == ["v0", "v1", "v2", "v4"]

    asyncio.run(main())
