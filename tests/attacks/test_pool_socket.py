"""The socket of a pool with a name: another user, garbage, those who read nothing, floods. Row A82 of the list of attacks."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from support.boxes import load, until
from support.requires import requires

from dockless.base.descriptors import received
from dockless.errors import DocklessError
from dockless.sandbox.run import named_pools
from dockless.sandbox.run.named_pools import Wanted
from dockless.sandbox.run.places import root
from dockless.sandbox.spec import Spec

pytestmark = requires("userns", "overlay")
COMMAND = [sys.executable, "-P", "-m", "dockless"]
SIZE = 3


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Path]:
    """Of a pool ``p``, and nothing of it is left afterwards."""
    named_pools.create(Wanted("p", Spec(image=load(tmp_path, []), argv=()), SIZE, 0.0))
    try:
        yield named_pools.directory_of("p") / "door"
    finally:
        named_pools.remove("p")
        until(lambda: not root("running").is_dir() or not list(root("running").iterdir()), "that nothing of its sandboxes is left")


def connect(door: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.settimeout(10)
    made.connect(str(door))
    return made


def runs() -> bool:
    done = subprocess.run([*COMMAND, "run", "--pool", "p", "--", "echo", "there"], capture_output=True, text=True, timeout=60)
    return (done.returncode, done.stdout) == (0, "there\n")


def state() -> named_pools.PoolInfo:
    return next(pool for pool in named_pools.list_all() if pool.name == "p")


def descriptors() -> int:
    return len(os.listdir(f"/proc/{state().pid}/fd"))


def as_nobody(code: str, *arguments: object) -> str:
    """What a program of another user writes. It is given nothing of ours."""
    command = [sys.executable, "-I", "-c", f"import os, socket, sys; os.setgid(65534); os.setuid(65534)\n{code}", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


CONNECT = """
made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
made.settimeout(10)
try:
    made.connect(sys.argv[1])
    data, fds, *_ = socket.recv_fds(made, 1 << 16, 10)
    print("got", len(data), len(fds))
except OSError as error:
    print(type(error).__name__)
"""


@requires("root")
def test_another_user_comes_to_no_door(door: Path):
    assert as_nobody(CONNECT, door) == "PermissionError\n"
    assert as_nobody("print(os.listdir(sys.argv[1]))", door.parent) == ""
    assert state().taken == 0


@requires("root")
def test_another_user_who_comes_to_it_all_the_same_gets_nothing(door: Path):
    """Every mode is wide open: it is SO_PEERCRED that counts."""
    opened = [path for path in (door, *door.parents) if path != Path("/") and path.stat().st_mode & 0o7 != 0o7]
    before = [path.stat().st_mode & 0o7777 for path in opened]
    try:
        for path in opened:
            path.chmod(0o777)
        assert as_nobody(CONNECT, door) == "got 0 0\n"
    finally:
        for path, mode in zip(opened, before, strict=True):
            path.chmod(mode)
    assert state().taken == 0 and runs()


@requires("root")
def test_a_socket_of_another_user_in_its_place_is_not_believed(door: Path, home: Path, passable: None):
    """Whoever owns the runtime directory is believed anyway; a taker looks at who listens all the same."""
    named_pools.remove("p")
    directory = named_pools.directory_of("p")
    named_pools.create(Wanted("p", Spec(argv=()), 1, 0.0))
    (directory / "door").unlink()
    directory.chmod(0o777)
    for path in directory.parents:
        if path.is_relative_to(home):
            path.chmod(path.stat().st_mode | 0o1)
    code = """
made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
made.bind(sys.argv[1]); made.listen(5); print("up", flush=True); made.accept()[0].send(b"{}")
"""
    command = [sys.executable, "-I", "-c", f"import os, socket, sys; os.setgid(65534); os.setuid(65534)\n{code}", str(directory / "door")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as poser:
        assert poser.stdout is not None and poser.stdout.readline() == "up\n"
        done = subprocess.run([*COMMAND, "run", "--pool", "p", "--", "true"], capture_output=True, text=True, timeout=60)
        poser.kill()
    assert done.returncode == 125 and "is another user's" in done.stderr


def test_garbage_is_never_read(door: Path):
    with ExitStack() as held:
        for data in (b"", b"\0" * 100_000, b"{" * 1000, struct.pack("<Q", 1 << 63)):
            one = held.enter_context(closing(connect(door)))
            with suppress(ConnectionError):  # it was given a sandbox, and the other end is closed
                one.send(data)
        null = os.open("/dev/null", os.O_RDWR)
        flood = held.enter_context(closing(connect(door)))
        before = descriptors()
        for _ in range(20):
            try:
                socket.send_fds(flood, [b"x"], [null] * 250)
            except OSError as error:  # a user may have so many on their way; root may have any number
                assert isinstance(error, ConnectionError) or error.errno == errno.ETOOMANYREFS
        os.close(null)
        assert descriptors() <= before + 6 * SIZE, "descriptors that are sent are nobody's"
        assert runs()
    until(lambda: state().waiting == SIZE, "that it is full again")


def test_who_reads_nothing_holds_nobody_up(door: Path):
    with ExitStack() as held:
        silent = [held.enter_context(closing(connect(door))) for _ in range(20)]
        began = time.monotonic()
        assert runs() and time.monotonic() - began < 20
        until(lambda: state().taken == 21, "that each was given one")
    del silent
    until(lambda: len(list(root("running").iterdir())) == SIZE, "that those which nobody received have ended")
    until(lambda: state().waiting == SIZE, "that it is full again")


def test_a_flood_of_connections(door: Path):
    before = descriptors()
    for _ in range(200):
        connect(door).close()
    assert runs()
    until(lambda: descriptors() <= before + 2 and state().waiting == SIZE, "that nothing of them is left")
    assert state().memory < 64 << 20


def test_what_nobody_was_there_to_take_is_still_looked_after(door: Path):
    pid = state().pid

    def keepers() -> set[int]:
        return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}

    def rests() -> tuple[str, str]:
        said = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return said["State"][0], said["voluntary_ctxt_switches"]

    before = keepers()
    os.kill(pid, signal.SIGSTOP)
    until(lambda: rests()[0] == "T", "that it stands")
    connect(door).close()
    stood = rests()[1]
    os.kill(pid, signal.SIGCONT)
    until(lambda: rests()[0] == "S" and rests()[1] != stood, "that it has come to who is gone")
    for keeper in before:
        os.kill(keeper, signal.SIGKILL)
    until(lambda: len(keepers()) == SIZE and not keepers() & before, "that others wait in their place")


def test_one_that_was_received_and_is_let_go_of_ends(door: Path):
    with closing(connect(door)) as taker:
        data, fds = received(taker, 1 << 16, 10)
        assert len(fds) in (5, 6) and b'"keeper"' in data
        for fd in fds:
            os.close(fd)
    until(lambda: len(list(root("running").iterdir())) == SIZE, "that it has ended")


def test_the_process_holds_nothing_of_what_was_taken(door: Path):
    """Else a sandbox would go on when its taker is killed, and the pool could read its report."""
    before = descriptors()
    taker = subprocess.Popen([*COMMAND, "run", "--pool", "p", "--", "sleep", "1000"])
    until(lambda: state().taken == 1 and state().waiting == SIZE, "that one was taken, and another waits")
    assert descriptors() <= before
    taker.kill()
    taker.wait()
    until(lambda: len(list(root("running").iterdir())) == SIZE, "that what was taken has ended")


def test_what_a_pool_says_is_checked(door: Path):
    """Its files are ours; torn ones are an error, and no crash."""
    about = door.parent / "about"
    whole = about.read_bytes()
    for content in (b"", b"{", b"[]", b'{"wanted": 1}\0', whole.partition(b"\0")[0], whole[:-100], whole.replace(b'"pid"', b'"pit"')):
        about.write_bytes(content)
        done = subprocess.run([*COMMAND, "run", "--pool", "p", "--", "true"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 125 and "bug in dockless" not in done.stderr, (content[:40], done)
    about.write_bytes(whole)
    try:
        named_pools.read("p")
    except DocklessError:
        pytest.fail("it is whole again")
