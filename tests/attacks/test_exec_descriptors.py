"""What a program finds open at the moment of its exec: nothing of the host, so no path leads through it.

Rows A56–A58 and A63–A65 of the list of attacks. While execve resolves a program, its ``#!`` line and its ELF interpreter,
``/proc/self/fd/N/../..`` leads wherever N does; an image chooses all of these paths.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support import make_image
from support.boxes import load, ok, running, sh, until
from support.make_image import directory, file, symlink
from support.requires import requires

from dockless.base import paths
from dockless.errors import CommandNotFound, LaunchFailed
from dockless.sandbox.plan.plan import Op, encode
from dockless.sandbox.run.prepared import Prepared
from dockless.sandbox.run.process import start
from dockless.sandbox.spec import Bind, Namespaces, Spec, Tmpfs

pytestmark = requires("userns", "overlay")

DESCRIPTORS = range(3, 128)
UP = "/".join([".."] * 24)

FORMS = ["indexed", "written", "host"]
SHAPES = [
    {},
    {"profile": "untrusted"},
    {"root": "readonly"},
    {"root": "tmpfs"},
    {"cap_drop": ("ALL",)},
    pytest.param({"namespaces": Namespaces(user="host")}, marks=requires("root")),
    pytest.param({"profile": "privileged"}, marks=requires("root")),
    pytest.param({"namespaces": Namespaces(pid="host")}, marks=requires("root")),
]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory of the host with a program that everybody may run."""
    place = tmp_path / "victim"
    place.mkdir()
    for path in (tmp_path, place):
        path.chmod(0o755)
    program = make_image.static_busybox() or "/bin/true"
    (place / "tool").write_bytes(Path(program).read_bytes())
    (place / "tool").chmod(0o755)
    return place


def elf(interpreter: str) -> bytes:
    """A 64-bit program for this processor that is nothing but the path of its interpreter and one page to map."""
    name = interpreter.encode() + b"\0"
    machine = {"x86_64": 62, "aarch64": 183}[os.uname().machine]
    size = 64 + 2 * 56 + len(name)
    base = 0x10000
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, machine, 1, base, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    interp = struct.pack("<IIQQQQQQ", 3, 4, 64 + 112, base + 176, base + 176, len(name), len(name), 1)
    whole = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
    return head + interp + whole + name


def through(number: int, victim: Path) -> str:
    return f"/proc/self/fd/{number}/{UP}{victim}"


def _fields(form: str, shape: dict[str, object], tmp_path: Path, entries: list[make_image.Entry], variables: dict[str, str]):
    """The same hostile files by way of an image, or of a bind into the image `host`."""
    if form != "host":
        ref = load(tmp_path, entries, index=None if form == "indexed" else False, env=variables)
        return {"image": ref, **shape}
    place = tmp_path / "mine"
    for entry in entries:
        path = place / entry.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(entry.data)
        path.chmod(0o755)
    place.mkdir(exist_ok=True)
    return {"image": "host", "mounts": (Bind(str(place), "/tmp/mine"),), "env": tuple(variables.items()), **shape}


def _programs(kind: str, victim: Path, prefix: str) -> tuple[list[make_image.Entry], str]:
    """One hostile ``tool`` for each descriptor, and a PATH that tries them all: what leads nowhere is ENOENT, and the next is tried."""
    entries, places = [], []
    for number in DESCRIPTORS:
        if kind == "path":
            places.append(through(number, victim))
            continue
        target = f"{through(number, victim)}/tool"
        data = f"#!{target} echo\n".encode() if kind == "script" else elf(target)
        entries.append(file(f"t/{number}/tool", data, 0o755))
        places.append(f"{prefix}/t/{number}")
    return entries, ":".join(places)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.items())) or "default")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["path", "script", "interpreter"])
def test_no_program_of_the_host_through_a_descriptor(tmp_path, victim, kind, form, shape):
    """A56: by PATH, by the ``#!`` line, by PT_INTERP."""
    entries, path = _programs(kind, victim, "/tmp/mine" if form == "host" else "")
    fields = _fields(form, shape, tmp_path, entries, {"PATH": path})
    from support.boxes import run

    with pytest.raises(CommandNotFound):
        run(Spec(argv=("tool", "a"), **fields))


@pytest.mark.parametrize("form", FORMS)
def test_no_working_directory_through_a_descriptor(tmp_path, form):
    """A23, A56: a working directory by a magic link of /proc is refused, whatever it leads to."""
    fields = _fields(form, {}, tmp_path, [symlink("l", "/proc/self/cwd")] if form != "host" else [], {})
    descriptors = (f"/proc/self/fd/{n}" for n in (0, 3, 4, 16, 17, 20, 40))
    for workdir in (*descriptors, "/proc/self/cwd", "/proc/self/root", "/proc/1/root", *(("/l", "/l/x") if form != "host" else ())):
        with pytest.raises(LaunchFailed) as caught:
            sh("pwd", workdir=workdir, **fields)
        assert caught.value.hint


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.items())) or "default")
def test_what_is_open_inside(tmp_path, shape):
    """The program has 0-2, its init nothing at all, the keeper no directory but its cgroup's and the state's."""
    spec = Spec(argv=("/bin/sh", "-c", "echo on; sleep 60"), image=load(tmp_path), **shape)
    with running(spec) as (box, said):
        until(lambda: "on" in said(), "the program runs")
        pid = box.process.pid
        if os.geteuid() == 0:
            until(lambda: len(os.listdir(f"/proc/{pid}/fd")) == 0, "init has closed everything")
            program = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
            assert sorted(os.listdir(f"/proc/{program}/fd")) == ["0", "1", "2"]
            held = [os.readlink(f"/proc/{box.process.keeper_pid}/fd/{n}") for n in os.listdir(f"/proc/{box.process.keeper_pid}/fd")]
            assert [
                h for h in held if h.startswith("/") and os.path.isdir(h) and "cgroup" not in h and not h.startswith(str(paths.state()))
            ] == []
        else:
            for closed in (pid, box.process.keeper_pid):
                with pytest.raises(PermissionError):
                    os.listdir(f"/proc/{closed}/fd")


@requires("root")
def test_init_has_nothing_open_even_for_a_tracer(tmp_path):
    """A56: with the host's ids and CAP_SYS_PTRACE a program may look into PID 1 from its first instruction on."""
    fields = {"namespaces": Namespaces(user="host"), "cap_add": ("SYS_PTRACE",), "image": load(tmp_path)}
    for _ in range(20):
        assert ok("for f in /proc/1/fd/*; do [ ! -d $f ] || readlink $f; done", **fields) == ""


@requires("root")
def test_binfmt_misc_finds_no_program_of_the_host(tmp_path, victim):
    """A56: an interpreter that the host registered is resolved at the exec, too. The smallest plan that opens the host's root, in a user
    namespace with a binfmt_misc of its own."""
    (tmp_path / "tool").write_text("DLX\n")
    (tmp_path / "tool").chmod(0o755)
    program = f"""
import os
from pathlib import Path
Path("/proc/sys/fs/binfmt_misc/register").write_text(":dlx:M::DLX::{through(16, victim)}/tool:")
from dockless.errors import CommandNotFound
from dockless.sandbox.plan.plan import Command, Op, Plan, encode
from dockless.sandbox.run.process import start
command = Command(({str(tmp_path / "tool")!r},), ("tool",), ())
with open(os.devnull, "r+b") as null:
    for directories in (0, 3):
        opened = [Op("OPEN", slot_out=16 + n, a="/", x=os.O_PATH) for n in range(directories)]
        plan = Plan((*opened, Op("CLONE"), Op("SPAWN")), command)
        try:
            process = start(plan, encode(plan), dict.fromkeys((0, 1, 2), null.fileno()))
        except CommandNotFound:
            continue
        print("ran", process.wait(20))
        process.close()
print("done")
"""
    mount = "mount -t binfmt_misc none /proc/sys/fs/binfmt_misc && "
    wrapped = ["unshare", "--mount", "--user", "--map-root-user", "sh", "-c"]
    probe = subprocess.run([*wrapped, mount + "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no binfmt_misc in a user namespace here (Linux 6.7 has it): {probe.stderr.strip()}")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [*wrapped, mount + 'exec "$@"', "sh", sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "done\n", (done.stdout, done.stderr)


def test_a_directory_is_no_standard_stream(tmp_path):
    """A56: a directory on 0-2 would be a way out by /proc/self/fd/0/.. that nobody meant to give."""
    from support.boxes import files

    from dockless.sandbox.run.foreground import ForegroundSandbox

    opened = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for slot in ("stdin", "stdout", "stderr"):
            with files() as streams:
                fds = dict(zip(("stdin", "stdout", "stderr"), (s.fileno() for s in streams), strict=True)) | {slot: opened}
                with pytest.raises(LaunchFailed) as caught, ForegroundSandbox(Spec(argv=("true",), image="host"), **fds) as box:
                    box.wait(20)
                assert "directory" in str(caught.value) and caught.value.hint
    finally:
        os.close(opened)


# -- what is shared is not written ---------------------------------------------------------------------------------------------------------


def tree(root: Path) -> str:
    """A digest over names, modes, owners and contents of what sandboxes share."""
    total = hashlib.sha256()
    shared = [path for top in ("layers", "blobs", "tars", "skeleton") for path in (root / top).rglob("*")]
    assert shared
    for path in sorted(shared):
        found = path.lstat()
        total.update(f"{path} {found.st_mode} {found.st_uid} {found.st_gid} {found.st_size} {found.st_mtime_ns}\n".encode())
        if stat.S_ISREG(found.st_mode):
            total.update(path.read_bytes())
    return total.hexdigest()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.items())) or "default")
@pytest.mark.parametrize("form", ["indexed", "written"])
def test_a_layer_cannot_be_written_by_its_descriptor(tmp_path, form, shape):
    """A58: even whoever still had a layer's descriptor, with all the rights of the launcher, could not write through it."""
    from dockless.images import Store
    from dockless.sandbox import features
    from dockless.sandbox.resolve import resolve

    ref = load(tmp_path, index=None if form == "indexed" else False)
    image = Store().get(ref)
    ready = Prepared(resolve(Spec(argv=("true",), image=ref, **shape), image, features.probe()))
    layers = [slot for slot, label in ready.plan.slots.items() if label.startswith("layer ")]
    assert layers
    before = tree(paths.store())
    for slot in layers:
        state = tmp_path / f"state-{slot}"
        state.mkdir(mode=0o755)
        at = max(i for i, op in enumerate(ready.plan.ops) if op.slot_in == slot or (op.slot_out == slot and op.name == "OPEN_TREE")) + 1
        planted = Op("WRITE", slot, a="planted", b="x", x=os.O_CREAT)
        plan = replace(ready.plan, ops=(*ready.plan.ops[:at], planted, *ready.plan.ops[at:]))
        with open(os.devnull, "r+b") as null, contextlib.ExitStack() as opened:
            fds = ready.slots(None, opened) | dict.fromkeys((0, 1, 2), null.fileno())
            from dockless.sandbox.plan.plan import filled_in

            with pytest.raises(LaunchFailed) as caught:
                start(plan, filled_in(encode(plan), directory=str(state)), fds).close()
        assert caught.value.errno == 30, caught.value
    assert tree(paths.store()) == before


@pytest.mark.parametrize("form", ["indexed", "written"])
def test_a_store_after_a_hostile_program(tmp_path, form):
    ref = load(tmp_path, [directory("d", 0o777), file("d/f", "x", 0o666)], index=None if form == "indexed" else False)
    ok("true", image=ref)
    before = tree(paths.store())
    sh("for f in /proc/[0-9]*/root /proc/self/fd/*; do echo x > $f/d/f; echo x > $f/bin/sh; done; rm -rf /bin /d; mkdir /d", image=ref)
    assert tree(paths.store()) == before


# -- the host's device nodes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.items())) or "default")
def test_the_hosts_device_nodes_keep_their_owner_and_mode(tmp_path, shape):
    """A65: the nodes are the host's own. Written with what they have already, so that nothing changes if this fails."""
    script = (
        "for n in null zero full random urandom tty; do"
        " chmod 666 /dev/$n && echo chmod $n; chown 0:0 /dev/$n && echo chown $n; touch -c /dev/$n && echo touch $n; done;"
        " for n in 0 1 2; do chmod 666 /proc/self/fd/$n && echo chmod stream $n; done;"
        " echo x > /dev/null && head -c 1 /dev/zero > /dev/null && echo written >&2"
    )
    spec = Spec(argv=("/bin/sh", "-c", script), image=load(tmp_path), **shape)
    from dockless.sandbox.run.foreground import ForegroundSandbox

    reader, writer = os.pipe()
    with open(os.devnull, "r+b") as null, ForegroundSandbox(spec, stdin=null.fileno(), stdout=writer, stderr=null.fileno()) as box:
        os.close(writer)
        box.wait(20)
    with open(reader) as said:
        assert [line for line in said.read().splitlines() if line != "chmod stream 1"] == []  # 1 is the test's own pipe


@requires("root")
def test_the_hosts_files_are_everybodys_files_only(tmp_path, monkeypatch):
    """A63: the image `host` with the host's ids: a file that only root may read is closed wherever it lies, also when it is replaced."""
    from dockless.sandbox import resolve

    place = tmp_path / "opt"
    place.mkdir()
    for folder in (tmp_path, place):
        folder.chmod(0o755)
    secret = place / "secret"
    secret.write_text("canary")
    secret.chmod(0o600)
    (place / "open").write_text("open")
    monkeypatch.setattr(resolve, "_HOST_DIRECTORIES", (*resolve._HOST_DIRECTORIES, str(place)))
    script = f"cat {secret} {place}/open; touch /tmp/../dev/shm/a; read go; cat {secret}; chmod 644 {secret}; echo end"
    reader, writer = os.pipe()
    spec = Spec(argv=("/bin/sh", "-c", script), namespaces=Namespaces(user="host"), env=(("CASE", str(tmp_path)),))
    from dockless.sandbox.run.foreground import ForegroundSandbox

    with open(tmp_path / "out", "w+b") as out:
        with ForegroundSandbox(spec, stdin=reader, stdout=out.fileno(), stderr=out.fileno()) as box:
            until(lambda: b"open" in (tmp_path / "out").read_bytes(), "the first look")
            fresh = place / "fresh"
            fresh.write_text("canary")
            fresh.chmod(0o600)
            fresh.rename(secret)
            os.write(writer, b"go\n")
            box.wait(20)
        os.close(reader)
        os.close(writer)
    text = (tmp_path / "out").read_text()
    assert "canary" not in text and text.endswith("end\n") and stat.S_IMODE(secret.stat().st_mode) == 0o600


# -- where a mount lands -------------------------------------------------------------------------------------------------------------------

LINKS = [
    "/proc", "proc", "../proc", "/proc/", "/proc/.", "/sys", "/dev", "/dev/.", "/", "/.", "..", "/l2",
    "/proc/sys", "/proc/self/x", "/sys/fs/cgroup", "/dev/shm", "/dev/null", "/dev/pts/0", "/sys/kernel",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["directory", "file", "tmpfs"])
@pytest.mark.parametrize("link", LINKS)
def test_a_link_of_the_image_moves_no_mount_onto_ours(tmp_path, link, kind):
    """A64: /proc, /sys and /dev are never covered; the start is refused in the caller's words."""
    ref = load(tmp_path, [symlink("data", link), symlink("l2", "proc")])
    mine = tmp_path / "mine"
    if kind == "file":
        mine.write_text("x")
    else:
        mine.mkdir()
    mount = Tmpfs("/data") if kind == "tmpfs" else Bind(str(mine), "/data")
    try:
        text = ok("cat /proc/self/mountinfo", image=ref, mounts=(mount,))
    except LaunchFailed as refused:
        assert "/data" in str(refused) and refused.hint
    else:  # a link to what is not there yet: a file took its place
        assert kind == "file" and [line for line in text.splitlines() if line.split()[4] == "/data"]
    assert kind != "directory" or list(mine.iterdir()) == []


@pytest.mark.parametrize("deep", ["/data/x", "/data/x/y"])
@pytest.mark.parametrize("link", ["/proc", "/sys", "/dev", "/proc/self", "/l2"])
def test_nor_below_a_link(tmp_path, link, deep):
    ref = load(tmp_path, [symlink("data", link), symlink("l2", "proc")])
    with pytest.raises(LaunchFailed):
        sh("true", image=ref, mounts=(Tmpfs(deep),))


def test_links_within_the_image_are_followed(tmp_path):
    """What images and people do all the time goes on working."""
    ref = load(tmp_path, [symlink("var/run", "/run"), directory("srv/real"), symlink("data", "srv/real")])
    mine = tmp_path / "mine"
    mine.mkdir()
    mine.chmod(0o777)
    (mine / "sock").write_text("socket")
    (mine / "sock").chmod(0o666)
    mounts = (
        Tmpfs("/run"),
        Bind(str(mine / "sock"), "/var/run/x.sock"),
        Tmpfs("/data"),
        Tmpfs("/dev/shm", size=1 << 20),
        Tmpfs("/dev/own/deep"),
    )
    script = "cat /run/x.sock; grep -c -E ' (/run|/run/x.sock|/srv/real|/dev/own/deep) ' /proc/self/mountinfo; df -k /dev/shm | tail -n 1"
    text = ok(script, image=ref, mounts=mounts)
    assert text.startswith("socket4\n") and " 1024 " in text
