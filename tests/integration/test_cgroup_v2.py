"""Limits with effect: each is set on a real group, a real process runs into it, and the effect is measured.

Written for Linux 6.1 and newer with cgroup v2 controllers, as root or with a delegated subtree. Bounds are wide on the side where a slow
machine (an emulated one) would fail, and tight on the side where a limit without effect would pass. The figures measured are printed:
``pytest -rP`` shows them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.boxes import DEADLINE, until
from support.requires import cgroup2_mount, requires

from dockless.cgroups import Cgroup, Limits, OomEvent, Populated, Rounding, find_delegation, release, unavailable
from dockless.errors import CgroupError, LimitUnavailable

MIB = 1 << 20


@pytest.fixture
def make() -> Iterator[Callable[..., Cgroup]]:
    made: list[Cgroup] = []

    def one(**limits: object) -> Cgroup:
        made.append(Cgroup.create(f"v2-{os.getpid()}-{len(made)}", Limits.parse(**limits)))
        return made[-1]

    yield one
    for group in made:
        with group:
            pass
    release(find_delegation())


def start(group: Cgroup, *argv: str, **more) -> subprocess.Popen[str]:
    """A process in the group before its program starts."""
    script = 'echo 0 >"$0/cgroup.procs" && exec "$@"'
    return subprocess.Popen(["sh", "-c", script, str(group.path), *argv], text=True, **more)


def sleeper(group: Cgroup) -> subprocess.Popen[str]:
    """A process that certainly lives in the group when this returns."""
    process = start(group, "sh", "-c", "echo in; exec sleep 1000", stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == "in\n"
    process.stdout.close()
    return process


def python(group: Cgroup, code: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    process = start(group, sys.executable, "-S", "-c", code, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        group.kill()
        out, err = process.communicate()
        pytest.fail(f"no end in {timeout} s: {out} {err}")
    return subprocess.CompletedProcess(code, process.returncode, out, err)


def spin(seconds: float) -> str:
    """Work for ``seconds`` of wall time, with two processes, and say how long it took."""
    return f"import os, time\nos.fork()\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"


HOG = f"""
import mmap
kept = []
for _ in range(400):
    area = mmap.mmap(-1, {MIB})
    for at in range(0, {MIB}, 4096):
        area[at] = 1
    kept.append(area)
print("never limited")
"""


# ---- memory ----------------------------------------------------------------------------------------------------------------------------


@requires("cgroup2:memory")
def test_out_of_memory_is_killed_and_seen(make):
    group = make(memory="64M", swap=0)
    with group.events() as watch:
        seen: list[object] = []
        reader = threading.Thread(target=lambda: seen.extend(watch))
        reader.start()
        done = python(group, HOG)
        reader.join(30)
        assert not reader.is_alive()
    assert done.returncode == -signal.SIGKILL and "never" not in done.stdout
    assert sum(event.kills for event in seen if isinstance(event, OomEvent)) == 1
    assert seen[-1] == Populated(False) and Populated(True) in seen
    usage = group.usage()
    print(f"memory.max 64 MiB: {usage.oom_kills} killed, peak {usage.memory_peak} bytes, limit reached {usage.memory_limit_hits} times")
    assert usage.oom_kills == 1
    assert usage.memory_limit_hits is not None and usage.memory_limit_hits > 0
    assert usage.memory_peak is not None and 48 * MIB < usage.memory_peak <= 64 * MIB
    assert usage.memory_current is not None and usage.memory_current < 64 * MIB


@requires("cgroup2:memory")
def test_out_of_memory_takes_the_whole_group(make):
    group = make(memory="64M", swap=0, oom_group=True)
    bystander = sleeper(group)
    assert python(group, HOG).returncode == -signal.SIGKILL
    assert bystander.wait(timeout=20) == -signal.SIGKILL
    assert group.usage().oom_kills in (2, 3)  # Linux 6.1 counts the one it chose first twice


@requires("cgroup2:memory")
def test_below_the_limit_nobody_is_killed(make):
    group = make(memory="2G", swap=0)
    done = python(group, HOG.replace("range(400)", "range(40)"))
    assert done.stdout == "never limited\n"
    assert group.usage().oom_kills == 0
    assert group.usage().memory_peak > 40 * MIB


@requires("cgroup2:memory")
def test_memory_limits_are_in_the_files_and_rounding_is_told(make):
    group = make(memory=64 * MIB + 1, memory_high="48M", memory_low="16M", memory_min="8M", swap="1G", oom_group=True)
    found = {name: (group.path / f"memory.{name}").read_text().strip() for name in ("max", "high", "low", "min", "swap.max", "oom.group")}
    assert found == {
        "max": str(64 * MIB), "high": str(48 * MIB), "low": str(16 * MIB), "min": str(8 * MIB), "swap.max": str(1 << 30), "oom.group": "1",
    }  # fmt: skip
    assert group.readback == (Rounding("memory.max", str(64 * MIB + 1), str(64 * MIB)),)


@requires("cgroup2:memory")
def test_limits_change_while_it_runs(make):
    group = make(memory="1G")
    process = sleeper(group)
    group.set(Limits.parse(memory="512M"))
    assert (group.path / "memory.max").read_text() == f"{512 * MIB}\n"
    group.kill()
    assert process.wait(timeout=20) == -signal.SIGKILL


# ---- processor -------------------------------------------------------------------------------------------------------------------------


@requires("cgroup2:cpu")
def test_a_fifth_of_a_core_is_a_fifth_of_a_core(make):
    group = make(cpus="0.2")
    before = time.monotonic()
    assert python(group, spin(2)).returncode == 0
    wall = time.monotonic() - before
    usage = group.usage()
    assert usage.cpu_seconds is not None
    print(
        f"0.2 cores: {usage.cpu_seconds:.3f} s of processor in {wall:.2f} s, {usage.throttled_periods} of {usage.periods} periods throttled"
    )
    # Two processes would take two cores; one quota of 20 ms at the edges is the kernel's own slack, per processor.
    assert usage.cpu_seconds <= 0.2 * wall + 0.02 * (os.cpu_count() or 1) + 0.05
    assert usage.throttled_periods is not None and usage.throttled_periods >= 5
    assert usage.throttled_seconds is not None and usage.throttled_seconds > 0.5
    assert usage.periods is not None and usage.periods >= usage.throttled_periods


@requires("cgroup2:cpu")
def test_without_a_limit_nothing_is_throttled(make):
    group = make(cpu_weight=100)
    assert python(group, spin(0.5)).returncode == 0
    assert group.usage().throttled_periods == 0
    assert group.usage().cpu_seconds > 0.3


@requires("cgroup2:cpu")
def test_weights_share_one_processor(make):
    light, heavy = make(cpu_weight=100), make(cpu_weight=1000)
    cpu = min(os.sched_getaffinity(0))
    code = f"import os\nos.sched_setaffinity(0, [{cpu}])\nprint(1, flush=True)\nwhile True: pass"
    groups = (light, heavy)
    processes = [start(group, sys.executable, "-S", "-c", code, stdout=subprocess.PIPE) for group in groups]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "1\n"
        # Only while both turn: what each has used, from one moment to another.
        before = [group.usage().cpu_seconds for group in groups]
        until(lambda: heavy.usage().cpu_seconds > before[1] + 2, "two seconds of the heavy one", 120)
        used = [group.usage().cpu_seconds - at for group, at in zip(groups, before, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    share = used[1] / used[0]
    print(f"cpu.weight 1000 beside 100: {share:.1f} times the processor time")
    assert share > 2.5, f"ten times the weight had {share:.1f} times the time"


@requires("cgroup2:cpu")
def test_processor_limits_are_in_the_files(make):
    group = make(cpus="1.5", cpu_burst="20ms", cpu_weight=37)
    assert (group.path / "cpu.max").read_text() == "150000 100000\n"
    assert (group.path / "cpu.max.burst").read_text() == "20000\n"
    assert (group.path / "cpu.weight").read_text() == "37\n"
    assert group.readback == ()
    assert [str(told) for told in make(cpus=1 / 3).readback] == ["cpu.max: asked for 0.3333333333 cores, the kernel keeps 0.33333 cores"]


@requires("cgroup2:cpuset", "cpus>=2")
def test_processors_are_pinned(make):
    last = max(os.sched_getaffinity(0))
    group = make(cpuset=str(last), mems="0")
    assert python(group, "import os\nprint(os.sched_getaffinity(0))").stdout == f"{{{last}}}\n"
    assert group.readback == ()


@requires("cgroup2:cpuset", "cpus>=2")
def test_processors_outside_the_parents_set_are_not_silently_ignored(make):
    first, *_, last = sorted(os.sched_getaffinity(0))
    outer = make(cpuset=str(first))
    with pytest.raises(LimitUnavailable, match="groups above") as caught:
        outer.child("inner", Limits(cpuset_cpus=str(last)))
    assert caught.value.controller == "cpuset" and str(first) in caught.value.hint
    assert not (outer.path / "inner").exists()
    with outer.child("inner", Limits(cpuset_cpus=f"{first},{last}")) as inner:
        assert inner.readback == (Rounding("cpuset.cpus", f"{first},{last}" if last > first + 1 else f"{first}-{last}", str(first)),)


# ---- pids ------------------------------------------------------------------------------------------------------------------------------


FORKS = """
import os, signal
children = []
try:
    for _ in range(50):
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)
except BlockingIOError:
    pass
print(len(children))
"""


@requires("cgroup2:pids")
def test_forks_stop_at_the_limit(make):
    group = make(pids=10)
    done = python(group, FORKS + "for pid in children: os.kill(pid, 9)\n")
    assert done.stdout == "9\n", done.stderr  # ten with the first
    usage = group.usage()
    print(f"pids.max 10: 9 forks, {usage.pids_refused} refused")
    assert usage.pids_refused is not None and usage.pids_refused >= 1
    assert usage.pids_peak in (None, 10)  # newer than 6.1


# ---- disks -----------------------------------------------------------------------------------------------------------------------------


def transfer(path: Path, megabytes: int, mode: str) -> str:
    """Write or read past the page cache, and print the seconds it took."""
    flags = "os.O_WRONLY | os.O_CREAT" if mode == "write" else "os.O_RDONLY"
    call = "os.write(fd, area)" if mode == "write" else "os.readv(fd, [area])"
    return (
        f"import mmap, os, time\narea = mmap.mmap(-1, 65536)\nfd = os.open({str(path)!r}, {flags} | os.O_DIRECT, 0o600)\n"
        f"start = time.monotonic()\nfor _ in range({megabytes * 16}): assert {call} == 65536\nprint(time.monotonic() - start)"
    )


@requires("cgroup2:io", "virtio-disk")
@pytest.mark.parametrize("mode", ["write", "read"])
def test_disk_bytes_per_second(make, scratch_disk, mode):
    place, device = scratch_disk
    file = place / f"io-{os.getpid()}"
    free = make()
    try:
        free_run = python(free, transfer(file, 8, "write"))
        assert free_run.returncode == 0, free_run.stderr
        limited = make(io=f"{place}:{mode}=2MB/s")
        assert device in (limited.path / "io.max").read_text()
        assert limited.readback == ()
        run = python(limited, transfer(file, 8, mode))
        assert run.returncode == 0, run.stderr
        seconds = float(run.stdout)
        print(f"io.max {mode} 2 MiB/s: {8 / seconds:.2f} MiB/s; writing without a limit: {8 / float(free_run.stdout):.0f} MiB/s")
        # 8 MiB at 2 MiB/s are four seconds; the kernel lets the first slice go at once.
        assert seconds > 3, f"{mode}: {8 / seconds:.1f} MiB/s where 2 were allowed ({8 / float(free_run.stdout):.1f} without a limit)"
        usage = limited.usage()
        assert (usage.io_write_bytes if mode == "write" else usage.io_read_bytes) >= 8 * MIB
    finally:
        file.unlink(missing_ok=True)


@requires("cgroup2:io", "virtio-disk")
def test_disk_operations_per_second(make, scratch_disk):
    place, device = scratch_disk
    file = place / f"iops-{os.getpid()}"
    group = make(io=f"{device}:write_iops=20")
    try:
        run = python(group, transfer(file, 4, "write"))
        assert run.returncode == 0, run.stderr
        print(f"io.max 20 writes/s: 64 in {float(run.stdout):.2f} s")
        assert float(run.stdout) > 2.2, f"64 writes in {run.stdout} s where 20 a second were allowed"
        assert group.usage().io_write_ops >= 64
    finally:
        file.unlink(missing_ok=True)


@requires("cgroup2:io", "virtio-disk")
def test_all_four_disk_limits_are_in_the_file(make, scratch_disk):
    _, device = scratch_disk
    group = make(io=[f"{device}:read=1M,write=2M", f"{device}:read_iops=30,write_iops=40"])
    assert (group.path / "io.max").read_text() == f"{device} rbps={MIB} wbps={2 * MIB} riops=30 wiops=40\n"
    assert group.readback == ()


@requires("root", "cgroup2:io", "virtio-disk")
def test_disk_weights_need_a_disk_that_shares(make, scratch_disk):
    mount = cgroup2_mount()
    assert mount is not None
    _, device = scratch_disk
    control = mount / "io.cost.qos"
    if not control.exists() or "enable=1" in control.read_text():
        pytest.skip("this kernel has no io.cost, or it is on already")
    with pytest.raises(LimitUnavailable, match="shares by weight") as caught:
        make(io_weight=50)
    assert caught.value.controller == "io" and "io.cost.qos" in caught.value.hint
    control.write_text(f"{device} enable=1")
    try:
        group = make(io_weight=50)
        assert (group.path / "io.weight").read_text().startswith("default 50")
    finally:
        control.write_text(f"{device} enable=0")


# ---- the rest --------------------------------------------------------------------------------------------------------------------------


@requires("root", "cgroup2:hugetlb", "cgroup2:memory")
def test_huge_pages_stop_at_the_limit(make):
    pool = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    if not pool.exists():
        pytest.skip("no huge pages of 2 MB on this machine")
    before = pool.read_text()
    pool.write_text("4")
    try:
        if int(pool.read_text()) < 4:
            pytest.skip("memory is too fragmented for four huge pages")
        group = make(hugetlb=f"2MB={2 * MIB + 1}")
        assert Rounding("hugetlb.2MB.max", str(2 * MIB + 1), str(2 * MIB)) in group.readback
        code = "import mmap\nmmap.mmap(-1, {} << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)[0]"
        assert python(group, code.format(2)).returncode == 0
        assert "Cannot allocate memory" in python(group, code.format(4)).stderr
    finally:
        pool.write_text(before)


@requires("cgroup2:memory")
def test_an_absent_controller_is_named(make):
    place = find_delegation()
    if "dmem" in place.available:
        pytest.skip("this kernel has the dmem controller")
    limits = Limits.parse(dmem="drm/card0/vram=1G", pids=10)
    with pytest.raises(LimitUnavailable) as caught:
        Cgroup.create(f"v2-{os.getpid()}-x", limits)
    assert caught.value.controller == "dmem" and caught.value.hint
    assert [error.controller for error in unavailable(limits, place)] == ["dmem"]
    with Cgroup.create(f"v2-{os.getpid()}-x", limits, best_effort=True) as group:
        assert len(group.warnings) == 1 and "dmem" in group.warnings[0]
        assert (group.path / "pids.max").read_text() == "10\n"


@requires("cgroup2:memory", "cgroup2:pids", "cgroup2:io", "cgroup2:cpu")
def test_every_group_is_accounted(make):
    group = make()
    assert python(group, "print(1)").returncode == 0
    usage = group.usage()
    assert usage.cpu_seconds and usage.memory_peak and usage.memory_current is not None
    assert usage.oom_kills == 0 and usage.pids_current == 0 and usage.io_read_bytes is not None


@requires("psi", "cgroup2:cpu")
def test_pressure_is_felt(make):
    group = make(cpus="0.1")
    assert python(group, spin(1)).returncode == 0
    pressure = group.usage().cpu_pressure
    assert pressure is not None and pressure.some_total > 0.2


@requires("cgroup2:memory", "cgroup2:pids")
def test_only_leaves_hold_processes(make):
    group = make()
    process = sleeper(group)
    for limits in (Limits(pids_max=5), Limits(memory_max=64 * MIB)):
        # pids alone the kernel would allow, and make the child a "domain invalid" one that can hold no process
        with pytest.raises(CgroupError, match="has processes of its own") as caught:
            group.child("inner", limits)
        assert "only leaves" in caught.value.hint
        assert not (group.path / "inner").exists()
    group.kill()
    assert process.wait(timeout=20) == -signal.SIGKILL
    assert group.wait_empty(DEADLINE)
    with group.child("inner", Limits(pids_max=5)) as inner:
        assert (inner.path / "pids.max").read_text() == "5\n"


# ---- places ----------------------------------------------------------------------------------------------------------------------------


@requires("root", "cgroup2:memory")
def test_root_has_the_root():
    place = find_delegation(fresh=True)
    assert place.kind == "root" and place.path == cgroup2_mount()
    assert {"cpu", "memory", "io", "pids", "cpuset"} <= place.controllers


@requires("user", "cgroup2:memory")
def test_a_user_has_her_subtree():
    place = find_delegation(fresh=True)
    assert place.kind in ("subtree", "systemd") and place.path is not None
    assert "memory" in place.controllers
    assert os.stat(place.path).st_uid == os.geteuid()


TENANT = """
import os, sys
from dockless.cgroups import Cgroup, Limits, find_delegation
from dockless.errors import LimitUnavailable
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
os.setgroups([]); os.setgid(12345); os.setuid(12345)
place = find_delegation()
print(place.kind, place.path, "memory" in place.controllers)
try:
    with Cgroup.create("job", Limits.parse(memory="64M")) as group:
        print(open(group.path / "memory.max").read().strip(), open("/proc/self/cgroup").read().strip().rpartition("/")[2])
except LimitUnavailable as error:
    print(error.controller, error.hint)
"""


@pytest.fixture
def tenancy() -> Iterator[Path]:
    """A group that root gave to user 12345, as the kernel's documentation says: the directory and three files."""
    mount = cgroup2_mount()
    assert mount is not None
    place = mount / f"dockless-tenant-{os.getpid()}"
    (mount / "cgroup.subtree_control").write_text("+memory +pids")
    place.mkdir()
    for path in (place, *(place / f"cgroup.{file}" for file in ("procs", "threads", "subtree_control"))):
        os.chown(path, 12345, 12345)
    yield place
    (place / "cgroup.kill").write_text("1")
    group = Cgroup(str(place), os.open(place, os.O_PATH))
    group.remove()


def tenant(place: Path) -> list[str]:
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("DBUS_SESSION_BUS_ADDRESS", None)
    done = subprocess.run([sys.executable, "-c", TENANT, str(place)], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@requires("root", "cgroup2:memory")
def test_alone_in_her_subtree_the_caller_steps_aside(tenancy):
    assert tenant(tenancy) == [f"subtree {tenancy} True", f"{64 * MIB} _caller"]


@requires("root", "cgroup2:memory")
def test_strangers_in_the_subtree_are_not_moved(tenancy):
    stranger = subprocess.Popen(["sleep", "1000"])
    (tenancy / "cgroup.procs").write_text(str(stranger.pid))
    first, second = tenant(tenancy)
    assert first == f"subtree {tenancy} False"
    assert second.startswith("memory ") and "systemd-run" in second
    assert (tenancy / "cgroup.procs").read_text().split() == [str(stranger.pid)]
    stranger.kill()
    stranger.wait()
