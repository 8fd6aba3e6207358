"""The exit record: whole ones are read, of either format; everything else is refused with a reason, whatever the bytes."""

from __future__ import annotations

import errno
import os
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless.sandbox import records
from dockless.sandbox.locks import is_locked

NUMBERS = (
    b"status 768\noutcome 0\nuser_us 12\nsystem_us 3\nmax_rss_kb 400\nstarted_ns 1700000000000000000\nended_ns 1700000001000000000\n"
    b"[cpu.stat]\nusage_usec 20\nuser_usec 15\n[memory.events]\noom_kill 1\n"
)


def _sealed(body: bytes) -> bytes:
    whole = body + b"[end]\n"
    return whole + b"crc32 %d\n" % zlib.crc32(whole)


NEW = _sealed(b"format 2\n" + NUMBERS)


@pytest.mark.parametrize("raw", [NEW, NUMBERS, NEW + bytes(5000)], ids=["sealed", "of an older keeper", "not cut off"])
def test_whole_ones(raw: bytes):
    ended = records.parse_exit(raw)
    assert (ended.code, ended.signal, ended.oom_killed, ended.max_rss) == (3, None, True, 400 << 10)
    assert ended.usage is not None and ended.usage.cpu_seconds == 20e-6


@given(st.integers(0, len(NEW) - 1))
def test_a_sealed_one_that_is_cut_off(length: int):
    with pytest.raises(ValueError, match=r"\w"):
        records.parse_exit(NEW[: length - (length == len(NEW) - 1)])


@given(st.integers(0, NEW.index(b"crc32") - 1), st.integers(1, 255))
def test_a_sealed_one_with_one_wrong_byte(place: int, change: int):
    raw = bytearray(NEW)
    raw[place] ^= change
    with pytest.raises(ValueError, match=r"\w"):
        records.parse_exit(bytes(raw))


@given(
    st.one_of(
        st.binary(max_size=300),
        st.builds(lambda at, more: NUMBERS[:at] + more, st.integers(0, len(NUMBERS)), st.binary(max_size=400)),
        st.builds(lambda n: NUMBERS.replace(b"usage_usec 20", b"usage_usec " + b"9" * n), st.integers(1, 5000)),
        st.builds(lambda n: NUMBERS.replace(b"status 768", b"status " + b"9" * n), st.integers(1, 5000)),
    )
)
def test_any_bytes_are_a_record_or_a_reason(raw: bytes):
    for parse in (records.parse_exit, records.parse_started):
        try:
            parse(raw)
        except ValueError as error:
            assert str(error)


def test_empty_is_no_record():
    """What a keeper on a full disk used to publish."""
    with pytest.raises(ValueError, match="missing"):
        records.parse_exit(b"")
    with pytest.raises(ValueError, match="no keeper"):
        records.parse_started(b"")


def test_started_of_both_formats():
    body = b"keeper 12\ninit 13\n"
    assert records.parse_started(body) == records.parse_started(_sealed(body)) == {"keeper": 12, "init": 13}
    for wrong in (b"keeper 0\ninit 1\n", b"keeper 99999999\ninit 1\n", _sealed(body)[:-2]):
        with pytest.raises(ValueError, match=r"\w"):
            records.parse_started(wrong)


def test_room_is_really_taken(tmp_path):
    records.reserve(tmp_path)
    for name, size in records.ROOM.items():
        found = (tmp_path / name).stat()
        assert found.st_size == size and found.st_blocks * 512 >= size


def test_room_where_there_is_no_fallocate(tmp_path, monkeypatch):
    def refuse(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    test_room_is_really_taken(tmp_path)


def test_room_that_is_not_there(tmp_path, monkeypatch):
    def refuse(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="full"):
        records.reserve(tmp_path)


def test_damaged_files_are_not_read(tmp_path):
    """And nothing stays open."""
    before = os.listdir("/proc/self/fd")
    (tmp_path / "whole").write_bytes(NEW)
    assert records.read(tmp_path / "whole") == NEW
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("link")
    with open(tmp_path / "large", "wb") as stream:
        stream.truncate(records.MOST + 1)
    for name in ("pipe", "directory", "link", "large"):
        with pytest.raises(ValueError, match=r"\w"):
            records.read(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        records.read(tmp_path / "none")
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("number", errno.errorcode.values())
def test_what_cannot_be_opened_is_damaged_unless_the_error_is_ours(tmp_path, monkeypatch, number):
    code = getattr(errno, number)
    ours = code in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    path = tmp_path / "exit"
    path.write_bytes(NEW)

    def refuse(*how: object) -> int:
        raise OSError(code, "refused")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError if ours or code == errno.ENOENT else ValueError, match="refused"):
        records.read(path)
    if ours:
        with pytest.raises(OSError, match="refused"):
            is_locked(path)
    else:
        assert not is_locked(path)


def test_a_path_that_cannot_be_is_locked_by_nobody(tmp_path):
    assert not is_locked(tmp_path / ("x" * 300))
