"""Files of detached sandboxes that do not run: ended, only created, or lost with their keeper; as root and as a user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.boxes import load, until
from support.make_image import directory, file
from support.requires import requires

import dockless
from dockless.errors import BadInput, SandboxGone, Unsupported
from dockless.sandbox.run import choosing

pytestmark = requires("userns", "overlay")


@pytest.fixture
def image(tmp_path):
    passwd = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n"
    return load(tmp_path, [file("etc/passwd", passwd), directory("home/alice", 0o755, uid=1000, gid=1000), file("etc/own", "image", 0o600)])


@pytest.fixture
def ended(image):
    """Starts one and waits for its end."""
    made = []

    def begin(script: str, image: str = image, **options) -> dockless.Sandbox:
        made.append(dockless.start(image, ["/bin/sh", "-c", script], **options))
        made[-1].wait()
        return made[-1]

    yield begin
    for box in made:
        box.rm(force=True)


def test_what_it_left_is_read_and_changed_and_the_next_start_sees_it(ended):
    box = ended("test -e /new || { echo left > /left; rm /etc/own; }; cat /new /home/alice/hers; exit 7")
    before = box.inspect(), dockless.diff(box)
    with box.files as files:
        assert files.read_text("/left") == "left\n" and not files.exists("/etc/own") and files.read_text("/etc/passwd").startswith("root")
        files.write_text("/new", "new\n")
        files.as_user("alice").write_text("/home/alice/hers", "hers\n")
        assert files.stat("/home/alice/hers").uid == 1000 and files.stat("/new").uid == 0
        with pytest.raises(PermissionError):
            files.as_user("alice").write_text("/left", "")
        assert (box.state, box.inspect()) == ("exited", before[0])
        with pytest.raises(SandboxGone):
            box.exec("true")
        with pytest.raises(SandboxGone):
            box.exec("true", user="alice")
    assert {(change.kind, change.path) for change in dockless.diff(box)} - {(change.kind, change.path) for change in before[1]} == {
        ("A", "/new"), ("C", "/home"), ("C", "/home/alice"), ("A", "/home/alice/hers"),
    }  # fmt: skip
    box.start()
    box.wait()
    assert [row.text for row in box.logs()][-2:] == [b"new", b"hers"]


@pytest.mark.parametrize("how", ["stop", "kill", "inside", "keeper", "agent"])
def test_a_handle_that_was_at_its_files_before_the_end_goes_on(image, how):
    box = dockless.start(image, ["sleep", "1000"])
    try:
        box.files.write_text("/kept", "kept")
        box.files.as_user("alice").read_text("/kept")
        if how == "stop":
            box.stop(1)
        elif how == "kill":
            box.kill()
        elif how == "keeper":
            os.kill(box.inspect()["pid"], signal.SIGKILL)
        else:
            names = "*" if how == "inside" else "dockless-agent"
            box.exec("sh", "-c", f"for p in /proc/[0-9]*; do case $(cat $p/comm) in {names}) kill -9 ${{p#/proc/}};; esac; done", user="0")
        if how == "agent":
            assert box.state == "running"
        else:
            until(lambda: box.state in ("exited", "vanished"), "it has ended")
        if how == "keeper":  # what acts on its files ends after it: what is asked just then gets no answer
            until(lambda: all(files._running.closed for files in (box.files, box.files.as_user("alice"))), "nobody acts on its files")
        assert box.files.read_text("/kept") == "kept" == box.files.as_user("alice").read_text("/kept")
    finally:
        box.rm(force=True)


def test_one_that_was_only_created_gets_its_files_first(image, tmp_path, say):
    box = dockless.create(image, ["cat", "/in"], user="alice", mounts=[dockless.Bind(tmp_path / "gone", "/gone")])
    (tmp_path / "in").write_text("from here\n")
    assert say("cp", "-q", "-u", "0", str(tmp_path / "in"), f"{box.id}:/") == (0, "", "")
    assert box.state == "created"
    (tmp_path / "gone").mkdir()
    box.start()
    box.wait()
    assert [row.text for row in box.logs()] == [b"from here"]
    box.rm()


def test_the_command_line(ended, tmp_path, say):
    box = ended("mkdir /out; echo result > /out/r; ln -s /etc/shadow /out/l")
    assert say("cp", f"{box.id}:/out", str(tmp_path)) == (
        0, "", "1 file, 7 B copied\ndockless: left out: l: a link that leads out, to '/etc/shadow'\n",
    )  # fmt: skip
    assert (tmp_path / "out" / "r").read_text() == "result\n"
    code, _, err = say("cp", f"{box.id}:/none", str(tmp_path))
    assert code == 125 and err.startswith(f"dockless: {box.id}:/none: No such file or directory")


def test_volumes_are_there_and_binds_that_are_gone_are_not(ended, tmp_path):
    (tmp_path / "bound").mkdir()
    (tmp_path / "gone").mkdir()
    mounts = [dockless.Volume("kept", "/data"), dockless.Bind(tmp_path / "bound", "/bound"), dockless.Bind(tmp_path / "gone", "/gone")]
    box = ended("echo kept > /data/f; echo left > /left", mounts=mounts)
    (tmp_path / "gone").rmdir()
    (tmp_path / "bound" / "f").write_text("bound")
    with box.files as files:
        assert files.read_text("/data/f") == "kept\n" and files.read_text("/left") == "left\n" and files.read_text("/bound/f") == "bound"


def test_one_whose_keeper_was_killed(image):
    box = dockless.start(image, ["/bin/sh", "-c", "echo left > /left; exec sleep 1000"])
    until(lambda: box.files.exists("/left"), "it has written")
    os.kill(box.inspect()["pid"], signal.SIGKILL)
    until(lambda: box.state == "vanished", "its end")
    box.files.close()
    assert box.files.read_text("/left") == "left\n"
    box.rm()


def test_who_keeps_no_files(ended, image):
    for box in (ended("true", "host"), ended("true", root="tmpfs"), ended("true", root="readonly"), ended("true", profile="untrusted")):
        with pytest.raises(Unsupported, match="has no files while it does not run"):
            box.files.list("/")
        assert not (Path(box.inspect()["directory"]) / "files").exists()
    with dockless.Sandbox(image, ["true"]) as box:
        box.wait()
        with pytest.raises(SandboxGone):
            box.files.list("/")


def test_nobody_starts_it_meanwhile(ended, monkeypatch):
    monkeypatch.setattr(choosing, "_PATIENCE", 0.05)
    monkeypatch.setattr(choosing, "_PATIENCE_WITH_FILES", 0.05)
    box = ended("true")
    other = dockless.Sandbox.open(box.id)
    assert box.files.exists("/bin")
    for act in (other.start, lambda: other.files.list("/")):
        with pytest.raises(BadInput, match=rf"process {os.getpid()} \(.*\) acts on the files"):
            act()
    box.start()  # its own handle lets go of them
    box.wait()
    assert other.files.exists("/bin")
    with pytest.raises(BadInput, match=rf"process {os.getpid()} \(.*\) acts on the files"):
        box.files.list("/")
    other.files.close()
    assert box.files.exists("/bin")


@pytest.mark.parametrize("act", [lambda box: box.rename("renamed"), lambda box: box.restart()], ids=["rename", "restart"])
def test_its_own_handle_lets_go_of_its_files(ended, monkeypatch, act):
    monkeypatch.setattr(choosing, "_PATIENCE", 0.05)
    monkeypatch.setattr(choosing, "_PATIENCE_WITH_FILES", 0.05)
    box = ended("true")
    assert box.files.exists("/bin")
    act(box)
    box.wait()
    assert box.files.exists("/bin")


def test_a_program_that_is_killed_leaves_nothing(ended):
    box = ended("echo left > /left")
    program = f"import dockless, time; dockless.Sandbox.open({box.id!r}).files.exists('/'); print('up', flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as client:
        assert client.stdout.readline() == b"up\n"
        client.kill()
    assert box.files.read_text("/left") == "left\n"  # waits until what held them has ended
    box.files.close()
    assert not (Path(box.inspect()["directory"]) / "files").exists()
    box.start()
    box.wait()
