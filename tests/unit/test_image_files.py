"""The store's file habits: what is replaced whole, what is locked, what a crash leaves and who removes it, how much room stays free."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from dockless import native
from dockless.errors import ImageError, NoRoom
from dockless.images import files

MB = 1 << 20


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def place(tmp_path) -> Path:
    """A directory with nothing in it."""
    path = tmp_path / "place"
    path.mkdir()
    return path


@pytest.fixture
def umask():
    old = os.umask(0o277)
    yield
    os.umask(old)


def test_private_directories(place):
    made = files.make_private(place / "a" / "b")
    assert (made, mode(made)) == (place / "a" / "b", 0o700)
    made.chmod(0o750)
    assert files.make_private(made) == made and mode(made) == 0o750, "one that is there stays as it is"


def test_a_file_is_replaced_whole_or_not_at_all(place):
    path = place / "file"
    path.write_text("old")
    with files.replacing(path, 0o640) as out:
        out.write(b"new")
        (temporary,) = set(place.iterdir()) - {path}
        assert path.read_text() == "old" and files.is_left_over(temporary, "file")
    assert (path.read_text(), mode(path), list(place.iterdir())) == ("new", 0o640, [path])
    with pytest.raises(ZeroDivisionError), files.replacing(path) as out:
        out.write(b"torn")
        raise ZeroDivisionError
    assert (path.read_text(), list(place.iterdir())) == ("new", [path])
    with files.replacing(path) as out:
        pass
    assert mode(path) == 0o600
    with pytest.raises(FileNotFoundError), files.replacing(path):
        next(one for one in place.iterdir() if one != path).unlink()
    assert not files.is_left_over(path, "file") and not files.is_left_over(place / ".file", "file")


def test_a_name_as_long_as_a_file_system_takes(place):
    path = place / ("x" * 255)
    files.write_atomic(path, b"data")
    assert path.read_bytes() == b"data" and files.is_left_over(place / f".{'x' * 200}.{'0' * 12}", path.name)


def test_a_mode_is_exact_whatever_the_umask_says(place, umask):
    files.write_atomic(place / "file", b"data", 0o664)
    assert mode(place / "file") == 0o664
    files.write_atomic(place / "file", b"data")
    assert mode(place / "file") == 0o600


def takes(path: Path, how: int) -> bool:
    """Whether another holder could have this lock."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def test_locks(place):
    path = place / "lock"
    with files.locked(path):
        assert not takes(path, fcntl.LOCK_SH) and mode(path) == 0o600
    with files.locked(path, shared=True):
        assert takes(path, fcntl.LOCK_SH) and not takes(path, fcntl.LOCK_EX)
    assert takes(path, fcntl.LOCK_EX)
    (place / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"), files.locked(place / "link"):
        pass


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OSError(errno.ENOSPC, "No space"), NoRoom, "cannot do: no room in the image store: No space"),
        (OSError(errno.EDQUOT, "Quota"), NoRoom, "cannot do: no room in the image store: Quota"),
        (OSError(errno.EIO, "Broken"), ImageError, "cannot do: Broken"),
        (OSError(errno.EIO, "Broken", "/a/b"), ImageError, "cannot do: Broken: /a/b"),
        (OSError(errno.EIO, "Broken", "do"), ImageError, "cannot do: Broken"),
        (OSError("only words"), ImageError, "cannot do: only words"),
    ],
)
def test_what_the_system_says_is_explained(error, kind, words):
    with pytest.raises(ImageError) as caught, files.explained("cannot do", "it", "try"):
        raise error
    assert (type(caught.value), str(caught.value), caught.value.subject, caught.value.__cause__) == (kind, words, "it", error)
    assert caught.value.hint == (files.MAKE_ROOM if kind is NoRoom else "try")


def test_temporary_directories_go_with_their_maker(place):
    with files.temporary_directory(place) as made:
        assert made.parent == place and mode(made) == 0o700
        (made / "f").write_text("x")
        files.sweep(place)
        assert (made / "f").exists(), "it is in use"
    assert list(place.iterdir()) == []
    with pytest.raises(ZeroDivisionError), files.temporary_directory(place):
        raise ZeroDivisionError
    assert list(place.iterdir()) == []


def test_what_is_swept_is_nobodys_to_take(place, monkeypatch):
    """Who has made a directory and does not hold it yet finds it gone, not half removed."""
    path, real, swept = place / "made", files.remove_tree, []
    path.mkdir()

    def removing(found: Path) -> None:
        with pytest.raises(FileNotFoundError):
            files.in_use(path)
        swept.append(found)
        real(found)

    monkeypatch.setattr(files, "remove_tree", removing)
    files.sweep(place)
    assert len(swept) == 1 and os.listdir(place) == []


def test_a_sweeper_that_is_quicker(place, monkeypatch):
    """It takes the new directory before that is in use, or is just about to: another one is made."""
    use, rivals = files.in_use, [lambda path: path.rmdir(), None]

    def late(path):
        fd = use(path)
        if rivals:
            rival = rivals.pop(0)
            if rival is None:
                os.close(fd)
                raise BlockingIOError
            rival(path)
        return fd

    monkeypatch.setattr(files, "in_use", late)
    with files.temporary_directory(place) as made:
        assert rivals == [] and made.is_dir()


def test_what_a_crash_left_is_swept(place):
    (place / "left" / "deep").mkdir(parents=True)
    (place / "file").write_text("not a directory")
    (place / "link").symlink_to(place / "left")
    (place / "used").mkdir()
    fd = files.in_use(place / "used")
    files.sweep(place)
    assert sorted(path.name for path in place.iterdir()) == ["file", "link", "used"]
    os.close(fd)
    files.sweep(place)
    assert sorted(path.name for path in place.iterdir()) == ["file", "link"]
    (place / "held").mkdir()
    holder = os.open(place / "held", os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError):
        files.in_use(place / "held")
    os.close(holder)


def test_a_tree_of_any_depth_and_modes_goes(place, monkeypatch):
    """And nothing of what has the same names where the program happens to be."""
    victim = place / "victim"
    victim.mkdir()
    for name in ("0", "1", "d" * 10):
        (victim / name).mkdir()
    (victim / "fifo").write_text("x")
    monkeypatch.chdir(victim)
    (victim / "keep").write_text("x")
    top = place / "top"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(2500):  # longer than a path may be
        os.mkdir("d" * 10, dir_fd=fd)
        below = os.open("d" * 10, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.symlink(victim, "link", dir_fd=fd)
    os.close(fd)
    (top / "1").mkdir()
    for number in (0, 2, 3):
        (top / f"{number}").mkdir()
        (top / f"{number}" / "f").write_text("x")
        (top / f"{number}").chmod(0)
    (top / os.fsdecode(b"\xff\n")).write_text("x")
    os.mkfifo(top / "fifo")
    (top / "link").symlink_to(victim)
    files.remove_tree(top)
    assert not os.path.lexists(top) and (victim / "keep").read_text() == "x"
    files.remove_tree(top)
    (place / "link").symlink_to(victim)
    with pytest.raises(NotADirectoryError):
        files.remove_tree(place / "link")
    assert sorted(os.listdir(victim)) == ["0", "1", "d" * 10, "fifo", "keep"]


def disk(monkeypatch, **about):
    block = {"f_blocks": 0, "f_frsize": 4096, "f_bavail": 0, "f_files": 0, "f_favail": 0}
    monkeypatch.setattr(files.os, "fstatvfs", lambda fd: SimpleNamespace(**(block | about)))


@pytest.mark.parametrize(("blocks", "reserve"), [(20 * 256, MB), (1 << 30, files.RESERVE), (0, 0)])
def test_so_much_stays_free(monkeypatch, blocks, reserve):
    """A twentieth of the file system, at most half a gigabyte; free blocks are those for users."""
    disk(monkeypatch, f_blocks=blocks, f_bavail=(reserve + 3 * 4096) // 4096)
    files.check_room(0, 3 * 4096, "it")
    with pytest.raises(NoRoom, match=r"^it: no room in the image store: .* more are needed") as caught:
        files.check_room(0, 3 * 4096 + 1, "it")
    assert (caught.value.missing, caught.value.subject) == (1, "it")
    assert files.RESERVE == 512 * MB


@pytest.mark.parametrize(("inodes", "reserve"), [(2000, 100), (1_000_000, 1000)])
def test_so_many_inodes_stay_free(monkeypatch, inodes, reserve):
    disk(monkeypatch, f_bavail=1 << 30, f_files=inodes, f_favail=reserve)
    files.check_room(0, 1, "it")
    disk(monkeypatch, f_bavail=1 << 30, f_files=inodes, f_favail=reserve - 1)
    with pytest.raises(NoRoom, match=f"{reserve - 1} inodes left") as caught:
        files.check_room(0, 1, "it")
    assert caught.value.subject == "it"


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 306), ("aarch64", 267)])
def test_a_file_system_is_flushed_by_its_own_call(place, monkeypatch, machine, number):
    """The kernel's numbers of syncfs(2)."""
    calls = []

    def call(*words):
        calls.append((words[0], os.readlink(f"/proc/self/fd/{words[1]}")))
        return 0 if len(calls) == 1 else -errno.EIO

    monkeypatch.setattr(files.os, "uname", lambda: SimpleNamespace(machine=machine))
    monkeypatch.setattr(native, "syscall", call)
    files.sync_filesystem(place)
    assert calls == [(number, str(place))]
    with pytest.raises(OSError, match="syncfs") as caught:
        files.sync_filesystem(place)
    assert caught.value.errno == errno.EIO


def test_flushes(place, monkeypatch):
    files.sync_filesystem(place)
    files.sync_directory(place)
    (place / "file").write_text("x")
    files.sync_file(place / "file")
    (place / "link").symlink_to(place / "file")
    for bad in (lambda: files.sync_directory(place / "file"), lambda: files.sync_file(place / "link")):
        with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
            bad()
    every = []
    monkeypatch.setattr(files.os, "uname", lambda: SimpleNamespace(machine="pdp11"))
    monkeypatch.setattr(files.os, "sync", lambda: every.append(1))
    files.sync_filesystem(place)
    assert every == [1]
