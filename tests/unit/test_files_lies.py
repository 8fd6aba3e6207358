"""What comes from inside is hostile: an agent that lies, stops, floods or ends is an error in bounded time and memory."""

from __future__ import annotations

import errno
import os
import random
import struct
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import agents

from dockless.errors import DocklessError, SandboxError, SandboxGone
from dockless.sandbox.files import agent as agent_module
from dockless.sandbox.files import calls, wire

ANSWER, ABOUT = struct.Struct("=iI"), struct.Struct("=IIIIQQq")
FILE, DIRECTORY, LINK = 0o100644, 0o40755, 0o120777


def said(result: int, contents: bytes = b"") -> bytes:
    return ANSWER.pack(result, len(contents)) + contents


def facts(mode: int = FILE, size: int = 0) -> bytes:
    return ABOUT.pack(mode, 1, 0, 0, 1, size, 0)


def entry(name: bytes, mode: int = FILE, size: int = 0) -> bytes:
    return facts(mode, size) + struct.pack("=H", len(name)) + name


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER.pack(0, wire.CHUNK + 1),
        ANSWER.pack(0, 2**32 - 1),
        said(-4096),
        said(-(2**31)),
        said(-2, b"x"),
        said(0, b""),
        said(0, facts()[:-1]),
        said(0, ABOUT.pack(FILE, 1, 0, 0, 1, 1 << 63, 0)),
        said(0, facts() + b"x" * 4097),
        said(0, facts(LINK) + b"a\0b"),
        said(0, facts()) + b"more",
        said(0, facts()) * 2,
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error(answer):
    with agents.saying(answer) as files, pytest.raises(SandboxError, match="makes no sense"):
        files.stat("/x")


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/etc/passwd", b"a\0b", b"x" * 256])
def test_a_name_that_no_directory_has_is_an_error(name):
    with agents.saying(said(3, facts(DIRECTORY)), said(1, entry(name)), said(0)) as files, pytest.raises(SandboxError, match="no sense"):
        files.list("/x")


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_listing_that_is_cut_off_is_an_error(cut):
    answers = said(3, facts(DIRECTORY)), said(1, entry(b"some name of a file")[:-cut]), said(0)
    with agents.saying(*answers) as files, pytest.raises(SandboxError, match="no sense"):
        files.list("/x")


def test_a_directory_without_end_is_an_error_in_bounded_memory():
    page = b"".join(entry(b"%d" % n) for n in range(4000))
    different = [said(1, page.replace(b"1", bytes([65 + n]))) for n in range(60)]
    with agents.saying(said(3, facts(DIRECTORY)), *different, said(0)) as files, pytest.raises(OSError, match="More than 100000 entries"):
        files.list("/x")


def test_the_same_names_for_ever_are_an_error(monkeypatch):
    monkeypatch.setattr("dockless.sandbox.files.calls.ENTRIES_MAX", 100)
    answers = [said(3, facts(DIRECTORY)), *[said(1, entry(b"a"))] * 200]
    with agents.saying(*answers) as files, pytest.raises(OSError, match="More than 100 entries"):
        files.list("/x")


def test_a_file_without_end_is_an_error():
    full = said(wire.CHUNK, bytes(wire.CHUNK))
    answers = said(3, facts()) + full + said(0), said(3, facts()), *[full * 4] * 9
    with agents.saying(*answers) as files, pytest.raises(OSError, match="too large"):
        files.read_bytes("/x", max_size="1M")


def test_more_than_was_asked_for_is_an_error():
    with agents.saying(said(3, facts()), said(100, b"x" * 100), said(0)) as files:
        file = files.open("/x", "rb", newline=None)
        with pytest.raises(OSError, match="100 bytes came where 10"):
            file.raw.readinto(bytearray(10))
        file.close()


def test_one_that_ends_is_said_and_the_next_request_asks_another():
    with agents.saying(said(0, facts(size=7)), b"") as files:
        assert files.stat("/x").size == 7
        with pytest.raises(SandboxGone):
            files.stat("/x")
        assert files.stat("/x").size == 7


def test_one_that_says_nothing_is_given_up():
    their_in, our_out = os.pipe2(os.O_CLOEXEC)
    our_in, their_out = os.pipe2(os.O_CLOEXEC)
    ended = threading.Event()
    silent = agent_module.Agent(our_out, our_in, ended.set)
    try:
        with pytest.raises(TimeoutError, match="paused"):
            silent.ask(wire.Request(wire.STAT, b"/\0"), patience=0.05)
        assert silent.closed and ended.is_set()
        with pytest.raises(SandboxGone):
            silent.ask(wire.Request(wire.STAT, b"/\0"))
    finally:
        os.close(their_in)
        os.close(their_out)


def test_one_that_reads_nothing_and_says_half_of_it_is_given_up():
    their_in, our_out = os.pipe2(os.O_CLOEXEC)
    our_in, their_out = os.pipe2(os.O_CLOEXEC)
    silent = agent_module.Agent(our_out, our_in, lambda: None)
    os.write(their_out, said(0, b"x" * 100)[:50])
    try:
        with pytest.raises(TimeoutError):
            silent.ask(*[wire.Request(wire.WRITE, bytes(wire.CHUNK))] * 8, patience=0.05)
    finally:
        os.close(their_in)
        os.close(their_out)


def everything(files, tmp_path, number):
    """Each operation once; what they raise."""
    target = tmp_path / str(number)
    target.mkdir()
    outside = tmp_path / "outside"
    raised = []
    for act in (
        lambda: files.stat("/x"),
        lambda: files.exists("/x"),
        lambda: files.list("/x"),
        lambda: files.read_bytes("/x", max_size="1M"),
        lambda: files.open("/x").read(),
        lambda: files.write_bytes("/x", b"x" * 10),
        lambda: files.mkdir("/x/y", parents=True, exist_ok=True),
        lambda: files.remove("/x", recursive=True),
        lambda: files.rename("/x", "/y"),
        lambda: files.copy_out("/x", target, max_size="1M", max_files=50),
        lambda: files.copy_in(outside, "/x"),
    ):
        try:
            act()
        except (DocklessError, OSError, UnicodeDecodeError) as error:
            raised.append(error)
    return raised


ANSWERS = st.builds(said, st.integers(-60, 9), st.binary(max_size=90))
MODES = st.sampled_from([FILE, DIRECTORY, LINK])
ENTRIES = st.builds(lambda mode, name: said(3, facts(mode)) + said(1, entry(name, mode)), MODES, st.binary(max_size=9))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=80), ANSWERS, ENTRIES), max_size=6))
def test_random_answers_raise_our_errors_alone(tmp_path_factory, answers):
    tmp_path = tmp_path_factory.mktemp("lies")
    (tmp_path / "outside").write_text("canary")
    with pytest.MonkeyPatch.context() as patch, agents.saying(*answers) as files:
        patch.setattr(agent_module, "PATIENCE", 0.02)
        patch.setattr(calls, "REMOVAL", 0.02)
        everything(files, tmp_path, 0)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["0", "outside"] and (tmp_path / "outside").read_text() == "canary"


def test_garbage_does_not_drive_the_agent_out_of_its_wits(tmp_path):
    """Our own agent, asked nonsense: each request has one answer or ends it; it never writes where nothing was asked."""
    chosen = random.Random(5)
    (tmp_path / "canary").write_text("canary")
    os.mkfifo(tmp_path / "fifo")
    for _ in range(40):
        agent = agents.connect()
        try:
            for _ in range(40):
                names = [
                    b"/\0",
                    b"\0",
                    b"",
                    b"/proc/self/fd/0\0",
                    os.fsencode(tmp_path) + b"/fifo\0",
                    b"a/../b\0",
                    b"x" * 5000 + b"\0",
                    chosen.randbytes(9),
                ]
                request = wire.Request(
                    chosen.choice([1, 2, 3, 5, 6, 99, 65535, 0]),
                    chosen.choice(names) + chosen.choice([b"", b"x\0", b"\0\0"]),
                    flags=chosen.choice([1, 64, 65, 256 + 1, 128 + 1, 256 + 65]),
                    handle=chosen.choice([-100, -1, 0, 1, 2, 3, 4, 1 << 30, -(1 << 31)]),
                    offset=chosen.choice([0, 1, 1 << 62, (1 << 64) - 1]),
                    length=chosen.choice([0, 1, 1 << 18, 1 << 40, (1 << 64) - 1]),
                )  # fmt: skip
                if (request.op, request.handle) in ((2, 0), (2, 1)):
                    continue
                (answer,) = agent.ask(request, patience=20)
                assert answer.result > -4096 and len(answer.contents) <= wire.CHUNK
        finally:
            agent.close()
    assert (tmp_path / "canary").read_text() == "canary"


@pytest.mark.parametrize(
    ("path", "number"),
    [
        (b"dir/file", 0), (b"dir/./file", 0), (b"link/file", errno.ENOTDIR), (b"dir/link", errno.ELOOP), (b"dir/../dir/file", errno.EXDEV),
        (b"..", errno.EXDEV), (b"dir/..", errno.EXDEV), (b"/etc/passwd", errno.EXDEV), (b"dir/" + b"x" * 256 + b"/y", errno.ENAMETOOLONG),
        (b"dir/deeplink/file", errno.ENOTDIR), (b"none/file", errno.ENOENT),
    ],
)  # fmt: skip
def test_below_a_handle_no_link_is_followed_and_nothing_leads_up(tmp_path, path, number):
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "file").touch()
    (tmp_path / "dir" / "link").symlink_to("file")
    (tmp_path / "dir" / "deeplink").symlink_to(".")
    (tmp_path / "link").symlink_to("dir")
    agent = agents.connect()
    try:
        base, _ = calls.opened(agent, os.fsencode(tmp_path), wire.WITH_READ | wire.WITH_DIRECTORY)
        before = agent.ask(calls.named(wire.OPEN, b"dir/file", flags=wire.WITH_READ | wire.WITH_BENEATH, handle=base))[0].result
        for flags in (wire.WITH_READ, wire.WITH_WRITE | wire.WITH_CREATE):
            (answer,) = agent.ask(calls.named(wire.OPEN, path, flags=flags | wire.WITH_BENEATH, handle=base))
            assert answer.error == number
        after = agent.ask(calls.named(wire.OPEN, b"dir/file", flags=wire.WITH_READ | wire.WITH_BENEATH, handle=base))[0].result
        assert after - before == (1 if number else 3)  # nothing was left open on the way
    finally:
        agent.close()


@pytest.mark.parametrize("size", [wire.CHUNK + 1, 1 << 31, (1 << 32) - 1])
def test_a_request_that_is_too_large_ends_it(size):
    process = agents.child()
    process.stdin.write(struct.pack("=IHHiIQQ", size, 6, 0, -100, 0, 0, 0) + b"x" * 100)
    assert process.wait(20) == 2
    process.stdin.close()
    process.stdout.close()


def test_it_ends_with_its_standard_input_and_with_its_reader():
    process = agents.child()
    process.stdin.close()
    assert process.wait(20) == 0
    process.stdout.close()
    process = agents.child()
    process.stdout.close()
    process.stdin.write(struct.pack("=IHHiIQQ", 2, 6, 0, -100, 0, 0, 0) + b"/\0")
    assert process.wait(20) in (1, -13)
    process.stdin.close()
