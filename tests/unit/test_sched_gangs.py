"""Jobs that start together: what ends them all, what each is told, and what the engine does where things go wrong."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3

import pytest
from support.desk import play as play_at_desk
from support.requires import requires
from support.stand_in import engine, until

from dockless.base.dataclass import replace
from dockless.base.records import differences
from dockless.cgroups import Delegation, Limits, users
from dockless.errors import BadInput, CommandNotFound, DocklessError, NotEnoughGpus, NotPermitted, Refused, SchedError, UnknownJob
from dockless.sandbox.network.model import Endpoint
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Namespaces, Spec
from dockless.sched import clock, roles
from dockless.sched.callers import Caller
from dockless.sched.config import Config
from dockless.sched.engine import queue_state, stopping
from dockless.sched.engine.admission.admitting import next_round
from dockless.sched.engine.gpus import draining, sharing
from dockless.sched.engine.host import host_supplies
from dockless.sched.engine.lifecycle import again, ending, gangs, preempting, starting
from dockless.sched.engine.waiting import holding
from dockless.sched.jobs import JobOptions, JobSpec, State
from dockless.sched.parsing import MAX_PORTS
from dockless.sched.policy.policy import decide
from dockless.sched.policy.quotas import Quota, Quotas
from dockless.sched.policy.supplies import CORES
from dockless.sched.store import queries
from dockless.sched.store.lease import held

ROOT = Caller(0, "root", frozenset(), True)


TRUE = Spec(argv=("true",), network="host")


def plain(role="worker", spec=TRUE, **fields):
    return differences(JobSpec(spec, role=role, **fields))


def member(number, role, state=None, **rules):
    return roles.Member(number, JobOptions(role=role, **rules), state)


DONE, FAILED = State.COMPLETED, State.FAILED


@pytest.mark.parametrize(
    ("members", "ending"),
    [
        ([member(1, "a"), member(2, "b")], ""),
        ([member(1, "a", DONE), member(2, "b")], ""),
        ([member(1, "a", DONE), member(2, "b", DONE)], "done"),
        ([member(1, "a"), member(2, "b", FAILED)], "failed:2"),
        ([member(1, "a"), member(2, "b", State.TIMEOUT)], "failed:2"),
        ([member(1, "a", FAILED, min_failed=2), member(2, "a", min_failed=2), member(3, "b")], ""),
        ([member(1, "a", FAILED, min_failed=2), member(2, "a", FAILED, min_failed=2), member(3, "b")], "failed:2"),
        ([member(1, "a", FAILED, min_failed=0), member(2, "b")], ""),
        ([member(1, "a", FAILED, min_failed=0), member(2, "b", DONE)], "done"),
        ([member(1, "a", DONE, min_succeeded=1), member(2, "a", min_succeeded=1)], "done"),
        ([member(1, "a", DONE, min_succeeded=2), member(2, "a", min_succeeded=2)], ""),
        ([member(1, "a", DONE, min_succeeded=2, min_failed=2), member(2, "a", FAILED), member(3, "b")], ""),
    ],
)
def test_when_they_all_end(members, ending):
    assert roles.ending(members) == ending


def test_what_each_is_told():
    members = [
        JobOptions(role="ps", role_index=0, labels=("http:2", "ssh:1"), ports=(20000, 20001, 20002, 20003)),
        JobOptions(role="worker", role_index=0, ports=(20004,)),
        JobOptions(role="worker", role_index=1, ports=(20005,)),
    ]
    own, places = ["ps-0", "worker-0", "worker-1"], ["10.0.0.2", "10.0.0.3", "10.0.0.4"]
    found = roles.environment(members, 2, own, places, openpai=True)
    assert json.loads(found.pop("TF_CONFIG")) == {
        "cluster": {"ps": ["ps-0:20000"], "worker": ["worker-0:20004", "worker-1:20005"]},
        "task": {"type": "worker", "index": 1},
    }
    assert found == {
        "MASTER_ADDR": "ps-0", "MASTER_PORT": "20000", "RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "3",
        "DOCKLESS_ROLE": "worker", "DOCKLESS_ROLE_INDEX": "1", "DOCKLESS_PORT": "20005",
        "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": "1",
        "PAI_HOST_IP_ps_0": "10.0.0.2", "PAI_HOST_IP_worker_0": "10.0.0.3", "PAI_HOST_IP_worker_1": "10.0.0.4",
        "PAI_PORT_LIST_ps_0_http": "20001,20002", "PAI_PORT_LIST_ps_0_ssh": "20003",
        "PAI_TASK_ROLE_ps_HOST_LIST": "10.0.0.2:20001", "PAI_TASK_ROLE_worker_HOST_LIST": "10.0.0.3:20004,10.0.0.4:20005",
        "PAI_CONTAINER_HOST_IP": "10.0.0.4", "PAI_CONTAINER_HOST_PORT_LIST": "",
    }  # fmt: skip
    first = roles.environment(members, 0, own, places, openpai=True)
    assert first["PAI_CONTAINER_HOST_http_PORT_LIST"] == "20001,20002"
    assert first["PAI_CONTAINER_HOST_PORT_LIST"] == "http:20001,20002;ssh:20003;"
    assert not any(name.startswith("PAI") for name in roles.environment(members, 0, own, places, openpai=False))


def test_an_evaluator_is_no_part_of_the_cluster():
    """It is told of it. TensorFlow's TF_CONFIG."""
    members = [JobOptions(role=role, role_index=0, ports=(20000 + at,)) for at, role in enumerate(("chief", "evaluator"))]
    found = json.loads(roles.environment(members, 1, [roles.LOOPBACK] * 2, [roles.LOOPBACK] * 2, openpai=False)["TF_CONFIG"])
    assert found == {"cluster": {"chief": ["127.0.0.1:20000"]}, "task": {"type": "evaluator", "index": 0}}


@pytest.mark.parametrize(("role", "host"), [("worker", True), ("a_b.c-1", True), ("~", False), ("-x", False), ("a..b", False)])
def test_a_role_is_a_hosts_name_where_it_can_be(role, host):
    assert roles.is_host_name(role) == host


@pytest.mark.parametrize("role", ["a b", "a\n", "a=b", "\u00e4", "a/b", "$x", "x" * 65])
def test_a_role_of_another_name_is_refused(role):
    with pytest.raises(BadInput, match="is no name of a role"):
        JobSpec(role=role)


@pytest.mark.parametrize("fields", [{"ports": ("x" * 100_000,)}, {"min_failed": -1}, {"min_succeeded": 10**9}])
def test_what_roles_have_is_theirs_alone(fields):
    """Nobody would have looked at it, and each job of an array has it on disk."""
    with pytest.raises(BadInput, match="a job without a role has what roles have"):
        JobSpec(**fields)


@pytest.mark.parametrize("port", ["http", "http:0", "http:-1", "http:1001", "ht tp:1", ":1", "http:1:2", "http:\u0661"])
def test_ports_that_cannot_be_read(port):
    with pytest.raises(BadInput, match="cannot be read"):
        JobSpec(role="a", ports=(port,))


# -- the engine


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "4x80G")
    monkeypatch.setattr(stopping, "KILL_AGAIN", 0.001)


def play(tmp_path, launcher, story, config=None):
    async def run():
        async with engine(tmp_path, launcher, config) as running:
            return await story(running)

    return asyncio.run(run())


async def started(running, launcher, *jobs, attempt=1, who=ROOT):
    numbers = await running.submit(who, list(jobs), None, gang=True)
    return numbers, await boxes(running, launcher, numbers, attempt)


async def boxes(running, launcher, numbers, attempt=1):
    await until(lambda: all(running.entries[n].pidfd >= 0 and running.entries[n].job.attempt == attempt for n in numbers))
    return [launcher.boxes[running.name(number, attempt)] for number in numbers]


async def ended(running, numbers):
    await until(lambda: not any(number in running.entries for number in numbers))
    jobs = [queries.job(running.reader, number) for number in numbers]
    return [(str(job.state), job.reason, job.exit_code) for job in jobs]


@pytest.mark.parametrize(
    ("jobs", "why"),
    [
        ([plain(gpus="3"), plain(gpus="2")], "need 5 GPUs, and this host has"),
        ([plain(gpus="device=0"), plain(gpus="device=0")], "two of the jobs that start together want GPU"),
        ([plain(gpus="device=0"), plain(gpus="1")], "some of the jobs that start together name their GPUs, others do not"),
        ([plain(), plain(spec=Spec(("true",), namespaces=Namespaces(pid="host")))], "host's processes cannot share a network"),
        ([plain(), plain(spec=Spec(("true",), network="container:web"))], "not another sandbox's"),
        ([plain(), plain(spec=Spec(("true",), network="private", endpoints=(Endpoint(),)))], "some jobs .* have the host's network"),
        ([plain()] * 257, "257 jobs cannot start together"),
        ([plain(), plain("")], "a job that starts together with others needs a role"),
        ([plain(ports=("http:500",)), plain(ports=("http:501",))], "the ports of all roles are too many"),
        ([plain(gpus="class=whole"), plain(gpus="class=simulated")], "ask for GPUs of different classes: simulated and whole"),
        ([plain(gpus="2"), plain(gpus="1")], "the quota of user root is 2: this could never start"),
        ([plain(gpus="1"), *[plain()] * 4], "5 jobs start together, and user root may run 4 jobs at once: this could never start"),
        ([plain()] * 4, "4 jobs start together, and user root may run 3 jobs without GPUs at once: this could never start"),
        ([plain()] * 9, "9 jobs start together, and this host runs 8 jobs without GPUs at once: this could never start"),
    ],
)
def test_what_can_never_start_is_refused_and_nothing_queued(tmp_path, launcher, jobs, why):
    limit = Quotas()
    if "quota" in why or "root may" in why:
        limit = Quotas(users={"root": Quota(limit=2, jobs=4, cpu_jobs=3)})

    async def story(running):
        with pytest.raises(DocklessError, match=why):
            await running.submit(ROOT, jobs, None, gang=True)
        assert not running.entries and not running.per_user.jobs

    play(tmp_path, launcher, story, Config(quotas=limit, cpu_jobs=8))


@pytest.mark.parametrize(
    ("most", "said"),
    [
        (Config(quotas=Quotas(users={"root": Quota(jobs=4)}), cpu_jobs=64), "user root runs 1 of 4 jobs, and 4 more start together"),
        (Config(quotas=Quotas(users={"root": Quota(cpu_jobs=4)}), cpu_jobs=64), "runs 1 of 4 jobs without GPUs, and 4 more start together"),
        (Config(cpu_jobs=4), "1 of 4 jobs without GPUs run already, 1 of them root's, and 4 more start together"),
    ],
)
def test_each_counts_as_a_job(tmp_path, launcher, most, said):
    """They wait for as many places, which stay free for them, and take them all."""
    single = differences(JobSpec(Spec(argv=("true",), network="host")))

    async def story(running):
        (one,) = await running.submit(ROOT, [single], None)
        (box,) = await boxes(running, launcher, [one])
        four = await running.submit(ROOT, [plain()] * 4, None, gang=True)
        (late,) = await running.submit(ROOT, [single], None)
        decision = decide(queue_state.state(running), clock.ticks())
        assert not decision.starts and said in decision.reason(running.entries[four[0]].waiting).text
        assert f"job {four[0]} comes first" in decision.reason(running.entries[late].waiting).text
        box.end(Exit(0, None))
        together = await boxes(running, launcher, four)
        decision = decide(queue_state.state(running), clock.ticks())
        assert not decision.starts and "4 of 4 jobs" in decision.reason(running.entries[late].waiting).text
        for box in together:
            box.end(Exit(0, None))
        (box,) = await boxes(running, launcher, [late])
        box.end(Exit(0, None))
        assert {state for state, _, _ in await ended(running, [one, *four, late])} == {"COMPLETED"}

    play(tmp_path, launcher, story, most)


def test_five_do_not_start_in_a_quota_of_four_jobs(tmp_path, launcher):
    """Nor do they keep others from it, when it was lowered while they waited."""
    single = differences(JobSpec(Spec(argv=("true",), network="host")))

    async def story(running):
        (one,) = await running.submit(ROOT, [single], None)
        (box,) = await boxes(running, launcher, [one])
        five = await running.submit(ROOT, [plain(gpus="1"), *[plain()] * 4], None, gang=True)
        running.config = replace(running.config, quotas=Quotas(users={"root": Quota(jobs=4)}))
        box.end(Exit(0, None))
        (late,) = await running.submit(ROOT, [single], None)
        (box,) = await boxes(running, launcher, [late])
        assert {running.entries[number].job.state for number in five} == {State.PENDING}
        await running.cancel(five[0], "root", 0.0)
        box.end(Exit(0, None))
        await ended(running, [one, late, *five])

    play(tmp_path, launcher, story, Config(quotas=Quotas(users={"root": Quota(jobs=5)})))


def test_a_role_is_for_those_that_start_together(tmp_path, launcher):
    async def story(running):
        with pytest.raises(BadInput, match="a job of its own has no role"):
            await running.submit(ROOT, [plain()], None)
        with pytest.raises(BadInput, match="jobs that start together are no array"):
            await running.submit(ROOT, [plain()], 3, gang=True)

    play(tmp_path, launcher, story)


def test_memory_and_cores_are_those_of_all(tmp_path, launcher):
    def asking(share):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limits = Limits(memory_max=int(memory * share))
        return differences(JobSpec(Spec(argv=("true",), network="host", limits=limits, best_effort=True), role="a"))

    async def story(running):
        with pytest.raises(Refused, match=r"needs .* GiB of memory, and this host has .*: this could never start"):
            await running.submit(ROOT, [asking(0.6), asking(0.6)], None, gang=True)
        numbers, started_boxes = await started(running, launcher, asking(0.1), asking(0.2))
        (seen,) = queue_state.state(running).running
        assert seen.memory == sum(running.entries[number].job.options.memory for number in numbers)
        for box in started_boxes:
            box.end(Exit(0, None))

    play(tmp_path, launcher, story)


def test_in_line_they_are_one_wide_job(tmp_path, launcher):
    """Also where some say nothing of their time, cores and memory. What the first has for all, such as that it is held, is its own."""
    config = Config(cores=8, cores_per_job=2, memory_per_job=1 << 20)

    async def waits(running, *fields):
        jobs = [plain(**{"hold": True, **one}) for one in fields]
        numbers = await running.submit(ROOT, jobs, None, gang=True)
        assert [running.entries[number].job.options.held for number in numbers] == ["root", *[""] * (len(numbers) - 1)]
        found = running.entries[numbers[0]].waiting
        await running.cancel(numbers[0], "root", 0.0)
        return found

    def spec(**limits):
        return Spec(argv=("true",), network="host", limits=Limits(**limits), best_effort=True)

    async def story(running):
        found = await waits(
            running, {"time_limit": 60.0}, {"time_limit": 90.0, "gpus": "2,class=whole"}, {"time_limit": 30.0, "gpus": "1,class=whole"}
        )
        assert (found.gpus, found.gpu_class, found.time_limit, found.cores, found.memory) == (3, "whole", 90.0, 2000, 1 << 20)
        found = await waits(running, {"time_limit": 60.0, "spec": spec(cpu_max=1.5)}, {"spec": spec(cpu_max=0.5, memory_max=1 << 30)}, {})
        assert (found.gpus, found.time_limit, found.cores, found.memory) == (0, 0.0, 4000, (1 << 30) + (2 << 20))
        with pytest.raises(Refused, match="needs 10 cores, and this host has 8 for such a job: this could never start"):
            await waits(running, {}, {}, {}, {}, {})

    play(tmp_path, launcher, story, config)


def test_a_daemon_that_comes_back_ends_all_of_what_was_cancelled(tmp_path, launcher):
    async def before(running):
        numbers, found = await started(running, launcher, plain(), plain())
        for box in found:
            box.send_stop = lambda: None
        await running.cancel(numbers[0], "root", 1000.0)
        return numbers, found

    numbers, found = play(tmp_path, launcher, before)
    for box in found:
        box.send_stop = lambda box=box: box.said.append("stop")

    async def after(running):
        await until(lambda: all("stop" in box.said for box in found))
        for box in found:
            box.end(Exit(None, 15))
        return await ended(running, numbers)

    assert [state for state, _, _ in play(tmp_path, launcher, after)] == ["CANCELLED"] * 2


def test_gpus_and_ports_are_split_in_their_order(tmp_path, launcher):
    async def story(running):
        numbers, (_, _, three) = await started(running, launcher, plain(gpus="1"), plain(), plain(gpus="2", ports=("http:2",)))
        jobs = [running.entries[number].job for number in numbers]
        assert [len(job.devices) for job in jobs] == [1, 0, 2] and len({gpu for job in jobs for gpu in job.devices}) == 3
        ports = [port for job in jobs for port in job.options.ports]
        assert [len(job.options.ports) for job in jobs] == [1, 1, 3] and len(set(ports)) == 5
        others, _ = await started(running, launcher, plain(), plain())
        assert not set(ports) & {port for number in others for port in running.entries[number].job.options.ports}
        told = dict(three.spec.env)
        assert (told["RANK"], told["MASTER_PORT"], told["DOCKLESS_PORT"]) == ("2", str(ports[0]), str(ports[2]))
        assert "DOCKLESS_ARRAY_ID" not in told and told["DOCKLESS_JOB_ID"] == str(numbers[2])
        (of_policy,) = [job for job in queue_state.state(running).running if job.gpus]
        assert (of_policy.id, len(of_policy.gpus)) == (numbers[0], 3)
        for number in (numbers[0], others[0]):
            await running.cancel(number, "root", 0.0)
        assert {state for state, _, _ in await ended(running, [*numbers, *others])} == {"CANCELLED"}

    play(tmp_path, launcher, story)


def test_nobody_can_have_all_ports(tmp_path, launcher, monkeypatch):
    """On the host's network a user has so many; who gets none waits aside, holds nothing and can be cancelled. In a network of their own
    the ports of others are in nobody's way."""
    monkeypatch.setattr(gangs, "PORTS_OF_USER", 3)
    monkeypatch.setattr(roles, "LAST_PORT", roles.FIRST_PORT + 3)
    ann = Caller(4321, "ann", frozenset(), True)
    apart = differences(JobSpec(Spec(argv=("true",)), role="a"))

    async def story(running):
        before, _ = await started(running, launcher, apart, apart)
        await until(lambda: running.entries[before[0]].gang.network is None)
        numbers, _ = await started(running, launcher, plain(), plain())
        second, last = await running.submit(ROOT, [plain(gpus="1"), plain()], None, gang=True)
        await until(lambda: second in running.aside.kept)
        assert running.aside.why(running.entries[second].job).startswith("it could not start, and begins at 2")
        assert not [job for job in queue_state.state(running).running if job.gpus]
        others, _ = await started(running, launcher, plain(), plain(), who=ann)
        assert [running.entries[n].job.options.ports[0] - roles.FIRST_PORT for n in (*numbers, *others)] == [0, 1, 2, 3]
        alone, _ = await started(running, launcher, apart, apart, apart, apart)
        assert [running.entries[n].job.options.ports for n in alone] == [(roles.FIRST_PORT + rank,) for rank in range(4)]
        await running.cancel(second, "root", 0.0)
        assert (await ended(running, [second, last]))[0][0] == "CANCELLED"
        for number in (before[0], numbers[0], others[0], alone[0]):
            await running.cancel(number, "root", 0.0)
        await ended(running, [*before, *numbers, *others, *alone])

    play(tmp_path, launcher, story, Config(cpu_jobs=16))


def test_a_start_that_fails_in_ourselves_leaves_nothing_behind(tmp_path, launcher, monkeypatch):
    """Such as for want of a descriptor for the look at a port."""
    monkeypatch.setattr(starting, "AGAIN", 0.0)
    looked = []

    def fails(port):
        looked.append(port)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(gangs, "_is_used", fails)

    async def story(running):
        numbers = await running.submit(ROOT, [plain(gpus="1"), plain()], None, gang=True)
        await until(lambda: looked)
        await running.cancel(numbers[0], "root", 0.0)
        assert [state for state, _, _ in await ended(running, numbers)] == ["CANCELLED"] * 2
        assert not running.active and not held(running.reader)

    play(tmp_path, launcher, story)


def test_requeued_once_however_many_of_them_are_named(tmp_path):
    async def story(desk):
        specs = [JobSpec(Spec(argv=("true",), network="host"), role=role) for role in "ab"]
        numbers = await desk(1001, lambda queue: queue.submit_gang(specs))
        for number in numbers:
            box = await desk.runs(number)
            await until(lambda number=number: desk.engine.entries[number].pidfd >= 0)
            box.end(Exit(0, None))
        await ended(desk.engine, numbers)
        new = await desk(1001, lambda queue: queue.requeue([*numbers, numbers[0]]))
        assert {job.id for job in new} == {numbers[-1] + 1} and len(desk.engine.entries) == 2

    play_at_desk(tmp_path, story)


def test_what_a_job_says_itself_stays(tmp_path, launcher):
    async def story(running):
        spec = Spec(argv=("true",), network="host", env=(("RANK", "mine"),), hosts=(("worker", "10.0.0.1"),))
        _, (box,) = await started(running, launcher, differences(JobSpec(spec, role="worker")))
        assert [value for name, value in box.spec.env if name == "RANK"] == ["mine"] and box.spec.hosts == (
            ("worker", "10.0.0.1"), ("worker-0", "127.0.0.1"),
        )  # fmt: skip
        box.end(Exit(0, None))

    play(tmp_path, launcher, story)


def test_one_that_ended_keeps_its_gpus_until_the_last_has(tmp_path, launcher):
    async def story(running):
        numbers, (one, two) = await started(running, launcher, plain(gpus="1"), plain(gpus="1"))
        one.end(Exit(0, None))
        await until(lambda: running.entries[numbers[0]].job.reason.startswith("its program has ended (exit code 0)"))
        assert running.entries[numbers[0]].job.state is State.RUNNING and len(held(running.reader)) == 2
        two.end(Exit(0, None))
        assert await ended(running, numbers) == [("COMPLETED", "", 0)] * 2
        assert held(running.reader) == []
        await until(lambda: "remove" in one.said + two.said)

    play(tmp_path, launcher, story)


def test_one_that_ends_at_once_keeps_its_gpus_until_the_last_has(tmp_path, launcher):
    start = launcher.start

    def begin(*args, **how):
        box = start(*args, **how)
        if how["id"].startswith("job-1-"):
            box.end(Exit(0, None))
        return box

    launcher.start = begin

    async def story(running):
        numbers = await running.submit(ROOT, [plain(gpus="1"), plain(gpus="1")], None, gang=True)
        await until(lambda: running.entries[1].job.reason.startswith("its program has ended (exit code 0)"))
        assert running.entries[1].job.state is State.RUNNING and len(held(running.reader)) == 2
        await until(lambda: running.entries[2].pidfd >= 0)
        launcher.boxes[running.name(2, 1)].end(Exit(0, None))
        assert await ended(running, numbers) == [("COMPLETED", "", 0)] * 2

    play(tmp_path, launcher, story)


def test_a_failed_start_of_one_ends_the_others(tmp_path, launcher):
    start = launcher.start

    def fails(spec, *, id, **how):
        if dict(spec.env)["RANK"] == "1":
            raise CommandNotFound("no such program")
        return start(spec, id=id, **how)

    launcher.start = fails

    async def story(running):
        numbers = await running.submit(ROOT, [plain("a"), plain("b")], None, gang=True)
        await until(lambda: running.name(numbers[0], 1) not in launcher.boxes or "stop" in launcher.boxes[running.name(numbers[0], 1)].said)
        if (box := launcher.boxes.get(running.name(numbers[0], 1))) is not None and numbers[0] in running.entries:
            box.end(Exit(None, 15))
        first, second = await ended(running, numbers)
        assert second == ("FAILED", "not started: no such program", 127)
        assert first == ("FAILED", f"job {numbers[1]} (b 0): not started: no such program", 127)

    play(tmp_path, launcher, story)


def test_gpus_that_somebody_else_took_send_all_back(tmp_path, launcher):
    start, refused = launcher.start, []

    def fails(spec, *, id, **how):
        if dict(spec.env)["RANK"] == "1" and not refused:
            refused.append(id)
            raise NotEnoughGpus("a `dockless run` was faster")
        return start(spec, id=id, **how)

    launcher.start = fails

    async def story(running):
        numbers = await running.submit(ROOT, [plain(gpus="1"), plain(gpus="1")], None, gang=True)
        first = running.name(numbers[0], 1)
        await until(lambda: running.entries[numbers[1]].job.attempt == 2 or "stop" in getattr(launcher.boxes.get(first), "said", ()))
        if running.entries[numbers[1]].job.attempt == 1:
            launcher.boxes[first].end(Exit(None, 15))
        for box in await boxes(running, launcher, numbers, 2):
            box.end(Exit(0, None))
        assert await ended(running, numbers) == [("COMPLETED", "", 0)] * 2

    play(tmp_path, launcher, story)


def test_a_preemption_takes_all_and_puts_all_back(tmp_path, launcher, monkeypatch):
    """What they had counts as used, and nothing of that attempt in the next."""
    told = []

    async def story(running):
        monkeypatch.setattr(running, "tell", lambda entry, event: told.append((entry.job.id, event)))
        numbers, (one, two) = await started(running, launcher, plain("a", gpus="1"), plain("b", gpus="2", min_failed=0))
        queue_state.state(running)
        one.end(Exit(0, None))
        await until(lambda: running.entries[numbers[0]].job.reason)
        two.send_stop = lambda: two.said.append("stop")
        preempting.preempt(running, running.entries[numbers[0]], 99)
        await until(lambda: "stop" in two.said)
        (seen,) = queue_state.state(running).running
        assert seen.stopping and not any(running.past.at(clock.ticks(), []).values())
        two.end(Exit(0, None))
        one, two = await boxes(running, launcher, numbers, 2)
        assert running.past.at(clock.ticks(), [])["user root"] > 0
        assert [of for of, event in told if event == "preempt"] == numbers
        assert not any(running.entries[number].silent for number in numbers)
        two.end(Exit(3, None))
        await until(lambda: running.entries[numbers[1]].silent)
        one.end(Exit(0, None))
        assert await ended(running, numbers) == [("COMPLETED", "", 0), ("FAILED", "exit code 3", 3)]
        assert [one.reason for one in queries.job(running.reader, numbers[0]).attempts] == ["preempted for job 99", ""]

    play(tmp_path, launcher, story, Config(order="fair"))


@pytest.mark.parametrize("whose", [0, 1])
def test_a_cancel_while_they_are_put_back_ends_them_all(tmp_path, launcher, monkeypatch, whose):
    """None of them runs then that could be told to end."""

    async def story(running):
        numbers, (one, two) = await started(running, launcher, plain("a"), plain("b"))
        for box in (one, two):
            box.send_stop = lambda: None
        await again.ask(running, numbers[0], "root", 1000.0, next_round)
        surely = running.write_surely

        async def write(change, *more):
            if running.entries[numbers[0]].gang.settling:
                running.drained[draining.HOST] = "for good"  # a start would end them, too
                await running.cancel(numbers[whose], "root", None)
            await surely(change, *more)

        monkeypatch.setattr(running, "write_surely", write)
        one.end(Exit(0, None))
        two.end(Exit(0, None))
        assert [state for state, _, _ in await ended(running, numbers)] == ["CANCELLED"] * 2

    play(tmp_path, launcher, story)


def test_who_was_told_to_end_was_told_so_in_that_attempt_alone(tmp_path, launcher):
    async def story(running):
        numbers, found = await started(running, launcher, plain("a"), plain("b", min_failed=0))
        found[1].send_stop = lambda: found[1].said.append("stop")
        await again.ask(running, numbers[0], "root", 1000.0, next_round)
        await until(lambda: running.entries[numbers[0]].silent and "stop" in found[1].said)
        found[1].end(Exit(None, 15))
        one, two = await boxes(running, launcher, numbers, 2)
        two.end(Exit(3, None))
        await until(lambda: running.entries[numbers[1]].silent)
        one.end(Exit(0, None))
        assert await ended(running, numbers) == [("COMPLETED", "", 0), ("FAILED", "exit code 3", 3)]

    play(tmp_path, launcher, story)


@requires("root")
def test_their_user_weighs_less_when_they_wait_again(tmp_path, launcher, monkeypatch):
    place = Delegation(tmp_path, frozenset(), frozenset(), "root", "")
    monkeypatch.setattr(users, "find_delegation", lambda **_: place)
    weight = place.home / users.group_of(ROOT.uid) / "cpu.weight"
    weight.parent.mkdir(parents=True)

    async def story(running):
        numbers, _ = await started(running, launcher, plain("a"), plain("b"))
        assert weight.read_text() == "200"
        running.drained[draining.HOST] = "for good"
        await again.ask(running, numbers[0], "root", 1000.0, next_round)
        await until(lambda: weight.read_text() == "10")

    play(tmp_path, launcher, story, Config(cores=2, cores_per_job=1))


def test_what_ended_is_not_held_when_it_is_submitted_again(tmp_path, launcher):
    async def story(running):
        numbers = await running.submit(ROOT, [plain("a", hold=True), plain("b")], None, gang=True)
        await holding.release(running, numbers[0], ROOT)
        for box in await boxes(running, launcher, numbers):
            box.end(Exit(0, None))
        await ended(running, numbers)
        first = await again.ask(running, numbers[1], "root", None, next_round)
        for box in await boxes(running, launcher, [first, first + 1]):
            box.end(Exit(0, None))

    play(tmp_path, launcher, story)


def test_so_many_ports_and_no_more(tmp_path, launcher):
    async def story(running):
        half = f"x:{MAX_PORTS // 2}"
        numbers = await running.submit(ROOT, [plain("a", hold=True, ports=(half,)), plain("b", ports=(half,))], None, gang=True)
        with pytest.raises(BadInput, match="the ports of all roles are too many"):
            await running.submit(ROOT, [plain("a", hold=True, ports=(half, "y:1")), plain("b", ports=(half,))], None, gang=True)
        await running.cancel(numbers[0], "root", None)

    play(tmp_path, launcher, story)


def test_what_ended_by_itself_before_stays_as_it_was(tmp_path, launcher):
    """And where one of them was cancelled, none is tried again."""

    async def story(running):
        some = {"role": "some", "min_failed": 0}
        numbers, found = await started(running, launcher, plain("a", retries=1), plain(**some), plain(**some), plain("c"))
        found[1].end(Exit(3, None))
        await running.cancel(numbers[2], "root", 1000.0)
        await until(lambda: all(running.entries[number].silent for number in numbers[1:3]))
        found[3].end(Exit(4, None))
        a, failed, cancelled, c = await ended(running, numbers)
        assert (a, c) == (("FAILED", f"job {numbers[3]} (c 0): exit code 4", 4), ("FAILED", "exit code 4", 4))
        assert failed == ("FAILED", "exit code 3", 3)
        assert cancelled[0] == "CANCELLED" and str(numbers[3]) not in cancelled[1]

    play(tmp_path, launcher, story)


def test_a_cancel_that_cannot_be_written_has_changed_nothing(tmp_path, launcher, monkeypatch):
    async def fails(*_):
        raise SchedError("no space left on device")

    async def story(running):
        numbers = await running.submit(ROOT, [plain(hold=True), plain()], None, gang=True)
        with monkeypatch.context() as full:
            full.setattr(ending, "end_jobs", fails)
            with pytest.raises(SchedError, match="no space left"):
                await running.cancel(numbers[0], "root", None)
        assert [running.entries[number].cancelled for number in numbers] == [False, False] and numbers[0] in running.aside.kept
        await running.cancel(numbers[0], "root", None)
        assert [state for state, _, _ in await ended(running, numbers)] == ["CANCELLED"] * 2

    play(tmp_path, launcher, story)


def test_a_daemon_that_comes_back_knows_why_they_end(tmp_path, launcher):
    async def before(running):
        numbers, (ps, chief) = await started(running, launcher, plain("ps"), plain("chief", min_succeeded=1))
        chief.end(Exit(0, None))
        chief.send_stop = lambda: None  # it has ended, whoever tells it to
        await until(lambda: "stop" in ps.said)
        assert queries.job(running.reader, numbers[0]).options.ending == "done"
        (event,) = [one for one in queries.events(running.reader, numbers[0], 100) if one[1] == "ending"]
        assert event[3] == "enough of a role have succeeded"
        return numbers, ps

    numbers, ps = play(tmp_path, launcher, before)
    ps.end(Exit(None, 15))

    async def after(running):
        return await ended(running, numbers)

    first, second = play(tmp_path, launcher, after)
    assert first == ("COMPLETED", "the others are done (killed by signal 15)", 0)
    assert second == ("COMPLETED", "", 0)


def test_a_daemon_that_comes_back_finds_one_that_never_ran(tmp_path, launcher):
    async def before(running):
        numbers, _ = await started(running, launcher, plain(gpus="1"), plain(gpus="1"))
        return numbers

    numbers = play(tmp_path, launcher, before)
    name = next(name for name in launcher.boxes if name.startswith(f"job-{numbers[1]}-"))
    del launcher.boxes[name]
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        db.execute("UPDATE jobs SET state='STARTING' WHERE id=?", (numbers[1],))
        db.execute("UPDATE attempts SET state='STARTING' WHERE job=?", (numbers[1],))

    async def after(running):
        first = launcher.boxes[running.name(numbers[0], 1)]
        await until(lambda: "stop" in first.said)
        first.end(Exit(None, 15))
        for box in await boxes(running, launcher, numbers, 2):
            box.end(Exit(0, None))
        return await ended(running, numbers)

    assert play(tmp_path, launcher, after) == [("COMPLETED", "", 0)] * 2


def test_the_first_that_is_waited_for_is_all_of_them(tmp_path, launcher):
    async def story(running):
        numbers, (one, two) = await started(running, launcher, plain("a"), plain("b"))
        (later,) = await running.submit(ROOT, [differences(JobSpec(Spec(argv=("true",)), after=(f"not-ok:{numbers[0]}",)))], None)
        one.end(Exit(0, None))
        await until(lambda: running.entries[numbers[0]].job.reason)
        assert later in running.aside.kept
        two.end(Exit(3, None))
        assert await ended(running, numbers) == [("FAILED", f"job {numbers[1]} (b 0): exit code 3", 3), ("FAILED", "exit code 3", 3)]
        (box,) = await boxes(running, launcher, [later])
        box.end(Exit(0, None))

    play(tmp_path, launcher, story)


@pytest.mark.parametrize(
    ("gpus", "wanted"), [(("memory=30G", "memory=30G"), 1), (("memory=30G", "1", "memory=30G"), 2), (("memory=50G",) * 2, 2)]
)
def test_to_the_policy_those_with_shares_have_whole_gpus(tmp_path, launcher, monkeypatch, gpus, wanted):
    """A share of one that somebody else has already may be too little for them all."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")

    async def story(running):
        numbers = await running.submit(ROOT, [plain(gpus=text, hold=True) for text in gpus], None, gang=True)
        seen = running.entries[numbers[0]].first.waiting
        assert (seen.gpus, seen.share) == (wanted, 0)
        await running.cancel(numbers[0], "root", None)

    play(tmp_path, launcher, story, Config(share="user"))


@pytest.mark.parametrize(
    ("gpus", "places"),
    [
        (("class=H100,memory=20G", "class=H100,memory=10G"), [1, 1]),
        (("class=H100,memory=20G", "class=H100", "class=H100,memory=10G"), [1, 0, 1]),
        (("memory=60G", "memory=10G", "memory=10G"), [1, 1, 1]),
        (("memory=70G", "memory=60G", "memory=10G"), [1, 2, 1]),
        (("memory=60G", "memory=10G", "1"), [1, 1, 0]),
    ],
)
def test_those_with_shares_have_gpus_of_their_class_that_are_large_enough(tmp_path, launcher, monkeypatch, gpus, places):
    """Those of 40 GiB come first in the host's order."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x40G:A100+2x80G:H100")

    async def story(running):
        large = [unit.uuid for unit in running.gpus.gpus if unit.memory == 80 << 30]
        numbers = await running.submit(ROOT, [plain(gpus=text) for text in gpus], None, gang=True)
        assert [running.entries[number].job.options.shared_place for number in numbers] == places
        seen = running.entries[numbers[0]].first.waiting
        await until(lambda: all(running.entries[number].job.devices for number in numbers))
        had = [running.entries[number].job.devices[0] for number in numbers]
        assert set(had) <= set(large) and seen.gpus == len(set(had))
        assert all((had[0] == one) == (place == 1) for one, place in zip(had, places, strict=True))
        parts = [sharing.part_of(running, running.entries[number]) for number in numbers]
        assert parts == [1 / places.count(place) if place else 1.0 for place in places]
        await running.cancel(numbers[0], "root", 0.0)

    play(tmp_path, launcher, story, Config(share="user"))


def test_one_alone_shares_its_gpu_as_a_job_of_its_own_does(tmp_path, launcher, monkeypatch):
    """A role of one instance, and a job that asks for ports."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")

    async def story(running):
        (one,) = await running.submit(ROOT, [plain(gpus="memory=30G", ports=("http:1",))], None, gang=True)
        (other,) = await running.submit(ROOT, [differences(JobSpec(Spec(("true",)), gpus="memory=30G"))], None)
        seen = running.entries[one].waiting
        assert (seen.gpus, seen.share) == (1, 30 << 10)
        await until(lambda: all(running.entries[number].job.devices for number in (one, other)))
        assert running.entries[one].job.devices == running.entries[other].job.devices
        there = queue_state.running(running)
        assert [(job.share, job.part) for job in there] == [(30 << 10, 0.375)] * 2
        for number in (one, other):
            await running.cancel(number, "root", 0.0)

    play(tmp_path, launcher, story, Config(share="user"))


def test_they_wait_for_no_job_that_there_is_not_nor_for_anothers(tmp_path):
    async def story(desk):
        (theirs,) = await desk.submit(1001, JobSpec(TRUE, hold=True))
        for after, error in (("any:99", UnknownJob), (f"any:{theirs}", NotPermitted)):
            pair = [JobSpec(TRUE, role="a", after=(after,)), JobSpec(TRUE, role="b")]
            await desk.refused(error, 1002, lambda queue, pair=pair: queue.submit_gang(pair))
        assert list(desk.engine.entries) == [theirs]

    play_at_desk(tmp_path, story)


def test_all_that_is_wrong_with_them_is_told_at_once_and_once_for_a_role(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")

    async def story(desk):
        wide, limited = JobSpec(TRUE, role="worker", gpus="9"), JobSpec(TRUE, role="ps", array_limit=2)
        with pytest.raises(NotEnoughGpus) as caught:
            await desk(1002, lambda queue: queue.submit_gang([wide, wide, JobSpec(TRUE, role="right"), limited, limited]))
        told = [str(caught.value), *caught.value.__notes__]
        assert [line.split(": ")[0] for line in told] == ["role worker", "role ps", "none of the jobs was queued"]
        jobs = [7, {"role": "a b"}, {"role": "right", "after": ["any:98", "ok:99"]}, {"role": "right"}]
        with pytest.raises(BadInput) as caught:
            await desk(1002, lambda queue: queue._call("submit", jobs=jobs, gang=True))
        told = [str(caught.value), *caught.value.__notes__]
        assert [line.split(": ")[0] for line in told] == ["job 1 of 4", "job 2 of 4", "none of the jobs was queued"]
        with pytest.raises(UnknownJob, match="no job 98 to wait for") as caught:
            await desk(1002, lambda queue: queue._call("submit", jobs=jobs[2:], gang=True))
        assert caught.value.__notes__[0].startswith("there is no job 99 to wait for") and not desk.engine.entries

    play_at_desk(tmp_path, story)


def test_what_counts_of_a_gpu_that_is_shared(tmp_path, launcher, monkeypatch):
    """One alone has the cores of its share; those that share with each other have all that stay with their GPU, and all of it counts."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")

    def asking(cores):
        return plain(gpus="memory=20G", ports=("http:1",), spec=replace(TRUE, limits=Limits(cpu_max=cores), best_effort=True))

    async def story(running):
        with pytest.raises(Refused, match="needs 4 cores, and this host has 3 for such a job, as 4 stay with each GPU"):
            await running.submit(ROOT, [asking(4)], None, gang=True)
        numbers = await running.submit(ROOT, [asking(1), asking(1)], None, gang=True)
        await until(lambda: all(running.entries[number].job.devices for number in numbers))
        assert host_supplies.in_use(running, CORES) == (10_000, 4000)
        assert [(job.share, job.part) for job in queue_state.running(running)] == [(0, 1.0)]
        await running.cancel(numbers[0], "root", 0.0)

    play(tmp_path, launcher, story, Config(share="user", cores=10, cores_per_gpu=4))


@pytest.mark.parametrize("there", ["2x80G", "2x80G,mig=4"])
def test_a_gpu_that_is_named_is_not_shared(tmp_path, launcher, monkeypatch, there):
    """So some memory of it is not asked for, unless it is a slice."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", there)

    async def story(running):
        for uuid in running.gpus.uuids:
            job = differences(JobSpec(Spec(argv=("true",)), gpus=f"device={uuid},memory=5G", hold=True))
            if uuid in running.gpus.not_whole:
                (number,) = await running.submit(ROOT, [job], None)
                await running.cancel(number, "root", None)
            else:
                with pytest.raises(Refused, match="GPUs that are named is asked for"):
                    await running.submit(ROOT, [job], None)

    play(tmp_path, launcher, story, Config(share="user"))
