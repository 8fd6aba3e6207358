"""What ``top`` is told: GPUs, jobs and users at one moment, over the daemon's socket and bounded."""

from __future__ import annotations

import asyncio
import io
import os
import socket

import pytest
from support.desk import ANN, BEN, play
from support.quotas import limits
from support.stand_in import settled, until

from dockless.cli import live, overview
from dockless.sandbox.run import seen
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec
from dockless.sched.config import Config
from dockless.sched.engine.gpus import figures
from dockless.sched.policy.places import Places
from dockless.sched.policy.quotas import Quotas
from dockless.sched.wire import metrics, picture
from dockless.sched.wire.top import GpuProgram, GpuUse, JobUse, Top, UserUse


@pytest.fixture(autouse=True)
def now(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "3x80G")
    now = tmp_path / "gpus-now"
    now.touch()
    monkeypatch.setenv("DOCKLESS_SIMULATED_STATE", str(now))
    monkeypatch.setattr(figures, "FRESH", 0.0)
    monkeypatch.setattr(picture, "FRESH", 0.0)
    return now


def job(**fields) -> JobSpec:
    return JobSpec(Spec(argv=("true",)), **fields)


def test_what_is_there_at_one_moment(tmp_path, now, monkeypatch):
    """A program is a job's if the job's keeper is above it; another's job has no name."""
    monkeypatch.setattr(seen, "_uid", lambda pid: ANN if pid == os.getpid() else 0)

    async def story(desk):
        (first,) = await desk.submit(ANN, job(gpus="2", name="train", time_limit=60.0))
        box = await desk.runs(first)
        waits, *_ = await desk.submit(ANN, *[job(gpus="2")] * 2, job(gpus="3"))
        (last,) = await desk.submit(BEN, job(gpus="3"))
        box.pid = os.getppid()  # ours is the keeper's child
        a, b = (desk.engine.gpus.uuids.index(uuid) for uuid in desk.engine.entries[first].job.devices)
        (free,) = {0, 1, 2} - {a, b}
        await desk.engine.decided()
        now.write_text(f"busy {a} 50\nprocess {a} {os.getpid()} 1024\nprocess {b} {os.getpid()} 2048\nprocess {b} 1 4096\n")
        top = await desk(BEN, lambda queue: queue.top())
        assert top.running == 1 and top.waiting == 4 and top.gpus[a].job == top.gpus[b].job == first
        (shown,) = top.jobs
        assert (shown.job, shown.user, shown.name, shown.gpus, shown.busy, shown.used) == (first, "ann", "", (a, b), 0.25, 3072)
        assert top.gpus[b].programs == (GpuProgram(1, "root", 0, 4096, 0.0), GpuProgram(os.getpid(), "ann", first, 2048, 0.0))
        assert (top.gpus[free].job, top.gpus[free].programs) == (0, ())
        assert [(one.user, one.running, one.gpus, one.waiting, one.next, one.place) for one in top.users] == [
            ("ann", 1, 2, 3, waits, 1), ("ben", 0, 0, 1, last, 4)
        ]  # fmt: skip
        assert 0 < top.users[0].starts_in <= 60
        assert (await desk(ANN, lambda queue: queue.top())).jobs[0].name == "train"

    play(tmp_path, story)


def test_of_a_shared_gpu_each_job_has_what_its_own_programs_compute(tmp_path, now, monkeypatch):
    async def story(desk):
        one, two = await desk.submit(ANN, *[job(gpus="1,memory=20G")] * 2)
        box = await desk.runs(one)
        await desk.runs(two)
        box.pid = os.getppid()  # ours is its keeper's child
        ((index,), (same,)) = (entry.job.devices for entry in (desk.engine.entries[one], desk.engine.entries[two]))
        assert index == same
        at = desk.engine.gpus.uuids.index(index)
        now.write_text(f"busy {at} 90\nprocess {at} {os.getpid()} 1024\nprocess {at} 1 4096\ncomputes {at} {os.getpid()} 20\n")
        top = await desk(ANN, lambda queue: queue.top())
        assert top.gpus[at].busy == 0.9 and {row.job: row.busy for row in top.jobs} == {one: 0.2, two: 0.0}
        assert {program.pid: program.busy for program in top.gpus[at].programs} == {1: 0.0, os.getpid(): 0.2}
        now.write_text(now.read_text() + f"computes {at} 1 60\n")  # as a server of MPS does for its clients, whoever they are
        top = await desk(ANN, lambda queue: queue.top())
        assert {row.job: row.busy for row in top.jobs} == {one: 0.2, two: None}

    play(tmp_path, story, Config(share="user"))


@pytest.mark.parametrize(
    ("submit", "waiting"),
    [
        (lambda queue: queue.submit_array(job(array_limit=1), 5), 4),
        (lambda queue: queue.submit(job(hold=True)), 1),
        (lambda queue: queue.submit(job(begin=4e9)), 1),
        (lambda queue: queue.submit(job(after=("ok:1",))), 1),
        (lambda queue: queue.submit(job(name="x", singleton=True)), 1),
        (lambda queue: queue.submit_gang([job(role="a", hold=True), job(role="b", hold=True)]), 1),
    ],
    ids=["array", "held", "begin", "after", "singleton", "gang"],
)
def test_who_waits_with_jobs_that_may_not_start_yet_is_counted(tmp_path, submit, waiting):
    """Of each answer that counts by user, or by group, the sum is the number that the host says."""

    async def counted(desk, waiting):
        info, top, quotas = await desk(0, lambda queue: (queue.info(), queue.top(), queue.quotas()))
        told = {kind: sum(row.waiting for row in quotas if row.kind == kind) for kind in ("user", "group")}
        assert (info.waiting, top.waiting, sum(user.waiting for user in top.users)) == (waiting + 1,) * 3  # with the one in line
        assert told == {"user": waiting + 1, "group": waiting + 1}
        assert f'dockless_user_jobs_waiting{{user="ann"}} {waiting + 1}\n' in metrics.text(info, top)
        await settled(desk.engine)

    async def story(desk):
        first, _ = await desk.submit(ANN, job(name="x", gpus="3"), job(gpus="1"))
        await desk.runs(first)
        await desk(ANN, submit)
        await until(lambda: len(desk.engine.aside.kept) == waiting)
        await counted(desk, waiting)
        number = next(iter(desk.engine.aside.kept))
        await desk(ANN, lambda queue: queue.hold(number))
        await counted(desk, waiting)
        await desk(ANN, lambda queue: queue.cancel(number))
        await counted(desk, waiting - 1)

    play(tmp_path, story, Config(limits(groups={"vision": 3})))


def test_who_has_only_jobs_that_may_not_start_yet_is_shown(tmp_path):
    async def story(desk):
        await desk(ANN, lambda queue: queue.submit(job(hold=True)))
        assert (await desk(BEN, lambda queue: queue.top())).users == (UserUse("ann", waiting=1),)

    play(tmp_path, story)


def test_what_the_hosts_display_has_is_shown_and_in_use_by_nobody(tmp_path, now):
    now.write_text("graphics 0 1 4194304\ngraphics 1 1 1073741824\n")

    async def story(desk):
        top = await desk(BEN, lambda queue: queue.top())
        assert [(one.outside, len(one.programs)) for one in top.gpus] == [(False, 1), (True, 1), (False, 0)]

    play(tmp_path, story)


def test_a_job_that_has_ended_since_is_as_nameless_for_others(tmp_path, monkeypatch):
    monkeypatch.setattr(picture, "FRESH", 3600.0)

    async def story(desk):
        (mine,) = await desk.submit(ANN, job(name="hunter2"))
        await desk.runs(mine)
        assert (await desk(BEN, lambda queue: queue.top())).jobs[0].name == ""
        await desk(ANN, lambda queue: queue.cancel(mine))
        await desk(ANN, lambda queue: queue.wait(mine))
        assert [(one.job, one.name) for one in (await desk(BEN, lambda queue: queue.top())).jobs] == [(mine, "")]
        assert (await desk(ANN, lambda queue: queue.top())).jobs[0].name == "hunter2"

    play(tmp_path, story)


def test_it_is_bounded(tmp_path, monkeypatch):
    """Who waits with many jobs, in many lines, costs no more than their number; a place is looked up for a few users."""
    monkeypatch.setattr(picture, "JOBS", 1)
    monkeypatch.setattr(picture, "USERS", 1)
    monkeypatch.setattr(picture, "PLACES", 1)
    asked = []
    place = Places.place
    monkeypatch.setattr(Places, "place", lambda self, job: asked.append(job) or place(self, job))

    async def story(desk):
        first, second, *_ = await desk.submit(ANN, job(), job(), job(gpus="1"), job(gpus="2", time_limit=5.0), job())
        await desk.runs(first), await desk.runs(second)
        await desk.submit(BEN, job(gpus="3"))
        top = await desk(BEN, lambda queue: queue.top())
        assert (len(top.jobs), top.more_jobs, len(top.users), top.more_users) == (1, 3, 1, 1) and top.running == 4
        assert len(asked) == 1
        monkeypatch.setattr(figures, "FRESH", 60.0)
        monkeypatch.setattr(picture, "FRESH", 60.0)
        assert [await desk(who, lambda queue: queue.top()) for who in (ANN, BEN)] and len(asked) == 1
        monkeypatch.setattr(picture, "FRESH", 0.0)
        monkeypatch.setattr(picture, "LOOKS", 1)  # there are two lines
        assert (await desk(BEN, lambda queue: queue.top())).users[0].place == 0 and len(asked) == 1

    play(tmp_path, story, Config(Quotas(), cpu_jobs=2))


def test_metrics_over_http(tmp_path, now):
    """What curl asks; anything else on the socket is not served, and the connection ends."""

    def ask(path: str, request: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))

    async def story(desk):
        (first,) = await desk.submit(ANN, job(gpus="1"))
        await desk.runs(first)
        head, _, body = (
            await asyncio.to_thread(ask, str(desk.path), b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n")
        ).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4") and f"Length: {len(body)}".encode() in head
        assert b"\ndockless_daemon_up 1\n" in body and f'\ndockless_job_gpus{{job="{first}",user="ann"}} 1\n'.encode() in body
        assert (await asyncio.to_thread(ask, str(desk.path), b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
        assert (await asyncio.to_thread(ask, str(desk.path), b"GET \r\n" + b"x: y\r\n" * 200)).startswith(b"HTTP/1.1 404 ")

    play(tmp_path, story)


def test_whose_a_process_is(monkeypatch):
    """The keeper itself counts; a way that comes back to itself, or to nothing, ends."""
    ways = {5: 4, 4: 3, 3: 1, 9: 8, 8: 9, 7: 0, 6: 4}
    asked = []
    monkeypatch.setattr(seen, "_parent", lambda pid: asked.append(pid) or ways[pid])
    monkeypatch.setattr(seen, "_uid", lambda pid: pid * 10)
    assert seen.whose([5, 4, 6, 3, 9, 7, 1], {4: 11, 100: 12}) == {
        5: (50, 11), 4: (40, 11), 6: (60, 11), 3: (30, 0), 9: (90, 0), 7: (70, 0), 1: (10, 0)
    }  # fmt: skip
    assert len(asked) == len(set(asked))


TOP = Top(
    1.0,
    (
        GpuUse(0, "GPU-0", "H100", 80 << 30, job=7, user="ann", busy=0.5, used=40 << 30, temperature=61.4, power=300.0,
               programs=(GpuProgram(11, "ann", 7, 1), GpuProgram(12, "eve", 0, 1 << 30))),
        GpuUse(1, "GPU-1", "H100", 80 << 30, outside=True, programs=(GpuProgram(13),)),
        GpuUse(2, "GPU-2", "H100", 80 << 30, user="ben", outside=True, programs=(GpuProgram(14),)),
        GpuUse(3, "GPU-3", "H100", 80 << 30, trouble="Xid 79"),
        GpuUse(4, "GPU-4", "H100", 80 << 30),
    ),
    (JobUse(7, "ann", "train\x1b[2J\n", (0,), 0.0, 3600.0, 0.5, 1 << 30), JobUse(8, "ben")),
    (UserUse("ann", 1, 1, 3, 9, 2, 90.0), UserUse("ben")),
    2, 3, 4, 5,
)  # fmt: skip
REMARKS = [
    "GPU 0 is used by process 12 of eve, which has no lease, 1 GiB of its memory.",
    "GPU 1 is used by process 13, which has no lease.",
    "GPU 3 is out of service: Xid 79.",
    "Not shown: 4 more jobs, 5 more users.",
]


def test_how_it_is_printed(capfd):
    overview.print_lines(TOP)
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "1 of 5 GPUs free, 2 jobs running, 3 waiting" and lines[-4:] == REMARKS
    assert lines[3].split() == "0 H100 50 % 40 GiB of 80 GiB 61 °C 300 W job 7 ann".split()
    assert [line.split()[2:] for line in lines[4:8]] == [
        ["in", "use", "outside"],
        ["a", "process", "of", "ben", "ben"],
        ["out", "of", "service"],
        ["free"],
    ]
    assert lines[10].split() == "7 ann 0 50 % 1 GiB 1h train\\x1b[2J\\n".split()
    assert lines[14].split() == "ann 1 1 3 job 9 2 in 1m30s".split()


def test_how_it_is_drawn():
    """Names are drawn escaped."""
    from rich.console import Console

    drawn = io.StringIO()
    Console(file=drawn, width=160, color_system=None).print(live.picture(TOP))
    lines = [line.rstrip() for line in drawn.getvalue().splitlines()]
    assert lines[0] == "1 of 5 GPUs free, 2 jobs running, 3 waiting" and lines[-4:] == REMARKS
    assert "━━━━━━━━" in lines[3] and "job 7" in lines[3] and "40 GiB of 80 GiB" in lines[3]
    assert any("train\\x1b[2J\\n" in line for line in lines)
