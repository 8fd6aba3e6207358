"""The root file system: images, uppers, the pseudo-image, /dev, /etc, masks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.boxes import load, ok, run, sh
from support.make_image import directory, file, symlink, whiteout
from support.requires import requires

from dockless.base import paths
from dockless.base.idmaps import default_map
from dockless.sandbox.rootfs import MASKED, READONLY
from dockless.sandbox.spec import Spec

pytestmark = requires("userns")


@requires("overlay")
@pytest.mark.parametrize("mode", ["disk", "tmpfs"])
def test_writes_go_to_a_private_upper(tmp_path, mode):
    ref = load(tmp_path, [file("data/a", "one")])
    script = "cat /data/a; echo two > /data/a; cat /data/a; rm /data/a; [ -e /data/a ] || echo gone; echo new > /new; cat /new"
    for _ in range(2):  # the second start sees nothing of the first
        assert ok(script, image=ref, root=mode).split() == ["onetwo", "gone", "new"]


@requires("overlay")
def test_readonly_root_with_a_place_to_write(tmp_path):
    ref = load(tmp_path, [file("data/a", "one")], volumes=["/var/cache"])
    ran = sh("echo x > /data/a; echo y > /var/cache/f && cat /var/cache/f; touch /etc/x; mkdir /d", image=ref, root="readonly")
    assert ran.out == "y\n" and ran.err.count("Read-only") == 3


@requires("overlay")
def test_layers_lie_in_order(tmp_path):
    ref = load(tmp_path, [file("etc/os-release", "ID=upper\n"), whiteout("etc/group"), directory("srv")])
    assert ok("cat /etc/os-release; ls /etc", image=ref).split()[0] == "ID=upper"
    assert "group" not in ok("ls /etc", image=ref).split()


@requires("overlay")
def test_root_size(tmp_path):
    ref = load(tmp_path)
    ran = sh("head -c 4194304 /dev/zero > /big", image=ref, root="tmpfs", root_size=1 << 20)
    assert ran.exit.code != 0 and ran.err


@requires("overlay")
def test_owners_inside_are_the_images_own(tmp_path):
    ref = load(tmp_path, [file("a", uid=0, gid=0), file("b", uid=1000, gid=1000)])
    assert ok("stat -c %u:%g /a /b", image=ref).split() == (["0:0", "0:0"] if default_map().single else ["0:0", "1000:1000"])


@requires("overlay")
@requires("subuid")
def test_unreadable_remains_are_removed(tmp_path):
    ref = load(tmp_path)
    ok("mkdir -p /d/e; touch /d/e/f; chown -R 1000:1000 /d; chmod 0 /d/e /d; mkdir /z; touch /z/q; chmod 0 /z", image=ref)
    left = paths.state() / "running"
    assert not left.exists() or os.listdir(left) == []


@requires("overlay")
def test_image_configuration_is_honoured(tmp_path):
    ref = load(tmp_path, env={"A": "1", "B": "2"}, entrypoint=["/bin/sh", "-c"], cmd=["pwd; echo $A $B $PATH"], workdir="/made/for/you")
    ran = run(Spec(image=ref, env=(("B", "3"),)))
    assert ran.lines[0] == "/made/for/you" and ran.lines[1].startswith("1 3 /usr")
    assert run(Spec(image=ref, argv=("echo $A",))).out == "1\n"  # Cmd is replaced, Entrypoint stays
    assert run(Spec(image=ref, entrypoint=(), argv=("/bin/echo", "x"))).out == "x\n"


def test_environment_is_the_sandboxes_own(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    names = {line.split("=")[0] for line in ok("env", env=(("MINE", "a=b c"),)).splitlines()}
    assert "MINE" in names and names <= {
        "PATH",
        "HOSTNAME",
        "HOME",
        "MINE",
        "NVIDIA_VISIBLE_DEVICES",
        "PWD",
        "SHLVL",
        "_",
        "OLDPWD",
        "TERM",
    }
    assert ok('printf %s "$MINE"', env=(("MINE", "a=b c"),)) == "a=b c"


def test_bytes_that_are_not_utf8_survive():
    raw = os.fsdecode(b"\xff\xfe")
    assert ok('printf %s "$MINE" | od -An -tx1', env=(("MINE", raw),)).split() == ["ff", "fe"]


def test_workdir():
    assert ok("pwd", workdir="/tmp/a/../b") == "/tmp/b\n"
    assert ok("pwd") == "/\n"


def test_the_host_image_shows_programs_and_nothing_alive():
    listing = ok("ls /; echo --; ls -A /root /home /run /tmp /mnt /srv /var/tmp")
    top, _, alive = listing.partition("--\n")
    assert {"usr", "etc", "proc", "sys", "dev", "tmp", "root", "home", "run"} <= set(top.split())
    assert [line for line in alive.splitlines() if line and not line.startswith("/")] == []


def test_the_host_image_is_readonly_where_it_is_the_hosts(tmp_path):
    ran = sh("touch /usr/x; touch /etc/x; touch /opt/x; rm -f /etc/passwd; echo > /tmp/fine")
    assert ran.exit.code == 0 and not Path("/usr/x").exists() and Path("/etc/passwd").exists()
    assert ran.err.count("ead-only") >= 2


def _needs_hosts() -> None:
    """The image `host` shows the host's /etc, and only over a file that is there can ours be mounted."""
    if not os.path.exists("/etc/hosts"):
        pytest.skip("this host has no /etc/hosts")


@requires("subuid")
def test_tmp_is_for_everybody():
    assert ok("stat -c %a /tmp /var/tmp /dev/shm /root").split() == ["1777", "1777", "1777", "700"]
    assert ok("touch /tmp/a /var/tmp/b /dev/shm/c && echo fine", user="1000") == "fine\n"


@requires("subuid")
@requires("overlay")
def test_the_hosts_umask_does_not_leak(tmp_path):
    _needs_hosts()
    ref = load(tmp_path)
    before = os.umask(0o077)
    try:
        assert ok("umask; stat -c %a / /dev /dev/pts", image=ref, user="1000").split()[:3] == ["0022", "755", "755"]
        assert ok("ls /bin/sh /etc/hosts && cat /etc/hosts >/dev/null && umask", user="1000").split()[-1] == "0022"
    finally:
        os.umask(before)


def test_shm_size():
    assert int(ok("stat -f -c '%b %S' /dev/shm | { read a b; echo $((a * b)); }")) == 1 << 30
    assert int(ok("stat -f -c '%b %S' /dev/shm | { read a b; echo $((a * b)); }", shm_size=8 << 20)) == 8 << 20
    assert "No space" in sh("head -c 9000000 /dev/zero > /dev/shm/x", shm_size=8 << 20).err


def test_devices():
    text = ok("for n in null zero full random urandom tty; do stat -c '%n %t:%T' /dev/$n; done")
    assert dict(line.split() for line in text.splitlines()) == {
        "/dev/null": "1:3", "/dev/zero": "1:5", "/dev/full": "1:7", "/dev/random": "1:8", "/dev/urandom": "1:9", "/dev/tty": "5:0"
    }  # fmt: skip
    assert ok("head -c 3 /dev/zero | od -An -tx1; head -c 2 /dev/urandom | wc -c; echo x > /dev/null").split() == ["00", "00", "00", "2"]
    assert sh("echo x > /dev/full").exit.code != 0
    assert ok("readlink /dev/fd /dev/stdin /dev/stdout /dev/stderr /dev/ptmx").split() == [
        "/proc/self/fd", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2", "pts/ptmx"
    ]  # fmt: skip


def test_a_terminal_can_be_made():
    assert ok("python3 -c 'import os; m, s = os.openpty(); print(os.ttyname(s))'").startswith("/dev/pts/")


def test_names_and_resolver():
    _needs_hosts()
    hosts = ok("cat /etc/hosts", hostname="abc")
    assert "127.0.0.1\tlocalhost" in hosts and "abc" in hosts
    assert ok("cat /etc/resolv.conf") == ""
    assert ok("cat /etc/resolv.conf", network="host") == Path("/etc/resolv.conf").read_text()


@requires("overlay")
@pytest.mark.parametrize("target", ["../run/systemd/resolve/stub-resolv.conf", "/run/nowhere", "/etc/other"])
def test_dangling_resolv_conf(tmp_path, target):
    ref = load(tmp_path, [symlink("etc/resolv.conf", target), symlink("etc/hosts", target + ".hosts")])
    assert "localhost" in ok("cat /etc/hosts", image=ref)
    assert ok("cat /etc/resolv.conf", image=ref, network="host") == Path("/etc/resolv.conf").read_text()


@requires("root", "program:unshare")
def test_host_whose_resolv_conf_is_a_link(home):
    """As on every Ubuntu: /etc/resolv.conf → ../run/systemd/resolve/stub-resolv.conf. Tried in a mount namespace of its own."""
    script = (
        "mount -t tmpfs none /mnt && mkdir /mnt/up /mnt/work && mount -t overlay none -o "
        "lowerdir=/etc,upperdir=/mnt/up,workdir=/mnt/work /etc"
        " && mount -t tmpfs none /run && mkdir -p /run/systemd/resolve && echo nameserver 192.0.2.7 > /run/systemd/resolve/stub-resolv.conf"
        ' && ln -sf ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf && exec "$@"'
    )
    program = (
        "from support.boxes import sh\nfor network in ('none', 'host'):\n r = sh('cat /etc/resolv.conf', network=network)\n "
        "print(network, r.out.strip(), r.err)\n"
    )
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "host nameserver 192.0.2.7" in done.stdout


@pytest.mark.parametrize("path", MASKED)
def test_masked(path):
    ran = sh(f"[ -e {path} ] || exit 9; if [ -d {path} ]; then ls -A {path}; else cat {path}; fi; echo x > {path}/x || echo x > {path}")
    assert ran.exit.code in (9, 0, 1, 2) and ran.out == ""


@pytest.mark.parametrize("path", READONLY)
def test_readonly_paths(path):
    if not os.path.exists(path):
        pytest.skip(f"this kernel has no {path}")
    mounts = {line.split()[4]: line.split()[5].split(",")[0] for line in ok("cat /proc/self/mountinfo").splitlines()}
    assert mounts[path] == "ro"


def test_sysctls_cannot_be_written():
    for name in ("kernel/hostname", "kernel/core_pattern", "vm/drop_caches", "net/ipv4/ip_forward"):
        assert sh(f"echo 1 > /proc/sys/{name}").exit.code != 0


def test_sys_is_readonly():
    mounts = [line.split() for line in ok("cat /proc/self/mountinfo").splitlines()]
    assert {row[5].split(",")[0] for row in mounts if row[4].startswith("/sys")} == {"ro"}
