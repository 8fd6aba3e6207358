"""The exit record: whole ones are read, of either format; everything else is refused with a reason, whatever the bytes."""

from __future__ import annotations

import errno
import os
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless.base.locks import is_locked
from dockless.sandbox.run import health, records
from dockless.sandbox.state import HEALTHS

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


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("status", b"65535", None), ("status", b"65536", "65536 is no wait status"),
        ("user_us", b"18446744073709551615", None), ("user_us", b"18446744073709551616", "is no number"),
        ("user_us", b"000000000000000000012", "is no number"), ("user_us", b"00000000000000000012", None),
        ("user_us", b"-1", "is no number"), ("user_us", b"", "is no number"), ("user_us", b"1 2", "is no number"),
        ("user_us", "\u0661".encode(), "is no number"), ("user_us", "\u00b9".encode(), "is no number"),
    ],
)  # fmt: skip
def test_the_numbers_of_a_record(key, value, why):
    lines = [f"{key} ".encode() + value if line.startswith(key.encode() + b" ") else line for line in NUMBERS.split(b"\n")]
    raw = b"\n".join(lines).partition(b"[cpu.stat]")[0]
    if why is None:
        assert records.parse_exit(raw).usage is not None
    else:
        with pytest.raises(ValueError, match=why):
            records.parse_exit(raw)


@pytest.mark.parametrize("name", ["status", "outcome", "user_us", "system_us", "max_rss_kb", "started_ns", "ended_ns"])
def test_each_number_has_to_be_there(name):
    raw = b"".join(line + b"\n" for line in NUMBERS.partition(b"[")[0].splitlines() if not line.startswith(name.encode() + b" "))
    with pytest.raises(ValueError, match=f"{name} is missing"):
        records.parse_exit(raw)


def test_what_a_record_says():
    """Micro- and nanoseconds become seconds, kilobytes bytes; without the group's files there is the process's own account."""
    ended = records.parse_exit(NUMBERS.partition(b"[")[0])
    assert (ended.code, ended.started, ended.ended, ended.max_rss, ended.oom_killed) == (3, 1.7e9, 1.7e9 + 1, 400 * 1024, False)
    assert ended.usage is not None
    assert (ended.usage.cpu_seconds, ended.usage.user_seconds, ended.usage.system_seconds) == pytest.approx((15e-6, 12e-6, 3e-6))
    grouped = records.parse_exit(NUMBERS)
    assert grouped.usage is not None and (grouped.usage.user_seconds, grouped.usage.cpu_seconds) == pytest.approx((15e-6, 20e-6))


@pytest.mark.parametrize(
    ("keeper", "init", "fine"),
    [(1, 1, True), ((1 << 22) - 1, (1 << 22) - 1, True), (1 << 22, 1, False), (1, 1 << 22, False), (0, 1, False), (1, 0, False)],
)
def test_pids_of_a_record(keeper, init, fine):
    raw = b"keeper %d\ninit %d\n" % (keeper, init)
    if fine:
        assert records.parse_started(raw) == {"keeper": keeper, "init": init}
    else:
        with pytest.raises(ValueError, match="it names no " + ("init" if 0 < keeper < 1 << 22 else "keeper")):
            records.parse_started(raw)
    for name in (b"keeper", b"init"):
        with pytest.raises(ValueError, match=f"it names no {name.decode()}"):
            records.parse_started(b"".join(line + b"\n" for line in b"keeper 5\ninit 6".splitlines() if not line.startswith(name)))


def test_the_largest_file_that_is_read(tmp_path):
    (tmp_path / "most").write_bytes(b"x" * records.MOST)
    assert records.read(tmp_path / "most") == b"x" * records.MOST
    (tmp_path / "more").write_bytes(b"x" * (records.MOST + 1))
    with pytest.raises(ValueError, match=f"it has {records.MOST + 1} bytes"):
        records.read(tmp_path / "more")


def test_why_a_file_could_not_be_read(tmp_path, monkeypatch):
    """Damage is a ValueError; what says nothing about the file is not."""
    for number, expected in ((errno.EMFILE, OSError), (errno.ENFILE, OSError), (errno.EIO, ValueError), (errno.ENOENT, FileNotFoundError)):

        def refuse(*arguments, number=number, **more):
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patched:
            patched.setattr(os, "open", refuse)
            with pytest.raises(expected, match=os.strerror(number)):
                records.read(tmp_path)


@pytest.mark.parametrize(
    "raw", [b"format 2\n" + NUMBERS, NEW[:-1] + b"x\n", NEW.replace(b"crc32", b"crc33"), NEW.replace(b"crc32 ", b"crc32 x"), b"[end]\n"]
)
def test_ends_that_are_none(raw):
    with pytest.raises(ValueError, match=r"it has no end|its checksum is wrong"):
        records.parse_exit(raw)
    with pytest.raises(ValueError, match=r"it has no end|its checksum is wrong"):
        records.parse_started(raw if b"[end]" in raw else raw + b"[end]\n")


@pytest.mark.parametrize("state", [0, 1, 2, 3])
def test_a_state_of_health_that_there_is_not(state: int):
    names = "streak", "count", "status", "outcome", "began_ns", "ended_ns", "changed_ns"
    raw = _sealed(f"format 1\nstate {state}\n{''.join(f'{name} 0{chr(10)}' for name in names)}output \n".encode())
    if state < len(HEALTHS):
        assert health.parse(raw).status == HEALTHS[state]
    else:
        with pytest.raises(ValueError, match="what no check can be"):
            health.parse(raw)
