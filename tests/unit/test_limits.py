"""Limits as data: what would be written for them, what is refused before anything is, and how the kernel's rounding is told."""

from __future__ import annotations

import os
import stat
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless.base import json
from dockless.base.records import plain, read
from dockless.cgroups import IoMax, Limits, Rounding, Write
from dockless.cgroups import limits as module
from dockless.cgroups.limits import find_device, format_list, hugetlb_name, parse_list, rounding
from dockless.errors import BadInput


def values(limits: Limits) -> dict[str, str]:
    return {write.file: write.value for write in limits.writes()}


def test_no_limits_write_nothing():
    assert Limits().writes() == ()
    assert Limits.parse() == Limits()
    assert not Limits()
    assert Limits(pids_max=1)


def test_every_limit_has_its_file_and_controller(monkeypatch):
    monkeypatch.setattr(module, "find_device", lambda target: {"/data": "254:0"}.get(target, target))
    limits = Limits.parse(
        cpus="1.5", cpu_weight=200, cpu_burst="50ms", cpuset="0-1", mems="0", memory="4G", memory_high="3G", memory_low="1G",
        memory_min="512M", swap="0",
        oom_group=True, io="/data:write=50MB/s,read_iops=1k", io_weight=50, pids=100, hugetlb="2MB=1G", dmem="drm/0000:03:00.0/vram0=8G",
    )  # fmt: skip
    assert [(w.file, w.value, w.controller) for w in limits.writes()] == [
        ("cpu.max", "150000 100000", "cpu"),
        ("cpu.max.burst", "50000", "cpu"),
        ("cpu.weight", "200", "cpu"),
        ("cpuset.cpus", "0-1", "cpuset"),
        ("cpuset.mems", "0", "cpuset"),
        ("memory.max", "4294967296", "memory"),
        ("memory.high", "3221225472", "memory"),
        ("memory.low", "1073741824", "memory"),
        ("memory.min", "536870912", "memory"),
        ("memory.swap.max", "0", "memory"),
        ("memory.oom.group", "1", "memory"),
        ("io.weight", "default 50", "io"),
        ("pids.max", "100", "pids"),
        ("io.max", "254:0 wbps=52428800 riops=1000", "io"),
        ("hugetlb.2MB.max", "1073741824", "hugetlb"),
        ("hugetlb.2MB.rsvd.max", "1073741824", "hugetlb"),
        ("dmem.max", "drm/0000:03:00.0/vram0 8589934592", "dmem"),
    ]
    assert limits.controllers() == {"cpu", "cpuset", "memory", "io", "pids", "hugetlb", "dmem"}


def test_limits_travel_as_json():
    limits = Limits(cpu_max=2.0, io_max=(IoMax("/", rbps=5),), hugetlb=(("2MB", 4),), dmem=(("a/b", 1),), memory_oom_group=False)
    assert read(Limits, json.loads(json.dumps(plain(limits)))) == limits


def test_a_sliver_of_a_core_takes_a_longer_period():
    assert values(Limits(cpu_max=0.5)) == {"cpu.max": "50000 100000"}
    assert values(Limits(cpu_max=0.01)) == {"cpu.max": "1000 100000"}
    assert values(Limits(cpu_max=0.005)) == {"cpu.max": "5000 1000000"}
    assert values(Limits(cpu_max=0.001)) == {"cpu.max": "1000 1000000"}


@given(st.floats(min_value=0.001, max_value=1024))
def test_any_number_of_cores_is_within_a_microsecond_per_period(cores):
    (write,) = Limits(cpu_max=cores).writes()
    quota, period = map(int, write.value.split())
    assert quota >= 1000 and period in (100_000, 1_000_000)
    assert abs(quota - cores * period) <= 0.5 + 1e-6
    assert bool(write.asked) == (abs(quota / period - cores) > 1e-9 * cores)


@pytest.mark.parametrize(
    "wanted",
    [
        {"cpus": 0}, {"cpus": "0.0001"}, {"cpus": -1}, {"cpus": "1e9"}, {"cpus": 10**9}, {"cpu_weight": 0}, {"cpu_weight": 10001},
        {"cpu_burst": "1s"},
        {"cpus": 1, "cpu_burst": "1s"}, {"cpuset": ""}, {"cpuset": "3-1"}, {"cpuset": "a"}, {"cpuset": "0,,1"}, {"cpuset": "-1"},
        {"mems": "x"},
        {"memory": 0}, {"memory": "0"}, {"memory": 100}, {"memory": "-1"}, {"memory": "lots"}, {"memory_high": 0},
        {"memory": "1G", "memory_low": "2G"},
        {"memory": "1G", "memory_min": "2G"}, {"swap": -1}, {"pids": 0}, {"pids": 5_000_000}, {"pids": "x"}, {"io_weight": 0},
        {"io_weight": 20000},
        {"io": "/data"}, {"io": "/data:"}, {"io": "/data:write=0"}, {"io": "/data:speed=1"}, {"io": "/data:write=1,wbps=2"},
        {"io": ":write=5"},
        {"hugetlb": "2MB"}, {"hugetlb": "3B=1G"}, {"hugetlb": "=1G"}, {"hugetlb": "2MB=1G,2M=2G"}, {"dmem": "a b=1"},
        {"dmem": "x=1,x=2"}, {"dmem": "x\n=1"},
    ],
)  # fmt: skip
def test_impossible_limits(wanted):
    with pytest.raises(BadInput) as caught:
        Limits.parse(**wanted)
    assert caught.value.hint


def test_impossible_limits_are_refused_without_parse_too():
    for wanted in (
        {"cpu_max": 0.0},
        {"cpu_max": float("nan")},
        {"memory_max": 0},
        {"pids_max": 0},
        {"cpuset_cpus": "9-"},
        {"cpu_burst": 0.01},
        {"cpuset_mems": "9-"},
        {"memory_max": module.PAGE - 1},
        {"memory_low": -1},
        {"memory_min": -1},
        {"memory_max": 1 << 30, "memory_low": (1 << 30) + 1},
        {"pids_max": module.MOST_PIDS + 1},
        {"cpu_max": module.MOST_CORES * 2.0},
        {"cpu_max": 1.0, "cpu_burst": 0.11},
        {"cpu_max": 1.0, "cpu_burst": -0.01},
        {"hugetlb": (("2MB", -1),)},
        {"dmem": (("drm/0", -1),)},
    ):
        with pytest.raises(BadInput):
            Limits(**wanted)
    for target, wanted in (("/data", {}), ("", {"rbps": 1}), ("/data", {"rbps": 0}), ("/data", {"rbps": 5, "wiops": 0})):
        with pytest.raises(BadInput):
            IoMax(target, **wanted)


def test_the_edges_are_possible():
    for wanted in (
        {"cpu_max": 0.001},
        {"cpu_max": float(module.MOST_CORES)},
        {"cpu_max": 1.0, "cpu_burst": 0.1},
        {"cpu_max": 1.0, "cpu_burst": 0.0},
        {"cpu_weight": 1, "io_weight": 1},
        {"cpu_weight": 10000, "io_weight": 10000},
        {"memory_max": module.PAGE, "memory_high": module.PAGE, "memory_swap_max": 0},
        {"memory_max": 1 << 30, "memory_low": 1 << 30, "memory_min": 1 << 30},
        {"memory_low": 0, "memory_min": 0},
        {"pids_max": 1},
        {"pids_max": module.MOST_PIDS},
        {"hugetlb": (("2MB", 0),), "dmem": (("drm/0", 0),)},
        {"io_max": (IoMax("/data", 1, 1, 1, 1),)},
    ):
        assert Limits(**wanted) != Limits()


def test_limits_this_host_cannot_have():
    there = len(os.sched_getaffinity(0))
    with pytest.raises(BadInput, match="this host has no") as caught:
        Limits(cpuset_cpus=f"0-{there + 4096}").check_host()
    assert "online" in caught.value.hint
    with pytest.raises(BadInput, match="this host has no"):
        Limits(cpuset_mems="1023").check_host()
    with pytest.raises(BadInput, match="huge pages"):
        Limits(hugetlb=(("3MB", 3 << 20),)).check_host()
    Limits(cpuset_cpus="0", cpuset_mems="0", memory_max=1 << 50).check_host()


@pytest.fixture
def host(monkeypatch):
    """One with four processors, two memory nodes and pages of 2 MiB; what it does not say is left out."""
    texts = {"/sys/devices/system/cpu/online": "0-3\n", "/sys/devices/system/node/online": "0-1\n"}
    monkeypatch.setattr(module, "_read", texts.get)
    monkeypatch.setattr(module.os.path, "isdir", lambda path: path == "/sys/kernel/mm/hugepages/hugepages-2048kB")
    return texts


def test_what_a_host_has(host):
    Limits(cpuset_cpus="1-3", cpuset_mems="1", hugetlb=(("2MB", 1 << 21),)).check_host()
    for limits, said, subject in (
        (Limits(cpuset_cpus="2-5,7"), "cpuset 2-5,7: this host has no 4-5,7", "2-5,7"),
        (Limits(cpuset_mems="1-2"), "memory nodes 1-2: this host has no 2", "1-2"),
        (Limits(hugetlb=(("2MB", 1 << 21), ("1GB", 1 << 30))), "this host has no huge pages of 1GB", "1GB"),
        (Limits(io_max=(IoMax("/no/such/place", rbps=5),)), "io limit for /no/such/place: No such file or directory", "/no/such/place"),
    ):
        with pytest.raises(BadInput) as caught:
            limits.check_host()
        assert (str(caught.value), caught.value.subject) == (said, subject)
    host.clear()  # without memory nodes there is one
    Limits(cpuset_cpus="0", cpuset_mems="0").check_host()
    with pytest.raises(BadInput, match="this host has no 1") as caught:
        Limits(cpuset_mems="0-1").check_host()
    assert caught.value.hint == "it has 0 online"


def test_disks_by_their_numbers(monkeypatch):
    monkeypatch.setattr(module, "find_device", {"/data": "254:0", "254:16": "254:16"}.__getitem__)
    limits = Limits(pids_max=5, io_max=(IoMax("/data", rbps=5), IoMax("254:16", wiops=7)))
    assert limits.by_number() == Limits(pids_max=5, io_max=(IoMax("254:0", rbps=5), IoMax("254:16", wiops=7)))
    assert Limits(pids_max=5).by_number() == Limits(pids_max=5)


def test_limits_come_as_text_and_as_values():
    io = IoMax("/data", rbps=5)
    expected = Limits(io_max=(io, IoMax("/other", wiops=1000)), hugetlb=(("2MB", 1 << 30), ("1GB", 5)), dmem=(("a/b", 4096),))
    mixed = Limits.parse(io=[io, "/other:wiops=1k"], hugetlb={"2MB": "1G", "1GB": 5}, dmem={"a/b": "4K"})
    assert mixed == expected == Limits.parse(io=(io, IoMax("/other", wiops=1000)), hugetlb="2MB=1G,1GB=5", dmem="a/b=4096")
    assert values(Limits(memory_oom_group=False, cpuset_cpus="3,1,2", cpuset_mems="1,0")) == {
        "memory.oom.group": "0", "cpuset.cpus": "1-3", "cpuset.mems": "0-1"
    }  # fmt: skip
    assert [(write.value, write.asked) for write in Limits(cpu_max=1 / 3, cpu_burst=0.0123456).writes()] == [
        ("33333 100000", "0.3333333333 cores"), ("12346", "")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"memory": "lots"}, "memory"), ({"memory_high": "lots"}, "memory_high"), ({"memory_low": "lots"}, "memory_low"),
        ({"memory_min": "lots"}, "memory_min"), ({"swap": "lots"}, "swap"), ({"cpu_weight": "x"}, "cpu_weight"),
        ({"io_weight": "x"}, "io_weight"), ({"pids": "x"}, "pids"), ({"cpus": 1, "cpu_burst": "x"}, "cpu_burst"),
        ({"io": "/data:write=x"}, "io rate"), ({"io": "/data:wiops=x"}, "io operations"), ({"hugetlb": "2MB=x"}, "hugetlb"),
        ({"hugetlb": {"2MB": "x"}}, "hugetlb"), ({"dmem": "a=x"}, "dmem"), ({"cpuset": "x"}, "cpuset"), ({"mems": "x"}, "memory nodes"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(wanted, said):
    with pytest.raises(BadInput, match=f"^{said} "):
        Limits.parse(**wanted)


def test_the_largest_values():
    """2^20 processors and 2^22 processes are what a kernel of 64 bit may have."""
    assert Limits(cpu_max=1048576.0, pids_max=4194304)
    for wanted in ({"cpu_max": 1048576.5}, {"pids_max": 4194305}):
        with pytest.raises(BadInput):
            Limits(**wanted)


@pytest.mark.parametrize(
    "wanted", [{"cpu_max": "1"}, {"pids_max": 1.5}, {"memory_oom_group": 1}, {"io_max": ("/data",)}, {"hugetlb": [("2MB", 1)]}]
)
def test_values_of_another_type_are_refused(wanted):
    with pytest.raises(BadInput) as caught:
        Limits(**wanted)
    assert caught.value.subject.partition("[")[0].endswith(*wanted)
    with pytest.raises(BadInput):
        IoMax("/data", rbps="5")


def test_files_of_the_kernel_that_hold_odd_names(tmp_path):
    (tmp_path / "mountinfo").write_bytes(b"/mnt/caf\xe9\n")
    assert module._read(str(tmp_path / "mountinfo")) == "/mnt/caf\ufffd\n" and module._read(str(tmp_path / "none")) is None


def test_disks():
    with pytest.raises(BadInput, match=r"^io limit for /no/such/place: No such file or directory$"):
        find_device("/no/such/place")
    with pytest.raises(BadInput, match=r"^io limit for /a\0b: embedded null byte$"):
        find_device("/a\0b")
    with pytest.raises(BadInput, match="no disk behind it") as caught:
        find_device("/proc")
    assert "lsblk" in caught.value.hint
    with pytest.raises(BadInput, match="no disk"):
        find_device("4000:1")
    with pytest.raises(BadInput):
        IoMax("/a\0b", rbps=1)


class Host:
    """Files by path: (type, number of the disk it lies on, number of its own)."""

    MOUNTS = """\
20 1 254:16 / /other rw - ext4 /dev/vdc rw
21 1 0:44 / /proc rw - proc proc rw
22 1 0:45 / /data rw shared:1 - btrfs /dev/gone rw
23 1 0:45 / /data rw - btrfs /data/image rw
24 1 0:45 / /data rw shared:1 master:2 - btrfs /dev/vdb rw
25 1 0:46 / /tmp rw - tmpfs /dev/vdb rw
26 1 0:45 / /data rw - btrfs /dev/vdc rw
"""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        plain, (self.vda, self.vdb, self.part, self.vdc) = os.stat, (os.makedev(254, number) for number in (0, 16, 17, 32))
        files = {
            "/data": (stat.S_IFDIR, os.makedev(0, 45), 0),
            "/data/image": (stat.S_IFREG, os.makedev(0, 45), 0),
            "/proc": (stat.S_IFDIR, os.makedev(0, 44), 0),
            "/other": (stat.S_IFDIR, self.vdb, 0),
            "/other/console": (stat.S_IFCHR, self.vdb, self.vdc),
            "/part": (stat.S_IFDIR, self.part, 0),
            "/dev/vda": (stat.S_IFBLK, self.vdb, self.vda),
            "/dev/vdb": (stat.S_IFBLK, os.makedev(0, 5), self.vdb),
            "/dev/vdc": (stat.S_IFBLK, os.makedev(0, 5), self.vdc),
            "/dev/loop9": (stat.S_IFBLK, os.makedev(0, 45), os.makedev(0, 45)),
            **dict.fromkeys([f"/sys/dev/block/254:{number}" for number in (0, 16, 17, 32)], (stat.S_IFDIR, 0, 0)),
            "/sys/dev/block/254:17/partition": (stat.S_IFREG, 0, 0),
        }

        def look(path, **how):
            kind, disk, own = files.get(path, (0, 0, 0))
            if path == "/dev/gone":
                raise FileNotFoundError(2, "No such file or directory", path)
            return SimpleNamespace(st_mode=kind, st_dev=disk, st_rdev=own) if kind else plain(path, **how)

        texts = {"/proc/self/mountinfo": self.MOUNTS, "/sys/dev/block/254:17/../dev": "254:16\n"}
        patch.setattr(os, "stat", look)
        patch.setattr(module, "_read", texts.get)


@pytest.mark.parametrize(
    ("target", "number"),
    [
        ("/dev/vda", "254:0"),
        ("/other", "254:16"),
        ("/other/console", "254:16"),
        ("/data", "254:16"),
        ("/part", "254:16"),
        ("254:17", "254:16"),
        ("254:32", "254:32"),
    ],
)
def test_the_disk_behind_a_path(monkeypatch, target, number):
    """A node's own number, a path's file system's; btrfs shows one that no disk has, and its mount's source says which it is."""
    with monkeypatch.context() as patch:
        Host(patch)
        found = find_device(target)
    assert found == number


@pytest.mark.parametrize(("target", "number"), [("/proc", "0:44"), ("/dev/loop9", "0:45"), ("254:99", "254:99")])
@pytest.mark.parametrize("mounts", [True, False])
def test_paths_without_a_disk(monkeypatch, target, number, mounts):
    with monkeypatch.context() as patch, pytest.raises(BadInput, match=f"no disk behind it.*\\({number}\\)") as caught:
        Host(patch)
        if not mounts:
            patch.setattr(module, "_read", lambda path: None)
        find_device(target)
    assert caught.value.subject == target


def test_a_partition_whose_disk_does_not_say_its_number(monkeypatch):
    with monkeypatch.context() as patch:
        Host(patch)
        patch.setattr(module, "_read", lambda path: None)
        found = find_device("/part")
    assert found == "254:17"


def _disks_with_partitions():
    for name in sorted(os.listdir("/sys/class/block")) if os.path.isdir("/sys/class/block") else []:
        yield name, os.path.exists(f"/sys/class/block/{name}/partition")


def test_whole_disks_are_themselves_and_partitions_are_their_disk():
    seen = False
    for name, partition in _disks_with_partitions():
        seen = True
        with open(f"/sys/class/block/{name}/dev") as file:
            number = file.read().strip()
        if not partition:
            assert find_device(number) == number
            continue
        with open(os.path.join(os.path.realpath(f"/sys/class/block/{name}"), "..", "dev")) as file:
            assert find_device(number) == file.read().strip()
    if not seen:
        pytest.skip("this machine has no block device at all")


@pytest.mark.parametrize(
    "text", ["/data:write=5M", "/a:b/c d:write=5M", "8:0:write=5M", "/dev/vda read=1M,write=5M", "254:0:rbps=1M,wiops=7"]
)
def test_io_targets_may_hold_colons(text):
    assert IoMax.parse(text).target == text.replace(" read", ":read").partition(":write")[0].partition(":r")[0]


@given(st.frozensets(st.integers(0, 2000), min_size=1, max_size=40))
def test_lists_round_trip(numbers):
    assert parse_list(format_list(numbers)) == numbers


def test_lists_look_like_the_kernels():
    assert format_list([3, 0, 1, 2, 8]) == "0-3,8"
    assert parse_list("8,0-3") == {0, 1, 2, 3, 8}
    assert format_list([]) == "" and format_list([7]) == "7" and format_list([4, 5]) == "4-5"
    assert parse_list(" 3-3 , 99999\n") == {3, 99999}


def test_huge_page_names():
    assert [hugetlb_name(size) for size in ("2MB", "2M", "2048K", "1G", "64K", "512MiB")] == ["2MB", "2MB", "2MB", "1GB", "64KB", "512MB"]
    assert [hugetlb_name(size) for size in ("1K", "1536K", "1M", "1.5G", "3G")] == ["1KB", "1536KB", "1MB", "1536MB", "3GB"]
    for none in ("0", "1023", "1025"):
        with pytest.raises(BadInput, match="not a huge page size"):
            hugetlb_name(none)


@pytest.mark.parametrize(
    ("write", "text", "kept"),
    [
        (Write("memory.max", "4294967296", "memory"), "4294967296\n", None),
        (Write("memory.max", "4294967297", "memory"), "4294967296\n", "4294967296"),
        (Write("cpu.max", "150000 100000", "cpu"), "150000 100000\n", None),
        (Write("cpu.max", "33333 100000", "cpu", "0.3333333333 cores"), "33333 100000\n", "0.33333 cores"),
        (Write("cpu.max", "150000 100000", "cpu"), "max 100000\n", "max 100000"),
        (Write("cpu.max", "150000 100000", "cpu"), "140000\n", "140000"),
        (Write("cpu.max", "150000 100000", "cpu"), "140000 max\n", "140000 max"),
        (Write("io.weight", "default 50", "io"), "default 50\n8:0 10\n", None),
        (Write("io.weight", "default 50", "io"), "50\n", None),
        (Write("io.weight", "default 50", "io"), " 40\n", "default 40"),
        (Write("io.weight", "default 50", "io"), "", "default "),
        (Write("io.max", "254:0 wbps=7 riops=5", "io"), "\n254:0 riops=5\n", "254:0 wbps=max riops=5"),
        (Write("io.max", "254:0 wbps=1048576", "io"), "8:0 rbps=1\n254:0 rbps=max wbps=1048576 riops=max wiops=max\n", None),
        (Write("io.max", "254:0 wiops=9999999999", "io"), "254:0 rbps=max wbps=max riops=max wiops=4294967295\n", "254:0 wiops=4294967295"),
        (Write("io.max", "254:0 wbps=1", "io"), "", "nothing"),
        (Write("dmem.max", "drm/a 4097", "dmem"), "drm/a 4096\ndrm/b max\n", "drm/a 4096"),
        (Write("hugetlb.2MB.max", "2097153", "hugetlb"), "2097152\n", "2097152"),
    ],
)
def test_rounding_is_told(write, text, kept):
    told = rounding(write, text)
    assert told == (None if kept is None else Rounding(write.file, write.asked or write.value, kept))
    if told:
        assert str(told).startswith(f"{write.file}: asked for ")
