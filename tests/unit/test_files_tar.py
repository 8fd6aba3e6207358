"""Tars into a sandbox and out of it, over an agent that runs as an ordinary child: what arrives, and what a hostile one is refused for."""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import struct
import subprocess
import tarfile

import pytest
from support.agents import saying

from dockless.errors import BadInput
from dockless.sandbox.files.archive import Archive
from dockless.sandbox.files.wire import CHUNK

OLD = 1_234_567_890


def tar(*members: tuple[str, object]) -> io.BytesIO:
    """A name and bytes (a file), a ``TarInfo`` type with where it leads, or None (a directory)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, what in members:
            info = tarfile.TarInfo(name)
            info.mtime, info.mode = OLD, 0o644
            if isinstance(what, bytes):
                info.size = len(what)
            elif what is None:
                info.type = tarfile.DIRTYPE
            else:
                info.type, info.linkname = what  # type: ignore[misc]
            archive.addfile(info, io.BytesIO(what) if isinstance(what, bytes) else None)
    out.seek(0)
    return out


@pytest.mark.parametrize("how", ["--format=pax -S", "--format=gnu -S", "--format=ustar", "-z", "-J", "--zstd"])
def test_what_tar_makes_arrives_as_it_was(files, place, tmp_path, how):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True, mode=0o750)
    (source / "sub" / "large").write_bytes(os.urandom(3 * CHUNK + 5))
    (source / "exact").write_bytes(os.urandom(CHUNK))
    (source / "empty").touch(mode=0o600)
    (source / "hard").hardlink_to(source / "sub" / "large")
    (source / "out").symlink_to("/etc/shadow")
    with open(source / "holes", "wb") as file:
        file.truncate(2 * CHUNK + 7)
        os.pwrite(file.fileno(), b"x", CHUNK + 1)
    os.mkfifo(source / "fifo")
    os.utime(source / "sub", (OLD, OLD))
    made = subprocess.run(["tar", *how.split(), "-C", source, "-c", "."], stdout=subprocess.PIPE, check=True).stdout
    copied = files.tar_in(io.BytesIO(made), place)
    assert (copied.files, copied.links, [path for path, _ in copied.skipped]) == (5, 1, ["fifo"])
    (source / "fifo").unlink()
    subprocess.run(["diff", "-r", "--no-dereference", source, place], check=True)
    assert (place / "hard").stat().st_ino == (place / "sub" / "large").stat().st_ino
    assert stat.S_IMODE((place / "sub").stat().st_mode) == 0o750 and (place / "sub").stat().st_mtime == OLD
    assert (place / "holes").stat().st_size == 2 * CHUNK + 7


def test_directories_without_an_entry_are_made_and_those_that_are_there_stay(files, place):
    (place / "there").mkdir(mode=0o700)
    (place / "there" / "old").write_text("old")
    files.tar_in(tar(("/there/new", b"new"), ("./a//b/c", b"c"), ("a/b", None), ("there/old", b"replaced")), place)
    assert sorted(os.fspath(path.relative_to(place)) for path in place.rglob("*")) == [
        "a",
        "a/b",
        "a/b/c",
        "there",
        "there/new",
        "there/old",
    ]
    assert (place / "there" / "old").read_text() == "replaced"
    assert stat.S_IMODE((place / "there").stat().st_mode) == 0o700 and stat.S_IMODE((place / "a").stat().st_mode) == 0o755


def test_the_target_is_a_directory_that_is_there(files, place):
    (place / "file").touch()
    with pytest.raises(NotADirectoryError):
        files.tar_in(tar(("x", b"")), place / "file")
    with pytest.raises(FileNotFoundError):
        files.tar_in(tar(("x", b"")), place / "missing")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "..", "/../x", "a/.."])
def test_a_name_that_leads_upwards_is_refused(files, place, name):
    around = os.listdir(place.parent)
    for member in ((name, b"x"), (name, None), (name, (tarfile.SYMTYPE, "y")), ("x", (tarfile.LNKTYPE, name))):
        with pytest.raises(BadInput, match="leads upwards"):
            files.tar_in(tar(member), place)
    assert not os.listdir(place) and os.listdir(place.parent) == around


def test_the_longest_name(files, place):
    above = "/".join(["n" * 254] * 16)
    assert files.tar_in(tar((f"{above}/{'x' * 15}", b"")), place).files == 1
    with pytest.raises(OSError, match="too long") as caught:
        files.tar_in(tar((f"{above}/{'x' * 16}", b"")), place)
    assert caught.value.errno == errno.ENAMETOOLONG


def test_contents_that_nobody_wants_are_passed_over():
    items = Archive(tar(("large", bytes(3 * CHUNK + 5)), ("small", b"x")), "the tar").items()
    assert [b"".join(item.content) for item in items if item.path == b"small"] == [b"x"]


@pytest.mark.parametrize("linked", ["a", "a/b"])
def test_no_entry_goes_through_a_link(files, place, tmp_path, linked):
    """Neither one of the tar nor one that was there; the link itself can be replaced."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("theirs")
    link = (linked, (tarfile.SYMTYPE, os.fspath(outside)))
    through = (f"{linked}/f", b"ours"), (f"{linked}/new", None), (f"{linked}/deep/f", b"ours"), (f"{linked}/l", (tarfile.SYMTYPE, "f"))
    for entry in (*through, ("h", (tarfile.LNKTYPE, f"{linked}/f"))):
        with pytest.raises(OSError, match=r"directory|symbolic links|exists"):
            files.tar_in(tar(link, entry), place)
        with pytest.raises(OSError, match=r"directory|symbolic links|exists"):  # it is there now
            files.tar_in(tar(entry), place)
    files.tar_in(tar((linked, b"replaced")), place)
    assert (place / linked).read_bytes() == b"replaced"
    assert [path.name for path in outside.iterdir()] == ["f"] and (outside / "f").read_text() == "theirs"


def test_a_hard_link_to_itself_loses_nothing(files, place):
    files.tar_in(tar(("f", b"text"), ("./f", (tarfile.LNKTYPE, "f")), ("g", (tarfile.LNKTYPE, "f"))), place)
    assert (place / "f").read_text() == (place / "g").read_text() == "text"
    with pytest.raises(FileNotFoundError):
        files.tar_in(tar(("h", (tarfile.LNKTYPE, "missing"))), place)


WHOLE = tar(("f", b"x" * 2000), ("g", b"y")).getvalue()


@pytest.mark.parametrize(
    "bad",
    [b"x", b"no tar at all" * 100, WHOLE[:512], WHOLE[:1000], WHOLE[:2700], gzip.compress(WHOLE)[:-20], b"\x1f\x8b" + bytes(600)],
    ids=range(7),
)
def test_a_damaged_one_is_refused(files, place, bad):
    with pytest.raises(BadInput, match="no sound tar archive") as caught:
        files.tar_in(io.BytesIO(bad), place)
    assert caught.value.subject == "the tar"


class Endless(io.RawIOBase):
    """The beginning of a tar, then zeros for ever; counts them."""

    def __init__(self, begin: bytes) -> None:
        self.begin, self.given = begin, 0

    def read(self, size: int = -1) -> bytes:
        piece, self.begin = self.begin[:size] or bytes(size), self.begin[size:]
        self.given += len(piece)
        return piece


def test_what_is_behind_its_end_is_not_read_for_ever(files, place):
    stream = Endless(WHOLE)
    assert files.tar_in(stream, place).files == 2
    assert stream.given < 2 << 20


def beyond(files, place, stream, **bounds) -> str:
    with pytest.raises(OSError, match="More") as caught:
        files.tar_in(stream, place, **bounds)
    assert caught.value.errno == errno.EFBIG and len(os.listdir(place)) <= 13
    return str(caught.value)


def test_bombs_are_bounded(files, place):
    """By what they become, however small they are."""
    huge = tarfile.TarInfo("f")
    huge.size = 8 << 40
    stream = Endless(huge.tobuf())
    assert "More than 1048576 bytes" in beyond(files, place, stream, max_size="1M")
    assert stream.given < 2 << 20
    assert "More than 10 files" in beyond(files, place, tar(*((str(number), b"") for number in range(100))), max_files=10)
    assert "More than 10 files" in beyond(files, place, tar(("/".join("a" * 100), b"")), max_files=10)  # directories count
    packed = io.BytesIO(gzip.compress(tar(("f", bytes(64 << 20))).getvalue()))
    assert "More than 1048576 bytes" in beyond(files, place, packed, max_size="1M")
    names = tar(*((f"{'n' * 200}/" * 15 + str(number), None) for number in range(400)))
    assert "More names than memory is for" in beyond(files, place, names, max_files=1000)


def test_holes_are_bounded_too(files, place, tmp_path):
    with open(tmp_path / "holes", "wb") as file:
        file.truncate(1 << 40)
    made = subprocess.run(["tar", "-S", "-C", tmp_path, "-c", "holes"], stdout=subprocess.PIPE, check=True).stdout
    assert len(made) < 1 << 16
    assert "More than 4194304 bytes" in beyond(files, place, io.BytesIO(made), max_size="4M")


def unpacked(raw: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        return {info.name: info for info in archive}


def test_out_by_its_own_name_or_without(files, place):
    (place / "sub").mkdir()
    (place / "sub" / "f").write_text("text")
    for source, names in (("", ["place", "place/sub", "place/sub/f"]), ("/.", [".", "sub", "sub/f"]), ("/sub/f", ["f"])):
        out = io.BytesIO()
        files.tar_out(os.fspath(place) + source, out)
        assert sorted(unpacked(out.getvalue())) == names


def test_out_and_in_again(files, place, tmp_path):
    (place / "large").write_bytes(os.urandom(9 * CHUNK + 1))
    (place / "exact").write_bytes(os.urandom(4 * CHUNK))
    (place / os.fsdecode(b"\xff" * 200)).write_text("odd")
    (place / "absolute").symlink_to("/nowhere")
    (place / "tool").write_text("x")
    (place / "tool").chmod(0o6755)
    os.mkfifo(place / "fifo")
    out = io.BytesIO()
    copied = files.tar_out(place, out)
    assert (copied.files, copied.links, copied.skipped) == (4, 1, (("fifo", "a FIFO, a socket or a device"),))
    info = unpacked(out.getvalue())["place/tool"]
    assert (info.mode, info.uid, info.gid, info.uname) == (0o755, 0, 0, "")
    (tmp_path / "back").mkdir()
    out.seek(0)
    files.tar_in(out, tmp_path / "back")
    (place / "fifo").unlink()
    subprocess.run(["diff", "-r", "--no-dereference", place, tmp_path / "back" / "place"], check=True)


def test_out_is_bounded_before_it_is_written(files, place):
    (place / "a").write_bytes(b"x" * 100)
    with open(place / "b", "wb") as file:
        file.truncate(1 << 40)
    out = io.BytesIO()
    with pytest.raises(OSError, match="More than 1048576 bytes"):
        files.tar_out(place, out, max_size="1M")
    assert len(out.getvalue()) < 1 << 16


@pytest.mark.parametrize(("claimed", "told"), [(700, True), (3, False), (0, False)])
def test_a_size_that_was_a_lie_leaves_a_sound_tar(claimed, told):
    facts = struct.pack("=IIIIQQq", 0o100644, 1, 0, 0, 1, claimed, 0)
    answer = struct.Struct("=iI")
    look = answer.pack(0, len(facts)) + facts
    read = answer.pack(3, len(facts)) + facts + answer.pack(5, 5) + b"hello" + answer.pack(0, 0)
    out = io.BytesIO()
    with saying(look, read) as files:
        copied = files.tar_out("/f", out)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        assert archive.extractfile("f").read() == b"hello".ljust(claimed, b"\0")[:claimed]
    assert (copied.skipped_count == 1) is told
