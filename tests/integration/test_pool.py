"""Sandboxes that wait for their programs: what they run is what any sandbox runs, each runs once, and nothing of a pool is left."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.boxes import load, until
from support.requires import requires

import dockless
from dockless import DEVNULL, PIPE, Pool, aio
from dockless.base import paths
from dockless.cgroups import find_delegation
from dockless.errors import BadInput, CommandNotFound, ImageInUse, LaunchFailed, SandboxError, SandboxGone, Unsupported
from dockless.images import Store
from dockless.sandbox.run.places import GROUP, root
from dockless.sandbox.run.process import Process

pytestmark = requires("userns", "overlay")


def places() -> set[str]:
    """What sandboxes of this state directory have on disk, and what any has of cgroups."""
    running, found = root("running"), find_delegation(ask_systemd=False)
    groups = {path.name for path in found.home.glob(f"{GROUP}*")} if found.path is not None and found.home.is_dir() else set()
    return ({path.name for path in running.iterdir()} if running.is_dir() else set()) | groups


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    before = places()
    yield
    until(lambda: places() <= before, "that nothing of a pool is left")


def texts(pool: Pool, *argv: str, **options) -> str:
    done = pool.run(argv, capture_output=True, text=True, **options)
    assert done.returncode == 0, done
    return done.stdout


STATE = """
pwd; id; umask; ulimit -a; env | sort; ls -l /proc/self/fd | sed 's/.* //; s/pipe:.*/pipe/'; readlink /proc/self/cwd
grep -v -e '^[VR][ms]' -e pid -e Pid -e Tgid -e switches -e Cpus -e Mems -e HugetlbPages /proc/self/status
cat /proc/self/oom_score_adj /proc/self/mountinfo | sed 's/^[0-9]* [0-9]* [0-9:]* //; s/[su].*dir=[^ ]*//g; s/s-[0-9a-f]*//g'
tr '\\0' '\\n' < /proc/1/cmdline | sed 's/s-.*//'; cat /proc/1/status | grep -e Cap -e Sec -e Uid -e NoNew
"""


@pytest.mark.parametrize("options", [
    {}, {"profile": "untrusted"}, {"root": "tmpfs", "user": "1000:100", "cap_drop": "ALL"}, {"ulimits": {"nofile": 99}, "umask": 0o77},
], ids=str)  # fmt: skip
def test_a_program_finds_what_it_finds_in_any_sandbox(tmp_path: Path, options):
    ref = load(tmp_path, [])
    with Pool(ref, size=1, env={"A": "1"}, **options) as pool:
        warm = texts(pool, "sh", "-c", STATE, env={"B": "2"})
    cold = dockless.run(ref, ["sh", "-c", STATE], env={"A": "1", "B": "2"}, capture_output=True, text=True, **options)
    assert warm == cold.stdout and "B=2" in warm and len(warm.splitlines()) > 40


def test_the_command_of_the_image_and_the_directory(tmp_path: Path):
    ref = load(tmp_path, [], entrypoint=["/bin/echo", "of the image"], cmd=["alone"], workdir="/usr")
    with Pool(ref, size=1) as pool:
        assert pool.run(capture_output=True, text=True).stdout == "of the image alone\n"
        assert pool.run(["given"], capture_output=True, text=True).stdout == "of the image given\n"
    with Pool(ref, size=1, entrypoint=[]) as pool:
        assert texts(pool, "pwd") == "/usr\n" and texts(pool, "pwd", workdir="/bin/..") == "/\n"
        with pool.take(["sleep", "100"], workdir="/etc", env={"C": "3"}) as box:
            assert box.exec("sh", "-c", "pwd; echo $C", text=True).stdout == "/etc\n3\n"
            found = dockless.Sandbox.open(box.id)
            assert found.spec.workdir == "/etc" and found.spec.argv == ("sleep", "100")


def test_what_cannot_run_is_said_and_the_pool_goes_on(tmp_path: Path):
    ref = load(tmp_path, [])
    with Pool(ref, size=2) as pool:
        with pytest.raises(CommandNotFound, match="nothing: command not found"):
            pool.run(["nothing"])
        with pytest.raises(LaunchFailed, match="the working directory /missing does not exist"):
            pool.run(["true"], workdir="/missing")
        with pytest.raises(dockless.CommandNotExecutable):
            pool.run(["/etc"])
        with pytest.raises(dockless.CheckFailed):
            pool.run(["false"], check=True)
        with pytest.raises(BadInput, match="not a list"):
            pool.run("true")
        with pytest.raises(BadInput, match="not absolute"):
            pool.run(["true"], workdir="relative")
        folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        with pytest.raises(LaunchFailed, match="a standard stream is a directory"):
            pool.run(["true"], stdin=folder)
        os.close(folder)
        assert pool.run(["false"]).returncode == 1


def test_streams(tmp_path: Path):
    ref = load(tmp_path, [])
    with Pool(ref, size=2) as pool:
        assert pool.run(["cat"], input=b"\0bytes", capture_output=True).stdout == b"\0bytes"
        with pool.take(["sh", "-c", "read x; echo got $x >&2; exit 7"], stdin=PIPE, stdout=DEVNULL, stderr=PIPE, text=True) as box:
            assert box.communicate("it\n") == (None, "got it\n") and box.returncode == 7
        heard: list[str] = []
        assert pool.run(["sh", "-c", "echo 1; echo 2"], on_stdout=heard.append, text=True).returncode == 0 and heard == ["1\n", "2\n"]
        user = texts(pool, "sh", "-c", "echo again > /dev/stdout")
        assert user == "again\n"
    with Pool(ref, size=1, tty=True) as pool, pool.take(["sh", "-c", "tty; stty size; exit 3"]) as box:
        assert b"/dev/" in box.communicate()[0] and box.returncode == 3


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What is left of a sandbox is removed when the event says so."""
    may = threading.Event()
    close = Process.close
    monkeypatch.setattr(Process, "close", lambda self: (self.ended and self._plan_fd >= 0 and may.wait(20), close(self))[1])
    yield may
    may.set()


def test_who_leaves_one_waits_for_nothing_to_be_removed(tmp_path: Path, slow):
    """Nor for its keeper to end. It is in no list, and gone when the pool is."""
    ref = load(tmp_path, [])
    before = places()
    with Pool(ref, size=1) as pool:
        with pool.take(["echo", "said"], stdout=PIPE) as box:
            assert box.communicate() == (b"said\n", None)
        kept = box.id
        assert (box.returncode, box.wait().code) == (0, 0)
        assert places() & {kept, GROUP + kept} or find_delegation(ask_systemd=False).path is None
        assert kept not in [one.id for one in dockless.list()]
        with pytest.raises(SandboxGone):
            dockless.Sandbox.open(kept)
        box.kill()
        slow.set()
    assert places() == before


def test_who_leaves_more_than_the_pool_has_removes_them(tmp_path: Path, slow):
    ref = load(tmp_path, [])
    threading.Timer(1, slow.set).start()
    with Pool(ref, size=1) as pool:
        for _ in range(3):
            assert pool.run(["true"]).returncode == 0
        assert slow.is_set() and len(pool._waiting._left) <= 1


def test_it_is_listed_when_it_runs_and_not_before(tmp_path: Path, monkeypatch):
    ref = load(tmp_path, [])
    await_given = Process.await_given
    seen: list[list[str]] = []
    written: list[bool] = []

    def looks(self: Process, plan) -> None:
        seen.append([one.id for one in dockless.list()])
        written.extend((path / "spec.json").exists() for path in root("running").iterdir())
        await_given(self, plan)

    monkeypatch.setattr(Process, "await_given", looks)
    with Pool(ref, size=1) as pool, pool.take(["sleep", "100"]) as box:
        assert seen == [[]] and any(written)
        assert [one.id for one in dockless.list()] == [box.id]
        assert dockless.Sandbox.open(box.id).pid == box.pid > 0


@requires("root")
def test_pipes_are_the_programs_users(tmp_path: Path):
    """User and group, by the ids that they are outside."""
    ref = load(tmp_path, [])
    with Pool(ref, size=1, user="1000:100") as pool, pool.take(["cat"], stdin=PIPE, stdout=PIPE) as box:
        about = os.fstat(box.stdout.fileno())
        assert about.st_uid > 1000 and about.st_uid - about.st_gid == 1000 - 100


def test_each_runs_once(tmp_path: Path):
    ref = load(tmp_path, [])
    with Pool(ref, size=2) as pool:
        for _ in range(5):
            assert (
                texts(
                    pool,
                    "sh",
                    "-c",
                    "cat /tmp/mark /root/mark /dev/shm/mark 2> /dev/null; for d in tmp root dev/shm; do echo $$ > /$d/mark; done",
                )
                == ""
            )
        box = pool.take(["true"])
        with box:
            box.wait()
        with pytest.raises(BadInput, match="runs once"):
            box.__enter__()
    with pytest.raises(SandboxGone, match="closed"):
        pool.run(["true"])
    with pytest.raises(SandboxGone, match="not open"):
        Pool(ref).run(["true"])


def test_many_threads_take_at_once(tmp_path: Path):
    ref = load(tmp_path, [])
    seen: list[str] = []
    with Pool(ref, size=4, root="tmpfs") as pool:

        def take(number: int) -> None:
            for turn in range(6):
                seen.append(texts(pool, "sh", "-c", "cat /mark 2> /dev/null; echo $N > /mark; cat /mark", env={"N": f"{number}.{turn}"}))

        threads = [threading.Thread(target=take, args=(number,)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seen) == sorted(f"{number}.{turn}\n" for number in range(24) for turn in range(6))
        until(lambda: pool.waiting == 4, "that the pool is full again, and no fuller")


def test_deadlines_begin_when_it_is_taken(tmp_path: Path):
    ref = load(tmp_path, [])
    with Pool(ref, size=1, timeout=2, ttl=3, idle_timeout=3) as pool:
        made = time.monotonic()
        until(lambda: time.monotonic() > made + 2.5, "that its time would be over")
        began = time.time()
        done = pool.run(["sleep", "0.3"])
        assert done.returncode == 0 and done.started >= began
        assert pool.run(["sleep", "100"]).limit == "timeout"


def test_one_that_waits_for_too_long_ends_by_itself(tmp_path: Path):
    ref = load(tmp_path, [])
    before = places()
    with Pool(ref, size=3, expire=0.2) as pool:
        until(lambda: pool.waiting == 0, "that nobody waits any more")
        until(lambda: places() <= before, "that nothing of them is left")
        assert texts(pool, "echo", "there") == "there\n", "it makes new ones"


def test_it_is_not_listed_until_it_is_taken(tmp_path: Path):
    ref = load(tmp_path, [])
    with Pool(ref, size=2, labels={"pool": "a"}) as pool:
        assert dockless.list(labels={"pool": "a"}) == []
        with pool.take(["sleep", "100"]) as box:
            found = dockless.list(labels={"pool": "a"}, state="running")
            assert [(one.id, one.spec.argv) for one in found] == [(box.id, ("sleep", "100"))]


def test_those_that_were_taken_outlive_the_pool(tmp_path: Path):
    ref = load(tmp_path, [])
    with Pool(ref, size=1) as pool:
        box = pool.take(["cat"], stdin=PIPE, stdout=PIPE).__enter__()
    try:
        assert box.communicate(b"still") == (b"still", None)
    finally:
        box.__exit__(None, None, None)


def test_the_image_stays_what_it_was_and_in_the_store(tmp_path: Path):
    from support.make_image import file

    ref = load(tmp_path, [file("which", "old\n")])
    with Pool(ref, size=1) as pool:
        load(tmp_path / "new", [file("which", "new\n")])
        Store().prune()
        assert [texts(pool, "cat", "/which") for _ in range(3)] == ["old\n"] * 3
    with Pool(ref, size=1) as pool:
        assert texts(pool, "cat", "/which") == "new\n"
        with pytest.raises(ImageInUse):
            Store().remove(ref)


def keepers(pool: Pool) -> list[int]:
    assert pool._waiting is not None
    return [box.process.keeper_pid for box in pool._waiting._waiting]


def test_one_whose_keeper_was_killed_is_passed_over(tmp_path: Path):
    ref = load(tmp_path, [])
    with Pool(ref, size=2) as pool:
        for keeper in keepers(pool):
            os.kill(keeper, signal.SIGKILL)
        assert texts(pool, "echo", "there") == "there\n"


def test_one_whose_directory_is_gone_is_passed_over(tmp_path: Path):
    ref = load(tmp_path, [])
    with Pool(ref, size=1) as pool:
        assert pool._waiting is not None
        from dockless.sandbox.run.removal import remove_tree

        remove_tree(pool._waiting._waiting[0].directory)
        assert texts(pool, "sh", "-c", "echo there > /mark; cat /mark") == "there\n"


def test_nothing_is_left_when_its_owner_is_killed(tmp_path: Path):
    ref = load(tmp_path, [])
    code = f"""
import dockless, time
with dockless.Pool({ref!r}, size=3, pids=50, best_effort=True) as pool:
    with pool.take(["sleep", "1000"]) as box:
        while pool.waiting < 3:
            time.sleep(0.01)
        print(*(one.process.keeper_pid for one in pool._waiting._waiting), box.process.keeper_pid, flush=True)
        time.sleep(1000)
"""
    before = places()
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(pids) == 4 and len(places() - before) >= 4
    owner.kill()
    owner.communicate()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "that all keepers have ended")
    until(lambda: places() <= before, "that nothing of them is left")


def test_a_fork_of_its_owner_has_no_pool(tmp_path: Path):
    ref = load(tmp_path, [])
    with Pool(ref, size=1) as pool:
        child = os.fork()
        if not child:
            try:
                pool.run(["true"])
            except SandboxError:
                pool.close()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert texts(pool, "echo", "there") == "there\n"


def test_what_a_pool_cannot_be():
    for options in ({"gpus": 1}, {"gpu_memory": "1G"}, {"devices": ["nvidia.com/gpu:2"]}, {"devices": ["example.com/thing=0"]}):
        with pytest.raises(Unsupported, match="hold no GPUs"), Pool("host", **options):
            pass
    for size in (0, 1001):
        with pytest.raises(BadInput):
            Pool("host", size=size)
    with pytest.raises(TypeError):
        Pool("host", color="red")
    with Pool("host", size=1) as pool:
        for method in (pool.run, pool.take):
            with pytest.raises(BadInput, match=r"^timeout is set on the pool, not on a take$"):
                method(["true"], timeout=1)
            with pytest.raises(TypeError, match="color"):
                method(["true"], color="red")


def test_the_hosts_own_system_and_what_a_start_refuses():
    with Pool("host", size=1) as pool:
        assert texts(pool, "echo", "there") == "there\n"
    with pytest.raises(LaunchFailed, match="mount source /no/such"), Pool("host", size=2, mounts=["/no/such:/x"]):
        pass


def test_a_full_set_of_descriptors_is_an_error_and_leaves_none(tmp_path: Path):
    import resource

    ref = load(tmp_path, [])
    before, limits = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, limits[1]))
    try:
        with pytest.raises(dockless.DocklessError) as said, Pool(ref, size=100):
            pass
    except OSError as error:
        assert error.errno == errno.EMFILE
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "open files" in str(said.value.hint) + str(said.value)
    assert len(os.listdir("/proc/self/fd")) <= before + 4


def test_awaited(tmp_path: Path):
    ref = load(tmp_path, [])

    async def main() -> None:
        async with aio.Pool(ref, size=2) as pool:
            done = await asyncio.gather(*(pool.run(["echo", str(n)], capture_output=True, text=True) for n in range(6)))
            assert [one.stdout for one in done] == [f"{n}\n" for n in range(6)]
            async with pool.take(["cat"], stdin=PIPE, stdout=PIPE) as box:
                await box.stdin.write(b"line\n")
                assert await anext(aiter(box.stdout)) == b"line\n"
            ends = asyncio.create_task(pool.run(["sleep", "1000"]))
            await asyncio.sleep(0)
            ends.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ends

    asyncio.run(main())


def test_a_state_directory_that_is_not_there_yet(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("DOCKLESS_HOME", str(tmp_path / "state"))
    assert not paths.state().exists()
    with Pool("host", size=1) as pool:
        assert pool.run(["true"]).returncode == 0
