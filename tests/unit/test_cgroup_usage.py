"""Usage from the text of the files, and where groups may be made from the text of /proc."""

from __future__ import annotations

import errno
import io
import os

import pytest

from dockless.base import json
from dockless.base.records import plain, read
from dockless.cgroups import Cgroup, Delegation, Limits, Rounding, Usage, unavailable, watch
from dockless.cgroups import apply as apply_module
from dockless.cgroups import group as module
from dockless.cgroups.delegation import CgroupMount, find_mounts, own_directory
from dockless.cgroups.group import check_name
from dockless.cgroups.usage import Pressure, parse_flat
from dockless.errors import BadInput, CgroupError, LimitUnavailable

FILES = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\nnr_periods 30\nnr_throttled 20\nthrottled_usec 1250000\n",
    "memory.current": "1048576\n",
    "memory.peak": "67108864\n",
    "memory.events": "low 0\nhigh 0\nmax 12\noom 1\noom_kill 2\noom_group_kill 1\n",
    "io.stat": "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n8:0 rbytes=10 wbytes=20 rios=3 wios=4\n7:0 \n",
    "pids.current": "3\n",
    "pids.peak": "9\n",
    "pids.events": "max 4\n",
    "cpu.pressure": "some avg10=1.50 avg60=0.50 avg300=0.10 total=3000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n",
}


def test_all_numbers():
    usage = Usage.from_files(FILES)
    assert (usage.cpu_seconds, usage.user_seconds, usage.system_seconds) == (2.5, 2.0, 0.5)
    assert (usage.periods, usage.throttled_periods, usage.throttled_seconds) == (30, 20, 1.25)
    assert (usage.memory_current, usage.memory_peak, usage.swap_current) == (1 << 20, 64 << 20, None)
    assert (usage.oom_kills, usage.memory_limit_hits) == (2, 12)
    assert (usage.io_read_bytes, usage.io_write_bytes, usage.io_read_ops, usage.io_write_ops) == (4106, 8212, 4, 6)
    assert (usage.pids_current, usage.pids_peak, usage.pids_refused) == (3, 9, 4)
    assert usage.cpu_pressure == Pressure(1.5, 0.5, 0.1, 3.0, 0.0, 0.0, 0.0, 1.0)
    assert usage.memory_pressure is None


def test_every_file_has_its_place():
    waits = "some avg10={0}.00 avg60=0.50 avg300=0.10 total=3000000\nfull avg10=2.00 avg60=3.00 avg300=4.00 total=500000\n"
    more = {f"{name}.pressure": waits.format(at) for at, name in enumerate(("cpu", "memory", "io"))}
    usage = Usage.from_files({**FILES, "memory.swap.current": " 77\n", **more})
    pressures = [Pressure(float(at), 0.5, 0.1, 3.0, 2.0, 3.0, 4.0, 0.5) for at in range(3)]
    assert usage == Usage(
        2.5, 2.0, 0.5, 30, 20, 1.25, 1 << 20, 64 << 20, 77, 12, 2, 4106, 8212, 4, 6, 3, 9, 4, pressures[0], pressures[1], pressures[2]
    )  # fmt: skip
    assert Usage() == Usage(*[None] * 21)


def test_unknown_is_not_zero():
    assert Usage.from_files({}) == Usage()
    assert Usage.from_files({"cpu.stat": "usage_usec 5\n"}).throttled_seconds is None
    assert Usage.from_files({"io.stat": ""}).io_read_bytes == 0
    assert Pressure.parse("") == Pressure.parse("some\n") == Pressure(*[0.0] * 8)


@pytest.mark.parametrize("text", ["", "\n", "usage_usec", "usage_usec x\n", "garbage\0\n", "some avg10=x\n", "8:0 rbytes=-\n"])
def test_torn_files_are_passed_over(text):
    usage = Usage.from_files(dict.fromkeys([*FILES, "memory.pressure", "io.pressure"], text))
    assert usage.cpu_seconds is None and usage.memory_peak is None


def test_usage_travels_as_json():
    usage = Usage.from_files(FILES)
    assert read(Usage, json.loads(json.dumps(plain(usage)))) == usage


def test_flat_files():
    assert parse_flat("populated 1\nfrozen 0\n") == {"populated": 1, "frozen": 0}


PURE = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
HYBRID = (
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "36 31 0:33 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio\n"
    "40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)


def test_mounts_are_found():
    assert find_mounts(PURE) == ([CgroupMount("/sys/fs/cgroup", "/")], frozenset())
    assert find_mounts(HYBRID) == ([CgroupMount("/sys/fs/cgroup/unified", "/")], {"memory", "io"})
    assert find_mounts("") == ([], frozenset())
    for places in (("/a", "/sys/fs/cgroup"), ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"), ("/longer", "/a")):
        lines = [f"30 23 0:26 / {point} rw - cgroup2 cgroup2 rw\n" for point in places]
        for order in (lines, lines[::-1]):
            assert [mount.point for mount in find_mounts("".join(order))[0]] == [*places[::-1]]
    odd = "30 23 0:26 /x /mnt/a\\040b rw - cgroup2 cgroup2 rw\n" + PURE
    assert find_mounts(odd)[0] == [CgroupMount("/sys/fs/cgroup", "/"), CgroupMount("/mnt/a b", "/x")]


@pytest.mark.parametrize(
    ("root", "own", "place"),
    [
        ("/", "9:pids:/x\n0::/user.slice/a\n", "/m/user.slice/a"),
        ("/", "0::/\n", "/m"),
        ("/", "0::/../other\n", None),
        ("/docker/1", "0::/docker/1/../2\n", None),
        ("/docker/1", "0::/docker/1\n", "/m"),
        ("/docker/1", "0::/docker/1/sub (deleted)\n", "/m/sub"),
        ("/docker/1", "0::/docker/12\n", None),
        ("/", "1:memory:/x\n", None),
    ],
)
def test_own_group(root, own, place):
    assert own_directory(CgroupMount("/m", root), own) == place


def test_missing_controllers_are_explained(tmp_path):
    (tmp_path / "cgroup.controllers").write_text("pids cpu\n")
    place = Delegation(tmp_path, frozenset({"pids"}), frozenset({"pids", "cpu", "io"}), "subtree", "a test", frozenset({"memory"}))
    limits = Limits.parse(memory="1G", memory_high="1G", cpus=1, pids=5, io_weight=10)
    errors = {error.controller: error for error in unavailable(limits, place)}
    assert set(errors) == {"memory", "cpu", "io"}
    assert "cgroup v1" in str(errors["memory"]) and "unified" in errors["memory"].hint
    assert "other processes live" in str(errors["cpu"]) and "systemd-run" in errors["cpu"].hint
    assert "not delegated" in str(errors["io"]) and "user@.service" in errors["io"].hint
    assert "no hugetlb controller" in str(place.missing("hugetlb"))


def test_no_place():
    nowhere = Delegation(None, frozenset(), frozenset(), "none", "no bus", hint="log in")
    (error,) = unavailable(Limits.parse(pids=1), nowhere)
    assert error.controller == "pids" and "no bus" in str(error) and error.hint == "log in"
    with pytest.raises(CgroupError, match="no bus"):
        _ = nowhere.home


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "_caller", "cgroup.procs", "a\nb", "a\0", "x" * 200, "-a"])
def test_names_that_name_no_group(name):
    with pytest.raises(BadInput):
        check_name(name)


# -- weights for disks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "bfq"), [(1, 1), (50, 50), (100, 100), (101, 100), (111, 101), (5050, 550), (10000, 1000)])
def test_a_weight_is_written_for_both_schedulers(tmp_path, monkeypatch, asked, bfq):
    """io.cost's scale ends at 10000, bfq's at 1000; 100 is the middle of both."""
    (tmp_path / "io.weight").write_text("")
    (tmp_path / "io.bfq.weight").write_text("")
    for at_work in ([True, False], [False, True]):
        monkeypatch.setattr(apply_module, "_io_cost_on", lambda at_work=at_work: at_work[0])
        monkeypatch.setattr(apply_module, "_bfq_on", lambda at_work=at_work: at_work[1])
        assert weighed(tmp_path, asked) == ([], [])
        assert [(tmp_path / f"io.{name}weight").read_text() for name in ("", "bfq.")] == [f"default {asked}", str(bfq)]
        for path in tmp_path.glob("io.*"):
            path.write_text("")


def weighed(place, weight):
    fd = os.open(place, os.O_RDONLY)
    try:
        here = Delegation(place, frozenset({"io"}), frozenset({"io"}), "subtree", "a test")
        return apply_module.apply(fd, Limits(io_weight=weight).writes(), frozenset({"io"}), here, False)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("files", "cost", "bfq"),
    [
        ({"/sys/fs/cgroup/io.cost.qos": "8:0 enable=1\n", "/sys/block/a/queue/scheduler": "[none] bfq\n"}, True, False),
        ({"/sys/fs/cgroup/io.cost.qos": "8:0 enable=0\n", "/sys/block/b/queue/scheduler": "none [bfq]\n"}, False, True),
        ({}, True, False),
    ],
)
def test_which_disks_share_by_weight(monkeypatch, files, cost, bfq):
    """Where it cannot be seen, the group's own file is believed."""

    def opened(path, **_):
        if path not in files:
            raise FileNotFoundError(path)
        return io.StringIO(files[path])

    monkeypatch.setattr(apply_module, "open", opened, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lambda path: ["a", "b"])
        assert (apply_module._io_cost_on(), apply_module._bfq_on()) == (cost, bfq)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lambda path: opened("/sys/block"))
        found = apply_module._bfq_on()
    assert found is True


@pytest.mark.parametrize("there", [[], ["io.weight"], ["io.bfq.weight"], ["io.weight", "io.bfq.weight"]])
def test_a_weight_that_no_disk_heeds_is_an_error(tmp_path, monkeypatch, there):
    for name in there:
        (tmp_path / name).write_text("")
    monkeypatch.setattr(apply_module, "_io_cost_on", lambda: False)
    monkeypatch.setattr(apply_module, "_bfq_on", lambda: False)
    with pytest.raises(LimitUnavailable, match="no disk of this host shares by weight") as caught:
        weighed(tmp_path, 50)
    assert (caught.value.controller, caught.value.subject) == ("io", "io.weight")


# -- limits into files ---------------------------------------------------------------------------------------------------------------


def applied(place, limits, have="cpuset io memory pids", best_effort=False):
    fd = os.open(place, os.O_RDONLY)
    try:
        here = Delegation(place, frozenset(have.split()), frozenset(have.split()), "subtree", "a test")
        return apply_module.apply(fd, limits.writes(), frozenset(have.split()), here, best_effort)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("effective", "kept"), [("0-3\n", None), ("0-1,3\n", "0-1,3"), ("\n", ""), ("0-4\n", LimitUnavailable), ("7\n", LimitUnavailable)]
)
def test_a_set_is_what_is_in_force(tmp_path, effective, kept):
    (tmp_path / "cpuset.cpus").write_text("")
    (tmp_path / "cpuset.cpus.effective").write_text(effective)
    if kept is LimitUnavailable:
        with pytest.raises(LimitUnavailable, match=f"the groups above allow {effective.strip()} only") as caught:
            applied(tmp_path, Limits(cpuset_cpus="0-3"))
        assert (caught.value.controller, caught.value.subject) == ("cpuset", "cpuset.cpus")
    else:
        assert applied(tmp_path, Limits(cpuset_cpus="0-3")) == ([], [] if kept is None else [Rounding("cpuset.cpus", "0-3", kept)])
    assert (tmp_path / "cpuset.cpus").read_text() == "0-3"


def test_limits_that_cannot_be_had_are_errors_or_warnings(tmp_path):
    (tmp_path / "pids.max").write_text("")
    limits = Limits(memory_max=1 << 20, pids_max=5)
    with pytest.raises(
        LimitUnavailable, match=r"^memory\.max cannot be limited: this kernel's memory controller has no such file"
    ) as caught:
        applied(tmp_path, limits)
    assert (caught.value.controller, caught.value.subject, (tmp_path / "pids.max").read_text()) == ("memory", "memory.max", "")
    assert applied(tmp_path, limits, best_effort=True) == ([str(caught.value)], []) and (tmp_path / "pids.max").read_text() == "5"
    with pytest.raises(LimitUnavailable) as caught:
        applied(tmp_path, limits, have="pids")
    assert (caught.value.controller, caught.value.subject) == ("memory", "memory.max")
    (tmp_path / "memory.max").symlink_to("/dev/full")
    with pytest.raises(LimitUnavailable, match="the kernel refuses '1048576': No space left on device") as caught:
        applied(tmp_path, limits)
    assert (caught.value.controller, caught.value.subject) == ("memory", "memory.max")
    (tmp_path / "memory.max").unlink()
    (tmp_path / "memory.max").mkdir()
    with pytest.raises(LimitUnavailable, match="the kernel refuses '1048576': Is a directory"):
        applied(tmp_path, limits)


# -- groups below a group, over a made-up one ----------------------------------------------------------------------------------------


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A directory with the files that are looked at; of its limits ``asked`` holds (file, controllers that are there, best effort)."""
    place = tmp_path / "dockless" / "outer"
    place.mkdir(parents=True)
    for name, text in (("controllers", "cpu memory pids"), ("subtree_control", ""), ("procs", "")):
        (place / f"cgroup.{name}").write_text(text)
    monkeypatch.setattr(module, "apply", lambda fd, writes, have, inside, best: asked.append((writes[0].file, have, best)) or ([], []))
    asked: list[tuple[str, frozenset[str], bool]] = []
    with_fd = Cgroup(str(place), os.open(place, os.O_RDONLY | os.O_DIRECTORY))
    yield with_fd, asked
    with_fd.close()


def test_a_group_passes_on_what_a_group_below_needs(group):
    outer, asked = group
    outer.child("inner", Limits(pids_max=5), best_effort=True).close()
    assert asked == [("pids.max", {"pids"}, True)] and (outer.path / "cgroup.subtree_control").read_text() == "+pids"
    (outer.path / "cgroup.subtree_control").write_text("pids\n")
    (outer.path / "cgroup.procs").write_text("1\n")
    outer.child("second", Limits(pids_max=5)).close()
    assert asked[-1] == ("pids.max", {"pids"}, False), "what is passed on already needs no change"
    outer.child("third").close()
    outer.child("fourth", Limits(hugetlb=())).close()
    assert len(asked) == 2 and sorted(path.name for path in outer.path.iterdir() if path.is_dir()) == ["fourth", "inner", "second", "third"]


def test_a_group_with_processes_limits_none_below(group):
    outer, asked = group
    (outer.path / "cgroup.procs").write_text("1\n")
    with pytest.raises(CgroupError, match="outer has processes of its own") as caught:
        outer.child("inner", Limits(pids_max=5))
    assert caught.value.subject == str(outer.path) and asked == []
    assert not (outer.path / "inner").exists() and (outer.path / "cgroup.subtree_control").read_text() == ""


def test_limits_that_change_while_it_runs(group, monkeypatch):
    """What could not be had, and what the kernel made of the rest, is remembered of every change."""
    outer, _ = group
    rounded = Rounding("memory.max", "5000", "4096")
    seen = []

    def apply(*arguments):
        seen.append(arguments)
        return ["no such thing"], [rounded]

    monkeypatch.setattr(module, "apply", apply)
    have = frozenset({"cpu", "memory", "pids"})
    place = outer._as_place()  # with what the host has elsewhere, for whoever is refused
    assert (place.path, place.controllers, place.kind) == (outer.path, have, "subtree")
    outer.set(Limits(pids_max=5))
    outer.set(Limits(memory_max=5000), best_effort=True)
    outer.set(Limits())
    assert seen == [
        (outer.fd, Limits(pids_max=5).writes(), have, place, False),
        (outer.fd, Limits(memory_max=5000).writes(), have, place, True),
        (outer.fd, (), have, place, False),
    ]
    assert (outer.warnings, outer.readback) == (("no such thing",) * 3, (rounded,) * 3)


@pytest.fixture
def events(tmp_path):
    """A directory's descriptor, and what its cgroup.events says; None where it is not there."""
    directory = os.open(tmp_path, os.O_RDONLY)

    def say(text):
        (tmp_path / "cgroup.events").unlink(missing_ok=True)
        if text is not None:
            (tmp_path / "cgroup.events").write_text(text)
        (tmp_path / "cgroup.procs").write_text("")
        return directory

    yield say
    os.close(directory)


@pytest.mark.parametrize("timeout", [None, 0.0, 60.0])
def test_what_is_so_already_is_not_waited_for(events, timeout):
    for text, key, value, so in (
        ("populated 1\nfrozen 1\n", "frozen", 1, True), ("frozen 0\n", "frozen", 0, True),
        (None, "frozen", 0, True), (None, "frozen", 1, False),
    ):  # fmt: skip
        assert watch.wait_for(events(text), key, value, timeout) is so
    assert watch.wait_empty(events(None), timeout) and watch.wait_empty(events("populated 0\n"), timeout)


def test_a_time_that_is_over(events):
    for timeout in (0.0, -1.0, 0.01):
        assert not watch.wait_for(events("frozen 0\n"), "frozen", 1, timeout)
        assert not watch.wait_empty(events("populated 1\n"), timeout)
        assert not watch.wait_empty(events("frozen 0\n"), timeout)


def test_a_group_that_is_removed_while_it_is_looked_at(events, monkeypatch):
    def gone(*_):
        raise OSError(errno.ENODEV, "planted")

    directory = events("populated 1\n")
    with monkeypatch.context() as patch:
        patch.setattr(watch.os, "pread", gone)
        found = (
            watch.wait_empty(directory, None),
            watch.wait_for(directory, "frozen", 0, None),
            watch.wait_for(directory, "frozen", 1, None),
        )
    assert found == (True, True, False)


class Epoll:
    def __init__(self, said):
        self.said = said

    def unregister(self, fd):
        self.said.append(("unregister", fd))

    def close(self):
        self.said.append("closed")


def test_what_has_happened_since_the_last_look(tmp_path):
    """Each once, memory first; kills are counted; of a group that is gone, that it is empty."""
    (tmp_path / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    (tmp_path / "memory.events").write_text("oom 0\noom_kill 3\n")
    seen = watch.GroupWatch.__new__(watch.GroupWatch)
    said = []
    seen._epoll, seen._last = Epoll(said), {"populated": 0, "frozen": 0, "oom_kill": 3}
    seen._files = [os.open(tmp_path / name, os.O_RDONLY) for name in ("cgroup.events", "memory.events")]
    assert seen.read() == () and seen.state() == {"populated": 0, "frozen": 0, "oom": 0, "oom_kill": 3}
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    (tmp_path / "memory.events").write_text("oom 2\noom_kill 5\n")
    assert seen.read() == (watch.OomEvent(2, 5), watch.Frozen(True), watch.Populated(True)) and seen.read() == ()
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    (tmp_path / "memory.events").write_text("oom 2\noom_kill 4\n")  # never, but no event either
    assert seen.read() == (watch.Frozen(False),)
    state = seen.state()
    state.clear()
    assert seen.state()["oom_kill"] == 4
    first, second = seen._files
    os.close(first)
    seen._files[0] = directory = os.open(tmp_path, os.O_RDONLY)  # pread(2) fails on it
    assert seen.read() == (watch.Populated(False),) and said == [("unregister", directory)] and seen._files == [second]
    assert seen.read() == () and seen.wait(0.0) == ()
    seen.close()
    seen.close()
    assert said[1:] == ["closed", "closed"] and seen.wait(None) == ()


def test_a_process_that_has_ended_is_waited_for_once(tmp_path):
    """A zombie stays in cgroup.procs until it is reaped: who asked for it again would never sleep."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    (tmp_path / "cgroup.procs").write_text(f"0\n{child}\n")
    (tmp_path / "cgroup.events").write_text("populated 1\n")
    events, directory = os.open(tmp_path / "cgroup.events", os.O_RDONLY), os.open(tmp_path, os.O_RDONLY)
    gone: set[int] = set()
    try:
        watch._wait_for_one(directory, events, gone, 60.0)
        assert gone == {child}
    finally:
        os.waitpid(child, 0)
        os.close(directory)
        os.close(events)
