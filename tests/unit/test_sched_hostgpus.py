"""The GPUs that the daemon keeps in mind, over a made-up driver: which there are, which are meant, and which are in use outside."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.stand_in import StandIn, engine, until

from dockless.base.records import differences
from dockless.errors import GpuDriverMissing, GpuError, NotEnoughGpus
from dockless.sandbox.gpus import gpu
from dockless.sandbox.gpus import lease as gpu_lease
from dockless.sandbox.gpus.gpu import Gpu, GpuProcess, Link, MigInstance
from dockless.sandbox.spec import Spec
from dockless.sched import State
from dockless.sched.callers import Caller
from dockless.sched.engine.gpus import hostgpus
from dockless.sched.engine.gpus.hostgpus import HostGpus
from dockless.sched.jobs import JobSpec

MIG_1, MIG_2 = (f"MIG-{number:08x}-0000-0000-0000-000000000000" for number in (1, 2))
A = Gpu(0, "GPU-a", 7, "H100", 80 << 30, links=(Link("GPU-b", "x", 2, 12), Link("GPU-c", "x", 5), Link("GPU-d", "x", 3, 60)))
B = Gpu(1, "GPU-b", 3, "H100", 80 << 30)
C = Gpu(2, "GPU-c", 1, "A100", 40 << 30, mig_enabled=True, mig=(MigInstance(MIG_1, 1, 0, 20 << 30), MigInstance(MIG_2, 2, 0, 20 << 30)))
BUSY = (GpuProcess(4711, 1 << 20),)


@pytest.fixture
def host(monkeypatch):
    """``there``: what the driver shows, or the error it raises. ``now``: the clock. ``looks``: how often its processes were read."""
    host = SimpleNamespace(there=(A, B, C), now=100.0, looks=0, holders={}, out={}, open=0)

    def shown():
        if isinstance(host.there, Exception):
            raise host.there
        return host.there

    @contextlib.contextmanager
    def session():
        shown()
        host.open += 1
        yield
        host.open -= 1

    def refresh(units):
        host.looks += units[0].uuid == "GPU-a"
        wanted = {unit.uuid for unit in units}
        return tuple(unit for unit in gpu.units(shown()) if unit.uuid in wanted)

    monkeypatch.setattr(gpu, "session", session)
    monkeypatch.setattr(gpu, "inventory", shown)
    monkeypatch.setattr(gpu, "refresh", refresh)
    monkeypatch.setattr(gpu, "shareable", lambda units: {})
    monkeypatch.setattr(hostgpus, "time", SimpleNamespace(monotonic=lambda: host.now, strftime=time.strftime))

    def standing(uuids):
        if isinstance(host.holders, Exception):
            raise host.holders
        return tuple({uuid: said for uuid, said in one.items() if uuid in uuids} for one in (host.holders, host.out))

    monkeypatch.setattr(gpu_lease, "standing", standing)
    return host


def unusable(gpus: HostGpus, leased=()) -> frozenset[str]:
    """After a look, if the last one is too old."""
    asyncio.run(gpus.look())
    return gpus.unusable(leased)


def leased(gpus: HostGpus, ours=()) -> dict[str, int]:
    """By others, after a look."""
    asyncio.run(gpus.look())
    return gpus.leased_by_others(ours)


def test_what_there_is(host):
    """A divided one is its slices. Near is first the kind of link, then how many, of which no number outdoes a kind."""
    gpus = HostGpus()
    assert [unit.uuid for unit in gpus.gpus] == ["GPU-a", "GPU-b", MIG_1, MIG_2]
    assert (gpus.uuids, gpus.not_whole, gpus.error) == (("GPU-a", "GPU-b", MIG_1, MIG_2), {MIG_1, MIG_2}, "")
    assert gpus.distances == {("GPU-a", "GPU-b"): 2 - 0.12, ("GPU-a", "GPU-c"): 5, ("GPU-a", "GPU-d"): 2.5}
    assert not gpus.simulated and host.open == 1
    gpus.close()
    assert host.open == 0
    host.there = (A, replace(B, simulated=True))
    assert HostGpus().simulated


def test_which_are_meant(host):
    """Also of those that are in use just now: a job waits for them."""
    host.there = (replace(A, processes=BUSY), B, C)
    gpus = HostGpus()
    answers = {
        "": (0, ()), "1": (1, ()), "2": (2, ()), "device=1": (1, ("GPU-b",)), "device=0,1": (2, ("GPU-a", "GPU-b")),
        f"device={MIG_2}": (1, (MIG_2,)), "all": (4, ("GPU-a", "GPU-b", MIG_1, MIG_2)),
    }  # fmt: skip
    assert {text: gpus.resolve(text) for text in answers} == answers
    with pytest.raises(NotEnoughGpus, match="3 GPUs asked for, this host has 2 in all"):
        gpus.resolve("3")
    host.there = (A, B)
    assert HostGpus().resolve("all") == (2, ())


def test_a_share_is_all_of_the_smallest_gpu_at_most(host, monkeypatch):
    """Of what is left when some is kept back. Who asks for more has a GPU of its own."""
    monkeypatch.setattr(gpu, "shareable", lambda units: {"GPU-a": 300, "GPU-b": 200, "GPU-c": 100})
    gpus = HostGpus()
    gpus.keep_back(50)
    assert [gpus.share_of(f"memory={size}M") for size in (150, 151)] == [150, 0]
    assert [gpus.share_of(text) for text in ("count=2,memory=10M", "1", "")] == [0, 0, 0]


def test_of_a_class_slices_come_first_and_of_them_the_smallest(host):
    host.there = (A, replace(C, mig=(MigInstance(MIG_1, 1, 0, 40 << 30), MigInstance(MIG_2, 2, 0, 20 << 30))))
    gpus = HostGpus()
    wanted = gpus.class_of("memory=10G")
    assert gpus.of_classes([wanted]) == {wanted: (MIG_2, MIG_1, "GPU-a")}


@pytest.mark.parametrize("simulated", ["2x80G", "2x80G,mig=2"])
def test_all_of_them_can_be_had(tmp_path, monkeypatch, simulated):
    """Slices, too, which are given by name only: no job waits for ever for what the host has."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", simulated)

    async def play():
        async with engine(tmp_path, StandIn(tmp_path / "boxes")) as running:
            job = differences(JobSpec(Spec(argv=("true",)), gpus="all"))
            (number,) = await running.submit(Caller(0, "root", frozenset(), True), [job], None)
            await until(lambda: running.entries[number].job.state is State.RUNNING)
            assert sorted(running.entries[number].job.devices) == sorted(running.gpus.uuids)

    asyncio.run(play())


def test_starts_that_wait_for_a_driver_keep_none_without_gpus_from_starting(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "4x80G")
    answers = threading.Event()

    class Waits(StandIn):
        def start(self, spec, **how):
            if spec.gpus:
                answers.wait(20)
            return super().start(spec, **how)

    async def play():
        async with engine(tmp_path, Waits(tmp_path / "boxes")) as running:
            try:
                root = Caller(0, "root", frozenset(), True)
                jobs = [differences(JobSpec(Spec(argv=("true",)), gpus=gpus)) for gpus in (*"1111", "")]
                *_, number = await running.submit(root, jobs, None)
                await until(lambda: running.entries[number].job.state is State.RUNNING)
                assert [entry.job.state for entry in running.entries.values()].count(State.STARTING) == 4
            finally:
                answers.set()

    asyncio.run(play())


def test_listed_again(host, capfd):
    """What is new can be had, what is gone cannot; failures and maintenance are remembered. Without an answer all stays."""
    gpus = HostGpus()
    gpus.failed("GPU-a", "Xid 79")
    assert gpus.of_classes(["whole"]) == {"whole": ("GPU-a", "GPU-b")}
    whole = replace(C, mig=(), mig_enabled=False)
    host.there = (A, whole)
    asyncio.run(gpus.list_again())
    assert (gpus.uuids, gpus.not_whole, gpus.resolve("2")) == (("GPU-a", "GPU-c"), frozenset(), (2, ()))
    assert gpus.of_classes(["whole"]) == {"whole": ("GPU-a", "GPU-c")} and gpus.out_of_service == {"GPU-a"}
    said = capfd.readouterr().err
    assert "GPU GPU-b is gone" in said and "GPU GPU-c is new" in said and said.count("Xid 79") == 1
    host.there = GpuError("it does not answer")
    asyncio.run(gpus.list_again())
    assert gpus.uuids == ("GPU-a", "GPU-c") and gpus.error == "it does not answer"


@pytest.mark.parametrize(
    ("there", "error", "said"),
    [
        (GpuDriverMissing("no driver"), "no driver", "2 GPUs asked for, this host has none (no driver)"),
        ((), "", "2 GPUs asked for, this host has none"),
    ],
)
def test_a_host_without_gpus(host, there, error, said):
    host.there = there
    gpus = HostGpus()
    assert (gpus.error, gpus.gpus, gpus.uuids, gpus.resolve(""), unusable(gpus)) == (error, (), (), (0, ()), frozenset())
    assert host.looks == 0 and leased(gpus) == {}
    with pytest.raises(NotEnoughGpus) as caught:
        gpus.resolve("2")
    assert (str(caught.value), caught.value.subject) == (said, "2")
    gpus.close()


def test_what_is_in_use_outside(host):
    """Leased by others, or computed on, and not leased by the queue."""
    gpus = HostGpus()
    assert unusable(gpus) == frozenset() and leased(gpus) == {}
    host.holders = {"GPU-b": 0, MIG_1: 1000}
    assert leased(gpus) == {"GPU-b": 0, MIG_1: 1000}
    assert leased(gpus, ["GPU-b"]) == {MIG_1: 1000} and leased(gpus, [MIG_1, "GPU-a", "GPU-b"]) == {}
    host.there = (replace(A, processes=BUSY), B, C)
    host.now += 3.0
    assert unusable(gpus) == {"GPU-a"} and unusable(gpus, {"GPU-a"}) == frozenset()


def test_names_of_no_gpu_of_this_host(host):
    """Bound by whoever likes to fill her group's quota."""
    gpus = HostGpus()
    host.holders = {"GPU-x": 1000, "": 1000, "other/GPU-a": 1001, "GPU-a\\xff": 1001, "GPU-b": 1002}
    assert leased(gpus) == {"GPU-b": 1002}


def test_many_shares_of_one_user_count_as_one():
    """And many users as one: names of shares cost nothing, and each of twenty thousand made the daemon slower until it answered nobody."""
    share = gpu_lease.Share
    some = [share("a", 5, "user", "1", 7), share("b", 1, "all", "1", 7), share("a", 6, "user", "2", 7), share("a", 1, "user", "3", 8)]
    found = {(one.uuid, one.uid): one.memory for one in hostgpus.together(some, 99)}
    assert found == {("a", 7): 11, ("b", 7): 1, ("a", 8): 1}
    many = [share("a", 1, "user", f"{uid:x}", uid) for uid in (*range(1000, 6000), 1000)]
    found = {(one.uuid, one.uid): one.memory for one in hostgpus.together(many, 99)}
    assert len(found) == hostgpus.MOST_HOLDERS + 1 and found["a", 1000] == 2 and sum(found.values()) == 5001


def test_what_is_leased_elsewhere_of_gpus_that_are_shared(monkeypatch):
    """A share with a number of ours is ours only where our user has it. A GPU of which others have shares is not leased whole besides, but
    where somebody bound its own name: she has all of its memory."""
    share = gpu_lease.Share
    bound = [share("GPU-a", 5, "user", "1", 42), share("GPU-a", 5, "user", "1", 7), share("GPU-b", 6, "all", "2", 8)]
    monkeypatch.setattr(hostgpus.os, "geteuid", lambda: 42)
    monkeypatch.setattr(gpu_lease, "shares", lambda uuids: tuple(one for one in bound if one.uuid in uuids))
    monkeypatch.setattr(gpu_lease, "whole", lambda uuids: {uuid: 9 for uuid in uuids if uuid == "GPU-b"})
    monkeypatch.setattr(gpu_lease, "standing", lambda uuids: (dict.fromkeys(uuids, 6), {}))
    free, nodes = {"GPU-a", "GPU-b", "GPU-c", "x/y=0", "x/y=1"}, {"x/y=0": ["node/1"], "x/y=2": ["node/2"]}

    def found(ours):
        return hostgpus.leased_elsewhere(free, nodes, [*free, "GPU-d"], ours, {"GPU-a": 10, "GPU-b": 20})

    there = found({("GPU-a", 5, "1")})
    assert {(one.uuid, one.uid, one.memory) for one in there.shares} == {("GPU-a", 7, 5), ("GPU-b", 8, 6), ("GPU-b", 9, 20)}
    assert there.whole == {"GPU-c": 6, "x/y=0": 6, "x/y=1": 6}
    assert found(None).shares == [] and found(None).whole.keys() == free

    bound[:] = [share("GPU-a", 5, company, "1", gpu_lease.NOBODY) for company in ("user", "all")]
    assert [(one.uuid, one.memory, one.uid) for one in found({("GPU-a", 5, "1")}).shares] == [("GPU-a", 5, gpu_lease.NOBODY)]


def test_leases_that_cannot_be_seen(host):
    """Nobody can be kept from a GPU by them, who could not start with it anyway; the reason is shown."""
    gpus = HostGpus()
    host.holders = {"GPU-a": 1000}
    assert leased(gpus) == {"GPU-a": 1000}
    host.holders = GpuError("cannot see which GPUs are leased: No such file or directory")
    assert leased(gpus) == {} and gpus.error == str(host.holders)


def test_what_others_lease_is_listed_beside_the_loop(host, monkeypatch):
    """A user can bind a million names, and each is looked at: who waits goes on after a second with what was seen last."""
    gpus, there, wakes, begun = HostGpus(), threading.Event(), [], []
    host.holders = {"GPU-a": 1000}
    assert leased(gpus) == {"GPU-a": 1000}
    known = gpu_lease.standing

    def slow(uuids):
        begun.append(threading.current_thread())
        there.wait(20)
        return known(uuids)

    async def play():
        gpus.changed = lambda: wakes.append(gpus.leased_by_others(()))
        monkeypatch.setattr(gpu_lease, "standing", slow)
        host.holders = {"GPU-b": 1000}
        for _ in range(2):  # the second asks nothing more
            await asyncio.wait_for(gpus.look(), 10)
            assert gpus.leased_by_others(()) == {"GPU-a": 1000}
        assert len(begun) == 1 and begun[0] is not threading.main_thread()
        there.set()
        await until(lambda: wakes)
        assert wakes == [{"GPU-b": 1000}]

    try:
        asyncio.run(play())
    finally:
        there.set()
    gpus.close()


def test_one_that_another_daemon_keeps_out_of_service(host, capfd):
    """It is so here, too, and no reason of this daemon's: it is in service again when the other lets go of it, whatever has changed."""
    gpus = HostGpus()
    host.out = {"GPU-b": "drained by root: fan"}
    for _ in range(2):
        assert leased(gpus) == {} and gpus.unusable(()) == gpus.out_of_service == {"GPU-b"} and gpus.reasons == {}
    assert capfd.readouterr().err.count("GPU GPU-b is out of service: drained by root: fan") == 1
    gpus.failed("GPU-a", "Xid 79")
    host.out = {}
    assert leased(gpus) == {} and gpus.out_of_service == gpus.reasons.keys() == {"GPU-a"}
    assert "GPU GPU-b is in service again" in capfd.readouterr().err


def test_how_often_their_processes_are_read(host):
    gpus = HostGpus()
    for later, looks in ((1.9, 0), (0.3, 1), (1.9, 1), (0.3, 2)):
        host.now += later
        unusable(gpus)
        assert host.looks == looks


def test_a_look_counts_when_it_has_come(host, monkeypatch):
    """Whoever decides meanwhile waits for it, too."""
    gpus, answers, refresh = HostGpus(), threading.Event(), gpu.refresh
    monkeypatch.setattr(gpu, "refresh", lambda units: answers.wait(20) and refresh(units))
    host.there = (replace(A, processes=BUSY), B, C)
    host.now += 3.0

    async def play():
        first = asyncio.ensure_future(gpus.look())
        await asyncio.sleep(0)
        assert gpus.is_old and gpus.unusable(()) == frozenset()
        second = asyncio.ensure_future(gpus.look())
        await asyncio.sleep(0)
        answers.set()
        await second
        assert not gpus.is_old and gpus.unusable(()) == {"GPU-a"} and host.looks == 1
        await first

    asyncio.run(play())


def test_one_whose_driver_is_slow_can_be_had_all_the_same(host, monkeypatch):
    """For as long as a look is believed, from when it has come; meanwhile nobody gets it, and the others are looked at."""
    gpus, answers, refresh, told = HostGpus(), threading.Event(), gpu.refresh, []
    monkeypatch.setattr(gpu, "refresh", lambda units: (units[0].uuid != "GPU-a" or answers.wait(20)) and refresh(units))
    gpus.changed = lambda: told.append(gpus.unusable(()))
    host.there = (A, replace(B, processes=BUSY), C)
    host.now += 3.0

    async def play():
        await gpus.look()
        assert gpus.unusable(()) == {"GPU-a", "GPU-b"} and not gpus.is_old
        host.there, host.now = (A, B, C), host.now + 3.0
        await gpus.look()
        assert gpus.unusable(()) == {"GPU-a"}
        answers.set()
        await until(lambda: told == [frozenset()])
        assert not gpus.is_old, "it was read just now"
        host.now += 3.0
        assert gpus.is_old

    asyncio.run(play())


def test_one_that_goes_out_of_service(host, capfd):
    """It is given to nobody while it is, and the log is told once."""
    gpus = HostGpus()
    for trouble, said in (("broken", "GPU GPU-a is out of service: broken"), ("broken", ""), ("", "GPU GPU-a is in service again")):
        host.there = (replace(A, trouble=trouble), B, C)
        host.now += 3.0
        assert unusable(gpus) == ({"GPU-a"} if trouble else set()) and unusable(gpus, {"GPU-a"}) == set()
        assert said in (err := capfd.readouterr().err) and bool(said) == bool(err)


def test_a_failure_that_the_driver_reports(host, capfd):
    """Of a divided one it concerns the slices. It stays until the daemon is started again, and what is heard first is what is shown."""
    gpus = HostGpus()
    assert gpus.whole == ("GPU-a", "GPU-b", "GPU-c")
    gpus.failed("GPU-a", "Xid 79")
    gpus.failed("GPU-a", "Xid 95")
    gpus.failed(gpus.gpus[-1].parent, "Xid 48")
    shown = {unit.uuid: unit.trouble for unit in gpus.gpus if unit.trouble}
    assert list(shown) == ["GPU-a", MIG_1, MIG_2] and shown["GPU-a"].startswith("Xid 79 (20")
    assert capfd.readouterr().err.count("is out of service: Xid") == 3
    host.now += 3.0
    assert unusable(gpus) == {"GPU-a", MIG_1, MIG_2} and capfd.readouterr().err == ""


def test_one_of_unknown_name_has_failed(host):
    """All are asked at once, however short a time ago they were asked."""
    gpus = HostGpus()
    host.there = (A, replace(B, trouble="broken"), C)

    async def heard():
        gpus.failed("", "it does not answer")
        await gpus.look()

    asyncio.run(heard())
    assert unusable(gpus) == {"GPU-b"}


def test_a_driver_that_fails_meanwhile(host):
    """What was last seen is believed until it answers again; the reason is shown as long."""
    host.there = (replace(A, processes=BUSY), B)
    gpus = HostGpus()
    host.there = GpuDriverMissing("it is being updated")
    host.now += 3.0
    assert unusable(gpus) == {"GPU-a"} and gpus.error == "it is being updated"
    unusable(gpus)
    assert host.looks == 1
    host.there = (A, B)
    host.now += 3.0
    assert unusable(gpus) == frozenset() and gpus.error == ""
