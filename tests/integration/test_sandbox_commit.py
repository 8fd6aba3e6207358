"""What sandboxes changed: of detached ones after their end and while they run, of foreground ones while they run; as root and as a user."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
import threading

import pytest
from support.boxes import load, ok, until
from support.boxes import running as running_box
from support.requires import check, requires

import dockless
from dockless import aio
from dockless.cgroups import find_delegation
from dockless.errors import SandboxGone, UnknownImage, Unsupported
from dockless.images import Store
from dockless.images.archive.assemble import Edit
from dockless.sandbox import commit
from dockless.sandbox.run import detached, documents
from dockless.sandbox.spec import Spec, Tmpfs

pytestmark = requires("userns", "overlay")

SCRIPT = """
    echo new > /etc/new; rm /etc/os-release; mkdir /opt; echo x > /opt/x; chmod 0 /opt/x
    ln -s x /opt/link; touch -d @1000000000 /opt/old; rm -r /usr; mkdir /usr; echo again > /usr/again
"""


@pytest.fixture
def image(tmp_path):
    return load(tmp_path, env={"A": "1"})


@pytest.fixture
def start(image):
    made = []

    def begin(script: str, **fields) -> detached.Box:
        box = detached.start(Spec(argv=("/bin/sh", "-c", script), image=fields.pop("image", image), **fields))
        made.append(box)
        return box

    yield begin
    for box in made:
        box.remove()


def ended(start, script: str, **fields) -> detached.Box:
    box = start(script, **fields)
    assert box.wait(20).code == 0
    return box


def test_the_changes_of_a_sandbox_that_has_ended(start):
    changes = commit.changes_of(ended(start, SCRIPT)).changes()
    assert [f"{change.kind} {change.path}" for change in changes if not change.path.startswith("/usr/")] == [
        "C /etc", "A /etc/new", "D /etc/os-release", "A /opt", "A /opt/link", "A /opt/old", "A /opt/x", "C /usr",
    ]  # fmt: skip
    assert {"A /usr/again", "D /usr/bin"} <= {f"{change.kind} {change.path}" for change in changes}


def test_a_commit_runs_and_has_everything(start, image):
    made = commit.changes_of(ended(start, SCRIPT)).commit("made:1", edit=Edit(env={"B": "2"}))
    assert made.reference == "docker.io/library/made:1" and made.warnings == () and dict(made.config.env)["A"] == "1"
    said = ok(
        "cat /etc/new /usr/again; ls /opt /usr; test -e /etc/os-release || echo gone; cat /opt/x; "
        "stat -c '%u %g %a %Y' /opt/old /opt/x; echo $B",
        image="made:1",
    )
    assert said.splitlines()[:7] == ["new", "again", "/opt:", "link", "old", "x", ""]
    assert said.splitlines()[7:10] == ["/usr:", "again", "gone"]
    assert said.splitlines()[-4:-2] == ["x", "0 0 644 1000000000"] and said.splitlines()[-1] == "2"


@requires("subuid")
def test_owners_inside_are_owners_in_the_image(start):
    box = ended(
        start,
        "mkdir /w; chown 1000:50 /w; echo x > /w/f; chown 1000:1000 /w/f; chmod 600 /w/f; mkdir -m 0 /w/closed; echo y > /w/closed/in",
    )
    out = io.BytesIO()
    commit.changes_of(box).export(out)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        members = {info.name: info for info in archive}
        assert archive.extractfile("w/closed/in").read() == b"y\n"
    assert [(members[name].uid, members[name].gid, members[name].mode) for name in ("w", "w/f", "w/closed")] == [
        (1000, 50, 0o755),
        (1000, 1000, 0o600),
        (0, 0, 0),
    ]
    assert "bin/sh" in members and "etc/passwd" in members
    commit.changes_of(box).commit("made:1")
    _, parsed, _ = Store().documents(Store().get("made:1").digest, "test")
    with tarfile.open(Store().blob_path(parsed.layers[-1].digest)) as archive:
        assert {info.name: (info.uid, info.gid) for info in archive} == {
            "w": (1000, 50), "w/closed": (0, 0), "w/closed/in": (0, 0), "w/f": (1000, 1000),
        }  # fmt: skip


@requires("root")
def test_capabilities_set_inside_are_those_of_an_image(start, tmp_path):
    import struct

    box = ended(start, "echo x > /f; echo y > /g")
    root = box.directory / "upper"
    os.setxattr(root / "f", "security.capability", struct.pack("<6I", 0x03000001, 0x400, 0, 0, 0, root.stat().st_uid))
    made = commit.changes_of(box).commit()
    _, parsed, _ = Store().documents(made.digest, "test")
    with tarfile.open(Store().blob_path(parsed.layers[-1].digest), errors="surrogateescape") as archive:
        attrs = {info.name: info.pax_headers.get("SCHILY.xattr.security.capability", "") for info in archive}
    assert attrs["f"].encode("utf-8", "surrogateescape") == struct.pack("<5I", 0x02000001, 0x400, 0, 0, 0) and attrs["g"] == ""


def test_a_tag_that_moved_does_not_change_the_base(start, tmp_path, image):
    box = ended(start, "echo x > /f")
    before = Store().get(image).digest
    load(tmp_path / "other", name=image, env={"A": "9"})
    assert Store().get(image).digest != before
    assert commit.changes_of(box).base.digest == before


def freezable() -> None:
    if find_delegation(ask_systemd=False).path is None:
        pytest.skip("no cgroup v2 of our own, by which something could be frozen")


@requires("cgroup2")
def test_a_running_sandbox_stands_still_while_it_is_read(start):
    freezable()
    box = start("echo x > /f; while :; do echo y >> /log; done")
    until(lambda: (box.directory / "upper/log").exists(), "it writes")
    changes = commit.changes_of(box)
    assert {f"{change.kind} {change.path}" for change in changes.changes()} >= {"A /f", "A /log"}
    made = changes.commit("made:1")
    assert "became shorter" not in str(made.warnings) and box.state() == "running"
    size = (box.directory / "upper/log").stat().st_size
    until(lambda: (box.directory / "upper/log").stat().st_size > size, "it goes on")


def test_a_running_sandbox_without_a_cgroup_is_not_read(start):
    box = start("echo x > /f; sleep 1000")
    until(lambda: (box.directory / "upper/f").exists(), "it has written")
    from dataclasses import replace

    changes = replace(commit.changes_of(box), cgroup=None)
    with pytest.raises(Unsupported, match="no cgroup by which it could be frozen") as caught:
        changes.changes()
    assert str(caught.value.hint).startswith("stop it first; diff, commit and export can also")
    assert [change.path for change in changes.changes(pause=False)] == ["/f"]


def test_a_loop_may_have_it_read_while_it_goes_on(start, monkeypatch):
    box = start("echo x > /f; sleep 1000")
    until(lambda: (box.directory / "upper/f").exists(), "it has written")
    monkeypatch.setattr(documents, "boot_id", lambda: "another")  # its cgroup is none of ours then
    with pytest.raises(Unsupported, match="no cgroup by which it could be frozen"):
        asyncio.run(aio.diff(box.id))
    assert [change.path for change in asyncio.run(aio.diff(box.id, pause=False))] == ["/f"]


@requires("cgroup2")
def test_an_attached_sandbox_is_committed_while_it_runs(image):
    freezable()
    with running_box(Spec(argv=("/bin/sh", "-c", "echo x > /f; echo ready; sleep 1000"), image=image)) as (box, output):
        until(lambda: "ready" in output(), "it has written")
        made = commit.changes_of(box).commit("made:1")
    assert ok("cat /f", image="made:1") == "x\n" and made.config == Store().get(image).config
    with pytest.raises(SandboxGone, match="its changes went with it"):
        commit.changes_of(box)


@requires("cgroup2")
def test_the_front_door(image):
    freezable()
    with dockless.Sandbox(image, ["/bin/sh", "-c", "echo x > /f; echo ready; sleep 1000"], stdout=dockless.PIPE, text=True) as box:
        assert box.stdout.readline() == "ready\n"
        assert dockless.diff(box) == [dockless.Change("A", "/f")]
        made = dockless.commit(box, "made:1", changes=["ENV B=2", 'CMD ["cat", "/f"]'], author="me", message="why")
    assert made.config.cmd == ("cat", "/f") and dockless.run("made:1", capture_output=True, text=True).stdout == "x\n"
    with pytest.raises(SandboxGone):
        dockless.diff("none")


def test_where_there_is_nothing_to_commit(start, image):
    for fields, why in (
        ({"image": "host"}, "not on an image"),
        ({"root": "tmpfs"}, "read-only, or in memory"),
        ({"profile": "untrusted"}, "read-only, or in memory"),
    ):
        box = ended(start, "true", **fields)
        with pytest.raises(Unsupported, match=why):
            commit.changes_of(box)
    with pytest.raises(SandboxGone):
        dockless.diff("none")


def test_an_image_that_is_gone(start, image):
    box = ended(start, "true")
    path = Store().root / "images.json"
    path.write_text('{"version": 1, "images": {}, "tags": {}}')
    with pytest.raises(UnknownImage, match="not in the store any more"):
        commit.changes_of(box)


def test_mounts_are_no_part_of_it(start):
    box = ended(start, "echo x > /scratch/in; echo y > /f; echo z > /etc/hosts; echo > /dev/shm/x", mounts=(Tmpfs("/scratch"),))
    assert [f"{change.kind} {change.path}" for change in commit.changes_of(box).changes()] == ["A /f", "A /scratch"]


def test_two_commits_at_once(start):
    box = ended(start, "echo x > /f")
    made = []
    threads = [threading.Thread(target=lambda: made.append(commit.changes_of(box).commit(created=0).digest)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 3 and len(set(made)) == 1


def test_the_id_map_is_that_of_its_start(start, monkeypatch):
    """What has become of /etc/subuid since then changes nothing."""
    box = ended(start, "echo x > /f")
    monkeypatch.setattr("dockless.sandbox.resolve.default_map", lambda owner: pytest.fail("the map is made again"))
    changes = commit.changes_of(box)
    assert changes.idmap == box.document.identity.idmap and [str(change.path) for change in changes.changes()] == ["/f"]


def test_a_record_of_an_earlier_version_says_so(start):
    box = ended(start, "echo x > /f")
    record = box.directory / "spec.json"
    document = json.loads(record.read_text())
    del document["identity"]
    record.write_text(json.dumps(document))
    with pytest.raises(Unsupported, match="earlier version") as error:
        commit.changes_of(box)
    assert error.value.hint == f"what it changed lies in {box.directory}/upper" and error.value.subject == box.id


@requires("root", "two-accounts")
def test_a_sandbox_that_root_started_for_another_user(image):
    check("subuid")
    uid = 1500
    import pwd

    try:
        pwd.getpwuid(uid)
    except KeyError:
        pytest.skip("there is no user 1500")
    box = detached.start(Spec(argv=("/bin/sh", "-c", "echo x > /f"), image=image), owner=uid)
    try:
        box.wait(20)
        made = commit.changes_of(box).commit()
        _, parsed, _ = Store().documents(made.digest, "test")
        with tarfile.open(Store().blob_path(parsed.layers[-1].digest)) as archive:
            assert [(info.name, info.uid) for info in archive] == [("f", 0)]
    finally:
        box.remove()


def test_what_is_copied_before_it_stands_still_is_what_is_read_at_once(start):
    """For an ordinary user by a process in the user namespace, which asks us to freeze it."""
    import contextlib
    import tempfile

    from dockless.images.archive.capture import write_running
    from dockless.images.archive.diff import write_layer

    changes = commit.changes_of(ended(start, SCRIPT))
    asked = []

    @contextlib.contextmanager
    def frozen():
        asked.append("freeze")
        yield
        asked.append("thaw")

    at_once, captured = io.BytesIO(), io.BytesIO()
    expected = write_layer(changes.upper, changes.base.layers, at_once)
    with tempfile.TemporaryFile(dir=Store().root) as spool:
        written = write_running(changes.upper, changes.base.layers, captured, spool.fileno(), frozen, what="a test")
    assert written == expected and captured.getvalue() == at_once.getvalue()
    assert asked and asked == ["freeze", "thaw"] * (len(asked) // 2)

    class Full(Exception):
        pass

    @contextlib.contextmanager
    def refusing():
        raise Full
        yield

    with tempfile.TemporaryFile() as spool, pytest.raises(Full):
        write_running(changes.upper, changes.base.layers, io.BytesIO(), spool.fileno(), refusing, what="a test")
