"""An ordinary user's layers keep their owners: written, read by a sandbox and removed inside a user namespace with her subordinate ids."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import boxes
from support import make_image as make
from support.layers import load
from support.requires import requires

from dockless.errors import BadImage, ImageError, UnsafeLayer
from dockless.images import Store, files
from dockless.images.check import check
from dockless.images.layers import owned

pytestmark = requires("user", "subuid", "userns", "overlay")

ENTRIES = [
    make.directory("srv", 0o700, uid=33, gid=33),
    make.file("srv/secret", "s", 0o600, uid=33, gid=34),
    make.file("su", "x", 0o4755, uid=0),
    make.directory("gone", uid=1),
    make.file("gone/f", "x", uid=1),
    make.file("kept", "k", uid=65534, gid=65534),
    make.symlink("link", "kept", uid=12),
]


def test_owners_modes_and_what_is_hidden(tmp_path: Path):
    top = [make.whiteout("kept"), make.opaque("gone"), make.file("gone/g", "y", uid=2), make.hardlink("hard", "srv/secret")]
    base = make.rootfs_entries()
    load(tmp_path, [base, ENTRIES, top], ref="owned:1")
    script = "stat -c '%n %u:%g %a' /srv /srv/secret /su /gone /gone/* /link /hard; ls /kept /gone; cat /hard"
    ran = boxes.sh(script, image="owned:1")
    assert ran.out.splitlines()[:7] == [
        "/srv 33:33 700",
        "/srv/secret 33:34 600",
        "/su 0:0 4755",
        "/gone 1:0 755",
        "/gone/g 2:0 644",
        "/link 12:0 777",
        "/hard 33:34 600",
    ]
    assert ran.out.splitlines()[7:] == ["/gone:", "g", "s"]
    assert "/kept" in ran.err
    assert check(Store()).problems == ()


def test_it_can_be_removed(tmp_path: Path):
    load(tmp_path, [ENTRIES], ref="owned:1")
    secret = next((Store().root / "layers").glob("*/*/fs/srv"))
    assert secret.stat().st_uid != os.getuid()
    with pytest.raises(PermissionError):
        os.listdir(secret)
    Store().remove("owned:1")
    assert list((Store().root / "layers").glob("*/*")) == []
    assert os.listdir(Store().root / "tmp") == []


def test_an_owner_beyond_the_range(tmp_path: Path):
    with pytest.raises(ImageError, match="outside of your subordinate ranges") as error:
        load(tmp_path, [[make.file("f", "x", uid=3_000_000_000)]])
    assert "/etc/subuid" in error.value.hint
    assert os.listdir(Store().root / "tmp") == []


@pytest.mark.parametrize(("entries", "kind"), [([make.file("../x", "y")], UnsafeLayer), ([make.hardlink("h", "nothing")], BadImage)])
def test_errors_come_back_as_they_are(tmp_path: Path, entries, kind):
    with pytest.raises(kind):
        load(tmp_path, [ENTRIES, entries])
    assert os.listdir(Store().root / "tmp") == []


def test_the_writer_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    started = owned.inside.start
    processes = []

    def start(*arguments, **more):
        processes.append(started(*arguments, **more))
        if more.get("stdin"):
            processes[-1].kill()
        return processes[-1]

    monkeypatch.setattr(owned.inside, "start", start)
    with pytest.raises(ImageError, match="writer"):
        load(tmp_path, [[make.file("f", bytes(4 << 20))]])
    assert os.listdir(Store().root / "tmp") == []
    assert all(process.returncode is not None for process in processes)


WAIT = """
import os, sys
from pathlib import Path
from dockless.images import files, subid
from dockless.images.layers import owned
from dockless.images.layers.limits import UnpackLimits
with files.temporary_directory(Path(sys.argv[1])) as scratch:
    (scratch / "fs").mkdir()
    writer = owned.OwnedWriter(subid.ids(), scratch, scratch / "fs", "test", UnpackLimits())
    writer.feed(bytes(1024))
    try:
        print(writer._process.pid, writer._process.stdin.fileno(), flush=True)
        input()
    except KeyboardInterrupt:
        pass
"""


@pytest.fixture
def starter(tmp_path: Path):
    """A process that has started a writer, the writer's process id, and the pipe to the writer as its starter has it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen([sys.executable, "-c", WAIT, tmp_path / "tmp"], process_group=0, **pipes) as process:
        writer, pipe = process.stdout.readline().split()
        yield process, int(writer), Path(f"/proc/{process.pid}/fd") / pipe.decode()
        process.kill()


def test_the_writer_does_not_outlive_its_starter(starter):
    process, writer, _ = starter
    pidfd = os.pidfd_open(writer)
    process.kill()
    _, errors = process.communicate()
    assert select.select([pidfd], [], [], boxes.DEADLINE)[0]
    os.close(pidfd)
    assert errors == b""


def test_what_is_still_written_is_not_swept(starter, tmp_path: Path):
    """Killed at once, the writer may live a moment longer than its starter: a sweeper between the two must not meet its files."""
    process, writer, pipe = starter
    pidfd = os.pidfd_open(writer)
    # A writer stopped by a signal would be ended by the kernel where its process group is an orphan.
    with open(pipe, "wb"):
        process.kill()
        process.wait()
        files.sweep(tmp_path / "tmp")
        assert len(os.listdir(tmp_path / "tmp")) == 1
    assert select.select([pidfd], [], [], boxes.DEADLINE)[0]
    os.close(pidfd)
    files.sweep(tmp_path / "tmp")
    assert os.listdir(tmp_path / "tmp") == []


def test_ctrl_c_is_the_starters(starter):
    process, _, _ = starter
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=boxes.DEADLINE)
    assert errors == b""
