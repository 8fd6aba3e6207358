"""``quota show``: who has what, and may have."""

from __future__ import annotations

import json
from dataclasses import replace

from support.desk import ANN, BEN, play
from support.quotas import limits

from dockless.cli import main
from dockless.errors import BadInput, NotEnoughGpus, NotPermitted, Refused
from dockless.sandbox.gpus import gpu, lease
from dockless.sandbox.spec import Spec
from dockless.sched import ClassInfo, JobSpec, QuotaInfo
from dockless.sched.config import Config
from dockless.sched.policy.quotas import ClassQuota, Quota, Quotas
from dockless.sched.wire import picture

CONFIG = Config(
    limits({"ann": Quota(1, jobs=5, guarantee=1, queued=9), "zoe": 3}, {"vision": Quota(2, weight=4), "empty": 1}),
    {"vision": ("ann",)},
    cpu_jobs=1,
)


def test_who_has_what(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    monkeypatch.setenv("DOCKLESS_SOCKET", str(tmp_path / "s"))
    spec = Spec(argv=("true",))

    async def story(desk):
        numbers = await desk.submit(ANN, JobSpec(spec, gpus="1"), JobSpec(spec), JobSpec(spec, gpus="1"), JobSpec(spec))
        await desk.submit(BEN, JobSpec(spec))
        for number in numbers[:2]:
            await desk.runs(number)
        found = await desk(BEN, lambda queue: queue.quotas())
        ann, ben, zoe, empty, vision = found
        assert ann == QuotaInfo("user", "ann", 1, 2, 1, 2, limit=1, guarantee=1, jobs=5, queued=9, in_queue=4)
        assert ben == QuotaInfo("user", "ben", waiting=1, in_queue=1) and zoe == QuotaInfo("user", "zoe", limit=3)
        assert empty == QuotaInfo("group", "empty", limit=1)
        assert vision == QuotaInfo("group", "vision", 1, 2, 1, 2, limit=2, weight=4, in_queue=4)
        assert await desk(ANN, lambda _: main(["quota", "show"])) == 0
        rows = [line.split("  ") for line in capfd.readouterr().out.splitlines()]
        assert [[cell.strip() for cell in row if cell.strip()] for row in rows[:3]] == [
            ["QUOTA", "GPUS", "GUARANTEE", "WEIGHT", "JOBS", "WITHOUT GPUS", "WAITING", "QUEUED"],
            ["user ann", "1 of 1", "1", "-", "2 of 5", "1", "2", "4 of 9"],
            ["user ben", "0", "-", "-", "0", "0", "1", "1"],
        ]
        assert await desk(ANN, lambda _: main(["quota", "show", "--json"])) == 0
        assert json.loads(capfd.readouterr().out) == [one.as_dict() for one in found]

    play(tmp_path, story, CONFIG)


def test_what_is_leased_at_this_moment_without_the_queue_counts(tmp_path, monkeypatch):
    """Also where no job waits, so that nobody else looks."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")

    async def story(desk):
        await desk(ANN, lambda queue: queue.quotas())
        with lease.lease(gpu.parse_request("device=1")):
            found = await desk(ANN, lambda queue: queue.quotas())
            assert [(one.gpus, one.running) for one in found if one.gpus] == [(1, 0)]
        assert not any(one.gpus for one in await desk(ANN, lambda queue: queue.quotas()))

    play(tmp_path, story)


def test_of_a_class(tmp_path, monkeypatch, capfd):
    """Jobs get slices of the class that they ask for, one waits for its quota, and one that could never start is refused."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G,mig=4")
    monkeypatch.setenv("DOCKLESS_SOCKET", str(tmp_path / "s"))

    async def story(desk):
        jobs = [JobSpec(Spec(argv=("true",)), gpus=gpus) for gpus in ("class=1g.20gb", "memory=20G", "class=1g.20gb", "class=whole")]
        one, two, three, four = await desk.submit(ANN, *jobs)
        for number in (one, two, four):
            await desk.runs(number)
        devices = [desk.engine.entries[number].job.devices[0][:4] for number in (one, two, four)]
        assert devices == ["MIG-", "MIG-", "GPU-"]
        why = await desk(ANN, lambda queue: queue.why(three))
        assert (
            why.reason
            == "needs 1 GPU of class 1g.20gb, 2 free; user ann uses 2 of 2 of class 1g.20gb; waits for job 1, which has no time limit"
        )
        (ann,) = await desk(ANN, lambda queue: queue.quotas())
        assert ann.gpus == 3 and ann.classes == (ClassInfo("1g.20gb", 2, 2, 1, 3),)
        assert await desk(ANN, lambda _: main(["quota", "show"])) == 0
        cells = [cell.strip() for cell in capfd.readouterr().out.splitlines()[1].split("  ") if cell.strip()]
        assert cells[:4] == ["user ann", "3, 1g.20gb 2 of 2", "1g.20gb 1", "2, 1g.20gb 3"]
        refused = JobSpec(Spec(argv=("true",)), gpus="3,class=1g.20gb")
        words = await desk.refused(Refused, ANN, lambda queue: queue.submit(refused))
        assert words == "needs 3 GPUs, the quota of user ann is 2 of class 1g.20gb: this could never start"
        assert "this host has 0 of it" in await desk.refused(
            NotEnoughGpus, ANN, lambda queue: queue.submit(replace(refused, gpus="class=H100"))
        )

    play(tmp_path, story, Config(limits({"ann": Quota(classes={"1g.20gb": ClassQuota(2, 1, 3)}, weight=2)})))


def test_where_there_is_nobody(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("DOCKLESS_SOCKET", str(tmp_path / "s"))

    async def story(desk):
        assert await desk(ANN, lambda _: main(["quota", "show"])) == 0
        assert capfd.readouterr().out == "No quotas are set, and nobody has a job.\n"

    play(tmp_path, story)


def test_the_default_has_a_line_of_its_own(tmp_path, monkeypatch, capfd):
    """Also where nobody has a job."""
    monkeypatch.setenv("DOCKLESS_SOCKET", str(tmp_path / "s"))

    async def story(desk):
        assert await desk(ANN, lambda queue: queue.quotas()) == [
            QuotaInfo("default", "", limit=1, cpu_jobs=3, classes=(ClassInfo("H100", 0, 2),))
        ]
        assert await desk(ANN, lambda _: main(["quota", "show"])) == 0
        line = capfd.readouterr().out.splitlines()[1].split("  ")
        assert [cell.strip() for cell in line if cell.strip()] == ["each other user", "1, H100 2", "-", "-", "-", "3", "-", "-"]

    play(tmp_path, story, Config(Quotas(default=Quota(limit=1, cpu_jobs=3, classes={"H100": ClassQuota(limit=2)}))))


def test_settings_that_are_read_again_hold_at_once(tmp_path, home, monkeypatch):
    """Places are those of the order that holds: as they came; who stays within a guarantee before who would borrow; who has had least."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G")
    wanted, file = JobSpec(Spec(argv=("true",)), gpus="1"), home / "dockless.toml"

    async def story(desk):
        (holder,) = await desk.submit(0, wanted)
        await desk.runs(holder)
        waiting = [(await desk.submit(who, wanted))[0] for who in (0, ANN, BEN)]

        async def places(text):
            file.write_text(text)
            assert await desk(0, lambda queue: queue.reload()) == file
            found = [(await desk(0, lambda queue, one=one: queue.why(one))).place for one in waiting]
            top = {row.user: row.place for row in (await desk(0, lambda queue: queue.top())).users}
            assert found == [top["root"], top["ann"], top["ben"]]
            return found

        assert "only an administrator" in await desk.refused(NotPermitted, ANN, lambda queue: queue.reload())
        monkeypatch.setattr(picture, "FRESH", 0.0)
        assert await places("") == [1, 2, 3]
        assert await places("[quota.users]\nben = { guarantee = 1 }\n") == [2, 3, 1]
        assert await places("[queue]\norder = 'fair'\n[quota]\ndefault = { weight = 2, jobs = 7 }\n") == [3, 1, 2]
        assert desk.engine.config.quotas.default == Quota(weight=2, jobs=7)
        file.write_text("[queue]\norder = 'fare'\n")
        assert "queue.order is 'fare'" in await desk.refused(BadInput, 0, lambda queue: queue.reload())
        assert desk.engine.config.order == "fair"

    play(tmp_path, story)


def test_a_class_of_which_there_is_no_gpu_is_in_the_log(tmp_path, home, monkeypatch, capfd):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G")

    async def story(desk):
        (home / "dockless.toml").write_text("[quota]\ndefault = { classes = { whole = 1, H10O = 1 } }\n")
        await desk(0, lambda queue: queue.reload())

    play(tmp_path, story)
    told = [line for line in capfd.readouterr().err.splitlines() if "no GPU of this host" in line]
    assert len(told) == 1 and told[0].endswith("dockless.toml:2: quota.default.classes.H10O: no GPU of this host is of class H10O")
