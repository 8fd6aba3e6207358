"""Which exit records are held open for the events of sandboxes, and what becomes of them: directories that a test makes by hand."""

from __future__ import annotations

import os
import resource
import shutil
import zlib

import pytest

from dockless.sandbox.run.events import Events

NUMBERS = ("status", "outcome", "user_us", "system_us", "max_rss_kb", "started_ns", "ended_ns")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "sandboxes").mkdir()
    return tmp_path / "sandboxes"


def made(place, name):
    """A sandbox that has ended, of which nothing but its exit record is there."""
    body = "".join(f"{number} {at}\n" for at, number in enumerate(NUMBERS)).encode() + b"[end]\n"
    (place / name).mkdir()
    (place / name / "exit.tmp").write_bytes(body + b"crc32 %d\n" % zlib.crc32(body))
    return place / name


def test_the_record_of_one_that_went_elsewhere_is_let_go_of(place, tmp_path):
    with Events(state_root=tmp_path) as found:
        before = len(os.listdir("/proc/self/fd"))
        for name in ("a", "b", "c"):
            directory = made(place, name)
            found.read()
            directory.rename(tmp_path / name)
            found.read()
        assert len(os.listdir("/proc/self/fd")) == before + 1


def test_a_record_that_is_opened_anew_counts_once(place, tmp_path):
    """Only so many are held open: half of what the process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, hard))
    try:
        found = Events(state_root=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with found:
        directory = made(place, "a")
        for _ in range(found._budget + 10):
            with open(directory / "exit.tmp", "ab"):
                pass
            found.read()
        shutil.rmtree(directory)
        assert [event.kind for event in found.read()] == ["create", "start", "die", "remove"]
