"""Sandboxes that the file system keeps below a limit: ext4 and XFS with project quotas."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.boxes import load, sh, until
from support.disks import with_quotas
from support.requires import check, requires
from support.scheduling import DaemonProcess

from dockless.base import paths
from dockless.errors import LimitUnavailable
from dockless.sandbox.run import detached, project
from dockless.sandbox.run.box import Box
from dockless.sandbox.spec import Bind, Namespaces, Spec
from dockless.sched import JobSpec, State

pytestmark = requires("root", "overlay", "loop")
MIB = 1 << 20
LIMIT = 20 * MIB


@pytest.fixture(params=["ext4", "xfs"])
def disk(request, home):
    """Where everything is that dockless keeps."""
    check(f"project-quotas:{request.param}")
    with with_quotas(home, request.param) as place:
        place.chmod(0o700)
        yield place


def account(box: Box) -> project.Account:
    found = project.account(box.directory)
    assert found is not None
    return found


def until_ended(box: Box) -> int:
    ended = box.wait(60)
    assert ended is not None
    return ended.code


def started(script: str, image: str, **fields) -> Box:
    return detached.start(Spec(argv=("/bin/sh", "-c", script), image=image, **{"disk": LIMIT, **fields}))


def test_what_passes_the_limit_is_refused(disk, tmp_path):
    """And the sandbox goes on, may write again what it has made room for, and sees the limit as the size of its disk."""
    ref = load(tmp_path)
    script = "dd if=/dev/zero of=/big bs=1M count=40; df -k / | tail -n 1; rm /big; dd if=/dev/zero of=/small bs=1M count=10 && echo fits"
    ran = sh(script, image=ref, disk=LIMIT)
    assert "No space left" in ran.err or "quota exceeded" in ran.err.lower(), ran
    assert ran.lines[-1] == "fits"
    assert str(LIMIT >> 10) in ran.out


def test_deleted_files_that_are_open_count(disk, tmp_path):
    box = started("exec 3>/gone; rm /gone; dd if=/dev/zero bs=1M count=10 >&3; sync; touch /done; sleep 1000", load(tmp_path))
    while not (box.directory / "upper/done").exists():
        assert box.alive
        time.sleep(0.01)
    found = account(box)
    assert found.limit == LIMIT and found.size >= 10 * MIB
    box.remove()


def test_files_have_a_limit_of_their_own(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(project, "FEWEST_FILES", 100)
    ran = sh("i=0; while [ $i -lt 2000 ] && true >/f$i; do i=$((i + 1)); done; echo $i", image=load(tmp_path), disk=MIB)
    assert 50 < int(ran.lines[-1]) < 100, ran


def test_no_two_have_the_same_number(disk, tmp_path, monkeypatch):
    """Of those that are there, whether they run or not; and none that the administrator uses."""
    ref = load(tmp_path)
    boxes = [started("echo x >/x", ref) for _ in range(3)]
    assert [until_ended(box) for box in boxes] == [0, 0, 0]
    numbers = [number_of(box.directory / "upper") for box in boxes]
    assert len({*numbers}) == 3 and all(project.FIRST <= number < project.FIRST + project.COUNT for number in numbers)
    assert numbers == [number_of(box.directory / "work") for box in boxes]
    fd = os.open(boxes[0].directory / "upper", os.O_RDONLY)
    try:
        monkeypatch.setattr(project, "_registered", lambda: {project.FIRST + os.fstat(fd).st_ino % project.COUNT})
        project._put(fd, 0)
        assert project._free(fd) not in numbers
    finally:
        os.close(fd)
    for box in boxes:
        box.remove()


def number_of(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        return project._FSXATTR.unpack(fcntl.ioctl(fd, project._GETXATTR, bytes(28)))[3]
    finally:
        os.close(fd)


def test_a_number_is_free_when_its_sandbox_is_removed(disk, tmp_path):
    box = started("echo x >/x", load(tmp_path))
    until_ended(box)
    number = number_of(box.directory / "upper/x")
    box.remove()
    fd = os.open(disk, os.O_RDONLY)
    try:
        until(lambda: project._account(fd, number) == project.Account(0, 0, 0), "XFS has freed its inodes")
    finally:
        os.close(fd)


def test_started_once_more_it_keeps_its_number_and_its_limit(disk, tmp_path):
    ref = load(tmp_path)
    box = detached.create(Spec(argv=("/bin/sh", "-c", "dd if=/dev/zero of=/$(ls / | wc -l) bs=1M count=12"), image=ref, disk=LIMIT))
    number = number_of(box.directory / "upper")
    detached.start_existing(box)
    assert until_ended(box) == 0
    detached.start_existing(box)
    assert until_ended(box) != 0
    assert number_of(box.directory / "upper") == number and account(box).size <= LIMIT
    box.lighten()
    detached.start_existing(box)
    assert until_ended(box) == 0 and account(box).limit == LIMIT
    box.remove()


ESCAPES = r"""
import ctypes, errno, fcntl, os, struct
form = struct.Struct("=5I8x")
def said(what, act):
    try:
        act()
        print(what, "done", flush=True)
    except OSError as error:
        print(what, errno.errorcode[error.errno], flush=True)
os.makedirs("/mine", exist_ok=True)
open("/mine/file", "w").close()
for path in ("/mine", "/mine/file", "/"):
    fd = os.open(path, os.O_RDONLY)
    flags, size, count, project, cow = form.unpack(fcntl.ioctl(fd, 0x801C581F, bytes(28)))
    said("number", lambda: fcntl.ioctl(fd, 0x401C5820, form.pack(flags, size, count, 0, cow)))
    if path != "/mine/file":
        said("inherit", lambda: fcntl.ioctl(fd, 0x401C5820, form.pack(flags & ~0x200, size, count, project, cow)))
        said("flags", lambda: fcntl.ioctl(fd, 0x40086602, bytes(8)))
libc = ctypes.CDLL(None, use_errno=True)
def quotactl():
    if libc.syscall(443, os.open("/", os.O_RDONLY), 0x800008 << 8 | 2, project, struct.pack("=8QI4x", *[0] * 8, 5)) < 0:
        raise OSError(ctypes.get_errno(), "")
said("quotactl", quotactl)
total = 0
try:
    for name in ("/mine/a", "/mine/b"):
        with open(name, "wb", buffering=0) as stream:
            for _ in range(40):
                total += stream.write(bytes(1 << 20))
except OSError as error:
    print("write", errno.errorcode[error.errno])
print(total)
"""


@pytest.mark.parametrize("cap_add", [(), ("ALL",)])
def test_no_program_leaves_its_project(disk, tmp_path, cap_add):
    """Neither by the number, nor by what is inherited, nor by another limit."""
    host = [Bind(os.path.realpath(path), path, readonly=True) for path in ("/usr", "/lib", "/lib64") if os.path.exists(path)]
    spec = Spec(
        argv=(os.path.realpath(sys.executable), "-Ic", ESCAPES), image=load(tmp_path), disk=LIMIT, mounts=tuple(host), cap_add=cap_add,
        seccomp="unconfined",
    )  # fmt: skip
    box = detached.start(spec)
    until_ended(box)
    said = [line.text.decode().split() for line in box.logs()]
    refused = [words for words in said if words[0] in ("number", "inherit", "flags", "quotactl")]
    assert len(refused) == 8 and "done" not in [words[1] for words in refused], said
    assert said[-1][0].isdecimal() and int(said[-1][0]) <= LIMIT, said
    number = number_of(box.directory / "upper")
    assert {number_of(path) for path in (box.directory / "upper/mine").iterdir()} == {number}
    box.remove()


@pytest.mark.parametrize("fields", [{"profile": "privileged"}, {"namespaces": Namespaces(user="host")}])
def test_what_limits_do_not_bind_is_not_started(disk, tmp_path, fields):
    ref = load(tmp_path)
    with pytest.raises(LimitUnavailable, match="it is the host's root, who can take files out of a project"):
        started("true", ref, **fields)
    box = started("true", ref, best_effort=True, **fields)
    assert any("no limit on its disk is enforced" in line for line in box.document.warnings)
    box.remove()


def test_a_disk_without_quotas(tmp_path):
    ref = load(tmp_path)
    check("overlay")
    if not project.lacking(paths.state()):
        pytest.skip("this disk has project quotas")
    with pytest.raises(LimitUnavailable, match="has no project quotas"):
        started("true", ref)
    for box in (started("true", ref, best_effort=True), started("true", "host"), started("true", ref, root="tmpfs")):
        assert until_ended(box) == 0
        box.remove()


def test_jobs_meet_their_limit_and_are_not_ended(disk, tmp_path):
    """Of the queue, by its setting or by their own word; who passes the limit of a user is ended by what the kernel counts."""
    ref = load(tmp_path)
    daemon = DaemonProcess(disk, settings='[disk]\nper_job = "20M"\nper_user = "30M"\n').start()
    try:
        with daemon.client() as queue:

            def submit(script: str, **fields) -> int:
                return queue.submit(JobSpec(Spec(argv=("/bin/sh", "-c", script), image=ref, **fields)))

            fill = "dd if=/dev/zero of=/big bs=1M count=40; du -m /big"
            for fields, most in (({}, 20), ({"disk": 5 * MIB}, 5)):
                number = submit(fill, **fields)
                assert queue.wait(number, timeout=60).state is State.COMPLETED
                said = [line.text for line in queue.logs(number)][-1].split()
                assert most - 2 <= int(said[0]) <= most, said
            hold = "exec 3>/gone; rm /gone; dd if=/dev/zero bs=1M count=17 >&3; sleep 1000"
            numbers = [submit(hold) for _ in range(2)]
            ended = queue.wait(numbers[1], timeout=60)
            assert ended.state is State.CANCELLED and "MiB on disk, more than the 30 MiB of a user" in ended.reason
            queue.cancel(numbers[0], grace=0)
            queue.wait(numbers[0], timeout=30)
    finally:
        daemon.stop()


def test_the_command_line(disk, tmp_path):
    ref = load(tmp_path)
    command = [
        sys.executable,
        "-m",
        "dockless",
        "run",
        "--disk",
        "20M",
        ref,
        "--",
        "dd",
        "if=/dev/zero",
        "of=/big",
        "bs=1M",
        "count=40",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and ("No space left" in ran.stderr or "quota exceeded" in ran.stderr.lower()), ran
