"""What a sandbox does to those who enter it while it runs, and to its keeper through the door.

Rows A23, A28, A35, A44, A46, A56, A57, A61 and A68 of the list of attacks. Everything inside is hostile: it runs with the ids of what
enters.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.boxes import load, running, until
from support.make_image import fifo
from support.requires import requires

from dockless import DEVNULL, PIPE, Sandbox, aio, native
from dockless.base import paths
from dockless.base.healthcheck import HealthCheck
from dockless.errors import CommandNotExecutable, DocklessError, LaunchFailed
from dockless.sandbox.plan.plan import Op, Plan, encode
from dockless.sandbox.run.places import at_its_door
from dockless.sandbox.spec import Bind, Namespaces, Spec

pytestmark = requires("userns")

PYTHON = "/usr/bin/python3"
REACHABLE = {} if os.geteuid() else {"namespaces": Namespaces(user="host")}
"""With which root inside owns the door's file: for an ordinary user that is so by default."""

_STRANGER = r"""
import array, glob, os, socket, struct, sys, threading, time

SO_PASSPIDFD, SCM_PIDFD = 76, 4
door = glob.glob("/state/running/*/door")[0]
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
ours.settimeout(0.5)
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
null = os.open("/dev/null", os.O_RDWR)
space = os.open("/proc/self/ns/user", os.O_RDONLY)


def ask(fds, slots, flags=0):
    packed = struct.pack(f"{len(slots)}i", *slots)
    sender.sendmsg([packed], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [], flags, door)


def answer():
    try:
        data, control, _, _ = ours.recvmsg(64, 256)
    except TimeoutError:
        return None, None
    shown = [struct.unpack("i", found)[0] for _, kind, found in control if kind == SCM_PIDFD]
    return struct.unpack("i", data)[0], shown[0] if shown else None


def plan():
    fd = os.memfd_create("plan")
    os.write(fd, open("/state/evil", "rb").read())
    return fd
"""


@pytest.fixture
def canary(home: Path) -> Path:
    """What a plan that is carried out outside of the sandbox would make; ``/state/evil`` inside is such a plan."""
    made = home / "canary"
    paths.state().mkdir(parents=True, exist_ok=True)
    evil = Plan((Op("WRITE", a=str(made), b="out", x=os.O_CREAT),), None)
    (paths.state() / "evil").write_bytes(bytes(encode(evil, enters=True)))
    return made


def _stranger(body: str, **fields: Any) -> Spec:
    """A program that runs inside and sees the state directory of its own sandbox, read-only."""
    if not os.path.exists(PYTHON):
        pytest.skip(f"no {PYTHON} for a program inside")
    mount = Bind(str(paths.state()), "/state", readonly=True)
    return Spec(argv=(PYTHON, "-c", _STRANGER + body), mounts=(mount,), **{**REACHABLE, **fields})


def test_nobody_inside_can_ask_the_keeper(canary):
    """A68: through a bind mount of the state directory, read-only, with what the keeper's own answer would tell of it: SCM_PIDFD."""
    spec = _stranger("""
ours.setsockopt(socket.SOL_SOCKET, SO_PASSPIDFD, 1)
shown = None
for proof in (null, os.pidfd_open(os.getpid()), os.pidfd_open(os.getppid()), theirs.fileno(), os.open("/proc/1", os.O_RDONLY)):
    ask([proof, space, theirs.fileno(), plan(), null], [3, 4])
    value, found = answer()
    shown = found if shown is None else shown
    print(value, end=" ")
if shown is not None:
    ask([shown, space, theirs.fileno(), plan(), null], [3, 4])
    print("then", answer())
""")
    with running(spec) as (box, said):
        box.wait(30)
        assert said().strip() == "None None None None None"
    assert not canary.exists()


@requires("cgroup2", "kernel>=6.5")  # SO_PASSPIDFD
def test_nobody_inside_who_sees_the_hosts_processes_can_ask_either(canary):
    """A68: with the host's PID namespace it makes the keeper's pidfd itself; the user namespace of who started it is not open to it."""
    spec = _stranger(
        """
def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])

NS_GET_USERNS, NS_GET_PARENT = 0xB701, 0xB702
keeper = parent(os.getppid())
assert "keeper" in open(f"/proc/{keeper}/stat").read()
ours.setsockopt(socket.SOL_SOCKET, SO_PASSPIDFD, 1)
namespaces = [space, null, os.open("/proc/self/ns/mnt", os.O_RDONLY)]
for make in (
    lambda: fcntl.ioctl(space, NS_GET_PARENT), lambda: fcntl.ioctl(os.open("/proc/self/ns/pid", os.O_RDONLY), NS_GET_USERNS),
    *(lambda pid=pid: os.open(f"/proc/{pid}/ns/user", os.O_RDONLY) for pid in os.listdir("/proc") if pid.isdigit()),
):
    try:
        namespaces.append(make())
    except OSError:
        pass
for namespace in namespaces:
    ask([os.pidfd_open(keeper), namespace, theirs.fileno(), plan(), null], [3, 4])
    value, _ = answer()
    if value is not None:
        print(value)
ask([os.pidfd_open(keeper), theirs.fileno(), plan(), null], [3, 4])
print(answer()[0])
""".replace("NS_GET_USERNS,", "import fcntl\nNS_GET_USERNS,"),
        namespaces=Namespaces(pid="host"),
    )
    place = paths.state()
    with running(spec) as (box, said):
        if os.geteuid() == 0:  # as it is for an ordinary user, whose files are those of root inside
            for path in (place, place / "running", place / "running" / box.id):
                path.chmod(0o755)
            (place / "running" / box.id / "door").chmod(0o666)
        box.wait(60)
        assert said().strip() == "None"
    assert not canary.exists()


def test_nonsense_at_the_door(canary):
    """A68: no fds, more than a request has, slots that are none, and many: whoever enters meanwhile enters."""
    spec = _stranger("""
own = os.pidfd_open(os.getpid())
print("on", flush=True)
for turn in range(200):
    for fds, slots in (([], []), ([], [3]), ([own], []), ([own, space, theirs.fileno()], []), ([own] * 40, [3] * 40),
                       ([own, space, null, null], [-1]),
                       ([own, space, null, null], [1 << 30]), ([null] * 16, list(range(3, 16)))):
        ask(fds, slots)
print("over", flush=True)
time.sleep(1000)
""")
    reader, writer = os.pipe()
    with open(reader) as said, Sandbox(spec, stdout=writer) as box:
        os.close(writer)
        assert said.readline() == "on\n"
        for _ in range(5):
            assert box.exec("echo", "in", text=True).stdout == "in\n"
        assert said.readline() == "over\n"
        assert box.exec("echo", "in", text=True).stdout == "in\n"
        keeper = box.process.keeper_pid
        until(lambda: _children(keeper) == [box.pid], "the keeper has no child but init")


@pytest.mark.parametrize("slots", [[4], [3, 7], [3, 16], [3, 17], [3, 26], [3, 3], [4, 3], [-1, 3]], ids=str)
def test_slots_that_nothing_that_enters_is_given(slots):
    """Also from outside: no descriptor in place of the keeper's own, no slot twice, and no request without a plan."""
    with Sandbox(["sleep", "1000"], stdin=DEVNULL) as box, open(os.devnull) as null:
        keeper, pidfd = os.pidfd_open(box.process.keeper_pid), native._extension().ffi.new("int *")
        try:
            ask, given = native._extension().lib.shim_enter, [null.fileno()] * len(slots)
            place = paths.state() / "running" / box.id
            answer = at_its_door(place, lambda path: ask(os.fsencode(path), keeper, len(slots), given, slots, pidfd))
            assert answer == -errno.EPERM
        finally:
            os.close(keeper)
        assert box.exec("true").returncode == 0


def test_nobody_inside_moves_its_own_end(home):
    """A71: the keeper takes a new end, and word that somebody is there, from outside alone."""
    spec = _stranger(
        """
print("begun", flush=True)
while True:
    for proof in (null, os.pidfd_open(os.getpid())):
        for later in ([0, 0], [0, 1 << 30]):
            ask([proof, space, theirs.fileno()], later)
    time.sleep(0.01)
""",
        ttl=4.0,
        idle_timeout=30.0,
    )
    with running(spec) as (box, said):
        until(lambda: "begun" in said(), "it asks")
        assert box.wait(60).limit == "ttl"


# -- what it finds inside ------------------------------------------------------------------------------------------------------------------


MAY_MOUNT = [
    pytest.param({"profile": "privileged"}, marks=requires("root")),
    pytest.param({"profile": "privileged", "namespaces": Namespaces(user="host")}, marks=requires("root")),
    {"cap_add": ("ALL",), "seccomp": "unconfined"},
]


@pytest.mark.parametrize("fields", MAY_MOUNT, ids=str)
@pytest.mark.parametrize("instead", ["fifo", "null", "link", "file", "empty"])
def test_something_in_place_of_ptmx(instead, fields):
    """A28: CVE-2025-52565: no terminal is made of what is none, and none but the kernel's own is opened."""
    make = {
        "fifo": "mkfifo /dev/pts/ptmx", "null": "touch /dev/pts/ptmx; mount --bind /dev/null /dev/pts/ptmx",
        "link": "ln -s /dev/ptmx /dev/pts/ptmx", "file": "echo x > /dev/pts/ptmx", "empty": "true",
    }[instead]  # fmt: skip
    script = f"mount -t tmpfs none /dev/pts && {{ {make}; }} && echo READY; exec sleep 1000"
    with Sandbox(Spec(argv=("/bin/sh", "-c", script), **fields), stdout=PIPE, text=True) as box:
        if box.stdout.readline() != "READY\n":
            pytest.skip("nothing can be mounted in this sandbox")
        with pytest.raises(LaunchFailed), box.spawn("tty", tty=True):
            pass
        assert box.exec("echo", "in", text=True).stdout == "in\n"


@pytest.mark.parametrize("fields", MAY_MOUNT, ids=str)
def test_mounts_over_proc(fields):
    """A29: nothing that enters reads or writes below the sandbox's own /proc."""
    script = "mount -t tmpfs none /proc && mkdir -p /proc/self && mkfifo /proc/self/fdinfo && echo READY; exec sleep 1000"
    with Sandbox(Spec(argv=("/bin/sh", "-c", script), **fields), stdout=PIPE, text=True) as box:
        if box.stdout.readline() != "READY\n":
            pytest.skip("nothing can be mounted in this sandbox")
        assert box.exec("echo", "in", text=True, timeout=20).stdout == "in\n"
        assert box.shell("exec sleep 1000", timeout=0.3).timed_out


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_fifo_hangs_nobody(tmp_path, kind):
    """A32: as working directory or as program it is refused; nobody waits for its other end."""
    name = load(tmp_path, [fifo("f", 0o777)])
    with Sandbox(Spec(argv=("sleep", "1000"), image=name), stdin=DEVNULL) as box:
        path = "/f" if kind == "fifo" else "/dev/null"
        with pytest.raises(LaunchFailed):
            box.exec("true", workdir=path)
        with pytest.raises(CommandNotExecutable):
            box.exec(path)


def test_no_descriptor_and_no_directory_of_the_host(tmp_path):
    """A23, A56: what enters has 0-2 and nothing else, and no working directory leads through a descriptor."""
    with Sandbox(Spec(argv=("sleep", "1000"), image=load(tmp_path)), stdin=DEVNULL) as box:
        assert box.exec("sh", "-c", "for n in /proc/self/fd/*; do echo ${n##*/}; done", text=True).stdout.split() in (
            ["0", "1", "2"],
            ["0", "1", "2", "3"],
        )
        with box.spawn("sleep", "1000", stdin=DEVNULL) as command:
            own = command.process.pid
            program = _children(own)
            assert len(program) == 1
            if os.geteuid() == 0:
                until(lambda: os.listdir(f"/proc/{own}/fd") == [], "who waits for it has closed everything")
                assert sorted(os.listdir(f"/proc/{program[0]}/fd")) == ["0", "1", "2"]
        for number in range(3, 40):
            for path in (f"/proc/self/fd/{number}", f"/proc/1/fd/{number}"):
                with pytest.raises(LaunchFailed):
                    box.exec("true", workdir=path)


@pytest.fixture(scope="module")
def looker() -> Iterator[Bind]:
    """A directory with the program of ``looker.c``."""
    with tempfile.TemporaryDirectory(prefix="test-looker-") as place:
        os.chmod(place, 0o755)
        source = Path(__file__).with_name("looker.c")
        subprocess.run(["gcc", "-O1", "-static", "-o", f"{place}/looker", source], check=True)
        yield Bind(place, "/looker", readonly=True)


ALL = {"cap_add": ("ALL",), "seccomp": "unconfined"}
SHARED = {**ALL, "namespaces": Namespaces(pid="host")}
"""Who sees the host's processes sees the keepers, too, and those who have not yet entered."""

_ITS_OWN = re.compile(r"""
    (root|cwd)\ / | fd\ [012]\ .* | fd\ \d+\ /(usr|lib|etc|tmp/over).* | exe\ /usr/bin/\w+
    | (exe|maps)\ /memfd:dockless-agent\ \(deleted\) | traced\ (dockless-agent|memfd:dockless-)
""", re.VERBOSE)  # fmt: skip
"""What programs show that have begun. The agent for files is sealed, and has the rights of the sandbox's own program."""


@requires("gcc")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"user": "1000"},
        {"cap_add": ("SYS_PTRACE",)},
        ALL,
        pytest.param(SHARED, marks=requires("cgroup2")),
        pytest.param(REACHABLE, marks=requires("root")),
    ],
    ids=str,
)
def test_nobody_inside_looks_into_what_enters(looker, fields, monkeypatch):
    """A44, A56, A57: while commands, the agent for files and checks of health enter, and others start, a program inside looks by procfs
    into each new process that it sees. Of one that has not begun its program it gets nothing: no directory, descriptor, variable or memory,
    nor may it trace it. ``privileged`` may, docs/decisions/082-exec.md."""
    monkeypatch.setenv("OF_THE_HOST", "HOST-SECRET-1")
    health = HealthCheck(("/bin/true",), interval=0.05)
    spec = Spec(argv=("/looker/looker", "HOST-SECRET"), mounts=(looker,), health=health, **fields)
    with Sandbox(spec, stdout=PIPE, text=True) as box:
        assert box.stdout.readline() == "READY\n"
        for _ in range(60):
            assert box.exec("/bin/true", workdir="/").returncode == 0
            assert box.files.exists("/bin")
            box.files.close()
            if "namespaces" in fields:
                with Sandbox(Spec(argv=("/bin/true",), **fields)) as other:
                    assert other.wait().code == 0
        box.exec("touch", "/tmp/over")  # the sandbox may end before that does
        *seen, last = box.stdout.read().splitlines()
    seen = [line for line in seen if fields != SHARED or line != "root / (not our root)"]  # the other's, which has begun
    assert [line for line in seen if not _ITS_OWN.fullmatch(line)] == []
    assert int(last.removeprefix("over ")) > 60


@requires("gcc")
def test_who_traces_what_enters_holds_up_no_time_limit(looker):
    """A61: a process that has ended stays as long as a tracer does not let go of it, also with SIGKILL."""
    with Sandbox(Spec(argv=("/looker/looker",), mounts=(looker,)), stdout=PIPE, text=True) as box:
        assert box.stdout.readline() == "READY\n"
        for _ in range(4):
            with box.spawn("sleep", "1000", stdin=DEVNULL, timeout=0.5) as command:
                assert command.wait().timed_out and not command.process._late, "its keeper waits for what a tracer holds"


def _killed(box):
    with box.spawn("sleep", "1000", stdin=DEVNULL) as command:
        command.kill()
        assert command.wait().signal == signal.SIGKILL


def _left(box):
    with box.spawn("sleep", "1000", stdin=DEVNULL):
        pass


def _interrupted(box):
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        box.exec("sleep", "1000", stdin=DEVNULL)
    timer.join()


def _cancelled(box):
    async def cancel():
        async with aio.Sandbox.open(box.id) as same:
            await asyncio.wait_for(same.exec("sleep", "1000", stdin=DEVNULL), 0.3)

    with pytest.raises(TimeoutError):
        asyncio.run(cancel())


@requires("gcc")
@pytest.mark.parametrize("end", [_killed, _left, _interrupted, _cancelled])
def test_who_traces_what_enters_keeps_nobody_from_ending_it(looker, end):
    """A61: without a time limit it is its caller who ends it."""
    with Sandbox(Spec(argv=("/looker/looker",), mounts=(looker,)), stdout=PIPE, text=True) as box:
        assert box.stdout.readline() == "READY\n"
        for _ in range(4):
            end(box)


@requires("gcc")
def test_who_traces_a_check_of_its_health_holds_up_no_check(looker):
    """A61, A72: it fails at its timeout, and the next one comes."""
    health = HealthCheck(("/bin/sleep", "1000"), interval=0.05, timeout=0.2, retries=2)
    with Sandbox(Spec(argv=("/looker/looker",), mounts=(looker,), health=health), stdout=PIPE, text=True) as box:
        assert box.stdout.readline() == "READY\n"
        until(lambda: (found := box.health) and found.count >= 3 and found.status == "unhealthy", "three checks have failed")


def test_who_stops_or_kills_what_enters_ends_nothing_else():
    """A61: a program inside has the same ids: it may stop or kill what enters before its exec.
    That is an error or the timeout, never a hang."""
    script = "echo READY; while :; do kill -STOP -1; kill -KILL -1; done"
    with Sandbox(Spec(argv=("/bin/sh", "-c", script)), stdout=PIPE, text=True, stdin=DEVNULL) as box:
        assert box.stdout.readline() == "READY\n"
        for _ in range(40):
            try:
                assert box.exec("sleep", "1000", timeout=0.5).returncode == -signal.SIGKILL
            except LaunchFailed:
                pass
        keeper = box.process.keeper_pid
        until(lambda: _children(keeper) == [box.pid], "the keeper has no child but init")
        assert box.poll() is None


_TYPES_INTO_IT = """
import fcntl, os
for request in (0x5412, 0x100005412, 0x541C, 0x10000541C):
    for fd in (0, os.open("/dev/tty", os.O_RDWR)):
        try:
            fcntl.ioctl(fd, request & 0xFFFFFFFF, b"x")
            print("pushed", hex(request))
        except OSError:
            pass
print("over")
"""


def test_nothing_is_typed_into_a_terminal_from_inside():
    """A46: the terminal of what is executed is its controlling one, and TIOCSTI and TIOCLINUX are refused all the same."""
    if not os.path.exists(PYTHON):
        pytest.skip(f"no {PYTHON} for a program inside")
    with Sandbox(Spec(argv=("sleep", "1000")), stdin=DEVNULL) as box, box.spawn(PYTHON, "-c", _TYPES_INTO_IT, tty=True) as command:
        assert command.stdout.read().split() == [b"over"]


def test_users_that_are_no_users(tmp_path):
    """A35: CVE-2026-30892: what names nobody is refused, never root; a name is looked up in the sandbox as it is now."""
    with Sandbox(Spec(argv=("sleep", "1000"), image=load(tmp_path)), stdin=DEVNULL) as box:
        for user in ("4294967295", "-1", "2147483648", "0x0", " 0", "+0", "0:4294967295", "1000:-1", ":", "nobody-here", "1000:no-group"):
            with pytest.raises(DocklessError):
                assert box.exec("id", user=user) is None
        box.shell("echo evil:x:4294967295:0::/: > /etc/passwd; echo worse:x:0x0:0::/: >> /etc/passwd", check=True)
        for user in ("evil", "worse"):
            with pytest.raises(DocklessError):
                assert box.exec("id", user=user) is None


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@requires("root")
def test_a_stranger_is_no_activity(canary):
    """A68: the idle timeout counts who waits at the door when whoever came has proved to be outside, and not before."""
    with running(_stranger("""
given = plan()
print("begun", flush=True)
while True: ask([null, space, theirs.fileno(), given, null], [3, 4])
""")) as (box, said):  # fmt: skip
        keeper, seen, end = box.process.keeper_pid, 0, time.monotonic() + 20
        until(lambda: "begun" in said(), "it asks")
        while seen < 300:
            assert time.monotonic() < end, "nobody takes its requests"
            for child in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split():
                with contextlib.suppress(OSError):
                    # It has said so after it left its keeper's group. In one look at its stat the kernel reads the group first.
                    if "dockless-enter" in Path(f"/proc/{child}/comm").read_text():
                        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2]
                        assert int(fields.split()[2]) != keeper, "it counts as one that runs"
                        seen += 1


@requires("root")
def test_a_stranger_keeps_no_sandbox_that_is_idle(canary):
    """A68: neither does the end of whoever took its request count, nor who has just been made to take the next one."""
    spec = _stranger(
        """
given = plan()
while True: ask([null, space, theirs.fileno(), given, null], [3, 4])
""",
        idle_timeout=1.0,
    )
    for _ in range(6):
        with running(spec) as (box, _):
            ended = box.wait(20)
            assert ended.limit == "idle_timeout" and ended.ended - ended.started < 2.0


def test_a_socket_that_takes_for_ever_to_close(canary):
    """A61, A68: closing it would wait for data to be read that nobody reads; the keeper still ends the sandbox at its timeout."""
    body = """
listening = socket.create_server(("127.0.0.1", 0))
for _ in range(8):
    stuck = socket.create_connection(listening.getsockname())
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 30000))
    stuck.setblocking(False)
    try:
        while True:
            stuck.send(b"x" * 65536)
    except BlockingIOError:
        pass
    ask([null, space, theirs.fileno(), stuck.fileno()], [3])
    threading.Thread(target=os.close, args=(stuck.detach(),), daemon=True).start()  # the last who closes it waits
print("asked", flush=True)
time.sleep(1000)
"""
    spec = _stranger(body, timeout=6.0)
    with running(spec) as (box, said):
        keeper = box.process.keeper_pid
        ended = box.wait(30)
        assert ended.timed_out and said() == "asked\n"
        assert not box.process._late, f"keeper {keeper} did not end it by itself"
