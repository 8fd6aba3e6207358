"""An upper that the kernel's overlayfs made: the list of changes, and the layer, which over the image gives the tree that was seen."""

from __future__ import annotations

import io
import os
import socket
import struct
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import make_image as make
from support.layers import Scene, tree
from support.requires import requires
from support.uppers import lower, upper

from dockless.errors import ImageError
from dockless.images.archive.diff import Upper, changes, write_layer
from dockless.images.files import remove_tree
from dockless.images.layers.layers import Layer

pytestmark = requires("overlay", "program:unshare")

BASE = [
    make.directory("etc"),
    make.file("etc/passwd", "root"),
    make.file("etc/keep", "keep"),
    make.directory("dir"),
    make.file("dir/one", "1"),
    make.directory("dir/sub"),
    make.file("dir/sub/two", "2"),
    make.file("file", "file"),
    make.symlink("link", "file"),
]
TOP = [make.directory("dir"), make.file("dir/three", "3"), make.whiteout("etc/keep")]


def layer(made: Upper, below: list[Layer], **more) -> tuple[bytes, object]:
    out = io.BytesIO()
    written = write_layer(made, below, out, **more)
    return out.getvalue(), written


def names(raw: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(raw), errors="surrogateescape") as archive:
        return archive.getnames()


def listed(made: Upper, below: list[Layer]) -> list[str]:
    return [f"{change.kind} {change.path}" for change in changes(made, below)]


def seen(found: str) -> dict[str, str]:
    return dict(line.split("|", 1) for line in found.splitlines())


def applied(place, raw: bytes, below: list[Layer]) -> dict[str, str]:
    target = place / "applied"
    target.mkdir()
    Scene.write(raw, target, [layer.path for layer in below])
    return tree([*below, Layer(target)])


def test_every_kind_of_change(tmp_path):
    below = lower(tmp_path, BASE, TOP)
    script = """
        printf new > etc/new; printf changed > etc/passwd; rm file; mkdir file; printf in > file/in
        rm -r dir/sub; mkdir dir/sub; printf again > dir/sub/again
        rm link; ln -s elsewhere link; ln etc/new etc/same; mkfifo pipe; printf gone > gone; rm gone
    """
    made, shown = upper(tmp_path, below, script)
    assert listed(made, below) == [
        "C /dir", "C /dir/sub", "A /dir/sub/again", "D /dir/sub/two", "C /etc", "A /etc/new", "C /etc/passwd", "A /etc/same", "C /file",
        "A /file/in", "C /link", "A /pipe",
    ]  # fmt: skip
    raw, written = layer(made, below)
    assert names(raw) == [
        "dir", "dir/sub", "dir/sub/.wh..wh..opq", "dir/sub/again", "etc", "etc/new", "etc/passwd", "etc/same", "file", "file/in", "link",
        "pipe",
    ]  # fmt: skip
    assert written.members == 12 and written.warnings == ()
    assert applied(tmp_path, raw, below) == seen(shown)
    assert layer(made, below)[0] == raw


def test_deleted_things_become_whiteouts_of_what_the_image_has(tmp_path):
    below = lower(tmp_path, BASE, TOP)
    made, shown = upper(tmp_path, below, "rm -r dir file; rm etc/passwd; touch etc/x; rm etc/x")
    assert listed(made, below) == ["D /dir", "C /etc", "D /etc/passwd", "D /file"]
    raw, _ = layer(made, below)
    assert names(raw) == [".wh.dir", "etc", "etc/.wh.passwd", ".wh.file"]
    assert applied(tmp_path, raw, below) == seen(shown)


def test_an_untouched_upper_is_an_empty_layer(tmp_path):
    below = lower(tmp_path, BASE)
    made, _ = upper(tmp_path, below, "true")
    assert listed(made, below) == [] and layer(made, below)[0] == bytes(1024)


def test_the_root_is_told_only_if_it_changed(tmp_path):
    below = lower(tmp_path, BASE)
    made, _ = upper(tmp_path, below, "chmod 700 .")
    raw, _ = layer(made, below)
    assert names(raw) == ["."]


def test_links_to_one_file_stay_one(tmp_path):
    below = lower(tmp_path, BASE)
    made, _ = upper(tmp_path, below, "printf x > b; ln b a; mkdir d; ln b d/c")
    raw, _ = layer(made, below)
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        assert [(info.name, info.type, info.linkname) for info in archive] == [
            ("a", tarfile.REGTYPE, ""), ("b", tarfile.LNKTYPE, "a"), ("d", tarfile.DIRTYPE, ""), ("d/c", tarfile.LNKTYPE, "a"),
        ]  # fmt: skip


def test_sockets_are_left_out(tmp_path):
    below = lower(tmp_path, BASE)
    made, _ = upper(tmp_path, below, "true")
    here = os.getcwd()
    os.chdir(made.path)  # the path of a socket has 108 bytes
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
    finally:
        os.chdir(here)
    raw, written = layer(made, below)
    assert names(raw) == [] and written.warnings == ("left out: a socket: 'socket'",)


def test_an_xattr_that_no_record_can_name_is_left_out(tmp_path):
    below = lower(tmp_path, BASE)
    made, _ = upper(tmp_path, below, "touch f")
    os.setxattr(made.path / "f", "user.a=b", b"v")
    os.setxattr(made.path / "f", "user.c", b"=v")
    raw, written = layer(made, below)
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        assert [member.pax_headers.get("SCHILY.xattr.user.c") for member in archive] == ["=v"]
    assert b"user.a" not in raw
    assert written.warnings == ("dropped: an xattr with '=' in its name: 'f'",)


def test_no_time_is_later_than_the_given_one(tmp_path):
    below = lower(tmp_path, BASE)
    made, _ = upper(tmp_path, below, "touch -d @1000.5 old; touch new")
    raw, _ = layer(made, below, clamp=1_700_000_000 * 10**9)
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        assert [(info.name, info.mtime) for info in archive] == [("new", 1_700_000_000), ("old", 1000.5)]


@pytest.fixture
def deep(tmp_path):
    """Makes directories below directories; they are removed here, because other tools cannot."""
    fds = []

    def make_below(path, levels):
        fd = os.open(path, os.O_RDONLY) if not fds else fds.pop()
        for _ in range(levels):
            os.mkdir("d", dir_fd=fd)
            below = os.open("d", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        fds.append(fd)

    yield make_below
    for fd in fds:
        os.close(fd)
    remove_tree(tmp_path / "upper")


def test_a_deep_tree(tmp_path, deep):
    below = lower(tmp_path, BASE)
    made, _ = upper(tmp_path, below, "true")
    deep(made.path, 1500)
    before = len(os.listdir("/proc/self/fd"))
    raw, written = layer(made, below)
    assert written.members == 1500 and names(raw)[-1] == "/".join("d" * 1500)
    deep(made.path, 1000)
    with pytest.raises(ImageError, match="longer than 4095"):
        layer(made, below)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_names_that_mean_a_whiteout_are_refused(tmp_path):
    below = lower(tmp_path, BASE)
    made, _ = upper(tmp_path, below, "mkdir d; touch d/.wh.x")
    with pytest.raises(ImageError, match=r"'d/\.wh\.x' cannot be in an image"):
        layer(made, below)


def mark(name: str) -> str:
    return f"{'trusted' if os.geteuid() == 0 else 'user'}.overlay.{name}"


@pytest.mark.parametrize(("path", "name"), [("d", "redirect"), ("f", "metacopy")])
def test_what_lies_elsewhere_is_refused(tmp_path, path, name):
    below = lower(tmp_path, BASE)
    made, _ = upper(tmp_path, below, "mkdir d; printf x > f")
    os.setxattr(made.path / path, mark(name), b"/elsewhere" if name == "redirect" else b"")
    for call in (layer, changes):
        with pytest.raises(ImageError, match=f"'{path}' in the upper has overlayfs' mark '{name}'"):
            call(made, below)


def test_whiteouts_by_xattr(tmp_path):
    below = lower(tmp_path, BASE)
    made, _ = upper(tmp_path, below, "mkdir -p dir; touch dir/new")
    (made.path / "dir/one").touch()
    os.setxattr(made.path / "dir/one", mark("whiteout"), b"")
    assert "C /dir/one" in listed(made, below)  # nothing says that the directory has such
    os.setxattr(made.path / "dir", mark("opaque"), b"x")
    assert listed(made, below) == ["C /dir", "A /dir/new", "D /dir/one"]


def test_marks_of_the_other_kind_mean_nothing(tmp_path):
    """A job may set user.overlay.* in a root's upper; overlayfs does not obey it there, and neither do we."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's marks are user.overlay.*")
    below = lower(tmp_path, BASE)
    made, shown = upper(tmp_path, below, "touch dir/new")
    os.setxattr(made.path / "dir", "user.overlay.opaque", b"y")
    raw, _ = layer(made, below)
    assert names(raw) == ["dir", "dir/new"] and applied(tmp_path, raw, below) == seen(shown)


@requires("root")
def test_owners_acls_and_capabilities_are_shifted_back(tmp_path):
    below = lower(tmp_path, BASE)
    shift = 0x6FFF0000
    made, _ = upper(tmp_path, below, "printf x > f; printf y > g", shift=shift)
    os.chown(made.path, shift, shift)
    for name in "fg":
        os.chown(made.path / name, shift + 1000, shift + 50)
    acl = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", *entry)
        for entry in ((1, 7, 2**32 - 1), (2, 4, shift + 7), (4, 5, 2**32 - 1), (8, 4, shift + 8), (16, 5, 2**32 - 1), (32, 0, 2**32 - 1))
    )
    os.setxattr(made.path / "f", "system.posix_acl_access", acl)
    os.setxattr(made.path / "f", "user.note", b"\0raw")
    os.setxattr(made.path / "f", "security.capability", struct.pack("<6I", 0x03000001, 0x400, 0, 0, 0, shift))
    os.setxattr(made.path / "g", "security.capability", struct.pack("<6I", 0x03000001, 0x400, 0, 0, 0, 7))
    raw, written = layer(made, below)
    with tarfile.open(fileobj=io.BytesIO(raw), errors="surrogateescape") as archive:
        f, g = archive
    attrs = {key[13:]: value.encode("utf-8", "surrogateescape") for key, value in f.pax_headers.items() if key.startswith("SCHILY")}
    assert (f.uid, f.gid) == (g.uid, g.gid) == (1000, 50)
    assert attrs["user.note"] == b"\0raw"
    assert attrs["security.capability"] == struct.pack("<5I", 0x02000001, 0x400, 0, 0, 0)
    assert attrs["system.posix_acl_access"] == acl.replace(struct.pack("<I", shift + 7), struct.pack("<I", 7)).replace(
        struct.pack("<I", shift + 8), struct.pack("<I", 8)
    )
    assert written.warnings == ("dropped: a file capability of another user namespace: 'g'",)


@requires("root")
def test_an_owner_outside_the_map_is_an_error_that_names_the_file(tmp_path):
    below = lower(tmp_path, BASE)
    made, _ = upper(tmp_path, below, "mkdir d; printf x > d/f", shift=0x6FFF0000)
    for path in (made.path, made.path / "d"):
        os.chown(path, 0x6FFF0000, 0x6FFF0000)
    with pytest.raises(ImageError, match="'d/f' belongs to user 0 of the host"):
        layer(made, below)


def test_a_missing_upper_is_an_error(tmp_path):
    with pytest.raises(ImageError, match="cannot read the upper"):
        changes(Upper(tmp_path / "none"), [])


PLACES = ("a", "a/x", "a/x/y", "b", "b/z", "c")
STEPS = st.lists(
    st.tuples(st.sampled_from(["rm", "mkdir", "write", "link", "move"]), st.sampled_from(PLACES), st.sampled_from(PLACES)), max_size=8
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.booleans())
def test_any_changes_give_the_tree_that_was_seen(tmp_path_factory, steps, two):
    place = tmp_path_factory.mktemp("any")
    base = [
        make.directory("a"),
        make.directory("a/x"),
        make.file("a/x/y", "y"),
        make.directory("b"),
        make.file("b/z", "z"),
        make.file("c", "c"),
    ]
    below = lower(place, base, *([[make.directory("b"), make.file("b/more", "m"), make.whiteout("a/x")]] if two else []))
    scripts = {
        "rm": "rm -rf {0}",
        "mkdir": "mkdir -p {0}",
        "write": "printf {1} > {0}",
        "link": "ln -n {1} {0}",
        "move": "mv -T {1} {0}",
    }
    script = "\n".join("(" + scripts[verb].format(first, second) + ") 2>/dev/null || true" for verb, first, second in steps)
    made, shown = upper(place, below, script)
    raw, _ = layer(made, below)
    assert applied(place, raw, below) == seen(shown)
    before, after = tree(below), seen(shown)
    told = {change.path[1:]: change.kind for change in changes(made, below)}
    assert {path for path in after if path not in before} <= {path for path, kind in told.items() if kind == "A"}
    gone = {path for path in before if path not in after}
    assert all(any((path + "/").startswith(told_path + "/") for told_path, kind in told.items() if kind in "DC") for path in gone)
    remove_tree(place)
