"""Files are read, written and copied while the sandbox's program does all it can about it.

Rows A24, A32, A33, A35, A56, A57, A59, A65 of the list of attacks, and what Docker's ``cp`` suffered: CVE-2018-15664 (links that flip while
a copy is under way), CVE-2019-14271 (libraries of the image loaded by the copying process).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
import tarfile
import time
from pathlib import Path

import pytest
from support.boxes import DEADLINE, load, until
from support.make_image import directory, file, symlink
from support.make_image import fifo as a_fifo
from support.requires import requires

import dockless
from dockless.base.waits import readable
from dockless.errors import BadInput, SandboxGone
from dockless.sandbox.files import agent as agent_module
from dockless.sandbox.files.files import Files

pytestmark = requires("userns", "overlay")

SECRET = "the host's own\n"
ROUNDS = 150


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory of the host by whose path nothing is inside."""
    place = tmp_path / "victim"
    place.mkdir()
    (place / "secret").write_text(SECRET)
    return place


@contextlib.contextmanager
def shell(image: str, script: str, **options):
    """A sandbox whose program has said READY and goes on with the script."""
    with dockless.Sandbox(image, ["sh", "-c", script], stdout=dockless.PIPE, **options) as box:
        assert box.stdout.readline() == b"READY\n"
        yield box


FLIP = """
mkdir -p /work/d/sub && cd /work && echo READY
while :; do
  rm -rf d; ln -s {victim} d; rm d; mkdir -p d/sub; echo inside > d/secret; echo inside > d/sub/secret
  rm -rf d/sub; ln -s {victim} d/sub; rm d/secret; ln -s {victim}/secret d/secret
done
"""


def test_links_that_flip_while_it_is_copied_out(tmp_path, victim):
    """CVE-2018-15664: neither what the host has by the link's name is read, nor is anything written outside of the target."""
    image = load(tmp_path)
    seen = set()
    with shell(image, FLIP.format(victim=victim)) as box:
        for number in range(ROUNDS):
            target = tmp_path / "out" / str(number)
            target.mkdir(parents=True)
            with contextlib.suppress(OSError):
                box.files.copy_out("/work/d", target)
            with contextlib.suppress(OSError):
                seen.add(box.files.read_text("/work/d/secret"))
            for path in target.rglob("*"):
                if path.is_symlink():
                    assert os.path.realpath(path).startswith(str(target)), f"{path} leads to {os.readlink(path)}"
                elif path.is_file():
                    seen.add(path.read_text())
    assert seen <= {"inside\n", ""} and seen
    assert (victim / "secret").read_text() == SECRET and len(list(victim.iterdir())) == 1


def test_links_that_flip_while_it_is_copied_in(tmp_path, victim):
    """The same into the sandbox, as root inside: what arrives arrives inside."""
    image = load(tmp_path)
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "secret").write_text("copied\n")
    (source / "sub" / "secret").write_text("copied\n")
    done = 0
    with shell(image, FLIP.format(victim=victim)) as box:
        for _ in range(ROUNDS):
            for act in (
                lambda: box.files.copy_in(f"{source}/.", "/work/d"),
                lambda: box.files.write_text("/work/d/secret", "written\n"),
                lambda: box.files.remove("/work/d/sub", recursive=True),
                lambda: box.files.mkdir("/work/d/sub/new", parents=True),
            ):
                try:
                    act()
                    done += 1
                except OSError as error:
                    assert str(victim) not in str(error.filename) or not box.files.exists(victim), error
    assert done > 0
    assert (victim / "secret").read_text() == SECRET and len(list(victim.iterdir())) == 1


def test_what_is_written_below_a_link_that_is_made_meanwhile_stays_in_its_directory(tmp_path):
    """Inside the sandbox, too: a copy as root into a directory of another user's is not led to root's files by her links."""
    image = load(tmp_path, [directory("home/u", 0o777)])
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    for number in range(200):
        (source / "d" / f"led{number:03}").write_text("led")
    swap = "n=0; while :; do [ -L in/d ] || { mv in/d in/$n && ln -s /etc in/d; n=$((n+1)); }; done 2>/dev/null"
    led = 0
    with shell(image, f"cd /home/u; mkdir -m 777 in; echo READY; {swap}", user="1000") as box:
        root = box.files.as_user("0")
        for _ in range(10):
            try:
                root.copy_in(f"{source}/.", "/home/u/in")
            except OSError:
                led += 1
            with contextlib.suppress(OSError):
                root.remove("/home/u/in/d")
        names = {info.name for info in root.list("/etc")}
    assert led and not {name for name in names if name.startswith("led")}


def test_a_hostile_tar_stays_in_its_directory(tmp_path, victim):
    """Its links, and those that are made meanwhile, as root inside: neither what is elsewhere inside nor what the host has is written."""
    image = load(tmp_path, [directory("home/u", 0o777), file("root/own", "root's")])
    swap = f"while :; do rm -rf in/d; ln -s /root in/d; rm in/d; ln -s {victim} in/d; rm in/d; mkdir -m 777 in/d; done 2>/dev/null"
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, kind, target in (
            ("up", tarfile.SYMTYPE, "/root"), ("host", tarfile.SYMTYPE, str(victim)), ("up/own", tarfile.REGTYPE, ""),
            ("host/secret", tarfile.REGTYPE, ""), ("host/hard", tarfile.LNKTYPE, "host/secret"), ("h", tarfile.LNKTYPE, "up/own"),
            *((f"d/led{number}", tarfile.REGTYPE, "") for number in range(50)), ("null", tarfile.CHRTYPE, ""),
            ("pipe", tarfile.FIFOTYPE, ""),
        ):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, target, 0o4755
            archive.addfile(info)
    members = [raw.getvalue()[:1024] + raw.getvalue()[at : at + 512] for at in range(1024, raw.getvalue().index(bytes(1024)), 512)]
    led = 0
    with shell(image, f"cd /home/u; mkdir -m 777 in; echo READY; {swap}", user="1000") as box:
        root = box.files.as_user("0")
        for _ in range(3):
            for member in members:
                try:
                    root.tar_in(io.BytesIO(member), "/home/u/in")
                except OSError:
                    led += 1
        assert [info.name for info in root.list("/root")] == ["own"] and root.read_text("/root/own") == "root's"
        assert not root.exists("/home/u/in/null") and not root.exists("/home/u/in/pipe")
        with open(tmp_path / "out.tar", "wb") as out, contextlib.suppress(OSError):
            root.tar_out("/home/u/in", out)
    assert led and (victim / "secret").read_text() == SECRET and len(list(victim.iterdir())) == 1
    assert SECRET.encode() not in (tmp_path / "out.tar").read_bytes()


def test_nothing_of_the_image_runs_for_a_copy(tmp_path):
    """CVE-2019-14271: every program and library that such a process might look for is a trap."""
    trap = "#!/bin/sh\ntouch /tmp/ran\n"
    names = ["tar", "cp", "cat", "ls", "mkdir", "id", "getent", "sync", "rm", "mv"]
    entries = [
        *(file(f"bin/{name}", trap, 0o755) for name in names),
        file("etc/nsswitch.conf", "passwd: files trap\n"), file("etc/ld.so.preload", "/lib/trap.so\n"), file("lib/trap.so", "trap"),
        *(file(f"lib/libnss_{name}.so.2", "trap", 0o755) for name in ("files", "trap")),
        file("etc/passwd", "root:x:0:0::/root:/bin/sh\nuser:x:7:7::/:/bin/tar\n"), directory("tmp", 0o1777),
    ]  # fmt: skip
    image = load(tmp_path, entries)
    (tmp_path / "f").write_text("x")
    with dockless.Sandbox(image, ["sleep", "100"], env={"LD_PRELOAD": "/lib/trap.so"}) as box:
        for files in (box.files, box.files.as_user("user")):
            files.copy_in(tmp_path / "f", "/tmp/copied" + str(id(files)))
            files.copy_out("/bin", tmp_path / ("bin" + str(id(files))))
            files.write_text("/tmp/x" + str(id(files)), "x")
            files.list("/")
        names = {info.name for info in box.files.list("/tmp")}
    assert "ran" not in names and len(names) == 4


def test_a_fifo_and_a_device_neither_hang_nor_are_opened(tmp_path):
    image = load(tmp_path, [a_fifo("fifo", 0o666), directory("d"), a_fifo("d/fifo"), symlink("link", "fifo"), symlink("zero", "/dev/zero")])
    with dockless.Sandbox(image, ["sleep", "100"]) as box:
        for path in ("/fifo", "/link", "/zero", "/dev/zero", "/dev/tty"):
            for act, *more in (
                (box.files.read_bytes,),
                (box.files.open,),
                (box.files.write_text, "x"),
                (box.files.copy_out, tmp_path / "x"),
            ):
                with pytest.raises(OSError, match="Not a regular file") as caught:
                    act(path, *more)
                assert caught.value.errno == errno.ENOTSUP
        assert box.files.copy_out("/d", tmp_path / "d").skipped == (("fifo", "a FIFO, a socket or a device"),)


AGENTS = 'for p in /proc/[0-9]*; do read name < $p/comm 2>/dev/null; [ "$name" = dockless-agent ] && {act}; done'


def test_an_agent_that_was_killed_between_two_requests_is_started_again(tmp_path):
    with dockless.Sandbox(load(tmp_path), ["sleep", "100"]) as box:
        for _ in range(3):
            box.files.write_text("/f", "kept")
            agent = box.files._running._stdout
            box.shell(AGENTS.format(act="kill -9 ${p#/proc/}") + "; true")
            until(lambda agent=agent: readable(agent, 0), "it has ended")
            assert box.files.read_text("/f") == "kept"


def test_who_kills_the_agent_gains_an_error_and_no_more(tmp_path):
    image = load(tmp_path)
    killing = AGENTS.format(act="kill -9 ${p#/proc/}")
    with shell(image, f"echo READY; while :; do {killing}; done 2>/dev/null") as box:
        killed, done = 0, 0
        end = time.monotonic() + DEADLINE
        while not (killed and done) and time.monotonic() < end:
            try:
                box.files.list("/")
                done += 1
            except (SandboxGone, dockless.SandboxError):
                killed += 1
        assert killed


def test_who_stops_the_agent_is_not_waited_for(tmp_path, monkeypatch):
    image = load(tmp_path)
    stopping = AGENTS.format(act="kill -STOP ${p#/proc/} && echo STOPPED")
    with dockless.Sandbox(image, ["sh", "-c", f"read go; {stopping}; sleep 100"], stdin=dockless.PIPE, stdout=dockless.PIPE) as box:
        assert box.files.exists("/")  # answered: an agent is there, and at rest
        box.stdin.write(b"go\n")
        box.stdin.flush()
        assert box.stdout.readline() == b"STOPPED\n"
        with monkeypatch.context() as patch, pytest.raises(TimeoutError, match="stopped from inside"):
            patch.setattr(agent_module, "PATIENCE", 0.3)  # for this call alone: the next one starts an agent, which takes what it takes
            box.files.list("/")
        assert box.files.exists("/")


LOOK = AGENTS.format(act="{ ls -l $p/fd $p/cwd $p/root $p/exe; cat $p/status; cp /bin/sh $p/exe; echo x > $p/mem; } 2>&1")


@pytest.mark.parametrize(
    "shape", [{}, {"profile": "untrusted"}, pytest.param({"namespaces": dockless.Namespaces(user="host")}, marks=requires("root"))]
)
def test_nothing_of_the_host_is_open_in_the_agent(tmp_path, shape):
    """A56, A57, A65: pipes alone, no device, no directory, a program that cannot be written, the sandbox's own rights."""
    script = f"while ! [ -e /tmp/go ]; do :; done; {LOOK}; grep . /proc/self/status"
    with dockless.Sandbox(load(tmp_path), ["sh", "-c", script], stdout=dockless.PIPE, tmpfs=["/tmp"], **shape) as box:
        with contextlib.suppress(dockless.SandboxGone):  # it may have ended before the agent has answered
            box.files.write_text("/tmp/go", "")
        said = box.stdout.read().decode()
    opened = [line.split(" -> ")[1] for line in said.splitlines() if " -> " in line]
    assert [name for name in opened if not name.startswith(("pipe:", "/memfd:dockless-agent"))] == ["/", "/"], said
    assert sum(name.startswith("pipe:") for name in opened) == 3
    for field in ("Uid", "Gid", "CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp"):
        values = [line.split(maxsplit=1)[1] for line in said.splitlines() if line.startswith(f"{field}:")]
        assert len(values) == 2 and values[0] == values[1], (field, values)
    assert re.search(r"exe'?: (Permission denied|Text file busy|Operation not permitted)", said), said


@pytest.mark.parametrize(
    "passwd",
    [
        "printf 'evil:x:4294967295:0::/:\nevil:x:-1:0::/:\nevil:x:0x0:0::/:\nevil:x:2147483648:1::/:\n' > /etc/passwd",
        "ln -s /dev/zero /etc/passwd",
        "ln -s /proc/self/fd/0 /etc/passwd",
        "ln -s passwd /etc/passwd",
        "mkfifo /etc/passwd",
        "mkdir /etc/passwd",
        "{ yes xxxxxxxxxxx | head -c 3000000; echo; echo evil:x:5:5::/:; } > /etc/passwd",
        "chmod 700 /etc",
    ],
)
def test_a_passwd_that_lies_makes_nobody_root(tmp_path, passwd):
    """A35: CVE-2026-30892, CVE-2024-40635; the file is the sandbox's own, which changes it as it likes."""
    with shell(load(tmp_path), f"mkdir -m 777 /open; rm -f /etc/passwd; {passwd}; echo READY; exec sleep 100") as box:
        with pytest.raises(BadInput, match="user"):
            box.files.as_user("evil").exists("/")
        assert box.files.as_user("7:7").write_text("/open/f", "x") == 1
        assert (box.files.stat("/open/f").uid, box.files.stat("/open/f").gid) == (7, 7)


def test_a_program_that_comes_out_runs_as_nobody_else(tmp_path):
    image = load(tmp_path, [directory("d"), file("d/tool", "x", 0o6755), file("tool", "x", 0o4755)])
    with dockless.Sandbox(image, ["sleep", "100"]) as box:
        box.files.copy_out("/d", tmp_path / "out")
        box.files.copy_out("/tool", tmp_path / "tool")
    for path in (tmp_path / "out" / "tool", tmp_path / "tool"):
        about = path.stat()
        assert (stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid) == (0o755, os.geteuid(), os.getegid())


def test_nothing_inside_makes_a_path_lead_elsewhere(tmp_path, victim):
    """Magic links, parents of the root, links to what only the host has."""
    image = load(
        tmp_path, [symlink("up", "/" + "../" * 40 + str(victim)[1:]), symlink("self", "/proc/self/root"), symlink("one", "/proc/1/root")]
    )
    with dockless.Sandbox(image, ["sleep", "100"]) as box:
        for start in ("/up", f"/../../..{victim}", f"/self{victim}", f"/one{victim}", f"/proc/self/cwd{victim}", f"/proc/1/cwd{victim}"):
            with pytest.raises(OSError):
                box.files.read_text(f"{start}/secret")
            with pytest.raises(OSError):
                box.files.write_text(f"{start}/secret", "x")
    assert (victim / "secret").read_text() == SECRET


def test_a_sandbox_that_ends_meanwhile_is_said(tmp_path):
    image = load(tmp_path)
    with dockless.Sandbox(image, ["sleep", "100"]) as box:
        files: Files = box.files
        assert files.exists("/")
        box.kill()
        box.wait()
        with pytest.raises(SandboxGone):
            until(lambda: files.exists("/") and False, "an error")


def test_links_in_what_an_ended_sandbox_left(tmp_path, victim):
    """Nobody is inside any more, and its links lead nowhere else than they did then: not in the host's view of its private layer."""
    image = load(tmp_path, [directory("etc"), file("etc/passwd", "root:x:0:0::/root:/bin/sh\n")])
    script = f"""
        ln -s {victim} /abs; ln -s ../../../../../../..{victim} /rel; ln -s /proc/1/root{victim} /proc1; mkdir /d
        ln -s {victim}/secret /d/l; ln -s {victim}/secret /made
        rm -r /etc /tmp; ln -s {victim} /etc; ln -s {victim} /tmp; mkfifo /fifo; rm -r /proc /dev /sys
        ln -s {victim} /dev; ln -s {victim} /proc; ln -s {victim} /sys
    """
    box = dockless.start(image, ["sh", "-c", script])
    box.wait()
    seen: set[str] = set()
    with box.files as files:
        for path in ("/abs", "/rel", "/proc1", "/etc", "/tmp", "/proc", "/dev"):
            for act in (lambda at: files.write_text(at, "written"), lambda at: seen.add(files.read_text(at))):
                with contextlib.suppress(OSError):
                    act(f"{path}/secret")
        with pytest.raises(OSError, match=r"No such file|Too many levels"):
            files.write_text("/made", "written")
        with pytest.raises(OSError, match="Not a regular file"):
            files.read_text("/fifo")
        (tmp_path / "out").mkdir()
        files.copy_out("/d", tmp_path / "out")
        files.copy_in(victim, "/in")
    box.rm()
    assert seen <= {"written"} and not list((tmp_path / "out").rglob("l"))
    assert (victim / "secret").read_text() == SECRET and len(list(victim.iterdir())) == 1
