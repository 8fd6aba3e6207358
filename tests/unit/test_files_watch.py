"""``Files.watch`` over an agent that runs as an ordinary child: what happens is told, in its order, below new directories too."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import struct

import pytest
from support import agents, disks

from dockless.errors import SandboxError, SandboxGone
from dockless.sandbox.files import calls, watching

PATIENT = 20.0


def told(watch, until):
    """Kinds and names, to the one that is expected last."""
    found = []
    while (event := watch.next(PATIENT)) is not None:
        found.append((event.kind, os.path.basename(event.path) + "/" * event.is_directory))
        if found[-1] == until:
            return found
    raise AssertionError(f"{until} did not come: {found}")


def test_what_happens_in_a_directory_is_told(files, place):
    (place / "old").touch()
    with files.watch(place) as watch:
        (place / "f").write_text("x")
        (place / "old").chmod(0o600)
        (place / "d").mkdir()
        (place / "d" / "below").touch()
        (place / "f").rename(place / "g")
        (place / "g").unlink()
        (place / "d" / "below").unlink()
        (place / "d").rmdir()
        assert told(watch, ("removed", "d/")) == [
            ("created", "f"), ("modified", "f"), ("modified", "old"), ("created", "d/"), ("removed", "f"), ("created", "g"),
            ("removed", "g"), ("removed", "d/"),
        ]  # fmt: skip
        assert watch.next(0) is None and watch.next(0.01) is None


def test_what_happens_below_is_told_where_that_was_asked(files, place):
    (place / "a" / "b").mkdir(parents=True)
    with files.watch(place, recursive=True) as watch:
        (place / "a" / "b" / "f").touch()
        assert told(watch, ("created", "f"))[0] == ("created", "f")
        (place / "new" / "deep").mkdir(parents=True)
        (place / "new" / "deep" / "at once").touch()
        assert ("created", "deep/") in told(watch, ("created", "at once"))
        (place / "new" / "deep" / "later").touch()
        assert ("created", "later") in told(watch, ("created", "later"))
        (place / "new").rename(place / "a" / "moved")
        told(watch, ("created", "at once"))
        (place / "a" / "moved" / "deep" / "last").touch()
        event = None
        while event is None or not event.path.endswith("last"):
            event = watch.next(PATIENT)
        assert event.path == str(place / "a" / "moved" / "deep" / "last")
        shutil.rmtree(place / "a")
        assert told(watch, ("removed", "a/"))[-1] == ("removed", "a/")


def test_what_happens_below_is_not_told_where_nobody_asked(files, place):
    with files.watch(place) as watch:
        (place / "d").mkdir()
        assert told(watch, ("created", "d/")) == [("created", "d/")]
        (place / "d" / "below").touch()
        (place / "end").touch()
        assert told(watch, ("created", "end")) == [("created", "end")]


def test_a_directory_below_that_gets_another_name_is_told_once(files, place):
    (place / "a").mkdir()
    with files.watch(place, recursive=True) as watch:
        (place / "a").rename(place / "b")
        (place / "end").touch()
        assert told(watch, ("created", "end")) == [("removed", "a/"), ("created", "b/"), ("created", "end")]


@pytest.mark.requires("root")
def test_a_directory_that_is_unmounted_is_gone(files, place):
    with contextlib.ExitStack() as mounted:
        mounted.enter_context(disks.small(place, "size=64k"))
        with files.watch(place) as watch:
            mounted.close()
            assert told(watch, ("removed", "place/")) == [("removed", "place/")]


def test_a_link_is_followed_where_it_is_what_was_asked_for(files, place, tmp_path):
    (place / "below").mkdir()
    (tmp_path / "link").symlink_to(place)
    with files.watch(tmp_path / "link", recursive=True) as watch:
        (place / "below" / "f").touch()
        assert told(watch, ("created", "f")) == [("created", "f")]


def test_a_directory_that_becomes_a_link_meanwhile_is_not_followed(files, place, tmp_path, monkeypatch):
    (place / "d").mkdir()
    (tmp_path / "out").mkdir()

    def listing(*args, **options):
        found = calls.listing(*args, **options)
        if (place / "d").is_dir() and not (place / "d").is_symlink():
            (place / "d").rmdir()
            (place / "d").symlink_to(tmp_path / "out")
        return found

    monkeypatch.setattr(watching, "listing", listing)
    with files.watch(place, recursive=True) as watch:
        (tmp_path / "out" / "f").touch()
        (place / "end").touch()
        assert ("created", "f") not in told(watch, ("created", "end"))


def test_more_directories_than_are_watched_are_an_error(files, place, monkeypatch):
    monkeypatch.setattr(watching, "_MOST_DIRECTORIES", 2)
    (place / "a").mkdir()
    with files.watch(place, recursive=True):
        pass
    (place / "b").mkdir()
    with pytest.raises(OSError, match="File too large"):
        files.watch(place, recursive=True)


def test_one_file_is_watched_until_it_goes(files, place):
    (place / "f").touch()
    with files.watch(place / "f") as watch:
        (place / "f").write_text("x")
        (place / "f").unlink()
        assert told(watch, ("removed", "f")) == [("modified", "f"), ("removed", "f")]


def test_links_below_are_not_followed(files, place):
    (place / "top").mkdir()
    (place / "out").mkdir()
    (place / "top" / "link").symlink_to(place / "out")
    with files.watch(place / "top", recursive=True) as watch:
        (place / "out" / "f").touch()
        (place / "top" / "another").symlink_to(place / "out")
        (place / "out" / "g").touch()
        (place / "top" / "end").touch()
        assert told(watch, ("created", "end")) == [("created", "another"), ("created", "end")]


def test_more_than_the_kernel_keeps_is_said(files, place):
    most = int(open("/proc/sys/fs/inotify/max_queued_events").read())  # noqa: SIM115
    with files.watch(place) as watch:
        for number in range(most // 2 + 100):
            (place / f"f{number % 7}").touch()
            (place / f"f{number % 7}").unlink()
        kinds = set()
        while "lost" not in kinds:
            event = watch.next(PATIENT)
            assert event is not None
            kinds.add(event.kind)


def test_what_is_not_there_cannot_be_watched(files, place):
    with pytest.raises(FileNotFoundError) as caught:
        files.watch(place / "none")
    assert caught.value.filename == str(place / "none")


def test_a_watch_that_cannot_be_begun_leaves_no_descriptor_open(files, place):
    assert files.exists(place)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError) as caught:
        files.watch(place / "none")
    assert len(os.listdir("/proc/self/fd")) == len(before), caught


def test_after_its_end_it_says_so(files, place):
    with files.watch(place) as watch:
        pass
    with pytest.raises(SandboxGone):
        watch.next(0)


def answer(result: int, contents: bytes = b"") -> bytes:
    return struct.pack("=iI", result, len(contents)) + contents


def facts(mode: int = 0o40755) -> bytes:
    return struct.pack("=IIIIQQq", mode, 1, 0, 0, 1, 0, 0)


def listed(name: bytes) -> list[bytes]:
    """A directory is opened, has one directory in it and no more, and is closed."""
    return [answer(3, facts()), answer(1, facts() + struct.pack("=H", len(name)) + name), answer(0), answer(0)]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR, errno.EACCES])
@pytest.mark.parametrize("watched", [[], [answer(2)]], ids=["watched", "listed"])
def test_a_directory_below_that_is_gone_or_closed_is_passed_over(number, watched):
    answers = answer(1), answer(0, facts()), *listed(b"d"), *watched, answer(-number), answer(0, event(1, 0x100, b"f\0\0\0"))
    with agents.saying(*answers) as files, files.watch("/x", recursive=True) as watch:
        assert watch.next(PATIENT).path == "/x/f"


def test_directories_in_each_other_without_end_are_an_error():
    levels = [said for number in range(20) for said in (answer(2 + number), *listed(b"d" * 255))]
    with agents.saying(answer(1), answer(0, facts()), *levels[1:]) as files, pytest.raises(SandboxError, match="path without end"):
        files.watch("/x", recursive=True)


def event(number: int, mask: int, name: bytes, length: int | None = None) -> bytes:
    return struct.pack("=iIII", number, mask, 0, len(name) if length is None else length) + name


@pytest.mark.parametrize("lie", [event(1, 0x100, b"../x"), event(1, 0x100, b"x", 90), event(1, 0x100, b"..\0\0"), b"half"])
def test_an_event_that_makes_no_sense_is_an_error(lie):
    with agents.saying(answer(1), answer(0, lie)) as files, files.watch("/x") as watch, pytest.raises(SandboxError, match="no sense"):
        watch.next(1)


def test_events_of_what_is_not_watched_are_nothing():
    lies = event(9, 0x100, b"x\0\0\0") + event(9, 0x8000, b"") + event(1, 0x8000, b"") + event(1, 0x100, b"x\0")
    with agents.saying(answer(1), answer(0, lies)) as files, files.watch("/x") as watch:
        assert watch.next(0) is None
