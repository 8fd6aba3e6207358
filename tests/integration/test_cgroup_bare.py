"""What every cgroup2 mount gives, also a bare one: make, kill, freeze, events, remove, device filter. Real groups, real processes."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.boxes import DEADLINE
from support.requires import requires

from dockless.cgroups import (
    STANDARD_DEVICES,
    Cgroup,
    DeviceRule,
    Frozen,
    Limits,
    Populated,
    Usage,
    find_delegation,
    release,
)
from dockless.errors import BadInput, CgroupError, LimitUnavailable
from dockless.sandbox.run import box

pytestmark = requires("cgroup2")

NAME = f"test-{os.getpid()}"


@pytest.fixture
def group() -> Iterator[Cgroup]:
    with Cgroup.create(NAME) as made:
        yield made


@pytest.fixture(autouse=True)
def _tidy() -> Iterator[None]:
    yield
    release(find_delegation())


def start(group: Cgroup, *argv: str, **more) -> subprocess.Popen[bytes]:
    """A process in the group before its program starts: sh moves itself there and execs."""
    script = 'echo 0 >"$0/cgroup.procs" && exec "$@"'
    return subprocess.Popen(["sh", "-c", script, str(group.path), *argv], **more)


def sleeper(group: Cgroup) -> subprocess.Popen[bytes]:
    """A process that certainly lives in the group when this returns."""
    process = start(group, "sh", "-c", "echo in; exec sleep 1000", stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"in\n"
    process.stdout.close()
    return process


def python(group: Cgroup, code: str) -> subprocess.CompletedProcess[str]:
    process = start(group, sys.executable, "-c", code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(code, process.returncode, out, err)


def ended(process: subprocess.Popen[bytes]) -> int:
    return process.wait(timeout=20)


def test_make_and_remove():
    group = Cgroup.create(NAME)
    assert group.path.is_dir() and group.path.parent.name == "dockless"
    assert os.path.samestat(os.fstat(group.fd), os.stat(group.path))
    assert not os.get_inheritable(group.fd)
    assert group.warnings == () and group.readback == ()
    assert group.pids() == ()
    path = group.path
    group.remove()
    assert not path.exists() and group.fd == -1
    group.remove()


def test_the_name_is_taken(group):
    with pytest.raises(CgroupError, match="File exists") as caught:
        Cgroup.create(NAME)
    assert "another group" in caught.value.hint
    assert group.path.exists()


def test_bad_names_and_bad_limits_make_nothing():
    for name in ("../x", "a/b", "", "cgroup.procs"):
        with pytest.raises(BadInput):
            Cgroup.create(name)
    with pytest.raises(BadInput):
        Cgroup.create(NAME, Limits(cpuset_cpus="4000"))
    assert not (find_delegation().home / NAME).exists()


def test_usage_counts_processor_time(group):
    assert python(group, "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass").returncode == 0
    usage = group.usage()
    assert usage.cpu_seconds is not None and usage.cpu_seconds >= 0.2
    assert Usage.from_files(group.usage_files()).cpu_seconds == usage.cpu_seconds


@requires("arch:x86_64")
def test_a_process_starts_inside(group):
    """clone3 with CLONE_INTO_CGROUP and the group's own fd, in a small C-less way: the child only execs."""
    clone_args = struct.pack("=11Q", 0x200000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group.fd)
    area = ctypes.create_string_buffer(clone_args, len(clone_args))
    libc = ctypes.CDLL(None, use_errno=True)
    reader, writer = os.pipe()
    pid = libc.syscall(435, ctypes.byref(area), ctypes.c_size_t(len(clone_args)))
    if pid == 0:
        try:
            os.dup2(writer, 1)
            os.execv("/bin/cat", ["cat", "/proc/self/cgroup"])
        finally:
            os._exit(127)
    os.close(writer)
    assert pid > 0, os.strerror(ctypes.get_errno())
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    assert next(line for line in said.splitlines() if line.startswith("0::")).endswith(f"/dockless/{NAME}")


def test_kill_reaches_everything(group):
    # Ignores SIGTERM, leaves its session, forks twice and lets the parents die.
    code = "trap '' TERM; setsid sh -c 'sleep 1000 & sleep 1000 & echo in' & wait; sleep 1000"
    process = start(group, "sh", "-c", code, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"in\n"
    process.stdout.close()
    assert process.pid in group.pids()
    group.kill()
    assert group.wait_empty(DEADLINE)
    assert ended(process) == -signal.SIGKILL
    assert group.pids() == ()


def test_kill_reaches_a_process_whose_first_thread_has_ended(group):
    """The kernel's cgroup.kill does not."""
    code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(1000,)).start(); ctypes.CDLL(None).pthread_exit(None)"
    process = start(group, sys.executable, "-c", code)
    deadline = time.monotonic() + DEADLINE
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    group.kill()
    assert group.wait_empty(DEADLINE)
    assert ended(process) == -signal.SIGKILL


def test_a_sandbox_that_ends_while_it_is_asked_is_not_paused(group):
    group.path.rmdir()
    assert box.Box.paused(SimpleNamespace(cgroup=lambda known: group)) is False


def test_kill_of_one_that_somebody_removed(group):
    group.path.rmdir()
    group.kill()
    group.remove()


def test_leaving_the_block_kills_and_removes():
    with Cgroup.create(NAME) as group:
        process = sleeper(group)
    assert ended(process) == -signal.SIGKILL
    assert not group.path.exists() and group.fd == -1


def test_leaving_by_an_error_keeps_the_error():
    with pytest.raises(ZeroDivisionError), Cgroup.create(NAME) as group:
        process = sleeper(group)
        _ = 1 / 0
    assert ended(process) == -signal.SIGKILL
    assert not group.path.exists()


def test_remove_kills_nobody(group):
    process = sleeper(group)
    with pytest.raises(CgroupError, match=str(process.pid)) as caught:
        group.remove(timeout=0.05)
    assert "kill()" in caught.value.hint and process.poll() is None
    group.kill()
    group.remove()
    assert ended(process) == -signal.SIGKILL


def test_remove_waits_for_the_dying(group):
    processes = [sleeper(group) for _ in range(5)]
    group.kill()
    group.remove()
    assert not group.path.exists()
    assert {ended(process) for process in processes} == {-signal.SIGKILL}


def test_remove_takes_the_groups_below(group):
    middle = group.child("inner")
    inner = middle.child("innermost")
    process = sleeper(inner)
    assert group.pids() == () and middle.pids() == () and process.pid in inner.pids()
    group.kill()
    group.remove()
    assert not group.path.exists()
    assert ended(process) == -signal.SIGKILL
    inner.close()
    middle.close()


def test_freeze_and_thaw(group):
    code = "while :; do :; done"
    process = start(group, "sh", "-c", f"echo in; {code}", stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"in\n"
    process.stdout.close()
    group.freeze()
    with group.events() as watch:
        assert watch.state()["frozen"] == 1
        assert watch.wait(0.1) == ()  # frozen is said a moment before the last of them sleeps
        first = group.usage().cpu_seconds
        assert watch.wait(0.1) == ()
        assert group.usage().cpu_seconds == first
        group.thaw()
        assert watch.wait(5) == (Frozen(False),)
    group.freeze()
    group.kill()
    assert ended(process) == -signal.SIGKILL  # frozen processes can be killed


def test_an_empty_group_freezes(group):
    group.freeze(timeout=2)
    group.thaw(timeout=2)


def test_events_in_order(group):
    with group.events() as watch:
        assert watch.read() == ()
        process = sleeper(group)
        assert watch.wait(5) == (Populated(True),)
        group.kill()
        assert watch.wait(5) == (Populated(False),)
        ended(process)
        assert watch.wait(0) == ()


def test_events_iterate_until_the_group_is_empty(group):
    with group.events() as watch:
        process = start(group, "cat", stdin=subprocess.PIPE)
        assert watch.wait(5) == (Populated(True),)
        process.stdin.close()
        assert list(watch) == [Populated(False)]
        ended(process)


def test_events_of_a_process_that_has_ended_before_anybody_looks(group):
    with group.events() as watch:
        ended(start(group, "true"))
        assert group.wait_empty(DEADLINE)
        assert list(watch) == []


def test_events_wake_a_poll(group):
    with group.events() as watch:
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        assert poll.poll(0) == []
        process = sleeper(group)
        assert poll.poll(5000)
        watch.read()
        assert poll.poll(0) == []
        group.kill()
        ended(process)


def test_events_in_asyncio(group):
    async def body():
        loop, got = asyncio.get_running_loop(), asyncio.Queue()
        with group.events() as watch:
            loop.add_reader(watch.fileno(), lambda: [got.put_nowait(event) for event in watch.read()])
            process = sleeper(group)
            assert await asyncio.wait_for(got.get(), 5) == Populated(True)
            group.kill()
            assert await asyncio.wait_for(got.get(), 5) == Populated(False)
            loop.remove_reader(watch.fileno())
            ended(process)

    asyncio.run(body())


def test_a_removed_group_ends_its_watch():
    group = Cgroup.create(NAME)
    watch = group.events()
    process = sleeper(group)
    assert watch.wait(5) == (Populated(True),)
    group.kill()
    ended(process)
    group.remove()
    assert watch.wait(5) in ((Populated(False),), ())
    assert watch.wait(1) == ()
    watch.close()


def test_wait_empty_times_out(group):
    process = sleeper(group)
    before = time.monotonic()
    assert not group.wait_empty(0.05)
    assert time.monotonic() - before >= 0.05
    group.kill()
    ended(process)


def test_open_takes_only_what_dockless_made(group):
    with Cgroup.open(group.path) as again:
        assert again.pids() == ()
    place = find_delegation().path
    for path in (place, f"{place}/system.slice", "/tmp", "/dockless", f"{place}/dockless/../x", f"{place}/dockless"):
        with pytest.raises(CgroupError) as caught:
            Cgroup.open(path)
        assert caught.value.hint
    with pytest.raises(CgroupError):
        Cgroup.open(f"{place}/dockless/never-made")


def test_open_after_close():
    group = Cgroup.create(NAME)
    process = sleeper(group)
    group.close()
    assert process.poll() is None
    with Cgroup.open(group.path) as again:
        assert again.pids() == (process.pid,)
    assert ended(process) == -signal.SIGKILL


def test_a_group_that_is_gone_says_so():
    group = Cgroup.create(NAME)
    os.rmdir(group.path)
    group.kill()  # nothing is left to kill
    for call in (group.pids, lambda: group.add(0), group.freeze):
        with pytest.raises(CgroupError) as caught:
            call()
        assert caught.value.hint == "the group is gone"
    assert group.wait_empty(0)
    group.remove()


def test_adding_nobody(group):
    with pytest.raises(CgroupError, match="No such process"):
        group.add(4_194_304)


def test_someone_removes_the_home_between_two_groups():
    place = find_delegation()
    Cgroup.create(NAME).remove()
    if any(entry.is_dir() for entry in os.scandir(place.home)):
        pytest.skip("other groups live here just now")
    os.rmdir(place.home)
    Cgroup.create(NAME).remove()


def test_no_place_at_all():
    nowhere = replace(find_delegation(), path=None, kind="none", why="a test", hint="do this")
    with pytest.raises(CgroupError, match="a test") as caught:
        Cgroup.create(NAME, delegation=nowhere)
    assert caught.value.hint == "do this"
    with pytest.raises(LimitUnavailable) as refused:
        Cgroup.create(NAME, Limits(pids_max=5), delegation=nowhere)
    assert refused.value.controller == "pids" and refused.value.hint == "do this"


@requires("root", "hybrid")
def test_the_hybrid_host_is_called_by_its_name():
    place = find_delegation(fresh=True)
    assert place.kind == "bare" and "hybrid" in place.why and place.hint
    assert "memory" in place.elsewhere and "memory" not in place.controllers


@requires("hybrid")
def test_limits_on_a_hybrid_host():
    limits = Limits.parse(memory="1G", cpus=1, pids=100)
    with pytest.raises(LimitUnavailable) as caught:
        Cgroup.create(NAME, limits)
    assert caught.value.controller == "cpu" and caught.value.hint
    assert not (find_delegation().home / NAME).exists()
    with Cgroup.create(NAME, limits, best_effort=True) as group:
        assert len(group.warnings) == 3 and "cgroup v1" in group.warnings[0]
        assert group.usage().memory_current is None


def test_many_threads_make_kill_and_remove():
    def work(thread: int) -> None:
        try:
            for index in range(6):
                with Cgroup.create(f"{NAME}-{thread}-{index}") as made:
                    process = start(made, "sh", "-c", "sleep 1000 & sleep 1000 & wait", stdin=subprocess.DEVNULL)
                    if index % 2:  # half of them are killed while they start
                        with made.events() as watch:
                            while not watch.state()["populated"]:
                                watch.wait(5)
                            made.freeze()
                    made.kill()
                process.kill()
                process.wait()
        except BaseException as error:
            errors.append(error)
            raise

    errors: list[BaseException] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    home = find_delegation().home
    assert not home.exists() or not [name for name in os.listdir(home) if name.startswith(NAME)]


def test_a_cleanup_error_does_not_hide_the_first(group):
    with pytest.raises(ZeroDivisionError) as caught, Cgroup.create(f"{NAME}-x") as made:
        process = sleeper(made)
        path = made.path
        os.close(made.fd)
        made.fd = os.open("/", os.O_PATH)  # cgroup.kill is not there
        _ = 1 / 0
    assert "cleaned up" in caught.value.__notes__[0]
    with Cgroup.open(path):
        pass
    ended(process)


def opens(*paths: str, flags: str = "os.O_RDWR") -> str:
    return f"""
import os
for path in {paths!r}:
    try:
        os.close(os.open(path, {flags} | os.O_NOCTTY | os.O_NONBLOCK))
        print("open", path)
    except OSError as error:
        print(error.errno, path)
"""


@requires("root", "device-filter")
def test_device_filter(group):
    group.allow_devices(STANDARD_DEVICES)
    done = python(group, opens("/dev/null", "/dev/zero", "/dev/urandom", "/dev/ptmx", "/dev/kmsg", "/dev/full", "/etc/hostname"))
    assert done.stdout.splitlines() == [
        "open /dev/null", "open /dev/zero", "open /dev/urandom", "open /dev/ptmx", "1 /dev/kmsg", "open /dev/full", "open /etc/hostname",
    ], done.stderr  # fmt: skip
    assert os.access("/dev/kmsg", os.W_OK)  # the host itself is as it was
    os.close(os.open("/dev/kmsg", os.O_RDWR | os.O_NONBLOCK))


@requires("root", "device-filter")
def test_device_filter_stops_mknod(group, tmp_path):
    group.allow_devices(STANDARD_DEVICES)
    code = f"import os\nos.mknod({str(tmp_path / 'null')!r}, 0o20666, os.makedev(1, 3))"
    assert "PermissionError" in python(group, code).stderr
    assert not (tmp_path / "null").exists()


@requires("root", "device-filter")
def test_device_filter_keeps_read_and_write_apart(group):
    group.allow_devices([*STANDARD_DEVICES[2:], DeviceRule.parse("c 1:3 r"), DeviceRule.parse("c 1:5 w")])
    assert python(group, opens("/dev/null", "/dev/zero", flags="os.O_RDONLY")).stdout.splitlines() == ["open /dev/null", "1 /dev/zero"]
    assert python(group, opens("/dev/null", "/dev/zero", flags="os.O_WRONLY")).stdout.splitlines() == ["1 /dev/null", "open /dev/zero"]


@requires("root", "device-filter")
def test_a_second_filter_only_narrows(group):
    group.allow_devices(STANDARD_DEVICES)
    group.allow_devices([DeviceRule("a", None, None, "rwm")])
    assert "1 /dev/kmsg" in python(group, opens("/dev/kmsg")).stdout
    group.allow_devices([rule for rule in STANDARD_DEVICES if rule.minor != 5])
    assert python(group, opens("/dev/zero", "/dev/null")).stdout.splitlines() == ["1 /dev/zero", "open /dev/null"]


@requires("root", "device-filter")
def test_filters_hold_for_the_groups_below(group):
    group.allow_devices(STANDARD_DEVICES)
    inner = group.child("inner")
    inner.allow_devices([DeviceRule("a", None, None, "rwm")])
    assert python(inner, opens("/dev/kmsg", "/dev/null")).stdout.splitlines() == ["1 /dev/kmsg", "open /dev/null"]
    inner.remove()


@requires("root", "device-filter")
def test_the_longest_filter_passes_the_verifier(group):
    group.allow_devices([*STANDARD_DEVICES, *(DeviceRule("b", 4000, minor, "r") for minor in range(492))])
    assert python(group, opens("/dev/null", "/dev/kmsg")).stdout.splitlines() == ["open /dev/null", "1 /dev/kmsg"]


@pytest.mark.parametrize("frozen", [True, False])
def test_what_does_not_freeze_in_time_is_thawed_again(group, monkeypatch, frozen):
    """A process in an uninterruptible wait cannot be had here; what the wait would then say can."""
    from dockless.cgroups import group as module

    monkeypatch.setattr(module, "wait_for", lambda *_: frozen)
    process = sleeper(group)
    if frozen:
        group.freeze(0.1)
    else:
        with pytest.raises(CgroupError, match=r"did not freeze in 0\.1 s"):
            group.freeze(0.1)
    assert (group.path / "cgroup.freeze").read_text() == ("1\n" if frozen else "0\n")
    group.kill()
    ended(process)
