"""Processors that no other user's jobs run on: which they are, and that the users' groups follow what starts and ends."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.desk import ANN, BEN, play
from support.requires import requires
from support.stand_in import StandIn, engine, left_running, until

from dockless.cgroups import Delegation, Limits, delegation, users
from dockless.errors import BadInput, Refused
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec
from dockless.sched.config import Config
from dockless.sched.engine import reading
from dockless.sched.engine.host import own_cores
from dockless.sched.engine.host.own_cores import divide
from dockless.sched.jobs import JobOptions

EIGHT = frozenset(range(8))


def test_the_last_are_given_first_and_the_first_one_to_nobody():
    assert divide({1: 3, 2: 2, 3: 0}, EIGHT, {}) == {1: {5, 6, 7}, 2: {3, 4}}
    assert divide({1: 9}, EIGHT, {}) == {1: EIGHT - {0}}
    assert divide({1: 7, 2: 1}, EIGHT, {}) == {1: EIGHT - {0, 1}, 2: {1}}, "who wants few is not left with none"
    assert divide({1: 7, 2: 1}, EIGHT, {1: EIGHT - {0}}) == {1: EIGHT - {0, 7}, 2: {7}}, "nor who comes later"
    assert divide({1: 1}, frozenset({4}), {}) == {}


def test_who_had_some_keeps_them():
    assert divide({1: 1, 2: 2}, EIGHT, {2: {6, 7}}) == {1: {5}, 2: {6, 7}}
    assert divide({2: 1}, EIGHT, {2: {6, 7}}) == {2: {6}}
    assert divide({2: 2}, EIGHT - {7}, {2: {6, 7}}) == {2: {5, 6}}, "that processor has been switched off"
    assert divide({1: 1, 2: 1}, frozenset({5, 6}), {1: {5}, 2: {6}}) == {2: {6}}, "what is now the first one is everybody's"
    assert divide({1: 1}, frozenset({3}), {1: {3}}) == {}


@given(st.lists(st.dictionaries(st.integers(1, 5), st.integers(0, 6), max_size=5), min_size=1, max_size=6), st.integers(1, 12))
def test_nobody_shares_them_and_they_stay(moments, count):
    processors, before = frozenset(range(count)), {}
    for wanted in moments:
        found = divide(wanted, processors, before)
        alone = [number for numbers in found.values() for number in numbers]
        assert len(alone) == len(set(alone)) == min(sum(wanted.values()), count - 1) and set(alone) < processors
        assert all(len(numbers) <= wanted[uid] for uid, numbers in found.items())
        for uid, numbers in found.items():
            assert numbers <= before.get(uid, frozenset()) or numbers >= before.get(uid, frozenset()), "none is exchanged"
        before = found


@pytest.fixture
def kept_to(tmp_path, monkeypatch):
    """What the group of each user is kept to, in directories in the place of theirs; of four processors."""
    place = Delegation(tmp_path / "groups", frozenset(), frozenset(), "root", "")
    monkeypatch.setattr(users, "find_delegation", lambda **_: place)
    monkeypatch.setattr(delegation, "find_delegation", lambda **_: place)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    for uid in (ANN, BEN):
        (place.home / users.group_of(uid)).mkdir(parents=True)
        (place.home / users.group_of(uid) / "cpuset.cpus").write_text("0")

    def read(uid: int) -> str:
        return (place.home / users.group_of(uid) / "cpuset.cpus").read_text().partition("\n")[0]

    return read


def names(cores: float | None) -> JobSpec:
    return JobSpec(Spec(argv=("true",), limits=Limits(cpu_max=cores), best_effort=True))


async def runs(desk, uid, job):
    (number,) = await desk.submit(uid, job)
    return number, await desk.runs(number)


@requires("root")
def test_the_groups_follow(tmp_path, kept_to):
    async def story(desk):
        first = await runs(desk, ANN, names(2.0))
        await until(lambda: kept_to(ANN) == "0-3")
        await runs(desk, BEN, names(None))
        await until(lambda: kept_to(BEN) == "0-1")
        await runs(desk, BEN, names(1.5))
        await until(lambda: kept_to(ANN) == "0,2-3")
        first[1].end(Exit(0, None))
        await until(lambda: kept_to(BEN) == "0-3")
        desk.engine.configure(Config(cores=4))
        await runs(desk, ANN, names(1.0))
        assert not desk.engine.alone

    play(tmp_path, story, Config(cores=4, own_cores="yes"))


@requires("root")
def test_a_setting_that_is_gone_leaves_nobody_confined(tmp_path, kept_to):
    async def story(desk):
        await runs(desk, ANN, names(2.0))
        await runs(desk, BEN, names(None))
        await until(lambda: kept_to(BEN) == "0-1")
        desk.engine.configure(Config(cores=4))
        await until(lambda: kept_to(BEN) == "0-3")
        users.confine(BEN, frozenset({1}))  # an earlier daemon did
        own_cores.taken_up(desk.engine)
        await until(lambda: kept_to(BEN) == "0-3")

    play(tmp_path, story, Config(cores=4, own_cores="yes"))


@requires("root")
def test_what_all_jobs_of_a_user_have_is_added_up_and_what_start_together_have_counts_once(tmp_path, kept_to):
    async def story(desk):
        pair = [JobSpec(Spec(argv=("true",), network="host", limits=Limits(cpu_max=1.0), best_effort=True), role="worker")] * 2
        for number in await desk(BEN, lambda queue: queue.submit_gang(pair)):
            await desk.runs(number)
        await until(lambda: desk.engine.alone == {BEN: {2, 3}})
        await runs(desk, ANN, names(0.5))
        await runs(desk, ANN, names(0.5))
        await until(lambda: desk.engine.alone == {BEN: {2, 3}, ANN: {1}})

    play(tmp_path, story, Config(cores=4, own_cores="yes"))


@requires("root")
@pytest.mark.parametrize(("said", "alone"), [("yes", {ANN: {2, 3}}), ("no", {})])
def test_the_groups_of_jobs_that_an_earlier_daemon_started(tmp_path, kept_to, two_gpus, said, alone):
    """Also one that had other settings."""
    launcher = StandIn(tmp_path / "boxes")
    left_running(tmp_path, launcher, uid=ANN, user="ann", options=JobOptions(millicores=2000))

    async def story():
        async with engine(tmp_path, launcher, Config(cores=4, own_cores=said)) as running:
            await until(lambda: kept_to(ANN) == "0-3")
            assert running.alone == alone

    asyncio.run(story())


def test_the_controller_is_switched_on_where_somebody_is_kept_off_a_processor(kept_to, monkeypatch):
    told = []
    monkeypatch.setattr(delegation, "enable", lambda place, names: told.append(names))
    own_cores._write({ANN: frozenset(range(4))})
    assert not told and kept_to(ANN) == "0-3"
    own_cores._write({ANN: frozenset(range(4)), BEN: frozenset({0})})
    assert told == [("cpuset",)] and kept_to(BEN) == "0"


@requires("root")
def test_a_group_that_is_made_while_the_old_one_is_written_is_written_too(tmp_path, kept_to, monkeypatch):
    confine, written = users.confine, []

    def slowly(uid, processors):
        if uid == BEN and BEN not in written:
            desks[0].engine.confined[BEN] = own_cores.NOT_KNOWN  # a start of his found no group
        written.append(uid)
        confine(uid, processors)

    desks = []

    async def story(desk):
        desks.append(desk)
        await runs(desk, ANN, names(2.0))
        await runs(desk, BEN, names(None))
        await until(lambda: written.count(BEN) == 2 and not desk.engine.confining)
        assert desk.engine.confined[BEN] == {0, 1}

    monkeypatch.setattr(users, "confine", slowly)
    play(tmp_path, story, Config(cores=4, own_cores="yes"))


def test_a_job_does_not_choose_its_processors_then(tmp_path):
    async def story(desk):
        with pytest.raises(Refused, match=r"cannot choose its processors on this host.*host\.own_cores"):
            await desk.submit(ANN, JobSpec(Spec(argv=("true",), limits=Limits(cpuset_cpus="0"), best_effort=True)))

    play(tmp_path, story, Config(cores=4, own_cores="yes"))


def test_a_host_without_the_controller_is_told(tmp_path, monkeypatch):
    import dockless.cgroups as cgroups

    monkeypatch.setattr(cgroups, "find_delegation", lambda: Delegation(None, frozenset(), frozenset(), "none", "a test"))
    reading.check_own_cores(Config())
    with pytest.raises(BadInput, match=r"host\.own_cores: cpuset\.cpus cannot be limited: a test"):
        reading.check_own_cores(Config(own_cores="yes"))
    (tmp_path / "dockless.toml").write_text('[host]\nown_cores = "yes"\n')
    monkeypatch.setattr(reading, "check_possible", lambda _: None)  # whoever we are
    monkeypatch.setenv("DOCKLESS_HOME", str(tmp_path))
    with pytest.raises(BadInput, match=r"host\.own_cores: cpuset\.cpus cannot be limited"):
        reading.settings()
