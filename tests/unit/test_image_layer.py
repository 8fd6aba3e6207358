"""The layer writer: what overlayfs will show is what the layers say. Runs as root and as an ordinary user."""

import os
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import layers as lab
from support import make_image as make
from support.layers import tree

from dockless.errors import BadImage, ImageError
from dockless.images import Store, UnpackLimits, subid

ROOT = os.geteuid() == 0
SETTINGS = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def load(tmp_path, *layers, **more):
    return lab.load(tmp_path, layers, **more)


# -- one layer -----------------------------------------------------------------------------------------------------------------------


def test_everything_is_kept(tmp_path):
    entries = [
        make.directory(".", 0o751),
        make.directory("d", 0o1777, mtime=1_000_000_000.5),
        make.file("d/f", "hello", 0o4755, uid=1234, gid=5678, mtime=1_000_000_001.25, pax={"SCHILY.xattr.user.note": "yes"}),
        make.file("d/locked", "x", 0o000),
        make.symlink("d/s", "/etc/passwd", uid=12),
        make.hardlink("h", "d/f"),
        make.fifo("p", 0o640),
    ]
    image = load(tmp_path, entries)
    root = image.layers[0].path
    info = (root / "d/f").stat()
    assert (root / "d/f").read_text() == "hello"
    assert stat.S_IMODE(info.st_mode) == 0o4755
    assert info.st_mtime_ns == 1_000_000_001_250_000_000
    assert (root / "d").stat().st_mtime_ns == 1_000_000_000_500_000_000, "making entries in it must not touch its time"
    assert stat.S_IMODE(root.stat().st_mode) == 0o751
    assert (root / "h").stat().st_ino == info.st_ino
    assert os.readlink(root / "d/s") == "/etc/passwd"
    assert stat.S_ISFIFO((root / "p").stat().st_mode)
    assert os.getxattr(root / "d/f", "user.note") == b"yes"
    idmap = subid.ids()
    assert info.st_uid == (1234 if ROOT else idmap.outside_uid(1234) if idmap else os.geteuid())
    assert info.st_gid == (5678 if ROOT else idmap.outside_gid(5678) if idmap else os.getegid())
    assert (root / "d/s").lstat().st_uid == (12 if ROOT else idmap.outside_uid(12) if idmap else os.geteuid())
    assert image.size == len("hello") + 1


def test_the_last_entry_of_a_name_wins(tmp_path):
    image = load(
        tmp_path,
        [
            make.file("f", "1"),
            make.file("f", "2"),
            make.directory("d"),
            make.file("d/x"),
            make.symlink("d", "f"),
            make.symlink("s", "f"),
            make.directory("s"),
            make.file("s/y"),
            make.directory("t", 0o700),
            make.file("t/z"),
            make.directory("t", 0o711),
        ],
    )
    assert tree(image.layers) == {"f": "file:2", "d": "link:f", "s": "dir", "s/y": "file:", "t": "dir", "t/z": "file:"}
    assert stat.S_IMODE((image.layers[0].path / "t").stat().st_mode) == 0o711


def test_missing_parents_and_links_as_parents(tmp_path):
    image = load(
        tmp_path,
        [make.file("a/b/c", "1"), make.symlink("lib", "usr/lib"), make.directory("usr/lib"), make.file("lib/so"), make.file("./x/./y")],
    )
    assert set(tree(image.layers)) == {"a", "a/b", "a/b/c", "lib", "usr", "usr/lib", "usr/lib/so", "x", "x/y"}


def test_a_link_that_leads_to_where_it_lies_is_replaced(tmp_path):
    image = load(tmp_path, [make.symlink("l", "."), make.file("l/f", "1"), make.directory("l/l"), make.file("l/g", "2")])
    assert tree(image.layers) == {"f": "file:1", "l": "dir", "l/g": "file:2"}


def test_a_hard_link_to_a_link_links_the_link(tmp_path):
    root = load(tmp_path, [make.file("t", "1"), make.symlink("s", "t"), make.hardlink("h", "s")]).layers[0].path
    assert os.readlink(root / "h") == "t"
    assert (root / "h").lstat().st_ino == (root / "s").lstat().st_ino
    assert tree(load(tmp_path, [make.file("a", "1"), make.hardlink("a", "a")]).layers) == {"a": "file:1"}


def test_a_hard_link_to_nothing_is_refused(tmp_path):
    with pytest.raises(BadImage, match="does not exist"):
        load(tmp_path, [make.hardlink("h", "nothing")])


def test_an_entry_below_a_file_is_refused(tmp_path):
    with pytest.raises(BadImage, match="is a file, but entries lie below it"):
        load(tmp_path, [make.file("f"), make.file("f/x")])


def test_names_too_long_for_a_file_system(tmp_path):
    assert "x" * 255 in tree(load(tmp_path, [make.file("x" * 255)]).layers)
    with pytest.raises(BadImage, match="longer than this file system allows"):
        load(tmp_path, [make.file("x" * 256)])
    assert list((Store().root / "tmp").iterdir()) == []


def test_names_that_are_not_text(tmp_path):
    name = "new\nline \udcff"
    assert name in tree(load(tmp_path, [make.file(name)]).layers)


def test_a_sparse_file_stays_sparse(tmp_path):
    raw = make.layer_tar([make.file("big", b"end", pax={"GNU.sparse.map": f"{1 << 30},3", "GNU.sparse.size": str((1 << 30) + 3)})])
    root = load(tmp_path, raw).layers[0].path
    info = (root / "big").stat()
    assert (info.st_size, info.st_blocks < 64) == ((1 << 30) + 3, True)
    with open(root / "big", "rb") as stream:
        stream.seek(1 << 30)
        assert stream.read() == b"end"


@pytest.mark.parametrize("limits", [UnpackLimits(size=1000), UnpackLimits(entries=3)])
def test_limits(tmp_path, limits):
    with pytest.raises(ImageError, match="too large"):
        load(tmp_path, [make.file(f"f{n}", b"x" * 400) for n in range(4)], store=Store(limits=limits))
    assert list((Store().root / "tmp").iterdir()) == []
    assert Store().list() == []


@pytest.mark.skipif(ROOT, reason="root can make devices")
def test_a_user_is_told_what_was_left_out(tmp_path):
    image = load(
        tmp_path, [make.device("null", 1, 3), make.device("zero", 1, 5), make.file("f", pax={"SCHILY.xattr.security.capability": "x"})]
    )
    assert set(tree(image.layers)) == {"f"}
    devices, capability = image.warnings
    whose = "this root may not" if subid.ids() else "only root can"
    assert devices == f"left out: {whose} make devices: 'null' and 1 more"
    assert capability.startswith("dropped: ")


# -- several layers ------------------------------------------------------------------------------------------------------------------

BASE = [
    make.directory("d", 0o1777),
    make.file("d/old", "old"),
    make.directory("d/sub"),
    make.file("d/sub/deep", "deep"),
    make.file("f", "base"),
    make.symlink("lib", "usr/lib"),
    make.directory("usr", 0o755),
    make.directory("usr/lib", 0o2755),
]


def test_whiteouts_hide_what_lies_below(tmp_path):
    assert set(tree(load(tmp_path, BASE, [make.whiteout("d/old"), make.whiteout("f")]).layers)) == {
        "d",
        "d/sub",
        "d/sub/deep",
        "lib",
        "usr",
        "usr/lib",
    }


@pytest.mark.parametrize("order", [1, -1], ids=["before", "after"])
def test_a_whiteout_spares_its_own_layer(tmp_path, order):
    layer = [make.whiteout("d"), make.directory("d"), make.file("d/new", "new"), make.whiteout("f"), make.file("f", "again")][::order]
    if order < 0:
        layer = [entry for entry in layer if entry.kind == tarfile.DIRTYPE] + [entry for entry in layer if entry.kind != tarfile.DIRTYPE]
    found = tree(load(tmp_path, BASE, layer).layers)
    assert {key: value for key, value in found.items() if key[0] in "df"} == {"d": "dir", "d/new": "file:new", "f": "file:again"}


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_opaque_directories(tmp_path, last):
    layer = [make.file("d/new", "new"), make.opaque("d")] if last else [make.opaque("d"), make.file("d/new", "new")]
    found = tree(load(tmp_path, BASE, layer).layers)
    assert {key for key in found if key.startswith("d")} == {"d", "d/new"}


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_an_opaque_root_hides_everything(tmp_path, last):
    layer = [make.file("d/new", "new"), make.file("g")]
    found = tree(load(tmp_path, BASE, [*layer, make.opaque("")] if last else [make.opaque(""), *layer]).layers)
    assert set(found) == {"d", "d/new", "g"}


def test_a_directory_that_became_a_file_and_a_directory_again(tmp_path):
    found = tree(load(tmp_path, BASE, [make.file("d", "x")], [make.directory("d"), make.file("d/y")]).layers)
    assert {key: value for key, value in found.items() if key.startswith("d")} == {"d": "dir", "d/y": "file:"}
    found = tree(load(tmp_path, BASE, [make.file("d", "x"), make.directory("d")]).layers)
    assert {key for key in found if key.startswith("d")} == {"d"}


def test_an_implied_parent_keeps_what_the_lower_layer_says(tmp_path):
    image = load(tmp_path, BASE, [make.file("d/new", "new"), make.file("usr/lib/x")])
    assert stat.S_IMODE((image.layers[1].path / "d").stat().st_mode) == 0o1777
    assert (image.layers[1].path / "d").stat().st_mtime_ns == make.MTIME * 10**9
    assert stat.S_IMODE((image.layers[1].path / "usr/lib").stat().st_mode) == 0o2755


def test_a_link_in_a_lower_layer_leads_inside(tmp_path):
    found = tree(load(tmp_path, BASE, [make.file("lib/so", "so")]).layers)
    assert (found["lib"], found["usr/lib/so"]) == ("link:usr/lib", "file:so")


def test_a_hard_link_to_a_file_of_a_lower_layer(tmp_path):
    image = load(tmp_path, BASE, [make.hardlink("h", "d/sub/deep"), make.hardlink("h2", "d/sub/deep")])
    top = image.layers[1].path
    assert (top / "h").read_text() == "deep"
    assert (top / "h").stat().st_ino == (top / "h2").stat().st_ino == (top / "d/sub/deep").stat().st_ino
    assert (top / "h").stat().st_mtime_ns == (image.layers[0].path / "d/sub/deep").stat().st_mtime_ns
    with pytest.raises(BadImage, match="does not exist"):
        load(tmp_path, BASE, [make.whiteout("f")], [make.hardlink("h", "f")])


def test_aufs_books_are_skipped(tmp_path):
    layer = [make.directory(".wh..wh.plnk"), make.file(".wh..wh.plnk/1.2", "x"), make.file(".wh..wh.aufs"), make.file("d/.wh..wh.orph")]
    assert tree(load(tmp_path, BASE, layer).layers) == tree(load(tmp_path, BASE).layers)


# -- read_file -----------------------------------------------------------------------------------------------------------------------


def test_files_are_read_as_the_merged_image_shows_them(tmp_path):
    image = load(
        tmp_path,
        [
            make.directory("etc"),
            make.file("etc/passwd", "one"),
            make.file("gone"),
            make.symlink("abs", "/etc/passwd"),
            make.symlink("up", "../../etc/passwd"),
        ],
        [
            make.file("etc/passwd", "two"),
            make.whiteout("gone"),
            make.symlink("loop", "loop"),
            make.symlink("conf", "etc"),
            make.directory("dir"),
        ],
    )
    for path in ("/etc/passwd", "etc/passwd", "abs", "up", "/conf/passwd", "/../etc/passwd", "/etc/../etc/./passwd"):
        assert image.read_file(path) == b"two", path
    assert image.read_file("/gone") is None
    assert image.read_file("/etc/passwd/x") is None
    assert image.read_file("/nothing/at/all") is None
    with pytest.raises(ImageError, match="too many symbolic links"):
        image.read_file("/loop")
    with pytest.raises(BadImage, match="not a regular file"):
        image.read_file("/dir")
    with pytest.raises(BadImage, match="larger than 2 bytes"):
        image.read_file("/etc/passwd", limit=2)


# -- against a model -----------------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
ENTRY = st.one_of(
    PATHS.map(make.directory),
    st.builds(make.file, PATHS, st.sampled_from(["1", "2"])),
    st.builds(make.symlink, PATHS.filter(lambda path: "/" in path), st.just("nowhere")),
    PATHS.map(make.whiteout),
    st.one_of(PATHS, st.just("")).map(make.opaque),
)
LAYERS = st.lists(st.lists(ENTRY, max_size=6), min_size=1, max_size=4)


def model(layers) -> dict[str, str]:
    """The image specification in the plainest words: whiteouts take from what is below, then the entries are put on top in order."""
    root: dict = {}
    for number, layer in enumerate(layers):
        for entry in layer:
            parent, _, last = entry.name.rpartition("/")
            if last == ".wh..wh..opq":
                if isinstance(node := _find(root, parent), dict):
                    node.clear()
            elif last.startswith(".wh."):
                node = _find(root, parent)
                if isinstance(node, dict):
                    node.pop(last[4:], None)
        for entry in layer:
            parent, _, last = entry.name.rpartition("/")
            if last.startswith(".wh."):
                if number:
                    _make(root, parent)
                continue
            where = _make(root, parent)
            if entry.kind == tarfile.DIRTYPE:
                if not isinstance(where.get(last), dict):
                    where[last] = {}
            else:
                where[last] = f"link:{entry.link}" if entry.kind == tarfile.SYMTYPE else f"file:{entry.data.decode()}"
    return _flat(root, "")


def _find(node, path):
    for name in path.split("/") if path else []:
        node = node.get(name) if isinstance(node, dict) else None
    return node


def _make(node, path):
    for name in path.split("/") if path else []:
        if not isinstance(node.get(name), dict):
            node[name] = {}
        node = node[name]
    return node


def _flat(node, prefix):
    found = {}
    for name, child in node.items():
        found[prefix + name] = "dir" if isinstance(child, dict) else child
        if isinstance(child, dict):
            found |= _flat(child, f"{prefix}{name}/")
    return found


def has_links_as_parents(layers) -> bool:
    links = {entry.name for layer in layers for entry in layer if entry.kind == tarfile.SYMTYPE}
    return any(other.name.startswith(link + "/") for link in links for layer in layers for other in layer)


@SETTINGS
@given(LAYERS)
def test_layers_against_a_model(tmp_path_factory, layers):
    if has_links_as_parents(layers):
        return
    place: Path = tmp_path_factory.mktemp("m")
    try:
        image = lab.load(place, layers, Store(place / "store"))
    except BadImage as error:
        assert "is a file, but entries lie below it" in str(error)
        return
    assert tree(image.layers) == model(layers)
