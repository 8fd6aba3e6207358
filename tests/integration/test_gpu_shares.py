"""GPUs that jobs share by memory: never more of it than there is, never beside somebody who has the GPU whole, each kept to its own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import random
import re
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.boxes import until
from support.requires import requires
from support.scheduling import DaemonProcess

import dockless
from dockless.base.dataclass import replace
from dockless.base.idmaps import user_name
from dockless.cli import main
from dockless.errors import NotEnoughGpus, Refused, SchedError
from dockless.sandbox.gpus import gpu, lease
from dockless.sandbox.run import box, seen
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State
from dockless.sched.engine.gpus.hostgpus import HostGpus
from dockless.sched.store import lease as store_lease
from dockless.sched.store import queries, schema
from dockless.sched.store import queue as queue_store
from dockless.sched.wire.top import GpuShare

pytestmark = requires("userns")

GB = 1024  # MiB
CAPACITY = 80 * GB
FOREVER = Spec(argv=("sleep", "1000"))


def take(uuid: str, memory: int, number: str, company: lease.Company = "user") -> list[socket.socket]:
    return lease.take_share(lease.Share(uuid, memory * GB, company, number), CAPACITY)


@contextlib.contextmanager
def held(sockets: list[socket.socket]) -> Iterator[None]:
    with contextlib.ExitStack() as opened:
        for one in sockets:
            opened.enter_context(one)
        yield


def test_shares_go_on_a_gpu_as_far_as_its_memory_lasts(uuids):
    first, second = uuids
    with held(take(first, 50, "1")), held(take(first, 30, "2")):
        with pytest.raises(NotEnoughGpus, match=f"GPU {first} is leased, too little of its memory is left"):
            take(first, 1, "3")
        assert {(one.uuid, one.memory, one.company, one.number, one.uid) for one in lease.shares(uuids)} == {
            (first, 50 * GB, "user", "1", os.geteuid()),
            (first, 30 * GB, "user", "2", os.geteuid()),
        }
        with held(take(second, 80, "1")):
            assert lease.holders(uuids) == lease.holders() == dict.fromkeys(uuids, os.geteuid())
    assert lease.holders() == {}


def test_whole_and_shared_exclude_each_other(uuids):
    with held(take(uuids[0], 1, "1")):
        with pytest.raises(NotEnoughGpus, match=f"GPU {uuids[0]} is leased in part"):
            lease.take([uuids[0]])
        with lease.lease(gpu.parse_request("1")) as other:
            assert other.uuids == (uuids[1],)
        with pytest.raises(NotEnoughGpus, match="2 GPUs asked for, 1 of 2 free"):
            dockless.run("host", ["true"], gpus=2)
    with held(lease.take([uuids[0]])), pytest.raises(NotEnoughGpus, match=f"GPU {uuids[0]} is leased"):
        take(uuids[0], 1, "1")
    assert lease.holders() == {}


@pytest.mark.parametrize("name", ["all/-5/1", "user/0/1", "all/5", "some/5/1", "all/5/x/y", "all/5/\xff", "all/999999999/1"])
def test_a_name_that_is_no_share_is_none(name, uuids):
    """Anybody binds any name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as odd:
        odd.bind(f"\0dockless-gpu/{gpu.simulated_host()}{uuids[0]}/share/{name}")
        assert lease.holders(uuids) == {} and lease.shares(uuids) == ()
        with held(lease.take(uuids)):
            pass
        with held(take(uuids[0], 80, "1")):
            pass


def as_another_user(work) -> str:
    """What ``work`` gives in a process of user 12345."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(12345, 12345, 12345)
            os.setresuid(12345, 12345, 12345)
            os.write(writer, work().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


@requires("root")
def test_company(uuids):
    def join(company: lease.Company) -> str:
        try:
            with held(take(uuids[0], 1, "2", company)):
                return "joined"
        except NotEnoughGpus as error:
            return str(error)

    refused = f"GPU {uuids[0]} is leased in part, by another user"
    with held(take(uuids[0], 1, "1", "user")):
        assert as_another_user(lambda: join("all")) == refused
        assert join("user") == "joined"
    with held(take(uuids[0], 1, "1", "all")):
        assert as_another_user(lambda: join("user")) == refused
        assert as_another_user(lambda: join("all")) == "joined"


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without unix_diag: it does not tell whose the names are."""

    def no_handler(*arguments: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(lease, "_answers", no_handler)


def test_company_where_the_kernel_does_not_tell_whose_they_are(uuids, untold):
    """What the caller knows to be its own is that; anything else may be another user's."""
    ours = [(uuids[0], 10 * GB, "1")]
    wanted = lease.Share(uuids[0], 10 * GB, "user", "2")
    with held(take(uuids[0], 10, "1", "user")):
        with pytest.raises(NotEnoughGpus, match="in part, by another user"):
            lease.take_share(wanted, CAPACITY)
        with held(lease.take_share(wanted, CAPACITY, ours)):
            pass
    with held(take(uuids[0], 10, "1", "all")), pytest.raises(NotEnoughGpus):
        lease.take_share(wanted, CAPACITY, ours)  # of the number that the caller has, and not its name


def test_many_at_a_time_some_of_them_killed(uuids, tmp_path):
    """Those who have something write it down, one at a time; whoever comes next finds no more than there is, and nobody beside a whole."""
    workers, dice = 6, random.Random(2)
    lock = tmp_path / "lock"
    lock.touch()
    table = mmap.mmap(-1, 16 * workers)  # of each: which GPU, and how much of it; -1 for all

    def write(worker: int, which: int, memory: int) -> None:
        struct.pack_into("qq", table, 16 * worker, which, memory)

    def check() -> None:
        rows = [struct.unpack_from("qq", table, 16 * worker) for worker in range(workers)]
        for which in range(len(uuids)):
            there = [memory for found, memory in rows if found == which and memory]
            assert sum(there) <= 80 and (-1 not in there or len(there) == 1), rows

    def work(worker: int) -> None:
        mine = random.Random(os.getpid())
        with open(lock) as file:
            while True:
                which, memory = mine.randrange(2), mine.choice((-1, 10, 20, 30, 50))
                try:
                    sockets = lease.take([uuids[which]]) if memory < 0 else take(uuids[which], memory, f"{worker}")
                except NotEnoughGpus:
                    continue
                with held(sockets):
                    fcntl.flock(file, fcntl.LOCK_EX)
                    write(worker, which, memory)
                    check()
                    fcntl.flock(file, fcntl.LOCK_UN)
                    time.sleep(mine.random() * 0.002)
                    fcntl.flock(file, fcntl.LOCK_EX)
                    write(worker, 0, 0)
                    fcntl.flock(file, fcntl.LOCK_UN)

    def begin(worker: int) -> int:
        child = os.fork()
        if child == 0:
            status = 3
            try:
                work(worker)
            finally:
                os._exit(status)
        return child

    children = {worker: begin(worker) for worker in range(workers)}
    try:
        with open(lock) as file:
            for _ in range(120):
                time.sleep(dice.random() * 0.01)
                worker = dice.randrange(workers)
                fcntl.flock(file, fcntl.LOCK_EX)
                os.kill(children[worker], signal.SIGKILL)
                _, status = os.waitpid(children[worker], 0)
                assert os.WIFSIGNALED(status), "it found too much leased"
                write(worker, 0, 0)
                fcntl.flock(file, fcntl.LOCK_UN)
                children[worker] = begin(worker)
    finally:
        for child in children.values():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    assert lease.holders() == {}


# -- and the queue


@pytest.fixture
def now(tmp_path) -> Path:
    """What the simulated GPUs do."""
    path = tmp_path / "gpus"
    path.touch(mode=0o666)
    return path


@pytest.fixture
def daemon(simulation, now, home) -> Iterator[DaemonProcess]:
    yield from served(home, simulation, now)


def served(home: Path, gpus: str, now: Path, share: str = "user", **how: Any) -> Iterator[DaemonProcess]:
    process = DaemonProcess(home, gpus=gpus, settings=f'[gpus]\nshare = "{share}"\n', **how)
    process.environment["DOCKLESS_SIMULATED_STATE"] = str(now)
    process.start()
    yield process
    process.end()
    assert not lease.holders()


def submit(queue, memory: str, **more) -> int:
    return queue.submit(JobSpec(FOREVER, gpus=f"memory={memory}", **more))


def running(queue, number: int):
    until(lambda: queue.job(number).state is State.RUNNING, f"job {number} runs")
    return queue.job(number)


def test_jobs_fill_a_gpu_and_the_next_one_waits(daemon, uuids, capfd):
    with daemon.client() as queue:
        jobs = [running(queue, submit(queue, "40G")) for _ in range(3)]
        assert [job.devices for job in jobs] == [(uuids[0],), (uuids[0],), (uuids[1],)]
        assert {(one.uuid, one.memory) for one in lease.shares(uuids)} == {(uuid, 40 * GB) for uuid in uuids}
        assert len(lease.shares(uuids)) == 3
        assert all(job.options.enforced_by == "watchdog" for job in jobs)
        whole, large = queue.submit(JobSpec(FOREVER, gpus="1")), submit(queue, "50G")
        with pytest.raises(NotEnoughGpus, match="0 of 2 free"):
            dockless.run("host", ["true"], gpus=1)
        assert "needs 1 GPU, 0 free" in queue.job(whole).reason
        assert "needs 50 GiB of a GPU, 0 free, 40 GiB left on a shared one" in queue.job(large).reason
        queue.cancel(jobs[2].id)
        assert running(queue, whole).devices == (uuids[1],)


UNTOLD = """
from dockless.sandbox.gpus import lease
from dockless.sched.daemon import main

def no_handler(*arguments):
    raise FileNotFoundError(2, "No such file or directory")

lease._answers = no_handler
raise SystemExit(main([]))
"""


def test_where_the_kernel_does_not_tell_whose_they_are_a_queue_knows_its_own(simulation, now, home, uuids):
    for daemon in served(home, simulation, now, program=("-P", "-c", UNTOLD)):
        with daemon.client() as queue:
            jobs = [running(queue, submit(queue, "40G")) for _ in range(3)]
            assert [(job.devices, job.attempt) for job in jobs] == [((uuids[0],), 1), ((uuids[0],), 1), ((uuids[1],), 1)]


def test_no_share_is_so_small_that_thousands_could_run_on_a_gpu(daemon):
    with daemon.client() as queue:
        with pytest.raises(Refused, match="255 MiB of a GPU are less than any program needs there"):
            submit(queue, "255M")
        running(queue, submit(queue, "256M"))
        with pytest.raises(Refused, match="1 MiB of a GPU are less than any program needs there"):
            queue.submit_gang([JobSpec(FOREVER, gpus="memory=1M", role="a")])


def test_those_that_start_together_share_gpus_with_each_other_alone(daemon, uuids):
    """They are one job with as many GPUs as they fill."""
    with daemon.client() as queue:
        gang = queue.submit_gang([JobSpec(FOREVER, gpus=f"memory={size}", role="r") for size in ("30G", "20G", "25G")])
        jobs = [running(queue, job) for job in gang]
        assert {job.devices for job in jobs} == {(uuids[0],)} and {job.options.enforced_by for job in jobs} == {"watchdog"}
        assert sorted(one.memory for one in lease.shares(uuids)) == [20 * GB, 25 * GB, 30 * GB]
        assert running(queue, submit(queue, "1G")).devices == (uuids[1],), "nobody joins them"
        assert queue.info().quotas[0][2] == 2
    daemon.kill9()
    daemon.start()
    with daemon.client() as queue:
        late = queue.submit(JobSpec(FOREVER, gpus="1"))
        assert [queue.job(job).devices for job in gang] == [(uuids[0],)] * 3
        queue.cancel(gang[0])
        assert running(queue, late).devices == (uuids[0],)


def test_those_that_start_together_and_fill_more_than_one(daemon, uuids):
    with daemon.client() as queue:
        gang = queue.submit_gang([JobSpec(FOREVER, gpus=text, role="r") for text in ("memory=30G", "1", "memory=30G")])
        had = [running(queue, job).devices[0] for job in gang]
        assert had[0] == had[2] != had[1] and set(had) == set(uuids)
        alone = [JobSpec(FOREVER, gpus="memory=50G", role="r") for _ in range(3)]
        with pytest.raises(Refused, match="need 3 GPUs, and this host has"):
            queue.submit_gang(alone)


def test_what_is_used_of_a_gpu_is_never_more_than_it(daemon):
    """Each share counts by its memory, and those that start together have theirs in equal parts; also when the daemon is another."""
    with daemon.client() as queue:
        began = time.time()
        jobs = [running(queue, submit(queue, "20G")).id for _ in range(4)]
        gang = queue.submit_gang([JobSpec(FOREVER, gpus="memory=10G", role="r") for _ in range(2)])
        for job in gang:
            running(queue, job)
        parts = [row[0] for row in schema.connect(daemon.home / "state" / "jobs.db").execute("SELECT part FROM attempts ORDER BY job")]
        assert parts == [0.25] * 4 + [0.5] * 2
        until(lambda: time.time() > began + 2, "some time goes by")
        (used,) = queue.usage()
        assert 1.0 < used.gpu_seconds <= 2 * (time.time() - began)
    daemon.stop()
    daemon.start()
    with daemon.client() as queue:
        for job in (*jobs, gang[0]):
            queue.cancel(job, grace=0)
        queue.wait_many([*jobs, *gang])
        (used,) = queue.usage()
        assert 1.0 < used.gpu_seconds <= 2 * (time.time() - began)


def test_who_comes_back_finds_them(daemon, uuids):
    with daemon.client() as queue:
        first = running(queue, submit(queue, "40G")).id
    daemon.kill9()
    daemon.start()
    with daemon.client() as queue:
        assert running(queue, submit(queue, "30G")).devices == queue.job(first).devices == (uuids[0],)
        assert running(queue, submit(queue, "30G")).devices == (uuids[1],)


def test_what_another_queue_has_is_left_to_it(daemon, uuids):
    with held(take(uuids[0], 60, "abcdef")), daemon.client() as queue:
        assert running(queue, submit(queue, "20G")).devices == (uuids[0],)
        assert running(queue, submit(queue, "20G")).devices == (uuids[1],)


def test_a_name_like_one_of_ours_is_another_all_the_same(daemon, uuids):
    """Else a job would be started there again and again."""
    with daemon.client() as queue:
        running(queue, submit(queue, "20G"))
        (ours,) = lease.shares(uuids)
        with held(take(uuids[0], 55, ours.number)):
            found = running(queue, submit(queue, "20G"))
            assert (found.devices, found.attempt) == ((uuids[1],), 1)


def test_nobody_joins_a_gpu_that_somebody_took_whole_without_looking(daemon, uuids):
    with daemon.client() as queue, contextlib.ExitStack() as bound:
        assert running(queue, submit(queue, "20G")).devices == (uuids[0],)
        lease._bind(uuids[0], uuids[0], bound)
        second = running(queue, submit(queue, "20G"))
        assert (second.devices, second.attempt) == ((uuids[1],), 1)


def program(queue, number: int, memory: int) -> str:
    """A line of the simulated GPUs: the job's program has so many MiB of GPU 0."""
    (inside,) = seen.processes(box.get(queue.job(number).attempts[-1].sandbox))
    return f"process 0 {inside.pid} {memory << 20}\n"


def test_who_takes_more_than_its_share_is_ended(daemon, now):
    with daemon.client() as queue:
        good, bad = (running(queue, submit(queue, "40G")).id for _ in range(2))
        now.write_text(program(queue, good, 40 * GB) + program(queue, bad, 30 * GB))
        until(lambda: any(row.used for row in queue.top().jobs), "the GPUs are looked at")
        now.write_text(program(queue, good, 40 * GB) + program(queue, bad, 40 * GB + 1))
        ended = queue.wait(bad)
        assert ended.state is State.CANCELLED
        assert ended.reason.startswith("ended by the daemon: it had 40 GiB of a shared GPU, of which 40 GiB were its own")
        assert queue.job(good).state is State.RUNNING


def test_what_a_program_draws_with_counts(daemon, now):
    with daemon.client() as queue:
        job = running(queue, submit(queue, "40G")).id
        now.write_text(program(queue, job, 40 * GB + 1).replace("process", "graphics"))
        assert "it had 40 GiB of a shared GPU" in queue.wait(job).reason


@requires("root")
def test_the_drivers_limit_where_it_has_one(simulation, now, home):
    for daemon in served(home, f"{simulation},limits", now):
        with daemon.client() as queue:
            job = running(queue, submit(queue, "20G"))
            if job.options.enforced_by == "watchdog":
                pytest.skip("no cgroup can be made here")
            assert job.options.enforced_by == "driver"
            word, which, memory, group = now.read_text().split()
            assert (word, which, int(memory)) == ("limit", "0", 20 << 30) and job.attempts[-1].sandbox in group


@requires("root")
def test_the_drivers_limit_is_set_again_for_one_that_was_just_starting(simulation, now, home):
    """A daemon that comes back cannot know whether it was set."""
    for daemon in served(home, f"{simulation},limits", now):
        with daemon.client() as queue:
            number = submit(queue, "20G")
            if running(queue, number).options.enforced_by == "watchdog":
                pytest.skip("no cgroup can be made here")
        daemon.kill9()
        before = now.read_text()
        now.write_text("")
        with contextlib.closing(schema.connect(next(home.rglob("jobs.db")))) as db, db:
            found = replace(queries.options(db, number), enforced_by="")
            queue_store.set_options(db, number, found, 0.0, "test", "")
            db.execute("UPDATE jobs SET state='STARTING' WHERE id=?", (number,))
            db.execute("UPDATE attempts SET state='STARTING' WHERE job=?", (number,))
        daemon.start()
        with daemon.client() as queue:
            assert running(queue, number).options.enforced_by == "driver"
            assert now.read_text() == before


def test_a_share_has_its_part_of_the_cores_of_its_gpu(simulation, now, home):
    process = DaemonProcess(home, gpus=simulation, settings='[gpus]\nshare = "user"\n[host]\ncores = 16\ncores_per_gpu = 4\n').start()
    with process.client() as queue:
        running(queue, submit(queue, "40G"))
        assert queue.info().cores_used == pytest.approx(4 * 40 * GB / gpu_capacity(), abs=0.01)
        running(queue, queue.submit(JobSpec(FOREVER, gpus="1")))
        assert queue.info().cores_used == pytest.approx(4 + 4 * 40 * GB / gpu_capacity(), abs=0.01)
    process.end()


def gpu_capacity() -> int:
    """MiB that those who share one have together."""
    gpus = HostGpus()
    try:
        return max(gpus.shareable.values())
    finally:
        gpus.close()


def test_not_shared_unless_the_settings_say_so(simulation, now, home, uuids):
    for daemon in served(home, simulation, now, "no"):
        with daemon.client() as queue:
            jobs = [running(queue, submit(queue, "10G")) for _ in range(2)]
            assert {job.devices for job in jobs} == {(uuid,) for uuid in uuids}
            assert {job.options.gpu_share for job in jobs} == {0} and lease.shares(uuids) == ()


def test_a_driver_that_does_not_tell_who_has_what_shares_nothing(simulation, now, home):
    for daemon in served(home, f"{simulation},old", now):
        with daemon.client() as queue:
            assert running(queue, submit(queue, "10G")).options.gpu_share == 0


def test_who_has_what_is_shown(daemon, uuids, now, capfd):
    me = user_name(os.geteuid())
    with daemon.client() as queue, held(take(uuids[0], 10, "abcdef")):
        job = running(queue, submit(queue, "40G", name="mine")).id
        now.write_text(program(queue, job, 30 * GB))
        assert queue.info().gpus[0].shares == (GpuShare(me, 40 << 30, job), GpuShare(me, 10 << 30))
        assert queue.info().gpus[1].shares == () and main(["info"]) == 0
        shown = capfd.readouterr().out
        assert re.search(rf"^0 .* 2 shares, 50 GiB  {me} ", shown, re.MULTILINE)
        assert f"quota       user {me}: 2 GPUs in use, no limit, of which 2 for shares of a GPU\n" in shown
        until(lambda: any(one.used for one in queue.top().jobs), "the GPUs are looked at")
        assert main(["top", "--once"]) == main(["metrics"]) == 0
        shown = capfd.readouterr().out
        assert "30 GiB of 40 GiB" in shown and "1 of 2 GPUs free" in shown and "no lease" not in shown
        assert re.search(rf'^dockless_gpu_shared_bytes{{gpu="0",.*user="{me}"}} 53687091200$', shown, re.MULTILINE)
        assert queue.top().users[0].gpus == 1
        assert main(["gpu", "list"]) == main(["gpu", "list", "--json"]) == 0
        table, _, plain = capfd.readouterr().out.partition("{")
        shares = sorted(one["memory"] >> 30 for one in json.loads("{" + plain)["gpus"][0]["shares"])
        assert f"{me} 40 GiB" in table and f"{me} 10 GiB" in table and shares == [10, 40]
    daemon.stop()
    assert main(["info"]) == main(["top", "--once"]) == 0
    assert capfd.readouterr().out.count("1 share, 40 GiB") == 2
    daemon.start()


def test_the_database_gives_no_gpu_whole_and_in_shares(tmp_path):
    """Whatever a program above it believes."""
    db = schema.open_queue(tmp_path / "jobs.db")
    give = [store_lease.Lease(job, 1, ("GPU-a", "GPU-b")[: 1 + (job == 4)], 0.0, job < 3) for job in range(1, 5)]
    for one in give[:2]:
        store_lease.take(db, one)
    assert store_lease.held(db) == give[:2]
    for one in give[2:]:
        db.execute("SAVEPOINT change")
        with pytest.raises(SchedError, match="is leased already, to job 1, 2"):
            store_lease.take(db, one)
        db.execute("ROLLBACK TO change")
    for one in give[:2]:
        store_lease.release(db, one.job, 1)
    store_lease.take(db, give[3])
    with pytest.raises(SchedError, match="is leased already, to job 4"):
        store_lease.take(db, give[0])
    db.close()


def test_a_slice_is_better_than_a_share(now, home, own_host):
    """A slice has a part of the GPU to itself. The next job, too large for a slice, has a share at once."""
    for daemon in served(home, own_host("2x80G,mig=4"), now):
        with daemon.client() as queue:
            jobs = [running(queue, submit(queue, memory)) for memory in ("20G", "20G", "30G", "30G", "20G", "20G", "20G")]
            assert [job.options.enforced_by for job in jobs] == ["slice", "slice", "watchdog", "watchdog", "slice", "slice", "watchdog"]
            assert [job.devices[0][:4] for job in jobs] == ["MIG-", "MIG-", "GPU-", "GPU-", "MIG-", "MIG-", "GPU-"]
            assert sum(one.memory for one in lease.shares([jobs[2].devices[0]])) == 80 * GB


@pytest.mark.parametrize(
    ("gpus", "text", "share"),
    [
        ("2x80G", "memory=20G", 20 * GB),
        ("2x80G", "memory=1", 1),
        ("2x80G", "memory=80G", 80 * GB),
        ("2x80G", "class=whole,memory=20G", 20 * GB),
        ("2x80G", "2,memory=20G", 0),
        ("2x80G", "device=0,memory=20G", 0),
        ("2x80G", "1", 0),
        ("2x80G,old", "memory=20G", 0),
        ("2x80G,mig=4", "memory=20G", 20 * GB),
        ("2x80G,mig=4", "class=1g.20gb,memory=10G", 0),
        ("1x80G,mig=4", "memory=20G", 0),
    ],
)
def test_what_is_asked_for_as_a_share(gpus, text, share, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", gpus)
    host = HostGpus()
    try:
        assert host.share_of(text) == share
    finally:
        host.close()
