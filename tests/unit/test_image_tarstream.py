"""The tar reader: every format that layers come in, bounded, equal to what wrote them."""

import shutil
import subprocess
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import make_image as make
from support.layers import members

from dockless.errors import BadImage


def header(name="f", size=0, kind=b"0", **more) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    for key, value in more.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def ustar(size=0) -> bytes:
    info = tarfile.TarInfo("f")
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)


def pax(records: dict[str, str], kind=b"x") -> bytes:
    body = b""
    for key, value in records.items():
        rest = f" {key}={value}\n".encode()
        length = len(rest)
        while len(str(length)) + len(rest) != length:
            length = len(str(length)) + len(rest)
        body += str(length).encode() + rest
    return header("pax", len(body), kind) + body + bytes(-len(body) % 512)


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_all_kinds_in_all_formats(format):
    entries = [
        make.directory("d/", 0o1777, uid=70_000 if format != tarfile.USTAR_FORMAT else 7),
        make.file("d/f", b"x" * 1000, 0o4755, mtime=1.0),
        make.symlink("d/s", "../t"),
        make.hardlink("h", "d/f"),
        make.device("c", 1, 3),
        make.device("b", 8, 0, block=True),
        make.fifo("p"),
    ]
    found = members(make.layer_tar(entries, format))
    assert [(member.name.rstrip(b"/"), member.kind) for member, _ in found] == [
        (b"d", "directory"),
        (b"d/f", "file"),
        (b"d/s", "symlink"),
        (b"h", "hardlink"),
        (b"c", "char"),
        (b"b", "block"),
        (b"p", "fifo"),
    ]
    file, data = found[1]
    assert (data, file.mode, file.mtime) == (b"x" * 1000, 0o4755, 1_000_000_000)
    assert found[2][0].link == b"../t"
    assert (found[5][0].major, found[5][0].minor) == (8, 0)
    assert found[0][0].uid == entries[0].uid


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_odd_names(format):
    names = ["a/" * 150 + "b", "new\nline", "x" * 255, "ä" * 60, "not utf-8 \udcff\udcfe"]
    entries = [make.file(name) for name in names] + [make.symlink("l", "t/" * 200)]
    found = members(make.layer_tar(entries, format))
    assert [member.name for member, _ in found[:-1]] == [name.encode("utf-8", "surrogateescape") for name in names]
    assert found[-1][0].link == b"t/" * 200


def test_large_and_negative_numbers():
    entry = make.file("f", uid=2**31 + 5, gid=2**32 - 2, mtime=-5)
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        ((member, _),) = members(make.layer_tar([entry], format))
        assert (member.uid, member.gid, member.mtime) == (2**31 + 5, 2**32 - 2, -5_000_000_000)


def test_nanoseconds_xattrs_and_libarchive():
    raw = pax({"mtime": "12.123456789", "SCHILY.xattr.user.a": "v", "LIBARCHIVE.xattr.user.b%25": "aGk"}) + header()
    ((member, _),) = members(raw)
    assert member.mtime == 12_123_456_789
    assert member.xattrs == {b"user.a": b"v", b"user.b%": b"hi"}


def test_v7_and_the_end():
    v7 = bytearray(header("dir/"))
    v7[156:157] = b"\0"
    v7[257:265] = bytes(8)
    v7[148:156] = b" " * 8
    v7[148:156] = b"%06o\0 " % sum(v7)
    assert members(bytes(v7))[0][0].kind == "directory"
    assert members(b"") == []
    assert members(bytes(1024) + b"anything") == []
    assert len(members(header() + bytes(512))) == 1
    assert len(members(header("a", 3) + b"abc")) == 1  # no padding, no end blocks


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
@pytest.mark.parametrize("version", ["gnu", "0.0", "0.1", "1.0"])
def test_sparse_files_of_gnu_tar(tmp_path, version):
    path = tmp_path / "sparse"
    with open(path, "wb") as stream:
        for at in range(0, 12 << 20, 1 << 20):
            stream.seek(at)
            stream.write(b"data%d" % at)
        stream.truncate(20 << 20)
    how = ["--format=gnu"] if version == "gnu" else ["--format=pax", f"--sparse-version={version}"]
    raw = subprocess.run(["tar", "-C", tmp_path, "-S", *how, "-cf", "-", "sparse"], capture_output=True, check=True).stdout
    ((member, data),) = members(raw)
    assert (member.name, member.size) == (b"sparse", 20 << 20)
    if member.sparse is None:
        pytest.skip("this file system keeps no holes")
    content = bytearray(member.size)
    at = 0
    for offset, length in member.sparse:
        content[offset : offset + length] = data[at : at + length]
        at += length
    assert bytes(content) == path.read_bytes()


REFUSED = {
    "torn header": (header()[:200], "middle of a member"),
    "torn data": (header(size=1000) + b"x" * 500, "middle of a member"),
    "checksum": (header()[:-1] + b"x", "checksum"),
    "noise": (b"\x01" * 512, "checksum|not a number"),
    "lone zero block": (header() + bytes(512) + header(), "lone zero block"),
    "two pax headers": (pax({"path": "a"}) + pax({"path": "b"}) + header(), "two PAX"),
    "two long names": (2 * (header("L", 2, b"L") + b"x\0" + bytes(510)) + header(), "two GNU"),
    "pax path and long name": (pax({"path": "a"}) + header("L", 2, b"L") + b"x\0" + bytes(510) + header(), "names one member twice"),
    "long name and pax path": (header("L", 2, b"L") + b"x\0" + bytes(510) + pax({"path": "a"}) + header(), "names one member twice"),
    "extended header at the end": (pax({"path": "a"}), "after an extended header"),
    "huge extended header": (header("x", 1 << 30, b"x"), "extended header is"),
    "huge long name": (header("x", 1 << 33, b"L"), "extended header is"),
    "directory with data": (header("d", 5, b"5") + bytes(512), "claims to have"),
    "symlink with data": (header("d", 5, b"2") + bytes(512), "claims to have"),
    "unknown type": (header(kind=b"Z"), "type"),
    "multi-volume": (header(kind=b"M"), "type"),
    "global path": (pax({"path": "a"}, b"g") + header(), "global PAX header"),
    "global size": (pax({"size": "5"}, b"g") + header(), "global PAX header"),
    "negative size": (pax({"size": "-5"}) + header(), "not a number"),
    "huge size": (pax({"size": str(1 << 60)}) + header(), "size is"),
    "uid -1": (pax({"uid": "4294967295"}) + header(), "owner"),
    "bad record": (header("x", 5, b"x") + b"99 a=" + bytes(507) + header(), "length is wrong"),
    "record without key": (header("x", 5, b"x") + b"5 ab\n" + bytes(507) + header(), "no key"),
    "nul in a path": (pax({"path": "a\0b"}) + header(), "NUL"),
    "bad time": (pax({"mtime": "abc"}) + header(), "malformed"),
    "sparse map out of order": (pax({"GNU.sparse.map": "5,5,0,5", "GNU.sparse.size": "10"}) + ustar(size=10) + bytes(512), "out of order"),
    "sparse map too large": (
        pax({"GNU.sparse.map": f"{1 << 50},5", "GNU.sparse.size": "10"}) + ustar(size=5) + bytes(512),
        "leaves the file",
    ),
    "sparse map does not cover": (pax({"GNU.sparse.map": "0,5", "GNU.sparse.size": "10"}) + ustar(size=9) + bytes(512), "does not cover"),
    "sparse 8 EiB": (pax({"GNU.sparse.map": "", "GNU.sparse.size": str(1 << 63)}) + ustar(), "size is"),
    "sparse 2.0": (pax({"GNU.sparse.major": "2", "GNU.sparse.minor": "0"}) + ustar(), "version nobody knows"),
    "sparse 1.0, endless map": (
        pax({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1"}) + ustar(size=512) + b"1" * 512,
        "torn or too long",
    ),
    "sparse 1.0, huge count": (
        pax({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1"})
        + ustar(size=512)
        + b"99999999\n".ljust(512, b"0"),
        "too long",
    ),
    "PAX sparse, GNU header": (pax({"GNU.sparse.map": "", "GNU.sparse.size": "9"}) + header(), "not in PAX format"),
    "empty name": (header(""), "empty"),
}


@pytest.mark.parametrize(("raw", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(raw, why):
    with pytest.raises(BadImage, match=why):
        members(raw)


def test_a_harmless_global_header_is_skipped():
    assert members(pax({"comment": "0123abcd"}, b"g") + header("f"))[0][0].name == b"f"


SOUND = make.layer_tar(
    [
        make.directory("d"),
        make.file("d/f", b"x" * 700, pax={"SCHILY.xattr.user.a": "1"}),
        make.symlink("s", "y" * 150),
        make.file("z" * 120),
    ]
)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), min_size=1, max_size=6), st.integers(0, len(SOUND)))
def test_damaged_archives_end_in_one_error(changes, length):
    raw = bytearray(SOUND)
    for at, value in changes:
        raw[at] = value
    for damaged in (bytes(raw), bytes(raw[:length])):
        try:
            members(damaged)
        except BadImage as error:
            assert "not a sound tar archive" in str(error)
