"""Layers that try to leave their root, with the victim method: whatever such a layer does, a directory beside the root stays as it was, to
the inode. Each test is also run with the entries spread over two layers, where the link lies in the lower one.
"""

import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import make_image as make
from support.layers import Scene, load, tree

from dockless.errors import BadImage, DocklessError, UnsafeLayer
from dockless.images import Store
from dockless.images.files import remove_tree


@pytest.fixture
def scene(tmp_path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    yield found
    found.remove()


@pytest.mark.parametrize(
    "name", ["../victim/f", "/../victim/f", "a/../../victim/f", "../victim/hello", "..", "a/..", "./../victim/f", "a/./../../victim/f"]
)
@pytest.mark.parametrize("make_entry", [make.file, make.directory, make.fifo, lambda name: make.symlink(name, "x"), make.whiteout])
def test_dotdot_names(scene, name, make_entry):
    """A1: names with ``..`` are refused."""
    assert isinstance(scene.unpack(make.directory("a"), make_entry(name)), UnsafeLayer)


def test_absolute_names(scene):
    """A1: an absolute name is a name below the root."""
    assert scene.unpack(make.file(str(scene.victim / "f"), "x"), make.file("/etc/passwd", "evil")) is None
    assert (scene.root / "etc/passwd").read_text() == "evil"
    assert (scene.root / str(scene.victim).lstrip("/") / "f").read_text() == "x"


@pytest.mark.parametrize("target", ["{victim}", "../victim", "../../../../../../../../../../../../..{victim}", "./../victim", "link2"])
def test_symlink_then_write_through(scene, target):
    """A2: a link, then an entry below it: the entry lands inside the root or is refused."""
    link = [make.symlink("d", target.format(victim=scene.victim)), make.symlink("link2", "../victim")]
    scene.both(link, [make.file("d/f", "x"), make.file("d/hello", "evil"), make.directory("d/sub", 0o777), make.symlink("d/new", "x")])


def test_symlink_to_etc(scene):
    """A2: ``d -> /etc``, then ``d/x``: it is the root's own /etc."""
    assert scene.unpack(make.directory("etc"), make.symlink("d", "/etc"), make.file("d/dockless-attack", "x")) is None
    assert (scene.root / "etc/dockless-attack").read_text() == "x"
    assert not Path("/etc/dockless-attack").exists()


def test_symlink_at_the_name_itself(scene):
    """A2: a file over a link of the same name replaces the link, it is not written through it."""
    assert scene.unpack(make.symlink("f", str(scene.hello)), make.file("f", "evil")) is None
    assert not (scene.root / "f").is_symlink()
    assert scene.hello.read_text() == "hello"


def test_symlink_loops(scene):
    """A2: loops end in an error."""
    assert isinstance(scene.unpack(make.symlink("a", "b"), make.symlink("b", "a"), make.file("a/f")), UnsafeLayer)


def test_exploding_symlinks(scene):
    """A2: links that double at each step end in an error, soon."""
    links = [make.symlink(f"l{n}", f"l{n + 1}/../l{n + 1}") for n in range(60)]
    assert isinstance(scene.unpack(*links, make.directory("l60"), make.file("l0/f")), UnsafeLayer)


@pytest.mark.parametrize("target", ["/etc/passwd", "../victim/hello", "{hello}", "a/../../victim/hello", "/../victim/hello"])
def test_hardlink_to_a_host_file(scene, target):
    """A3: a hard link never shares an inode with the host."""
    error = scene.unpack(make.directory("a"), make.hardlink("h", target.format(hello=scene.hello)), make.file("h", "evil"))
    assert isinstance(error, UnsafeLayer | BadImage)


def test_hardlink_to_a_host_directory(scene):
    """A3: directories cannot be linked."""
    assert isinstance(scene.unpack(make.directory("d"), make.hardlink("h", "d")), UnsafeLayer)
    remove_tree(scene.root)
    assert isinstance(scene.unpack(make.hardlink("h", "/")), UnsafeLayer)


@pytest.mark.parametrize("target", ["{victim}", "../victim"])
def test_hardlink_down_and_out_through_symlinks(scene, target):
    """A4: a hard link through links of the archive reaches what the root has there, never the host."""
    links = [make.directory("x"), make.symlink("x/down", target.format(victim=scene.victim)), make.symlink("out", "x/down")]
    scene.both(links, [make.hardlink("h", "out/hello"), make.file("h", "evil")])


def test_hardlink_through_a_link_inside(scene):
    """A4: the same inode as the root's own file."""
    entries = [make.directory("real"), make.file("real/f", "1"), make.symlink("link", "real"), make.hardlink("h", "link/f")]
    assert scene.unpack(*entries) is None
    assert (scene.root / "h").stat().st_ino == (scene.root / "real/f").stat().st_ino


def test_hardlink_to_a_symlink_then_chmod(scene):
    """A5: mode, owner, times and xattrs never go through a link (CVE-2021-32760)."""
    scene.both(
        [make.symlink("s", str(scene.hello)), make.symlink("r", "../victim/hello")],
        [
            make.hardlink("h", "s"),
            make.hardlink("h2", "r"),
            make.file("h", "", 0o4777, uid=99, gid=99, mtime=1, pax={"SCHILY.xattr.user.x": "1"}),
            make.directory("h2", 0o777, uid=99, mtime=1),
        ],
    )


def test_link_with_mode_owner_times_and_xattrs(scene):
    """A5: what a link entry itself says is said of the link."""
    entry = make.symlink("s", str(scene.hello), uid=99, gid=99, mtime=5, pax={"SCHILY.xattr.user.x": "1", "SCHILY.xattr.trusted.x": "1"})
    assert scene.unpack(entry) is None
    assert (scene.root / "s").lstat().st_mtime == 5


def test_directory_entry_over_a_link_to_a_directory(scene):
    """A5: a directory entry does not change the directory that a link points at."""
    assert scene.unpack(make.symlink("d", str(scene.victim)), make.directory("d", 0o700, mtime=1), make.file("d/f")) is None
    assert not (scene.root / "d").is_symlink()


@pytest.mark.parametrize("name", [".wh..", ".wh...", ".wh.", "etc/.wh..", "etc/.wh...", "etc/.wh.", "./.wh...", "etc/.wh.x/y", ".wh.etc/y"])
def test_whiteout_names(scene, name):
    """A6: whiteouts of nothing, of ``.`` and of ``..`` are refused, and the root is not wiped."""
    error = scene.unpack(make.file("keep", "x"), make.Entry(name), lower=[make.directory("etc"), make.file("etc/f")])
    assert isinstance(error, UnsafeLayer)
    assert (scene.root / "keep").exists()
    assert (scene.lower / "etc/f").exists()


@pytest.mark.parametrize("target", ["{victim}", "../victim", "/"])
def test_whiteout_through_a_linked_parent(scene, target):
    """A7: a whiteout or an opaque mark through a link acts inside the root alone."""
    link = [make.symlink("d", target.format(victim=scene.victim)), make.file("hello", "inside")]
    scene.both(link, [make.whiteout("d/hello"), make.whiteout("d/sub"), make.opaque("d")])


def test_whiteout_of_a_link(scene):
    """A7: a whiteout hides the link, not what it points at."""
    assert scene.unpack(make.whiteout("s"), lower=[make.symlink("s", str(scene.victim))]) is None


def test_parallel_layers_never_follow_each_others_links(tmp_path):
    """A8: layers that are unpacked at the same time have roots of their own (CVE-2025-47290)."""
    scene = Scene(tmp_path)
    store = Store()
    errors: list[BaseException] = []

    def run(number: int) -> None:
        evil = [make.symlink("d", str(scene.victim)), make.symlink("e", "../victim")]
        writes = [make.file(f"{name}/f{n}", "x") for n in range(100) for name in "de"]
        try:
            place = tmp_path / "h" / f"job{number}"
            place.mkdir()
            image = load(place, [evil, writes] if number % 2 else [writes, evil], store, ref=f"i{number}:1")
            assert tree(image.layers)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    scene.unharmed()


def test_a_link_swapped_in_while_the_layer_is_written(scene):
    """A8: even someone who could write into the fresh root could not lead the writer out: it never follows, at any step."""
    done = threading.Event()

    def swap() -> None:
        link, aside = scene.root / "link", scene.root / "aside"
        while not done.is_set():
            try:
                link.symlink_to(scene.victim)
                (scene.root / "d").rename(aside)
                link.rename(scene.root / "d")
                (scene.root / "d").unlink()
                aside.rename(scene.root / "d")
            except OSError:
                link.unlink(missing_ok=True)

    thread = threading.Thread(target=swap)
    entries = [make.directory("d"), make.directory("e")]
    entries += [entry for n in range(1500) for entry in (make.file(f"d/f{n}", "x"), make.file(f"e/f{n}", "x"))]
    scene.root.mkdir()
    thread.start()
    try:
        for _ in range(3):
            try:
                scene.write(make.layer_tar(entries), scene.root, [])
            except DocklessError:
                continue
    finally:
        done.set()
        thread.join()
    scene.unharmed()


def test_a_long_real_path(scene):
    """A15: the trick of CVE-2025-4517: directories and links so long that a resolved path is cut off."""
    entries, path, step = [], "", "d" * 247
    for letter in "abcdefghijklmnop":
        entries += [make.directory(f"{path}{step}"), make.symlink(f"{path}{letter}", step)]
        path += f"{step}/"
    links = "/".join("abcdefghijklmnop")
    far = f"{links}/{'l' * 254}"
    entries += [make.symlink(far, "../" * 16), make.symlink("escape", f"{far}/../victim"), make.hardlink("h", "escape/hello")]
    error = scene.unpack(*entries, make.file("escape/f", "x"), make.file("h", "evil"))
    assert isinstance(error, UnsafeLayer | BadImage)


def test_a_path_of_4_kib(scene):
    """A15: names up to the kernel's limit are kept, longer ones refused."""
    assert scene.unpack(make.file("x/" * 2047 + "f")) is None
    remove_tree(scene.root)
    assert isinstance(scene.unpack(make.file("x/" * 2048 + "f")), UnsafeLayer)


def test_links_that_add_up_to_more_than_4_kib(scene):
    """A15: a short name may lead deep by links, but not deeper than a path can be."""
    deep = "y" * 200 + "/" + "y" * 200
    entries = [make.directory(deep), make.symlink("l0", deep)]
    for n in range(1, 12):
        entries += [make.file(f"l{n - 1}/{deep}/f"), make.symlink(f"l{n}", f"l{n - 1}/{deep}")]
    assert isinstance(scene.unpack(*entries), UnsafeLayer)
    remove_tree(scene.root)
    assert not scene.root.exists()


def test_passwd_behind_links(tmp_path):
    """A35: reading a file of an image never leaves the image, however its links are laid."""
    host = Path("/etc/passwd").read_bytes()
    image = load(
        tmp_path,
        [
            [make.directory("etc"), make.symlink("etc/passwd", "../../../../../../../../etc/passwd-"), make.file("etc/passwd-", "inside")],
            [make.symlink("a", "/proc/self/root/etc"), make.symlink("b", "/etc/shadow"), make.fifo("etc/group")],
            [make.symlink("top", "/../.."), make.directory("folder")],
        ],
    )
    assert image.read_file("/etc/passwd") == b"inside" != host
    assert image.read_file("/a/passwd") is None
    assert image.read_file("/b") is None
    for path in ("/etc/group", "/top", "/folder", "/"):
        with pytest.raises(BadImage, match="not a regular file"):
            image.read_file(path)


def test_modes_of_what_is_made(scene):
    """A10: setuid is kept for the image and nothing else gets it."""
    assert scene.unpack(make.file("a/su", "x", 0o4755), make.file("a/plain", "x", 0o644)) is None
    assert stat.S_IMODE((scene.root / "a/su").stat().st_mode) == 0o4755
    assert stat.S_IMODE((scene.root / "a/plain").stat().st_mode) == 0o644
    assert stat.S_IMODE((scene.root / "a").stat().st_mode) == 0o755
