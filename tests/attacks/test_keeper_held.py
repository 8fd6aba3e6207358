"""Whoever holds the other end of what a keeper has open makes it wait: it would keep no deadline.

Row A70 of the list of attacks. A keeper sleeps in its poll and nowhere else, whatever others do meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.boxes import alive, until
from support.requires import requires

import dockless
from dockless import HealthCheck
from dockless.sandbox.run import box as boxes
from dockless.sandbox.run import door
from dockless.sandbox.spec import Bind

pytestmark = requires("userns", "overlay")

PYTHON = "/usr/bin/python3"
LIMIT = 1.5
PPOLL = {"x86_64": "271", "aarch64": "73"}[platform.machine()]
TIOCSETD, TIOCPKT, N_TTY, N_NULL = 0x5423, 0x5420, 0, 27

STEALS = """
import os, time
def steal(stream):
    fd = os.open(f"/proc/self/fd/{stream}", os.O_RDONLY | os.O_NONBLOCK)
    while True:
        try: os.read(fd, 65536)
        except BlockingIOError: pass
"""
OUTPUT = f"""{STEALS}
for stream in (1, 2):
    if os.fork() == 0: steal(stream)
for _ in iter(int, 1):
    os.write(1, b"x"), os.write(2, b"x")
    time.sleep(0.00002)
"""
CHECK = f"""{STEALS}
if os.fork() == 0: steal(1)
for _ in iter(int, 1): os.write(1, b"x"); time.sleep(0.00002)
"""


def reads(terminal: int) -> None:
    os.read(terminal, 4096)


def changes_its_modes(terminal: int) -> None:
    for blocking in (False, True):
        os.set_blocking(terminal, blocking)
    for packets in (1, 0):
        fcntl.ioctl(terminal, TIOCPKT, struct.pack("i", packets))


def changes_its_discipline(terminal: int) -> None:
    for discipline in (N_NULL, N_TTY):
        fcntl.ioctl(terminal, TIOCSETD, struct.pack("i", discipline))


@contextlib.contextmanager
def nothing(box: dockless.Sandbox) -> Iterator[None]:
    yield


def holding(*ways: Callable[[int], None]) -> Callable[[dockless.Sandbox], contextlib.AbstractContextManager[None]]:
    """Threads that do so with the terminal of a sandbox, all the time, while something is typed that is shown again."""

    @contextlib.contextmanager
    def held(box: dockless.Sandbox) -> Iterator[None]:
        terminal, over = door.terminal(boxes.get(box.id).entrance()), threading.Event()

        def repeat(way: Callable[[int], object]) -> None:
            while not over.is_set():
                with contextlib.suppress(OSError):
                    way(terminal)

        def type_(terminal: int) -> None:
            os.write(terminal, b"x")
            time.sleep(0.00002)

        threads = [threading.Thread(target=repeat, args=(way,), daemon=True) for way in (*ways, type_)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(20)  # the end of the sandbox wakes whoever reads
            os.close(terminal)

    return held


ECHO = ["sh", "-c", "stty raw -echo; exec cat"]
HELD = {
    "output": ([PYTHON, "-Sc", OUTPUT], {}, nothing),
    "health": (["sleep", "1000"], {"health": HealthCheck([PYTHON, "-Sc", CHECK], interval=0.05, timeout=0.4)}, nothing),
    "terminal: read": (ECHO, {"tty": True}, holding(reads, reads)),
    "terminal: modes": (ECHO, {"tty": True}, holding(reads, changes_its_modes)),
    "terminal: discipline": (ECHO, {"tty": True}, holding(reads, changes_its_discipline)),
}


def sleeps_in(keeper: str) -> str:
    """``poll``, ``file`` for a call about one in its directory or a cgroup, number and descriptor of any other; empty where it does not
    sleep."""
    try:
        call, *arguments = (seen := Path(f"{keeper}/syscall").read_text()).split()
        if Path(f"{keeper}/wchan").read_text() in ("", "0") or Path(f"{keeper}/syscall").read_text() != seen or call == "running":
            return ""
        if call == PPOLL:
            return "poll"
        leads = os.readlink(f"{keeper}/fd/{int(arguments[0], 16)}")
        return "file" if leads.startswith("/") and not leads.startswith("/dev/") else f"{call} {leads}"
    except OSError:
        return ""


@pytest.mark.parametrize("who", HELD)
def test_who_holds_the_other_end_holds_up_no_keeper(who):
    """A70"""
    command, options, hostile = HELD[who]
    box = dockless.start(command, timeout=LIMIT, **options)
    keeper, slept = boxes.get(box.id).pid, set()
    try:
        with hostile(box):
            end = time.monotonic() + LIMIT
            while os.geteuid() == 0 and time.monotonic() < end:  # nobody else sees what a keeper does
                slept.add(sleeps_in(f"/proc/{keeper}"))
            assert box.wait(20).limit == "timeout", "it is held up"
        assert slept <= {"poll", "file", ""}, "it sleeps in another call than its poll"
    finally:
        box.rm(force=True)


@requires("root")
@pytest.mark.parametrize("options", [{}, {"tty": True}], ids=["pipes", "terminal"])
def test_whatever_a_keeper_reads_cannot_be_waited_for(options):
    """A70: each pipe and FIFO is open so. Of other kinds it is known why nobody holds it up by them; a new one is refused."""
    known = {
        "anon_inode:[pidfd]": "only polled",
        "anon_inode:[signalfd]": "its own",
        "/memfd:dockless-plan (deleted)": "mapped",
        "/dev/ptmx": "handed out, never asked for anything: terminal.c",
        "/dev/pts/ptmx": "the same",
        "socket:": "received from without waiting, by a child",
        "ns:": "entered by its children",
        "/": "a path, not a stream",
    }
    box = dockless.start(["sleep", "1000"], **options)
    try:
        keeper = f"/proc/{boxes.get(box.id).pid}"
        unknown = []
        for fd in os.listdir(f"{keeper}/fd"):
            leads, flags = os.readlink(f"{keeper}/fd/{fd}"), Path(f"{keeper}/fdinfo/{fd}").read_text().split("flags:")[1].split()[0]
            is_path = leads.startswith("/") and not leads.startswith(("/dev", "/memfd"))
            kind = (
                "/" if is_path else "socket:" if leads.startswith("socket:") else "ns:" if leads.endswith("]") and ":[4" in leads else leads
            )
            if kind not in known and not (leads.startswith("pipe:") and int(flags, 8) & os.O_NONBLOCK):
                unknown.append((fd, leads, flags))
        assert not unknown
    finally:
        box.rm(force=True)


@requires("root")
def test_what_reads_a_terminal_has_that_and_a_pipe_and_ends_with_its_keeper():
    """A70: also where somebody holds the other side of the terminal, which then has no end."""
    box = dockless.start(["sleep", "1000"], tty=True)
    try:
        keeper, init = boxes.get(box.id).pid, boxes.get(box.id).init_pid
        children = Path(f"/proc/{keeper}/task/{keeper}/children")
        [reader] = until(lambda: [pid for pid in children.read_text().split() if _name(pid) == "dockless-reader"], "what reads it")
        until(lambda: len(_descriptors(reader)) == 2, "that it has closed the others")
        terminal, pipe = sorted(_descriptors(reader).values())
        assert terminal.endswith("/ptmx") and pipe.startswith("pipe:")
        assert list(_descriptors(keeper).values()).count(pipe) == 1, "the end that it reads"
        other_side = os.open(f"/proc/{init}/root/dev/pts/0", os.O_RDWR | os.O_NOCTTY)
        try:
            os.kill(keeper, signal.SIGKILL)
            until(lambda: not alive(int(reader)), "its end")
        finally:
            os.close(other_side)
    finally:
        box.rm(force=True)


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has ended
        return ""


def _descriptors(pid: int | str) -> dict[str, str]:
    return {fd: os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}


def test_output_that_another_sandbox_goes_on_writing_is_not_waited_for(tmp_path):
    """A70: a program sends its standard output away and ends; who got it writes for ever."""
    tmp_path.chmod(0o755)
    address = str(tmp_path / "s")
    program = 'import socket; s = socket.socket(socket.AF_UNIX); s.connect("/with/s"); socket.send_fds(s, [b"1"], [1]); s.recv(1)'
    over = threading.Event()
    with socket.socket(socket.AF_UNIX) as listens:
        listens.bind(address)
        os.chmod(address, 0o777)
        listens.listen()
        box = dockless.start([PYTHON, "-Sc", program], mounts=[Bind(str(tmp_path), "/with")], log_size="1M")
        connection, _ = listens.accept()
        output = socket.recv_fds(connection, 1, 1)[1][0]

    def write() -> None:
        with contextlib.suppress(BrokenPipeError):
            while not over.is_set():
                os.write(output, b"\n" * 65536)  # each is a line to the keeper, which is slower

    writers = [threading.Thread(target=write) for _ in range(2)]
    try:
        for writer in writers:
            writer.start()
        connection.send(b"g")
        assert box.wait(20).exit_code == 0
    finally:
        over.set()
        connection.close()
        for writer in writers:
            writer.join()
        os.close(output)
        box.rm(force=True)


def test_who_looks_on_takes_no_output_away_for_good():
    """A70: whoever attached has made the terminal one that does not wait, for everybody; what comes later is still written down."""
    box = dockless.start(["sh", "-c", "stty -echo; read a; echo first; read a; echo second"], tty=True)
    terminal = door.terminal(boxes.get(box.id).entrance())
    try:
        os.set_blocking(terminal, False)
        for word in ("first", "second"):
            os.write(terminal, b"go\n")
            until(lambda word=word: word.encode() in b"".join(line.text for line in box.logs()), f"{word} is written down")
        assert box.wait(20).exit_code == 0
    finally:
        os.close(terminal)
        box.rm(force=True)
