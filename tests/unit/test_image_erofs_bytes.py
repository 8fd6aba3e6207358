"""What the index builder writes, byte by byte, for trees of every shape: the same on every machine, mounted or not."""

from __future__ import annotations

import os
import random
import stat
import struct

import pytest
from support import make_image as make
from support.erofs_reader import BLOCK, Reader
from support.indexed import build

from dockless.images.layers.layers import Layer
from dockless.native.erofs_index import IndexBuilder
from dockless.native.layers import Fault

LENGTHS = (1, 60, 61, 300, 435, 436, 437, 447, 448, 449, 511, 512, 513, 900, 1024, 1500, 4095)
SIZES = (0, 1, 511, 512, 513, 1023, 1024, 1025, 2048, 2049, 4096, 4097, 70_000)
XATTRS = (0, 1, 2, 3, 4, 5, 300, 420, 428, 429, 430, 431, 432, 433, 440, 445, 450, 900)


def read(entries, tmp_path, below=None) -> Reader:
    raw = make.layer_tar(entries)
    layer, _ = build(raw, tmp_path / "layer", below=below)
    return Reader(layer.path.read_bytes(), raw)


def check(entries, tmp_path) -> Reader:
    """Each entry is there as the archive says it, and nothing else is."""
    reader = read(entries, tmp_path)
    found = reader.paths()
    assert sorted(found) == sorted(entry.name.rstrip("/") for entry in entries if entry.name != ".")
    for entry in entries:
        node = reader.path(entry.name.strip("./"))
        if entry.kind == make.tarfile.LNKTYPE:
            assert node is reader.path(entry.link)
            continue
        assert (node.uid, node.gid, node.mtime) == (entry.uid, entry.gid, int(entry.mtime * 10**9))
        assert node.xattrs == {key.removeprefix("SCHILY.xattr."): value.encode() for key, value in entry.pax.items()}
        assert stat.S_IMODE(node.mode) == (0o777 if stat.S_ISLNK(node.mode) else entry.mode)
        if stat.S_ISREG(node.mode):
            assert node.content == entry.data
        elif stat.S_ISLNK(node.mode):
            assert node.content == entry.link.encode()
        elif not stat.S_ISDIR(node.mode):
            major, minor = getattr(entry, "device", (0, 0))
            assert node.device == (minor & 0xFF | major << 8 | (minor & ~0xFF) << 12 if not stat.S_ISFIFO(node.mode) else 0)
    return reader


def padding(size: int) -> dict[str, str]:
    return {"SCHILY.xattr.user.x": "v" * (size - 1)} if size else {}


@pytest.mark.parametrize("first", [0, 1, 2, 3, 5, 8, 13])
def test_links_of_every_length(tmp_path, first):
    """Behind their inodes, or in blocks of their own where these would not end in one block."""
    links = [make.symlink(f"{n:02}-{length}", "t" * length, mtime=n + 0.25) for n, length in enumerate(LENGTHS)]
    check([make.fifo(f"!{n}") for n in range(first)] + links, tmp_path)


@pytest.mark.parametrize("size", XATTRS)
def test_xattrs_of_every_length(tmp_path, size):
    entries = [make.directory("d", pax=padding(size)), make.file("f", b"x", pax=padding(size)), make.file("e", pax=padding(size))]
    check([*entries, make.directory("d/d", 0o700, uid=2**31, gid=2**32 - 2), make.symlink("s", "t")], tmp_path)


@pytest.mark.parametrize("size", SIZES)
def test_files_of_every_size(tmp_path, size):
    data = bytes(n % 251 for n in range(size))
    check([make.file("a", data), make.file("b", b"b"), make.hardlink("c", "a"), make.file("d", data[::-1], mtime=-5)], tmp_path)


@pytest.mark.parametrize("count", [0, 1, 2, 10, 29, 30, 31, 32, 33, 34, 35, 36, 60, 61, 62, 63, 64, 65, 200, 1100])
@pytest.mark.parametrize("length", [3, 200, 255])
def test_directories_of_every_size(tmp_path, count, length):
    """In the order of the names, whatever that of the archive; names before and behind the two dots."""
    names = [f"{'!-.az'[n % 5]}{n:0{length - 1}}" if length > 3 else "!-/az"[n % 5].replace("/", ".") + f"{n:x}" for n in range(count)]
    random.Random(count).shuffle(names)
    check([make.directory("d"), *(make.fifo(f"d/{name}") for name in names)], tmp_path)


@pytest.mark.parametrize("extra", range(0, 26))
def test_names_that_just_fill_a_block(tmp_path, extra):
    """Two dots take 27 bytes of a block, each name 12 and its own."""
    check(
        [make.directory("d"), make.fifo("d/" + "a" * (205 + extra)), make.fifo("d/" + "b" * 230), make.fifo("d/c"), make.fifo("d/e")],
        tmp_path,
    )


@pytest.mark.parametrize("seed", range(12))
def test_trees_of_every_shape(tmp_path, seed):
    choose = random.Random(seed)
    directories, entries = [""], [make.directory(".", 0o751, uid=3, mtime=9.5)]
    for number in range(choose.choice((5, 40, 150))):
        name = choose.choice(directories) + choose.choice((f"{number}", f"{number}-" + "n" * choose.randrange(200)))
        more = {
            "uid": choose.randrange(70_000),
            "gid": choose.randrange(7),
            "mtime": choose.randrange(10**9),
            "pax": padding(choose.choice(XATTRS[:7])),
        }
        plain = {key: value for key, value in more.items() if key != "pax"}
        match choose.randrange(7):
            case 0 | 1:
                directories.append(name + "/")
                entries.append(make.directory(name, choose.choice((0o755, 0o1777, 0o2700)), **more))
            case 2 | 3:
                entries.append(make.file(name, b"%d" % number * choose.choice(SIZES[:9]), choose.choice((0o644, 0o4755, 0)), **more))
            case 4:
                entries.append(make.symlink(name, "t" * choose.choice(LENGTHS), **plain))
            case 5:
                entries.append(make.device(name, choose.randrange(4096), choose.randrange(1 << 20), block=number % 2 == 0))
            case _:
                files = [entry.name for entry in entries if entry.kind not in (make.tarfile.DIRTYPE, make.tarfile.LNKTYPE)]
                entries.append(make.hardlink(name, choose.choice(files)) if files else make.fifo(name))
    check(entries, tmp_path)


def test_devices(tmp_path):
    numbers = [(0, 1), (1, 0), (1, 3), (4095, 1_048_575), (8, 255), (8, 256), (255, 0), (256, 257)]
    check(
        [make.device(f"c{n}", *pair) for n, pair in enumerate(numbers)]
        + [make.device(f"b{n}", *pair, block=True) for n, pair in enumerate([*numbers, (0, 0)])],
        tmp_path,
    )


def test_marks(tmp_path):
    """Whiteouts share one inode, and those that hide nothing are left out; an opaque directory says so beside what else it says."""
    (tmp_path / "below").mkdir(0o711)
    for name in ("gone", "d/gone", "g/gone"):
        (tmp_path / "below" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "below" / name).touch()
    os.utime(tmp_path / "below", (5, 7))
    os.setxattr(tmp_path / "below", "user.x", b"of the root")
    entries = [make.directory("d", pax=padding(9)), make.opaque("d"), make.directory("e"), make.opaque("e"), make.directory("f")]
    entries += [
        make.whiteout("gone"),
        make.whiteout("d/gone"),
        make.whiteout("g/gone"),
        make.whiteout("never"),
        make.file("back"),
        make.whiteout("back"),
        make.whiteout("e"),
        make.whiteout("f"),
    ]
    reader = read([make.whiteout("f/x"), *entries][1:], tmp_path, [Layer(tmp_path / "below")])
    found = reader.paths()
    assert found["gone"] is found["g/gone"] and not {"d/gone", "never", "f/x"} & found.keys()
    assert (found["gone"].mode, found["gone"].device) == (stat.S_IFCHR | 0o600, 0)
    assert found["gone"].links == 2
    assert stat.S_ISREG(found["back"].mode)
    opaque = {"trusted.overlay.opaque": b"y"}
    assert found["d"].xattrs == {"user.x": b"v" * 8} | opaque
    assert found["e"].xattrs == found["f"].xattrs == opaque
    root = reader.path("")
    assert (stat.S_IMODE(root.mode), root.mtime, root.xattrs) == (0o711, 7 * 10**9, {"user.x": b"of the root"})


def test_marks_of_what_came_before(tmp_path):
    """A whiteout or a file in the place of a directory has hidden what lay below it."""
    (tmp_path / "below").mkdir()
    raw = [
        make.directory("."),
        make.whiteout("a"),
        make.directory("a"),
        make.file("b"),
        make.directory("b"),
        make.directory("c"),
        make.directory("c"),
    ]
    found = read(raw, tmp_path, [Layer(tmp_path / "below")]).paths()
    assert {name: node.xattrs for name, node in found.items()} == {
        **{name: {"trusted.overlay.opaque": b"y"} for name in "ab"},
        "c": {},
    }
    base = read(raw[1:], tmp_path).paths()
    assert {name: node.xattrs for name, node in base.items()} == {"a": {}, "b": {}, "c": {}}


def test_the_last_entry_of_a_name_counts(tmp_path):
    entries = [
        make.directory("a", 0o700, pax=padding(4)),
        make.file("a/x"),
        make.file("b", "1"),
        make.hardlink("c", "b"),
        make.symlink("s", "b"),
    ]
    entries += [
        make.directory("a", 0o711, uid=5, mtime=6, pax=padding(4)),
        make.file("b", "2"),
        make.file("s", "3"),
        make.directory("c"),
        make.file("a/x", "4"),
    ]
    found = read(entries, tmp_path).paths()
    assert {name: node.content for name, node in found.items() if stat.S_ISREG(node.mode)} == {"a/x": b"4", "b": b"2", "s": b"3"}
    assert (found["a"].mode, found["a"].uid, found["a"].mtime) == (stat.S_IFDIR | 0o711, 5, 6 * 10**9)
    assert stat.S_ISDIR(found["c"].mode) and found["b"].links == 1
    replaced = read([make.directory("d"), make.file("d/f"), make.file("d", "x")], tmp_path).paths()
    assert sorted(replaced) == ["d"]


def test_parents_that_a_base_does_not_list(tmp_path):
    found = read([make.file("a/b/c"), make.hardlink("x/y", "a/b/c"), make.directory("a/b", 0o700)], tmp_path).paths()
    assert {name: stat.S_IMODE(node.mode) for name, node in found.items()} == {
        "a": 0o755,
        "a/b": 0o700,
        "a/b/c": 0o644,
        "x": 0o755,
        "x/y": 0o644,
    }
    assert found["a/b/c"] is found["x/y"]


def test_an_archive_of_nothing(tmp_path):
    reader = read([], tmp_path)
    assert reader.paths() == {} and stat.S_IMODE(reader.path("").mode) == 0o755
    assert reader.blocks * BLOCK == 2048


# -- extended attributes that mean something -----------------------------------------------------------------------------------------

NOBODY = 0xFFFFFFFF
U, USER, G, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32


def acl(*entries: tuple[int, int, int], version: int = 2) -> bytes:
    return struct.pack("<I", version) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def with_xattr(entry: make.Entry, name: bytes, value: bytes) -> bytes:
    """The entry with an extended attribute that is no text; tarfile cannot write binary records."""
    rest = b" SCHILY.xattr." + name + b"=" + value + b"\n"
    size = len(rest)
    while len(b"%d" % size) + len(rest) != size:
        size = len(b"%d" % size) + len(rest)
    info = make.tarfile.TarInfo("pax")
    info.type, info.size = b"x", size
    return info.tobuf(make.tarfile.USTAR_FORMAT) + (b"%d" % size + rest).ljust(-(-size // BLOCK) * BLOCK, b"\0") + make.layer_tar([entry])


def one(entry: make.Entry, name: bytes, value: bytes, tmp_path) -> tuple[int, dict[str, bytes], tuple[str, ...]]:
    raw = with_xattr(entry, name, value)
    layer, written = build(raw, tmp_path / "layer")
    node = Reader(layer.path.read_bytes(), raw).path("e")
    return stat.S_IMODE(node.mode), node.xattrs, written.warnings


PLAIN_ACL = ((U, 6, NOBODY), (G, 4, NOBODY), (OTHER, 1, NOBODY))
FULL_ACL = ((U, 7, NOBODY), (USER, 5, 12), (USER, 0, 13), (G, 4, NOBODY), (GROUP, 7, 14), (MASK, 6, NOBODY), (OTHER, 0, NOBODY))
INVALID = [
    b"", b"\2\0\0", acl(version=1), acl(version=3), acl(), acl(*PLAIN_ACL)[:-1], acl(*PLAIN_ACL) + b"x", acl(*PLAIN_ACL[1:]),
    acl(PLAIN_ACL[0], PLAIN_ACL[2]), acl(*PLAIN_ACL[:2]), acl(*PLAIN_ACL, PLAIN_ACL[2]), acl(PLAIN_ACL[0], *PLAIN_ACL),
    acl((U, 8, NOBODY), *PLAIN_ACL[1:]), acl((U, 0x106, NOBODY), *PLAIN_ACL[1:]), acl(PLAIN_ACL[0], (USER, 4, 7), *PLAIN_ACL[1:]),
    acl(*PLAIN_ACL[:2], (GROUP, 4, 7), PLAIN_ACL[2]), acl(PLAIN_ACL[0], (USER, 4, NOBODY), PLAIN_ACL[1], FULL_ACL[5], PLAIN_ACL[2]),
    acl(*PLAIN_ACL[:2], (GROUP, 4, NOBODY), FULL_ACL[5], PLAIN_ACL[2]), acl(*PLAIN_ACL[:2], (USER, 4, 7), FULL_ACL[5], PLAIN_ACL[2]),
    acl(PLAIN_ACL[0], (GROUP, 4, 7), *PLAIN_ACL[1:]), acl(PLAIN_ACL[0], FULL_ACL[5], *PLAIN_ACL[1:]), acl(*FULL_ACL[:-1]),
    acl(*PLAIN_ACL[:2], FULL_ACL[5], FULL_ACL[5], PLAIN_ACL[2]), acl(*PLAIN_ACL[:2], (64, 4, NOBODY), PLAIN_ACL[2]),
    acl(*PLAIN_ACL[:2], (0x120, 1, NOBODY)), acl(*PLAIN_ACL[:2], PLAIN_ACL[1], PLAIN_ACL[2]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("entries", "mode", "kept"),
    [
        (PLAIN_ACL, 0o641, False),
        ((*PLAIN_ACL[:2], (MASK, 5, NOBODY), PLAIN_ACL[2]), 0o651, True),
        ((*PLAIN_ACL[:2], (MASK, 0, NOBODY), PLAIN_ACL[2]), 0o601, True),
        (FULL_ACL, 0o760, True),
        ((FULL_ACL[0], FULL_ACL[3], FULL_ACL[4], FULL_ACL[5], FULL_ACL[6]), 0o760, True),
    ],
)
def test_access_acls(tmp_path, entries, mode, kept):
    """What says no more than a mode is one, as setxattr(2) makes it; the mask takes the group's place."""
    found = one(make.file("e", mode=0o4770), b"system.posix_acl_access", acl(*entries), tmp_path)
    assert found == (0o4000 | mode, {"system.posix_acl_access": acl(*entries)} if kept else {}, ())


@pytest.mark.parametrize("entries", [PLAIN_ACL, FULL_ACL])
def test_default_acls(tmp_path, entries):
    found = one(make.directory("e", 0o750), b"system.posix_acl_default", acl(*entries), tmp_path)
    assert found == (0o750, {"system.posix_acl_default": acl(*entries)}, ())
    mode, xattrs, warnings = one(make.file("e"), b"system.posix_acl_default", acl(*entries), tmp_path)
    assert (mode, xattrs) == (0o644, {})
    assert warnings == ("dropped: this file system does not take it (Permission denied): 'system.posix_acl_default of e'",)


@pytest.mark.parametrize("value", INVALID)
@pytest.mark.parametrize("key", ["access", "default"])
def test_acls_that_are_none(tmp_path, value, key):
    mode, xattrs, warnings = one(make.directory("e", 0o750), f"system.posix_acl_{key}".encode(), value, tmp_path)
    assert (mode, xattrs) == (0o750, {})
    assert warnings == (f"dropped: this file system does not take it (Invalid argument): 'system.posix_acl_{key} of e/'",)


def test_links_have_no_acls(tmp_path):
    for key in ("access", "default"):
        mode, xattrs, warnings = one(make.symlink("e", "t"), f"system.posix_acl_{key}".encode(), acl(*PLAIN_ACL), tmp_path)
        assert (mode, xattrs) == (0o777, {})
        assert warnings == (f"dropped: this file system does not take it (Operation not supported): 'system.posix_acl_{key} of e'",)


@pytest.mark.parametrize(
    ("value", "fine"),
    [
        (b"\1\0\0\2" + bytes(16), True), (b"\0\0\0\2" + bytes(16), True), (b"\1\0\0\3" + bytes(20), True),
        (b"\1\0\0\3" + bytes(16) + b"\xff\xff\xff\x7f", True), (b"\1\0\0\3" + bytes(16) + b"\xff" * 4, False),
        (b"\1\0\0\2" + bytes(20), False), (b"\1\0\0\3" + bytes(16), False), (b"\1\0\0\2" + bytes(15), False),
        (b"\1\0\0\1" + bytes(16), False),
        (b"\1\0\0\4" + bytes(20), False), (b"\0\0\2", False), (b"", False), (b"\1\0\0\2", False),
    ],
)  # fmt: skip
def test_capabilities(tmp_path, value, fine):
    mode, xattrs, warnings = one(make.file("e", b"x", 0o755), b"security.capability", value, tmp_path)
    assert (mode, xattrs) == (0o755, {"security.capability": value} if fine else {})
    assert warnings == (() if fine else ("dropped: this file system does not take it (Invalid argument): 'security.capability of e'",))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("user.", "(Invalid argument)"),
        ("user." + "n" * 250, None),
        ("user." + "n" * 251, "(Numerical result out of range)"),
        ("user.x", None),
        ("user.overlay", None),
    ],
)
def test_names_of_xattrs(tmp_path, name, why):
    for entry in (make.file("e"), make.directory("e")):
        _, xattrs, warnings = one(entry, name.encode(), b"v", tmp_path)
        assert xattrs == ({} if why else {name: b"v"})
        assert [why in warning for warning in warnings if why] == [True] * (why is not None) and len(warnings) == (why is not None)
    for entry in (make.symlink("e", "t"), make.fifo("e"), make.device("e", 1, 3)):
        _, xattrs, warnings = one(entry, name.encode(), b"v", tmp_path)
        assert xattrs == {} and "(Operation not permitted)" in warnings[0]


@pytest.mark.parametrize(
    "name", ["security.selinux", "security.capabilit", "security.capability2", "system.posix_acl_acces", "system.x", "other.x"]
)
def test_xattrs_of_the_hosts_policy(tmp_path, name):
    assert one(make.file("e"), name.encode(), b"v", tmp_path) == (0o644, {}, ())


def test_the_largest_xattrs(tmp_path):
    """A value of 65535 bytes, and of all of an inode's together what its count can say."""
    fine = make.file("f", pax={"SCHILY.xattr.user.x": "v" * 65535})
    assert len(read([fine], tmp_path).path("f").xattrs["user.x"]) == 65535
    room = 65534 * 4 - 4  # the length in front of them counts
    sizes = [65532 - 5] * 3
    rest = room - sum(4 + 1 + size for size in sizes) - sum(-(4 + 1 + size) % 4 for size in sizes)
    full = {f"SCHILY.xattr.user.{n}": "v" * size for n, size in enumerate([*sizes, rest - 5])}
    assert len(read([make.file("f", pax=full)], tmp_path).path("f").xattrs) == 4
    with pytest.raises(Fault, match="larger extended attributes"):
        read([make.file("f", pax=full | {"SCHILY.xattr.user.3": "v" * (rest - 4)})], tmp_path)
    with pytest.raises(Fault, match="larger extended attributes"):
        read([make.file("f", pax={"SCHILY.xattr.user.x": "v" * 65536})], tmp_path)


def test_files_further_than_an_index_can_say():
    """Blocks are counted in 32 bits, and the last number means none."""
    for blocks, fine in (((1 << 32) - 3, True), ((1 << 32) - 2, False), ((1 << 32) - 1, False), (1 << 33, False)):
        info = make.tarfile.TarInfo("f")
        info.size = blocks * BLOCK
        builder = IndexBuilder(base=True, size_max=1 << 50, entries_max=9)
        if fine:
            builder.feed(info.tobuf(make.tarfile.GNU_FORMAT))
        else:
            with pytest.raises(Fault, match="lies more than 2 TiB into the archive") as caught:
                builder.feed(info.tobuf(make.tarfile.GNU_FORMAT))
            assert caught.value.kind == "declined"
        builder.close()
