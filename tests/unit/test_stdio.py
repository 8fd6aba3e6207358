"""The standard streams of a program: who has which end, what is closed when, and how bytes and text go through them."""

from __future__ import annotations

import asyncio
import fcntl
import locale
import os
import stat

import pytest

from dockless import _async_streams
from dockless._exchange import PipeWriter, Reader, exchange
from dockless._result import Result, result_of
from dockless._stdio import DEVNULL, PIPE, STDOUT, Stdio, Text, _is_open
from dockless.errors import BadInput, CheckFailed
from dockless.sandbox.run.process import Exit


def open_fds() -> set[int]:
    """Without the one that lists them."""
    return {fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_open(fd)}


def is_devnull(fd: int) -> bool:
    return os.fstat(fd).st_rdev == os.stat("/dev/null").st_rdev


@pytest.fixture(autouse=True)
def _nothing_stays_open():
    before = open_fds()
    yield
    assert open_fds() == before


def test_pipes():
    """The program's ends are closed when it has them; ours when we say so, or when somebody took them."""
    made = Stdio(PIPE, PIPE, PIPE)
    for number, (ours, theirs) in enumerate(zip(made.ours, made.theirs, strict=True)):
        reads, writes = (theirs, ours) if number == 0 else (ours, theirs)
        assert fcntl.fcntl(reads, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        assert fcntl.fcntl(writes, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
        assert stat.S_IMODE(os.fstat(reads).st_mode) == 0o666
        assert not os.get_inheritable(ours) and not os.get_inheritable(theirs)
    theirs = set(made.theirs)
    made.started()
    assert not theirs & open_fds()
    taken = made.take(1)
    assert made.ours[1] == -1 and taken in open_fds()
    made.close()
    made.close()
    assert taken in open_fds() and made.ours == [-1, -1, -1]
    os.close(taken)


def test_files_that_are_given_stay_open(tmp_path):
    with open(tmp_path / "file", "w") as file:
        made = Stdio(file.fileno(), file, STDOUT)
        assert made.theirs == [file.fileno()] * 3 and made.ours == [-1, -1, -1]
        made.close()
        assert file.fileno() in open_fds()


def test_nothing_and_what_is_inherited(monkeypatch):
    made = Stdio(DEVNULL, DEVNULL, None)
    assert is_devnull(made.theirs[0]) and is_devnull(made.theirs[1]) and made.theirs[2] == 2
    made.close()
    monkeypatch.setattr("dockless._stdio._is_open", lambda fd: fd != 1)
    made = Stdio()
    assert (made.theirs[0], made.theirs[2]) == (0, 2) and made.theirs[1] > 2 and is_devnull(made.theirs[1])
    os.write(made.theirs[1], b"x")
    made.close()


class Closed:
    def fileno(self):
        raise ValueError("closed")


@pytest.mark.parametrize(
    ("given", "subject", "said"),
    [
        ((STDOUT, None, None), "STDOUT", "only for stderr"), ((None, STDOUT, None), "STDOUT", "only for stderr"),
        ((Closed(), None, None), "stdin", "without a descriptor"), ((PIPE, Closed(), None), "stdout", "without a descriptor"),
        ((PIPE, DEVNULL, 9999), "stderr", "descriptor 9999 is not open"), ((1 << 31, None, None), "stdin", "is not open"),
        ((-4, None, None), "stdin", "descriptor -4 is not open"),
    ],
)  # fmt: skip
def test_what_is_no_stream_is_refused_and_leaves_nothing_open(given, subject, said):
    with pytest.raises(BadInput, match=said) as caught:
        Stdio(*given)
    assert caught.value.subject == subject and caught.value.hint


def test_a_reader_takes_what_is_there():
    reads, writes = os.pipe()
    reader = Reader(reads)
    assert reader.step() is True  # nothing yet
    os.write(writes, b"abc")
    assert reader.step() is True
    os.close(writes)
    assert reader.step() is False
    reader.finish()
    reader.finish()
    assert reader.data() == b"abc"


def test_a_reader_does_not_read_for_ever():
    """A pipe that somebody goes on to fill: what lies in it at the end, and no more."""
    reads, writes = os.pipe()
    os.write(writes, b"x" * 100)
    real = os.read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dockless._exchange.os.read", lambda fd, size: (os.write(writes, b"y" * 50), real(fd, size))[1])
        reader = Reader(reads)
        reader.finish()
    assert reader.data() == b"x" * 100
    os.close(writes)


def test_a_writer_waits_for_room_and_gives_up_where_nobody_reads():
    reads, writes = os.pipe()
    size = fcntl.fcntl(writes, 1032)
    writer = PipeWriter(writes, b"x" * (size + 5))
    assert writer.step() is True and writer.step() is True
    got = os.read(reads, size)
    assert writer.step() is False
    assert got + os.read(reads, size) == b"x" * (size + 5)
    writer.close()
    writer.close()
    os.close(reads)
    reads, writes = os.pipe()
    os.close(reads)
    writer = PipeWriter(writes, b"x")
    assert writer.step() is False
    writer.close()


class End:
    """Ends after it was looked at so often."""

    def __init__(self, looks=1):
        self.reads, self.writes = os.pipe()
        os.write(self.writes, b"x")
        self.looks = looks

    def fileno(self):
        return self.reads

    def poll(self):
        self.looks -= 1
        return None if self.looks > 0 else 0

    def wait(self, timeout=None):
        while self.poll() is None:
            if timeout is not None:
                raise TimeoutError

    def close(self):
        os.close(self.reads)
        os.close(self.writes)


def by_selector(end, readers, writer, timeout=None):
    return exchange(end, [*readers, *([writer] if writer else [])], timeout)


def by_asyncio(end, readers, writer, timeout=None):
    return asyncio.run(_async_streams.ended(end, [*readers, *([writer] if writer else [])], timeout))


@pytest.mark.parametrize("move", [by_selector, by_asyncio])
def test_bytes_move_until_the_end(move):
    stdin_read, stdin_write = os.pipe()
    out_read, out_write = os.pipe()
    os.write(out_write, b"out")
    os.close(out_write)
    reader, writer, end = Reader(out_read), PipeWriter(stdin_write, b"in"), End(looks=3)
    gone = Reader(os.dup(stdin_read))
    gone.close()
    assert move(end, [reader, gone], writer) is True
    assert (reader.fd, writer.fd) == (-1, -1) and reader.data() == b"out" and os.read(stdin_read, 9) == b"in"
    end.close()
    end = End()
    assert move(end, [], None) is True and move(end, [], writer) is True  # a writer that is done
    end.close()
    os.close(stdin_read)


@pytest.mark.parametrize("move", [by_selector, by_asyncio])
def test_moving_gives_up_in_time(move):
    end = End(looks=1 << 40)
    os.read(end.reads, 1)
    reads, writes = os.pipe()
    reader, writer = Reader(reads), PipeWriter(writes, b"")
    assert move(end, [reader], None, 0.01) is False and move(end, [], None, 0) is False
    assert reader.fd == reads
    reader.close()
    writer.close()
    end.close()


def test_what_an_end_raises_arrives():
    end = End()
    end.poll = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        asyncio.run(_async_streams.ended(end, []))
    end.close()


@pytest.mark.parametrize(
    ("given", "on", "encoding", "errors"),
    [
        ((None, None, None), False, None, "strict"), ((False, None, None), False, None, "strict"),
        ((True, None, None), True, locale.getencoding(), "strict"), ((None, "latin1", None), True, "latin1", "strict"),
        ((None, None, "replace"), True, locale.getencoding(), "replace"), ((True, "ascii", "ignore"), True, "ascii", "ignore"),
    ],
)  # fmt: skip
def test_text_or_bytes(given, on, encoding, errors):
    text = Text(*given)
    assert (text.on, text.encoding, text.errors) == (on, encoding, errors)


def test_what_goes_in_and_out():
    plain, text = Text(None, None, None), Text(True, "ascii", "replace")
    assert plain.encode(bytearray(b"a")) == plain.encode(memoryview(b"a")) == b"a" and plain.decode(b"a\r\n") == b"a\r\n"
    assert text.encode("a\xe9") == b"a?" and text.decode(b"a\r\nb\rc\xff") == "a\nb\nc\ufffd"
    for which, data, said in (
        (plain, "a", "a text, not bytes: text=True is not given"),
        (text, b"a", "bytes, not a text: text=True is given"),
        (text, 5, "input is 5, not a text"),
        (Text(True, "ascii", None), "\xe9", "cannot be written in ascii"),
    ):
        with pytest.raises(BadInput, match=said) as caught:
            which.encode(data)
        assert caught.value.subject == "input" and caught.value.hint
    for how, subject in ((("utf-99", None), "encoding"), ((None, "shrug"), "errors"), (("a\0", "strict"), "encoding")):
        with pytest.raises(BadInput, match="is unknown") as caught:
            Text(None, *how)
        assert caught.value.subject == subject


def test_the_result_of_an_end():
    ended = Exit(None, 9, oom_killed=True, timed_out=False, started=5.0, ended=6.0, max_rss=7)
    assert result_of(ended, ("a",), "img", b"o", b"e", ("GPU-1",), ("w",)) == Result(
        ("a",), "img", -9, b"o", b"e", 9, True, False, None, 5.0, 6.0, 7, ("GPU-1",), ("w",)
    )
    with pytest.raises(CheckFailed, match=r"^the command of image img: exit code 3"):
        Result((), "img", 3, None, None).check_returncode()
    with pytest.raises(CheckFailed, match=r"^x{80}: "):
        Result(("x" * 100,), "img", 3, None, None).check_returncode()
