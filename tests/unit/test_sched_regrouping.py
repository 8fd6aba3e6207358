"""The groups that jobs count against follow the settings, also for jobs that wait and run already."""

from __future__ import annotations

import asyncio

import pytest
from support.quotas import limits
from support.stand_in import check, engine, until

from dockless.base.records import differences
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State
from dockless.sched.callers import Caller
from dockless.sched.config import Config
from dockless.sched.policy.quotas import Quota

ROOT = Caller(0, "root", frozenset(), True)
OF_TWO = Config(limits(groups={"vision": Quota(1, jobs=2)}), {"vision": ("root",)}, cpu_jobs=3)
OF_OTHERS = Config(limits(groups={"vision": 1}), {"vision": ("ann",)})
pytestmark = pytest.mark.usefixtures("two_gpus")


def plain(gpus: str = "1", **how) -> dict:
    return differences(JobSpec(Spec(argv=("true",)), gpus=gpus, **how))


def states(running) -> list[State]:
    return [entry.job.state for _, entry in sorted(running.entries.items())]


def groups_on_disk(running) -> set[str]:
    return {found for (found,) in running.reader.execute("SELECT quota_groups FROM jobs WHERE ended = 0")}


def test_a_quota_that_is_set_later_holds_for_what_waits_and_counts_what_runs(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            await running.submit(ROOT, [plain()] * 3, None)
            await until(lambda: states(running) == [State.RUNNING, State.RUNNING, State.PENDING])
            running.configure(OF_TWO)
            await until(lambda: groups_on_disk(running) == {'["vision"]'})
            next(box for box in launcher.boxes.values() if box.id.startswith("job-1-")).end(Exit(0, None))
            await until(lambda: 1 not in running.entries)
            await running.decided()
            assert states(running) == [State.RUNNING, State.PENDING]
            assert "group vision uses 1 of 1" in running.decision.reason(running.entries[3].waiting).text
            check(running)
            running.configure(OF_OTHERS)
            await until(lambda: states(running) == [State.RUNNING, State.RUNNING])
            check(running)

    asyncio.run(play())


def test_it_holds_for_those_that_a_daemon_finds_when_it_comes_back(tmp_path, launcher):
    """Also for those that are held, wait for their turn of an array, or start together, of which it looks at no more than it has to."""

    async def play():
        async with engine(tmp_path, launcher) as running:
            await running.submit(ROOT, [plain()] * 2, None)
            await until(lambda: states(running) == [State.RUNNING, State.RUNNING])
            await running.submit(ROOT, [plain(), plain(hold=True)], None)
            await running.submit(ROOT, [plain(array_limit=1)], 2)
            await running.submit(ROOT, [plain(role="a"), plain("", role="b")], None, gang=True)
        async with engine(tmp_path, launcher, OF_TWO) as running:
            await until(lambda: groups_on_disk(running) == {'["vision"]'})
            assert {entry.waiting.groups for entry in running.entries.values()} == {("vision",)}
            assert {entry.live.quota_groups for entry in running.entries.values()} == {("vision",)}
            check(running)
        async with engine(tmp_path, launcher, OF_OTHERS) as running:
            assert {entry.live.quota_groups for entry in running.entries.values()} == {()}
            await until(lambda: groups_on_disk(running) == {"[]"})
            check(running)

    asyncio.run(play())
