"""What single lines of a plan are for: the golden plans say that they are there, these say what they bring about."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.boxes import alive, run, sh, until
from support.requires import requires

from dockless.sandbox.run.foreground import ForegroundSandbox
from dockless.sandbox.spec import Namespaces, Spec

pytestmark = requires("userns", "overlay")

# The host's own session keyring with a secret in it; then the same search here and in a sandbox. keyctl(2), add_key(2)
KEYS = """
import ctypes, os, platform, sys
from support.boxes import run
from dockless.sandbox.spec import Spec
libc = ctypes.CDLL(None, use_errno=True)
add_key, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[platform.machine()]
if libc.syscall(keyctl, 1, None) < 0:
    print("none", os.strerror(ctypes.get_errno())); sys.exit()
if libc.syscall(add_key, b"user", b"canary", b"secret", 6, -3) < 0:
    print("none", os.strerror(ctypes.get_errno())); sys.exit()
search = f"import ctypes; print(ctypes.CDLL(None).syscall({keyctl}, 10, -3, b'user', b'canary', 0))"
exec(search)
print(run(Spec(argv=("python3", "-I", "-S", "-c", search), seccomp="unconfined")).out)
"""


@requires("program:python3")
def test_the_callers_session_keyring_is_not_the_programs():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-P", "-c", KEYS], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    outside, *inside = done.stdout.split()
    if outside == "none":
        pytest.skip(f"no session keyring can be made here: {done.stdout}")
    assert int(outside) > 0 and [int(one) for one in inside] == [-1]


@pytest.mark.parametrize("path", ["/proc/sysrq-trigger", "/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs"])
@pytest.mark.parametrize(
    "fields", [{}, pytest.param({"namespaces": Namespaces(user="host")}, marks=requires("root"))], ids=["own user namespace", "the host's"]
)
def test_settings_of_the_kernel_are_on_a_readonly_mount(path, fields):
    """Not only closed by rights: root of the host's user namespace has those."""
    if not os.path.exists(path):
        pytest.skip(f"no {path} on this kernel")
    script = "import os, sys; print(bool(os.statvfs(sys.argv[1]).f_flag & os.ST_RDONLY))"
    ran = run(Spec(argv=("python3", "-I", "-S", "-c", script, path), **fields))
    assert ran.out == "True\n", ran
    if os.path.isfile(path):
        said = sh(f": >> {path}", **fields).err
        assert "Read-only file system" in said or "denied" in said
        assert fields == {} or "Read-only file system" in said


@requires("root")
@pytest.mark.parametrize("fields", [{}, {"profile": "privileged"}], ids=["default", "privileged"])
def test_no_mount_travels_in_either_direction(tmp_path, fields):
    """Below a tree that the host shares (as systemd shares /), what is mounted on one side does not appear on the other."""
    code = f"""
import json, os, subprocess, sys
from support.boxes import running, until
from dockless.sandbox.spec import Bind, Spec
place = {str(tmp_path)!r}
os.makedirs(place + "/data/inside"); os.makedirs(place + "/data/outside")
subprocess.run(["mount", "--bind", place, place], check=True)
subprocess.run(["mount", "--make-rshared", "/"], check=True)
script = (
    "mount -t tmpfs none /data/inside 2>/dev/null && echo mounted; echo up; read line < /data/go;"
    " grep -c /data/outside /proc/self/mountinfo; grep -c -e shared: -e master: /proc/self/mountinfo"
)
os.mkfifo(place + "/data/go"); os.chmod(place + "/data/go", 0o666)
with running(Spec(argv=("sh", "-c", script), mounts=(Bind(place + "/data", "/data"),), **{fields!r})) as (box, said):
    until(lambda: "up" in said(), "it runs")
    leaked = "/data/inside" in open("/proc/self/mountinfo").read()
    subprocess.run(["mount", "-t", "tmpfs", "none", place + "/data/outside"], check=True)
    open(place + "/data/go", "w").write("go\\n")
    box.wait(20)
    print(json.dumps([leaked, said().split()]))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", sys.executable, "-P", "-c", code], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr
    leaked, words = json.loads(done.stdout)
    assert not leaked and words[-2:] == ["0", "0"], done.stdout
    assert ("mounted" in words) == (fields != {})


@requires("root")
@pytest.mark.parametrize(
    "fields", [{}, {"namespaces": {"user": "host"}}, {"profile": "privileged"}], ids=["default", "host's user namespace", "privileged"]
)
def test_a_start_below_a_shared_tree(fields):
    """systemd shares /: there a start works as elsewhere, and nothing that it mounts is to be seen on the host."""
    code = f"""
import subprocess
from dockless._options import make_spec
from support.boxes import running, until
subprocess.run(["mount", "--make-rshared", "/"], check=True)
before = open("/proc/self/mountinfo").read()
with running(make_spec("host", ["sh", "-c", "echo up; sleep 1000"], **{fields!r})) as (box, said):
    until(lambda: "up" in said(), "it runs")
    print(open("/proc/self/mountinfo").read() == before)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", sys.executable, "-P", "-c", code], capture_output=True, text=True, env=env
    )
    assert done.stdout == "True\n", done


@requires("root")
def test_a_device_that_is_not_what_its_name_says_is_not_given(tmp_path):
    """/dev/zero in the place of /dev/null: whoever made it so could have made it a disk."""
    code = """
import subprocess
from support.boxes import ok
subprocess.run("mount -t tmpfs none /dev && cd /dev && mknod -m 666 null c 1 5 && mknod -m 666 zero c 1 5 && mknod -m 666 full c 1 7 &&"
    " mknod -m 666 random c 1 8 && mknod -m 666 urandom c 1 9 && mknod -m 666 tty c 5 0", shell=True, check=True)
print(ok("echo started"))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = ["unshare", "-m", "--propagation", "private", sys.executable, "-P", "-c"]
    done = subprocess.run([*command, code], capture_output=True, text=True, env=env)
    assert done.returncode == 1 and "check that /dev/null is the device 1:3" in done.stderr and "started" not in done.stdout, done
    sound = subprocess.run([*command, code.replace("null c 1 5", "null c 1 3")], capture_output=True, text=True, env=env)
    assert sound.stdout.split() == ["started"], sound


def test_what_docker_hides_is_hidden():
    """Docker's and Podman's lists; some of it only some kernels have, so that it cannot be looked for inside."""
    from dockless.sandbox import rootfs

    assert {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"} <= set(rootfs.READONLY)
    files = "acpi asound interrupts kcore keys latency_stats sched_debug scsi timer_list timer_stats"
    assert {*(f"/proc/{name}" for name in files.split()), "/sys/firmware", "/sys/devices/virtual/powercap"} <= set(rootfs.MASKED)


def test_dev_holds_little():
    """Its 64 MB are no place to hide data that no limit counts."""
    ran = sh("head -c 80000000 /dev/zero > /dev/big")
    assert ran.exit.code != 0 and "No space left" in ran.err
    assert sh("head -c 1000000 /dev/zero > /dev/small").exit.code == 0


@pytest.mark.parametrize("number", [1, 2])
def test_the_end_of_an_output_is_seen_when_the_program_closes_it(number):
    """Neither init nor keeper holds a copy of what is the program's."""
    import select

    reader, writer = os.pipe()
    fds = {"stdout": writer} if number == 1 else {"stderr": writer}
    with ForegroundSandbox(Spec(argv=("sh", "-c", f"exec {number}>&-; sleep 1000")), **fds) as box:
        os.close(writer)
        assert select.select([reader], [], [], 20)[0], "nobody closed it"
        assert os.read(reader, 1) == b"" and alive(box.process.pid)
    os.close(reader)


def test_the_reader_of_an_input_is_gone_when_the_program_closes_it():
    reader, writer = os.pipe()
    with ForegroundSandbox(Spec(argv=("sh", "-c", "exec <&-; sleep 1000")), stdin=reader) as box:
        os.close(reader)
        os.set_blocking(writer, False)

        def refused() -> bool:
            try:
                os.write(writer, b"x" * 4096)
            except BrokenPipeError:
                return True
            except BlockingIOError:
                pass
            return False

        until(refused, "nobody reads")
        assert alive(box.process.pid)
    os.close(writer)
