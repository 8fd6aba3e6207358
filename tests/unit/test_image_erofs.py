"""The index over a tar, without mounting it: what is declined, what is refused, what is bounded. Runs as an ordinary user too."""

import os
import struct
import tarfile

import pytest
from support import make_image as make
from support.indexed import build

from dockless.images.layers.layers import Layer
from dockless.native.erofs_index import IndexBuilder
from dockless.native.layers import Fault


def declined(tmp_path, *entries, below=None) -> str:
    with pytest.raises(Fault) as caught:
        build(make.layer_tar(entries), tmp_path / "layer", below=below)
    assert caught.value.kind == "declined"
    return caught.value.text


@pytest.fixture
def below(tmp_path) -> list[Layer]:
    """A written layer with a directory and links in it."""
    (tmp_path / "below" / "usr").mkdir(mode=0o755, parents=True)
    (tmp_path / "below" / "lib").symlink_to("usr")
    (tmp_path / "below" / "usr" / "up").symlink_to("..")
    return [Layer(tmp_path / "below")]


# -- what needs the writer -----------------------------------------------------------------------------------------------------------


def test_members_below_a_link(tmp_path):
    assert "lies below a link" in declined(tmp_path, make.symlink("lib", "usr/lib"), make.file("lib/so"))
    assert "lies below a link" in declined(tmp_path, make.symlink("lib", "usr/lib"), make.hardlink("h", "lib/so"))


def test_sparse_files(tmp_path):
    pax = {"GNU.sparse.map": "1024,3", "GNU.sparse.size": "1027"}
    assert "is a sparse file" in declined(tmp_path, make.file("f", b"end", pax=pax))


def test_what_only_the_layers_below_know(tmp_path, below):
    assert "'lib' is a link in a layer below" in declined(tmp_path, make.file("lib/so"), below=below)
    assert "'usr/up' is a link in a layer below" in declined(tmp_path, make.whiteout("usr/up/a/b"), below=below)
    assert "does not bring" in declined(tmp_path, make.hardlink("h", "f"), below=below)
    assert "hides the whole image" in declined(tmp_path, make.opaque(""), below=below)
    assert "below a link or a whiteout" in declined(tmp_path, make.whiteout("d"), make.file("d/f"), below=below)


def test_an_unknown_root(tmp_path):
    """Nobody says what is below: the root's owner and mode would have to be guessed."""
    raw = make.layer_tar([make.file("f")])
    builder = IndexBuilder(base=False, size_max=1 << 30, entries_max=100)
    builder.feed(raw)
    with open(tmp_path / "index", "wb") as out, pytest.raises(Fault, match="nobody knows the layers below") as caught:
        builder.finish(out.fileno())
    assert caught.value.kind == "declined"
    assert os.stat(tmp_path / "index").st_size == 0
    build(make.layer_tar([make.directory("."), make.file("f")]), tmp_path / "listed", below=[Layer(tmp_path)])


def test_hard_links_in_the_place_of_directories(tmp_path):
    assert "in the place of a directory" in declined(tmp_path, make.directory("d"), make.file("d/f"), make.hardlink("d", "d/f"))


def test_a_directory_listed_twice_with_other_xattrs(tmp_path):
    first, second = (make.directory("d", pax={"SCHILY.xattr.user.x": value}) for value in "12")
    assert "listed twice" in declined(tmp_path, first, second)
    build(make.layer_tar([first, make.file("d/f"), first]), tmp_path / "same")


def test_devices_with_huge_numbers(tmp_path):
    assert "is a device whose number" in declined(tmp_path, make.device("d", 4096, 1))
    assert "is a device whose number" in declined(tmp_path, make.device("d", 1, 1 << 20))


def test_large_xattrs(tmp_path):
    assert "extended attributes" in declined(tmp_path, make.file("f", pax={"SCHILY.xattr.user.x": "y" * 65536}))
    many = {f"SCHILY.xattr.user.x{n}": "y" * 60000 for n in range(5)}
    assert "extended attributes" in declined(tmp_path, make.file("f", pax=many))


def test_an_archive_without_its_last_padding(tmp_path):
    """The kernel reads whole blocks and would find an error in place of the file's end."""
    raw = make.layer_tar([make.file("a", "x"), make.file("b", "y")])[: 3 * 512 + 1]
    with pytest.raises(Fault, match="middle of a block") as caught:
        build(raw, tmp_path / "layer")
    assert caught.value.kind == "declined"
    build(raw.ljust(4 * 512, b"\0"), tmp_path / "layer")


# -- limits --------------------------------------------------------------------------------------------------------------------------


def test_too_many_entries(tmp_path):
    raw = make.layer_tar([make.file(f"f{n}") for n in range(4)])
    build(raw, tmp_path / "layer", entries=4)
    with pytest.raises(Fault, match="it has more than 3 entries") as caught:
        build(raw, tmp_path / "layer", entries=3)
    assert caught.value.kind == "limit"


def test_too_much_content(tmp_path):
    raw = make.layer_tar([make.file(f"f{n}", "x" * 400) for n in range(4)])
    assert build(raw, tmp_path / "layer", size=1600)[1].size == 1600
    with pytest.raises(Fault, match="it unpacks to more than 1599 bytes") as caught:
        build(raw, tmp_path / "layer", size=1599)
    assert caught.value.kind == "limit"


def test_memory_is_bounded():
    """A12: an index that would not fit into memory is declined, and the layer unpacked by the writer, which holds no list."""
    builder = IndexBuilder(base=True, size_max=1 << 40, entries_max=5_000_000)
    path = "d" * 200 + "/" + "e" * 200
    with pytest.raises(Fault, match="memory") as caught:
        for start in range(0, 400_000, 2000):
            builder.feed(b"".join(_plain(f"{start + n:08}", path * 9) for n in range(2000)))
    assert caught.value.kind == "declined"
    builder.close()


def _plain(name: str, link: str) -> bytes:
    """A symbolic link whose target is long: a GNU long link and a header."""
    target = link.encode() + b"\0"
    return (
        _header(b"././@LongLink", b"K", len(target)) + target.ljust(-(-len(target) // 512) * 512, b"\0") + _header(name.encode(), b"2", 0)
    )


def _header(name: bytes, kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo(name.decode())
    info.size, info.type, info.linkname = size, kind, "x" if kind == b"2" else ""
    return info.tobuf(tarfile.GNU_FORMAT)


def test_nothing_is_fed_after_a_fault():
    builder = IndexBuilder(base=True, size_max=10, entries_max=10)
    with pytest.raises(Fault):
        builder.feed(make.layer_tar([make.file("../f")]))
    with pytest.raises(Fault, match="leads out"):
        builder.feed(b"")
    with pytest.raises(Fault, match="leads out"):
        builder.finish(-1)


def test_a_torn_archive_has_no_index(tmp_path):
    raw = make.layer_tar([make.file("f", "x" * 2000)])
    with pytest.raises(Fault, match="middle of a member") as caught:
        build(raw[:1800], tmp_path / "layer")
    assert caught.value.kind == "malformed"
    assert (tmp_path / "layer/index").stat().st_size == 0


def test_a_full_disk(tmp_path):
    builder = IndexBuilder(base=True, size_max=1 << 30, entries_max=100)
    builder.feed(make.layer_tar([make.file("f", "x")]))
    with open("/dev/full", "wb") as out, pytest.raises(Fault) as caught:
        builder.finish(out.fileno())
    assert caught.value.kind == "system"


def test_the_same_tar_gives_the_same_index(tmp_path):
    """Whatever the process, so that a digest can tell whether somebody changed it; and another tar is another file system."""
    entries = [make.file(f"d/{n}", str(n)) for n in range(200)]
    first, second = (build(make.layer_tar(entries), tmp_path / name)[0].path.read_bytes() for name in "ab")
    assert first == second
    assert _uuid(build(make.layer_tar(entries[1:]), tmp_path / "c")[0].path.read_bytes()) != _uuid(first)


def _uuid(index: bytes) -> bytes:
    assert struct.unpack_from("<I", index, 1024) == (0xE0F5E1E2,)
    return index[1024 + 48 : 1024 + 64]


def test_warnings(tmp_path):
    pax = {"SCHILY.xattr.trusted.overlay.redirect": "/", "SCHILY.xattr.user.overlay.opaque": "y"}
    entries = [make.device("n", 0, 0), make.directory("d", pax=pax), make.symlink("s", "d", pax={"SCHILY.xattr.user.x": "1"})]
    _, written = build(make.layer_tar(entries), tmp_path / "layer")
    assert written.warnings == (
        "dropped: an xattr that overlayfs or the host would obey: 'trusted.overlay.redirect of d/' and 1 more",
        "left out: a device 0:0 would act as a whiteout: 'n'",
        "dropped: this file system does not take it (Operation not permitted): 'user.x of s'",
    )
