"""The tar writer: what it writes is what other readers and our own read, and the same every time."""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.layers import Scene

from dockless.images.archive import tarwriter
from dockless.images.archive.tarwriter import TarMember, TarWriter, segments


def written(*entries: tuple[TarMember, bytes] | TarMember) -> bytes:
    out = io.BytesIO()
    tar = TarWriter(out)
    for item in entries:
        entry, data = item if isinstance(item, tuple) else (item, b"")
        tar.add(entry, data if entry.kind == tarwriter.FILE else None)
    tar.finish()
    assert tar.written == len(out.getvalue())
    return out.getvalue()


def read(raw: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(raw), encoding="utf-8", errors="surrogateescape") as archive:
        return [(info, archive.extractfile(info).read() if info.isreg() else b"") for info in archive]


def test_plain_members_are_plain_ustar():
    raw = written(
        TarMember(b"", tarwriter.DIRECTORY, 0o755),
        TarMember(b"d", tarwriter.DIRECTORY, 0o1777, 5, 6, 1_700_000_000_000_000_000),
        (TarMember(b"d/f", mode=0o4755, size=3), b"abc"),
        TarMember(b"d/s", tarwriter.SYMLINK, 0o777, link=b"../t"),
        TarMember(b"h", tarwriter.HARDLINK, link=b"d/f"),
        TarMember(b"c", tarwriter.CHAR, 0o666, major=1, minor=3),
        TarMember(b"b", tarwriter.BLOCK_DEVICE, 0o660, major=259, minor=70_000),
        TarMember(b"p", tarwriter.FIFO, 0o600),
        TarMember(b"x/" * 60 + b"f"),
    )
    assert b"PaxHeader" not in raw and len(raw) % 512 == 0
    found = [info for info, _ in read(raw)]
    assert [info.name for info in found] == [".", "d", "d/f", "d/s", "h", "c", "b", "p", "x/" * 60 + "f"]
    assert (found[1].mode, found[1].uid, found[1].gid, found[1].mtime, found[1].uname) == (0o1777, 5, 6, 1_700_000_000, "")
    assert read(raw)[2][1] == b"abc" and found[2].mode == 0o4755
    assert (found[3].linkname, found[4].linkname, found[4].islnk()) == ("../t", "d/f", True)
    assert (found[6].devmajor, found[6].devminor, found[7].isfifo()) == (259, 70_000, True)


def test_what_ustar_cannot_hold_stands_in_a_pax_header():
    long, link = b"n" * 255 + b"/" + b"m" * 255, b"t/" * 200
    entry = TarMember(long, tarwriter.SYMLINK, 0o777, 2**31 + 7, 2**32 - 2, -1_500_000_000, link=link, xattrs={b"user.a": b"\0\xff=\n"})
    (info, _), (umlaut, _) = read(written(entry, TarMember("ä".encode())))
    assert (info.name, info.linkname, info.uid, info.gid) == (long.decode(), link.decode(), 2**31 + 7, 2**32 - 2)
    assert info.pax_headers["mtime"] == "-1.5"
    assert info.pax_headers["SCHILY.xattr.user.a"].encode("utf-8", "surrogateescape") == b"\0\xff=\n"
    assert umlaut.name == "ä" and umlaut.pax_headers["path"] == "ä"


def test_names_that_are_no_text():
    short, long = b"\xff\xfe", b"\xff" * 200
    for name in (short, long):
        ((info, _),) = read(written(TarMember(name)))
        assert info.name.encode("utf-8", "surrogateescape") == name
    assert b"hdrcharset=BINARY" not in written(TarMember(short)) and b"hdrcharset=BINARY" in written(TarMember(long))


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 300_000])
def test_data_is_padded(size):
    data = os.urandom(size)
    ((_, found), (after, _)) = read(written((TarMember(b"f", size=size), data), TarMember(b"g")))
    assert found == data and after.name == "g"


def test_a_header_without_its_data_is_a_bug():
    tar = TarWriter(io.BytesIO())
    tar.add(TarMember(b"f", size=10))
    with pytest.raises(AssertionError):
        tar.finish()
    with pytest.raises(AssertionError):
        tar.write(bytes(11))


def test_a_file_that_became_shorter_is_filled_up(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    out = io.BytesIO()
    tar = TarWriter(out)
    entry = TarMember(b"f", size=5)
    tar.add(entry)
    with open(tmp_path / "f", "rb") as stream:
        assert not tar.copy(stream.fileno(), ((0, 5),))
    tar.finish()
    assert read(out.getvalue())[0][1] == b"abc\0\0"


def sparse_file(path: Path) -> bytes:
    with open(path, "wb") as stream:
        stream.write(b"begin")
        stream.seek(20 << 20)
        stream.write(b"middle")
        stream.truncate(40 << 20)
    return path.read_bytes()


def sparse_tar(path: Path) -> bytes:
    out = io.BytesIO()
    tar = TarWriter(out)
    with open(path, "rb") as stream:
        info = os.fstat(stream.fileno())
        entry = TarMember(b"s/" * 70 + b"f", size=info.st_size, sparse=segments(stream.fileno(), info))
        if entry.sparse is None:
            pytest.skip("this file system keeps no holes")
        tar.add(entry)
        assert tar.copy(stream.fileno(), entry.sparse)
    tar.add(TarMember(b"after"))
    tar.finish()
    return out.getvalue()


def test_large_holes_are_not_written(tmp_path):
    content = sparse_file(tmp_path / "sparse")
    raw = sparse_tar(tmp_path / "sparse")
    assert len(raw) < 1 << 20
    (info, data), (after, _) = read(raw)
    assert info.name == "s/" * 70 + "f" and data == content and after.name == "after"
    scene = Scene(tmp_path)
    scene.root.mkdir()
    scene.write(raw, scene.root, [])
    assert (scene.root / os.fsdecode(info.name)).read_bytes() == content
    if shutil.which("tar"):
        (tmp_path / "gnu").mkdir()
        subprocess.run(["tar", "-C", tmp_path / "gnu", "-xf", "-"], input=raw, check=True)
        assert (tmp_path / "gnu" / info.name).read_bytes() == content
    scene.remove()


def test_small_holes_are_zeros(tmp_path):
    with open(tmp_path / "f", "wb") as stream:
        stream.truncate(1 << 20)
    with open(tmp_path / "f", "rb") as stream:
        assert segments(stream.fileno(), os.fstat(stream.fileno())) is None


NAMES = st.lists(
    st.binary(min_size=1, max_size=120).filter(lambda part: not {0, 47} & {*part} and part not in (b".", b"..") and part[:4] != b".wh."),
    min_size=1,
    max_size=3,
).map(b"/".join)
ENTRIES = st.lists(
    st.tuples(
        NAMES,
        st.integers(0, 0o7777),
        st.integers(0, 2**32 - 2),
        st.integers(0, 2**32 - 2),
        st.integers(-(10**18), 8 * 10**18),
        st.binary(max_size=2000),
        st.dictionaries(
            st.sampled_from([b"user.a", b"user.b\xff", b"user.c=d"]).filter(lambda key: b"=" not in key), st.binary(max_size=40)
        ),
    ),
    max_size=5,
    unique_by=lambda item: item[0],
)


@settings(max_examples=60)
@given(ENTRIES)
def test_any_file_comes_back_as_it_was(items):
    entries = [
        (TarMember(name, tarwriter.FILE, mode, uid, gid, mtime, len(data), xattrs=xattrs), data)
        for name, mode, uid, gid, mtime, data, xattrs in items
    ]
    raw = written(*entries)
    assert raw == written(*entries)
    found = read(raw)
    assert len(found) == len(entries)
    for (info, data), (entry, expected) in zip(found, entries, strict=True):
        assert info.name.encode("utf-8", "surrogateescape").rstrip(b"/") == entry.name.rstrip(b"/")
        assert (info.mode, info.uid, info.gid, data) == (entry.mode, entry.uid, entry.gid, expected)
        sign, text = (-1, info.pax_headers["mtime"].lstrip("-")) if entry.mtime < 0 else (1, info.pax_headers.get("mtime", str(info.mtime)))
        whole, _, rest = text.partition(".")
        assert sign * (int(whole) * 10**9 + int(rest[:9].ljust(9, "0") if "mtime" in info.pax_headers else 0)) == entry.mtime


@settings(max_examples=30)
@given(ENTRIES.map(lambda items: [item for item in items if b"/" not in item[0]]))
def test_our_own_reader_agrees(tmp_path_factory, items):
    """Through the layer writer: what is on disk afterwards is what the members said."""
    place = tmp_path_factory.mktemp("own")
    scene = Scene(place)
    scene.root.mkdir()
    entries = [(TarMember(name, mode=mode & 0o777, mtime=mtime, size=len(data)), data) for name, mode, _, _, mtime, data, _ in items]
    scene.write(written(*entries), scene.root, [])
    assert sorted(map(os.fsencode, os.listdir(scene.root))) == sorted(entry.name for entry, _ in entries)
    for entry, data in entries:
        path = os.fsencode(scene.root) + b"/" + entry.name
        info = os.lstat(path)
        assert (info.st_mode & 0o7777, info.st_size) == (entry.mode, len(data))
        if os.geteuid() == 0 and struct.calcsize("P") == 8:
            with open(path, "rb") as stream:
                assert stream.read() == data


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
def test_gnu_tar_lists_the_same():
    names = [b"plain", "ä".encode() * 70, b"\xff\xfe", b"new\nline", b"d/" * 90 + b"f"]
    raw = written(*(TarMember(name, mtime=1_700_000_000_123_456_789) for name in names))
    said = subprocess.run(["tar", "-tf", "-", "--null", "--quoting-style=literal"], input=raw, capture_output=True, check=True)
    assert said.stderr == b"" and said.stdout.split(b"\n") == b"\n".join([*names, b""]).split(b"\n")
