"""Where dockless keeps things, for whom; and directories with exactly the modes that were asked for."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dockless.base import paths
from dockless.errors import BadInput, Unwritable

PLACES = {
    "store": paths.store, "runtime": paths.runtime, "state": paths.state, "config": paths.config_file, "shared": paths.shared_store,
}  # fmt: skip
SHARED = {"shared": "/var/lib/dockless/store"}
ROOTS = {
    "store": "/var/lib/dockless/store",
    "runtime": "/run/dockless",
    "state": "/var/lib/dockless",
    "config": "/etc/dockless/dockless.toml",
}
MOVED = {"store": "/x/store", "runtime": "/x/run", "state": "/x/state", "config": "/x/dockless.toml"}
OWN = {
    "store": "/home/ann/.local/share/dockless", "runtime": "/home/ann/.local/state/dockless/run",
    "state": "/home/ann/.local/state/dockless", "config": "/home/ann/.config/dockless/dockless.toml",
}  # fmt: skip
XDG = {"XDG_DATA_HOME": "/d", "XDG_RUNTIME_DIR": "/r", "XDG_STATE_HOME": "/s", "XDG_CONFIG_HOME": "/c"}
BY_XDG = {"store": "/d/dockless", "runtime": "/r/dockless", "state": "/s/dockless", "config": "/c/dockless/dockless.toml"}


@pytest.mark.parametrize(
    ("uid", "variables", "expected"),
    [
        (0, {}, ROOTS), (0, XDG, ROOTS), (0, {"DOCKLESS_HOME": ""}, ROOTS),
        (0, {"DOCKLESS_HOME": "/x"}, MOVED), (1000, {"DOCKLESS_HOME": "/x", **XDG}, MOVED),
        (1000, {}, OWN), (1, {}, OWN), (1000, XDG, BY_XDG),
        (1000, dict.fromkeys(XDG, "relative"), OWN), (1000, dict.fromkeys(XDG, ""), OWN),
    ],
)  # fmt: skip
def test_places(monkeypatch, uid, variables, expected):
    for name in (*XDG, "DOCKLESS_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/ann", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert {name: str(place()) for name, place in PLACES.items()} == expected | SHARED


def test_without_a_home_directory(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as it answers where nobody knows one
    with pytest.raises(BadInput, match=f"user {os.getuid()} has no home directory") as caught:
        paths.user_home()
    assert caught.value.subject == "HOME" and caught.value.hint


@pytest.mark.parametrize(
    ("place", "accepted"),
    [("/x" * 1024, True), ("/x" * 1024 + "y", False), ("/" + "x" * 255, True), ("/" + "x" * 256, False), ("/" + "\xe9" * 128, False)],
)
def test_how_long_a_path_may_be(monkeypatch, place, accepted):
    monkeypatch.setenv("DOCKLESS_HOME", place)
    if accepted:
        assert str(paths.store()) == f"{place}/store"
        return
    with pytest.raises(BadInput, match=f"too long a path: {len(os.fsencode(place))} bytes") as caught:
        paths.store()
    assert caught.value.subject == "DOCKLESS_HOME"


@pytest.mark.parametrize("place", ["x", "./x", "../x", "~/x"])
def test_a_relative_path_is_refused(monkeypatch, place):
    """A keeper, a restarter or a program that changes its directory would look elsewhere."""
    monkeypatch.setenv("DOCKLESS_HOME", place)
    for where in (paths.store, paths.runtime, paths.state):
        with pytest.raises(BadInput, match="DOCKLESS_HOME is a relative path") as caught:
            where()
        assert caught.value.subject == "DOCKLESS_HOME" and caught.value.hint


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("umask", [0, 0o077, 0o377])
def test_directories_have_the_modes_that_were_asked_for(tmp_path, umask):
    before = os.umask(umask)
    try:
        assert paths.make(tmp_path / "a/b/c") == tmp_path / "a/b/c"
        paths.make(tmp_path / "d/e", mode=0o750, parents=0o755)
        assert paths.make_new(tmp_path / "f/g/h") and paths.make_new(tmp_path / "i/j", mode=0o750, parents=0o755)
    finally:
        os.umask(before)
    expected = {
        "a": 0o711, "a/b": 0o711, "a/b/c": 0o700, "d": 0o755, "d/e": 0o750,
        "f": 0o711, "f/g": 0o711, "f/g/h": 0o700, "i": 0o755, "i/j": 0o750,
    }  # fmt: skip
    assert {name: mode(tmp_path / name) for name in expected} == expected


def test_what_is_there_stays_as_it_is(tmp_path):
    (tmp_path / "there").mkdir(mode=0o755)
    os.chmod(tmp_path / "there", 0o755)
    paths.make(tmp_path / "there")
    assert paths.make_new(tmp_path / "there") is False and mode(tmp_path / "there") == 0o755


@pytest.mark.parametrize("link", [True, False])
def test_what_somebody_puts_there_meanwhile_is_left_alone(tmp_path, monkeypatch, link):
    """A link to another directory, or a file."""
    victim = tmp_path / "victim"
    mkdir = Path.mkdir
    mkdir(victim) if link else victim.write_text("")
    os.chmod(victim, 0o755)

    def replaced(self, mode=0o777):
        mkdir(self, mode)
        self.rmdir()
        self.symlink_to(victim) if link else os.link(victim, self)

    monkeypatch.setattr(Path, "mkdir", replaced)
    with pytest.raises(Unwritable, match="cannot write a directory of dockless"):
        paths.make(tmp_path / "new")
    assert mode(victim) == 0o755


def test_until_it_has_its_mode_it_is_nobody_elses(tmp_path, monkeypatch):
    seen = []
    fchmod = os.fchmod
    monkeypatch.setattr(os, "fchmod", lambda fd, wanted: (seen.append(os.fstat(fd).st_mode & 0o777), fchmod(fd, wanted)))
    before = os.umask(0)
    try:
        paths.make(tmp_path / "new", mode=0o755)
    finally:
        os.umask(before)
    assert seen == [0o700]


def test_what_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    for make in (paths.make, paths.make_new):
        with pytest.raises(Unwritable, match=r"^cannot write a directory of dockless: Not a directory$") as caught:
            make(tmp_path / "file/below")
        assert (caught.value.errno, caught.value.hint[:7]) == (errno.ENOTDIR, "look at")


@pytest.mark.parametrize(
    ("cause", "said", "number", "hint"),
    [
        (OSError(errno.ENOSPC, "No space"), "cannot write it: No space", errno.ENOSPC, paths.HINTS[errno.ENOSPC]),
        (OSError(5555, "odd"), "cannot write it: odd", 5555, "look at the file system of /x"),
        (OSError("odd"), "cannot write it: None", 0, "look at the file system of /x"),
        (None, "cannot write it: it was refused", 0, "look at the file system of /x"),
    ],
)
def test_the_error_of_a_file_that_cannot_be_written(cause, said, number, hint):
    error = paths.unwritable("it", Path("/x"), cause)
    assert (str(error), error.subject, error.errno, error.hint) == (said, "/x", number, hint)
