"""``--explain --script``: run for real, it ends where the sandbox ends, and nothing on the host changes."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import make_image as make
from support.boxes import alive, children_of, load, until
from support.requires import missing, requires

from dockless.images import Store

pytestmark = requires("userns", "overlay", "program:capsh", "program:ip")
COMMAND = [sys.executable, "-P", "-m", "dockless"]
REPORT = r"""
echo "cwd $(pwd)"; echo "host $(hostname)"; echo "id $(id)"; echo "umask $(umask)"
for word in Groups CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs; do grep "^$word" /proc/self/status; done
grep -E '^Max (open files|core file size)' /proc/self/limits; echo "lo $(cat /sys/class/net/lo/flags)"
echo "nodes $(ls /dev | tr '\n' ' ')"
echo "env $A"; cat /etc/hosts; ls -ld / /tmp /etc /dev /dev/shm | sed 's/  */ /g' | cut -d' ' -f1,3,4
cat /proc/self/mountinfo
"""


def _mounts(text: str) -> list[tuple[str, ...]]:
    """Mount point, root, kind, flags, and options; without ids, without the places of layers and of a private upper."""
    private = re.compile(r"(lowerdir|lowerdir\+|upperdir|workdir|redirect_dir|ro|rw|volatile)(=|$)")
    found = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or not fields[0].isdigit():
            continue
        kind, _, options = after.split(None, 2)
        flags = set(fields[5].split(","))
        if "idmapped" in flags and not _maps_owners():
            flags.remove("idmapped")
        shown = {option for option in options.split(",") if not private.match(option)}
        root = fields[3] if kind != "cgroup2" else "as seen from a cgroup of its own"
        found.append((fields[4], root, kind, ",".join(sorted(flags)), ",".join(sorted(shown))))
    return sorted(found)


def _maps_owners() -> bool:
    return "--map-users" in subprocess.run(["mount", "--help"], capture_output=True, text=True, check=True).stdout


def _facts(text: str) -> list[str]:
    """All else. A mount(8) that cannot map owners leaves those of root's layers to nobody."""
    lines = [line for line in text.splitlines() if " - " not in line]
    return [line for line in lines if not line.startswith(("drwx", "dr-x", "lrwx"))] if os.geteuid() == 0 and not _maps_owners() else lines


def _host() -> dict[str, Any]:
    """What the commands of old changed, and what a mount or a device left behind would change."""
    with open("/proc/self/mountinfo") as mounts:
        lines = [line for line in mounts if "/dev/shm/dockless-" in line]
    nodes = {name: os.stat(f"/dev/{name}") for name in ("null", "zero", "full", "random", "urandom", "tty")}
    return {
        "hostname": os.uname().nodename,
        "nodes": {name: (s.st_uid, s.st_gid, s.st_mode, s.st_rdev) for name, s in nodes.items()},
        "mounts": lines,
        "places": sorted(p.name for p in Path("/dev/shm").glob("dockless-*") if p.stat().st_uid == os.geteuid()),
        "files": [(p, Path(p).stat().st_mtime_ns) for p in ("/etc/hosts", "/etc/hostname", "/etc/passwd") if Path(p).exists()],
    }


@pytest.fixture(autouse=True)
def host_stays() -> Iterator[None]:
    before = _host()
    yield
    after = _host()
    new = [Path("/dev/shm", place) for place in after.pop("places") if place not in before["places"]]
    until(
        lambda: not any(place.exists() for place in new), "what is made below /dev/shm goes, also that of a script that somebody else runs"
    )
    del before["places"]
    assert after == before


def _both(tmp_path: Path, *options: str, image: str = "host", script: str = REPORT) -> tuple[str, str]:
    """The output of a sandbox, and of the script that explains it."""
    arguments = [*options, image, "--", "sh", "-c", script]
    real = subprocess.run([*COMMAND, "run", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert real.returncode == 0, real.stderr
    explained = subprocess.run([*COMMAND, "run", "--explain", "--script", *arguments], capture_output=True, text=True, check=True).stdout
    (tmp_path / "x.sh").write_text(explained)
    said = subprocess.run(["/bin/sh", str(tmp_path / "x.sh")], capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd="/")
    assert said.returncode == 0, said.stderr
    unexpected = [line for line in said.stderr.splitlines() if not line.startswith("not possible")]
    assert unexpected == []
    return real.stdout, said.stdout


def _same(tmp_path: Path, *options: str, image: str = "host") -> None:
    real, said = _both(tmp_path, *options, image=image)
    assert _mounts(said) == _mounts(real) and len(_mounts(real)) > 15
    assert _facts(said) == _facts(real)


OPTIONS = {
    "as it is": (),
    "memory": ("--root", "tmpfs", "--shm-size", "2m", "--tmpfs", "/scratch:size=1m"),
    "read-only": ("--read-only", "-w", "/etc"),
    "a user": (
        "-u",
        "7:8",
        "-w",
        "/tmp/deep",
        "-e",
        "A=a b; 'c'\n$(d)",
        "--hostname",
        "box",
        "--ulimit",
        "nofile=100:200",
        "--umask",
        "027",
    ),
    "nothing kept": ("--cap-drop", "ALL", "--cpu-affinity", "0", "--oom-score-adj", "5"),
    "untrusted": ("--profile", "untrusted"),
    "shared": ("--uts", "host", "--ipc", "host", "--network", "host", "--security-opt", "seccomp=unconfined"),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("image", ["host", "written"])
def test_the_same_sandbox(tmp_path, name, image):
    if name == "a user" and missing("subuid"):
        pytest.skip("a single id")
    if image == "written":
        load(tmp_path, [make.directory("data", uid=7), make.file("data/x", "x")], name="written:1")
    _same(tmp_path, *OPTIONS[name], image="host" if image == "host" else "written:1")


@requires("root", "erofs", "loop")
@pytest.mark.parametrize("name", ["as it is", "a user"])
def test_indexed(tmp_path, name):
    layout = make.make_oci_layout(
        tmp_path / "layout", [[make.directory("."), *make.rootfs_entries()], [make.file("x", "x")]], make.config(), "indexed:1"
    )
    (image,) = Store(index=True).load(layout)
    assert all(layer.tar is not None for layer in image.layers)
    before = subprocess.run(["losetup", "--list", "--noheadings"], capture_output=True, text=True, check=True).stdout
    _same(tmp_path, *OPTIONS[name], image="indexed:1")
    assert subprocess.run(["losetup", "--list", "--noheadings"], capture_output=True, text=True, check=True).stdout == before


@pytest.mark.parametrize("kind", ["host", "written"])
def test_binds(tmp_path, kind):
    """Of a file, of a directory whose name has a blank, read-only, in the caller's order."""
    place = tmp_path / "a place's"
    place.mkdir(mode=0o755)
    (place / "file").write_text("bound\n")
    image = "host" if kind == "host" else load(tmp_path, name="one:1")
    options = ("-v", f"{place}:/mnt/a:ro", "-v", f"{place / 'file'}:/mnt/b/file", "--tmpfs", "/mnt/c", "-v", f"{place}:/mnt/c/d e")
    _same(tmp_path, *options, image=image)


@requires("root")
def test_everything_privileged(tmp_path):
    load(tmp_path, name="one:1")
    _same(tmp_path, "--profile", "privileged", image="one:1")


def test_links_of_an_image_lead_to_nothing_of_the_host(tmp_path):
    """Targets that are links to places of the host, absolute and upwards: made and mounted below the image's root."""
    aim = tmp_path / "host"
    aim.mkdir(mode=0o777)
    inside = [make.directory(str(place)[1:], 0o777) for place in reversed([aim, *list(aim.parents)[:-1]])]
    links = [*inside, make.symlink("out", str(aim)), make.symlink("up", "../../../../.." + str(aim))]
    load(tmp_path, links, name="links:1")
    options = ("--tmpfs", "/out/made", "--tmpfs", "/up/too", "-w", "/out/work")
    real, said = _both(tmp_path, *options, image="links:1")
    assert _mounts(said) == _mounts(real) and _facts(said) == _facts(real) and list(aim.iterdir()) == []


def test_an_image_puts_no_command_into_the_script(tmp_path):
    """Newlines in everything that a configuration says, and in what the caller says: of a working directory, a program, a variable."""
    canary = tmp_path / "canary"
    evil = f"x\ntouch {canary}\n$(touch {canary})`touch {canary}`; touch {canary}"
    (tmp_path / "a\nb").mkdir()
    load(tmp_path, [make.directory("evil")], name="evil:1", entrypoint=[evil, evil], cmd=[evil], workdir=f"/evil/{evil}", env={"A": evil})
    options = ("-v", f"{tmp_path}/a\nb:/{evil}", "--tmpfs", f"/t\ntouch {canary}", "-e", f"B={evil}")
    arguments = [*COMMAND, "run", "--explain", "--script", *options, "evil:1"]
    (tmp_path / "x.sh").write_bytes(subprocess.run(arguments, capture_output=True, check=True).stdout)
    words = shlex.split((tmp_path / "x.sh").read_text(), comments=True)
    assert "mount" in words and "touch" not in words
    ended = subprocess.run(["/bin/sh", str(tmp_path / "x.sh")], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert ended.returncode != 0 and not canary.exists()


@requires("program:gcc")
def test_the_images_environment_reaches_no_program_of_the_host(tmp_path):
    """LD_PRELOAD of an image, with a path of the host: only what runs below the new root may follow it."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        library = Path(place) / "canary.so"
        source = '__attribute__((constructor)) static void canary(void) { write(2, "CANARY", 6); }'
        compiler = ["gcc", "-shared", "-fPIC", "-include", "unistd.h", "-x", "c", "-", "-o", str(library)]
        subprocess.run(compiler, input=source, text=True, check=True)
        seen = subprocess.run(["true"], env={"LD_PRELOAD": str(library)}, capture_output=True, check=True)
        assert seen.stderr == b"CANARY"
        load(tmp_path, name="preload:1", env={"LD_PRELOAD": str(library), "UID": "7", "PPID": "7", "A.B": "c", "GOOD": "x 'y'\nz"})
        arguments = [*COMMAND, "run", "--explain", "--script", "preload:1", "--", "sh", "-c", 'echo "$LD_PRELOAD $GOOD"']
        (tmp_path / "x.sh").write_bytes(subprocess.run(arguments, capture_output=True, check=True).stdout)
        ended = subprocess.run(["/bin/sh", str(tmp_path / "x.sh")], stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/")
        assert (ended.returncode, ended.stdout) == (0, f"{library} x 'y'\nz\n"), ended.stderr
        assert "CANARY" not in ended.stderr


def test_the_exit_code_is_the_programs(tmp_path):
    arguments = [*COMMAND, "run", "--explain", "--script", "--", "sh", "-c", "exit 37"]
    (tmp_path / "x.sh").write_bytes(subprocess.run(arguments, capture_output=True, check=True).stdout)
    assert subprocess.run(["/bin/sh", str(tmp_path / "x.sh")], stdin=subprocess.DEVNULL).returncode == 37


def test_what_a_shell_cannot_say_is_marked(tmp_path):
    text = subprocess.run([*COMMAND, "run", "--explain", "--script", "--", "true"], capture_output=True, text=True, check=True).stdout
    for what in ("seccomp filter", "pivot_root(2)"):
        assert re.search(rf"# .*{re.escape(what)}", text)
    assert text.count("# not possible in shell: ") >= 2


def _script(tmp_path: Path, *arguments: str) -> str:
    path = tmp_path / "x.sh"
    path.write_bytes(subprocess.run([*COMMAND, "run", "--explain", "--script", *arguments], capture_output=True, check=True).stdout)
    return str(path)


ENDLESS = ("host", "--", "sh", "-c", "echo up; sleep 600")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_ended_by_a_signal_it_leaves_nothing(tmp_path, number):
    """Neither its program, nor who holds its namespaces, nor its directory."""
    with _started(_script(tmp_path, *ENDLESS)) as started:
        assert started.stdout.readline() == "up\n"
        processes = children_of(started.pid)
        started.send_signal(number)
        assert started.wait(60) == 128 + number
        until(lambda: not any(map(alive, processes)), "its processes have ended")


@pytest.mark.parametrize(
    "begun",
    ['    mkdir "$place/slots"\n', " &\n", "keeper <&3 3<&- &\n"],
    ids=["its directory", "what holds a namespace", "the keeper"],
)
def test_ended_before_it_could_note_what_it_had_begun(tmp_path, begun):
    path = _script(tmp_path, *ENDLESS)
    text = Path(path).read_text()
    assert text.count(begun) >= 1
    Path(path).write_text(text.replace(begun, f"{begun}    kill -s STOP $$\n", 1))
    with _started(path) as started:
        assert os.WIFSTOPPED(os.waitpid(started.pid, os.WUNTRACED)[1])
        if "keeper" in begun:
            assert started.stdout.readline() == "up\n"
        started.send_signal(signal.SIGTERM)
        started.send_signal(signal.SIGCONT)
        assert started.wait(60) == 128 + signal.SIGTERM


@contextlib.contextmanager
def _started(path: str) -> Iterator[Any]:
    """In the end nobody holds its output."""
    started = subprocess.Popen(["/bin/sh", path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    yield started
    until(lambda: select.select([started.stdout], [], [], 0)[0], "nobody holds its output any more")
    assert started.stdout.read() == ""
    started.stdout.close()


def test_ctrl_c_on_a_terminal_ends_it(tmp_path):
    path = _script(tmp_path, *ENDLESS)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv("/bin/sh", ["/bin/sh", path])
    said = b""
    while b"up" not in said:
        said += os.read(terminal, 100)
    processes = children_of(pid)
    os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGINT
    until(lambda: not any(map(alive, processes)), "its processes have ended")


def test_its_standard_input_is_the_programs(tmp_path):
    path = _script(tmp_path, "host", "--", "cat")
    assert subprocess.run(["/bin/sh", path], input=b"a\nb", capture_output=True, check=True).stdout == b"a\nb"


@pytest.mark.parametrize("there", [None, "#!/bin/sh\necho wrong\n"], ids=["no file sh", "another file sh"])
def test_out_of_a_pipe_it_says_that_it_wants_a_file(tmp_path, there):
    """A shell that reads it from a pipe calls it ``sh``."""
    path = _script(tmp_path, "host", "--", "true")
    empty = tmp_path / "empty"
    empty.mkdir()
    if there is not None:
        (empty / "sh").write_text(there)
    with open(path) as text:
        ended = subprocess.run(["sh"], stdin=text, capture_output=True, text=True, cwd=empty)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "save this script into a file, then run: sh FILE\n"


@requires("root")
def test_made_for_root_it_says_so_to_a_user(tmp_path):
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        path = shutil.copy(_script(tmp_path, "host", "--", "true"), place)
        ended = subprocess.run(["/bin/sh", path], capture_output=True, text=True, cwd="/", user=65534, group=65534, extra_groups=())
    assert (ended.returncode, ended.stderr) == (1, "this script was made for root: run it as root\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--timeout", "5"), "kill everything inside after 5s"),
        (("--timeout", "1m30s", "--grace", "2", "--stop-signal", "INT"), "send signal 2 after 1m30s, and 2s later kill everything inside"),
    ],
)
def test_a_time_limit_is_marked_as_skipped(tmp_path, options, said):
    text = Path(_script(tmp_path, *options, "host", "--", "true")).read_text()
    assert f"\n# not possible in shell: {said}\n" in text
    listed = subprocess.run([*COMMAND, "run", "--explain", *options, "host", "--", "true"], capture_output=True, text=True, check=True)
    assert f"# not possible in shell: {said}\n" in listed.stdout


@requires("root", "device-filter")
def test_the_device_filter_is_marked_as_skipped(tmp_path):
    text = Path(_script(tmp_path, "host", "--", "true")).read_text()
    assert "\n# not possible in shell: allow these devices alone: c 1:3 rw, " in text


def test_limits_are_said_as_the_script_says_them():
    words = ["--best-effort", "--memory", "1G", "host", "--", "true"]
    text, script = (
        subprocess.run([*COMMAND, "run", "--explain", *more, *words], capture_output=True, text=True, check=True).stdout
        for more in ([], ["--script"])
    )
    said = [[line.strip() for line in lines.splitlines() if "memory.max" in line] for lines in (text, script)]
    assert said[0] == said[1] == ["# not possible in shell: limit memory.max to 1073741824"]


@pytest.mark.parametrize("more", [["--time"], ["--json"]])
def test_it_is_alone(more):
    ended = subprocess.run([*COMMAND, "run", "--explain", "--script", *more, "--", "true"], capture_output=True, text=True)
    assert ended.returncode == 125 and "hint" in ended.stderr
