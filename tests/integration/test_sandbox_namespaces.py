"""Namespaces, each new or shared, seen from inside. namespaces(7)"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from support.boxes import ok, run, sh
from support.requires import requires

from dockless.errors import LaunchFailed
from dockless.sandbox.spec import Namespaces, Spec

pytestmark = requires("userns")

KINDS = ("mnt", "pid", "uts", "ipc", "net", "user", "cgroup")


def _inside(**fields) -> dict[str, str]:
    text = ok("for n in mnt pid uts ipc net user cgroup time; do echo $n $(readlink /proc/self/ns/$n); done", **fields)
    return dict(line.split() for line in text.splitlines())


def _ours() -> dict[str, str]:
    return {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in (*KINDS, "time")}


def test_everything_is_new_but_the_clock():
    inside, ours = _inside(), _ours()
    assert [kind for kind in KINDS if inside[kind] == ours[kind]] == []
    assert inside["time"] == ours["time"]


@pytest.mark.parametrize("kind", ["uts", "ipc", "cgroup"])
def test_a_shared_namespace_is_the_callers_own(kind):
    inside, ours = _inside(namespaces=Namespaces(**{kind: "host"})), _ours()
    assert [name for name in KINDS if inside[name] == ours[name]] == [kind]


@requires("cgroup2")
def test_shared_pid_namespace():
    inside, ours = _inside(namespaces=Namespaces(pid="host")), _ours()
    assert [name for name in KINDS if inside[name] == ours[name]] == ["pid"]
    assert ok(f"[ -d /proc/{os.getpid()} ] && echo seen", namespaces=Namespaces(pid="host")) == "seen\n"


def test_shared_network():
    inside, ours = _inside(network="host"), _ours()
    assert [name for name in KINDS if inside[name] == ours[name]] == ["net"]


@requires("root")
def test_shared_user_namespace():
    inside, ours = _inside(namespaces=Namespaces(user="host")), _ours()
    assert [name for name in KINDS if inside[name] == ours[name]] == ["user"]


def test_the_program_is_alone_in_its_pid_namespace():
    assert ok("for p in /proc/[0-9]*; do cat $p/comm; done").split()[0] == "dockless-init"
    assert int(ok("ls -d /proc/[0-9]* | wc -l")) <= 4  # init, sh, ls, wc


def test_hostname_is_the_sandboxes_own():
    before = os.uname().nodename
    assert ok("cat /proc/sys/kernel/hostname", hostname="a-box").strip() == "a-box"
    assert ok("cat /etc/hostname", hostname="a-box") == "a-box\n"
    assert os.uname().nodename == before


def test_shared_uts_keeps_the_hosts_name():
    assert ok("cat /proc/sys/kernel/hostname", namespaces=Namespaces(uts="host")).strip() == os.uname().nodename


@requires("root")
def test_time_namespace_moves_the_clocks():
    shifted = float(ok("cut -d' ' -f1 /proc/uptime", namespaces=Namespaces(time="new"), time_offset=1_000_000))
    assert 0 <= shifted - 1_000_000 - time.clock_gettime(time.CLOCK_BOOTTIME) + 60 < 120


@requires("user")
def test_time_namespace_of_an_ordinary_user():
    shifted = float(ok("cut -d' ' -f1 /proc/uptime", namespaces=Namespaces(time="new"), time_offset=1_000_000))
    assert shifted > 1_000_000


def test_loopback_is_up_and_nothing_else():
    text = ok("cat /proc/net/dev")
    assert [line.split(":")[0].strip() for line in text.splitlines()[2:]] == ["lo"]
    # A connection to a closed port of a loopback that is up is refused; of one that is down the network is unreachable.
    said = ok("python3 -c \"import socket; print(socket.socket().connect_ex(('127.0.0.1', 9)))\"")
    assert int(said) == 111


def test_host_network_shows_the_hosts_interfaces():
    text = ok("cat /proc/net/dev", network="host")
    ours = {line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]}
    assert {line.split(":")[0].strip() for line in text.splitlines()[2:]} == ours


def test_the_cgroup_namespace_hides_the_path():
    assert all(line.split(":", 2)[2] == "/" for line in ok("grep '^0:' /proc/self/cgroup").splitlines())


def test_a_session_of_its_own():
    pid, session = ok("set -- $(cat /proc/self/stat); cut -d' ' -f1,6 /proc/$$/stat").split()
    assert pid == session


def test_keyring_is_not_the_callers():
    ran = sh("grep -c . /proc/keys")
    assert ran.exit.code in (0, 1) and ran.out.strip() in ("0", "")


def test_nothing_of_the_host_is_mounted_twice():
    """The old root is gone: every mount that is left hangs below the new one."""
    points = [line.split()[4] for line in ok("cat /proc/self/mountinfo").splitlines()]
    assert "/" in points and all(point.startswith("/") for point in points)
    assert run(Spec(argv=("/bin/sh", "-c", "[ -e /../../dev/vda ] || [ -d /../work ]"))).exit.code == 1


@requires("kernel>=6.9")  # before, settings of an IPC namespace belonged to the host's root
def test_settings_of_its_own_namespaces():
    names = {"net.ipv4.ip_forward": "1", "fs.mqueue.msg_max": "77", "kernel.shmmni": "1234"}
    files = [f"/proc/sys/{name.replace('.', '/')}" for name in names]
    before = [Path(file).read_text() for file in files]
    said = ok(f"cat {' '.join(files)}; echo 0 > {files[0]} || echo refused", sysctls=tuple(names.items()))
    assert said.split() == [*names.values(), "refused"]
    assert [Path(file).read_text() for file in files] == before


def test_a_setting_that_the_kernel_refuses_says_which_and_why():
    for name, value, why in (("net.no.such", "1", "no such setting"), ("net.ipv4.ip_forward", "abc", "does not take that value")):
        with pytest.raises(LaunchFailed, match=re.escape(name)) as caught:
            ok("true", sysctls=((name, value),))
        assert why in caught.value.hint


def test_names_of_its_own(tmp_path):
    said = ok(
        "cat /proc/sys/kernel/hostname /proc/sys/kernel/domainname; tail -n 2 /etc/hosts",
        hostname="web", domainname="example.org", hosts=(("db", "10.0.0.5"),),
    )  # fmt: skip
    assert said.splitlines() == ["web", "example.org", "127.0.1.1\tweb.example.org web", "10.0.0.5\tdb"]
    assert Path("/proc/sys/kernel/domainname").read_text() != "example.org\n"
