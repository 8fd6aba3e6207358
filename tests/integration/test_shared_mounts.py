"""One mount of a layer for all processes of the host, whoever comes, goes or is killed: images/layers/mounts.py."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import boxes
from support import make_image as make
from support.indexed import build
from support.requires import requires

from dockless.base import paths
from dockless.images import Store
from dockless.images.layers import erofs, mounts
from dockless.images.layers.layers import Layer
from dockless.sandbox import features
from dockless.sandbox.run import detached
from dockless.sandbox.run.reconcile import reconcile
from dockless.sandbox.spec import Spec

pytestmark = [
    requires("root", "userns", "overlay", "erofs"),
    pytest.mark.skipif(not features.probe().detached_clones, reason="this kernel clones no mount that is nowhere attached"),
]
ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[1])}
HOLDS = """if True:
    import os, sys, time
    from pathlib import Path
    from dockless.images.layers import erofs, mounts
    index, tar, patch = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    exec(patch)
    fd = erofs.held(index, tar)
    print(os.fstat(fd).st_dev, flush=True)
    sys.stdin.read()
"""
KILLED = "lambda *_, **__: os.kill(os.getpid(), 9)"


@pytest.fixture
def layer(tmp_path: Path) -> Iterator[Layer]:
    yield build(make.layer_tar([make.directory("."), make.file("f", "here")]), tmp_path / "layer")[0]
    erofs.release(everything=True)


def begun(layer: Layer, patch: str = "") -> subprocess.Popen[str]:
    line = [sys.executable, "-P", "-c", HOLDS, str(layer.path), str(layer.tar), patch]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | ENVIRONMENT)


@contextmanager
def other(layer: Layer, patch: str = "") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process that holds the layer, and the number of its file system."""
    with begun(layer, patch) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def device(layer: Layer) -> int:
    """The number of the file system that we hold: the same number at the same time is the same mount's page cache."""
    fd = erofs.held(layer.path, *layer.tars)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def notes() -> list[Path]:
    return list((paths.runtime() / "layers").glob("*/*"))


def test_processes_have_one_mount(layer):
    with other(layer) as (_, first), other(layer) as (_, second):
        assert first == second == device(layer)
        assert len(notes()) == 3
    erofs.release()
    assert len(notes()) == 1, "what was killed is forgotten"
    erofs.release(everything=True)
    assert os.listdir(paths.runtime() / "layers") == ["lock"]


def test_in_another_mount_namespace(layer):
    with other(layer) as (_, first):
        line = ["unshare", "-m", sys.executable, "-P", "-c", HOLDS, str(layer.path), str(layer.tar), ""]
        ran = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, env=os.environ | ENVIRONMENT)
        assert int(ran.stdout) == first


def test_it_outlives_who_made_it(layer):
    with other(layer) as (maker, first), other(layer) as (_, second):
        maker.kill()
        maker.wait()
        with other(layer) as (_, third):
            assert first == second == third
        assert device(layer) == first
    assert (maker.returncode, device(layer)) == (-signal.SIGKILL, first)


def test_it_goes_with_the_last(layer):
    with other(layer):
        (note,) = notes()
    assert mounts.find(note.parent.name.partition(".")[2]) == -1
    assert not notes()


def test_who_ends_forgets(layer):
    with other(layer) as (process, _):
        process.communicate("")
    assert process.returncode == 0
    assert os.listdir(paths.runtime() / "layers") == ["lock"]


@pytest.mark.parametrize("step", ["alone", "find", "_cloned", "_number", "note", "forget"])
def test_killed_at_any_step(layer, step):
    """By whoever comes next everything is as if that one had never been."""
    with other(layer) as (_, first):
        with begun(layer, f"mounts.{step} = {KILLED}") as killed:
            killed.communicate("")
        assert killed.returncode == -signal.SIGKILL
        assert device(layer) == first
    erofs.release(everything=True)
    assert os.listdir(paths.runtime() / "layers") == ["lock"]


def test_killed_between_the_mount_and_its_note(layer):
    with begun(layer, f"mounts.note = {KILLED}") as killed:
        killed.communicate("")
    assert killed.returncode == -signal.SIGKILL
    assert not notes()
    began = time.monotonic()
    with other(layer) as (_, first):
        assert device(layer) == first
    assert time.monotonic() - began < boxes.DEADLINE


def test_who_is_stopped_meanwhile_keeps_nobody_waiting(layer):
    """The lock is held by a process that does not go on: another one mounts for itself."""
    with begun(layer, "mounts.find = lambda files: (print('locked', flush=True), os.kill(os.getpid(), 19), -1)[2]") as stopped:
        try:
            assert stopped.stdout is not None
            assert stopped.stdout.readline() == "locked\n"
            began = time.monotonic()
            assert device(layer)
            assert time.monotonic() - began < 1
        finally:
            stopped.kill()


def test_many_at_once_have_one_mount(layer, monkeypatch):
    monkeypatch.setattr(mounts, "_WAIT", 30.0)
    many = [begun(layer, "mounts._WAIT = 30.0") for _ in range(6)]
    try:
        assert len({int(process.stdout.readline()) for process in many if process.stdout}) == 1
    finally:
        for process in many:
            with process:
                process.kill()


def test_a_note_of_another_mount_is_not_believed(layer, tmp_path):
    """Its process has ended, and another has its number, with something else at that descriptor."""
    with other(layer) as (_, first):
        (true,) = notes()
        pid, born, fd, _, number = true.name.split("-")
        ours = mounts._named(os.getpid())[1]
        elsewhere = os.open(tmp_path, os.O_PATH)
        try:
            for wrong in (
                f"{os.getpid()}-{ours}-{elsewhere}-0-{number}",
                f"{os.getpid()}-{ours}-{elsewhere}-1-{number}",
                f"{pid}-{born}-{fd}-0-{int(number) + 1}",
                f"{pid}-{born}-{fd}-7-{number}",
                f"{pid}-{ours}-{fd}-0-{number}",
                f"{pid}-{fd}-0-{number}",
                "garbage",
            ):
                true.rename(true.with_name(wrong))
                assert mounts.find(true.parent.name.partition(".")[2]) == -1, wrong
                assert not notes(), wrong
                paths.make(true.parent)
                true.touch()
        finally:
            os.close(elsewhere)
        assert device(layer) == first


def test_nothing_is_taken_from_who_has_a_keepers_number_now(layer, monkeypatch):
    """The attack: a keeper has ended, and any user's process has its number and, where the mounts were, a socket with files of hers.
    To close such a file can take for ever: of FUSE its owner answers for that, or does not."""
    with other(layer) as _:
        files = next(iter(notes())).parent
        for path in notes():
            mounts.forget(path)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs, open(os.devnull) as hers:
            socket.send_fds(ours, [b"held"], [hers.fileno()] * 2)
            pid, born = mounts._named(os.getpid())
            paths.make(files)
            (files / f"{pid}-{born + 1}-{theirs.fileno()}-2-7").touch()
            closed, close = [], os.close
            monkeypatch.setattr(os, "close", lambda fd: (closed.append(os.readlink(f"/proc/self/fd/{fd}")), close(fd)))
            assert mounts.find(files.name.partition(".")[2]) == -1
            assert closed and os.devnull not in closed
            assert not notes()


def test_notes_of_another_boot_lead_nowhere(layer, monkeypatch):
    with other(layer) as (_, first):
        monkeypatch.setattr(mounts, "_boot", lambda: "another-boot")
        assert device(layer) != first
        erofs.release()
        assert [path.parent.name.partition(".")[0] for path in notes()] == ["another-boot"]
        erofs.release(everything=True)


def test_who_looks_for_a_mount_or_makes_one_is_alone(home):
    with mounts.alone(), open(mounts._root() / "lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(mounts._root() / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EMFILE])
def test_a_note_that_cannot_be_followed_now_is_kept(home, monkeypatch, number):
    place = mounts._notes_of("7.8")
    os.makedirs(place)
    note = f"{os.getpid()}-999999-0-5"
    (place / note).touch()

    def refused(name: str) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(mounts, "_noted", refused)
        assert mounts.find("7.8") == -1
        mounts.sweep()
    assert os.listdir(place) == [note]
    assert mounts.find("7.8") == -1 and not place.exists()


def test_a_layer_made_again_is_another_one(layer, tmp_path):
    with other(layer) as (_, first):
        build(make.layer_tar([make.directory("."), make.file("f", "new")]), tmp_path / "again")
        for name in ("index", "tar"):
            (tmp_path / "again" / name).rename(tmp_path / "layer" / name)
        assert device(layer) != first
        fd = layer.open()
        try:
            with open("f", opener=lambda path, flags: os.open(path, flags, dir_fd=fd)) as file:
                assert file.read() == "new"
        finally:
            os.close(fd)


def test_without_a_place_for_notes(layer, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(mounts, "_root", lambda: tmp_path / "file" / "layers")
    assert device(layer)


def test_a_child_of_fork_is_found_when_its_parent_is_gone(layer):
    forks = "erofs.held(index, tar)\nif os.fork(): os._exit(0)"
    with begun(layer, forks) as parent:
        assert parent.stdout is not None
        first = int(parent.stdout.readline())
        assert parent.wait() == 0
        assert device(layer) == first
        parent.communicate("")


# -- sandboxes that outlive who started them -------------------------------------------------------------------------------------------


@contextmanager
def detached_box(tmp_path: Path) -> Iterator[tuple[detached.Box, list[Layer]]]:
    """By a command of its own, which has ended."""
    layers = [[make.directory("."), *make.rootfs_entries()], [make.file("a", "one")]]
    make.make_oci_layout(tmp_path / "layout", layers, make.config(), "one:1")
    (image,) = Store(index=True).load(tmp_path / "layout")
    erofs.release(everything=True)
    words = "run -d -q --pull never --network none one:1 -- sleep 100".split()
    line = [sys.executable, "-P", "-m", "dockless", *words]
    id = subprocess.run(line, check=True, capture_output=True, text=True, timeout=boxes.DEADLINE).stdout.strip()
    box = detached.get(id)
    try:
        yield box, list(image.layers)
    finally:
        box.remove()


def test_a_keeper_has_the_mounts(tmp_path):
    with detached_box(tmp_path) as (box, layers):
        assert {path.name.split("-")[0] for path in notes()} == {str(box.pid)}
        assert len(notes()) == len(layers) == 2
        with other(layers[0]) as (_, first), other(layers[1]) as (_, second):
            assert [device(layer) for layer in layers] == [first, second]
        again = detached.start(Spec(argv=("sleep", "100"), image="one:1"))
        try:
            assert [device(layer) for layer in layers] == [first, second]
            erofs.release(everything=True)
            box.remove()
            assert [device(layer) for layer in layers] == [first, second], "from the keeper that is left"
        finally:
            again.remove()
            erofs.release(everything=True)
    assert os.listdir(paths.runtime() / "layers") == ["lock"]


def test_nothing_inside_has_them(tmp_path):
    with detached_box(tmp_path) as (box, _):
        for pid in (box.init_pid, *map(int, Path(f"/proc/{box.init_pid}/task/{box.init_pid}/children").read_text().split())):
            held = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
            assert not [name for name in held if name.startswith("socket") or name == "/"], held


def test_a_killed_keeper_leaves_nothing(tmp_path):
    with detached_box(tmp_path) as (box, layers):
        os.kill(box.pid, signal.SIGKILL)
        boxes.until(lambda: not box.alive, "it has ended")
        reconcile()
        assert os.listdir(paths.runtime() / "layers") == ["lock"]
        assert device(layers[0])
        erofs.release(everything=True)


def test_who_starts_is_killed_before_its_notes(tmp_path, monkeypatch):
    """The sandbox runs, and others mount for themselves."""
    with detached_box(tmp_path) as (box, layers):
        for path in notes():
            mounts.forget(path)
        with other(layers[0]) as (_, first):
            assert device(layers[0]) == first
        assert box.alive
        assert Store().get("one:1").read_file("/a") == b"one"
        erofs.release(everything=True)
