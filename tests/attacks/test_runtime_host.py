"""What must not change or show on the host: files of ours, helpers, races on a shared directory, residue, other users.

Rows A29–A34, A37, A38, A50 of the list of attacks; the table is in README.md beside this file.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.boxes import load, ok, run, running, sh, until
from support.requires import requires

from dockless.base import paths
from dockless.base.idmaps import default_map
from dockless.errors import DocklessError, LaunchFailed
from dockless.sandbox.run import detached
from dockless.sandbox.spec import Bind, Spec, Tmpfs, Volume

pytestmark = requires("userns")


def _give(place: Path) -> None:
    if os.geteuid() == 0:
        idmap = default_map()
        os.chown(place, idmap.outside_uid(0) or 0, idmap.outside_gid(0) or 0)


@pytest.mark.parametrize("count", [400, 3_000, 100_000])
def test_far_too_many_mounts(count):
    """A38: either they work or there is one clear error; never a crash, never half of them."""
    spec = Spec(argv=("/bin/sh", "-c", "grep -c ' /tmp/m' /proc/self/mountinfo"), mounts=tuple(Tmpfs(f"/tmp/m{i}") for i in range(count)))
    try:
        assert int(run(spec).out) == count
    except DocklessError as error:
        assert not isinstance(error, LaunchFailed) and "mounts" in str(error) and error.hint, error


def test_a_race_on_the_mount_target(tmp_path):
    """A30: CVE-2021-30465. A program that shares a directory swaps a link and a directory in it as fast as it can, while others are started
    with a mount below it: every mount lands inside its own root, the host's directory stays empty."""
    shared, victim, source = tmp_path / "shared", tmp_path / "victim", tmp_path / "source"
    for place in (shared, victim, source):
        place.mkdir()
        place.chmod(0o777)
        _give(place)
    (source / "mark").write_text("mark")
    program = (
        "import ctypes, os\nl = ctypes.CDLL(None)\nos.mkdir('/s/target')\n"
        f"os.symlink('/../../../../../../..{victim}', '/s/link')\nprint('up', flush=True)\n"
        "for i in range(300000): l.renameat2(-100, b'/s/target', -100, b'/s/link', 2)\n"
    )
    attacker = Spec(argv=("python3", "-c", program), mounts=(Bind(str(shared), "/s"),))
    wrong = []
    with running(attacker) as (_, output):
        until(lambda: "up" in output(), "the race has begun")
        for _ in range(60):
            try:
                text = sh("cat /proc/self/mountinfo", mounts=(Bind(str(shared), "/s"), Bind(str(source), "/s/target/x"))).out
            except LaunchFailed:
                continue  # lost the race: refused
            wrong += [
                line for line in text.splitlines() if "source" in line.split()[3] and not line.split()[4].startswith(("/s/", str(victim)))
            ]
            assert not os.path.ismount(victim) and os.listdir(victim) == []
    assert wrong == []


def test_directories_made_for_targets_stay_inside(tmp_path):
    """A31: CVE-2024-45310: mkdir -p of a target through a link in a shared directory."""
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    for place in (shared, victim):
        place.mkdir()
        place.chmod(0o777)
        _give(place)
    (shared / "link").symlink_to(f"/../../../../..{victim}")
    for target in ("/s/link/a/b/c", "/s/link", "/s/./link/../link/x"):
        try:
            sh("true", mounts=(Bind(str(shared), "/s"), Tmpfs(target)))
        except LaunchFailed:
            pass
        assert os.listdir(victim) == []


def test_a_bind_source_that_changes_while_we_start(tmp_path):
    """A32: a source that is a link and turns now to one place, now to another, shows one of the two whole, never a third."""
    one, two, door = tmp_path / "one", tmp_path / "two", tmp_path / "door"
    for place in (one, two):
        place.mkdir()
        (place / "name").write_text(place.name)
    door.symlink_to(one)
    stop = threading.Event()

    def turn() -> None:
        fresh = tmp_path / "fresh"
        while not stop.is_set():
            for target in (one, two):
                fresh.symlink_to(target)
                os.replace(fresh, door)

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        for _ in range(20):
            assert sh("cat /m/name", mounts=(Bind(str(door), "/m"),)).out in ("one", "two")
    finally:
        stop.set()
        thread.join()


@requires("program:strace")
@requires("overlay")
def test_helpers_run_with_an_empty_environment(tmp_path):
    """A33, A34: everything exec'd on the host's side of a start: the launcher, and newuidmap by absolute path with no environment."""
    ref = load(tmp_path, env={"LD_PRELOAD": "/evil.so", "PATH": "/evil"})
    program = f"from support.boxes import sh\nprint(sh('/bin/true', image={ref!r}).exit.code)"
    log = tmp_path / "log"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "LD_LIBRARY_PATH": "/tmp/evil"}
    done = subprocess.run(
        ["strace", "-f", "-q", "-v", "-s", "200", "-e", "trace=execve,execveat", "-o", log, sys.executable, "-c", program],
        capture_output=True, text=True, env=env, timeout=120,
    )  # fmt: skip
    if done.returncode != 0 or "ptrace" in done.stderr:
        pytest.skip(f"strace cannot trace here: {done.stderr[-200:]}")
    assert done.stdout.strip() == "0"
    calls = [line.split(None, 1)[1] for line in log.read_text().splitlines() if "exec" in line and " = 0" in line]
    ours = [
        call for call in calls[1:] if not call.startswith(('execve("/bin/', "execve(0x"))
    ]  # the first is Python itself; /bin/…, or unreadable to a user, the program
    assert ours
    for one in ours:
        assert one.startswith("execveat(") or one.startswith(('execve("/usr/bin/new', 'execve("/bin/new')), one
        environment = one[one.rindex("[") : one.rindex("]") + 1] if one.startswith("execve(") else one.split("], ", 1)[1].split(", AT_")[0]
        assert "=" not in environment and "LD_" not in environment, one


def test_directories_under_umask_zero(tmp_path):
    """A50: what dockless makes is closed to others whatever the caller's umask is."""
    from support import requires as machine

    before = os.umask(0)
    try:
        machine.check("overlay")
        ref = load(tmp_path)
        ok("true", image=ref, mounts=(Volume("v", "/v"),))
        box = detached.start(Spec(argv=("true",), image=ref), id="d")
        box.wait(20)
        _all_closed(paths.state())
        _all_closed(paths.store(), layers=True)
        box.remove()
    finally:
        os.umask(before)


def _all_closed(top: Path, layers: bool = False) -> None:
    """No entry that others may write; and a directory closed to others stands above whatever has contents."""
    for directory, names, files in os.walk(top):
        for name in (*names, *files):
            found = os.lstat(os.path.join(directory, name))
            if stat.S_ISLNK(found.st_mode) or (layers and _closed_above(Path(directory), top)):
                continue
            if _closed_above(Path(directory), top):
                continue
            assert not found.st_mode & 0o022, f"{directory}/{name} may be written by others: {found.st_mode:o}"
    assert not top.stat().st_mode & 0o022


def _closed_above(place: Path, top: Path) -> bool:
    """Whether a directory between ``place`` and ``top`` lets no others pass."""
    while True:
        if not place.stat().st_mode & 0o001:
            return True
        if place == top:
            return False
        place = place.parent


@requires("root", "overlay", "two-accounts")
def test_other_users_cannot_reach_layers_or_uppers(tmp_path, passable):
    """A50: CVE-2021-41091: a set-user-id file of a layer or of an upper is out of reach for the host's users."""
    from support.make_image import file

    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("no busybox (package busybox-static)")
    home = paths.state().parent
    ref = load(tmp_path, [file("opt/suid", Path(busybox).read_bytes(), 0o4755)])
    with running(Spec(argv=("/bin/sh", "-c", "cp /opt/suid /mine; chmod 4755 /mine; echo up; sleep 1000"), image=ref)) as (_, output):
        until(lambda: "up" in output(), "the file is there")
        found = [path for path in home.rglob("*") if path.name in ("suid", "mine") and path.is_file()]
        assert found
        for path in found:
            said = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "test", "-e", path], check=False)
            assert said.returncode != 0, f"nobody reaches {path}"


def test_the_hosts_process_is_as_it_was(tmp_path):
    """Dumpable, its signals, its name, its children: a start changes nothing of the process that makes it."""
    import ctypes

    def picture() -> tuple[object, ...]:
        status = [line for line in Path("/proc/self/status").read_text().splitlines() if line.split(":")[0] in
                  ("Name", "Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "SigCgt", "CapEff", "CapBnd",
                   "CapAmb", "NoNewPrivs", "Seccomp")]  # fmt: skip
        return (
            status,
            ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
            sorted(os.listdir("/proc/self/task")),
            os.getcwd(),
            os.readlink("/proc/self/exe"),
        )

    ok("true")
    before = picture()
    for _ in range(5):
        ok("true")
        with pytest.raises(DocklessError):
            sh("true", mounts=(Bind("/no/such", "/m"),))
    assert picture() == before


def test_core_dumps_and_crashes_stay_inside(tmp_path):
    """A crash inside writes no core into the caller's directory."""
    before = set(os.listdir("."))
    sh("ulimit -c unlimited; kill -SEGV $$")
    assert set(os.listdir(".")) == before
