"""The writer and the lister in C, driven directly: what may come late, what may stop them, and what their callers rely on."""

import io
import os
import stat
import struct
import tarfile
import threading
import time

import pytest
from support import make_image as make
from support.layers import members

from dockless.errors import BadImage, ImageError, NoRoom
from dockless.images.layers.layer import Writer, explain, unpack
from dockless.images.layers.layers import Layer
from dockless.native.layers import Fault, LayerWriter, TarLister

ROOT = os.geteuid() == 0
MANY = 10**6


def write(target, *entries, lower=(), step=1 << 20) -> None:
    raw = make.layer_tar(entries)
    target.mkdir()
    writer = Writer(target, "test")
    writer.set_lower(lower)
    for at in range(0, len(raw), step):
        writer.feed(raw[at : at + step])
    writer.finish()
    writer.close()


def layer_writer(target, **more) -> LayerWriter:
    fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return LayerWriter(fd, **{"as_root": ROOT, "size_max": 1 << 30, "entries_max": MANY, "reserve": 0} | more)
    finally:
        os.close(fd)


BELOW = [
    make.directory(".", 0o751, mtime=5),
    make.directory("d", 0o1777, mtime=7),
    make.file("d/f", "below", mtime=9),
    make.file("gone"),
    make.symlink("lib", "d"),
]
ABOVE = {
    "an implied parent": [make.file("d/new", "x")],
    "a link below": [make.file("lib/new", "x")],
    "a hard link": [make.hardlink("h", "d/f")],
    "a whiteout": [make.whiteout("gone")],
    "an opaque root": [make.opaque(""), make.directory("d")],
    "nothing but the root": [make.file("f")],
}


@pytest.mark.parametrize("entries", ABOVE.values(), ids=ABOVE.keys())
def test_the_layers_below_may_come_late(tmp_path, entries):
    """The writer waits where it needs them, and what it then makes is what it would have made."""
    write(tmp_path / "below", *BELOW)
    lower = [Layer(tmp_path / "below")]
    write(tmp_path / "early", *entries, lower=lower)
    (tmp_path / "late").mkdir()
    writer = Writer(tmp_path / "late", "test")
    fed = threading.Event()

    def feed() -> None:
        writer.feed(make.layer_tar(entries))
        fed.set()
        writer.finish()

    thread = threading.Thread(target=feed)
    thread.start()
    assert fed.wait(0.05) == (entries not in (ABOVE["an implied parent"], ABOVE["a link below"], ABOVE["a hard link"]))
    assert thread.is_alive(), "the end needs them in any case: the root is as the layers below have it"
    writer.set_lower(lower)
    thread.join(10)
    writer.close()
    assert look(tmp_path / "late") == look(tmp_path / "early")


def look(root) -> dict[str, tuple[object, ...]]:
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        info = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(info.st_mode) else os.readlink(path) if path.is_symlink() else b""
        keys = {key: os.getxattr(path, key, follow_symlinks=False) for key in os.listxattr(path, follow_symlinks=False)}
        # What was made just now has the time of now.
        mtime = min(info.st_mtime, make.MTIME + 1)
        found[str(path.relative_to(root))] = (info.st_mode, info.st_uid, info.st_gid, info.st_nlink, mtime, content, keys)
    return found


def test_the_root_is_as_below_unless_the_layer_says_otherwise(tmp_path):
    write(tmp_path / "below", *BELOW)
    write(tmp_path / "above", make.file("f"), lower=[Layer(tmp_path / "below")])
    info = (tmp_path / "above").stat()
    assert (stat.S_IMODE(info.st_mode), info.st_mtime) == (0o751, 5)
    write(tmp_path / "own", make.file("f"), make.directory(".", 0o700, mtime=6), make.file("g"), lower=[Layer(tmp_path / "below")])
    info = (tmp_path / "own").stat()
    assert (stat.S_IMODE(info.st_mode), info.st_mtime) == (0o700, 6)


def test_abort_wakes_a_writer_that_waits(tmp_path):
    writer = layer_writer(tmp_path)
    caught: list[Fault] = []

    def feed() -> None:
        try:
            writer.feed(make.layer_tar([make.file("d/f")]))
        except Fault as fault:
            caught.append(fault)

    thread = threading.Thread(target=feed)
    thread.start()
    thread.join(0.02)
    assert thread.is_alive()
    writer.abort()
    thread.join(10)
    assert [(fault.kind, fault.text) for fault in caught] == [("system", "given up")]
    assert isinstance(explain(caught[0], "x"), ImageError)
    writer.close()
    writer.abort()
    writer.set_lower([])


def test_others_run_while_it_writes(tmp_path):
    """The interpreter's lock is not held: a thread that waits below does not stop this one, and a long feed neither."""
    raw = make.layer_tar([make.file(f"f{n}", bytes(1 << 16)) for n in range(400)])
    writer = layer_writer(tmp_path)
    writer.set_lower([])
    thread = threading.Thread(target=writer.feed, args=(raw,))
    thread.start()
    turns = 0
    while thread.is_alive():
        turns += 1
        time.sleep(0)
    assert turns > 3
    assert writer.finish().entries == 400
    writer.close()


@pytest.mark.parametrize("step", [1, 511, 513])
def test_pieces_of_any_size(tmp_path, step):
    entries = [make.directory("d"), make.file("d/f", b"x" * 1500, pax={"SCHILY.xattr.user.a": "1"}), make.symlink("y" * 150, "z" * 150)]
    write(tmp_path / "whole", *entries)
    write(tmp_path / "pieces", *entries, step=step)
    assert look(tmp_path / "whole") == look(tmp_path / "pieces")
    raw = make.layer_tar(entries)
    assert members(raw) == members(raw, step)


def test_a_base_layers_whiteouts_mean_nothing(tmp_path):
    """Also where they lead nowhere, and whether or not the writer knows yet that it writes the base."""
    (tmp_path / "late").mkdir()
    entries = [make.file("f"), make.whiteout("f/x"), make.whiteout("no/such"), make.opaque("")]
    write(tmp_path / "early", *entries)
    writer = Writer(tmp_path / "late", "test")
    threading.Timer(0.01, writer.set_lower, ([],)).start()
    writer.feed(make.layer_tar(entries))
    writer.finish()
    writer.close()
    assert os.listdir(tmp_path / "late") == os.listdir(tmp_path / "early") == ["f"]


def test_more_directories_than_are_kept_open(tmp_path):
    """Times are right however often a directory is left and entered again."""
    entries = [make.directory(f"d{n}", mtime=n + 1) for n in range(200)]
    entries += [make.file(f"d{n}/f{turn}") for turn in range(2) for n in range(200)]
    before = len(os.listdir("/proc/self/fd"))
    write(tmp_path / "x", *entries)
    assert len(os.listdir("/proc/self/fd")) == before
    assert [(tmp_path / f"x/d{n}").stat().st_mtime for n in range(200)] == [n + 1 for n in range(200)]


@pytest.mark.skipif(not ROOT, reason="only root keeps ACLs and owners")
def test_nothing_is_inherited(tmp_path):
    """A default ACL or a setgid bit of a directory does not change what the archive says of the entries in it."""
    acl = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, permissions, who)
        for tag, permissions, who in ((1, 7, 0xFFFFFFFF), (2, 7, 12345), (4, 5, 0xFFFFFFFF), (0x10, 7, 0xFFFFFFFF), (0x20, 5, 0xFFFFFFFF))
    )
    tar = make.layer_tar(
        [make.directory("d", 0o2775, gid=50), make.file("d/f", "", 0o604), make.directory("d/sub", 0o705), make.fifo("d/p")]
    )
    (tmp_path / "x").mkdir()
    try:
        os.setxattr(tmp_path / "x", "system.posix_acl_default", acl)
    except OSError:
        pytest.skip("this file system has no ACLs")
    unpack(io.BytesIO(_with_default_acl(tar, acl)), tmp_path / "x", [], "test")
    assert os.getxattr(tmp_path / "x/d", "system.posix_acl_default") == acl
    for name, mode in (("d/f", 0o604), ("d/sub", 0o705), ("d/p", 0o644)):
        info = (tmp_path / "x" / name).stat()
        assert (stat.S_IMODE(info.st_mode), info.st_gid) == (mode, 0)
        assert os.listxattr(tmp_path / "x" / name) == []
    assert os.listxattr(tmp_path / "x") == []


def _with_default_acl(tar: bytes, value: bytes) -> bytes:
    """The archive with a default ACL on its first member; tarfile cannot write binary records."""
    rest = b" SCHILY.xattr.system.posix_acl_default=" + value + b"\n"
    record = str(len(rest) + 2).encode() + rest
    info = tarfile.TarInfo("pax")
    info.type, info.size = b"x", len(record)
    return info.tobuf(tarfile.USTAR_FORMAT) + record + bytes(-len(record) % 512) + tar


def test_an_xattr_too_large_for_the_file_system_is_dropped(tmp_path):
    target = tmp_path / "x"
    target.mkdir()
    result = unpack(io.BytesIO(make.layer_tar([make.file("f", "x", pax={"SCHILY.xattr.user.big": "v" * 70_000})])), target, [], "test")
    assert (target / "f").read_text() == "x"
    assert len(result.warnings) == 1
    assert "this file system does not take it" in result.warnings[0] and "user.big of f" in result.warnings[0]


def test_room_that_is_missing_is_told_in_bytes():
    error = explain(Fault("room", "no room in the image store: …", 28, 5 << 20), "x")
    assert isinstance(error, NoRoom)
    assert (error.missing, str(error)) == (5 << 20, "x: no room in the image store: 5 MiB more are needed")


# -- the lister ----------------------------------------------------------------------------------------------------------------------


def test_a_lister_stops_where_it_is_told(tmp_path):
    lister = TarLister(3)
    lister.feed(make.layer_tar([make.file(f"f{n}") for n in range(10)]))
    assert (lister.full, lister.ended, len(lister.members)) == (True, True, 3)
    lister.finish()


def test_a_lister_passes_over_data(tmp_path):
    raw = make.layer_tar([make.file("a", bytes(5000)), make.file("b")])
    lister = TarLister(MANY)
    lister.feed(raw[:512])
    assert lister.left == 5000
    lister.skip(4999)
    lister.feed(raw[512 + 4999 :])
    lister.finish()
    assert [(member.name, member.offset, member.stored) for member in lister.members] == [(b"a", 512, 5000), (b"b", 6144, 0)]
    with pytest.raises(Fault, match="more was skipped"):
        lister.skip(1)


def test_names_in_errors_are_harmless(tmp_path):
    """Nothing of a name acts on a terminal, fakes a line or turns the text around."""
    with pytest.raises(ImageError) as caught:
        write(tmp_path / "x", make.file("a\x1b[31m\n\u202e'\\ä/../b"))
    assert "'a\\x1b[31m\\n\\u202e\\'\\\\ä/../b' is not safe" in str(caught.value)


@pytest.mark.parametrize(("hidden", "refused"), [(False, False), (True, True)], ids=["merged", "opaque"])
@pytest.mark.parametrize("deep", ["d", "d/e"])
def test_a_hard_link_reaches_no_deeper_than_an_opaque_directory(tmp_path, hidden, refused, deep):
    """Three layers: what the second hides from the first is not there for the third to link to."""
    write(
        tmp_path / "first",
        *[make.directory("/".join(deep.split("/")[: n + 1])) for n in range(deep.count("/") + 1)],
        make.file(f"{deep}/f", "one"),
    )
    below = [Layer(tmp_path / "first")]
    write(tmp_path / "second", make.directory("d"), *([make.opaque("d")] if hidden else []), make.file("d/other", "two"), lower=below)
    below.append(Layer(tmp_path / "second"))
    if refused:
        with pytest.raises(BadImage, match="h"):
            write(tmp_path / "third", make.hardlink("h", f"{deep}/f"), lower=below)
        return
    write(tmp_path / "third", make.hardlink("h", f"{deep}/f"), lower=below)
    assert (tmp_path / "third" / "h").read_text() == "one"
