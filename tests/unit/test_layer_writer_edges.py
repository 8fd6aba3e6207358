"""The layer writer at each of its limits and in its rarer turns, driven directly."""

import errno
import os
import stat
import struct
from dataclasses import dataclass, replace

import pytest
from support import disks
from support import make_image as make
from support.requires import requires

from dockless.native.layers import Data, Fault, LayerWriter, UnpackedLayer

ROOT = os.geteuid() == 0
USER = not ROOT


def lay(target, *entries: make.Entry | Data, lower=(), **more) -> UnpackedLayer:
    """Write a layer. ``lower``: directories, top first."""
    target.mkdir(exist_ok=True)
    raw = make.layer_tar([entry for entry in entries if isinstance(entry, make.Entry)]) if entries[:1] != (b"",) else entries[1]
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (target, *lower)]
    writer = LayerWriter(fds[0], **{"as_root": ROOT, "size_max": 1 << 30, "entries_max": 10**6, "reserve": 0} | more)
    try:
        writer.set_lower(fds[1:])
        writer.feed(raw)
        return writer.finish()
    finally:
        writer.close()
        for fd in fds:
            os.close(fd)


def raw_lay(target, raw: bytes, **more) -> UnpackedLayer:
    return lay(target, b"", raw, **more)


def fault(target, *entries, **more) -> Fault:
    with pytest.raises(Fault) as caught:
        lay(target, *entries, **more)
    if caught.value.kind not in ("system", "room"):
        assert caught.value.errno == 0, "the archive's fault, and no call's"
    return caught.value


def mode(path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def whiteout(path) -> bool:
    info = path.lstat()
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def opaque(path) -> bool:
    return os.getxattr(path, "trusted.overlay.opaque" if ROOT else "user.overlay.opaque") == b"y"


# -- limits --------------------------------------------------------------------------------------------------------------------------


def test_as_many_entries_and_bytes_as_are_allowed(tmp_path):
    entries = [make.file("a", b"x" * 700), make.file("b", b"x" * 300), make.file("c")]
    written = lay(tmp_path / "x", *entries, size_max=1000, entries_max=3)
    assert (written.size, written.entries, written.warnings) == (1000, 3, ())
    few = fault(tmp_path / "few", *entries, entries_max=2)
    assert (few.kind, few.text) == ("limit", "the layer is too large: it has more than 2 entries")
    for size in (999, 699, 0):
        small = fault(tmp_path / f"small{size}", *entries, size_max=size)
        assert (small.kind, small.text) == ("limit", f"the layer is too large: it unpacks to more than {size} bytes")


def test_a_hard_link_counts_what_it_brings_up(tmp_path):
    below, link = [tmp_path / "below"], make.hardlink("h", "f")
    lay(below[0], make.file("f", b"x" * 700_000))
    assert lay(tmp_path / "x", link, make.file("g", b"y" * 5), lower=below, size_max=700_005).size == 700_005
    assert (tmp_path / "x/h").read_bytes() == b"x" * 700_000
    for size in (699_999, 1):
        assert "more than" in fault(tmp_path / f"small{size}", link, lower=below, size_max=size).text
    assert "more than" in fault(tmp_path / "both", make.file("g", b"y" * 6), link, lower=below, size_max=700_005).text


@requires("root")
def test_room_is_left_for_others(tmp_path):
    """A twentieth of a small file system, or what the caller keeps free of a large one."""
    with disks.small(tmp_path / "disk", "size=40m") as disk:
        disks.fill(disk)
        os.truncate(disk / "ballast", 39 << 20)
        room = os.statvfs(disk)
        free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
        assert free < total // 20
        short = fault(disk / "x", make.file("f"), reserve=1 << 30)
        after = os.statvfs(disk)
        missing = total // 20 - after.f_bavail * after.f_frsize
        assert (short.kind, short.errno, short.missing) == ("room", errno.ENOSPC, missing)
        assert short.text == f"no room in the image store: {missing} more bytes are needed, {total // 20} are kept free"
        for number in range(2):
            (disk / str(number)).mkdir()
        room = os.statvfs(disk)
        free = room.f_bavail * room.f_frsize
        short = fault(disk / "0", make.file("f"), reserve=free + 1)
        assert (short.missing, short.text.endswith(f": 1 more bytes are needed, {free + 1} are kept free")) == (1, True)
        assert lay(disk / "1", make.file("f"), reserve=free).size == 0


@requires("root")
def test_room_is_looked_at_again(tmp_path):
    """Every 64 MiB, with what is coming."""
    piece = 1 << 20
    with disks.small(tmp_path / "disk", "size=65024k") as disk:
        fd = os.open(disk, os.O_RDONLY | os.O_DIRECTORY)
        writer = LayerWriter(fd, as_root=True, size_max=1 << 30, entries_max=9, reserve=0)
        os.close(fd)
        writer.set_lower([])
        info = make.tarfile.TarInfo("f")
        info.size = 70 * piece
        writer.feed(info.tobuf())
        for _ in range(63):
            writer.feed(bytes(piece))
        with pytest.raises(Fault) as caught:
            writer.feed(bytes(piece))
        writer.close()
        assert (caught.value.kind, caught.value.missing) == ("room", piece // 2)


@requires("root")
def test_inodes_are_left_for_others(tmp_path):
    with disks.small(tmp_path / "disk", "size=40m,nr_inodes=2000") as disk:
        for number in range(2000 - 105):
            (disk / str(number)).touch()
        while os.statvfs(disk).f_favail > 101:
            (disk / f"more{os.statvfs(disk).f_favail}").touch()
        (disk / "x").mkdir()
        assert os.statvfs(disk).f_favail == 100
        assert lay(disk / "x", make.file("f")).entries == 1
        (disk / "y").mkdir()
        left = os.statvfs(disk).f_favail
        short = fault(disk / "y", make.file("f"))
        assert (short.kind, short.errno, short.missing) == ("room", errno.ENOSPC, 0)
        assert short.text == f"no room in the image store: its file system has {left} inodes left"


@requires("root")
def test_a_disk_that_is_full_in_the_middle(tmp_path):
    with disks.small(tmp_path / "disk", "size=8m") as disk:
        full = fault(disk / "x", make.file("f", bytes(7 << 20)), make.file("g", bytes(2 << 20)))
        assert (full.kind, full.errno) == ("system", errno.ENOSPC)
        assert full.text == "no room in the image store for 'g': No space left on device"


def test_the_layers_below_are_given_once(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    writer = LayerWriter(fd, as_root=ROOT, size_max=1, entries_max=1, reserve=0)
    writer.set_lower([fd])
    with pytest.raises(OSError, match="cannot take the layers below") as caught:
        writer.set_lower([fd])
    assert caught.value.errno == errno.EALREADY
    writer.abort()
    for then in (lambda: writer.feed(b""), writer.finish):
        with pytest.raises(Fault, match="given up") as given_up:
            then()
        assert (given_up.value.kind, given_up.value.errno) == ("system", errno.ECANCELED)
    writer.close()
    os.close(fd)
    with pytest.raises(OSError, match="cannot start to write a layer"):
        LayerWriter(fd, as_root=ROOT, size_max=1, entries_max=1, reserve=0)


def test_descriptors_that_are_none(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    writer = LayerWriter(fd, as_root=ROOT, size_max=1, entries_max=1, reserve=0)
    with pytest.raises(OSError, match="cannot take the layers below") as caught:
        writer.set_lower([fd, 10**6])
    assert caught.value.errno == errno.EBADF
    before = len(os.listdir("/proc/self/fd"))
    writer.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2, "the target and the root below that could be taken"
    os.close(fd)


# -- what errors show of names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\nb", r"a\nb"),
        ("a\rb", r"a\rb"),
        ("a\tb", r"a\tb"),
        ("a\\b", r"a\\b"),
        ("a'b", r"a\'b"),
        ("\x01\x1f\x20\x7e\x7f", r"\x01\x1f ~\x7f"),
        ("\x1b[0m", r"\x1b[0m"),
        ("x" * 91, "x" * 91),
        ("x" * 300, "x" * 94),
        ("ä", "ä"),
    ],
)
def test_names_in_errors(tmp_path, name, shown):
    """A hundred bytes of one at most; control characters, quotes and backslashes by their codes."""
    long = len(name) > 91
    assert fault(tmp_path / "x", make.file(f"../d/{name}/e")).text == (
        f"the entry '../d/{shown}{'x' if long else '/e'}' is not safe: its name leads out of the image"
    )


@pytest.mark.parametrize("name", ["..", "../f", "a/..", "a/../f", "/..", "./..", "a//..", "a/.."])
def test_names_that_lead_out(tmp_path, name):
    out = fault(tmp_path / "x", make.file(name))
    assert (out.kind, out.text) == ("unsafe", f"the entry '{name}' is not safe: its name leads out of the image")
    assert fault(tmp_path / "y", make.hardlink("h", name)).text.endswith("its name leads out of the image")


def test_names_that_only_look_so(tmp_path):
    names = ["...", "..f", ".f", "f..", "f.", "a/...", "a/.x"]
    lay(tmp_path / "x", *(make.file(f"./{name}//") for name in ()), *(make.file(f".//{name}") for name in names))
    found = sorted(str(path.relative_to(tmp_path / "x")) for path in (tmp_path / "x").rglob("*"))
    assert found == sorted([*names, "a"])


def test_the_longest_names(tmp_path):
    lay(tmp_path / "x", make.file("n" * 255), make.directory("m" * 255), make.file("m" * 255 + "/" + "f" * 255))
    assert sorted(len(name) for name in os.listdir(tmp_path / "x")) == [255, 255]
    for place, entry in (("1", make.file("n" * 256)), ("2", make.directory("n" * 256)), ("3", make.file("n" * 256 + "/f"))):
        wrong = fault(tmp_path / place, entry)
        assert (wrong.kind, "has a component longer than this file system allows" in wrong.text) == ("wrong", True)
    long = "d/" * 2047 + "f"
    assert len(long) == 4095
    too_long = fault(tmp_path / "4", make.file("d/" * 2047 + "ff"))
    assert too_long.text.endswith("its name is longer than 4095 bytes")


# -- the root ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".", "./", "/", "./."])
def test_the_root_is_a_directory(tmp_path, name):
    target = tmp_path / "x"
    lay(target, make.directory(name, 0o2751, mtime=5, pax={"SCHILY.xattr.user.x": "v"}), make.file("f"))
    assert (mode(target), target.stat().st_mtime, os.getxattr(target, "user.x")) == (0o2751, 5, b"v")
    kinds = {"file": make.file(name), "symlink": make.symlink(name, "f"), "fifo": make.fifo(name), "char": make.device(name, 1, 3)}
    for kind, entry in (kinds | {"hardlink": make.hardlink(name, "f")}).items():
        if not (kind == "file" and name.endswith("/")):
            assert fault(tmp_path / kind, make.file("f"), entry).text.endswith(f"is not safe: the root cannot be a {kind}")


@pytest.mark.skipif(USER, reason="only root keeps owners")
def test_the_root_is_as_below(tmp_path):
    """Owner, mode, times and what else belongs to it."""
    lay(tmp_path / "below", make.directory(".", 0o2711, uid=7, gid=8, mtime=5, pax={"SCHILY.xattr.user.x": "v"}))
    lay(tmp_path / "between", make.directory(".", 0o700, mtime=9))
    for place, lower in (("one", ["below"]), ("two", ["below", "between"])):
        lay(tmp_path / place, make.file("f"), lower=[tmp_path / name for name in lower])
        info = (tmp_path / place).stat()
        assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode), info.st_mtime) == (7, 8, 0o2711, 5)
        assert os.getxattr(tmp_path / place, "user.x") == b"v"
    lay(tmp_path / "own", make.directory(".", 0o750), lower=[tmp_path / "below"])
    info = (tmp_path / "own").stat()
    assert (info.st_uid, stat.S_IMODE(info.st_mode), os.listxattr(tmp_path / "own")) == (0, 0o750, [])


def test_a_root_with_nothing_below_is_0755(tmp_path):
    (tmp_path / "x").mkdir(0o700)
    lay(tmp_path / "x", make.file("f"))
    assert mode(tmp_path / "x") == 0o755


# -- modes and owners ----------------------------------------------------------------------------------------------------------------

MODES = (0o0, 0o1, 0o222, 0o644, 0o777, 0o1777, 0o2755, 0o4755, 0o6711, 0o7777)


@pytest.mark.parametrize("umask", [0o0, 0o22, 0o77, 0o777 if ROOT else 0o37])
def test_modes_whatever_the_umask(tmp_path, umask):
    entries = [entry for bits in MODES for entry in (make.file(f"f{bits:o}", "x", bits), make.directory(f"d{bits:o}", bits))]
    entries += [make.fifo(f"p{bits:o}", bits) for bits in MODES]
    (tmp_path / "x").mkdir()
    before = os.umask(umask)
    try:
        lay(tmp_path / "x", *entries, make.directory("d1", 0o750), make.file("implied/f"))
    finally:
        os.umask(before)
    for bits in MODES:
        assert mode(tmp_path / f"x/f{bits:o}") == mode(tmp_path / f"x/p{bits:o}") == bits
        if bits != 0o1:
            assert mode(tmp_path / f"x/d{bits:o}") == (bits if ROOT else bits | 0o700)
    assert (mode(tmp_path / "x/d1"), mode(tmp_path / "x/implied")) == (0o750, 0o755)


def test_an_ordinary_users_writer(tmp_path):
    """It gives nothing away, keeps her directories open to her, and says what only root could have kept."""
    pax = {"SCHILY.xattr.security.capability": "x", "SCHILY.xattr.user.x": "v", "SCHILY.xattr.security.selinux": "s"}
    written = lay(
        tmp_path / "x",
        make.file("f", "x", 0o444, uid=7, gid=8, pax=pax),
        make.directory("d", 0o050, uid=7),
        make.file("d/g"),
        replace(make.fifo("p", 0o400), uid=7),
        make.symlink("s", "f", uid=7),
        make.device("c", 1, 3),
        make.device("b", 8, 0, block=True),
        make.directory("o"),
        make.opaque("o"),
        as_root=False,
        lower=[tmp_path],
    )
    for name in "fdps":
        info = (tmp_path / "x" / name).lstat()
        assert (info.st_uid, info.st_gid) == (os.geteuid(), os.getegid())
    assert (mode(tmp_path / "x/f"), mode(tmp_path / "x/d"), mode(tmp_path / "x/p")) == (0o444, 0o750, 0o400)
    assert os.listxattr(tmp_path / "x/f") == ["user.x"]
    assert os.getxattr(tmp_path / "x/o", "user.overlay.opaque") == b"y"
    assert written.warnings == (
        "dropped: only root can keep capabilities and ACLs: 'f'",
        "left out: only root can make devices: 'c' and 1 more",
    )


@pytest.mark.skipif(USER, reason="only root keeps owners")
def test_owners(tmp_path):
    owners = {"uid": {"uid": 7}, "gid": {"gid": 8}, "both": {"uid": 7, "gid": 8}, "none": {}}
    entries = []
    for name, owner in owners.items():
        entries += [make.file(f"f-{name}", **owner), make.directory(f"d-{name}", **owner), replace(make.fifo(f"p-{name}"), **owner)]
        entries += [make.symlink(f"s-{name}", "f", **owner), replace(make.device(f"c-{name}", 1, 3), **owner)]
        entries += [make.file(f"d-{name}/f"), make.file(f"d-both/{name}", **owner)]
    lay(tmp_path / "x", *entries)
    for name, owner in owners.items():
        for path in (*(f"{kind}-{name}" for kind in "fdpsc"), f"d-both/{name}"):
            info = (tmp_path / "x" / path).lstat()
            assert (info.st_uid, info.st_gid) == (owner.get("uid", 0), owner.get("gid", 0)), path
        assert (tmp_path / f"x/d-{name}/f").stat().st_uid == 0


@pytest.mark.skipif(USER, reason="only root keeps owners")
@pytest.mark.parametrize("root", [True, False], ids=["root", "directory"])
def test_a_setgid_directory_gives_its_group_to_nothing(tmp_path, root):
    top = "" if root else "d/"
    lay(
        tmp_path / "x",
        make.directory("." if root else "d", 0o2755, gid=50),
        make.file(f"{top}f", "", 0o640),
        make.directory(f"{top}sub", 0o750),
        make.file(f"{top}sub/f", "", 0o640),
        make.fifo(f"{top}p", 0o640),
        make.symlink(f"{top}s", "f"),
        make.file(f"{top}implied/f"),
        make.directory("." if root else "d", 0o755, gid=50),
        make.directory(f"{top}later", 0o750),
    )
    for name in ("f", "sub", "sub/f", "p", "s", "later"):
        info = (tmp_path / "x" / (top + name)).lstat()
        assert (info.st_gid, stat.S_IMODE(info.st_mode) & 0o7000) == (0, 0), name
    assert mode(tmp_path / "x" / (top + "sub")) == mode(tmp_path / "x" / (top + "later")) == 0o750


@pytest.mark.skipif(USER, reason="only root makes devices")
def test_devices(tmp_path):
    written = lay(
        tmp_path / "x",
        *(make.device("c", 1, 3, mode=0o620), make.device("b", 259, 70_000, block=True), make.device("b0", 0, 0, block=True)),
        *(make.device("c1", 0, 1), make.device("c2", 1, 0), make.device("c0", 0, 0)),
    )
    found = {name: (tmp_path / "x" / name).stat() for name in os.listdir(tmp_path / "x")}
    assert {name: (os.major(info.st_rdev), os.minor(info.st_rdev), stat.S_ISCHR(info.st_mode)) for name, info in found.items()} == {
        **{"c": (1, 3, True), "b": (259, 70_000, False), "b0": (0, 0, False)},
        **{"c1": (0, 1, True), "c2": (1, 0, True)},
    }
    assert stat.S_IMODE(found["c"].st_mode) == 0o620
    assert written.warnings == ("left out: a device 0:0 would act as a whiteout: 'c0'",)


# -- content -------------------------------------------------------------------------------------------------------------------------


def test_a_sparse_file_in_pieces(tmp_path):
    segments, size = [(10, 5), (20, 700), (5000, 3), (9000, 1)], 10_000
    data = bytes(65 + at % 26 for at in range(sum(length for _, length in segments)))
    text = ",".join(f"{offset},{length}" for offset, length in segments)
    raw = make.layer_tar([make.file("f", data, pax={"GNU.sparse.map": text, "GNU.sparse.size": str(size)}), make.file("g", b"next")])
    expected, at = bytearray(size), 0
    for offset, length in segments:
        expected[offset : offset + length] = data[at : at + length]
        at += length
    for step in (len(raw), 1, 3, 100):
        target = tmp_path / str(step)
        target.mkdir()
        fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
        writer = LayerWriter(fd, as_root=ROOT, size_max=1 << 20, entries_max=9, reserve=0)
        os.close(fd)
        writer.set_lower([])
        for start in range(0, len(raw), step):
            writer.feed(raw[start : start + step])
        assert writer.finish().size == len(data) + 4
        writer.close()
        assert ((target / "f").read_bytes(), (target / "g").read_bytes()) == (bytes(expected), b"next")


def test_times(tmp_path):
    lay(
        tmp_path / "x",
        *(make.file("f", mtime=1.5), make.symlink("s", "f", mtime=2.5), replace(make.fifo("p"), mtime=3.5), make.directory("d", mtime=4.5)),
        *(make.file("d/g"), make.symlink("d/s", "x"), make.fifo("d/p"), make.hardlink("d/h", "f"), make.directory("d/sub", mtime=7)),
        *(make.directory("again", mtime=5), make.file("again/f"), make.directory("again", mtime=6)),
    )
    found = {name: (tmp_path / "x" / name).lstat() for name in ("f", "s", "p", "d", "d/sub", "again")}
    assert {name: info.st_mtime for name, info in found.items()} == {"f": 1.5, "s": 2.5, "p": 3.5, "d": 4.5, "d/sub": 7, "again": 6}


@pytest.mark.parametrize("key", ["user.x", "user.overlay", "user.overlay.", "user.overlay.opaque", "trusted.overlay.opaque", "trusted.x"])
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_xattrs_that_are_kept(tmp_path, key, kind):
    entry = make.file("e", "x", 0o444, pax={f"SCHILY.xattr.{key}": "v"}) if kind == "file" else None
    written = lay(tmp_path / "x", entry or make.directory("e", 0o555, pax={f"SCHILY.xattr.{key}": "v"}))
    obeyed = key.startswith(("trusted.", "user.overlay."))
    assert os.listxattr(tmp_path / "x/e") == ([] if obeyed else [key])
    shown = f"{key} of e" + "/" * (kind == "directory")
    assert written.warnings == ((f"dropped: an xattr that overlayfs or the host would obey: '{shown}'",) if obeyed else ())


def test_xattrs_that_are_not_taken(tmp_path):
    """A link's and a fifo's own, which the kernel refuses; each is told once, with how many more there were."""
    pax = {"SCHILY.xattr.user.x": "v"}
    written = lay(tmp_path / "x", make.symlink("s", "f", pax=pax), replace(make.fifo("p"), pax=pax), replace(make.fifo("q"), pax=pax))
    assert written.warnings == ("dropped: this file system does not take it (Operation not permitted): 'user.x of s' and 2 more",)
    assert sorted(os.listdir(tmp_path / "x")) == ["p", "q", "s"]


def test_what_is_listed_twice_has_the_last_ones_xattrs(tmp_path):
    first, second = (make.directory("d", pax={"SCHILY.xattr.user.x": value}) for value in ("first", "second"))
    lay(tmp_path / "x", first, second)
    assert os.getxattr(tmp_path / "x/d", "user.x") == b"second"


@pytest.mark.skipif(USER, reason="only root keeps ACLs")
def test_a_default_acl_goes_with_its_directory(tmp_path):
    """It is set at the end: on what is still there, and not on what took its place."""
    everybody = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, 7, 2**32 - 1) for tag in (1, 4, 32))
    rest = b" SCHILY.xattr.system.posix_acl_default=" + everybody + b"\n"
    record = b"%d" % (len(rest) + 2) + rest
    info = make.tarfile.TarInfo("pax")
    info.type, info.size = b"x", len(record)
    head = info.tobuf(make.tarfile.USTAR_FORMAT) + record + bytes(-len(record) % 512)
    raw = b"".join(head + make.layer_tar([make.directory(name)])[:512] for name in ("a", "b", "b/c", "ba", "d"))
    raw_lay(tmp_path / "x", raw + make.layer_tar([make.file("b"), make.directory("b"), make.directory("b/c"), make.file("d")]))
    found = {name: os.listxattr(tmp_path / "x" / name) for name in ("a", "b", "b/c", "ba", "d")}
    acl = ["system.posix_acl_default"]
    assert found == {"a": acl, "b": [], "b/c": [], "ba": acl, "d": []}


@pytest.mark.skipif(USER, reason="only root sets capabilities")
def test_a_capability_outlives_the_data_and_the_owner(tmp_path):
    capability = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
    raw = make.layer_tar([make.file("f", b"x" * 100, 0o755, uid=7)])
    rest = b" SCHILY.xattr.security.capability=" + capability + b"\n"
    record = b"%d" % (len(rest) + 2) + rest
    info = make.tarfile.TarInfo("pax")
    info.type, info.size = b"x", len(record)
    head = info.tobuf(make.tarfile.USTAR_FORMAT) + record + bytes(-len(record) % 512)
    raw_lay(tmp_path / "x", head + raw)
    assert os.getxattr(tmp_path / "x/f", "security.capability") == capability
    assert lay(tmp_path / "y", make.hardlink("h", "f"), lower=[tmp_path / "x"]).warnings == ()
    assert os.getxattr(tmp_path / "y/h", "security.capability") == capability


# -- hard links ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "entry"), [("file", make.file), ("symlink", make.symlink), ("fifo", make.fifo), ("device", make.device)])
def test_what_a_hard_link_brings_up(tmp_path, kind, entry):
    """Kind, owner, mode, times and target of what lies below, in both places."""
    if USER and kind == "device":
        pytest.skip("only root makes devices")
    more = {"file": ("data", 0o4640), "symlink": ("to/where",), "fifo": (0o640,), "device": (1, 3)}[kind]
    below = tmp_path / "below"
    lay(below, make.directory("d", 0o1755, mtime=3), replace(entry("d/e", *more), uid=7, gid=8, mtime=4.5))
    lay(tmp_path / "x", make.hardlink("h", "d/e"), lower=[below])
    first, second, source = (path.lstat() for path in (tmp_path / "x/h", tmp_path / "x/d/e", below / "d/e"))
    assert first.st_ino == second.st_ino and first.st_nlink == 2
    for key in ("st_mode", "st_uid", "st_gid", "st_rdev", "st_size", "st_mtime"):
        assert getattr(first, key) == getattr(source, key), key
    assert (first.st_mtime, first.st_uid) == (4.5, 7 if ROOT else os.geteuid())
    if kind == "symlink":
        assert os.readlink(tmp_path / "x/h") == "to/where"
    assert (mode(tmp_path / "x/d"), (tmp_path / "x/d").stat().st_mtime) == (0o1755, 3)


def test_the_links_of_a_hard_link(tmp_path):
    below = [tmp_path / "below"]
    lay(below[0], make.directory("d"), make.file("d/f", "below"), make.symlink("l", "d"), make.file("gone"))
    lay(tmp_path / "1", make.hardlink("h", "l/f"), lower=below)
    assert (tmp_path / "1/h").read_text() == "below"
    lay(tmp_path / "2", make.hardlink("d/f", "d/f"), lower=below)
    assert (tmp_path / "2/d/f").lstat().st_nlink == 1
    lay(tmp_path / "3", make.file("h", "old"), make.hardlink("h", "d/f"), lower=below)
    assert (tmp_path / "3/h").read_text() == "below"
    lay(tmp_path / "4", make.directory("h"), make.file("h/x"), make.hardlink("h", "d/f"), lower=below)
    assert (tmp_path / "4/h").read_text() == "below"
    for hidden in (make.whiteout("gone"), make.opaque("")):
        wrong = fault(tmp_path / hidden.name, hidden, make.hardlink("h", "gone"), lower=below)
        assert (wrong.kind, wrong.text) == ("wrong", "h is a hard link to 'gone', which does not exist".replace("h ", "'h' ", 1))
    wrong = fault(tmp_path / "5", make.opaque("d"), make.hardlink("h", "d/f"), lower=below)
    assert wrong.text == "'h' is a hard link to 'd/f', which does not exist"


@pytest.mark.parametrize(
    ("link", "why"),
    [
        (make.hardlink("h", "d"), "it is a hard link to the directory 'd'"),
        (make.hardlink("h", "below"), "it is a hard link to the directory 'below'"),
        (make.hardlink("h", "."), "it is a hard link to '.'"),
        (make.hardlink("h", "/"), "it is a hard link to '/'"),
        (make.hardlink("h", ""), "it is a hard link to ''"),
        (make.hardlink("h", ".wh.f"), "it is a hard link to '.wh.f'"),
        (make.hardlink("h", "d/.wh.f"), "it is a hard link to 'd/.wh.f'"),
        (make.hardlink("h", ".wh.d/f"), "it is a hard link to '.wh.d/f'"),
    ],
)
def test_what_is_linked_to_by_nobody(tmp_path, link, why):
    lay(tmp_path / "below", make.directory("below"))
    unsafe = fault(tmp_path / "x", make.directory("d"), make.file("d/f"), link, lower=[tmp_path / "below"])
    assert (unsafe.kind, unsafe.text) == ("unsafe", f"the entry 'h' is not safe: {why}")


def test_a_hard_link_that_would_remove_its_own_target(tmp_path):
    wrong = fault(tmp_path / "x", make.directory("d"), make.file("d/f"), make.hardlink("d", "d/f"))
    assert (wrong.kind, wrong.text) == ("wrong", "'d' is a hard link to 'd/f', which goes with the directory that it would replace")
    lay(tmp_path / "y", make.directory("d"), make.file("d/f", "1"), make.file("df", "2"), make.hardlink("d", "df"))
    assert (tmp_path / "y/d").read_text() == "2"


@pytest.mark.parametrize("length", [1, 4095])
def test_targets_of_links(tmp_path, length):
    lay(tmp_path / "x", make.symlink("s", "t" * length))
    assert os.readlink(tmp_path / "x/s") == "t" * length
    for target in ("", "t" * 4096):
        assert fault(tmp_path / f"y{len(target)}", make.symlink("s", target)).text.endswith("its link target is empty or too long")
    lay(tmp_path / "z", make.hardlink("h", "s"), lower=[tmp_path / "x"])
    assert os.readlink(tmp_path / "z/h") == "t" * length


# -- the way to a parent -------------------------------------------------------------------------------------------------------------


def chain(count: int) -> list[make.Entry]:
    """Links that lead one to the next, and at last to a directory."""
    return [make.directory("l0"), *(make.symlink(f"l{n}", f"l{n - 1}") for n in range(1, count + 1))]


def test_as_many_links_as_linux_follows(tmp_path):
    lay(tmp_path / "x", *chain(40), make.file("l40/f"))
    assert os.listdir(tmp_path / "x/l0") == ["f"]
    assert "too many symbolic links lead to it" in fault(tmp_path / "y", *chain(41), make.file("l41/f")).text
    lay(tmp_path / "below", *chain(41))
    lay(tmp_path / "z", make.file("l40/f"), lower=[tmp_path / "below"])
    assert os.listdir(tmp_path / "z/l0") == ["f"]
    assert "too many symbolic links lead to it" in fault(tmp_path / "w", make.file("l41/f"), lower=[tmp_path / "below"]).text


@pytest.mark.parametrize(
    ("target", "leads"),
    [
        *[
            ("d", "d"),
            ("/d", "d"),
            ("./d", "d"),
            ("d/.", "d"),
            ("d/inner", "d/inner"),
            ("d/inner/..", "d"),
            ("d//inner", "d/inner"),
            ("/", ""),
            (".", ""),
        ],
        *[
            ("..", ""),
            ("../..", ""),
            ("/..", ""),
            ("../d", "d"),
            ("d/../d/inner", "d/inner"),
            ("d/inner/../..", ""),
            ("new", "new"),
            ("d/new", "d/new"),
        ],
    ],
)
@pytest.mark.parametrize("lower", [False, True], ids=["one layer", "two layers"])
def test_where_links_lead(tmp_path, target, leads, lower):
    there = [make.directory("d"), make.directory("d/inner"), make.symlink("l", target), make.symlink("d/l", f"../{target.lstrip('/')}")]
    files = [make.file("l/f1"), make.file("d/l/f2"), make.file("l/deep/f3")]
    if lower:
        lay(tmp_path / "below", *there)
        lay(tmp_path / "x", *files, lower=[tmp_path / "below"])
    else:
        lay(tmp_path / "x", *there, *files)
    place = tmp_path / "x" / leads
    assert (place / "f1").is_file() and (place / "f2").is_file() and (place / "deep/f3").is_file()
    assert sorted(path.name for path in (tmp_path / "x").rglob("f*")) == ["f1", "f2", "f3"]


def test_a_file_in_the_way(tmp_path):
    lay(tmp_path / "below", make.file("f"), make.symlink("l", "f"), make.directory("d"))
    for place, entries in {"own": [make.file("g"), make.file("g/x")], "fifo": [make.fifo("g"), make.file("g/x")]}.items():
        wrong = fault(tmp_path / place, *entries)
        assert (wrong.kind, wrong.text) == ("wrong", "'g' is a file, but entries lie below it")
    lay(tmp_path / "x", make.file("f/x"), lower=[tmp_path / "below"])
    assert (tmp_path / "x/f/x").is_file() and opaque(tmp_path / "x/f"), "a file of the layers below is replaced"
    for name in (".wh.d/x", "a/.wh.d/x"):
        assert fault(tmp_path / name.replace("/", "-"), make.file(name)).text.endswith("it lies below a whiteout")
    for place, target in (("1", ".wh.d"), ("2", "a/.wh.d")):
        assert fault(tmp_path / place, make.symlink("l", target), make.file("l/x")).text.endswith("it lies below a whiteout")
    for name in (".wh..wh.plnk/x", "a/.wh..wh.plnk/x", ".wh..wh.plnk/.wh.x/y"):
        lay(tmp_path / ("aufs" + name.replace("/", "-")), make.file(name))


def test_implied_parents_are_as_below(tmp_path):
    pax = {"SCHILY.xattr.user.x": "v"}
    lay(
        tmp_path / "below",
        make.directory("d", 0o2750, uid=7, gid=8, mtime=3, pax=pax),
        make.directory("d/e", 0o1711, uid=9, mtime=4),
        make.directory("gone", 0o700),
    )
    lay(tmp_path / "x", make.file("d/e/f"), make.whiteout("gone"), make.file("gone/new/f"), lower=[tmp_path / "below"])
    for name, owner, bits, mtime in (("d", (7, 8), 0o2750, 3), ("d/e", (9, 0), 0o1711, 4)):
        info = (tmp_path / "x" / name).stat()
        assert (stat.S_IMODE(info.st_mode), info.st_mtime) == (bits, mtime)
        assert (info.st_uid, info.st_gid) == (owner if ROOT else (os.geteuid(), os.getegid()))
    assert os.getxattr(tmp_path / "x/d", "user.x") == b"v"
    assert (mode(tmp_path / "x/gone"), mode(tmp_path / "x/gone/new")) == (0o755, 0o755), "what is hidden lends nothing"
    assert opaque(tmp_path / "x/gone")


# -- whiteouts -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Below:
    """Three layers, bottom first; what is seen of them is in ``SEEN``."""

    first = (make.directory("d"), make.file("d/one"), make.directory("d/sub"), make.file("d/sub/one"), make.file("f"), make.directory("o"))
    second = (make.file("d/two"), make.whiteout("f"), make.opaque("o"), make.file("o/two"), make.file("middle"), make.file("d/sub/two"))
    third = (make.whiteout("d/one"), make.whiteout("middle"), make.file("d/sub"))


@pytest.fixture
def below(tmp_path):
    """The three, top first."""
    found: list = []
    for name, entries in (("first", Below.first), ("second", Below.second), ("third", Below.third)):
        lay(tmp_path / name, *entries, make.file("o/only-first") if name == "first" else make.file(f"only-{name}"), lower=found)
        found = [tmp_path / name, *found]
    return found


def whiteouts(root) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if whiteout(path))


def test_only_what_is_there_is_hidden(tmp_path, below):
    names = [
        "d/one",
        "d/two",
        "d/nothing",
        "d/sub",
        "f",
        "middle",
        "o/two",
        "o/only-first",
        "only-second",
        "only-third",
        "x/y",
    ]
    lay(tmp_path / "x", *(make.whiteout(name) for name in names), lower=below)
    assert whiteouts(tmp_path / "x") == ["d/sub", "d/two", "o/two", "only-second", "only-third"]


def test_an_opaque_root_hides_each_name(tmp_path, below):
    lay(tmp_path / "x", make.opaque(""), make.file("mine"), make.directory("d"), make.file("only-third"), make.whiteout("o"), lower=below)
    assert whiteouts(tmp_path / "x") == ["o", "only-second"]
    assert opaque(tmp_path / "x/d") and (tmp_path / "x/only-third").is_file()


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "not listed"])
@pytest.mark.parametrize("what", ["a whiteout", "an opaque root", "neither"])
def test_what_is_settled_at_the_end(tmp_path, below, listed, what):
    """Each by itself: whiteouts, an opaque root, and the root's own owner and mode where the layer does not say them."""
    below[0].chmod(0o711)
    hiding = {"a whiteout": [make.whiteout("only-second")], "an opaque root": [make.opaque("")], "neither": []}[what]
    lay(tmp_path / "x", *([make.directory(".", 0o750)] if listed else []), *hiding, lower=below)
    hidden = {"a whiteout": ["only-second"], "an opaque root": ["d", "o", "only-second", "only-third"], "neither": []}[what]
    assert (mode(tmp_path / "x"), whiteouts(tmp_path / "x")) == (0o750 if listed else 0o711, hidden)


def test_what_is_hidden_twice_is_hidden_once(tmp_path, below):
    lay(tmp_path / "x", make.opaque("d"), make.whiteout("d/two"), make.file("d/sub/f"), make.whiteout("d/sub/x"), lower=below)
    assert whiteouts(tmp_path / "x") == []
    assert opaque(tmp_path / "x/d")
    with pytest.raises(OSError):
        opaque(tmp_path / "x/d/sub")


def test_hidden_and_then_replaced(tmp_path, below):
    lay(tmp_path / "1", make.whiteout("d/two"), make.file("d"), lower=below)
    lay(tmp_path / "2", make.whiteout("d/two"), make.symlink("d", "o"), lower=below)
    lay(tmp_path / "3", make.whiteout("o/two"), make.whiteout("o"), lower=below)
    assert [whiteouts(tmp_path / name) for name in "123"] == [[], [], []]
    assert opaque(tmp_path / "3/o"), "the directory that the whiteout in it brings hides what was there"
    lay(tmp_path / "4", make.file("d"), make.directory("d"), lower=below)
    assert opaque(tmp_path / "4/d"), "the file had hidden it"


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh...", "d/.wh.", "d/.wh..", "d/.wh..."])
def test_whiteouts_of_nothing(tmp_path, below, name):
    for lower in (below, []):
        unsafe = fault(tmp_path / "x", make.file(name), lower=lower)
        assert (unsafe.kind, unsafe.text) == ("unsafe", f"the entry '{name}' is not safe: it is a whiteout of nothing")
    lay(tmp_path / "y", make.file(name + ".x"), make.file("d/.wh..wh.x"), lower=below)


def test_a_whiteout_longer_than_a_name(tmp_path, below):
    """With its prefix it is longer than a file's name may be; what it hides cannot be there."""
    lay(tmp_path / "x", make.file("d/.wh." + "n" * 251), lower=below)
    assert whiteouts(tmp_path / "x") == []
    assert "longer than" in fault(tmp_path / "y", make.file("n" * 256 + "/.wh.x"), lower=below).text


def test_many_whiteouts(tmp_path):
    """More than fit a table that has not grown."""
    names = [f"d{n % 7}/f{n}" for n in range(1500)]
    lay(tmp_path / "below", *(make.file(name) for name in names))
    lay(
        tmp_path / "x", *(make.whiteout(name) for name in names), *(make.whiteout(name) for name in names[:100]), lower=[tmp_path / "below"]
    )
    assert whiteouts(tmp_path / "x") == sorted(names)


def test_what_a_middle_layer_whiteoutss(tmp_path, below):
    """A file, a link, a whiteout and an opaque directory of a layer end the view of those below it."""
    for name in ("d/sub/two", "f", "o/only-first", "middle", "d/one"):
        wrong = fault(tmp_path / name.replace("/", "-"), make.hardlink("h", name), lower=below)
        assert wrong.kind == "wrong", name
    lay(tmp_path / "x", make.hardlink("h1", "d/two"), make.hardlink("h2", "o/two"), make.hardlink("h3", "only-second"), lower=below)
    assert sorted(os.listdir(tmp_path / "x")) == ["d", "h1", "h2", "h3", "o", "only-second"]


def test_up_and_down_the_layers_below(tmp_path):
    """Members in an order that leaves and enters what lies below, with names that begin alike."""
    names = ["a/b/c/f", "a/bb/f", "a/b/f", "aa/f", "a/f", "a/b/c/g", "a/b/cc/f"]
    first, second = names[::2], names[1::2]
    lay(tmp_path / "first", *(make.file(name, name) for name in first))
    lay(tmp_path / "second", *(make.file(name, name) for name in second), lower=[tmp_path / "first"])
    lower = [tmp_path / "second", tmp_path / "first"]
    before = len(os.listdir("/proc/self/fd"))
    lay(tmp_path / "x", *(make.hardlink(f"h{n}", name) for n, name in enumerate(names)), lower=lower)
    assert [(tmp_path / f"x/h{n}").read_text() for n in range(len(names))] == names
    assert len(os.listdir("/proc/self/fd")) == before
