"""Cores and memory in the daemon: what a job asks is kept with it, and what the host has follows the settings."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.stand_in import engine, until

from dockless.base.records import differences
from dockless.cgroups import Limits
from dockless.cli.overview import headline
from dockless.errors import Refused
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import State
from dockless.sched.callers import Caller, Callers
from dockless.sched.config import Config
from dockless.sched.engine.admission.admission import Admission
from dockless.sched.engine.host import host_supplies, weights
from dockless.sched.jobs import JobSpec, options_of
from dockless.sched.policy.supplies import CORES, MEMORY, Supply, amount
from dockless.sched.wire.answers import Answers
from dockless.sched.wire.picture import Picture

ME = Caller(0, "root", frozenset(), True)
pytestmark = pytest.mark.usefixtures("two_gpus")


def asking(gpus: str = "", **limits) -> JobSpec:
    # best_effort: counted all the same, also on a host that cannot enforce it.
    return JobSpec(Spec(argv=("true",), limits=Limits(**limits), best_effort=True), gpus=gpus)


def states(running) -> list[State]:
    return [entry.job.state for _, entry in sorted(running.entries.items())]


def test_jobs_that_ask_too_much_together_run_one_after_the_other(tmp_path, launcher):
    """Also after the daemon was started again, which reads no specs."""
    config = Config(cores=4, memory=16 << 30)

    async def play():
        async with engine(tmp_path, launcher, config) as running:
            jobs = [asking(cpu_max=2.5), asking("1", cpu_max=1.501), asking(memory_max=17 << 30)]
            await running.submit(ME, [differences(job) for job in jobs[:2]], None)
            await running.submit(ME, [differences(asking(cpu_max=0.5, memory_max=16 << 30))], None)
            await until(lambda: states(running) == [State.RUNNING, State.PENDING, State.RUNNING])
            with pytest.raises(Refused, match="needs 17 GiB of memory, and this host has 16 GiB for such a job: this could never start"):
                await running.submit(ME, [differences(jobs[2])], None)
            box = next(box for box in launcher.boxes.values() if box.id.startswith("job-3-"))
            await running.submit(ME, [differences(asking(memory_max=1 << 20))], None)
            box.end(Exit(0, None))
            await until(lambda: states(running) == [State.RUNNING, State.PENDING, State.RUNNING])
        async with engine(tmp_path, launcher, config) as running:
            await until(lambda: running.decision is not None)
            assert states(running) == [State.RUNNING, State.PENDING, State.RUNNING]
            assert running.decision.reason(running.entries[2].waiting).text.startswith("needs 1 GPU, 2 free; needs 1.501 cores, 1.5 free")
            info = Answers(running).info()
            assert (info.cores, info.cores_used, info.memory, info.memory_used) == (4.0, 2.5, 16 << 30, 1 << 20)
            top = await Picture(Answers(running)).seen_by(ME)
            assert headline(top) == "2 of 2 GPUs free, 2.5 of 4 cores, 1 MiB of 16 GiB memory, 2 jobs running, 1 waiting"
            running.configure(replace(config, cores=5))
            await until(lambda: states(running) == [State.RUNNING] * 3)

    asyncio.run(play())


def test_what_is_reserved_counts_and_limits_nothing(tmp_path, launcher):
    """``reserve_cpus`` and the memory that the kernel keeps, where they are more than the limits."""

    async def play():
        async with engine(tmp_path, launcher, Config(cores=4, memory=16 << 30)) as running:
            jobs = [replace(asking(cpu_max=1), reserve_cpus=2.5), replace(asking(), reserve_cpus=1.6), asking(memory_low=16 << 30)]
            await running.submit(ME, [differences(job) for job in jobs], None)
            await until(lambda: states(running) == [State.RUNNING, State.PENDING, State.RUNNING])
            (first,) = (box for box in launcher.boxes.values() if box.id.startswith("job-1-"))
            assert first.spec.limits.cpu_max == 1
            assert Answers(running).info().cores_used == 2.5
            for job, wrong in (
                (replace(asking(), reserve_cpus=4.1), "needs 4.1 cores, and this host has 4 for such a job: this could never start"),
                (asking(memory_min=17 << 30), "needs 17 GiB of memory, and this host has 16 GiB for such a job: this could never start"),
            ):
                with pytest.raises(Refused, match=wrong):
                    await running.submit(ME, [differences(job)], None)

    asyncio.run(play())


def test_what_could_never_start_is_refused():
    gpus = SimpleNamespace(resolve=lambda text: (int(text or 0), ()), class_of=lambda text: "", units=4, slices=frozenset(), shareable={})
    supplies = {CORES: Supply(32000, 4000), MEMORY: Supply(64 << 30)}
    config = Config()
    desk = Admission(config, gpus, Callers(config), lambda image: None, supplies)
    assert desk.admit(ME, asking(cpu_max=16.0)) and desk.admit(ME, asking("2", cpu_max=24.0)) and desk.admit(ME, asking("1"))
    text = "needs 20.5 cores, and this host has 20 for such a job, as 4 stay with each GPU: this could never start"
    with pytest.raises(Refused, match=text) as caught:
        desk.admit(ME, asking("1", cpu_max=20.5))
    assert caught.value.subject == "cpus" and "host.cores and host.cores_per_gpu" in caught.value.hint
    with pytest.raises(Refused, match="needs 65 GiB of memory, and this host has 64 GiB for such a job: this") as caught:
        desk.admit(ME, asking(memory_max=65 << 30))
    assert caught.value.subject == "memory"


@pytest.mark.parametrize(("cores", "found"), [(1.1, 1100), (0.0015, 2), (0.1 + 0.2, 300), (32.0, 32000)])
def test_cores_are_counted_in_thousandths(cores, found):
    assert options_of(asking(cpu_max=cores), "ann").millicores == found


def test_what_the_host_has(monkeypatch):
    """By the affinity of the daemon and the limits of its groups; a part of the memory is left to the host."""
    assert host_supplies.here(Config(cores=3, memory=5, cores_per_gpu=1, memory_per_job=2)) == {
        CORES: Supply(3000, 1000, 0),
        MEMORY: Supply(5, 0, 2),
    }
    files: dict[str, list[str]] = {}
    monkeypatch.setattr(host_supplies, "_of_own_groups", lambda file: files.get(file, []))
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert host_supplies.cores_here() == 1000 * len(os.sched_getaffinity(0))
    assert host_supplies.memory_here() == whole - min(whole // 16, 8 << 30)
    files |= {"cpu.max": ["max 100000", "150000 100000"], "memory.max": ["max", "1048576"]}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64))
    assert (host_supplies.cores_here(), host_supplies.memory_here()) == (1500, 1 << 20)


def test_amounts_in_words():
    assert [amount(CORES, value) for value in (1000, 1500, 32000)] == ["1 core", "1.5 cores", "32 cores"]
    assert amount(MEMORY, 3 << 29) == "1.5 GiB of memory"


def test_what_is_in_use_is_what_the_policy_counts(tmp_path, launcher):
    """The part of a GPU goes with it, used or not: who asks for less has all of it, and leaves others no more."""

    async def play():
        async with engine(tmp_path, launcher, Config(cores=8, cores_per_gpu=3, cores_per_job=2)) as running:
            await running.submit(ME, [differences(job) for job in (asking("1", cpu_max=1.0), asking("1", cpu_max=4.0), asking())], None)
            await until(lambda: states(running) == [State.RUNNING, State.RUNNING, State.PENDING])
            assert host_supplies.in_use(running, CORES) == (8000, 3000 + 4000)
            assert running.decision.reason(running.entries[3].waiting).text.startswith("needs 2 cores, 1 free")

    asyncio.run(play())


def test_a_user_weighs_what_her_running_jobs_have(tmp_path, launcher, monkeypatch):
    """When one has started, and when one has ended. Only root's daemon has groups of users."""
    said, groups = [], int(os.geteuid() == 0)
    monkeypatch.setattr(weights.users, "weigh", lambda uid, weight: said.append((uid, weight)))

    async def play():
        async with engine(tmp_path, launcher, Config(cores=8)) as running:
            numbers = await running.submit(ME, [differences(asking(cpu_max=cores)) for cores in (2.0, 1.5)], None)
            await until(lambda: states(running) == [State.RUNNING] * 2)
            await until(lambda: said[-1:] == [(0, 350)][:groups])
            launcher.boxes[running.name(numbers[0], 1)].end(Exit(0, None))
            await until(lambda: numbers[0] not in running.entries)
            await until(lambda: said[-1:] == [(0, 150)][:groups])

    asyncio.run(play())
