"""The streams of something that runs, here plain child processes: files, callbacks, captures, in turn and at once."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
import threading
import time

import pytest

from dockless._exchange import Splitter
from dockless._stdio import DEVNULL, PIPE, STDOUT, Text
from dockless._streams import Streams, StreamSettings
from dockless.errors import BadInput

BYTES, TEXT = Text(None, None, None), Text(True, "utf-8", None)


class Child:
    """A process with what ``Streams`` wants of one."""

    def __init__(self, program: str, settings: StreamSettings) -> None:
        stdio = settings.open()
        names = ("stdin", "stdout", "stderr")
        argv = [sys.executable, "-c", "import os, sys, time\n" + program]
        self.child = subprocess.Popen(argv, **dict(zip(names, stdio.theirs, strict=True)))
        self.fd = os.pidfd_open(self.child.pid)
        self.streams: Streams = Streams(self, stdio, settings, "the child")

    def fileno(self) -> int:
        return self.fd

    def poll(self) -> int | None:
        return self.child.poll()

    def wait(self, timeout: float | None = None) -> int:
        if not select.select([self], [], [], timeout)[0]:
            raise TimeoutError
        return self.child.wait()

    def __enter__(self) -> Streams:
        return self.streams

    def __exit__(self, *_) -> None:
        self.child.kill()
        self.child.wait()
        self.streams.close()
        os.close(self.fd)


def child(program: str, stdin=None, stdout=None, stderr=None, *, text=BYTES, **how) -> Child:
    return Child(program, StreamSettings(stdin, stdout, stderr, text=text, **how))


@pytest.fixture(autouse=True)
def _no_descriptor_stays_open():
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before


# -- files


def test_lines_and_chunks_while_it_runs():
    program = "for i in range(3): os.write(1, b'%d\\n' % i); sys.stdin.readline()"
    with child(program, PIPE, PIPE, text=TEXT) as it:
        seen = []
        for line in it.stdout:
            seen.append(line)
            it.stdin.write("go on\n")
        assert seen == ["0\n", "1\n", "2\n"]
    with child(program, PIPE, PIPE) as it:
        seen = []
        for chunk in it.stdout.chunks():
            seen.append(chunk)
            it.stdin.write(b"go on\n")
            it.stdin.flush()
        assert seen == [b"0\n", b"1\n", b"2\n"]


def test_a_character_in_two_chunks_and_line_ends():
    program = r"os.write(1, b'\xc3'); sys.stdin.readline(); os.write(1, b'\xa9\r'); sys.stdin.readline(); os.write(1, b'\nx')"
    with child(program, PIPE, PIPE, text=TEXT) as it:
        it.stdin.write("1\n2\n")
        assert "".join(it.stdout.chunks(1)) == "é\nx"


@pytest.mark.parametrize("bufsize", [-1, 0, 2, 4096])
def test_bufsize_is_that_of_popen(bufsize):
    with child("sys.stdout.write(sys.stdin.read())", PIPE, PIPE, bufsize=bufsize) as it:
        it.stdin.write(b"some bytes\nmore")
        it.stdin.close()
        assert it.stdout.readline() == b"some bytes\n" and b"".join(it.stdout.chunks(1)) == b"more"
    with child("sys.stdout.write(sys.stdin.read())", PIPE, PIPE, text=TEXT, bufsize=1) as it:
        it.stdin.write("a line\n")
        it.stdin.close()
        assert it.stdout.read() == "a line\n"


@pytest.mark.parametrize("how", [{}, {"on_stderr": print}])
def test_a_file_ends_when_it_has_ended_though_somebody_outside_has_the_pipe(how):
    with child("os.write(1, b'said'); sys.stdin.read()", stdin=PIPE, stdout=PIPE, **how) as it:
        outside = os.open(f"/proc/self/fd/{it.stdout.fileno()}", os.O_WRONLY | os.O_CLOEXEC)
        assert it.stdout.read(4) == b"said"
        it.stdin.close()
        it._process.wait()
        os.write(outside, b"more")
        assert it.stdout.read1() == b"more"
        os.write(outside, b"too late")
        assert it.stdout.read() == b""
        os.close(outside)


def test_a_write_ends_when_it_has_ended_though_somebody_outside_has_the_pipe():
    with child("sys.stdin.readline()", stdin=PIPE, bufsize=0) as it:
        outside = os.open(f"/proc/self/fd/{it.stdin.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
        it.stdin.write(b"go\n")
        with pytest.raises(BrokenPipeError):
            while True:
                it.stdin.write(b"x" * 65536)
        os.close(outside)


def test_our_end_can_be_another_process_s_stream():
    """Which knows nothing of ends that never block."""
    with child("time.sleep(0.2); print('late')", stdout=PIPE) as it:
        assert subprocess.run(["cat"], stdin=it.stdout, capture_output=True, check=True).stdout == b"late\n"
    with child("time.sleep(0.2); print(len(sys.stdin.read()))", PIPE, PIPE) as it:
        subprocess.run(["head", "-c", "300000", "/dev/zero"], stdout=it.stdin, check=True)
        it.stdin.close()
        assert it.stdout.read() == b"300000\n"


# -- functions that hear of it


def test_a_function_hears_lines_of_text_and_chunks_of_bytes():
    program = "os.write(1, b'a\\nb'); sys.stdin.readline(); os.write(1, b'c\\nd'); os.write(2, b'err')"
    heard, errors = [], []

    def hear(line):
        heard.append(line)
        if len(heard) == 1:
            it.stdin.write("on\n")  # an answer, from within

    with child(program, PIPE, text=TEXT, on_stdout=hear, on_stderr=errors.append) as it:
        assert it.listening and it.stdout is None
        it.wait(60)
        assert (heard, errors) == (["a\n", "bc\n", "d"], ["err"]) and not it.listening
    heard = []
    with child("os.write(1, b'a\\nb')", stdout=PIPE, on_stdout=heard.append) as it:
        assert it.communicate() == (b"a\nb", None) and heard == [b"a\nb"]


def test_a_function_hears_while_one_reads_the_other_stream_or_writes():
    """More than a pipe holds, so that nothing goes on unless somebody reads it."""
    size = 3 << 20
    for program, act in (
        (f"sys.stderr.write('e' * {size}); print('out')", lambda it: it.stdout.read()),
        (f"sys.stderr.write('e' * {size}); print(len(sys.stdin.read()))", write_and_read),
    ):
        heard = []
        with child(program, PIPE, PIPE, on_stderr=heard.append) as it:
            assert act(it) in (b"out\n", b"%d\n" % size)
            it.wait()
            assert b"".join(heard) == b"e" * size


def write_and_read(it):
    it.stdin.write(b"i" * (3 << 20))
    it.stdin.close()
    return it.stdout.read()


def test_several_threads_wait_and_read():
    size = 1 << 20
    program = f"for i in range(8): sys.stderr.write('e' * {size}); sys.stdout.write('o' * {size})"
    heard, read = [], []
    with child(program, stdout=PIPE, on_stderr=heard.append) as it:
        out = it.stdout
        threads = [threading.Thread(target=it.wait) for _ in range(2)] + [threading.Thread(target=lambda: read.append(out.read()))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(b"".join(heard)), len(read[0])) == (8 * size, 8 * size)


@pytest.mark.parametrize("ended", [False, True])
def test_what_a_function_raises_arrives_and_nothing_is_lost_for_the_next(ended):
    heard = []

    def hear(line):
        heard.append(line)
        if line == "2\n":
            raise KeyError("oh")

    with child("for i in range(5): print(i)", on_stdout=hear, text=TEXT) as it:
        if ended:
            it._process.wait()
        with pytest.raises(KeyError):
            it.wait()
        it.wait()
        assert not it.listening and heard == [f"{i}\n" for i in range(5)]


def test_waiting_from_within_is_refused():
    with child("print(1)", on_stdout=lambda _: it.wait()) as it, pytest.raises(BadInput, match="called by waiting"):
        it.wait()


def test_a_function_is_behind_and_the_writer_waits(tmp_path):
    """What is read ahead of it is no more than the pipe and a chunk."""
    count = tmp_path / "count"
    count.write_bytes(bytes(8))
    loop = "for i in range(2048): os.write(1, b'x' * 4096); os.pwrite(f, (4096 * (i + 1)).to_bytes(8), 0)"
    program = f"f = os.open({str(count)!r}, os.O_WRONLY)\n{loop}"
    ahead, heard = [], 0

    def hear(chunk):
        nonlocal heard
        deadline = time.monotonic() + 20
        while (written := int.from_bytes(count.read_bytes())) < min(heard + len(chunk) + 40000, 8 << 20) and time.monotonic() < deadline:
            time.sleep(0)
        ahead.append(written - heard)
        heard += len(chunk)

    with child(program, on_stdout=hear) as it:
        it.wait()
    assert heard == 8 << 20 and 40000 < max(ahead) < 2 << 20


# -- what is captured


def test_a_communicate_that_times_out_keeps_what_was_read():
    program = "print('first', flush=True); print('second', sys.stdin.read(), flush=True)\nif time.sleep(0.3): pass\nprint('third')"
    with child(program, PIPE, PIPE, text=TEXT) as it:
        tries = 0
        given = "in"
        while True:
            try:
                out, err = it.communicate(given, timeout=0.02)
                break
            except TimeoutError as error:
                assert "the child still runs after 0.02 s" in str(error)
                given, tries = None, tries + 1
        assert tries and (out, err) == ("first\nsecond in\nthird\n", None) and it.communicate() == (out, err)
        assert (it.stdin, it.stdout) == (None, None)
    with child("time.sleep(60)", PIPE) as it:
        with pytest.raises(TimeoutError):
            it.communicate(b"x", timeout=0)
        with pytest.raises(BadInput, match="input was given already"):
            it.communicate(b"y")


@pytest.mark.parametrize("text", [TEXT, BYTES])
def test_what_a_file_has_read_ahead_is_part_of_it(text):
    with child(r"os.write(1, b'one\ntwo\n\xc3'); sys.stdin.read(); os.write(1, b'\xa9')", PIPE, PIPE, text=text) as it:
        assert it.stdout.readline() in ("one\n", b"one\n")
        assert it.communicate()[0] in ("two\né", "two\né".encode())
        assert (it.stdin, it.stdout) == (None, None)


def test_what_a_file_was_given_and_has_not_written_comes_first():
    with child("sys.stdout.write(sys.stdin.read())", PIPE, PIPE) as it:
        it.stdin.write(b"one ")
        assert it.communicate(b"two") == (b"one two", None)
    with child("os.close(0); os.write(1, b'closed'); time.sleep(1000)", PIPE, PIPE) as it:
        assert it.stdout.read(6) == b"closed"
        it.stdin.write(b"nobody reads it")
        with pytest.raises(TimeoutError):
            it.communicate(timeout=0)
    with child("os.close(0); os.write(1, b'closed'); time.sleep(1000)", PIPE, PIPE) as it:
        assert it.stdout.read(6) == b"closed"
        it.stdin.write(b"nobody reads it")


def test_a_file_that_is_closed_between_two_communicates():
    with child("os.write(1, b'read'); sys.stdin.readline()", PIPE, PIPE) as it:
        writes, file = os.dup(it.stdin.fileno()), it.stdout
        with pytest.raises(TimeoutError):
            it.communicate(timeout=0)
        file.close()
        os.write(writes, b"\n")
        os.close(writes)
        assert it.communicate() == (b"read", None)


def test_a_file_that_communicate_has_taken_reads_no_more():
    with child("os.write(1, b'read'); sys.stdin.readline()", PIPE, PIPE, bufsize=0) as it:
        file = it.stdout
        assert file.read(1) == b"r"
        with pytest.raises(TimeoutError):
            it.communicate(timeout=0)
        with pytest.raises(ValueError, match="communicate has taken it"):
            file.read(1)


def test_a_stream_that_has_ended_is_let_go_of_while_one_reads_the_other():
    program = "os.close(2)\nfor _ in range(1000): os.write(1, b'x'); time.sleep(0.01)"
    with child(program, stdout=PIPE, on_stderr=print, bufsize=0) as it:
        while it.listening:
            assert it.stdout.read(1)


def test_whoever_else_reads_its_input_comes_to_the_end_of_it():
    with child("pass", PIPE) as it:
        outside = os.open(f"/proc/self/fd/{it.stdin.fileno()}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        it.communicate(b"x" * (1 << 21))
        while os.read(outside, 1 << 20):
            pass
        os.close(outside)


def test_one_who_reads_takes_over_when_one_who_waited_gives_up():
    waits = threading.Event()

    def give_up():
        while not waits.is_set():
            with pytest.raises(TimeoutError):
                it.wait(1)
        os.write(stdin, b"go on\n")

    program = "os.write(2, b'e'); sys.stdin.readline(); sys.stderr.write('e' * (1 << 20)); print('out')"
    with child(program, PIPE, PIPE, on_stderr=lambda _: waits.set()) as it:
        out, stdin = it.stdout, it.stdin.fileno()
        other = threading.Thread(target=give_up)
        other.start()
        waits.wait()
        assert out.read() == b"out\n"
        other.join()


@pytest.mark.parametrize(("most", "kept"), [(0, ""), (1, "a"), (2, "a"), (3, "aé"), (4, "aéb"), ("1K", "aéb"), (None, "aéb")])
def test_a_capture_is_bounded(most, kept):
    """A character is not cut in two."""
    with child(r"os.write(1, 'aéb'.encode())", stdout=PIPE, stderr=PIPE, text=TEXT, max_output=most) as it:
        assert it.communicate() == (kept, "")
        assert it.dropped == (max(0, 4 - most) if isinstance(most, int) else 0, 0)


def test_what_is_dropped_takes_no_memory():
    with child("for i in range(64): os.write(1, b'x' * (1 << 20))", stdout=PIPE, stderr=STDOUT, max_output="1M") as it:
        assert it.communicate() == (b"x" * (1 << 20), None) and it.dropped == (63 << 20, 0)


def test_a_busy_pipe_is_made_larger_and_an_idle_one_is_not():
    sizes = []
    program = "os.write(1, b'x' * (1 << 22)); os.write(2, b'x')"
    with child(program, stdout=PIPE, stderr=PIPE) as it:
        pipes = [os.dup(it.stdout.fileno()), os.dup(it.stderr.fileno())]
        it.communicate()
        for pipe in pipes:
            sizes.append(fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ if hasattr(fcntl, "F_GETPIPE_SZ") else 1032))
            os.close(pipe)
    assert sizes[0] > sizes[1]


# -- what does not go together


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"stdout": DEVNULL, "on_stdout": print}, "on_stdout and a stdout that goes elsewhere"),
        ({"stderr": STDOUT, "on_stderr": print}, "on_stderr and a stderr that goes elsewhere"),
        ({"tty": True, "on_stderr": print}, "on_stderr with a terminal"),
        ({"tty": True, "stdin": DEVNULL}, "stdin and a terminal together"),
        ({"tty": True, "stderr": STDOUT}, "stderr and a terminal together"),
        ({"bufsize": -2}, "bufsize is -2"), ({"bufsize": 1}, "bufsize is 1"),
        ({"max_output": "much"}, "max_output"), ({"max_output": -1}, "max_output"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(wrong, said):
    with pytest.raises(BadInput, match=said) as caught:
        StreamSettings(text=BYTES, **wrong)
    assert caught.value.hint


# -- lines and pieces


@pytest.mark.parametrize("text", [TEXT, BYTES])
@pytest.mark.parametrize("cut", [1, 2, 3, 100])
def test_lines_are_the_same_however_they_come(text, cut):
    data = b"one\n\ntwo \xc3\xa9\n" + b"x" * 50 + b"\nthe rest"
    splitter, lines = Splitter(text.decoder()), []
    for at in range(0, len(data), cut):
        splitter.feed(data[at : at + cut])
        while (line := splitter.line()) is not None:
            lines.append(line)
    splitter.feed(b"")
    lines.append(splitter.line() or splitter.piece(100))
    assert [line if isinstance(line, bytes) else line.encode() for line in lines if line] == data.splitlines(keepends=True)
    assert not splitter.line() and not splitter.piece(1)


def test_pieces_after_half_a_line():
    splitter = Splitter()
    splitter.feed(b"a\nbc")
    assert splitter.line() == b"a\n" and splitter.line() is None
    splitter.feed(b"de\nf")
    assert splitter.piece(1) == b"b" and splitter.piece(9) == b"c" and splitter.line() == b"de\n" and splitter.piece(9) == b"f"
    assert splitter.piece(9) is None


def test_a_line_without_end_is_handed_on_in_pieces(monkeypatch):
    monkeypatch.setattr("dockless._exchange._LONGEST_LINE", 10)
    splitter = Splitter()
    for _ in range(5):
        splitter.feed(b"xxxx")
    assert splitter.line() == b"x" * 12 and splitter.line() is None
    splitter.feed(b"y\n")
    assert splitter.line() == b"x" * 8 + b"y\n"
