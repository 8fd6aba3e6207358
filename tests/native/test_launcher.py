"""The launcher by itself: an ordinary program with a plan on fd 3 and a pipe on fd 4."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import time
from pathlib import Path

import pytest
from support.boxes import log_paths
from support.boxes import run as run_in_sandbox
from support.requires import requires

from dockless import native
from dockless.sandbox.plan.plan import HEADER_SIZE, Op, Plan, encode, read_record
from dockless.sandbox.run.foreground import ForegroundSandbox
from dockless.sandbox.spec import Bind, Spec

from .blobs import RUN, good

NATIVE = Path(__file__).resolve().parents[2] / "native"  # an installed package has no sources
LAUNCHER = Path(native.LAUNCHER_PATH)
needs_sources = pytest.mark.skipif(not NATIVE.is_dir(), reason="the C sources are not here: an installed package is tested")
REPORT = struct.Struct("<HHiQ")
READY, FAILED, STATUS = 1, 2, 3


def _setup(names: str) -> str:
    """A list of setup.py, so that the tests compile what the build compiles."""
    text = (Path(__file__).resolve().parents[2] / "setup.py").read_text()
    namespace: dict[str, object] = {}
    for match in re.finditer(r"^(LAUNCHER_SOURCES|FREESTANDING) = (\[.*?\]|\(.*?\n\)\.split\(\))$", text, re.M | re.S):
        namespace[match[1]] = eval(match[2])
    return namespace[names]  # type: ignore[return-value]


def _launch(
    raw: bytes | None, program: str | Path | None = None, deadline: float = 20.0
) -> tuple[int, list[tuple[int, int, int, int]], bytes]:
    """(wait status, reports, the plan afterwards) of a launcher that is given this plan; None: no plan at all."""
    plan = os.memfd_create("plan")
    os.write(plan, raw or b"")
    reader, writer = os.pipe()
    actions = [
        (os.POSIX_SPAWN_DUP2, plan, 103),
        (os.POSIX_SPAWN_DUP2, writer, 104),
        (os.POSIX_SPAWN_DUP2, 103, 3),
        (os.POSIX_SPAWN_DUP2, 104, 4),
    ]
    if raw is None:
        actions.append((os.POSIX_SPAWN_CLOSE, 3))
    actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in (103, 104)]
    try:
        path = program or f"/proc/self/fd/{native.launcher()}"
        os.set_inheritable(native.launcher(), True)
        pid = os.posix_spawn(str(path), ["dockless-test"], {}, file_actions=actions)
    finally:
        os.set_inheritable(native.launcher(), False)
        os.close(writer)
    end = time.monotonic() + deadline
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise AssertionError("the launcher does not end")
        time.sleep(0.002)
    os.set_blocking(reader, False)
    try:
        said = os.read(reader, 4096)
    except BlockingIOError:
        said = b""
    after = os.pread(plan, 1 << 20, 0)
    os.close(reader)
    os.close(plan)
    return status, [REPORT.unpack_from(said, at) for at in range(0, len(said) - REPORT.size + 1, REPORT.size)], after


def test_an_errand():
    status, reports, after = _launch(good()["errand"])
    assert status == 0 and [kind for kind, *_ in reports] == [STATUS]
    assert read_record(after).pc == 1


def test_a_whole_life():
    """No namespaces, no cgroup: clone, spawn, exec, READY, STATUS with the raw wait status."""
    script = Plan((Op("CLONE"), Op("SPAWN")), RUN.__class__(("/bin/sh",), ("sh", "-c", "exit 7"), ()))
    status, reports, after = _launch(encode(script, times=True))
    assert status == 0 and [kind for kind, *_ in reports] == [READY, STATUS]
    assert reports[0][2] > 0 and reports[1][2] == 7 << 8
    record = read_record(after)
    assert record.phase == "exited" and record.status == 7 << 8 and len(record.times) == 3
    assert record.times[0] <= record.times[2]


@pytest.mark.parametrize("name", ["torn", "magic", "empty", "none"])
def test_what_is_no_plan(name):
    raw = {"torn": good()["small"][:200], "magic": b"\0" * 500, "empty": b"", "none": None}[name]
    status, reports, _ = _launch(raw)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 2
    assert [(kind, value) for kind, _, value, _ in reports] == ([(FAILED, 22)] if name in ("torn", "magic") else [])


def test_a_bad_operation_is_named():
    raw = bytearray(good()["small"])
    struct.pack_into("<H", raw, HEADER_SIZE + 32, 999)
    _, reports, _ = _launch(bytes(raw))
    assert reports == [(FAILED, 1, 22, 1)]


@pytest.mark.parametrize(
    ("ops", "index", "errno"),
    [
        ((Op("OPEN", slot_out=16, a="/no/such/place", x=0x200000),), 0, 2),
        ((Op("SETSID"), Op("CLOSE", 99)), 1, 9),
        ((Op("OPEN", slot_out=16, a="/etc", x=0x200000), Op("OPEN", 16, 17, a="passwd/x", x=0x200000)), 1, 20),
        ((Op("SETNS", 77, x=0x10000000),), 0, 9),
        ((Op("OPEN", slot_out=16, a="/" + "x" * 300, x=0x200000),), 0, 36),
        ((Op("FS_CREATE", 500),), 0, 9),
    ],
)  # fmt: skip
def test_failures_name_the_operation_and_the_errno(ops, index, errno):
    status, reports, after = _launch(encode(Plan(ops, None)))
    assert status == 1 << 8 and [(kind, op, value) for kind, op, value, _ in reports] == [(FAILED, index, errno)]
    assert read_record(after).pc == index and read_record(after).error == errno


def test_a_program_killed_on_its_way_is_no_start():
    """READY is said only when the exec was reached: here a filter kills the program at its umask(2)."""
    number = {"x86_64": 95, "aarch64": 166}[os.uname().machine]
    kill = b"".join(
        struct.pack("<HBBI", *row) for row in ((0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x80000000), (6, 0, 0, 0x7FFF0000))
    )
    ops = (Op("CLONE"), Op("SPAWN"), Op("NO_NEW_PRIVS"), Op("SECCOMP", a=kill), Op("UMASK", x=0o22))
    status, reports, _ = _launch(encode(Plan(ops, RUN)))
    assert reports[0][:3] == (FAILED, 4, 0) and status == 1 << 8


def test_an_optional_object_may_be_missing():
    raw = encode(Plan((Op("OPEN", slot_out=16, a="/no/such/place", x=0x200000, optional=True), Op("SETSID", optional=True)), None))
    assert _launch(raw)[0] == 0


def test_paths_below_a_slot_are_confined(tmp_path):
    """openat2(RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS): neither ``..`` nor a link nor a magic link leads out."""
    (tmp_path / "root").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "root/absolute").symlink_to(tmp_path / "secret")
    (tmp_path / "root/climb").symlink_to("../secret")
    (tmp_path / "root/magic").symlink_to("/proc/self/fd/3")
    for path in ("../secret", "absolute", "climb", "/../../secret", "magic"):
        ops = (Op("OPEN", slot_out=16, a=str(tmp_path / "root"), x=0x200000), Op("OPEN", 16, 17, a=path, x=0x200000))
        assert _launch(encode(Plan(ops, None)))[1][0][:3] in ((FAILED, 1, 2), (FAILED, 1, 40)), path
    for kind in ("MKDIR", "WRITE"):
        write = Op(kind, 16, a="climb/../../made", x=0o755) if kind == "MKDIR" else Op(kind, 16, a="/../made", b="x", x=0o100)
        _launch(encode(Plan((Op("OPEN", slot_out=16, a=str(tmp_path / "root"), x=0x200000), write), None)))
        assert not (tmp_path / "made").exists()


def test_removal_does_not_follow_links(tmp_path):
    tree, victim = tmp_path / "tree", tmp_path / "victim"
    (tree / "a/b").mkdir(parents=True)
    victim.mkdir()
    (victim / "kept").write_text("x")
    (tree / "a/link").symlink_to(victim)
    (tree / "dir").symlink_to(victim)
    (tree / "a/closed").mkdir(mode=0)
    deep = tree
    for _ in range(300):
        deep = deep / "dd"
    os.makedirs(deep)
    assert _launch(encode(Plan((Op("REMOVE", a=str(tree)),), None)))[0] == 0
    assert not tree.exists() and (victim / "kept").exists()


@requires("program:readelf")
def test_it_needs_no_library_and_no_writable_code():
    """Static, without an interpreter, no executable stack; small."""
    done = subprocess.run(["readelf", "-lW", LAUNCHER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "INTERP" not in done.stdout and not re.search(r"GNU_STACK.*RWE", done.stdout) and not re.search(r"LOAD.* RWE ", done.stdout)
    assert LAUNCHER.stat().st_size < 64 << 10


# -- undefined behaviour ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trapping(tmp_path_factory) -> Path:
    """The launcher compiled so that undefined behaviour traps (SIGILL); the sanitizer's trap mode needs no library."""
    program = tmp_path_factory.mktemp("ubsan") / "launcher"
    flags = ["-fsanitize=undefined,bounds", "-fsanitize-undefined-trap-on-error", "-fno-sanitize=alignment"]
    subprocess.run(
        ["gcc", *_setup("FREESTANDING"), *flags, "-o", program, *(NATIVE / "launcher" / s for s in _setup("LAUNCHER_SOURCES"))],
        check=True,
    )
    program.chmod(0o755)
    return program


@needs_sources
@requires("gcc")
def test_whole_starts_without_undefined_behaviour(trapping, monkeypatch, tmp_path):
    """Real sandboxes, foreground and detached, by the trapping launcher."""
    from support import requires as machine

    from dockless.sandbox.run import detached

    machine.check("userns")
    fd = os.open(trapping, os.O_RDONLY | os.O_CLOEXEC)
    monkeypatch.setattr(native, "_launcher_fd", fd)
    try:
        ran = run_in_sandbox(Spec(argv=("/bin/sh", "-c", "echo out; exit 3"), mounts=(Bind(str(tmp_path), "/m"),), timeout=20.0))
        assert (ran.exit.code, ran.out) == (3, "out\n")
        with ForegroundSandbox(Spec(argv=("sleep", "1000"))) as box:
            box.send_signal(15)
            assert box.wait(20).signal == 15
        made = detached.start(
            Spec(argv=("/bin/sh", "-c", "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; printf end; sleep 0.1; kill -9 $$"))
        )
        try:
            assert made.wait(20).signal == 9
            assert b" F line 2999\n" in log_paths(made)[-1].read_bytes()
        finally:
            made.remove()
    finally:
        os.close(fd)


FUZZ = """
import os, struct, sys, time
sys.path.insert(0, "/fuzz")
blobs = open("/fuzz/blobs", "rb")
ended = {}
while head := blobs.read(4):
    raw = blobs.read(struct.unpack("<I", head)[0])
    plan = os.memfd_create("plan"); os.write(plan, raw)
    r, w = os.pipe()
    for fd in (plan, w): os.set_inheritable(fd, True)
    places = [(os.POSIX_SPAWN_DUP2, plan, 103), (os.POSIX_SPAWN_DUP2, w, 104), (os.POSIX_SPAWN_DUP2, 103, 3), (os.POSIX_SPAWN_DUP2, 104, 4)]
    pid = os.posix_spawn("/fuzz/launcher", ["x"], {}, file_actions=places)
    os.close(w); os.close(r); os.close(plan)
    end = time.monotonic() + 3
    while not (done := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(pid, 9); done = os.waitpid(pid, 0)
            done = (pid, -1)
            break
        time.sleep(0.0005)
    status = done[1]
    key = "hang" if status == -1 else f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
    ended[key] = ended.get(key, 0) + 1
print(sorted(ended.items()))
"""


@needs_sources
@requires("gcc", "userns")
def test_mutated_plans_to_the_launcher(trapping, tmp_path):
    """Inside a sandbox, because an accepted mutation is carried out: no crash, no trap, no hang."""
    from .blobs import mutated

    names = sorted(good())
    count = int(os.environ.get("DOCKLESS_MUTATIONS", "600"))
    place = tmp_path / "fuzz"
    place.mkdir(mode=0o755)
    raws = [mutated(good()[names[seed % len(names)]], seed) for seed in range(count)]
    (place / "blobs").write_bytes(b"".join(struct.pack("<I", len(raw)) + raw for raw in raws))
    (place / "fuzz.py").write_text(FUZZ)
    (place / "launcher").write_bytes(trapping.read_bytes())
    (place / "launcher").chmod(0o755)
    for path in (*tmp_path.parents, tmp_path):
        if path != Path("/tmp") and path.is_relative_to("/tmp"):
            path.chmod(0o755)
    spec = Spec(argv=("python3", "/fuzz/fuzz.py"), mounts=(Bind(str(place), "/fuzz", readonly=True),), timeout=300.0, seccomp="unconfined")
    ran = run_in_sandbox(spec, timeout=300)
    assert ran.exit.code == 0, ran
    ended = dict(eval(ran.out.splitlines()[-1]))
    assert not [key for key in ended if key.startswith(("signal", "hang"))], ended
    assert ended.get("exit 2", 0) > 0


# -- the other processor ---------------------------------------------------------------------------------------------------------------


@needs_sources
@requires("cross-gcc:aarch64")
def test_compiles_for_aarch64(tmp_path):
    """All sources of the launcher and of the extension, without a warning."""
    flags = _setup("FREESTANDING")
    out = tmp_path / "launcher"
    done = subprocess.run(
        ["aarch64-linux-gnu-gcc", *flags, "-Werror", "-o", out, *(NATIVE / "launcher" / s for s in _setup("LAUNCHER_SOURCES"))],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for source in ("clone.c", "door.c", "shim.c", "launcher/plan.c"):
        done = subprocess.run(
            ["aarch64-linux-gnu-gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", f'-DLAUNCHER_PATH="{out}"', f'-DAGENT_PATH="{out}"',
            "-I", NATIVE / "launcher", "-c", "-o", tmp_path / "x.o", NATIVE / source],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


@needs_sources
@requires("cross-gcc:aarch64", "program:qemu-aarch64-static")
def test_runs_on_aarch64(tmp_path):
    """Under user emulation, with what it knows of system calls: the plan is mapped, checked, carried out; struct stat is read right."""
    out = tmp_path / "launcher"
    subprocess.run(
        ["aarch64-linux-gnu-gcc", *_setup("FREESTANDING"), "-o", out, *(NATIVE / "launcher" / s for s in _setup("LAUNCHER_SOURCES"))],
        check=True,
    )
    wrapper = tmp_path / "run"
    wrapper.write_text(f"#!/bin/sh\nexec qemu-aarch64-static {out} < /dev/null\n")
    wrapper.chmod(0o755)
    null, zero = 1 << 8 | 3, 1 << 8 | 5
    status, reports, _ = _launch(encode(Plan((Op("UMASK", x=0o22), Op("EXPECT_DEVICE", 0, x=null)), None)), wrapper)
    assert status == 0 and [kind for kind, *_ in reports] == [STATUS]
    assert _launch(encode(Plan((Op("UMASK", x=0o22), Op("EXPECT_DEVICE", 0, x=zero)), None)), wrapper)[1][0][:3] == (FAILED, 1, 19)
    assert _launch(good()["small"][:200], wrapper)[1][0][:3] == (FAILED, 0xFFFF, 22)


@needs_sources
@requires("gcc")
def test_compiles_without_a_warning(tmp_path):
    """What newer compilers make an error: implicit declarations, and whatever -Wall and -Wextra say."""
    done = subprocess.run(
        ["gcc", *_setup("FREESTANDING"), "-Werror", "-o", tmp_path / "l", *(NATIVE / "launcher" / s for s in _setup("LAUNCHER_SOURCES"))],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for source in ("clone.c", "door.c", "shim.c", "launcher/plan.c"):
        done = subprocess.run(
            ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", f'-DLAUNCHER_PATH="{tmp_path / "l"}"',
            f'-DAGENT_PATH="{tmp_path / "l"}"',
            "-I", NATIVE / "launcher", "-c", "-o", tmp_path / "x.o", NATIVE / source],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
