"""Reading what a keeper wrote: records, the two files in their order, what was dropped, and no file that is none."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from dockless.sandbox.run.logfile import Log, Row, last_rows, open_log, parse

AT = "2026-01-02T03:04:05.000000006Z"


def line(text: str, stream: str = "stdout", tag: str = "F") -> bytes:
    return f"{AT} {stream} {tag} {text}\n".encode()


def dropped(count: int | str) -> bytes:
    return f"{AT} log D {count}\n".encode()


@pytest.fixture
def place(tmp_path):
    """A log's directory, and what is open at the end as it was at the beginning."""
    before = sorted(os.listdir("/proc/self/fd"))
    yield tmp_path
    assert sorted(os.listdir("/proc/self/fd")) == before


def read(place: Path, after: int = 0) -> tuple[list[bytes | int], int]:
    """All rows at once, a number for what was dropped; and where that ends."""
    log = Log(partial(open_log, place), after)
    found: list[bytes | int] = []
    try:
        while rows := log.read():
            found += [row.dropped or row.text for row in rows]
    finally:
        log.close()
        log.close()
    return found, log.position


@pytest.mark.parametrize(
    ("raw", "row"),
    [
        (f"{AT} stdout F text", Row(AT, "stdout", b"text")),
        (f"{AT} stderr P te xt ", Row(AT, "stderr", b"te xt ", partial=True)),
        (f"{AT} stdout F ", Row(AT, "stdout", b"")),
        (f"{AT} stdout F", Row(AT, "stdout", b"")),
        (f"{AT} stdin F text", Row("", "stdout", f"{AT} stdin F text".encode())),
        (f"{AT} stdout X text", Row("", "stdout", f"{AT} stdout X text".encode())),
        ("", Row("", "stdout", b"")),
    ],
)
def test_records(raw, row):
    assert parse(raw.encode()) == row


def test_what_the_program_wrote():
    assert [Row(AT, "stdout", b"a").written, Row(AT, "stdout", b"a", partial=True).written] == [b"a\n", b"a"]
    assert Row(AT, "", b"", dropped=3).written == b"", "what is missing is no line"


def test_there_is_no_log(place):
    assert read(place) == ([], 0)
    (place / "log").touch()
    assert read(place) == ([], 0)


def test_both_files_in_their_order(place):
    (place / "log.1").write_bytes(line("a") + line("bb", "stderr", "P"))
    assert read(place) == ([b"a", b"bb"], 4)
    (place / "log").write_bytes(line("cc"))
    assert read(place) == ([b"a", b"bb", b"cc"], 7)


@pytest.mark.parametrize(
    ("after", "found"), [(0, [b"a", b"bb", b"cc"]), (1, [b"a", b"bb", b"cc"]), (2, [b"bb", b"cc"]), (4, [b"cc"]), (6, [b"cc"]), (7, [])]
)
def test_from_a_place_on(place, after, found):
    """What is not read to its end is said again."""
    (place / "log").write_bytes(line("a") + line("bb", tag="P") + line("cc"))
    assert read(place, after) == (found, 7)


@pytest.mark.parametrize(
    ("raw", "after", "found", "end"),
    [
        (dropped(5) + line("a"), 0, [5, b"a"], 7),
        (line("a") + dropped(5) + line("b"), 0, [b"a", 3, b"b"], 7),
        (line("a") + dropped(2) + line("b"), 0, [b"a", b"b"], 4),
        (line("a") + dropped(1) + line("b"), 0, [b"a", b"b"], 4),
        (line("a") + dropped(9) + line("b"), 4, [5, b"b"], 11),
        (line("a") + dropped(9) + line("b"), 9, [b"b"], 11),
        (line("a") + dropped(9) + line("b"), 11, [], 11),
        (dropped("x") + line("a"), 0, [dropped("x")[:-1], b"a"], len(dropped("x")) + 2),
        (dropped("1" * 20), 0, [int("1" * 20)], int("1" * 20)),
        (dropped("1" * 21), 0, [dropped("1" * 21)[:-1]], len(dropped("1" * 21))),
        (f"{AT} log D 5 6\n".encode(), 0, [f"{AT} log D 5 6".encode()], len(f"{AT} log D 5 6") + 1),
    ],
)
def test_what_was_dropped(place, raw, after, found, end):
    (place / "log").write_bytes(raw)
    assert read(place, after) == (found, end)


@pytest.mark.parametrize(
    "cut", ["2026-01-02T03:04:05.000000006Z", f"{AT} ", f"{AT} std", f"{AT} stdout", f"{AT} stderr ", f"{AT} stdout P", "2026-01", ""]
)
def test_records_that_a_full_disk_cut_off(place, cut):
    (place / "log").write_bytes(cut.encode() + b"\n" + dropped(4) + line("a"))
    assert read(place) == ([4, b"a"], 6)


@pytest.mark.parametrize("whole", [f"{AT} stdin", f"{AT}0 stdout", f"{AT} stdout F x"[1:] + "y", "words std", f"{AT} stdoutF"])
def test_lines_that_only_look_cut_off(place, whole):
    (place / "log").write_bytes(whole.encode() + b"\n")
    (row,), _ = read(place)
    assert isinstance(row, bytes) and whole.encode().endswith(row)


def test_a_log_that_grows_and_is_replaced(place):
    """Half a line waits for its end; what was written before a rename is read before what came after."""
    log = Log(partial(open_log, place))
    assert log.read() == []
    whole = line("first")
    (place / "log").write_bytes(whole[:20])
    assert log.read() == []
    with open(place / "log", "ab") as out:
        out.write(whole[20:])
    assert [row.text for row in log.read()] == [b"first"] and log.read() == []
    with open(place / "log", "ab") as out:
        out.write(line("last of the old"))
    (place / "log").rename(place / "log.1")
    assert [row.text for row in log.read()] == [b"last of the old"] and log.read() == []
    (place / "log").write_bytes(line("new"))
    assert [row.text for row in log.read()] == [b"new"]
    (place / "log").rename(place / "log.1")
    (place / "log").write_bytes(line("newer"))
    (place / "log").rename(place / "log.1")
    (place / "log").write_bytes(line("newest"))
    assert [row.text for row in log.read()] == [b"newer"]
    assert [row.text for row in log.read()] == [b"newest"] and log.read() == []
    log.close()


@pytest.mark.parametrize("renames", [1, 2])
def test_what_is_written_and_renamed_while_the_next_file_is_looked_for(place, renames):
    """After we have come to the end of ours: what was added to that comes before the next one."""
    pending = []

    def part(name: str) -> int | None:
        if name == "log" and pending:
            with open(place / "log", "ab") as out:
                out.write(pending.pop())
            for number in range(renames):
                (place / "log").rename(place / "log.1")
                (place / "log").write_bytes(line(f"new {number}"))
        return open_log(place, name)

    (place / "log").write_bytes(line("old"))
    log = Log(part)
    assert [row.text for row in log.read()] == [b"old"]
    pending.append(line("last of the old"))
    found = [row.text for _ in range(renames + 1) for row in log.read()]
    assert found == [b"last of the old", *(f"new {number}".encode() for number in range(renames))]
    assert log.read() == []
    log.close()


def test_half_a_line_at_the_end_of_a_file_is_no_beginning_of_the_next_one(place):
    (place / "log.1").write_bytes(line("a") + line("torn")[:-3])
    (place / "log").write_bytes(line("b"))
    assert read(place) == ([b"a", b"b"], 4)


def test_more_than_is_read_at_once(place):
    rows = [f"{n}-" + "x" * (n % 300) for n in range(2000)]
    (place / "log").write_bytes(b"".join(map(line, rows)) + line("y" * 200_000))
    assert read(place) == ([*(row.encode() for row in rows), b"y" * 200_000], sum(len(row) + 1 for row in rows) + 200_001)


def test_files_that_are_none(place):
    """A link, a second name, a FIFO, a directory, and a directory that is a link: all as if nothing were there."""
    (place / "real").write_bytes(line("a"))
    (place / "link").symlink_to("real")
    os.mkfifo(place / "fifo")
    (place / "directory").mkdir()
    (place / "other").symlink_to(place)
    for name in ("link", "fifo", "directory", "nothing", "real/x"):
        assert open_log(place, name) is None, name
    assert open_log(place / "other", "real") is None
    assert open_log(place / "nowhere", "real") is None
    fd = open_log(place, "real")
    assert fd is not None
    assert not os.get_inheritable(fd)
    os.close(fd)
    os.link(place / "real", place / "second")
    assert open_log(place, "real") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(place):
    (place / "log").touch(mode=0)
    with pytest.raises(PermissionError):
        open_log(place, "log")


def test_what_was_dropped_is_counted_run_by_run(tmp_path):
    records = ("stdout F aaaa", "log D 9", "log D 0", "stdout F bb", "log D 10", "log D 0", "stdout F c", "log D 2")
    (tmp_path / "log").write_text("".join(f"2026-01-01T00:00:00.000000000Z {record}\n" for record in records))
    log = Log(lambda name: open_log(tmp_path, name))
    assert [(row.text, row.dropped) for row in log.read()] == [(b"aaaa", 0), (b"", 4), (b"bb", 0), (b"", 7), (b"c", 0)]
    assert log.position == 9 + 10 + 2
    log.close()


def last(place: Path, count: int) -> list[bytes] | None:
    rows = last_rows(partial(open_log, place), count)
    return None if rows is None else [row.text for row in rows]


def test_the_last_rows_of_a_large_file(place):
    """Of eight gigabytes, which nobody has to read for it."""
    with open(place / "log", "wb") as stream:
        stream.truncate(8 << 30)
        stream.seek(0, os.SEEK_END)
        stream.write(b"\n" + line("one") + line("two", "stderr", "P") + line("x" * 100_000) + b"not whole")
    assert last(place, 3) == [b"one", b"two", b"x" * 100_000] and last(place, 1) == [b"x" * 100_000] and last(place, 0) == []


def test_the_last_rows_where_all_has_to_be_read(place):
    assert last(place, 1) is None
    (place / "log").write_bytes(line("one") + line("two"))
    assert last(place, 1) == [b"two"] and last(place, 2) is None, "some may be in log.1"
    for odd in (dropped(7), f"{AT} std\n".encode()):
        (place / "log").write_bytes(line("one") + odd + line("two"))
        assert last(place, 1) == [b"two"] and last(place, 2) is None
