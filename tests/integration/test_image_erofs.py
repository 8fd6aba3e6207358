"""An index, mounted, shows what the writer would have written: the same names, owners, times, xattrs, links and bytes, and under an overlay
the same whiteouts and opaque directories."""

import asyncio
import mmap
import os
import random
import stat
import struct
import subprocess
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import make_image as make
from support.indexed import build, facts, mounted
from support.layers import Scene, tree
from support.requires import requires, shared

from dockless.errors import DocklessError, ImageError
from dockless.images.layers import erofs
from dockless.images.layers.layers import Layer
from dockless.images.layers.merging import merge
from dockless.native.erofs_index import IndexBuilder
from dockless.native.layers import Fault
from dockless.sched.daemon import let_removed_layers_go

pytestmark = requires("root", "erofs")
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(raw: bytes, place: Path, below: list[Path] | None = None) -> Layer:
    place.mkdir()
    Scene.write(raw, place, below or [])
    return Layer(place)


def agree(raw: bytes, place: Path) -> dict[str, tuple[object, ...]]:
    """Both forms of a lowest layer, fact by fact. Directories that the archive does not list have the time of unpacking; the root's is the
    caller's where it is not listed."""
    layer, _ = build(raw, place / "indexed")
    written(raw, place / "written")
    with mounted(layer) as root:
        found = facts(root)
    expected = facts(place / "written")
    listed = {os.path.normpath(name) for name in _names(raw)}
    for name in found.keys() - listed:
        found[name], expected[name] = ((*facts[name][:3], *facts[name][4:]) for facts in (found, expected))
    assert found == expected
    return found


def _names(raw: bytes) -> list[str]:
    from dockless.native.layers import TarLister

    lister = TarLister(1_000_000)
    lister.feed(raw)
    lister.finish()
    return [os.fsdecode(member.name).lstrip("/") or "." for member in lister.members]


# -- one layer -----------------------------------------------------------------------------------------------------------------------


def acl(*entries: tuple[int, int, int]) -> bytes:
    """A POSIX ACL as an xattr: (tag, permissions, id) each."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NOBODY = 0xFFFFFFFF
SMALL = ((1, 7, NOBODY), (4, 5, NOBODY), (32, 0, NOBODY))
LARGE = ((1, 6, NOBODY), (2, 4, 1000), (4, 4, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY))


def raw_pax(name: str, kind: bytes, records: dict[str, bytes], data: bytes = b"") -> bytes:
    """A member whose PAX records are bytes as they are."""
    body = b""
    for key, value in records.items():
        rest = b" " + key.encode() + b"=" + value + b"\n"
        size = len(rest) + 1
        while len(str(size)) + len(rest) != size:
            size += 1
        body += str(size).encode() + rest

    def header(name: str, kind: bytes, size: int) -> bytes:
        info = tarfile.TarInfo(name)
        info.type, info.size, info.mtime = kind, size, make.MTIME
        return info.tobuf(tarfile.USTAR_FORMAT)

    def padded(data: bytes) -> bytes:
        return data + bytes(-len(data) % 512)

    return header("pax", b"x", len(body)) + padded(body) + header(name, kind, len(data)) + padded(data)


def test_everything_is_kept(tmp_path):
    found = agree(
        make.layer_tar(
            [
                make.directory(".", 0o751, uid=7, gid=8, mtime=5),
                make.directory("d", 0o1777, mtime=1_000_000_000.5),
                make.file("d/f", "hello", 0o4755, uid=1234, gid=5678, mtime=1_000_000_001.25, pax={"SCHILY.xattr.user.note": "yes"}),
                make.file("d/locked", "x", 0o000),
                make.file("d/empty"),
                make.file("big", bytes(range(256)) * 4096, uid=3_000_000_000, gid=4_000_000_000),
                make.symlink("d/s", "/etc/passwd", uid=12, mtime=-5.5),
                make.symlink("long", "/".join(["x" * 100] * 40)),
                make.symlink("block", "y" * 448),
                make.symlink("more", "z" * 449),
                make.hardlink("h", "d/f"),
                make.hardlink("hs", "d/s"),
                make.fifo("p", 0o640),
                make.device("null", 1, 3),
                make.device("nvme", 259, 1_000_000, block=True),
                make.device("whiteout", 0, 0),
                make.file("n" * 255),
                make.file("not\udcff text\n"),
            ]
        ),
        tmp_path,
    )
    assert found["d/f"][:5] == ("0o104755", 1234, 5678, 1_000_000_001_250_000_000, 2)
    assert found["."][:4] == ("0o40751", 7, 8, 5_000_000_000)
    assert "whiteout" not in found


@pytest.mark.parametrize("count", [0, 1, 12, 13, 14, 39, 40, 200, 3000])
def test_directories_of_any_size(tmp_path, count):
    """Blocks of 512 bytes: names that fill them exactly, that spill over, that sort before and after ``.`` and ``..``."""
    names = random.Random(count).sample([f"{first}{n:0{width}}" for first in "!-.~é" for n in range(1000) for width in (3, 9, 27)], count)
    names += ["d" * (count % 200 + 1), "!", "..."]
    agree(make.layer_tar([make.file(f"dir/{name}", name) for name in dict.fromkeys(names)]), tmp_path)


def test_every_name_is_found(tmp_path):
    """The kernel searches, so every name must be where it looks; what is not there must not be found."""
    names = {os.fsdecode(bytes([a, b])) for a in range(1, 256) for b in (1, 45, 46, 48, 200, 255) if a != 47} - {".."}
    layer, _ = build(make.layer_tar([make.file(f"d/{name}", name.encode("utf-8", "surrogateescape")) for name in names]), tmp_path / "i")
    with mounted(layer) as root:
        for name in names:
            assert (root / "d" / name).read_bytes() == os.fsencode(name)
        for a in range(1, 256):
            if a not in (46, 47):
                assert not os.path.lexists(os.fsencode(root / "d") + b"/" + bytes([a]))
        assert set(os.listdir(root / "d")) == names


def test_xattrs(tmp_path):
    pax = {
        "SCHILY.xattr.user.a": "1",
        "SCHILY.xattr.user.empty": "",
        "SCHILY.xattr.user.long": "v" * 900,
        "SCHILY.xattr.security.selinux": "x",
    }
    found = agree(
        make.layer_tar(
            [
                make.directory("d", pax=pax),
                make.file("d/f", "x", pax=pax),
                make.hardlink("d/h", "d/f"),
                make.file("plain", "y", pax={f"SCHILY.xattr.user.{'n' * 250}": "z"}),
                make.file("over", "y", pax={f"SCHILY.xattr.user.{'n' * 251}": "z"}),
                make.symlink("s", "d", pax=pax),
                make.device("p", 1, 3),
            ]
        ),
        tmp_path,
    )
    assert [key for key, _ in found["d/f"][5]] == ["user.a", "user.empty", "user.long"]


def test_capabilities_and_acls(tmp_path):
    capability = struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0)
    of_a_namespace = struct.pack("<6I", 0x03000001, 1 << 10, 0, 0, 0, 1000)
    tried = [(b"0", "security.capability", value) for value in (capability, of_a_namespace, capability[:12])]
    for kind in (b"0", b"5", b"6"):
        for which in ("access", "default"):
            for entries in (SMALL, LARGE, LARGE[:3], LARGE[::-1], ((1, 8, NOBODY), *SMALL[1:]), ()):
                tried.append((kind, f"system.posix_acl_{which}", acl(*entries)))
    parts = [
        raw_pax(f"x{number}", kind, {f"SCHILY.xattr.{key}": value}, b"data" if kind == b"0" else b"")
        for number, (kind, key, value) in enumerate(tried)
    ]
    found = agree(b"".join(parts) + bytes(1024), tmp_path)
    kept = {key for number in range(len(tried)) for key, _ in found[f"x{number}"][5]}
    assert kept == {"security.capability", "system.posix_acl_access", "system.posix_acl_default"}


def test_the_last_entry_of_a_name_wins(tmp_path):
    found = agree(
        make.layer_tar(
            [
                *(make.file("f", "1"), make.hardlink("was-f", "f"), make.file("f", "2")),
                *(make.directory("d"), make.file("d/x"), make.hardlink("was-x", "d/x"), make.symlink("d", "f")),
                *(make.symlink("s", "f"), make.directory("s"), make.file("s/y")),
                *(make.directory("t", 0o700, uid=1), make.file("t/z"), make.directory("t", 0o711, uid=2)),
                *(make.directory("u"), make.file("u/gone"), make.file("u"), make.directory("u"), make.file("u/new")),
            ]
        ),
        tmp_path,
    )
    assert "u/gone" not in found
    assert found["was-x"][4] == 1


def test_a_real_tree(tmp_path):
    """Part of this host."""
    archive = tmp_path / "host.tar"
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("/usr/share/doc", "/etc"):
            if os.path.isdir(name):
                tar.add(name, filter=lambda info: info if info.size < 1 << 16 and info.name.count("/") < 5 else None)
    assert len(agree(archive.read_bytes(), tmp_path)) > 100


def test_a_file_of_more_than_a_terabyte(tmp_path):
    """One extent holds 1 TiB. The archive is a hole with a header in front and a few marks in it."""
    size = (1 << 40) + (3 << 30) + 5
    info = tarfile.TarInfo("huge")
    info.size = size
    header = info.tobuf(tarfile.GNU_FORMAT)
    marks = {0: b"first", (1 << 40) - 3: b"across", size - 4: b"last"}
    builder = IndexBuilder(base=True, size_max=1 << 44, entries_max=10)
    layer = Layer(tmp_path / "index", tmp_path / "tar")
    with open(tmp_path / "tar", "wb") as tar, open(layer.path, "wb") as index:
        tar.write(header)
        builder.feed(header)
        zeros = mmap.mmap(-1, 1 << 30)
        left = size + -size % 512
        while left:
            builder.feed(memoryview(zeros)[:left])
            left -= min(left, 1 << 30)
        builder.finish(index.fileno())
        for offset, mark in marks.items():
            tar.seek(512 + offset)
            tar.write(mark)
        tar.truncate(512 + size + -size % 512)
    with mounted(layer) as root, open(root / "huge", "rb") as file:
        assert os.fstat(file.fileno()).st_size == size
        for offset, mark in marks.items():
            file.seek(offset)
            assert file.read(len(mark)) == mark
        file.seek(size)
        assert file.read() == b""


def corpus() -> list[Path]:
    found = shared()
    return sorted((found / "corpus").rglob("*.tar")) if found is not None else []


@requires("shared")
@pytest.mark.parametrize("archive", corpus() or [Path("(absent)")], ids=lambda path: path.name)
def test_the_corpus(tmp_path, archive):
    """A1-A5: an archive that the writer refuses has no index, and the other way round; what both take is the same."""
    raw = archive.read_bytes()
    try:
        build(raw, tmp_path / "try")
    except Fault as error:
        try:
            written(raw, tmp_path / "refused")
        except DocklessError:
            return
        assert error.kind == "declined"
        return
    agree(raw, tmp_path)


NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
MORE = st.fixed_dictionaries(
    {}, optional={"uid": st.sampled_from([0, 5, 70000]), "gid": st.just(6), "mtime": st.sampled_from([0, 1.5, -2.25, 2**33])}
)
ENTRY = st.one_of(
    st.builds(lambda path, mode, more: make.directory(path, mode, **more), PATHS, st.sampled_from([0o755, 0o1777]), MORE),
    st.builds(lambda path, data, more: make.file(path, data, **more), PATHS, st.sampled_from(["", "1", "x" * 600]), MORE),
    st.builds(make.symlink, PATHS, st.sampled_from(["a", "../b", "/c", "y" * 500])),
    st.builds(make.hardlink, PATHS, PATHS),
    PATHS.map(make.fifo),
    PATHS.map(lambda path: make.device(path, 1, 3)),
    PATHS.map(make.whiteout),
    st.one_of(PATHS, st.just("")).map(make.opaque),
)


@SETTINGS
@given(st.lists(ENTRY, max_size=12))
def test_any_lowest_layer(tmp_path_factory, entries):
    place = tmp_path_factory.mktemp("any")
    raw = make.layer_tar(entries)
    try:
        build(raw, place / "try")
    except Fault as error:
        if error.kind != "declined":
            with pytest.raises(DocklessError):
                written(raw, place / "refused")
        return
    agree(raw, place)


# -- several layers ------------------------------------------------------------------------------------------------------------------

BASE = [
    make.directory(".", 0o711, uid=3, mtime=77),
    *(make.directory(name) for name in ("a", "a/a", "a/b", "b", "b/c", "c")),
    *(make.file(name, name) for name in ("a/c", "a/a/a", "a/b/c", "b/a", "c/b", "f")),
]


def overlay(layers: list[Layer], place: Path) -> dict[str, tuple[object, ...]]:
    """What the kernel shows of these layers."""
    descriptors = [layer.open() for layer in reversed(layers)]
    place.mkdir()
    lower = ":".join(f"/proc/{os.getpid()}/fd/{fd}" for fd in descriptors)
    try:
        subprocess.run(["mount", "-t", "overlay", "-o", f"ro,lowerdir={lower}:{_nothing(place)}", "overlay", place], check=True)
        try:
            return {name: (*facts[:4], *facts[5:]) for name, facts in facts(place).items()}
        finally:
            subprocess.run(["umount", place], check=True)
    finally:
        for fd in descriptors:
            os.close(fd)


def _nothing(place: Path) -> Path:
    path = place.with_name("nothing")
    path.mkdir(exist_ok=True)
    return path


def stack(layers: list[list[make.Entry]], place: Path) -> tuple[list[Layer], list[Layer]] | None:
    """Both forms of every layer; None where one is declined."""
    indexed: list[Layer] = []
    plain: list[Layer] = []
    for number, entries in enumerate(layers):
        raw = make.layer_tar(entries)
        try:
            indexed.append(build(raw, place / f"indexed{number}", below=indexed or None)[0])
        except Fault as error:
            if error.kind != "declined":
                with pytest.raises(DocklessError):
                    written(raw, place / f"written{number}", [layer.path for layer in plain])
            return None
        plain.append(written(raw, place / f"written{number}", [layer.path for layer in plain]))
    return indexed, plain


def merged(layers: list[Layer], place: Path) -> list[Layer]:
    """One index of all of them."""
    assert merge(layers, place / "merged")
    first, *others = [layer.tar for layer in layers if layer.tar is not None]
    return [Layer(place / "merged", first, tuple(others))]


@pytest.mark.parametrize(
    "layer",
    [
        [make.whiteout("f"), make.directory("a"), make.whiteout("a/c"), make.whiteout("nothing")],
        [make.directory("a"), make.opaque("a"), make.file("a/new", "n")],
        [make.directory("a"), make.file("a/new", "n"), make.opaque("a")],
        [make.whiteout("a"), make.directory("a"), make.file("a/new", "n"), make.whiteout("f"), make.file("f", "again")],
        [make.directory("a"), make.file("a/new", "n"), make.whiteout("a"), make.file("f", "again"), make.whiteout("f")],
        [make.file("a", "file"), make.symlink("b", "c"), make.directory("f")],
        [make.file("a", "file"), make.directory("a"), make.file("a/only")],
        [make.directory(".", 0o700, uid=9), make.directory("b", 0o500, pax={"SCHILY.xattr.user.x": "1"}), make.opaque("b")],
        [make.file("g", "no root entry: the base's shows")],
        [make.directory(".wh..wh.plnk"), make.file(".wh..wh.plnk/1.2", "x"), make.file(".wh..wh.aufs")],
    ],
)
def test_whiteouts_and_opaque_marks(tmp_path, layer):
    both = stack([BASE, layer], tmp_path)
    if both is None:
        pytest.fail("declined")
    indexed, plain = both
    assert tree(indexed) == tree(plain)
    assert overlay(indexed, tmp_path / "i") == overlay(plain, tmp_path / "p")
    assert overlay(merged(indexed, tmp_path), tmp_path / "one") == overlay(indexed, tmp_path / "all")
    assert overlay([plain[0], indexed[1]], tmp_path / "m") == overlay(plain, tmp_path / "q"), "forms mix"


def shown(layers: list[Layer], place: Path) -> dict[str, tuple[object, ...]]:
    """``overlay``, without the times of directories that no layer tells of: the writer gives them that of unpacking, the index none."""

    def told(fact: tuple[Any, ...]) -> bool:
        return not str(fact[0]).startswith("0o4") or 0 < fact[3] <= make.MTIME * 10**9

    return {name: fact if told(fact) else (*fact[:3], *fact[4:]) for name, fact in overlay(layers, place).items()}


@pytest.mark.parametrize(
    "above",
    [
        [[make.file("a/b/new", "n")]],
        [[make.file("a/b/new", "n"), make.file("a/a/x"), make.file("b/c/y/z")]],
        [[make.whiteout("a/a/a"), make.whiteout("b/c")]],
        [[make.whiteout("nothing/at/all")]],
        [[make.directory("new"), make.whiteout("new/x"), make.opaque("a"), make.whiteout("a/c"), make.whiteout("b/x")]],
        [[make.opaque("a/b"), make.file("a/b/new")]],
        [[make.file("a/b/new"), make.opaque("a")]],
        [[make.opaque("a"), make.file("a/b/new")]],
        [[make.file("a/b/new"), make.whiteout("a")]],
        [[make.file("f/below a file")]],
        [[make.file("a/b/new"), make.directory("a/b", 0o700, uid=5), make.directory("a", 0o770)]],
        [[make.file("a/b/new"), make.file("a", "a file"), make.directory("a"), make.file("a/a/again")]],
        [[make.file("a/b/one")], [make.file("a/b/two")], [make.whiteout("a/b/one")]],
        [[make.directory("a", 0o1777, gid=8, pax={"SCHILY.xattr.user.x": "1"})], [make.file("a/b/new")]],
        [[make.directory("a"), make.opaque("a"), make.directory("a/b", 0o700)], [make.file("a/b/new"), make.file("a/a/new")]],
        [[make.whiteout("a")], [make.file("a/b/new")]],
        [[make.whiteout("a"), make.file("f", "again")], [make.directory("a", 0o500)], [make.file("a/b/new")]],
        [[make.file("a", "a file")], [make.file("a/b/new")]],
    ],
)
def test_directories_that_a_layer_does_not_list(tmp_path, above):
    """As buildkit and kaniko make layers: owner, mode, times and xattrs are those of the layers below."""
    base = [*BASE, make.directory("a", 0o2750, uid=6, gid=7, mtime=99), make.directory("a/b", 0o711, uid=8, mtime=55)]
    both = stack([base, *above], tmp_path)
    if both is None:
        pytest.fail("declined")
    indexed, plain = both
    assert tree(indexed) == tree(plain)
    assert shown(indexed, tmp_path / "i") == shown(plain, tmp_path / "p")
    assert overlay(merged(indexed, tmp_path), tmp_path / "one") == overlay(indexed, tmp_path / "all")
    assert shown([*plain[:-1], indexed[-1]], tmp_path / "m") == shown(plain, tmp_path / "q"), "forms mix"


@SETTINGS
@given(st.lists(st.lists(ENTRY, max_size=8), min_size=1, max_size=3))
def test_any_layers_that_list_no_parents(tmp_path_factory, layers):
    place = tmp_path_factory.mktemp("any")
    both = stack([BASE, *layers], place)
    if both is not None:
        indexed, plain = both
        assert tree(indexed) == tree(plain)
        assert shown(indexed, place / "i") == shown(plain, place / "p")
        assert overlay(merged(indexed, place), place / "one") == overlay(indexed, place / "all")


@SETTINGS
@given(st.lists(st.lists(ENTRY, max_size=8), min_size=1, max_size=3))
def test_any_layers_on_a_base(tmp_path_factory, layers):
    place = tmp_path_factory.mktemp("any")
    parents = [make.directory(path) for path in ("a", "b", "c")]
    both = stack([BASE, *([*parents, *layer] for layer in layers)], place)
    if both is not None:
        indexed, plain = both
        assert tree(indexed) == tree(plain) == tree(merged(indexed, place))


def test_only_what_was_meant_is_a_mark(tmp_path):
    """A11: the index has the overlay xattrs that we put there, and no other."""
    pax = {f"SCHILY.xattr.{key}": "y" for key in ("trusted.overlay.opaque", "trusted.overlay.redirect", "user.overlay.opaque", "trusted.x")}
    indexed, _ = (
        stack([BASE, [make.directory("a", pax=pax), make.directory("b"), make.opaque("b"), make.file("b/f", pax=pax)]], tmp_path) or ()
    )
    with mounted(indexed[1]) as root:
        assert [path.name for path in root.rglob("*") if os.listxattr(path, follow_symlinks=False)] == ["b"]
        assert os.listxattr(root / "b") == ["trusted.overlay.opaque"]


# -- the mount -----------------------------------------------------------------------------------------------------------------------


def test_a_mount_is_private_and_read_only(tmp_path):
    layer, _ = build(make.layer_tar([make.file("f", "x", 0o4755), make.device("null", 1, 3)]), tmp_path / "layer")
    with mounted(layer) as root:
        assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
        flags = os.statvfs(root).f_flag
        assert flags & os.ST_RDONLY
        assert flags & os.ST_NODEV
        assert not flags & os.ST_NOSUID, "the sandbox decides that"
        assert stat.S_IMODE((root / "f").stat().st_mode) == 0o4755
        with pytest.raises(OSError):
            (root / "null").open()
        with pytest.raises(OSError):
            (root / "new").touch()


def test_mounts_that_fail_say_why(tmp_path):
    layer, _ = build(make.layer_tar([make.file("f", "x")]), tmp_path / "layer")
    assert layer.tar is not None
    with pytest.raises(ImageError, match="mount erofs: No such file") as caught:
        erofs.mount(tmp_path / "absent", layer.tar)
    assert "absent is gone" in (caught.value.hint or "")
    with pytest.raises(ImageError, match="mount erofs: No such file"):
        erofs.mount(layer.path, tmp_path / "absent")
    with pytest.raises(ImageError, match="cannot mount the layer"):
        erofs.mount(layer.tar, layer.path)


def test_the_probe_leaves_nothing(tmp_path):
    before = sorted(tmp_path.iterdir())
    erofs._why_not.cache_clear()
    assert erofs.supported(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_mounts_from_many_threads(tmp_path):
    layer, _ = build(make.layer_tar([make.file(f"f{n}", str(n)) for n in range(50)]), tmp_path / "layer")
    errors: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(20):
                with mounted(layer) as root:
                    assert (root / "f49").read_text() == "49"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []


# -- the mount that is held ----------------------------------------------------------------------------------------------------------


def same(*layers: Layer) -> bool:
    """Whether they are the same mount of the same file system, twice asked."""
    fds = [layer.open() for layer in layers]
    try:
        return len({os.fstat(fd).st_dev for fd in fds}) == 1
    finally:
        for fd in fds:
            os.close(fd)


def simple(place: Path, text: str = "x") -> Layer:
    return build(make.layer_tar([make.file("f", text)]), place)[0]


def test_one_mount_is_held(tmp_path):
    one, two = simple(tmp_path / "1"), simple(tmp_path / "2")
    assert same(one, one)
    assert not same(one, two)
    assert len(erofs._held) == 2
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        fd = one.open()
        assert not os.get_inheritable(fd)
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_layer_made_again_is_mounted_again(tmp_path):
    """With what was opened before as it was."""
    layer = simple(tmp_path / "layer", "old")
    root = layer.open()
    try:
        assert layer.tar is not None
        for path in (layer.path, layer.tar):
            path.unlink()
        with pytest.raises(ImageError, match="No such file") as caught:
            layer.open()
        assert "is gone" in (caught.value.hint or "")
        again = simple(tmp_path / "layer", "new")
        erofs._look_again = 0.0
        fd = again.open()
        with open("f", opener=lambda path, flags: os.open(path, flags, dir_fd=fd)) as file:
            assert file.read() == "new"
        os.close(fd)
        assert len(erofs._held) == 1, "the old one was let go"
        with open("f", opener=lambda path, flags: os.open(path, flags, dir_fd=root)) as file:
            assert file.read() == "old"
    finally:
        os.close(root)


def test_an_idle_daemon_gives_removed_layers_room_back(tmp_path):
    layer, kept = simple(tmp_path / "layer"), simple(tmp_path / "kept")
    for each in (layer, kept):
        os.close(each.open())
    layer.path.unlink()
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(let_removed_layers_go(0.01), 1))
    assert [key[0][0] for key in erofs._held] == [kept.path]


def test_only_so_many_are_held(tmp_path, monkeypatch):
    monkeypatch.setattr(erofs, "HELD_MAX", 2)
    layers = [simple(tmp_path / str(n), str(n)) for n in range(3)]
    for n in (0, 1, 0, 2, 0):
        os.close(layers[n].open())
    assert [key[0][0].parent.name for key in erofs._held] == ["2", "0"], "the longest unused goes first"


def test_descriptors_that_others_closed(tmp_path):
    """As whoever makes a daemon of a process does: what has the number now is neither given out nor closed."""
    layer = simple(tmp_path / "layer")
    os.close(layer.open())
    ((fd, *_),) = erofs._held.values()
    os.close(fd)
    other = os.open("/", os.O_RDONLY)
    try:
        os.dup2(other, fd)
        root = layer.open()
        assert os.listdir(f"/proc/self/fd/{root}/.") == ["f"]
        os.close(root)
        assert os.fstat(fd).st_ino == os.fstat(other).st_ino
    finally:
        os.close(fd)
        os.close(other)


def test_held_from_many_threads(tmp_path, monkeypatch):
    """Though they push each other's out all the time."""
    monkeypatch.setattr(erofs, "HELD_MAX", 2)
    layers = [simple(tmp_path / str(n), str(n)) for n in range(4)]
    errors: list[BaseException] = []

    def read() -> None:
        try:
            for n in range(40):
                root = layers[n % 4].open()
                with open("f", opener=lambda path, flags: os.open(path, flags, dir_fd=root)) as file:  # noqa: B023
                    assert file.read() == str(n % 4)
                os.close(root)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []


@requires("program:dump.erofs")
def test_erofs_utils_agree(tmp_path):
    """Another reader of the format understands it."""
    entries = [make.directory("d"), *(make.file(f"d/{n}", "x" * n) for n in range(60)), make.symlink("s", "d" * 600), make.fifo("p")]
    layer, _ = build(make.layer_tar(entries), tmp_path / "layer")
    result = subprocess.run(["dump.erofs", "-s", layer.path], capture_output=True, text=True)
    if "blksize 512 isn't supported" in result.stderr:
        pytest.skip("this dump.erofs is older than 1.6 and knows no blocks of 512 bytes")
    assert "inode count:                       65" in result.stdout, result.stdout + result.stderr
