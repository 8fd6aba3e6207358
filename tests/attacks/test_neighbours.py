"""A program that sees the host's processes, among them those of other sandboxes that the same process started for the same user.

Row A78 of the list of attacks. It has the ids of its neighbours, so it may signal them. The kernel lets it read and trace them only from
within their user namespace. ptrace(2), PTRACE_MODE_READ_FSCREDS
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from typing import Any

import pytest
from support import boxes
from support.requires import requires

from dockless.base.idmaps import default_map
from dockless.errors import Unsupported
from dockless.native.userns import SharedNetwork
from dockless.sandbox.run import detached
from dockless.sandbox.spec import Bind, Namespaces, Spec

pytestmark = requires("userns", "cgroup2", "program:python3")

SPY = r"""
import ctypes, os, sys
proc, known = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
seen = 0
for pid in map(int, filter(str.isdigit, os.listdir(proc))):
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            if file.read() != b"sleep\0" + known.encode() + b"\0":
                continue
    except OSError:
        continue
    seen += 1
    for path in ("root/tmp/secret", "environ", "mem", "cwd/tmp/secret", "maps"):
        try:
            with open(f"{proc}/{pid}/{path}", "rb", buffering=0) as file:
                if path == "mem" or file.read(99):
                    print("REACHED", path)
        except OSError:
            pass
    try:
        with open(f"{proc}/{pid}/root/tmp/owned", "w"):
            print("REACHED and wrote")
    except OSError:
        pass
    for path in ("ns/mnt", "ns/user", "exe"):
        try:
            os.readlink(f"{proc}/{pid}/{path}")
            print("REACHED", path)
        except OSError:
            pass
    if proc == "/proc" and libc.ptrace(0x4206, pid, 0, 0) == 0:  # PTRACE_SEIZE
        print("REACHED by ptrace")
print("seen", seen)
"""


@contextlib.contextmanager
def with_a_secret(**how: Any) -> Iterator[str]:
    """A sandbox, and the argument by which its program is known."""
    known = f"1000.{os.getpid()}"
    script = f"umask 077; echo canary > /tmp/secret; exec sleep {known}"
    box = detached.start(Spec(("sh", "-c", script), env=(("TOKEN", "canary"),), **how))
    try:
        boxes.until(lambda: f"sleep\0{known}\0" in map(_command_of, filter(str.isdigit, os.listdir("/proc"))), "it runs")
        yield known
    finally:
        box.kill()
        box.remove()


@pytest.fixture
def neighbour() -> Iterator[str]:
    with with_a_secret() as known:
        yield known


def _command_of(pid: str) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
        return file.read()
    return ""


def spied(proc: str, known: str, **how: Any) -> list[str]:
    ran = boxes.run(Spec(("python3", "-c", SPY, proc, known), **how))
    assert ran.exit.code == 0, ran.err
    return sorted(set(ran.lines))


def test_who_sees_the_hosts_processes_reaches_no_other_sandbox(neighbour: str) -> None:
    assert spied("/proc", neighbour, namespaces=Namespaces(pid="host")) == ["seen 1"]


@pytest.mark.parametrize(("source", "proc"), [("/proc", "/mnt"), ("/", "/mnt/proc")])
def test_nor_does_who_was_bound_a_procfs(neighbour: str, source: str, proc: str) -> None:
    assert spied(proc, neighbour, mounts=(Bind(source, "/mnt"),)) == ["seen 1"]


def test_two_that_see_the_hosts_processes_do_not_reach_each_other() -> None:
    how: Any = {"namespaces": Namespaces(pid="host")}
    with with_a_secret(**how) as known:
        assert spied("/proc", known, **how) == ["seen 1"]


KEYS = r"""
import ctypes, platform, sys
add_key, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[platform.machine()]
libc = ctypes.CDLL(None)
if sys.argv[1] == "put":
    assert libc.syscall(add_key, b"user", b"canary", b"secret", 6, -4) > 0
    print("put")
libc.syscall(keyctl, 8, -4, -3)  # KEYCTL_LINK: the user's keyring into the session's, so that it may be read
key = libc.syscall(keyctl, 10, -4, b"user", b"canary", 0)  # KEYCTL_SEARCH
text = ctypes.create_string_buffer(20)
libc.syscall(keyctl, 11, key, text, 20)  # KEYCTL_READ
print("READ", text.value.decode())
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the numbers of its system calls are not known here")
def test_the_keyring_of_a_user_is_one_sandboxs_alone() -> None:
    """Without dockless's filter, which has no keyrings."""
    put, read = (boxes.run(Spec(("python3", "-c", KEYS, what), seccomp="unconfined")).lines for what in ("put", "read"))
    assert put == ["put", "READ secret"] and read == ["READ "]


def test_what_sees_the_hosts_processes_shares_no_network() -> None:
    """Its user namespace would be the others' as well."""
    network = SharedNetwork(default_map())
    try:
        with pytest.raises(Unsupported, match="cannot share a network"):
            detached.start(Spec(("true",), namespaces=Namespaces(pid="host")), network=network)
    finally:
        network.close()
