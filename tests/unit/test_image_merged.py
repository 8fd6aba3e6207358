"""The merged view of layers that lie as directories: which layer wins at each name, and that no walk leaves the layers."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.requires import requires

from dockless.errors import BadImage, UnsafeLayer
from dockless.images.layers.layers import Layer, opened
from dockless.images.layers.merged import LINKS_MAX, PATH_MAX, STEPS_MAX, Merged, Node, _is_opaque, read_file, show
from dockless.images.layers.whiteouts import is_opaque, is_whiteout


@pytest.fixture
def bottom(tmp_path) -> Path:
    return make(tmp_path / "bottom", {"d/low": "low", "d/both": "below", "d/e/deep": "deep", "f": "file", "only/x": "x"})


@pytest.fixture
def top(tmp_path) -> Path:
    return make(tmp_path / "top", {"d/high": "high", "d/both": "above", "f/g": "now a directory", "d/e/new": "new"})


@pytest.fixture
def merged(top, bottom) -> Iterator[Merged]:
    with Merged([Layer(top), Layer(bottom)]) as view:
        yield view


def make(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def text(merged: Merged, path: str) -> str | None:
    node = merged.lookup(path.encode())
    if node is None:
        return None
    with merged.open_file(node) as stream:
        return stream.read().decode()


def opaque(path: Path) -> None:
    os.setxattr(path, "user.overlay.opaque", b"y")


def test_the_upper_layer_wins(merged):
    found = {
        path: text(merged, path)
        for path in ("d/low", "d/high", "d/both", "d/e/deep", "d/e/new", "only/x", "/d/./e//deep", "gone", "d/gone")
    }
    assert list(found.values()) == ["low", "high", "above", "deep", "new", "x", "deep", None, None]
    assert list(merged.children(merged.lookup(b"d"))) == [b"both", b"e", b"high", b"low"]
    assert {name: node.layers for name, node in merged.children(merged.root).items()} == {b"d": (0, 1), b"f": (0,), b"only": (1,)}
    assert text(merged, "f/g") == "now a directory" and text(merged, "d/low/x") is None
    node = merged.lookup(b"d/e/deep")
    assert (node.parts, node.layers, stat.S_ISREG(node.info.st_mode), node.is_dir) == ((b"d", b"e", b"deep"), (1,), True, False)


def test_a_file_over_a_directory_hides_it(tmp_path):
    lower, upper = make(tmp_path / "lower", {"n/x": "x"}), make(tmp_path / "upper", {"n": "file"})
    highest = make(tmp_path / "highest", {"n/y": "y"})
    with Merged([Layer(upper), Layer(lower)]) as view:
        assert text(view, "n") == "file" and view.lookup(b"n/x") is None
    with Merged([Layer(highest), Layer(upper), Layer(lower)]) as view:
        assert list(view.children(view.lookup(b"n"))) == [b"y"]


@requires("root")
def test_whiteouts(tmp_path, top, bottom):
    middle = make(tmp_path / "middle", {"x": ""})
    os.mkdir(middle / "d")
    for name in ("d/low", "f", "only"):
        os.mknod(middle / name, stat.S_IFCHR | 0o600, os.makedev(0, 0))
    os.mknod(middle / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    with Merged([Layer(top), Layer(middle), Layer(bottom)]) as view:
        assert [text(view, path) for path in ("d/low", "d/high", "f/g", "only/x", "d/both")] == [
            None,
            "high",
            "now a directory",
            None,
            "above",
        ]
        assert set(view.children(view.root)) == {b"d", b"f", b"x", b"null"}
        assert view.lookup(b"null").info.st_rdev == os.makedev(1, 3)
        with pytest.raises(BadImage, match="'/null' is not a regular file"):
            view.open_file(view.lookup(b"null"))
    assert is_whiteout(os.stat(middle / "f")) and not is_whiteout(os.stat(middle / "null")) and not is_whiteout(os.stat(middle / "x"))


def test_opaque_directories(merged, top):
    opaque(top / "d")
    assert [text(merged, path) for path in ("d/low", "d/high", "d/e/deep", "d/e/new", "only/x")] == [None, "high", None, "new", "x"]
    os.setxattr(top / "d", "user.overlay.opaque", b"x")
    assert text(merged, "d/low") == "low", "x is no mark"


@requires("root")
def test_both_marks_count(tmp_path):
    fds = []
    for name in ("trusted.overlay.opaque", "user.overlay.opaque", "trusted.overlay.origin"):
        (tmp_path / name).mkdir()
        os.setxattr(tmp_path / name, name, b"y")
        fds.append(os.open(tmp_path / name, os.O_RDONLY))
    assert [is_opaque(fd) for fd in fds] == [True, True, False]
    os.symlink("user.overlay.opaque", tmp_path / "link")
    with Merged([Layer(tmp_path)]) as view, view._opened(0, ()) as parent:
        assert [_is_opaque(parent, name) for name in (b"user.overlay.opaque", b"trusted.overlay.origin")] == [True, False]
        for name in (b"link", b"file"):
            (tmp_path / "file").write_text("x")
            with pytest.raises(NotADirectoryError):
                _is_opaque(parent, name)
    for fd in fds:
        os.close(fd)


def test_directories_at_exactly_a_place(merged, top):
    os.symlink("d", top / "link")
    found = merged.directory((b"d", b"e"))
    assert (found.parts, found.layers) == ((b"d", b"e"), (0, 1))
    assert merged.directory(()).parts == ()
    for parts in ((b"link",), (b"link", b"e"), (b"d", b"low"), (b"d", b"low", b"x"), (b"gone",), (b"gone", b"x")):
        assert merged.directory(parts) is None


def test_links_stay_inside(merged, top, bottom, tmp_path):
    (tmp_path / "secret").write_text("secret")
    for name, target in {
        "abs": "/d/low",
        "rel": "d/../d/./low",
        "up": "../../../../d/low",
        "out": "../secret",
        "far": str(tmp_path / "secret"),
        "dir": "d",
        "loop": "loop",
    }.items():
        os.symlink(target, top / name)
    os.symlink("../d/both", bottom / "only/back")
    os.symlink("/d/low", bottom / "only/root")
    found = [
        text(merged, path)
        for path in ("abs", "rel", "up", "dir/low", "dir/../dir/e/deep", "only/back", "only/root", "out", "far", "../../d/low")
    ]
    assert found == ["low", "low", "low", "low", "deep", "above", "low", None, None, "low"]
    link = merged.lookup(b"abs", follow=False)
    assert (link.parts, merged.readlink(link)) == ((b"abs",), b"/d/low")
    assert merged.lookup(b"dir/low", follow=False).parts == (b"d", b"low"), "only the last one is not followed"
    assert merged.lookup(b"/").parts == merged.lookup(b"..").parts == ()
    with pytest.raises(UnsafeLayer, match="too many symbolic links on the way to 'loop/x'") as caught:
        merged.lookup(b"loop/x")
    assert caught.value.subject == "'loop/x'"
    with pytest.raises(BadImage, match="'/d' is not a regular file"):
        merged.open_file(merged.lookup(b"dir"))


def test_as_many_links_as_linux_follows_and_no_more(merged, top):
    os.symlink("d/low", top / "l0")
    for number in range(LINKS_MAX):
        os.symlink(f"l{number}", top / f"l{number + 1}")
    assert text(merged, f"l{LINKS_MAX - 1}") == "low"
    with pytest.raises(UnsafeLayer):
        merged.lookup(f"l{LINKS_MAX}".encode())


def test_a_path_that_links_make_long(merged, top):
    os.symlink("d/low", top / "link")
    assert merged.lookup(b"link" + b"/x" * (PATH_MAX - 5)) is None
    with pytest.raises(UnsafeLayer):
        merged.lookup(b"link" + b"/x" * (PATH_MAX - 4))


def test_links_make_no_way_of_thousands_of_steps(merged, top):
    """Each costs an open for every layer and every directory above it: 38 links of 1,000 components kept a processor busy for minutes."""
    os.symlink("d/.." + "/d/.." * (STEPS_MAX // 2 - 1), top / "long")
    os.symlink("long/.", top / "more")
    assert merged.lookup(b"long").parts == ()
    with pytest.raises(UnsafeLayer, match="too many symbolic links"):
        merged.lookup(b"more")


def test_names_too_long_are_not_there(merged):
    assert merged.lookup(b"d/" + b"x" * 300) is None


def test_reading_a_file_within_a_bound(top, bottom):
    layers = [Layer(top), Layer(bottom)]
    assert read_file(layers, "/d/low", 3) == b"low" and read_file(layers, "gone", 3) is None and read_file([], "/x", 3) is None
    with pytest.raises(BadImage, match="/d/low is larger than 2 bytes") as caught:
        read_file(layers, "/d/low", 2)
    assert caught.value.subject == "/d/low"


def test_a_view_of_nothing():
    with Merged([]) as view:
        assert not view and view.lookup(b"/") is None and view.directory(()) is None


def test_a_view_of_what_is_not_there_holds_nothing(top, tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        Merged([Layer(top), Layer(tmp_path / "gone")])
    with pytest.raises(FileNotFoundError), opened([Layer(top), Layer(tmp_path / "gone")]):
        pass
    os.symlink(top, tmp_path / "link")
    with pytest.raises(NotADirectoryError):
        Layer(tmp_path / "link").open()
    assert len(os.listdir("/proc/self/fd")) == before
    with opened([Layer(top), Layer(top / "d")]) as fds:
        assert [os.listdir(f"/proc/self/fd/{fd}") for fd in fds] == [os.listdir(top), os.listdir(top / "d")]
        assert all(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH for fd in fds)


def test_a_walk_needs_no_right_to_list(merged):
    """A directory that may be passed and not listed, 0711, is no obstacle for a user: descriptors on the way are O_PATH."""
    for parts in ((), (b"d",), (b"d", b"e")):
        with merged._opened(0, parts) as fd:
            assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH
        with merged._opened(0, parts, os.O_RDONLY) as fd:
            assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH and os.listdir(fd)


def test_a_node_that_was_replaced_by_a_link_is_not_followed(merged, top, bottom):
    """Nobody changes a layer; were it so, what was looked at is what is opened."""
    file, directory = merged.lookup(b"d/high"), merged.lookup(b"d/e")
    os.rename(top / "d/high", top / "away")
    os.symlink("/etc/passwd", top / "d/high")
    with pytest.raises(OSError, match="symbolic links"):
        merged.open_file(file)
    os.rename(top / "d/e", top / "elsewhere")
    os.symlink(bottom / "d", top / "d/e")
    with pytest.raises(NotADirectoryError):
        merged.child(directory, b"low")


def test_paths_for_people():
    assert show(b"a\xff\n" + b"x" * 200) == "'a\\\\xff\\n" + "x" * 117 + "'"
    assert Node((), (0,), os.stat("/")).is_dir
