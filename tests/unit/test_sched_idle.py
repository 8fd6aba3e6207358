"""Jobs that do not use their GPUs: the notice, the end, and what counts as use."""

from __future__ import annotations

import pytest
from support.desk import ANN, BEN, play
from support.stand_in import until

from dockless.errors import BadInput
from dockless.sandbox.gpus.watch import Reading
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State
from dockless.sched.config import Config, load
from dockless.sched.engine.gpus import figures, idle
from dockless.sched.engine.gpus.figures import Figures, Program


@pytest.fixture(autouse=True)
def now(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    now = tmp_path / "gpus-now"
    now.touch()
    monkeypatch.setenv("DOCKLESS_SIMULATED_STATE", str(now))
    monkeypatch.setattr(figures, "FRESH", 0.0)
    return now


def clock(monkeypatch):
    """``go``: the policy's clock goes on by so many seconds."""
    time = [1000.0]
    monkeypatch.setattr(idle.clock, "ticks", lambda: time[0])

    def go(seconds: float) -> None:
        time[0] += seconds

    return go


JOB = JobSpec(Spec(argv=("true",)), gpus="2")


def test_a_job_that_does_not_use_its_gpus(tmp_path, monkeypatch, now):
    """Its owner is told in time, whoever uses one of them again is left alone, and the end has its reason."""
    go = clock(monkeypatch)

    async def story(desk):
        (number,) = await desk.submit(ANN, JOB)
        box = await desk.runs(number)
        entry = desk.engine.entries[number]
        await until(lambda: entry.pidfd >= 0)
        desk.engine.config = Config(idle_after=3600.0, idle_notice=600.0)
        await idle.look(desk.engine)
        go(3599)
        await idle.look(desk.engine)
        assert entry.job.reason == ""
        go(1)
        await idle.look(desk.engine)
        said = "its 2 GPUs were unused for 1h: it is ended in 10m unless it uses them"
        assert (await desk(ANN, lambda client: client.job(number))).reason == said
        assert [*desk.engine.reader.execute("SELECT detail FROM events WHERE event='idle'")] == [(said,)]
        go(599)
        now.write_text("busy 1 3\n")
        await idle.look(desk.engine)
        assert entry.job.reason == ""
        go(3600 + 600)
        now.write_text("process 0 1 1024\n")  # memory alone
        await idle.look(desk.engine)
        assert entry.job.reason == "" and box.said == []
        go(3600)
        await idle.look(desk.engine)
        go(599)
        await idle.look(desk.engine)
        assert entry.job.reason and box.said == []
        go(1.25)
        desk.engine.config = Config(idle_after=3600.0, idle_notice=600.25)
        await idle.look(desk.engine)
        ended = await desk(ANN, lambda client: client.wait(number))
        assert (ended.state, ended.reason) == (
            State.CANCELLED, "ended by the daemon: its 2 GPUs were unused for 1h10m (killed by signal 15)"
        )  # fmt: skip
        assert box.said[0] == "stop"
        assert "unused for 1h10m" in desk.engine.reader.execute("SELECT detail FROM events WHERE event='cancel'").fetchone()[0]

    play(tmp_path, story)


def test_a_notice_goes_with_its_attempt(tmp_path, monkeypatch):
    """A job that is queued again says why it waits, to others, too."""
    go = clock(monkeypatch)

    async def story(desk):
        desk.engine.config = Config(idle_after=60.0, idle_notice=60.0)
        (number,) = await desk.submit(ANN, JOB)
        await desk.runs(number)
        entry = desk.engine.entries[number]
        await until(lambda: entry.pidfd >= 0)
        await idle.look(desk.engine)
        go(60)
        await idle.look(desk.engine)
        assert entry.job.reason
        await desk(0, lambda client: client.drain(everything=True))
        await desk(ANN, lambda client: client.requeue(number))
        await until(lambda: entry.job.state is State.PENDING)
        (seen,) = await desk(BEN, lambda client: client.queue())
        assert seen.reason == "nothing is started: the host was drained by root"

    play(tmp_path, story)


def test_the_notice_is_as_long_as_it_says(tmp_path, monkeypatch):
    """Also where the host slept, or the setting was made shorter than what has gone by."""
    go = clock(monkeypatch)

    async def story(desk):
        (number,) = await desk.submit(ANN, JOB)
        box = await desk.runs(number)
        entry = desk.engine.entries[number]
        await until(lambda: entry.pidfd >= 0)
        desk.engine.config = Config(idle_after=36000.0, idle_notice=600.0)
        await idle.look(desk.engine)
        go(18000)
        desk.engine.config = Config(idle_after=3600.0, idle_notice=600.0)
        await idle.look(desk.engine)
        assert "unused for 5h: it is ended in 10m" in entry.job.reason and not entry.cancelled
        go(599)
        await idle.look(desk.engine)
        assert not entry.cancelled and box.said == []
        go(1)
        await idle.look(desk.engine)
        assert (await desk(ANN, lambda client: client.wait(number))).state is State.CANCELLED

    play(tmp_path, story)


def test_those_that_share_a_gpu_with_each_other_use_it_together(tmp_path, monkeypatch, now):
    """The first may wait for what the others compute."""
    go = clock(monkeypatch)

    async def story(desk):
        gang = [JobSpec(Spec(argv=("true",)), gpus="memory=20G", role=role) for role in ("master", "worker")]
        numbers = await desk(ANN, lambda queue: queue.submit_gang(gang))
        for number in numbers:
            await desk.runs(number)
        entry = desk.engine.entries[numbers[0]]
        await until(lambda: entry.pidfd >= 0)
        now.write_text("busy 0 30\n")
        await idle.look(desk.engine)
        go(3600)
        await idle.look(desk.engine)
        assert entry.job.reason == ""
        now.write_text("")
        await idle.look(desk.engine)
        go(3600)
        await idle.look(desk.engine)
        assert "unused for 1h" in entry.job.reason
        await desk(ANN, lambda queue: queue.cancel(numbers[0], grace=0))

    play(tmp_path, story, Config(share="user", idle_after=3600.0, idle_notice=600.0))


def test_one_without_gpus_and_one_that_is_ending(tmp_path, monkeypatch):
    go = clock(monkeypatch)

    async def story(desk):
        numbers = await desk.submit(ANN, JobSpec(Spec(argv=("true",))), JobSpec(Spec(argv=("true",)), gpus="1"))
        boxes = [await desk.runs(number) for number in numbers]
        await until(lambda: all(desk.engine.entries[number].pidfd >= 0 for number in numbers))
        desk.engine.config = Config(idle_after=1.0)
        ending = desk.engine.entries[numbers[1]]
        await until(lambda: ending.pidfd >= 0)  # from here on a cancel tells the sandbox itself; before, the engine does once it watches
        ending.cancelled = True
        for _ in range(3):
            go(1000)
            await idle.look(desk.engine)
        assert [box.said for box in boxes] == [[], []]
        assert all(desk.engine.entries[number].job.reason == "" for number in numbers)

    play(tmp_path, story)


PROGRAM = (Program(1, 0, 0, None),)


@pytest.mark.parametrize(
    ("busy", "programs", "used"),
    [(0.0, (), False), (0.0, PROGRAM, False), (0.01, (), True), (None, (), False), (None, PROGRAM, True)],
)
def test_what_counts_as_use(busy, programs, used):
    assert idle.used(Figures(Reading("GPU-0", busy), programs), 1, alone=True) is used and idle.used(None, 1, alone=True)


@pytest.mark.parametrize(
    ("mine", "neighbour", "server", "used"),
    [(0.0, 0.9, 0.0, False), (0.2, 0.9, 0.0, True), (None, 0.9, 0.0, True), (0.0, 0.0, 0.5, True), (0.0, None, None, False)],
)
def test_what_counts_as_use_of_a_shared_gpu(mine, neighbour, server, used):
    """Its own programs, not its neighbours'; what a server of MPS computes may be for anybody."""
    programs = (Program(1, 0, 7, None, mine), Program(2, 0, 8, None, neighbour), Program(3, 0, 0, None, server))
    assert idle.used(Figures(Reading("GPU-0", 0.9), programs), 7, alone=False) is used


def test_its_settings(tmp_path):
    """Off unless it is asked for."""
    path = tmp_path / "dockless.toml"
    assert Config().idle_after == 0
    path.write_text('[gpus]\nidle_after = "2h"\nidle_notice = 30\n')
    assert (load(path).idle_after, load(path).idle_notice) == (7200.0, 30.0)
    path.write_text('[gpus]\nidle_after = "soon"\n')
    with pytest.raises(BadInput, match="idle_after is 'soon', not a time"):
        load(path)
