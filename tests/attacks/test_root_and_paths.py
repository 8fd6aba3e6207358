"""A59: root acts where a user can change things meanwhile: links flipped by renameat2(EXCHANGE), what an older version left to her."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import signal
import stat
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.boxes import log_paths
from support.scheduling import DaemonProcess, as_user

from dockless.base import paths
from dockless.cgroups import IoMax, Limits
from dockless.errors import BadInput, DocklessError, SandboxError
from dockless.images.archive import output
from dockless.sandbox.run import detached
from dockless.sandbox.run.removal import remove_tree
from dockless.sandbox.spec import Spec, Volume
from dockless.sandbox.volumes import volume_path
from dockless.sched import JobSpec

pytestmark = pytest.mark.requires("root", "userns")

ANNA = pwd.getpwnam("daemon").pw_uid
EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file that is root's alone, in a directory that everybody can enter."""
    place = Path(tempfile.mkdtemp(prefix="dk-canary-", dir="/var/tmp"))
    place.chmod(0o755)
    file = place / "secret"
    file.touch(0o600)
    file.write_text("nobody's business")
    yield file
    file.unlink()
    place.rmdir()


def identity(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode), found.st_ctime_ns


@contextlib.contextmanager
def as_anna(directory: Path, body: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """``body(ready)`` in a process of Anna's that was put into ``directory``, from when it is ready until the block ends."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.chdir(directory)
            os.setgroups([])
            os.setresgid(ANNA, ANNA, ANNA)
            os.setresuid(ANNA, ANNA, ANNA)
            body(lambda: os.write(writer, b"!") and None)
        finally:
            os._exit(0)
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"!"
        yield
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(reader)


def flip(names: list[str]) -> Callable[[Callable[[], None]], None]:
    """Exchange a link with whatever has one of these names, for ever."""

    def body(ready: Callable[[], None]) -> None:
        ready()
        while True:
            for name in names:
                _libc.renameat2(-100, b"link-" + name.encode(), -100, name.encode(), EXCHANGE)

    return body


def wait_with_it_open(ready: Callable[[], None]) -> None:
    opened = os.open(".", os.O_RDONLY)
    ready()
    signal.pause()
    os.close(opened)


def acl_with(uid: int) -> bytes:
    """Everything for this user, as linux/posix_acl_xattr.h has it."""
    rows = ((1, 7, -1), (2, 7, uid), (4, 0, -1), (0x10, 7, -1), (0x20, 0, -1))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *row) for row in rows)


def hers(mode: int = 0o700) -> Path:
    """Anna's folder as an older version left it: her own."""
    folder = paths.state() / "volumes" / str(ANNA)
    folder.mkdir(mode=mode, parents=True)
    folder.parent.chmod(0o711)
    folder.chmod(mode)
    os.chown(folder, ANNA, 0)
    return folder


@pytest.mark.parametrize("again", range(5))
def test_a_hundred_links_that_flip_while_root_makes_volumes(home, secret, again):
    """One try caught root's chown two times out of three."""
    folder = hers()
    names = [f"v{number}" for number in range(100)]
    for name in names:
        (folder / f"link-{name}").symlink_to(secret)
        os.lchown(folder / f"link-{name}", ANNA, ANNA)
    before = identity(secret)
    with as_anna(folder, flip(names)):
        for name in names:
            with contextlib.suppress(SandboxError):
                volume_path(name, ANNA)
            assert identity(secret) == before


def test_a_folder_that_was_the_users_is_roots_again(home):
    folder = hers(0o2777)
    made = folder / "data"
    made.mkdir()
    os.chown(made, ANNA, ANNA)
    for kind in ("access", "default"):
        with contextlib.suppress(OSError):  # a file system without access control lists
            os.setxattr(folder, f"system.posix_acl_{kind}", acl_with(ANNA))
    with as_anna(folder, wait_with_it_open):
        volume_path("data", ANNA)
    found = folder.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 0, 0o700)
    assert not [name for name in os.listxattr(folder) if "acl" in name]
    assert made.stat().st_uid == ANNA
    fresh = Path(volume_path("fresh", ANNA)).stat()
    assert (fresh.st_uid, stat.S_IMODE(fresh.st_mode)) == (ANNA, 0o755)


@pytest.mark.parametrize("where", ["the folder", "the volume", "the volume being made"])
def test_a_link_that_lies_there_already(home, secret, where):
    folder = hers()
    elsewhere = secret.parent / "private"
    elsewhere.mkdir(mode=0o700)
    try:
        before = identity(elsewhere), identity(secret)
        if where == "the folder":
            folder.rmdir()
            folder.symlink_to(elsewhere)
        else:
            (folder / ("data" if where == "the volume" else ".new")).symlink_to(elsewhere)
        with pytest.raises(SandboxError, match="cannot be used"):
            volume_path("data", ANNA)
        assert (identity(elsewhere), identity(secret)) == before and list(elsewhere.iterdir()) == []
    finally:
        elsewhere.rmdir()


def test_a_folder_that_others_can_write_is_not_used(home):
    folder = paths.state() / "volumes"
    for owner, mode in ((ANNA, 0o711), (0, 0o777)):
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, owner, owner)
        folder.chmod(mode)
        with pytest.raises(SandboxError, match="changed by others"):
            volume_path("data", ANNA)


def test_her_volume_is_hers_inside_and_out_of_reach_outside(home):
    """Root opens it for her: she needs no way to it, and has none."""
    for script, said in (("echo kept > /data/file; stat -c %u /data", "0"), ("cat /data/file", "kept")):
        box = detached.start(Spec(argv=("/bin/sh", "-c", script), mounts=(Volume("data", "/data"),)), owner=ANNA)
        try:
            assert box.wait(30).code == 0, [path.read_text() for path in log_paths(box)]
            assert said in "".join(path.read_text() for path in log_paths(box))
        finally:
            box.remove()
    made = Path(volume_path("data", ANNA))
    assert made.stat().st_uid == (made / "file").stat().st_uid == ANNA

    def knock(ready: Callable[[], None]) -> None:
        with contextlib.suppress(PermissionError):
            os.listdir(str(ANNA))
            return
        with contextlib.suppress(PermissionError):
            os.stat(f"{ANNA}/data")
            return
        ready()
        signal.pause()

    with as_anna(made.parent.parent, knock):
        pass


def shuffle(ready: Callable[[], None]) -> None:
    """Move a deep directory up and down again, for ever: what a process of a dying sandbox does to its upper."""
    ready()
    deep, high = b"a/b/c/d/e/f", b"f"
    while True:
        _libc.rename(deep, high)
        _libc.rename(high, deep)


def test_a_tree_that_moves_while_it_is_removed(home):
    """The way up from a directory that was moved leads past the top: what lies beside the tree must not go with it."""
    place = paths.state() / "trees"
    beside = place / "beside"
    beside.mkdir(parents=True)
    (beside / "canary").write_text("mine")
    for number in range(150):
        tree = place / f"tree-{number}"
        (tree / "a/b/c/d/e/f/g/h").mkdir(parents=True)
        for path in [tree, *tree.rglob("*")]:
            os.chown(path, ANNA, ANNA)
        with as_anna(tree, shuffle), contextlib.suppress(DocklessError):
            remove_tree(tree)
        assert (beside / "canary").exists(), number
        remove_tree(tree)
        assert not tree.exists()


def test_a_pipe_that_becomes_a_link_while_an_archive_is_written(home, secret, monkeypatch):
    """Between the look and the opening her directory is hers: nothing is cut, nothing is written."""
    place = paths.state() / "hers"
    place.mkdir(parents=True)
    os.mkfifo(place / "out")
    looked = Path.stat

    def stat_and_swap(self: Path, **how: bool) -> os.stat_result:
        found = looked(self, **how)
        if self == place / "out" and stat.S_ISFIFO(found.st_mode):
            self.unlink()
            self.symlink_to(secret)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Path, "is_dir", lambda self: False)
        patched.setattr(Path, "stat", stat_and_swap)
        with pytest.raises(BadInput, match="replaced"), output.opened(place / "out"):
            pass
    assert secret.read_text() == "nobody's business"


def test_a_disk_is_looked_up_with_the_rights_of_whoever_asks(home, secret):
    """Root's answer would tell what lies in directories that are closed to her."""
    (secret.parent / "closed").mkdir(mode=0o700)
    daemon = DaemonProcess(home).start()
    try:
        answers = []
        for path in (secret.parent / "closed", secret.parent / "closed" / "nothing"):
            limits = {"io_max": [{"target": str(path), "rbps": 1}]}
            job = {"spec": {"argv": ["true"], "limits": limits, "best_effort": True}}
            answers.append(as_user(ANNA, daemon.socket.parent, lambda q, job=job: q._call("submit", jobs=[job])))
        assert answers[0] == answers[1] and answers[0][:2] == ("error", "NotPermitted")
        own = JobSpec(Spec(argv=("true",), limits=Limits(io_max=(IoMax(str(secret.parent / "closed/nothing"), rbps=1),)), best_effort=True))
        outcome = as_user(ANNA, daemon.socket.parent, lambda q: q.submit(own))
        assert outcome[:2] == ("error", "BadInput") and "Permission denied" in outcome[2]
    finally:
        daemon.stop()
        (secret.parent / "closed").rmdir()
