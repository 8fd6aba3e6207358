"""The daemon with real sandboxes: a job's whole life, quotas, logs, cancel, restart."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.boxes import until
from support.scheduling import DaemonProcess

from dockless import aio
from dockless.errors import (
    BadInput,
    DaemonUnavailable,
    LimitUnavailable,
    NotEnoughGpus,
    Refused,
    SchedError,
    UnknownGpu,
    UnknownImage,
    UnknownJob,
)
from dockless.sandbox.spec import Bind, Spec
from dockless.sched import AttemptState, Client, JobSpec, State

pytestmark = pytest.mark.requires("userns")


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory):
    """One daemon for all that leave nothing in it."""
    daemon = DaemonProcess(tmp_path_factory.mktemp("d"), gpus="4x80G").start()
    yield daemon
    daemon.end()


@pytest.fixture
def unused(standing: DaemonProcess):
    with standing.client() as client:
        yield client


@pytest.fixture
def daemon(home: Path):
    daemon = DaemonProcess(home, gpus="4x80G", settings="[quota.users]\nnobody-here = 1\n[host]\ncpu_jobs = 4\n").start()
    yield daemon
    daemon.end()


@pytest.fixture
def queue(daemon: DaemonProcess):
    with daemon.client() as client:
        yield client


def shell(script: str, **more) -> JobSpec:
    mounts = tuple(more.pop("mounts", ()))
    return JobSpec(Spec(argv=("sh", "-c", script), mounts=mounts), **more)


def running(queue: Client, job: int) -> None:
    """Until the job's program runs: its first line says so."""
    for _ in queue.logs(job, follow=True):
        return


def test_names_that_nobody_has_are_told_at_each_reading(home: Path, daemon: DaemonProcess, queue: Client):
    what = f"{home / 'dockless.toml'}:2: quota.users.nobody-here: there is no user 'nobody-here'"
    assert daemon.errors().count(what) == 1
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: "settings read again" in daemon.errors(), "the settings are read again")
    assert daemon.errors().count(what) == 2


def test_from_submit_to_exit(queue: Client):
    number = queue.submit(shell("echo out; echo err >&2; exit 3", name="first", gpus="2"))
    job = queue.wait(number, timeout=30)
    assert (job.state, job.reason, job.exit_code, job.name, len(job.devices)) == (State.FAILED, "exit code 3", 3, "first", 2)
    assert sorted((line.stream, line.text) for line in queue.logs(number)) == [("stderr", "err"), ("stdout", "out")]
    (attempt,) = queue.job(number).attempts
    assert attempt.state is AttemptState.ENDED and attempt.exit is not None and attempt.exit["code"] == 3
    assert queue.queue() == [] and [j.id for j in queue.queue(ended=True)] == [number]
    assert queue.info().gpus[0].job == 0


def test_a_job_sees_its_gpus_and_no_others(queue: Client):
    number = queue.submit(shell("ls /dev | grep -c '^nvidia[0-9]'; echo $DOCKLESS_JOB_ID/$DOCKLESS_ATTEMPT", gpus="device=1,3"))
    assert queue.wait(number, timeout=30).state is State.COMPLETED
    assert [line.text for line in queue.logs(number)] == ["2", f"{number}/1"]


def test_who_holds_what_and_why_others_wait(queue: Client):
    first = queue.submit(shell("echo up; sleep 100", gpus="3", time_limit=3600))
    running(queue, first)
    second = queue.submit(shell("true", gpus="2"))
    third = queue.submit(shell("true", gpus="1", time_limit=60))  # ends long before the first: passes the second
    assert queue.wait(third, timeout=30).state is State.COMPLETED
    info = queue.info()
    assert [gpu.job for gpu in info.gpus].count(first) == 3 and all(gpu.simulated for gpu in info.gpus)
    assert (info.waiting, info.running) == (1, 1)
    deadline = time.monotonic() + 20
    while "1 free" not in (waiting := queue.job(second)).reason and time.monotonic() < deadline:
        pass  # said by the round after the one in which the third has ended
    assert waiting.state is State.PENDING
    assert waiting.reason.startswith("needs 2 GPUs, 1 free; starts in about ") and waiting.reason.endswith(f"when job {first} ends")
    queue.cancel(first, grace=0)
    assert queue.wait(second, timeout=30).state is State.COMPLETED


def test_cancel_waiting_and_running(queue: Client):
    holder = queue.submit(shell("trap 'echo got it; exit 7' TERM; echo up; while :; do sleep 0.05; done", gpus="all"))
    waiting = queue.submit(shell("true", gpus="1"))
    assert queue.cancel(waiting).state is State.CANCELLED
    running(queue, holder)
    assert queue.cancel(holder, grace=20).state is State.RUNNING
    job = queue.wait(holder, timeout=30)
    assert (job.state, job.exit_code) == (State.CANCELLED, 7)
    assert [line.text for line in queue.logs(holder)] == ["up", "got it"]
    assert queue.cancel(holder).state is State.CANCELLED  # again is no error


def test_cancel_of_the_deaf(queue: Client):
    number = queue.submit(shell("trap '' TERM; echo up; while :; do sleep 0.05; done"))
    running(queue, number)
    queue.cancel(number, grace=0.1)
    job = queue.wait(number, timeout=30)
    assert (job.state, job.signal) == (State.CANCELLED, 9)


def test_time_limit(queue: Client):
    job = queue.wait(queue.submit(shell("sleep 100", time_limit=0.2)), timeout=30)
    assert (job.state, job.exit_code, job.reason) == (State.TIMEOUT, 124, "reached its time limit")


def test_a_program_that_is_not_there(queue: Client):
    job = queue.wait(queue.submit(JobSpec(Spec(argv=("no-such-program",)))), timeout=30)
    assert (job.state, job.exit_code) == (State.FAILED, 127)
    assert job.reason.startswith("not started: no-such-program")


def test_a_mount_source_that_is_missing(queue: Client):
    job = queue.wait(queue.submit(shell("true", mounts=[Bind("/no/such/place", "/data")])), timeout=30)
    assert job.state is State.FAILED and "/no/such/place" in job.reason


def test_gpus_in_use_outside_are_not_given(home: Path):
    daemon = DaemonProcess(home, gpus="2x80G,busy=1").start()
    with daemon.client() as queue:
        assert sum(gpu.outside for gpu in queue.info().gpus) == 1
        wide = queue.submit(shell("true", gpus="2"))
        assert queue.wait(queue.submit(shell("true", gpus="1")), timeout=30).state is State.COMPLETED
        reason = "needs 2 GPUs, 1 free (1 in use outside dockless)"
        until(lambda: queue.job(wide).reason == reason, "the other's GPU is free again")
        queue.cancel(wide)
    daemon.stop()


def test_an_impossible_limit_is_refused_at_submit(queue: Client):
    """On a host with all controllers it is accepted; where one is missing the error names it."""
    from dockless.cgroups import Limits, find_delegation

    limited = JobSpec(Spec(argv=("true",), limits=Limits.parse(memory="64M")))
    if "memory" in find_delegation().controllers:
        assert queue.wait(queue.submit(limited), timeout=30).state is State.COMPLETED
        return
    with pytest.raises(LimitUnavailable) as caught:
        queue.submit(limited)
    assert caught.value.controller == "memory"
    assert queue.wait(queue.submit(JobSpec(replace(limited.spec, best_effort=True))), timeout=30).state is State.COMPLETED


def test_array(queue: Client):
    ids = queue.submit_array(shell("echo $DOCKLESS_ARRAY_ID $DOCKLESS_ARRAY_INDEX"), 6)
    assert ids == list(range(ids[0], ids[0] + 6))
    jobs = queue.wait_many(ids, timeout=60)
    assert {job.state for job in jobs} == {State.COMPLETED} and [job.index for job in jobs] == list(range(6))
    assert [line.text for line in queue.logs(ids[4])] == [f"{ids[0]} 4"]


def test_follow_from_before_the_start_to_the_end(queue: Client, daemon: DaemonProcess):
    number = queue.submit(shell("for i in 1 2 3 4 5; do echo line $i; done; printf unfinished"))
    lines = list(queue.logs(number, follow=True))
    assert [line.text for line in lines] == ["line 1", "line 2", "line 3", "line 4", "line 5", "unfinished"]
    assert lines[-1].partial and not lines[0].partial
    assert queue.wait(number, timeout=30).state is State.COMPLETED


def test_wait_gives_up_in_time(queue: Client):
    number = queue.submit(shell("sleep 100"))
    with pytest.raises(TimeoutError):
        queue.wait(number, timeout=0.05)
    queue.cancel(number, grace=0)


@pytest.mark.parametrize(
    ("job", "error"),
    [
        (JobSpec(gpus="5"), NotEnoughGpus),
        (JobSpec(gpus="device=9"), UnknownGpu),
        (JobSpec(gpus="GPU-00000000-0000-0000-0000-000000000000"), UnknownGpu),
        (JobSpec(gpus="many"), BadInput),
        (JobSpec(gpus="0"), BadInput),
        (JobSpec(Spec(image="no/such:image")), UnknownImage),
    ],
)
def test_refused_at_submit(unused: Client, job: JobSpec, error: type[Exception]):
    with pytest.raises(error) as caught:
        unused.submit(job)
    assert caught.value.hint
    assert unused.queue() == []


def test_unknown_job(unused: Client):
    for call in (unused.job, unused.cancel, unused.wait, lambda number: list(unused.logs(number))):
        with pytest.raises(UnknownJob):
            call(4711)


def test_all_or_none(unused: Client):
    with pytest.raises(NotEnoughGpus):
        unused.submit_many([shell("true"), JobSpec(gpus="99")])
    assert unused.queue(ended=True) == []


def test_only_one_daemon(daemon: DaemonProcess):
    second = DaemonProcess(daemon.home).start(wait=False)
    assert second.process is not None and second.process.wait(30) == 125
    assert "serves this queue already" in second.errors()
    with daemon.client() as queue:
        assert queue.ping().admin


def test_no_daemon(home: Path):
    with pytest.raises(DaemonUnavailable) as caught, Client(home / "run" / "daemon.sock"):
        pass
    assert "dockless daemon" in caught.value.hint


def test_the_socket_and_the_queue_are_as_open_as_they_should_be(daemon: DaemonProcess):
    assert daemon.socket.stat().st_mode & 0o777 == (0o666 if os.geteuid() == 0 else 0o600)
    assert (daemon.home / "state" / "jobs.db").stat().st_mode & 0o777 == 0o600
    assert (daemon.home / "state" / "logs").stat().st_mode & 0o777 == 0o700


def test_settings_read_again(daemon: DaemonProcess, queue: Client):
    user = queue.ping().user
    (daemon.home / "dockless.toml").write_text(f"[quota.users]\n{user} = 1\n")
    assert daemon.process is not None
    daemon.process.send_signal(1)
    deadline = time.monotonic() + 10
    while ("user", user, 0, 1) not in queue.info().quotas:
        assert time.monotonic() < deadline
    with pytest.raises(Refused, match="could never start"):
        queue.submit(JobSpec(gpus="2"))
    first = queue.submit(shell("echo up; sleep 100", gpus="1"))
    running(queue, first)
    second = queue.submit(shell("true", gpus="1"))
    assert f"user {user} uses 1 of 1" in queue.job(second).reason


def test_a_restart_changes_nothing_for_what_runs(daemon: DaemonProcess, queue: Client, tmp_path: Path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    gate.chmod(0o666)
    tmp_path.chmod(0o755)
    number = queue.submit(shell("echo up; read line < /gate; echo $line; exit 5", gpus="1", mounts=[Bind(str(gate), "/gate")]))
    running(queue, number)
    waiter: list[object] = []
    connected = threading.Event()

    def wait() -> None:
        with daemon.client() as client:
            connected.set()
            waiter.append(client.wait(number, timeout=60))

    thread = threading.Thread(target=wait)
    thread.start()
    assert connected.wait(10)
    daemon.kill9()
    daemon.start()
    with daemon.client() as again:
        assert again.job(number).state is State.RUNNING
        assert sum(gpu.job == number for gpu in again.info().gpus) == 1
        gate.write_text("go\n")
        job = again.wait(number, timeout=30)
        assert (job.state, job.exit_code, job.attempt) == (State.FAILED, 5, 1)
        assert [line.text for line in again.logs(number)] == ["up", "go"]
    thread.join(30)
    assert waiter[0].exit_code == 5  # the one who waited through the restart


def test_what_ended_while_no_daemon_was_there(daemon: DaemonProcess, queue: Client, tmp_path: Path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    gate.chmod(0o666)
    tmp_path.chmod(0o755)
    number = queue.submit(shell("echo up; read line < /gate; exit 9", mounts=[Bind(str(gate), "/gate")]))
    running(queue, number)
    daemon.kill9()
    gate.write_text("go\n")
    (sandbox,) = (daemon.home / "state" / "sandboxes").iterdir()
    deadline = time.monotonic() + 20
    while not (sandbox / "exit").exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    daemon.start()
    with daemon.client() as again:
        assert again.wait(number, timeout=30).exit_code == 9
    assert list((daemon.home / "state" / "sandboxes").iterdir()) == []


def test_ids_go_on_after_a_restart(daemon: DaemonProcess, queue: Client):
    first = queue.submit(shell("true"))
    queue.wait(first, timeout=30)
    daemon.stop()
    daemon.start()
    with daemon.client() as again:
        assert again.submit(shell("true")) == first + 1


def test_shutdown_leaves_jobs_running(daemon: DaemonProcess, queue: Client):
    number = queue.submit(shell("echo up; sleep 100"))
    running(queue, number)
    queue.shutdown()
    assert daemon.process is not None and daemon.process.wait(30) == 0
    assert not daemon.socket.exists()
    daemon.start()
    with daemon.client() as again:
        assert again.job(number).state is State.RUNNING


@pytest.mark.parametrize(("policy", "state"), [("requeue", State.COMPLETED), ("fail", State.LOST)])
def test_after_a_reboot(daemon: DaemonProcess, queue: Client, policy, state):
    """A boot id that is not this one's, and a sandbox whose keeper is gone: what a daemon finds after a reboot."""
    import sqlite3

    number = queue.submit(shell("echo up; [ $DOCKLESS_ATTEMPT = 2 ] || sleep 100", on_reboot=policy))
    running(queue, number)
    daemon.kill9()
    from dockless.sandbox.run import detached

    (sandbox,) = detached.list_all(daemon.home / "state")
    os.kill(sandbox.pid, 9)
    deadline = time.monotonic() + 20
    while sandbox.state() != "vanished":
        assert time.monotonic() < deadline
        time.sleep(0.005)
    with sqlite3.connect(daemon.home / "state" / "jobs.db") as db:
        db.execute("UPDATE attempts SET boot='another'")
    db.close()
    daemon.start()
    with daemon.client() as again:
        job = again.wait(number, timeout=30)
        assert job.state is state
        detail = again.job(number)
    assert [attempt.state for attempt in detail.attempts] == (
        [AttemptState.LOST, AttemptState.ENDED] if policy == "requeue" else [AttemptState.LOST]
    )
    assert "rebooted" in detail.attempts[0].reason


def test_a_keeper_that_was_killed(daemon: DaemonProcess, queue: Client):
    from dockless.sandbox.run import detached

    number = queue.submit(shell("echo up; sleep 100", gpus="all"))
    running(queue, number)
    (sandbox,) = detached.list_all(daemon.home / "state")
    os.kill(sandbox.pid, 9)
    job = queue.wait(number, timeout=30)
    assert job.state is State.LOST and "keeper was killed" in job.reason
    assert queue.wait(queue.submit(shell("true", gpus="all")), timeout=30).state is State.COMPLETED


def test_many_clients_many_jobs(daemon: DaemonProcess):
    """Four clients at once: every ack is a job of its own, every job ends, no GPU is given out twice at any look."""
    ids: list[int] = []
    faults: list[str] = []

    def client(number: int) -> None:
        try:
            with daemon.client() as queue:
                mine = [queue.submit(shell(f"exit {number}", gpus=("", "1", "2")[i % 3], time_limit=30)) for i in range(8)]
                ids.extend(mine)
                held = [gpu.job for gpu in queue.info().gpus if gpu.job]
                assert all(held.count(job) <= 2 for job in held)
                assert {job.exit_code for job in queue.wait_many(mine, timeout=60)} == {number}
        except (AssertionError, SchedError) as error:
            faults.append(repr(error))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert len(set(ids)) == 32


def test_gpus_of_a_detached_run_are_not_given_out_again(daemon: DaemonProcess, queue: Client, monkeypatch):
    """`dockless run -d --gpus` beside a daemon: its GPU is taken for as long as it lives, and given to a job when it has ended."""
    from dockless.sandbox.gpus import gpu
    from dockless.sandbox.run import detached

    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "4x80G")
    uuids = [unit.uuid for unit in gpu.inventory()]
    box = detached.start(Spec(argv=("sleep", "1000"), gpus=(uuids[0],)))
    try:
        wide = queue.submit(shell("true", gpus="4"))
        three = queue.submit(shell("echo up; sleep 100", gpus="3", priority=1))
        running(queue, three)
        assert uuids[0] not in queue.job(three).devices
        assert "1 leased outside the queue" in queue.job(wide).reason
        queue.cancel(three, grace=0)
        queue.wait(three, timeout=30)
        assert queue.job(wide).state is State.PENDING
    finally:
        box.remove()
    assert queue.wait(wide, timeout=30).state is State.COMPLETED


def test_who_is_cancelled_while_a_job_is_queued_leaves_none(daemon: DaemonProcess, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SOCKET", str(daemon.socket))

    async def main():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(aio.submit(["sleep", "300"], name="orphan"), 0.0005)

    asyncio.run(main())
    with daemon.client() as queue:
        for job in queue.queue():  # one whose sandbox is being made ends as soon as it is
            if job.name == "orphan":
                assert queue.wait(job.id, timeout=30).state is State.CANCELLED


def test_a_job_is_waited_for_and_read_by_a_loop(daemon: DaemonProcess, monkeypatch):
    """By many tasks at once, with no thread each."""
    monkeypatch.setenv("DOCKLESS_SOCKET", str(daemon.socket))

    async def main():
        job = await aio.submit(["sh", "-c", "echo one; read x < /dev/null; echo two"])
        last = await aio.submit(["sleep", "300"])
        with pytest.raises(TimeoutError):
            await last.wait(0.05)
        waiting = [asyncio.ensure_future(last.wait()) for _ in range(30)]
        assert [line.text async for line in job.logs(follow=True)] == ["one", "two"]
        assert (await job).state is State.COMPLETED and (await job.status()).id == int(job)
        threads = threading.active_count()
        await last.cancel(grace=0)
        assert {(await one).state for one in waiting} == {State.CANCELLED}
        assert threads < 25

    asyncio.run(main())
