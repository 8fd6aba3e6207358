"""What a sandbox does to those who look into it with another image's tools, and what waits for them below ``/target``.

Rows A44 and A56 of the list of attacks, for ``debug``. What looks is root of the same ids as everything inside, and in the same PID
namespace.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.boxes import load
from support.make_image import file, symlink
from support.requires import requires

from dockless import DEVNULL, PIPE, Sandbox

pytestmark = requires("userns", "overlay")

PYTHON = "/usr/bin/python3"
_SPY = r"""
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
own, seen, told = {os.getpid(), 1}, set(), set()
control = os.fork()  # what has the same rights: a spy that does not reach it is none
if not control:
    while True:
        signal.pause()
print("ready", flush=True)
def opened(pid):
    for name in ("mem", "environ", "maps", "exe", "ns/mnt", "auxv"):
        try:
            with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
                if name != "maps" or file.read(100):  # that of a process that is just ending opens, and is empty
                    yield name
        except OSError:
            pass
    for name in ("root", "cwd", "map_files", "fdinfo"):
        try:
            if os.listdir(f"/proc/{pid}/{name}"):  # that of a process that is just ending opens, and is empty
                yield name
        except OSError:
            pass
    for name in ("exe", "root", "cwd", "fd/0", "fd/1", "fd/25", "ns/mnt"):
        try:
            os.readlink(f"/proc/{pid}/{name}")
            yield f"where {name} leads"
        except OSError:
            pass
    if libc.ptrace(0x4206, pid, 0, 0) == 0:  # PTRACE_SEIZE
        yield "ptrace"
    try:
        there = os.pidfd_open(pid)
        if libc.syscall(438, there, 0, 0) >= 0:
            yield "pidfd_getfd"
        os.close(there)
    except OSError:
        pass
while not os.path.exists("/tmp/enough"):
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if pid not in own:
            for name in opened(pid):
                found = f"REACHED {'control' if pid == control else pid} {name}"
                if found not in told:
                    print(found, flush=True)
                told.add(found)
            if pid not in seen:
                open(f"/tmp/seen-{pid}", "w").close()
            seen.add(pid)
print("seen", len(seen), flush=True)
"""


@pytest.mark.skipif(not os.path.exists(PYTHON), reason=f"no {PYTHON} for a program inside")
def test_nobody_inside_reaches_what_looks_in(tmp_path: Path):
    """A44, A56: not while it comes, when its descriptors and mounts are the host's, and not while it runs. No filter holds the spy."""
    tools = load(tmp_path, name="tools:latest")
    with Sandbox([PYTHON, "-c", _SPY], stdin=DEVNULL, stdout=PIPE, text=True, seccomp="unconfined") as box:
        assert box.stdout.readline() == "ready\n"
        for _ in range(15):
            ran = box.debug(tools, "sh", "-c", "until test -e /target/tmp/seen-$$; do sleep 0.01; done", text=True)
            assert ran.returncode == 0, ran
        box.debug(tools, "touch", "/target/tmp/enough", write=True, check=True)
        said = box.stdout.read()
    reached = {line.split()[1] for line in said.splitlines() if line.startswith("REACHED")}
    assert reached == {"control"}, said[:2000]
    assert int(said.split()[-1]) >= 15, said[:2000]


def test_links_lead_to_the_tools_and_never_to_the_host(tmp_path: Path):
    """A44: what a link below /target means is said by the root of who follows it."""
    secret = tmp_path / "secret"
    secret.write_text("the host's\n")
    links = [symlink("mark", "/etc/mark"), symlink("up", "../" * 20 + "etc/mark"), symlink("host", str(secret))]
    links += [symlink("init", "/proc/1/root/etc/mark"), symlink("own", "/proc/self/root/etc/mark"), symlink("target", "/")]
    target = load(tmp_path, links, name="target:latest")
    tools = load(tmp_path, [file("etc/mark", "tools\n")], name="tools:latest")
    with Sandbox(target, ["sleep", "1000"], stdin=DEVNULL) as box:

        def read(name: str) -> tuple[int, str]:
            ran = box.debug(tools, "cat", f"/target/{name}", text=True)
            return ran.returncode, ran.stdout

        assert read("mark") == read("up") == read("own") == read("target/etc/mark") == (0, "tools\n")
        assert read("host") == read("init") == (1, "")
        box.debug(tools, "sh", "-c", "echo written > /target/mark; echo written > /target/up", write=True, check=True)
        assert read("mark") == (0, "tools\n")  # what the tools write of their own goes with them


def test_an_image_of_tools_with_a_link_in_the_place_of_target(tmp_path: Path):
    target = load(tmp_path, [file("etc/mark", "target\n")], name="target:latest")
    for number, link in enumerate(("/etc", "../../../tmp", "/proc/self/cwd")):
        tools = load(tmp_path, [symlink("target", link)], name=f"tools:{number}")
        with Sandbox(target, ["sleep", "1000"], stdin=DEVNULL) as box:
            try:
                ran = box.debug(tools, "cat", "/target/etc/mark", text=True)
            except Exception as error:
                assert type(error).__name__ == "LaunchFailed", error
            else:
                assert ran.returncode == 0 and ran.stdout == "target\n", ran


@requires("root")
@pytest.mark.parametrize("before", ["true", "mount --make-rshared /", "mount --make-rslave /"])
def test_what_is_mounted_inside_later_does_not_show(before: str, tmp_path: Path):
    """With CAP_SYS_ADMIN inside: nothing of it comes into the mount namespace of what looks, and it sees none of its mounts. Whatever it
    has done to its own mounts before."""
    tools = load(tmp_path, [file("etc/mark", "tools\n")], name="tools:latest")
    target = load(tmp_path, name="target:latest")
    options = {"cap_add": ["SYS_ADMIN"], "seccomp": "unconfined", "stdin": DEVNULL}
    look = "echo; read line; cat /proc/self/mountinfo; cat /proc/sys/kernel/ostype; touch /target/later/written"
    with Sandbox(target, ["sleep", "1000"], **options) as box:
        box.shell(f"mkdir -p /later && {before}", check=True)
        with box.spawn_debug(tools, "sh", "-c", look, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True) as looking:
            looking.stdout.readline()
            box.shell("mount -t tmpfs later /later && chmod 777 /later && mount --make-shared /later", check=True)
            box.shell("echo LIES > /tmp/lies && mount --bind /tmp/lies /proc/sys/kernel/ostype", check=True)
            out, _ = looking.communicate("\n", timeout=20)
        assert "/target" in out and "later" not in out and "LIES" not in out and out.endswith("\nLinux\n")
        seen = box.shell("cat /proc/self/mountinfo; ls /later", text=True).stdout
        assert " /target" not in seen and "written" not in seen
