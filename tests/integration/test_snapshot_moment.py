"""A snapshot shows one moment: of what a program does to its files, first to one, then to another, both are in it or the first alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import apart
from support.boxes import load, until
from support.requires import requires

import dockless
from dockless import Sandbox
from dockless.cgroups import find_delegation
from dockless.images import Store
from dockless.images.archive import capture
from dockless.native import survey

pytestmark = requires("userns", "overlay", "cgroup2")
BETWEEN = int(30_000_000 / apart.slowness())
"""Bytes that are read between the one file and the other: as long on every machine."""

WRITER = r"""
import mmap, os
n = 0
def opened(name):
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 1 << 16)
    return fd
written = [opened("/d/written-1"), opened("/e/written-2")]
mapped = [mmap.mmap(opened(name), 1 << 16) for name in ("/d/mapped-1", "/e/mapped-2")]
for name in ("/d/set-1", "/e/set-2"):
    open(name, "w").close()
def put(name, number):
    with open(name, "w") as file:
        file.write(str(number))
while True:
    n += 1
    for fd in written:
        os.pwrite(fd, b"%08d" % n, 4096)
    for m in mapped:
        m[8192:8200] = b"%08d" % n
    if n % 50 == 1:
        k = n // 50
        for name in ("/d/set-1", "/e/set-2"):
            os.chmod(name, k % 512)
            os.setxattr(name, "user.n", b"%d" % k)
            os.truncate(name, k)
        for name in ("/d/put-1", "/e/put-2"):
            put(name + ".new", k)
            os.rename(name + ".new", name)
        os.link("/d/put-1", "/e/linked")
        os.unlink("/e/linked")
    if n == 100:
        open("/ready", "w").close()
"""


@pytest.fixture
def box(tmp_path):
    if find_delegation(ask_systemd=False).path is None:
        pytest.skip("no cgroup v2 of our own, by which something could be frozen")
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    host = [f"{place}:{place}:ro" for place in ("/usr", "/lib", "/lib64") if os.path.isdir(place)]
    command = f"mkdir /d /e; head -c {BETWEEN} /dev/zero > /d/between; exec /usr/bin/python3 -S /writer.py"
    box = dockless.start(load(tmp_path), ["/bin/sh", "-c", command], mounts=[*host, f"{script}:/writer.py:ro"])
    until(lambda: (Path(box.inspect()["directory"]) / "upper/ready").exists(), "it writes")
    yield box
    box.rm(force=True)


def torn(box: dockless.Sandbox) -> set[str]:
    """What is of two moments in a new snapshot."""
    made = box.snapshot()
    _, parsed, _ = Store().documents(made.digest, "test")
    with tarfile.open(Store().blob_path(parsed.layers[-1].digest)) as archive:
        files = {info.name: info for info in archive}

        def text(name: str, at: int = 0) -> str:
            stream = archive.extractfile(files[name])
            assert stream is not None
            stream.seek(at)
            return stream.read(8).decode()

        def attribute(name: str) -> int:
            return int(files[name].pax_headers.get("SCHILY.xattr.user.n", "0"))

        pairs = {
            "written": (int(text("d/written-1", 4096)), int(text("e/written-2", 4096))),
            "mapped": (int(text("d/mapped-1", 8192)), int(text("e/mapped-2", 8192))),
            "replaced": (int(text("d/put-1")), int(text("e/put-2"))),
            "size": (files["d/set-1"].size, files["e/set-2"].size),
            "xattr": (attribute("d/set-1"), attribute("e/set-2")),
            "mode": (attribute("d/set-1") % 512, files["d/set-1"].mode),
        }
        assert "e/linked" not in files or files["e/linked"].linkname == "d/put-1"
    order = ("written", "mapped", "replaced", "size", "xattr")
    found = {name for name in order if not 0 <= pairs[name][0] - pairs[name][1] <= 1}
    if (pairs["mode"][1] - pairs["mode"][0]) % 512 not in (0, 1):  # the mode is set first
        found.add("mode")
    if not 0 <= pairs["written"][1] - pairs["mapped"][1] <= 1 or made.paused <= 0:
        found.add("between")
    return found


def test_whatever_a_program_does_is_of_one_moment(box):
    for _ in range(int(os.environ.get("DOCKLESS_TEST_ROUNDS", "4"))):
        assert torn(box) == set()


def test_nobody_lets_it_go_on_in_the_middle(box):
    """Neither who takes another snapshot at the same time, nor who resumes it."""
    over = threading.Event()

    def resume() -> None:
        while not over.is_set():
            box.resume()

    with ThreadPoolExecutor(4) as threads:
        threads.submit(resume)
        try:
            assert [*threads.map(torn, [Sandbox.open(box.id) for _ in range(3)])] == [set()] * 3
        finally:
            over.set()


def test_a_lock_that_others_can_take_holds_up_nobody(box):
    """Whoever may read a file can lock it, flock(2): those of its group everybody may."""
    group = box.inner.cgroup()
    with contextlib.closing(group), contextlib.ExitStack() as held:
        for path in [group.path, *group.path.iterdir()]:
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDONLY)
                held.callback(os.close, fd)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        box.pause()
        assert box.state == "paused"
        box.resume()
        assert torn(box) == set()


@requires("root")
@pytest.mark.parametrize("without", ["the second look", "the flush"])
def test_the_test_would_see_it(box, monkeypatch, without):
    """Each step is needed: without it the snapshot is of several moments."""
    if without == "the flush":
        monkeypatch.setattr(capture, "flush", lambda fd: None)
        assert any({"mapped", "between"} & torn(box) for _ in range(20))
        return
    real = survey.Survey.changed
    found = []

    def once(self):
        known = list(real(self))
        found.append(known)
        return iter(known if len(found) == 1 else [entry for entry in known if entry.info.st_size != 1 << 16])

    monkeypatch.setattr(survey.Survey, "changed", once)
    assert {"written", "mapped", "between"} & torn(box)
