"""Another image's tools in a sandbox that runs: what they see of it, what they may do, how they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import host_programs
from support.boxes import load
from support.make_image import file
from support.requires import requires

import dockless
from dockless import DEVNULL, PIPE, Sandbox, aio
from dockless.errors import BadInput, CommandNotFound, SandboxGone, UnknownImage, Unsupported
from dockless.sandbox.run import detached as runs
from dockless.sandbox.spec import Namespaces, Spec

pytestmark = requires("userns", "overlay")

AGAIN = ["sh", "-c", "trap : USR1; while :; do sleep 1000 & wait; done"]
"""Goes on after a signal."""
TARGET = "slim:latest"
TOOLS = "tools:latest"


@pytest.fixture
def images(tmp_path: Path) -> None:
    load(tmp_path, [file("etc/mark", "slim\n"), file("etc/only-slim", "here\n")], name=TARGET)
    load(tmp_path, [file("etc/mark", "tools\n")], name=TOOLS, env={"PATH": "/bin", "FROM": "tools"}, workdir="/etc", user="1")


@pytest.fixture
def box(images: None) -> Iterator[Sandbox[bytes]]:
    with Sandbox(TARGET, AGAIN, stdin=DEVNULL, hostname="the-target", env={"FROM": "slim"}, tmpfs=["/t"]) as found:
        yield found


def shown(box: Sandbox[Any], script: str, **options: Any) -> str:
    ran = box.debug(TOOLS, "sh", "-c", script, text=True, **options)
    assert ran.returncode == 0, ran
    return ran.stdout.strip()


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace on this host")
def test_a_tracer_of_another_image_traces_the_program(tmp_path, images):
    """The issue itself, with a real tracer."""
    tools = load(tmp_path, host_programs.entries("strace"), name="strace:latest")
    with (
        Sandbox(TARGET, AGAIN, stdin=DEVNULL) as box,
        box.spawn_debug(tools, "strace", "-p", "2", stderr=PIPE, text=True) as strace,
    ):
        assert "attached" in strace.stderr.readline()
        box.send_signal(10)
        assert any("--- SIGUSR1" in line for line in strace.stderr)


def test_it_sees_the_sandbox_and_has_its_own_root(box):
    assert shown(box, "cat /etc/mark /target/etc/mark /target/etc/only-slim; ls /etc/only-slim 2>&1 | wc -l").split() == [
        "tools", "slim", "here", "1",
    ]  # fmt: skip
    assert shown(box, "hostname; id -u; pwd; echo $FROM; tr '\\0' ' ' < /proc/2/cmdline").splitlines()[:4] == [
        "the-target", "0", "/etc", "tools",
    ]  # fmt: skip
    links = "for kind in net pid ipc uts cgroup user mnt; do readlink /proc/self/ns/$kind; done"
    ours, its = shown(box, links).splitlines(), box.shell(links, text=True).stdout.splitlines()
    assert ours[:-1] == its[:-1] and ours[-1] != its[-1]


def test_what_the_sandbox_wrote_shows_and_is_readonly_unless_asked(box):
    box.shell("echo one > /new; echo two > /t/in-memory", check=True)
    assert shown(box, "cat /target/new /target/t/in-memory").split() == ["one", "two"]
    for path in ("/target/x", "/target/t/x"):
        ran = box.debug(TOOLS, "sh", "-c", f"echo no > {path}", text=True)
        assert ran.returncode and "ead-only" in ran.stderr
    shown(box, "echo yes > /target/x; echo yes > /target/t/x; echo own > /x", write=True)
    assert box.shell("cat /x /t/x", text=True).stdout.split() == ["yes", "yes"]


def test_what_it_mounts_and_writes_is_not_the_sandboxs(box):
    before = box.shell("cat /proc/self/mountinfo; ls -a / /tmp", text=True).stdout
    with box.spawn_debug(TOOLS, "sh", "-c", "touch /seen /tmp/seen; echo made; exec sleep 1000", stdout=PIPE) as looking:
        assert looking.stdout.readline() == b"made\n"
        assert box.shell("cat /proc/self/mountinfo; ls -a / /tmp", text=True).stdout == before
    assert box.shell("cat /proc/self/mountinfo; ls -a / /tmp", text=True).stdout == before


def test_its_rights(box):
    status = dict(line.split(":\t") for line in shown(box, "cat /proc/self/status").splitlines() if ":\t" in line)
    assert int(status["CapEff"], 16) >> 19 & 1 and not int(status["CapEff"], 16) >> 21 & 1  # SYS_PTRACE, not SYS_ADMIN
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert shown(box, "ls /proc/self/fd").split() == ["0", "1", "2", "3"]  # the last is ls's own
    mounts = shown(box, "grep ' /target' /proc/self/mountinfo").splitlines()[1:]  # the first is a place for the others
    assert len(mounts) > 5
    for line in mounts:
        assert {"ro", "nosuid", "nodev"} <= {*line.split()[5].split(",")}, line


def test_what_it_may_write_gives_no_rights_either(box):
    """A program of the target's that belongs to another user is started with the tools' rights, not with that user's."""
    root, *others = shown(box, "grep ' /target' /proc/self/mountinfo", write=True).splitlines()[1:]
    assert "rw" in root.split()[5].split(",") and len(others) > 4
    for line in (root, *others):
        assert {"nosuid", "nodev"} <= {*line.split()[5].split(",")}, line


def test_the_hosts_own_programs(images):
    with Sandbox(TARGET, AGAIN, stdin=DEVNULL) as box:
        ran = box.debug("host", "cat", "/target/etc/mark", text=True)
        assert (ran.returncode, ran.stdout) == (0, "slim\n")


@requires("cgroup2")
def test_what_it_takes_is_not_taken_from_the_sandbox(box):
    """Its cgroup lies beside the sandbox's, whose programs' are at or below the root of what they see."""
    assert "/../" not in box.shell("cat /proc/self/cgroup", text=True).stdout
    assert "\n0::/../" in "\n" + shown(box, "cat /proc/self/cgroup")


def test_it_knows_the_hosts_that_the_sandbox_knows(images):
    for profile in ("default", "untrusted"):
        with Sandbox(TARGET, AGAIN, stdin=DEVNULL, profile=profile, add_hosts={"peer.example": "192.0.2.7"}) as box:
            assert ("192.0.2.7" in shown(box, "cat /etc/hosts")) == (profile == "default")


def test_it_knows_no_servers_of_names_where_the_sandbox_has_no_network(images):
    """An untrusted one has none, whatever its spec says of the network."""
    for profile in ("default", "untrusted"):
        made = runs.start(Spec(tuple(AGAIN), TARGET, profile=profile, network="host"), id=profile)
        try:
            servers = shown(Sandbox.open(profile), "cat /etc/resolv.conf 2> /dev/null || true")
            assert (servers != "") == (profile == "default" and Path("/etc/resolv.conf").read_text() != "")
        finally:
            made.remove()


def test_its_terminal_is_the_tools(box):
    with box.spawn_debug(TOOLS, "sh", "-c", "tty; stty size < /dev/tty", tty=True, size=(12, 34)) as command:
        out, _ = command.communicate(timeout=20)
    assert command.poll().code == 0 and out.split() == [b"/dev/pts/0", b"12", b"34"]


def test_how_it_ends(box):
    assert box.debug(TOOLS, "sh", "-c", "sleep 1001 & sleep 1001", timeout=0.3).timed_out
    assert "1001" not in _commands(box)
    with box.spawn_debug(TOOLS, "sh", "-c", "(sleep 1002 &); echo; sleep 1002", stdout=PIPE) as command:
        command.stdout.readline()
        assert "1002" in _commands(box)
    assert "1002" not in _commands(box)  # and the sandbox goes on


def test_it_ends_with_the_sandbox(images):
    with Sandbox(TARGET, AGAIN, stdin=DEVNULL) as box, box.spawn_debug(TOOLS, "sleep", "1000") as command:
        box.kill()
        assert command.wait(20).signal == 9


def _commands(box: Sandbox[Any]) -> str:
    return box.shell("cat /proc/[0-9]*/cmdline 2>&-; true", text=True, check=True).stdout


def test_what_is_refused(box):
    with pytest.raises(CommandNotFound):
        box.debug(TOOLS, "nothing-of-this-name")
    with pytest.raises(UnknownImage):
        box.debug("nothing-of-this-name", "true", pull="never")
    with pytest.raises(BadInput, match="root"):
        box.debug(TOOLS, "true", user="1")
    with pytest.raises(BadInput):
        box.debug(TOOLS)
    box.kill()
    box.wait()
    with pytest.raises(SandboxGone):
        box.debug(TOOLS, "true")


@requires("root", "cgroup2")
@pytest.mark.parametrize("shared", ["user", "pid"])
def test_who_could_look_into_the_host_is_refused(images, shared):
    with (
        Sandbox(TARGET, AGAIN, stdin=DEVNULL, namespaces=Namespaces(**{shared: "host"})) as box,
        pytest.raises(Unsupported, match="shares the host's"),
    ):
        box.debug(TOOLS, "true")


def test_in_an_event_loop(images):
    async def main() -> None:
        async with aio.Sandbox(TARGET, AGAIN, stdin=DEVNULL) as box:
            assert (await box.debug(TOOLS, "cat", "/target/etc/mark", text=True)).stdout == "slim\n"
            async with box.spawn_debug(TOOLS, "sleep", "1000") as command:
                assert command.poll() is None

    asyncio.run(main())


def cli(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dockless", *words], capture_output=True, text=True, timeout=60, **options)


@pytest.fixture
def detached(images: None) -> Iterator[Sandbox[bytes]]:
    with contextlib.ExitStack() as undone:
        found = dockless.start(TARGET, AGAIN)
        undone.callback(found.rm, force=True)
        yield found


def test_on_the_command_line(detached):
    debug = ("debug", detached.id, "--image", TOOLS)
    ran = cli(*debug, "--write", "-e", "A=b", "-w", "/target", "--", "sh", "-c", "echo $A > made; cat; exit 3", input="in\n")
    assert (ran.returncode, ran.stdout) == (3, "in\n"), ran
    assert detached.files.read_text("/made") == "b\n"
    assert cli(*debug, "--timeout", "300ms", "-q", "--", "sleep", "1000").returncode == 124
    assert cli(*debug, "--", "nothing").returncode == 127
    assert json.loads(cli(*debug, "--json", "--", "true").stderr)["exit_code"] == 0
    explained = cli(*debug, "--explain", "--", "touch", "/target/etc/touched").stdout
    assert "make the sandbox's / ro,nosuid,nodev" in explained and "run touch" in explained
    assert detached.exec("test", "-e", "/etc/touched").returncode == 1
    for wrong, said in (((detached.id, "--", "true"), "--image"), ((detached.id, "--image", TOOLS), "command")):
        ran = cli("debug", *wrong)
        assert ran.returncode == 125 and said in ran.stderr


def test_a_job_is_refused():
    ran = cli("debug", "7", "--image", "host", "--", "true")
    assert ran.returncode == 125 and "only sandboxes" in ran.stderr
