"""Copies both ways, over an agent that runs as an ordinary child: what arrives where, with which modes, times and links, how much."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import subprocess
from pathlib import Path

import pytest
from support.agents import saying

from dockless.errors import SandboxError
from dockless.sandbox.files import host
from dockless.sandbox.files.tree import Item, Landing, Tally, landing, leads_out
from dockless.sandbox.files.wire import CHUNK

OLD = 1_234_567_890_123_456_789


@pytest.fixture(params=["copy_in", "copy_out"])
def copy(request, files):
    """Both ways: here the sandbox's files are the host's."""
    return getattr(files, request.param)


def tree(top: Path) -> Path:
    """One of everything that can be copied."""
    (top / "sub" / "deep").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "a").write_text("a")
    (top / "sub" / "large").write_bytes(os.urandom(5 * CHUNK + 3))
    (top / "sub" / "exact").write_bytes(os.urandom(CHUNK))
    (top / "sub" / "nothing").touch()
    (top / "sub" / "holes").write_bytes(bytes(2 * CHUNK) + b"x" + bytes(CHUNK))
    (top / os.fsdecode(b"sub/\xff\n name")).write_text("odd")
    (top / "sub" / "link").symlink_to("../a")
    (top / "sub" / "deep" / "link").symlink_to("../large")
    (top / "dangling").symlink_to("nowhere")
    (top / "a").chmod(0o640)
    (top / "sub" / "exact").chmod(0o755)
    (top / "empty").chmod(0o500)
    for path in [*top.rglob("*"), top]:
        os.utime(path, ns=(0, OLD), follow_symlinks=False)
    return top


def seen(top: Path) -> dict[str, object]:
    """Names, types, modes, times and contents below a directory. Times of links are not copied."""
    found = {}
    for path in sorted([top, *top.rglob("*")]):
        about = path.lstat()
        what: object = None
        if stat.S_ISREG(about.st_mode):
            what = path.read_bytes()
        elif stat.S_ISLNK(about.st_mode):
            what = os.readlink(path)
        modified = None if stat.S_ISLNK(about.st_mode) else about.st_mtime_ns
        found[str(path.relative_to(top))] = (stat.filemode(about.st_mode), modified, what)
    return found


def test_a_tree_arrives_as_it_was(copy, place):
    source = tree(place / "source")
    copied = copy(source, place / "target")
    assert seen(place / "target") == seen(source)
    assert (copied.files, copied.directories, copied.links, copied.skipped) == (6, 4, 3, ())
    assert copied.size == sum(path.stat().st_size for path in source.rglob("*") if path.is_file() and not path.is_symlink())


def test_a_tree_that_is_there_is_merged_and_files_are_replaced(copy, place):
    source = tree(place / "source")
    copy(source, place / "target")
    (place / "target" / "sub" / "mine").write_text("kept")
    (place / "target" / "a").unlink()
    (place / "outside").write_text("outside")
    (place / "target" / "a").symlink_to("../outside")
    os.link(place / "outside", place / "target" / "hard")
    (place / "target" / "dangling").unlink()
    (place / "target" / "dangling").write_text("a file where a link comes")
    (source / "hard").write_text("new")
    copy(str(source) + "/.", place / "target")
    assert (place / "outside").read_text() == "outside"
    assert (place / "target" / "sub" / "mine").read_text() == "kept"
    assert (place / "target" / "a").read_text() == "a" and not (place / "target" / "a").is_symlink()
    assert (place / "target" / "hard").read_text() == "new" and os.readlink(place / "target" / "dangling") == "nowhere"


def test_holes_stay_holes_on_the_host(files, place):
    source = place / "source"
    with open(source, "wb") as stream:
        stream.truncate(64 << 20)
    files.copy_out(source, place / "target")
    assert (place / "target").stat().st_size == 64 << 20 and (place / "target").stat().st_blocks == 0


@pytest.mark.parametrize("wrong", ["file over directory", "directory over file", "link over directory", "directory over link"])
def test_what_is_of_another_kind_is_an_error(copy, place, wrong):
    source, target = place / "source", place / "target"
    for top in (source, target):
        top.mkdir()
    ours, theirs = wrong.split(" over ")
    for top, kind in ((source, ours), (target, theirs)):
        if kind == "file":
            (top / "x").write_text(kind)
        elif kind == "directory":
            (top / "x").mkdir()
            (top / "x" / "in").touch()
        else:
            (top / "x").symlink_to("." if top == target else "y")
    before = seen(target)
    with pytest.raises(OSError, match=r"directory|exists|Too many") as caught:
        copy(str(source) + "/.", target)
    assert caught.value.filename == str(target / "x") and set(seen(target)) == set(before)


def test_errors_name_the_whole_path(copy, place):
    (place / "source" / "sub").mkdir(parents=True)
    (place / "source" / "sub" / "f").touch()
    (place / "target" / "sub" / "f").mkdir(parents=True)
    with pytest.raises(IsADirectoryError) as caught:
        copy(str(place / "source") + "/.", place / "target")
    assert caught.value.filename == str(place / "target" / "sub" / "f")
    with pytest.raises(FileNotFoundError) as caught:
        copy(place / "none", place / "target")
    assert caught.value.filename == str(place / "none")
    with pytest.raises(FileNotFoundError) as caught:
        copy(place / "source", place / "no" / "target")
    assert str(place / "no") in caught.value.filename


def test_the_source_itself_is_followed_and_nothing_below_it(copy, place):
    tree(place / "real")
    (place / "link").symlink_to("real")
    (place / "file").symlink_to("real/a")
    copy(place / "link", place / "target")
    copy(place / "file", place / "one")
    assert seen(place / "target") == seen(place / "real")
    assert (place / "one").read_text() == "a" and not (place / "one").is_symlink()


def test_what_is_no_file_is_skipped_and_said(copy, place):
    (place / "source").mkdir()
    os.mkfifo(place / "source" / "fifo")
    (place / "source" / "file").touch()
    copied = copy(place / "source", place / "target")
    assert copied.skipped == (("fifo", "a FIFO, a socket or a device"),) and copied.skipped_count == 1
    assert [path.name for path in (place / "target").iterdir()] == ["file"]
    for odd in (place / "source" / "fifo", "/dev/null"):
        with pytest.raises(OSError, match="Not a regular file") as caught:
            copy(odd, place / "odd")
        assert caught.value.errno == errno.ENOTSUP and not (place / "odd").exists()


def test_a_device_at_the_target_stays(files, place):
    (place / "f").write_text("x")
    os.mkfifo(place / "fifo")
    with pytest.raises(FileExistsError):
        files.copy_out(place / "f", place / "fifo")
    assert stat.S_ISFIFO((place / "fifo").lstat().st_mode)


def test_set_user_id_bits_come_in_and_never_out(files, place):
    (place / "f").write_text("x")
    (place / "f").chmod(0o6755)
    (place / "d").mkdir()
    (place / "d").chmod(0o3777)
    files.copy_in(place / "f", place / "inside")
    files.copy_out(place / "f", place / "outside")
    files.copy_out(place / "d", place / "directory")
    modes = [oct((place / name).stat().st_mode & 0o7777) for name in ("inside", "outside", "directory")]
    assert modes == ["0o6755", "0o755", "0o777"]


def test_a_link_that_could_lead_out_is_not_made(files, place):
    (place / "source" / "a" / "b").mkdir(parents=True)
    links = {
        "up": "..", "self": ".", "absolute": "/etc", "file": "a/b/deep", "a/up": "..", "a/far": "../..", "a/b/top": "../..",
        "a/around": "b/../../..", "trick": "a/b/top/../../x", "a/b/three": "../../..",
    }  # fmt: skip
    for name, target in links.items():
        (place / "source" / name).symlink_to(target)
    copied = files.copy_out(place / "source", place / "target")
    made = {name for name in links if (place / "target" / name).is_symlink()}
    assert made == {"self", "file", "a/up", "a/b/top"} and copied.links == 4
    assert {path for path, _ in copied.skipped} == set(links) - made and all("leads out" in why for _, why in copied.skipped)
    inside = os.path.realpath(place / "target")
    assert all(os.path.realpath(place / "target" / name).startswith(inside) for name in made)


@pytest.mark.parametrize(
    ("path", "target", "out"),
    [
        (b"x", b"y", False), (b"x", b"./y/./z", False), (b"x", b"../y", True), (b"x", b"y/..", True), (b"x", b"/y", True),
        (b"x", b"", True),
        (b"a/x", b"../y", False), (b"a/x", b"..", False), (b"a/x", b"./../../y", True), (b"a/b/x", b"../../y", False),
        (b"a/b/x", b"../c/../d", True), (b"x", b"...", False), (b"a/x", b"./../y", False),
    ],
)  # fmt: skip
def test_where_a_link_may_lead(path, target, out):
    assert leads_out(path, target) is out


def test_no_chain_of_links_that_are_made_leads_out(place):
    """Every set of three links from a small alphabet: what is allowed one by one stays inside together."""
    import itertools

    targets = ["..", ".", "a", "b", "a/b", "../a", "../b", "a/..", "b/../..", "a/l", "../l", "b/l", "a/b/l/.."]
    spots = ["l", "a/l", "a/b/l"]
    top = place / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "b").mkdir()
    tried = 0
    for chosen in itertools.product(targets, repeat=3):
        allowed = [(spot, target) for spot, target in zip(spots, chosen, strict=True) if not leads_out(spot.encode(), target.encode())]
        if len(allowed) < 3:
            continue
        for spot, target in allowed:
            (top / spot).unlink(missing_ok=True)
            (top / spot).symlink_to(target)
        for spot, _ in allowed:
            assert os.path.realpath(top / spot).startswith(str(top)), allowed
            tried += 1
    assert tried > 500


# -- bounds


def test_a_copy_out_is_bounded_in_bytes_and_in_files(files, place):
    source = tree(place / "source")
    size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file() and not path.is_symlink())
    files.copy_out(source, place / "enough", max_size=size, max_files=13)
    for bounds in ({"max_size": size - 1}, {"max_files": 12}):
        with pytest.raises(OSError, match="More than") as caught:
            files.copy_out(source, place / "toomuch", **bounds)
        assert caught.value.errno == errno.EFBIG and next(iter(bounds)) in caught.value.__notes__[0]


def test_what_is_skipped_counts_and_a_long_name_is_no_bound(files, place):
    (place / "source").mkdir()
    (place / "source" / ("long" * 60)).mkdir()
    for name in ("fifo", "FIFO"):
        os.mkfifo(place / "source" / ("long" * 60) / (name * 60))
    assert files.copy_out(place / "source", place / "enough", max_files=3).skipped_count == 2
    with pytest.raises(OSError, match="More than 2 files"):
        files.copy_out(place / "source", place / "toomuch", max_files=2)


def test_progress_is_told(copy, place):
    told = []
    copied = copy(tree(place / "source"), place / "target", progress=lambda files, size: told.append((files, size)))
    assert told == sorted(told) and told[-1][0] == copied.files and max(size for _, size in told) == copied.size


# -- a host whose directories others change meanwhile


def test_a_directory_that_becomes_a_link_while_it_is_written_leads_nowhere(place):
    (place / "victim").mkdir()

    def things():
        yield Item(b"", "directory", 0o755, OLD)
        yield Item(b"d", "directory", 0o755, OLD)
        (place / "target" / "d").rename(place / "moved")
        (place / "target" / "d").symlink_to("../victim")
        yield Item(b"d/x", "file", 0o644, OLD, 1, iter([b"x"]))

    with pytest.raises(OSError, match=r"symbolic links|Not a directory") as caught:
        host.put(os.fsencode(place / "target"), things(), Tally(100, 100), merged=False)
    assert caught.value.filename == str(place / "target" / "d")
    assert list((place / "victim").iterdir()) == []


def test_a_directory_that_becomes_a_link_before_it_gets_its_mode_leads_nowhere(place):
    (place / "victim").mkdir(0o700)

    def things():
        yield Item(b"", "directory", 0o755, OLD)
        yield Item(b"d", "directory", 0o777, OLD)
        (place / "target" / "d").rename(place / "moved")
        (place / "target" / "d").symlink_to("../victim")

    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        host.put(os.fsencode(place / "target"), things(), Tally(100, 100), merged=False)
    assert stat.S_IMODE((place / "victim").stat().st_mode) == 0o700


@pytest.mark.parametrize("becomes", ["link", "fifo"])
def test_a_file_that_becomes_something_else_while_it_is_read_is_not_read(place, becomes):
    (place / "source").mkdir()
    (place / "source" / "f").write_text("x")
    (place / "secret").write_text("secret")
    with contextlib.closing(host.items(os.fsencode(place / "source"))) as items:
        next(items)
        item = next(items)
        (place / "source" / "f").unlink()
        if becomes == "link":
            (place / "source" / "f").symlink_to("../secret")
        else:
            os.mkfifo(place / "source" / "f")
        with pytest.raises(OSError, match=r"symbolic links|Not a regular file") as caught:
            next(item.content)
    assert os.fsdecode(caught.value.filename) == str(place / "source" / "f")


def test_a_directory_that_becomes_a_link_while_it_is_read_is_not_read(place):
    (place / "source" / "d").mkdir(parents=True)
    (place / "victim").mkdir()
    (place / "victim" / "secret").touch()
    with contextlib.closing(host.items(os.fsencode(place / "source"))) as items:
        assert [next(items).path, next(items).path] == [b"", b"d"]
        (place / "source" / "d").rmdir()
        (place / "source" / "d").symlink_to("../victim")
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            next(items)


# -- where it arrives


@pytest.mark.parametrize(
    ("source", "is_directory", "target", "target_is", "expected"),
    [
        (b"/f", False, b"/new", "missing", Landing()),
        (b"/f", False, b"/there", "file", Landing()),
        (b"/f", False, b"/dir", "directory", Landing(b"f")),
        (b"/f", False, b"/dir/", "directory", Landing(b"f")),
        (b"/f", False, b"/new/", "missing", FileNotFoundError),
        (b"/f", False, b"/there/", "file", NotADirectoryError),
        (b"/f/", False, b"/new", "missing", NotADirectoryError),
        (b"/f/.", False, b"/new", "missing", NotADirectoryError),
        (b"f", False, b".", "missing", FileNotFoundError),
        (b"f", False, b"..", "missing", FileNotFoundError),
        (b".", True, b"/dir", "directory", Landing(merged=True)),
        (b"/d", True, b"/new", "missing", Landing()),
        (b"/d", True, b"/new/", "missing", Landing()),
        (b"/d", True, b"/there", "file", NotADirectoryError),
        (b"/d", True, b"/dir", "directory", Landing(b"d")),
        (b"/d/", True, b"/dir", "directory", Landing(b"d")),
        (b"/d/.", True, b"/dir", "directory", Landing(merged=True)),
        (b"/d/.", True, b"/new", "missing", Landing()),
        (b"/", True, b"/dir", "directory", Landing(merged=True)),
        (b"/d/..", True, b"/dir", "directory", Landing(merged=True)),
    ],
)
def test_where_a_copy_arrives(source, is_directory, target, target_is, expected):
    if isinstance(expected, Landing):
        assert landing(source, is_directory, target, target_is) == expected
    else:
        with pytest.raises(expected):
            landing(source, is_directory, target, target_is)


@pytest.mark.parametrize("source", ["d", "d/", "d/.", "f", "f/"])
@pytest.mark.parametrize("target", ["new", "new/", "there", "dir", "dir/", "dir/.", "linked", "no/new"])
def test_a_copy_arrives_where_cp_puts_it(copy, place, monkeypatch, source, target):
    """``cp -a`` has docker's rules but for a directory onto a link to a directory, and a new name with a slash."""
    results = []
    for name in ("ours", "theirs"):
        top = place / name
        (top / "d" / "sub").mkdir(parents=True)
        (top / "d" / "x").write_text("x")
        (top / "f").write_text("f")
        (top / "there").write_text("there")
        (top / "dir").mkdir()
        (top / "linked").symlink_to("dir")
        if name == "ours":
            try:
                copy(str(top) + "/" + source, str(top) + "/" + target)
                done = True
            except OSError:
                done = False
        else:
            done = subprocess.run(["cp", "-r", source, target], cwd=top, capture_output=True).returncode == 0
        results.append((done, sorted((str(path.relative_to(top)), path.is_file() and path.read_text()) for path in top.rglob("*"))))
    assert results[0] == results[1]


def test_relative_names_on_the_host_are_the_callers(files, place, monkeypatch):
    monkeypatch.chdir(place)
    (place / "d").mkdir()
    (place / "d" / "x").write_text("x")
    files.copy_out(place / "d", "out")
    files.copy_in("d", place / "in")
    monkeypatch.chdir(place / "d")
    files.copy_in(".", place / "dot")
    (place / "box").mkdir()
    files.copy_in("../d", place / "box")
    found = sorted(str(path.relative_to(place)) for path in place.rglob("x"))
    assert found == ["box/d/x", "d/x", "dot/x", "in/x", "out/x"]


# -- lies


def said(result: int, contents: bytes = b"") -> bytes:
    return struct.pack("=iI", result, len(contents)) + contents


def facts(mode: int, size: int = 0) -> bytes:
    return struct.pack("=IIIIQQq", mode, 1, 0, 0, 1, size, 0)


def entry(name: bytes, mode: int, size: int = 0) -> bytes:
    return facts(mode, size) + struct.pack("=H", len(name)) + name


DIRECTORY, FILE, LINK = 0o40755, 0o100644, 0o120777


@pytest.mark.parametrize("name", [b"../outside", b"..", b"/tmp/outside", b"a/../../outside", b"\0", b""])
def test_a_name_that_leads_elsewhere_is_not_written(place, name):
    (place / "target").mkdir()
    answers = [said(0, facts(DIRECTORY)), said(3, facts(DIRECTORY)), said(4, facts(DIRECTORY)), said(1, entry(name, FILE)), said(0)]
    with saying(*answers) as files, pytest.raises(SandboxError, match="no sense"):
        files.copy_out("/x/.", place / "target")
    assert sorted(path.name for path in place.rglob("*")) == ["target"]


def test_a_link_and_then_a_directory_of_its_name_lead_nowhere(place):
    """A listing that has the same name twice: first a link that may be made, then a directory, with a file in it."""
    (place / "target").mkdir()
    (place / "target" / "victim").mkdir()
    listing = entry(b"d", LINK) + entry(b"d", DIRECTORY)
    answers = [
        said(0, facts(DIRECTORY)), said(3, facts(DIRECTORY)), said(4, facts(DIRECTORY)), said(2, listing), said(0), said(0),
        said(0, facts(LINK) + b"victim"), said(0), said(0),
    ]  # fmt: skip
    with saying(*answers) as files, pytest.raises(OSError):
        files.copy_out("/x/.", place / "target")
    assert list((place / "target" / "victim").iterdir()) == []


def test_a_tree_without_end_is_an_error(place):
    (place / "target").mkdir()
    more = [said(4, facts(DIRECTORY)), said(1, entry(b"d", DIRECTORY)), said(0), said(0)]
    answers = [said(0, facts(DIRECTORY)), said(3, facts(DIRECTORY)), *more * 200]
    with saying(*answers) as files, pytest.raises(OSError, match="More than 100 files"):
        files.copy_out("/x/.", place / "target", max_files=100)


def test_a_file_without_end_fills_no_disk(place):
    full = said(CHUNK, b"x" * CHUNK)
    answers = [said(0, facts(FILE)), said(3, facts(FILE)) + full + said(0), said(3, facts(FILE)), *[full * 4] * 20]
    with saying(*answers) as files, pytest.raises(OSError, match="More than 1048576 bytes"):
        files.copy_out("/x", place / "target", max_size="1M")
    assert (place / "target").stat().st_size <= 1 << 20
