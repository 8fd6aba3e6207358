"""Capturing an upper that is written to: the order of the steps, and the same bytes as reading it at once gives."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import tempfile
import time

import pytest

from dockless.errors import ImageError
from dockless.images.archive import capture
from dockless.images.archive.diff import Upper, write_layer
from dockless.native.survey import Survey, trusts


class Hash:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self.hash.update(data)


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "upper"
    for number in range(60):
        folder = root / str(number % 7) / "x"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"é{number}").write_bytes(b"y" * number * 1000)
    os.link(root / "0/x/é0", root / "linked")
    os.symlink("nowhere", root / "symlink")
    os.mkfifo(root / "fifo")
    with open(root / "sparse", "wb") as file:
        file.seek(40 << 20)
        file.write(b"end")
    (root / "large").write_bytes(os.urandom(3 << 20))
    (root / "5").chmod(0o700)
    with contextlib.suppress(OSError):
        os.setxattr(root / "large", "user.a", b"b")
    return root


@contextlib.contextmanager
def frozen():
    yield


def captured(tree, frozen=frozen) -> bytes:
    out = Hash()
    with tempfile.TemporaryFile() as spool:
        capture.write_running(Upper(tree), [], out, spool.fileno(), frozen, what="a test")
    return out.hash.digest()


def at_once(tree) -> bytes:
    out = Hash()
    write_layer(Upper(tree), [], out)
    return out.hash.digest()


def test_the_same_bytes_as_of_an_upper_that_stands_still(tree):
    assert captured(tree) == at_once(tree)


def test_what_is_renamed_truncated_and_removed_before_it_is_copied(tree):
    """What is in a directory that is renamed has not changed itself."""

    @contextlib.contextmanager
    def meanwhile():
        if (tree / "3").exists():
            (tree / "3").rename(tree / "renamed")
            os.truncate(tree / "large", 5)
            (tree / "fifo").unlink()
            (tree / "5/x/é5").unlink()
            (tree / "5/x/é5").symlink_to("/etc/passwd")
        yield

    assert captured(tree, meanwhile) == at_once(tree)


def test_directories_that_change_places_before_they_are_copied(tree):
    """What is in them has not changed: only its inode says which file was copied."""
    if not trusted(tree):
        pytest.skip("the times of this file system are not relied on")
    for name in "ab":
        (tree / name).mkdir()
        (tree / name / "file").write_bytes(name.encode() * 5000)
    settle()
    swapped = []

    @contextlib.contextmanager
    def swapping():
        if not swapped:
            swapped.extend((tree / old).rename(tree / new) for old, new in (("a", "c"), ("b", "a"), ("c", "b")))
        yield

    assert captured(tree, swapping) == at_once(tree)


def test_what_is_put_in_place_of_a_file_and_has_its_inode(tree):
    if not trusted(tree):
        pytest.skip("the times of this file system are not relied on")
    inode = (tree / "large").stat().st_ino
    others = []

    @contextlib.contextmanager
    def replacing():
        if not others:
            (tree / "large").unlink()
            while len(others) < 1000 and (not others or others[-1].stat().st_ino != inode):
                others.append(tree / f"other-{len(others)}")
                os.mkfifo(others[-1])
            others[-1].rename(tree / "large")
        yield

    assert captured(tree, replacing) == at_once(tree)
    if (tree / "large").stat().st_ino != inode:
        pytest.skip("this file system gives its number to no other one")


def trusted(tree) -> bool:
    root = os.open(tree, os.O_RDONLY)
    try:
        return trusts(root)
    finally:
        os.close(root)


def changed(tree, after) -> set[bytes]:
    root = os.open(tree, os.O_RDONLY)
    try:
        before = Survey(root, None, 1000)
        before.index()
        after()
        now = Survey(root, before, 1000)
        return {now.path(entry) for entry in now.changed()}
    finally:
        os.close(root)


def settle():
    """Until what was just made no longer counts as changed by its age."""
    settled = time.monotonic() + 0.05
    while time.monotonic() < settled:
        pass


def test_what_has_changed_between_two_surveys(tree):
    if not trusted(tree):
        pytest.skip("the times of this file system are not relied on")
    settle()
    assert changed(tree, lambda: None) == set()
    assert changed(tree, lambda: os.chmod(tree / "linked", 0o600)) == {b"linked", "0/x/é0".encode()}
    with open(tree / "large", "r+b") as file, mmap.mmap(file.fileno(), 4096) as mapped:
        mapped[0] = 1
        capture.flush(file.fileno())

        def write():
            mapped[0] = 2

        while changed(tree, lambda: None):  # the fault of the first write has just been
            pass
        assert changed(tree, write) == {b"large"}
        before = os.stat(tree / "large").st_mtime_ns
        while changed(tree, lambda: None):
            pass
        assert changed(tree, lambda: os.utime(tree / "large", ns=(before, before))) == {b"large"}


def test_what_was_written_just_now_counts_as_changed(tree):
    """Its next change might have the same time."""
    deadline = time.monotonic() + 20
    while changed(tree, lambda: None) == set():
        (tree / "large").write_bytes(b"again")
        assert time.monotonic() < deadline


def test_it_stands_still_between_the_note_and_the_copy(tree, monkeypatch):
    if not trusted(tree):
        pytest.skip("the times of this file system are not relied on")
    seen = []

    def noting(what, function):
        def call(*args, **kwargs):
            seen.append(what)
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(capture, "Survey", noting("note", Survey))
    monkeypatch.setattr(capture, "flush", noting("flush", capture.flush))
    monkeypatch.setattr(capture._Copies, "_data", noting("copy", capture._Copies._data))
    monkeypatch.setattr(capture, "FEW_BYTES", 1 << 40)
    monkeypatch.setattr(capture, "FEW_FILES", 1 << 40)
    captured(tree, noting("frozen", frozen))
    first = seen.index("copy")
    assert seen[:first] == ["note", "frozen", "flush"] and "flush" not in seen[seen.index("frozen", first) :]
    assert seen[seen.index("frozen", first) + 1] == "note"


def test_more_names_than_are_noted(tree, monkeypatch):
    monkeypatch.setattr(capture, "ENTRIES_MAX", 10)
    assert captured(tree) == at_once(tree)


@pytest.mark.parametrize("what", ["xattrs", "links"])
def test_more_xattrs_and_links_than_are_noted(tree, monkeypatch, what):
    """They are bounded by their bytes: a file has 4 KiB of either, whatever its name takes."""
    for number in range(20):
        if what == "links":
            os.symlink("x" * 1000, tree / f"link-{number}")
        else:
            (tree / f"file-{number}").touch()
            try:
                os.setxattr(tree / f"file-{number}", "user.x", b"x" * 1000)
            except OSError:
                pytest.skip("no extended attributes here")
    frozen = []
    monkeypatch.setattr(capture, "HELD_MAX", 15_000)
    monkeypatch.setattr(capture, "write_layer", lambda *args, **kwargs: frozen.append("frozen") or write_layer(*args, **kwargs))
    assert captured(tree) == at_once(tree)
    assert frozen == ["frozen"]


def test_what_is_copied_again_is_held_once(tree, monkeypatch):
    if not trusted(tree):
        pytest.skip("the times of this file system are not relied on")
    links = [tree / f"link-{number}" for number in range(20)]
    for link in links:
        link.symlink_to("x" * 1000)
    monkeypatch.setattr(capture, "HELD_MAX", 25_000)
    monkeypatch.setattr(capture, "write_layer", lambda *args, **kwargs: pytest.fail("it is noted no more"))
    now = time.time_ns()

    @contextlib.contextmanager
    def touching():
        for link in links:
            os.utime(link, ns=(now, now), follow_symlinks=False)
        yield

    assert captured(tree, touching) == at_once(tree)


def test_a_file_that_is_cut_while_it_is_looked_through(tree, monkeypatch):
    """lseek(2) says ENXIO then. It has changed, and is copied again."""
    if not trusted(tree):
        pytest.skip("the times of this file system are not relied on")
    seek = os.lseek

    def cutting(fd, at, how):
        found = seek(fd, at, how)
        if how == os.SEEK_DATA and (tree / "sparse").stat().st_size:
            os.truncate(tree / "sparse", 0)
        return found

    monkeypatch.setattr(os, "lseek", cutting)
    assert captured(tree) == at_once(tree)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_for_a_moment(tree):
    if not trusted(tree):
        pytest.skip("the times of this file system are not relied on")
    seen = []

    @contextlib.contextmanager
    def closing():
        (tree / "large").chmod(0o644 if seen else 0)
        seen.append("frozen")
        yield

    assert captured(tree, closing) == at_once(tree)


@pytest.mark.parametrize(
    ("name", "change"), [("large", os.unlink), ("large", lambda path: os.truncate(path, 5)), ("5/x/é5", lambda path: os.truncate(path, 5))]
)
def test_what_changes_though_it_stands_still_is_an_error(tree, monkeypatch, name, change):
    """Nothing that is missing is passed over then."""
    monkeypatch.setattr(capture, "trusts", lambda root: False)

    def changing(root, before, most):
        survey = Survey(root, before, most)
        change(tree / name)
        return survey

    monkeypatch.setattr(capture, "Survey", changing)
    with pytest.raises(ImageError, match="was changed while it was read"):
        captured(tree)


def test_a_file_that_is_cut_while_it_is_looked_through_though_it_stands_still(tree, monkeypatch):
    monkeypatch.setattr(capture, "trusts", lambda root: False)
    seek = os.lseek

    def cutting(fd, at, how):
        found = seek(fd, at, how)
        if how == os.SEEK_DATA:
            os.truncate(tree / "sparse", 0)
        return found

    monkeypatch.setattr(os, "lseek", cutting)
    with pytest.raises(ImageError, match=os.strerror(errno.ENXIO)):
        captured(tree)


def test_there_is_another_round_while_either_files_or_bytes_are_many(tmp_path, monkeypatch):
    tree = tmp_path / "upper"
    tree.mkdir()
    for number in range(4):
        (tree / str(number)).write_bytes(bytes(1000))
    if not trusted(tree):
        pytest.skip("the times of this file system are not relied on")
    for few_files, few_bytes in ((100, 10), (1, 1 << 20)):
        seen = []

        @contextlib.contextmanager
        def noting():
            seen.append("still")  # noqa: B023
            yield

        settle()
        monkeypatch.setattr(capture, "FEW_FILES", few_files)
        monkeypatch.setattr(capture, "FEW_BYTES", few_bytes)
        assert captured(tree, noting) == at_once(tree) and len(seen) == 3, (few_files, few_bytes)


def test_a_file_with_several_names_is_copied_once(tree, monkeypatch):
    if not trusted(tree):
        pytest.skip("the times of this file system are not relied on")
    for number in range(20):
        os.link(tree / "large", tree / f"large-{number}")
    flushed = []
    monkeypatch.setattr(capture, "flush", lambda fd: flushed.append(os.fstat(fd).st_ino))
    settle()
    assert captured(tree) == at_once(tree)
    assert flushed.count((tree / "large").stat().st_ino) == 1


def test_a_file_system_whose_times_do_not_tell_is_copied_while_it_stands_still(tree, monkeypatch):
    seen = []
    monkeypatch.setattr(capture, "trusts", lambda root: False)

    @contextlib.contextmanager
    def noting():
        seen.append("frozen")
        yield

    assert captured(tree, noting) == at_once(tree) and seen == ["frozen"]


def test_many_links_of_one_file_are_looked_at_once_each(tmp_path):
    """As long as as many files, and not the square of it: a sandbox that makes them is frozen meanwhile."""
    spent = []
    for number, make in enumerate((lambda path, first: path.touch(), lambda path, first: os.link(first, path))):
        place = tmp_path / str(number)
        place.mkdir()
        (place / "first").touch()
        for name in range(12_000):
            make(place / str(name), place / "first")
        settle()
        root = os.open(place, os.O_RDONLY)
        before = Survey(root, None, 1 << 20)
        begun = time.process_time()
        before.index()
        after = Survey(root, before, 1 << 20)
        spent.append(time.process_time() - begun)
        os.close(root)
        del before, after
    assert spent[1] < 10 * spent[0], spent


def test_a_file_that_is_forgotten_is_forgotten_by_all_its_names(tree):
    if not trusted(tree):
        pytest.skip("the times of this file system are not relied on")
    settle()
    root = os.open(tree, os.O_RDONLY)
    for name in (b"linked", "0/x/é0".encode()):
        before = Survey(root, None, 1000)
        before.index()
        before.forget(dict(before.sorted())[name])
        now = Survey(root, before, 1000)
        assert {now.path(found) for found in now.changed()} == {b"linked", "0/x/é0".encode()}
    os.close(root)


def test_what_has_grown_overwrites_no_other_copy(tree):
    if not trusted(tree):
        pytest.skip("the times of this file system are not relied on")

    @contextlib.contextmanager
    def growing():
        for number in range(1, 60):
            with open(tree / str(number % 7) / "x" / f"é{number}", "ab") as file:
                file.write(bytes([number]) * 500)
        yield

    assert captured(tree, growing) == at_once(tree)
