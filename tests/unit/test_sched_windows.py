"""Reserved hours in the daemon: as the settings say, read again while it runs, shown, and said to those who wait."""

from __future__ import annotations

import json
import time

from support.desk import ANN, BEN, play
from support.stand_in import until

from dockless.base.occasions import Occasion
from dockless.cgroups import Limits
from dockless.cli import main
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, ReservationInfo, State
from dockless.sched.config import Config, Reserved
from dockless.sched.engine.waiting.windows import said, windows


def test_who_has_the_gpus_then(tmp_path, home, monkeypatch, capfd):
    """Ann is in the group, Ben is not."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    monkeypatch.setenv("DOCKLESS_SOCKET", str(tmp_path / "s"))
    starts = time.time() - 60
    text = said(starts, starts + 7200)
    job = JobSpec(Spec(argv=("true",)), gpus="1")

    async def story(desk):
        (late,) = await desk.submit(BEN, job)
        (own,) = await desk.submit(ANN, job)
        await desk.runs(own)
        assert not desk.engine.entries[late].job.devices
        why = await desk(BEN, lambda queue: queue.why(late))
        assert why.reason == f"needs 1 GPU, 1 free; 2 are kept for ml101 {text}"
        (one,) = (await desk(BEN, lambda queue: queue.info())).reservations
        assert one == ReservationInfo("ml101", 2, (), ("vision",), starts, starts + 7200, text)
        assert await desk(BEN, lambda _: main(["info"])) == 0
        assert f"reserved    ml101: 2 GPUs {text}, for group vision\n" in capfd.readouterr().out
        assert await desk(BEN, lambda _: main(["info", "--json"])) == 0
        assert json.loads(capfd.readouterr().out)["reservations"][0]["text"] == text

    play(tmp_path, story, Config(reservations=(Reserved("ml101", Occasion(starts), 7200.0, groups=("vision",), gpus=2),)))


def test_cores_and_memory(tmp_path, monkeypatch, capfd):
    """Jobs without GPUs, too."""
    monkeypatch.setenv("DOCKLESS_SOCKET", str(tmp_path / "s"))
    text = said(starts := time.time() - 60, starts + 7200)

    def job(cores: float) -> JobSpec:
        return JobSpec(Spec(argv=("true",), limits=Limits(cpu_max=cores), best_effort=True))

    async def story(desk):
        (late,) = await desk.submit(BEN, job(3))
        (own,) = await desk.submit(ANN, job(4))
        await desk.runs(own)
        why = await desk(BEN, lambda queue: queue.why(late))
        assert why.reason == f"needs 3 cores, 4 free; 6 cores are kept for lab {text}"
        assert why.sooner == ("with 2 cores instead of 3",)
        (one,) = (await desk(BEN, lambda queue: queue.info())).reservations
        assert (one.gpus, one.cores, one.memory) == (0, 6, 1 << 30)
        assert await desk(BEN, lambda _: main(["info"])) == 0
        assert f"reserved    lab: 6 cores, 1 GiB of memory {text}, for group vision\n" in capfd.readouterr().out

    reserved = Reserved("lab", Occasion(starts), 7200.0, groups=("vision",), cores=6, memory=1 << 30)
    play(tmp_path, story, Config(reservations=(reserved,), cores=8, memory=64 << 30))


def test_read_again(tmp_path, home, monkeypatch):
    """What runs goes on; who waits starts when the hours are taken out."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    job = JobSpec(Spec(argv=("true",)), gpus="1")
    text = "[reservations.ml101]\ngpus = 2\nusers = ['daemon']\nstart = 'daily 00:00'\nduration = '24h'\n"

    async def story(desk):
        async def reads(text):
            (home / "dockless.toml").write_text(text)
            await desk(0, lambda queue: queue.reload())
            return [one.name for one in (await desk(0, lambda queue: queue.info())).reservations]

        (early,) = await desk.submit(0, job)
        await desk.runs(early)
        assert await reads(text) == ["ml101"]
        (late,) = await desk.submit(0, job)
        assert "2 are kept for ml101" in (await desk(0, lambda queue: queue.why(late))).reason
        assert desk.engine.entries[early].job.devices
        assert await reads("") == []
        await desk.runs(late)

    play(tmp_path, story)


def test_a_group_that_is_named_while_jobs_wait(tmp_path, home, monkeypatch):
    """Who is in it is asked with each decision: also of jobs that were queued before, and once somebody has left it."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G")
    job = JobSpec(Spec(argv=("true",)), gpus="1")
    text = "[reservations.ml101]\ngpus = 1\nstart = 'daily 00:00'\nduration = '24h'\n"

    async def story(desk):
        async def reads(text):
            (home / "dockless.toml").write_text(text)
            await desk(0, lambda queue: queue.reload())
            desk.know_people()
            desk.engine.kick()

        await reads(text + "users = ['nobody']\n")
        (bens,) = await desk.submit(BEN, job)
        (anns,) = await desk.submit(ANN, job)
        await reads(text + "groups = ['vision']\n")  # the system's: Ann is in it
        (await desk.runs(anns)).end(Exit(0, None))
        await until(lambda: anns not in desk.engine.entries)
        assert desk.engine.entries[bens].job.state is State.PENDING
        (anns,) = await desk.submit(ANN, job)
        box = await desk.runs(anns)
        (after,) = await desk.submit(ANN, job)
        await reads(text + "groups = ['vision']\n[groups]\nvision = ['ben']\n")
        box.end(Exit(0, None))
        (await desk.runs(bens)).end(Exit(0, None))
        await until(lambda: bens not in desk.engine.entries)
        assert "1 are kept for ml101" in (await desk(ANN, lambda queue: queue.why(after))).reason

    play(tmp_path, story)


def test_for_those_that_are_named_and_for_the_members_of_groups():
    reserved = Reserved("ml101", Occasion(1000.0), 60.0, users=("prof",), groups=("vision",), gpus=1)
    (window,) = windows([reserved], 5.0, 900.0, lambda groups: {"ann"} if groups == ("vision",) else set(), {})
    assert (window.users, window.starts, window.ends) == ({"prof", "ann"}, 105.0, 165.0)


def test_how_they_are_said():
    ten = time.mktime((2026, 11, 24, 10, 0, 0, 0, 0, -1))
    assert said(ten, ten + 7200) == "from Tue 2026-11-24 10:00 to 12:00"
    assert said(ten, ten + 86400) == "from Tue 2026-11-24 10:00 to Wed 2026-11-25 10:00"
