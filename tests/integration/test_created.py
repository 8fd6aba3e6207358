"""A sandbox that is written down without being started, started later, and what a start that fails leaves."""

from __future__ import annotations

import asyncio
import os
import shutil

import pytest
from support.boxes import load, until
from support.requires import requires

import dockless
from dockless import aio
from dockless.base import paths
from dockless.cli import main
from dockless.errors import BadInput, CommandNotFound, ImageInUse, NotEnoughGpus, SandboxGone, Unsupported, Unwritable
from dockless.sandbox.run import documents, records

pytestmark = requires("userns")


@pytest.fixture
def create():
    """``dockless.create`` of a script; all is removed afterwards."""
    yield lambda script, **options: dockless.create(["/bin/sh", "-c", script], **options)
    for box in dockless.list():
        box.rm(force=True)


def written(box):
    return b"".join(row.text + b"\n" for row in box.logs()).decode()


def test_created_then_started(create):
    box = create("echo begun; exit 3", id="box", labels={"a": "b"}, env={"X": "1"})
    found = dockless.Sandbox.open("box")
    assert (found.state, found.labels, found.spec.env, found.pid) == ("created", {"a": "b"}, (("X", "1"),), 0)
    assert [one.id for one in dockless.list(state="created")] == ["box"] and written(found) == ""
    created = found.inspect()["created"]
    for ask in (found.wait, found.poll):
        with pytest.raises(BadInput, match="box was never started"):
            ask()
    asks = (lambda: found.exec("true"), found.attach, found.pause, lambda: found.send_signal(2), lambda: found.update(pids=9))
    for needs_it_to_run in asks:
        with pytest.raises(SandboxGone, match=r"^sandbox box was never started$") as early:
            needs_it_to_run()
        assert early.value.hint == "start it: dockless start box, or box.start() in Python"
    with pytest.raises(Unsupported, match="never started, so it has changed nothing"):
        dockless.diff("box")
    with pytest.raises(BadInput, match="there is a sandbox box already"):
        create("true", id="box")
    found.stop()  # of what does not run
    found.start()
    assert box.wait(20).code == 3 and written(box) == "begun\n" and box.inspect()["created"] == created
    box.start()
    assert box.wait(20).code == 3 and written(box) == "begun\nbegun\n"
    with pytest.raises(SandboxGone, match=r"^sandbox box is not running$") as late:
        found.exec("true")
    assert late.value.hint == "start it again: dockless start box, or box.start() in Python"


def test_a_created_one_is_renamed_removed_and_restarted(create):
    box = create("sleep 1000", id="old")
    box.rename("new")
    box.rename("new")
    assert repr(box) == "<dockless.Sandbox new>"
    other = create("true", id="other")
    with pytest.raises(BadInput, match="there is a sandbox other already") as caught:
        box.rename("other")
    assert str(caught.value.hint).startswith("choose another name")
    other.rm()
    box.restart()
    with pytest.raises(TimeoutError, match=r"sandbox new still runs after 0\.01 s$"):
        box.wait(0.01)
    assert box.state == "running"
    with pytest.raises(BadInput, match="new runs already"):
        box.start()
    create("true", id="never").rm()
    assert [one.id for one in dockless.list()] == ["new"]


def test_one_that_is_removed_at_its_end(create):
    box = create("exit 4", remove=True)
    box.start()
    try:
        box.wait(20)
    except dockless.SandboxGone:
        pass  # its directory was being removed before anybody could wait
    until(lambda: not dockless.list(), "its removal")


def test_a_start_that_fails_changes_nothing(create, tmp_path):
    """Neither of one that was never started nor of one that has ended, whose program has gone away since."""
    program = tmp_path / "bin" / "program"
    program.parent.mkdir()
    tmp_path.chmod(0o755)
    box = dockless.create(["/mnt/program"], id="box", mounts=[f"{program.parent}:/mnt:ro"])
    before = box.inner.document
    with pytest.raises(CommandNotFound):
        box.start()
    assert box.state == "created" and box.inner.document == before
    assert sorted(os.listdir(box.inner.directory)) == ["lock", documents.NAME]
    program.write_text("#!/bin/sh\necho ran; exit 5\n")
    program.chmod(0o755)
    box.start()
    ended, known = box.wait(20), box.inner.document
    program.unlink()
    with pytest.raises(CommandNotFound):
        box.start()
    assert (box.state, box.poll(), box.inner.document, written(box)) == ("exited", ended, known, "ran\n")
    with pytest.raises(CommandNotFound):
        box.restart()
    assert box.poll() == ended


def test_a_disk_without_room_changes_nothing(create, monkeypatch):
    box = create("exit 5")
    box.start()
    ended = box.wait(20)

    def full(directory):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "reserve", full)
    with pytest.raises(Unwritable):
        box.start()
    monkeypatch.undo()
    assert box.poll() == ended and box.state == "exited"
    box.start()
    assert box.wait(20).code == 5


def test_its_image_stays_until_it_is_removed(create, tmp_path):
    image = load(tmp_path, name="created:1")
    box = dockless.create(image, ["/bin/sh", "-c", "exit 6"])
    with pytest.raises(ImageInUse):
        dockless.Store().remove(image)
    box.start()
    assert box.wait(20).code == 6
    box.rm()
    dockless.Store().remove(image)


def test_gpus_are_leased_when_it_is_started(create, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G")
    first, second = create("sleep 1000", gpus=1), create("true", gpus="all")
    assert first.gpus == ()
    first.start()
    assert len(first.gpus) == 1 and first.labels == {"gpus": "simulated"}
    with pytest.raises(NotEnoughGpus):
        second.start()
    assert second.state == "created"
    first.stop(0)
    second.start()
    assert second.wait(20).code == 0 and second.gpus == first.gpus
    with pytest.raises(BadInput):
        create("true", gpus="many")


def test_on_the_command_line(create, tmp_path, capfd):
    told = tmp_path / "id"
    words = ["create", "--name", "box", "-l", "a=b", "--cidfile", str(told), "--", "sh", "-c", "exit 7"]
    assert main(words) == 0 and told.read_text() == "box\n"
    assert main(["ps"]) == main(["ps", "-aq", "--filter", "state=created"]) == main(["container", "start", "box"]) == 0
    assert main(["wait", "box"]) == 7
    assert capfd.readouterr().out.splitlines()[2:4] == ["box", "box"]
    assert main(["create", "--name", "box", "--", "true"]) == 125


def test_one_that_is_removed_while_it_is_renamed_leaves_no_directory(create, monkeypatch):
    box = create("true", id="box")
    directory, make_new = box._found.directory, paths.make_new

    def make_and_remove(place):
        made = make_new(place)
        shutil.rmtree(directory)
        return made

    monkeypatch.setattr(paths, "make_new", make_and_remove)
    with pytest.raises(SandboxGone):
        box.rename("new")
    assert not (directory.parent / "new").exists()


def test_awaited(create):
    async def life():
        box = await aio.create(["sh", "-c", "exit 8"])
        await box.start()
        return await box.wait(20)

    assert asyncio.run(life()).code == 8
