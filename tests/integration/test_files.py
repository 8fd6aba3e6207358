"""Files of running sandboxes: as which user, in which kind of sandbox, from another program, by the command line."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest
from support.boxes import load, until
from support.make_image import directory, file
from support.requires import requires

import dockless

pytestmark = requires("userns", "overlay")


def cli(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "dockless", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd)


@pytest.fixture
def image(tmp_path):
    passwd = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n"
    group = "root:x:0:\nalice:x:1000:\nshared:x:50:alice\n"
    entries = [
        file("etc/passwd", passwd), file("etc/group", group), file("etc/shadow", "secret", 0o600),
        directory("home/alice", 0o755, uid=1000, gid=1000), directory("shared", 0o770, gid=50),
    ]  # fmt: skip
    return load(tmp_path, entries)


@pytest.fixture
def detached(image):
    box = dockless.start(image, ["sleep", "1000"], id="web")
    yield box
    box.files.close()
    box.rm(force=True)


def test_files_are_those_of_the_user(image):
    with dockless.Sandbox(image, ["sleep", "100"]) as box:
        alice = box.files.as_user("alice")
        assert box.files.read_text("/etc/shadow") == "secret"
        with pytest.raises(PermissionError) as caught:
            alice.read_text("/etc/shadow")
        assert caught.value.filename == "/etc/shadow"
        for path, files, owner in (("/home/alice/f", alice, (1000, 1000)), ("/shared/f", alice, (1000, 1000)), ("/f", box.files, (0, 0))):
            files.write_text(path, "x")
            info = box.files.stat(path)
            assert (info.uid, info.gid, oct(info.mode)) == (*owner, "0o644")
        assert box.files.as_user("1000:50").stat("/home/alice").uid == 1000
        box.files.as_user("1000:50").write_text("/home/alice/g", "x")
        assert box.files.stat("/home/alice/g").gid == 50


def test_what_the_kernel_makes_up_is_left_out(image, tmp_path):
    """Below what is copied, not where it is named itself; a volume and a tmpfs have files."""
    with dockless.Sandbox(image, ["sleep", "100"], tmpfs=["/tmp"], mounts=["kept:/kept"]) as box:
        for place in ("/tmp/f", "/kept/f", "/home/f"):
            box.files.write_text(place, "x")
        (tmp_path / "root").mkdir()
        box.files.copy_out("/", tmp_path / "root")
        root = next(path for path in (tmp_path / "root", tmp_path / "root" / "root") if (path / "home").is_dir())
        assert [os.listdir(root / name) for name in ("proc", "sys", "dev/pts", "dev/mqueue")] == [[], [], [], []]
        assert all((root / name).read_text() == "x" for name in ("tmp/f", "kept/f", "home/f"))
        box.files.copy_out("/proc/version", tmp_path / "version")
        assert (tmp_path / "version").read_text() == box.files.read_text("/proc/version")
        tar = io.BytesIO()
        box.files.tar_out("/.", tar)
        tar.seek(0)
        with tarfile.open(fileobj=tar) as archive:
            assert {"proc", "tmp/f"} <= {name.removeprefix("./") for name in archive.getnames()}
            assert not [name for name in archive.getnames() if name.removeprefix("./").startswith(("proc/", "sys/"))]


def test_they_are_the_sandboxs_own_user_and_umask_by_default(image):
    with dockless.Sandbox(image, ["sleep", "100"], user="alice", umask=0o077) as box:
        box.files.write_text("/home/alice/f", "x")
        box.files.mkdir("/home/alice/d")
        assert [oct(info.mode) for info in box.files.list("/home/alice")] == ["0o700", "0o600"]
        assert box.files.stat("/home/alice/f").uid == 1000


SHAPES = [
    {"profile": "untrusted", "tmpfs": ["/tmp"]},
    {"root": "readonly", "tmpfs": ["/tmp"]},
    {"root": "tmpfs"},
    {"cap_drop": ["ALL"]},
    {"network": "host"},
    pytest.param({"namespaces": dockless.Namespaces(user="host")}, marks=requires("root")),
    pytest.param({"profile": "privileged"}, marks=requires("root")),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_in_every_kind_of_sandbox(image, tmp_path, shape):
    (tmp_path / "f").write_text("here")
    with dockless.Sandbox(image, ["sleep", "100"], **shape) as box:
        box.files.copy_in(tmp_path / "f", "/tmp/f")
        assert box.files.read_text("/tmp/f") == "here"
        box.files.copy_out("/tmp", tmp_path / "out")
        assert (tmp_path / "out" / "f").read_text() == "here"
        if "tmpfs" in shape:
            with pytest.raises(OSError, match="Read-only") as caught:
                box.files.write_text("/x", "x")
            assert caught.value.errno == errno.EROFS and "--root tmpfs" in caught.value.__notes__[-1]


def test_what_the_program_writes_is_seen_and_the_other_way_round(image):
    script = "while ! [ -e /in ]; do :; done; cat /in > /out.tmp; mv /out.tmp /out; sleep 100"
    with dockless.Sandbox(image, ["sh", "-c", script]) as box:
        box.files.write_text("/in.tmp", "through")
        box.files.rename("/in.tmp", "/in")
        until(lambda: box.files.exists("/out"), "the program has answered")
        assert box.files.read_text("/out") == "through"


def test_a_program_that_was_just_written_can_be_executed(image):
    """Nothing keeps it open for writing: ETXTBSY."""
    with dockless.Sandbox(image, ["sleep", "100"]) as box:
        program = box.files.read_bytes("/bin/true")
        for number in range(20):
            name = f"/tool{number}"
            with box.files.open(name, "wb") as stream:
                stream.write(program)
            assert box.files.stat(name).size == len(program)
            assert not [info for info in box.files.list("/proc/self/fd") if info.name not in ("0", "1", "2", "3")]


def test_a_detached_one_from_another_program(detached, tmp_path):
    detached.files.write_text("/note", "from here")
    with dockless.Sandbox.open("web") as other:
        assert other.files.read_text("/note") == "from here"
    with detached.files:
        assert detached.files.exists("/note")
    with detached.files:
        detached.stop(0)
    assert detached.files.read_text("/note") == "from here"


def test_a_handle_that_is_forgotten_leaves_nothing_inside(detached):
    def agents(files):
        names = []
        for info in files.list("/proc"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended just now
                names.append(files.read_text(f"{info.path}/comm", errors="replace") if info.name.isdigit() else "")
        return names.count("dockless-agent\n")

    first = dockless.Sandbox.open("web")
    assert first.files.exists("/")
    with dockless.Sandbox.open("web") as other:
        assert agents(other.files) == 2
        del first
        gc.collect()  # a handle and its files know each other
        until(lambda: agents(other.files) == 1, "the other one has ended")


def test_a_fork_has_an_agent_of_its_own(detached, tmp_path):
    detached.files.write_text("/f", "x")
    pid = os.fork()
    if pid == 0:
        try:
            ok = detached.files.read_text("/f") == "x"
            detached.files.close()
            os._exit(0 if ok else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert detached.files.read_text("/f") == "x"


def test_threads_copy_at_the_same_time(image, tmp_path):
    (tmp_path / "f").write_bytes(os.urandom(3_000_000))
    failed = []
    with dockless.Sandbox(image, ["sleep", "100"]) as box:

        def work(number):
            try:
                box.files.copy_in(tmp_path / "f", f"/f{number}")
                box.files.copy_out(f"/f{number}", tmp_path / f"f{number}")
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []
    assert all((tmp_path / f"f{number}").read_bytes() == (tmp_path / "f").read_bytes() for number in range(4))


# -- the command line


def test_cp_both_ways(detached, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_text("x")
    done = cli("cp", tmp_path / "d", "web:/")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "1 file, 1 B copied\n")
    done = cli("cp", "--json", "web:d/.", tmp_path / "out")
    assert json.loads(done.stdout) == {"files": 1, "directories": 1, "links": 0, "size": 1, "skipped": [], "skipped_count": 0}
    assert (tmp_path / "out" / "x").read_text() == "x" and done.stderr == ""
    done = cli("cp", "-q", "-u", "alice", tmp_path / "d" / "x", "web:/home/alice")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "") and detached.files.stat("/home/alice/x").uid == 1000


def test_cp_of_a_tar(detached, tmp_path):
    """As a pipe: from tar, to tar, and from one user to another."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_text("x")
    own = f"{sys.executable} -P -m dockless"
    pipe = f"""
        tar -C {tmp_path} -cz d | {own} cp - web:/home/alice -u alice
        {own} cp --json web:/home/alice/d - > {tmp_path}/d.tar 2> {tmp_path}/told
        {own} cp -q web:/home/alice/. - | {own} cp -q - web:/shared
        head -c 100 {tmp_path}/d.tar | {own} cp -q - web:/
        echo $?
        {own} cp - web:/ < {tmp_path}/d.tar 2>&1 > /dev/null
        {own} cp web:/bin - --max-size 1K > /dev/full
        echo $?
    """
    done = subprocess.run(["sh", "-c", pipe], capture_output=True, text=True, timeout=60)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout.splitlines()) == (0, ["125", "1 file, 1 B copied", "125"])
    assert lines[:2] == ["1 file, 1 B copied", "dockless: no sound tar archive: the tar: it ends in the middle of a member"]
    assert json.loads((tmp_path / "told").read_text())["files"] == 1
    listed = subprocess.run(["tar", "-tf", tmp_path / "d.tar"], capture_output=True, text=True, check=True).stdout
    assert listed.splitlines() == ["d/", "d/x"]
    assert detached.files.stat("/home/alice/d/x").uid == 1000 and detached.files.read_text("/shared/d/x") == "x"


def test_a_tar_is_not_shown_on_a_terminal(detached):
    ours, theirs = os.openpty()
    for arguments in (("cp", "web:/etc", "-"), ("cp", "-", "web:/")):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "dockless", *arguments], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True
        )
        assert done.returncode == 125 and "a terminal" in done.stderr
    os.close(ours)
    os.close(theirs)


def test_cp_says_what_it_leaves_out(detached, tmp_path):
    with detached.files:
        detached.files.mkdir("/links")
    (tmp_path / "links").mkdir()
    for number in range(12):
        (tmp_path / "links" / f"l{number:02}").symlink_to("/etc/passwd")
    assert cli("cp", "-q", tmp_path / "links", "web:/").returncode == 0
    done = cli("cp", "-q", "web:/links", tmp_path / "out")
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and lines[0] == "dockless: left out: l00: a link that leads out, to '/etc/passwd'"
    assert lines[-2:] == ["dockless: 2 more were left out", "  hint: --json lists them"] and len(lines) == 12


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["web:/none", "x"], "web:/none: No such file or directory", "web:/…"),
        (["-u", "alice", "web:/etc/shadow", "x"], "web:/etc/shadow: Permission denied", "--user USER"),
        (["-u", "nobody", "web:/etc/shadow", "x"], "the image has no user 'nobody'", "a name that is in the image's /etc/passwd"),
        (["/none", "web:/x"], "the source /none on the host: No such file or directory", "check the path"),
        (["web:/bin", "/none/x"], "the target /none/x on the host: No such file or directory", "mkdir -p"),
        (["a", "b"], "one of source and target is in a sandbox", "dockless cp NAME:/there here"),
        (["web:/a", "web:/b"], "one of source and target is in a sandbox", "dockless cp NAME:/there here"),
        (["./web:a", "/b"], "one of source and target is in a sandbox", "dockless cp NAME:/there here"),
        (["/etc/passwd", "web:/no/dir/"], "the target web:/no/dir/: No such file or directory", "mkdir -p /no/dir/"),
        (["/etc/passwd", "web:/sys/x"], "web:/sys/x: Read-only file system", "--root tmpfs"),
        (["-", "web:/b"], "web:/b: No such file or directory", "web:/…"),
        (["-", "-"], "one of source and target is in a sandbox", "dockless cp NAME:/there here"),
        (["", "web:/b"], "a path is empty", "dockless cp NAME:/there here"),
        (["none:/a", "b"], "there is no sandbox none", "dockless ps --all"),
        (["--max-size", "1K", "web:/bin", "out"], "web:/bin holds more than 1024 bytes", "raise --max-size"),
        (["--max-files", "1", "web:/bin", "out"], "web:/bin holds more than 1 file\n", "raise --max-files"),
        (["web:/etc/passwd", "/none/x/"], "the target /none/x/ on the host: No such file or directory", "mkdir -p"),
    ],
)
def test_cp_says_what_is_wrong(detached, tmp_path, arguments, message, hint):
    done = cli("cp", *arguments, cwd=tmp_path)
    assert done.returncode == 125 and message in done.stderr and hint in done.stderr and "Traceback" not in done.stderr
