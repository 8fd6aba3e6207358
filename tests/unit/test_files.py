"""``Files`` over an agent that runs as an ordinary child: each operation does what the same function of Python does, errors included."""

from __future__ import annotations

import errno
import io
import os
import re
import socket
import stat
import threading
from pathlib import Path

import pytest

from dockless.errors import BadInput
from dockless.sandbox.files import wire

HEADER = Path(__file__).resolve().parents[2] / "native" / "agent" / "agent.h"
CHUNK = wire.CHUNK


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 4 * CHUNK, 9 * CHUNK + 7])
def test_bytes_are_written_and_read_whole(files, place, size):
    data = os.urandom(size)
    assert files.write_bytes(place / "f", data) == size
    assert (place / "f").read_bytes() == data
    assert files.read_bytes(place / "f") == data


def test_writing_replaces_what_was_longer(files, place):
    (place / "f").write_bytes(b"x" * 3 * CHUNK)
    files.write_bytes(place / "f", b"short")
    assert (place / "f").read_bytes() == b"short"


def test_text_keeps_its_newlines(files, place):
    assert files.write_text(place / "f", "ä\r\nb\n") == 5
    assert (place / "f").read_bytes() == "ä\r\nb\n".encode()
    assert files.read_text(place / "f") == "ä\r\nb\n"
    (place / "f").write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        files.read_text(place / "f")
    assert files.read_text(place / "f", "latin-1") == "ÿ"


def test_a_file_of_the_kernel_that_says_it_is_empty_is_read_to_its_end(files):
    assert files.read_bytes("/proc/kallsyms")[:80] == Path("/proc/kallsyms").read_bytes()[:80]
    assert len(files.read_bytes("/proc/self/maps")) > 100


def test_reading_is_bounded(files, place):
    (place / "f").write_bytes(b"x" * (CHUNK + 10))
    assert len(files.read_bytes(place / "f", max_size=CHUNK + 10)) == CHUNK + 10
    with pytest.raises(OSError, match="File too large") as caught:
        files.read_bytes(place / "f", max_size=CHUNK + 9)
    assert caught.value.errno == errno.EFBIG and "max_size" in caught.value.__notes__[-1]
    with pytest.raises(OSError, match="File too large"):
        files.read_text(place / "f", max_size="1K")


def both(files, act, theirs):
    """The errors of ours and of Python's own function."""
    found = []
    for call in (lambda: act(files), theirs):
        with pytest.raises(OSError) as caught:
            call()
        found.append((type(caught.value), caught.value.errno, os.fspath(caught.value.filename)))
    return found


@pytest.mark.parametrize(
    ("act", "theirs"),
    [
        (lambda f, d: f.read_bytes(d / "none"), lambda d: (d / "none").read_bytes()),
        (lambda f, d: f.read_bytes(d / "dir"), lambda d: (d / "dir").read_bytes()),
        (lambda f, d: f.read_bytes(d / "file" / "x"), lambda d: (d / "file" / "x").read_bytes()),
        (lambda f, d: f.read_bytes(d / "loop"), lambda d: (d / "loop").read_bytes()),
        (lambda f, d: f.write_bytes(d / "dir", b""), lambda d: (d / "dir").write_bytes(b"")),
        (lambda f, d: f.write_bytes(d / "none" / "x", b""), lambda d: (d / "none" / "x").write_bytes(b"")),
        (lambda f, d: f.open(d / "file", "x"), lambda d: os.close(os.open(d / "file", os.O_CREAT | os.O_EXCL))),
        (lambda f, d: f.stat(d / "none"), lambda d: os.stat(d / "none")),
        (lambda f, d: f.list(d / "file"), lambda d: os.listdir(d / "file")),
        (lambda f, d: f.list(d / "none"), lambda d: os.listdir(d / "none")),
        (lambda f, d: f.mkdir(d / "dir"), lambda d: (d / "dir").mkdir()),
        (lambda f, d: f.mkdir(d / "file", exist_ok=True), lambda d: (d / "file").mkdir(exist_ok=True)),
        (lambda f, d: f.mkdir(d / "none" / "x"), lambda d: (d / "none" / "x").mkdir()),
        (lambda f, d: f.mkdir(d / "file" / "x", parents=True), lambda d: (d / "file" / "x").mkdir(parents=True)),
        (lambda f, d: f.remove(d / "none"), lambda d: os.remove(d / "none")),
        (lambda f, d: f.remove(d / "dir"), lambda d: os.rmdir(d / "dir")),
        (lambda f, d: f.rename(d / "none", d / "x"), lambda d: os.rename(d / "none", d / "x")),
        (lambda f, d: f.rename(d / "file", d / "dir"), lambda d: os.rename(d / "file", d / "dir")),
        (lambda f, d: f.stat("/" + "x" * 300), lambda d: os.stat("/" + "x" * 300)),
    ],
)
def test_errors_are_those_of_python(files, place, act, theirs):
    (place / "dir" / "full").mkdir(parents=True)
    (place / "file").touch()
    (place / "loop").symlink_to("loop")
    ours, python = both(files, lambda f: act(f, place), lambda: theirs(place))
    assert ours == python


def test_a_rename_names_both_paths(files, place):
    with pytest.raises(FileNotFoundError) as caught:
        files.rename(place / "none", place / "x")
    assert caught.value.filename2 == str(place / "x")


def test_names_are_listed_with_what_they_are(files, place):
    (place / "b").write_text("12345")
    (place / "b").chmod(0o4751)
    os.utime(place / "b", ns=(0, 1_234_567_890_500_000_000))
    (place / "a").mkdir(0o710)
    (place / "link").symlink_to("b")
    os.mkfifo(place / "pipe")
    with open(os.fsencode(place) + b"/\xff\n", "w"):
        pass
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place / "sock"))
        found = files.list(place)
    assert [(info.name, info.type) for info in found] == [
        ("a", "directory"), ("b", "file"), ("link", "link"), ("pipe", "fifo"), ("sock", "socket"), ("\udcff\n", "file"),
    ]  # fmt: skip
    info = found[1]
    assert (info.path, info.size, oct(info.mode), info.modified) == (str(place / "b"), 5, "0o4751", 1234567890.5)
    assert (info.uid, info.gid) == (os.geteuid(), os.stat(place / "b").st_gid)
    assert info == files.stat(place / "b")
    assert files.list("/")[0].path.count("/") == 1


def test_a_link_is_followed_or_looked_at(files, place):
    (place / "file").write_text("x")
    (place / "link").symlink_to("file")
    (place / "dangling").symlink_to("nowhere")
    assert files.stat(place / "link").type == "file"
    own = files.stat(place / "link", follow_symlinks=False)
    assert (own.type, own.target) == ("link", "file")
    assert files.exists(place / "link") and not files.exists(place / "dangling") and not files.exists(place / "file" / "x")
    files.remove(place / "link")
    assert (place / "file").exists()


def test_a_large_directory_is_listed_whole(files, place):
    names = sorted(f"{'n' * 200}{number:05}" for number in range(3000))
    for name in names:
        (place / name).touch()
    assert [info.name for info in files.list(place)] == names


def test_a_directory_with_too_many_names_is_refused(files, place, monkeypatch):
    monkeypatch.setattr("dockless.sandbox.files.calls.ENTRIES_MAX", 2)
    for name in "abc":
        (place / name).touch()
    with pytest.raises(OSError, match="More than 2 entries") as caught:
        files.list(place)
    assert caught.value.errno == errno.EFBIG


def test_directories_are_made_and_removed(files, place):
    files.mkdir(place / "a" / "b" / "c", parents=True)
    files.mkdir(place / "a", exist_ok=True)
    files.mkdir(place / "a" / "b" / "c", parents=True, exist_ok=True)
    files.mkdir(place / "narrow", 0o700)
    assert stat.S_IMODE((place / "narrow").stat().st_mode) == 0o700
    (place / "out").mkdir()
    (place / "out" / "kept").touch()
    (place / "a" / "b" / "link").symlink_to(place / "out")
    files.remove(place / "narrow")
    files.remove(str(place / "a") + "/", recursive=True)
    assert [entry.name for entry in place.iterdir()] == ["out"] and (place / "out" / "kept").exists()


@pytest.mark.parametrize("path", ["/", "//", "/.", "/tmp/..", "/tmp/."])
def test_what_names_no_entry_is_not_removed(files, path):
    with pytest.raises(OSError, match="busy") as caught:
        files.remove(path, recursive=True)
    assert caught.value.errno == errno.EBUSY and os.path.isdir("/tmp")


def test_a_rename_replaces(files, place):
    (place / "old").write_text("old")
    (place / "new").write_text("new")
    files.rename(place / "old", place / "new")
    assert (place / "new").read_text() == "old" and not (place / "old").exists()


@pytest.mark.parametrize("path", ["", b"a\0b"])
def test_what_is_no_path_is_refused(files, path):
    with pytest.raises(BadInput, match="path"):
        files.read_bytes(path)


def test_a_relative_path_begins_at_the_root(files):
    assert files.exists("proc/self") and files.stat("etc").path == "/etc"


def test_what_would_wait_or_is_a_device_is_never_opened(files, place):
    os.mkfifo(place / "fifo")
    for path in (place / "fifo", "/dev/zero", "/dev/tty"):
        for act in (files.read_bytes, lambda p: files.write_bytes(p, b"x"), lambda p: files.open(p, "r+")):
            with pytest.raises(OSError, match="Not a regular file") as caught:
                act(path)
            assert caught.value.errno == errno.ENOTSUP


# -- open


@pytest.mark.parametrize("mode", ["rb", "wb", "ab", "xb", "r+b", "w+b", "a+b", "rb+"])
def test_an_open_file_does_what_pythons_does(files, place, mode):
    results = []
    for name, opening in (("ours", files.open), ("python", open)):
        path = place / name
        if mode[0] != "x":
            path.write_bytes(b"0123456789")
        with opening(path, mode) as file:
            done = []
            if file.writable():
                done += [file.write(b"abc"), file.tell()]
            if file.readable():
                done += [file.seek(2), file.read(3), file.read1(2), file.seek(-1, io.SEEK_END), file.read(), file.read()]
            if file.writable():
                done += [file.seek(1), file.write(b"Z"), file.flush(), file.truncate(5), file.tell(), file.seek(0, 2)]
            done += [file.readable(), file.writable(), file.seekable()]
        results.append((done, path.read_bytes()))
    assert results[0] == results[1]


def test_lines_of_text_are_iterated_and_written(files, place):
    with files.open(place / "f", "w") as file:
        file.writelines(f"line {n}\n" for n in range(50_000))
    with files.open(place / "f") as file:
        lines = list(file)
    assert lines == (place / "f").read_text().splitlines(keepends=True) and len(lines) == 50_000
    with files.open(place / "f", "a", encoding="utf-16-le", newline="\r\n") as file:
        file.write("ä\n")
    assert (place / "f").read_bytes().endswith("ä\r\n".encode("utf-16-le"))


def test_a_closed_file_is_closed_and_the_rest_goes_on(files, place):
    (place / "f").write_text("x")
    file = files.open(place / "f", "rb")
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read()
    assert files.read_text(place / "f") == "x"


def test_files_that_were_closed_or_forgotten_are_not_open_inside(files, place):
    (place / "f").write_text("x")
    before = len(files.list("/proc/self/fd"))
    for _ in range(20):
        files.open(place / "f").close()
        files.open(place / "f", "rb").read()
        files.read_bytes(place / "f")
        files.write_bytes(place / "g", b"x" * (CHUNK + 1))
        with pytest.raises(FileNotFoundError):
            files.write_bytes(place / "no" / "g", b"x")
    assert len(files.list("/proc/self/fd")) == before


@pytest.mark.parametrize("mode", ["", "b", "rw", "rr", "rbt", "q", "r+w", "+", "br+x"])
def test_a_mode_that_is_none_is_refused(files, place, mode):
    (place / "f").touch()
    with pytest.raises(BadInput, match="mode"):
        files.open(place / "f", mode)


def test_bytes_have_no_encoding(files, place):
    with pytest.raises(BadInput, match="encoding"):
        files.open(place / "f", "wb", encoding="utf-8")


def test_several_threads_use_one_agent(files, place):
    wrong = []

    def work(number):
        for turn in range(30):
            data = bytes([number]) * (turn * 9000)
            files.write_bytes(place / str(number), data)
            with files.open(place / str(number), "rb") as file:
                if file.read() != data:
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_after_close_the_next_request_starts_it_again(files, place):
    (place / "f").write_text("x")
    first = files.stat("/proc/self", follow_symlinks=False).target
    assert files.stat("/proc/self", follow_symlinks=False).target == first
    files.close()
    assert files.stat("/proc/self", follow_symlinks=False).target != first
    assert files.as_user("0") is files.as_user("0")


def test_the_numbers_are_those_of_the_header():
    text = HEADER.read_text()
    found = {name: int(value) for name, value in re.findall(r"\b(?:FILES_)?([A-Z_]+) = (-?\d+)[,}]", text)}
    assert len(found) == 14 + 13 + 1
    assert {name: getattr(wire, name) for name in found} == found
    assert "CHUNK = 1 << 18" in text and wire.CHUNK == 1 << 18
