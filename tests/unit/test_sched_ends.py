"""From a submit to the end of a job: how it is launched, how it ends, what its record says then, and what the daemon's own end leaves."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from dataclasses import replace

import pytest
from support.stand_in import DEADLINE, engine, plain, until

from dockless.errors import BadInput, CommandNotFound, NotEnoughGpus, SandboxGone, SchedError
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import State, clock
from dockless.sched.callers import Caller
from dockless.sched.config import Config
from dockless.sched.engine import attempts, outage
from dockless.sched.engine import engine as engine_module
from dockless.sched.engine.admission import amounts
from dockless.sched.engine.gpus.hostgpus import HostGpus
from dockless.sched.engine.lifecycle import ending, starting
from dockless.sched.store import queries, schema

ME = Caller(0, "root", frozenset(), True)
ANN = Caller(1001, "ann", frozenset(), False)
pytestmark = pytest.mark.usefixtures("two_gpus", "killed_again_soon")


async def started(running, launcher, *jobs, caller=ME):
    """Numbers and sandboxes of jobs that run."""
    numbers = await running.submit(caller, list(jobs), None)
    await until(lambda: all(running.entries[number].pidfd >= 0 for number in numbers))
    return numbers, [launcher.boxes[running.name(number, 1)] for number in numbers]


def ended(running, number):
    """What the queue says of it: state, reason, exit code, and of each attempt state and reason."""
    job = queries.job(running.reader, number)
    return str(job.state), job.reason, job.exit_code, [(str(one.state), one.reason) for one in job.attempts]


# -- programs that end at once


def ends_with(launcher, *codes):
    """What the launcher starts has ended by then: with these codes, one after the other."""
    left, start = list(codes), launcher.start

    def started(*args, **how):
        box = start(*args, **how)
        (box.directory / "log").write_text(box.id)
        box.end(Exit(left.pop(0), None, started=2.0, ended=2.0))
        return box

    launcher.start = started


def test_a_start_and_an_end_are_one_transaction_where_the_program_ends_at_once(tmp_path, launcher):
    ends_with(launcher, 0, 3)
    told = []

    async def play():
        async with engine(tmp_path, launcher) as running:
            running.tell = lambda entry, event: told.append((entry.job.id, event))
            for code, state in ((0, State.COMPLETED), (3, State.FAILED)):
                (number,) = await running.submit(ME, [plain()], None)
                before = running._writer.transactions
                await until(lambda number=number: number not in running.entries)
                assert running._writer.transactions == before + 2  # that it starts, and the rest
                job = queries.job(running.reader, number)
                assert (job.state, job.exit_code) == (state, code)
                events = running.reader.execute("SELECT event FROM events WHERE job=? ORDER BY seq", (number,)).fetchall()
                assert [event for (event,) in events] == ["submit", "start", "running", "ended"]
                name = running.name(number, 1)
                assert (running.logs / f"{name}.log").read_text() == name and told[0] == (number, "start")
                told.clear()
                await until(lambda name=name: launcher.boxes[name].said == ["remove"])

    asyncio.run(play())


def test_what_ends_at_once_and_is_to_run_again_does(tmp_path, launcher):
    ends_with(launcher, 1, 0)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain(retries=1)], None)
            await until(lambda: number not in running.entries)
            assert ended(running, number)[0::2] == ("COMPLETED", 0)
            assert [str(one.state) for one in queries.job(running.reader, number).attempts] == ["ENDED", "ENDED"]

    asyncio.run(play())


def test_output_of_what_ends_at_once_is_kept_later_where_it_cannot_be_then(tmp_path, launcher, monkeypatch):
    ends_with(launcher, 0)
    keep, tried = attempts.keep_log, []

    def full_at_first(handle, kept):
        tried.append(kept)
        if len(tried) == 1:
            raise OSError(28, "No space left on device")
        keep(handle, kept)

    monkeypatch.setattr(attempts, "keep_log", full_at_first)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain()], None)
            await until(lambda: number not in running.entries)
            name = running.name(number, 1)
            assert (running.logs / f"{name}.log").read_text() == name and ended(running, number)[:2] == ("COMPLETED", "")

    asyncio.run(play())


def test_an_end_is_waited_for_only_while_programs_end_soon(tmp_path, launcher, monkeypatch):
    waited = []
    started_really = attempts.started
    monkeypatch.setattr(attempts, "started", lambda start, kept, patience: waited.append(patience) or started_really(start, kept, 0.0))

    async def play():
        async with engine(tmp_path, launcher) as running:
            for at in (2.0, 2.001, 3.0, 2.0, 1.0, 2.0):  # when it ends, of 2.0; a clock may be set back
                _, (box,) = await started(running, launcher, plain())
                box.end(Exit(0, None, started=2.0, ended=at))
                await until(lambda: not running.entries)
            await started(running, launcher, plain())
            await started(running, launcher, plain())
        assert waited == [0.0, ending.SOON, ending.SOON, 0.0, ending.SOON, 0.0, ending.SOON, 0.0]

    asyncio.run(play())


# -- submit and launch


def test_what_is_no_submit(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            with pytest.raises(BadInput, match="an array is made of one job") as caught:
                await running.submit(ME, [plain(), plain()], 2)
            assert caught.value.subject == "array"
            running.closing = True
            with pytest.raises(SchedError, match="the daemon is ending"):
                await running.submit(ME, [plain()], None)
            running.closing = False
            assert not running.entries and not running.per_user.jobs

    asyncio.run(play())


def test_others_have_their_turn_while_many_jobs_are_looked_at(tmp_path, launcher, monkeypatch):
    monkeypatch.setattr(amounts, "JOBS_A_TURN", 2)
    order = []

    async def others():
        while True:
            order.append("others")
            await asyncio.sleep(0)

    async def play():
        async with engine(tmp_path, launcher, Config(cpu_jobs=1)) as running:
            admit = running.admission.admit
            monkeypatch.setattr(running.admission, "admit", lambda *job: order.append("job") or admit(*job))
            task = asyncio.ensure_future(others())
            await running.submit(ME, [plain()] * 5, None)
            task.cancel()

    asyncio.run(play())
    parts = "".join("x" if one == "job" else " " for one in order).split()
    assert parts == ["xx", "xx", "x"]


def test_nothing_is_decided_for_jobs_that_have_to_wait_anyway(tmp_path, launcher, monkeypatch):
    async def play():
        async with engine(tmp_path, launcher, Config(cpu_jobs=1)) as running:
            await started(running, launcher, plain(gpus="2"))
            await running.submit(ME, [plain(gpus="1")], None)
            await until(lambda: not running._kicked and running.decision.held(next(iter(running.waiting))))
            decide, decided = engine_module.policy.decide, []
            monkeypatch.setattr(engine_module.policy, "decide", lambda *of: decided.append(1) or decide(*of))
            await running.submit(ME, [plain(gpus="1"), plain(gpus="1")], None)
            assert not running._kicked and decided == []
            _, number = await running.submit(ME, [plain(gpus="1"), plain()], None)
            await until(lambda: running.entries[number].job.state is State.RUNNING)
            assert decided

    asyncio.run(play())


@pytest.mark.parametrize(("euid", "caller", "owner"), [(0, ME, None), (0, ANN, 1001), (1001, ANN, None)])
def test_what_is_launched(tmp_path, launcher, monkeypatch, euid, caller, owner):
    how = {}
    start = launcher.start
    monkeypatch.setattr(launcher, "start", lambda spec, **given: how.update(given) or start(spec, **given))

    async def play():
        async with engine(tmp_path, launcher, Config(log_size=77)) as running:
            monkeypatch.setattr(starting.os, "geteuid", lambda: euid)
            spec = Spec(argv=("true",), env=(("A", "1"),), timeout=50.0, grace=3.0)
            (number,), (box,) = await started(running, launcher, plain(spec, gpus="1", time_limit=40.0), caller=caller)
            (gpu,) = running.entries[number].job.devices
            numbers = (("DOCKLESS_JOB_ID", str(number)), ("DOCKLESS_ATTEMPT", "1"))
            assert box.spec == replace(spec, env=(("A", "1"), *numbers), gpus=(gpu,), timeout=40.0, log_size=77)
            labels = {"queue": running.queue_id, "job": str(number), "attempt": "1", "user": caller.user}
            group = {"user": caller.uid} if euid == 0 else {}
            assert how == {"id": running.name(number, 1), "owner": owner, "labels": labels} | group
            entry = running.entries[number]
            assert (entry.grace, entry.limit) == (3.0, 43.0) and entry.ends == pytest.approx(clock.ticks() + 40.0, abs=30)
            _, (other,) = await started(running, launcher, plain(Spec(argv=("true",), log_size=5)))
            assert other.spec.log_size == 5 and not other.spec.gpus

    asyncio.run(play())


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (CommandNotFound("no such program", hint="look"), "not started: no such program (look)", 127),
        (CommandNotFound("no such program"), "not started: no such program", 127),
        (ValueError("hunter2"), "not started: ValueError in ", 125),
    ],
)
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_launch_that_is_refused_is_the_end(tmp_path, launcher, monkeypatch, error, reason, code, cancelled):
    asked, gate = threading.Event(), threading.Event()

    def refused(*_, **__):
        asked.set()
        assert gate.wait(DEADLINE)
        raise error

    monkeypatch.setattr(launcher, "start", refused)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain(gpus="1")], None)
            await until(asked.is_set)
            if cancelled:
                await running.cancel(number, "root", None)
            gate.set()
            await until(lambda: number not in running.entries)
            state, said, exit_code, attempts = ended(running, number)
            assert (state, exit_code) == ("CANCELLED" if cancelled else "FAILED", code)
            assert said.startswith(reason) and attempts == [("ENDED", said)] and "hunter2" not in said
            assert said == reason or isinstance(error, ValueError)

    asyncio.run(play())


def test_gpus_that_somebody_else_took_meanwhile(tmp_path, launcher, monkeypatch):
    """That attempt never ran; the job waits again and is started anew."""
    start, first = launcher.start, [NotEnoughGpus("a `dockless run` was faster")]

    def sometimes(*args, **how):
        if first:
            raise first.pop()
        return start(*args, **how)

    monkeypatch.setattr(launcher, "start", sometimes)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain(gpus="1")], None)
            await until(lambda: running.entries[number].job.state is State.RUNNING)
            assert ended(running, number) == ("RUNNING", "", None, [("VOID", "a `dockless run` was faster"), ("RUNNING", "")])

    asyncio.run(play())


def test_cancelled_while_its_lease_is_written(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            gate = threading.Event()
            try:
                (number,) = await running.submit(ME, [plain(gpus="1")], None)
                entry = running.entries[number]
                running._writer.write(lambda db: gate.wait(DEADLINE), asyncio.get_running_loop().create_future())
                await until(lambda: entry.job.state is State.STARTING)
                cancel = asyncio.ensure_future(running.cancel(number, "root", None))
                await until(lambda: entry.cancelled)
            finally:
                gate.set()
            await cancel
            await until(lambda: number not in running.entries)
            assert ended(running, number) == ("CANCELLED", "cancelled before it ran", None, [("ENDED", "cancelled before it ran")])
            assert launcher.boxes == {}

    asyncio.run(play())


def test_gpus_in_use_outside_are_looked_at_again_while_somebody_waits_for_them(tmp_path, launcher, monkeypatch):
    asked = []

    async def play():
        async with engine(tmp_path, launcher) as running:
            taken, free = running.gpus.uuids
            answers = [frozenset((taken, free))]
            monkeypatch.setattr(running.gpus, "unusable", lambda leased: asked.append(set(leased)) or answers[0])
            await started(running, launcher, plain())
            assert asked == [] and running._look_again is None  # nobody waits for GPUs
            monkeypatch.setattr(engine_module, "LOOK_AGAIN", 0.001)
            (number,) = await running.submit(ME, [plain(gpus="1")], None)
            await until(lambda: len(asked) > 2)
            answers[0] = frozenset((taken,))
            await until(lambda: running.entries[number].job.state is State.RUNNING)
            assert running.entries[number].job.devices == (free,) and set(map(len, asked)) == {0}
            await until(lambda: running._look_again is None)
            monkeypatch.setattr(engine_module, "LOOK_AGAIN", 3600.0)
            await running.submit(ME, [plain(gpus="1")], None)
            timer = await until(lambda: running._look_again)
            assert asked[-1] == {free}
            running.kick()
            await until(lambda: not running._kicked)
            assert running._look_again is timer and 0 < timer.when() - running.loop.time() <= 3600
        assert timer.cancelled()

    asyncio.run(play())


def test_nothing_is_looked_at_again_where_nothing_is_in_use_outside_or_nobody_waits(tmp_path, launcher, monkeypatch):
    async def play():
        async with engine(tmp_path, launcher) as running:
            taken, _ = running.gpus.uuids
            outside = frozenset((taken,))
            monkeypatch.setattr(running.gpus, "unusable", lambda leased: outside)
            await started(running, launcher, plain(gpus="1"))
            assert running._look_again is None
            outside = frozenset()
            (waits,) = await running.submit(ME, [plain(gpus="2")], None)
            await until(lambda: running.decision.held(running.entries[waits].waiting))
            assert running._look_again is None

    asyncio.run(play())


def test_new_settings_hold_from_now_on(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher, Config(cpu_jobs=1)) as running:
            first, second = await running.submit(ME, [plain(), plain()], None)
            await until(lambda: running.entries[first].job.state is State.RUNNING)
            config = Config(cpu_jobs=2, per_user=2)
            running.configure(config)
            await until(lambda: running.entries[second].job.state is State.RUNNING)
            assert running.callers.config is running.admission.config is running.config is config
            assert running.admission.callers is running.callers and running.admission.gpus is running.gpus

    asyncio.run(play())


# -- the end


def test_who_waits_hears_what_the_queue_says(tmp_path, launcher, monkeypatch):
    monkeypatch.setattr(ending, "AFTER_ENDS", 2)
    records = (
        (Exit(0, None), State.COMPLETED, "", 0, None),
        (Exit(None, 9, timed_out=True), State.TIMEOUT, "reached its time limit", 124, 9),
        (Exit(None, 9, oom_killed=True), State.OOM, "out of memory (killed by signal 9)", 137, 9),
    )

    async def play():
        async with engine(tmp_path, launcher) as running:
            for count, (record, state, reason, code, signal) in enumerate(records, 1):
                (number,), (box,) = await started(running, launcher, plain(gpus="1"))
                entry = running.entries[number]
                gone_away, waits, gone = (asyncio.get_running_loop().create_future() for _ in range(3))
                gone_away.cancel()
                entry.ended += [gone_away, waits]
                entry.gone.append(gone)
                box.end(record)
                heard = await asyncio.wait_for(waits, DEADLINE)
                job = queries.job(running.reader, number)
                assert heard == replace(job, attempts=()) and gone.done()
                assert (job.state, job.reason, job.exit_code, job.signal) == (state, reason, code, signal)
                assert job.attempts[0].exit["signal"] == signal and list(job.attempts[0].exit)[:2] == ["code", "signal"]
                assert (running.ends, running.many_ended.is_set()) == (count, count >= 2)
                await until(lambda box=box: box.said == ["remove"])

    asyncio.run(play())


def test_one_that_has_ended_before_anybody_could_wait_for_it(tmp_path, launcher, monkeypatch):
    start = launcher.start

    def short(*args, **how):
        box = start(*args, **how)
        box.end(Exit(5, None))
        return box

    monkeypatch.setattr(launcher, "start", short)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain(gpus="1")], None)
            await until(lambda: number not in running.entries)
            assert ended(running, number) == ("FAILED", "exit code 5", 5, [("ENDED", "exit code 5")])

    asyncio.run(play())


def test_why_it_ended_and_why_its_output_is_not_kept_yet(tmp_path, launcher, monkeypatch):
    monkeypatch.setattr(attempts, "keep_log", lambda *_: (_ for _ in ()).throw(OSError(28, "planted")))

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,), (box,) = await started(running, launcher, plain())
            box.end(Exit(5, None))
            await until(lambda: number not in running.entries)
            assert ended(running, number)[1] == "exit code 5; its output is not kept yet: No space left on device"
            assert running.left == [box] and box.said == []

    asyncio.run(play())


def test_an_end_that_cannot_be_recorded_yet(tmp_path, launcher, monkeypatch):
    """It is shown, and the room that its files take is given back, once; it is recorded as soon as there is room."""
    monkeypatch.setattr(outage, "LOOK", 0.001)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,), (box,) = await started(running, launcher, plain())
            entry, write, refused = running.entries[number], running.write, []

            def full(change):
                refused.append(change)
                future = asyncio.get_running_loop().create_future()
                future.set_exception(SchedError("the queue cannot be written: disk full", subject="jobs.db"))
                return future

            box.lighten = lambda: box.said.append("lighten")
            running.write = full
            box.end(Exit(5, None))
            await until(lambda: "lighten" in box.said)
            assert entry.job.reason == "it has ended (FAILED), which cannot be recorded yet: the queue cannot be written: disk full"
            assert entry.job.state is State.RUNNING and number in running.active
            running.write = write
            await until(lambda: number not in running.entries)
            assert ended(running, number) == ("FAILED", "exit code 5", 5, [("ENDED", "exit code 5")]) and refused
            await until(lambda: box.said == ["lighten", "remove"])

    asyncio.run(play())


def test_past_its_time_limit_it_is_helped(tmp_path, launcher, capfd):
    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,), (box,) = await started(running, launcher, plain(time_limit=3600.0))
            entry = running.entries[number]
            box.send_stop = lambda: box.said.append("stop")
            box.on_kill = lambda: box.end(Exit(None, 9, timed_out=True))
            ending._overdue(running, entry)
            await until(lambda: number not in running.entries)
            assert ended(running, number)[:3] == ("TIMEOUT", "reached its time limit", 124)
            assert entry.overdue.cancelled() and box.said[:2] == ["stop", "kill"]

    asyncio.run(play())
    said = "dockless daemon: job 1 is past its time limit, and its keeper has not ended it: killing it\n"
    assert capfd.readouterr().err == said


@pytest.mark.parametrize("state", ["gone", "starting", "running"])
def test_a_job_that_nobody_can_follow_is_over_when_nothing_of_it_goes_on(tmp_path, launcher, capfd, state):
    """Not earlier: until then nobody else gets its GPUs."""

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,), (box,) = await started(running, launcher, plain(gpus="1"))
            entry = running.entries[number]
            if state == "gone":
                launcher.boxes.clear()
            else:
                box.now = state
            way = asyncio.ensure_future(ending.give_up(running, entry, SandboxGone("it is nowhere")))
            if state != "gone":
                await until(lambda: box.said.count("kill") > 2)
                assert entry.job.devices and number in running.active
                box.now = "vanished"
            await asyncio.wait_for(way, DEADLINE)
            reason = "the daemon could not follow it: SandboxGone: it is nowhere"
            assert ended(running, number) == ("LOST", reason, None, [("LOST", reason)]) and entry.pidfd == -1
            assert running.kept.directory == running.logs and running.left == []

    asyncio.run(play())
    assert "job 1 cannot be followed: SandboxGone" in capfd.readouterr().err


def test_what_cannot_be_ended_at_once_is_tried_again_and_the_next_daemon_goes_on(tmp_path, launcher, monkeypatch, capfd):
    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,), (box,) = await started(running, launcher, plain(gpus="1"))
            monkeypatch.setattr(ending, "GIVE_UP", 1_000_000)
            box.on_kill = lambda: (_ for _ in ()).throw(ValueError("hunter2"))
            running.spawn(ending.give_up(running, running.entries[number], ValueError("hunter2")))
            await until(lambda: box.said.count("kill") > 2)
        assert queries.job(schema.connect(tmp_path / "jobs.db"), number).state is State.RUNNING

    asyncio.run(play())
    said = capfd.readouterr().err
    assert said.count("job 1 cannot be ended yet: ValueError in ") > 1 and "hunter2" not in said


@pytest.mark.parametrize("what", ["spawned", "of a job", "of one that has ended"])
def test_an_error_of_ours_is_told_without_its_text(tmp_path, launcher, capfd, what):
    async def fails():
        raise ValueError("hunter2")

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,), (box,) = await started(running, launcher, plain())
            entry = running.entries[number]
            if what == "spawned":
                running.spawn(fails())
                await until(lambda: not running._tasks)
                return
            if what == "of one that has ended":
                box.end(Exit(0, None))
                await until(lambda: number not in running.entries)
            box.on_kill = lambda: setattr(box, "now", "vanished")
            await ending.surely(running, entry, fails())
            assert ended(running, number)[0] == ("LOST" if what == "of a job" else "COMPLETED")

    asyncio.run(play())
    said = capfd.readouterr().err
    assert "hunter2" not in said
    assert said.startswith({
        "spawned": "dockless daemon: unexpected error: ValueError in test_sched_ends.py:",
        "of a job": "dockless daemon: job 1 cannot be followed: ValueError in ",
        "of one that has ended": "",
    }[what])  # fmt: skip


# -- cancel


def test_cancelling_many_ends_all_that_can_be_ended(tmp_path, launcher, monkeypatch):
    monkeypatch.setattr(engine_module, "AT_A_TIME", 2)
    turns = []

    async def turn():
        turns.append(1)

    async def play():
        async with engine(tmp_path, launcher, Config(cpu_jobs=1)) as running:
            numbers = await running.submit(ME, [plain(gpus="2") for _ in range(6)], None)
            await until(lambda: running.entries[numbers[0]].job.state is State.RUNNING)
            cancel = running.cancel

            async def sometimes(number, *how):
                if number in numbers[1:3]:
                    raise SchedError(f"planted {number}")
                await cancel(number, *how)

            running.cancel = sometimes
            with pytest.raises(SchedError, match=f"planted {numbers[1]}"):
                await running.each(numbers[:5], lambda number: running.cancel(number, "root", None), turn)
            await until(lambda: sorted(running.entries) == [*numbers[1:3], numbers[5]])
            assert len(turns) == 3
            assert ended(running, numbers[4]) == ("CANCELLED", "cancelled by root", None, [])

    asyncio.run(play())


def test_a_cancel_that_cannot_be_written(tmp_path, launcher):
    """What waits waits on as before; what runs is stopped all the same."""

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,), (box,) = await started(running, launcher, plain(gpus="2"))
            first, second = await running.submit(ME, [plain(gpus="2"), plain(gpus="2")], None)
            write = running.write

            def refused(change):
                future = asyncio.get_running_loop().create_future()
                future.set_exception(SchedError("the queue is closed"))
                return future

            running.write = refused
            with pytest.raises(SchedError, match="is closed"):
                await running.cancel(first, "root", None)
            assert [one.id for one in running.waiting] == [first, second] and not running.entries[first].cancelled
            box.end = lambda record: None
            with pytest.raises(SchedError, match="is closed"):
                await running.cancel(number, "root", None)
            running.write = write
            await running.cancel(first, "ann", None)
            assert ended(running, first)[:2] == ("CANCELLED", "cancelled by ann")
            await until(lambda: box.said == ["stop"])
            del box.end
            box.end(Exit(0, None))
            await until(lambda: number not in running.entries)
            assert ended(running, number)[:2] == ("CANCELLED", "cancelled while it ran (exit code 0)")

    asyncio.run(play())


def test_who_cancelled_is_written_down_once(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,), (box,) = await started(running, launcher, plain())
            box.send_stop = lambda: box.said.append("stop")
            await running.cancel(number, "ann", 3600.0)
            await running.cancel(number, "ben", 1800.0)
            assert running.entries[number].stop_by - clock.ticks() <= 1800
            rows = running.reader.execute("SELECT detail FROM events WHERE event='cancel'")
            assert list(rows) == [("by ann",)]
            await until(lambda: box.said == ["stop"])
            box.end(Exit(0, None))

    asyncio.run(play())


# -- the daemon's own end


def test_what_the_end_of_the_daemon_leaves(tmp_path, launcher, monkeypatch):
    closed, waits, wait, close = [], [], asyncio.wait, HostGpus.close
    monkeypatch.setattr(HostGpus, "close", lambda self: closed.append(self) or close(self))
    monkeypatch.setattr(engine_module.asyncio, "wait", lambda tasks, **how: waits.append(how) or wait(tasks, **how))

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,), (box,) = await started(running, launcher, plain(time_limit=3600.0))
            entry = running.entries[number]
            box.send_stop = lambda: box.said.append("stop")
            await running.cancel(number, "root", 3600.0)
            await until(lambda: box.said == ["stop"])
            waits.clear()
        assert waits == [{"timeout": 10.0}]
        assert entry.pidfd == -1 and entry.overdue.cancelled() and not running._tasks and closed == [running.gpus]
        pools = {running.launching: 4, running.launching_on_gpus: 16, running.looking: 16, running.removing: 8, running.signalling: 4}
        for pool, threads in pools.items():
            assert pool._max_workers == threads
            with pytest.raises(RuntimeError, match="after shutdown"):
                pool.submit(len, "")
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            running.reader.execute("SELECT 1")
        with pytest.raises(SchedError, match="is closed"):
            running._writer.write(len)
        assert box.said == ["stop"]  # it is not killed for the daemon's end
        os.close(box._reader)

    asyncio.run(play())


def test_a_start_that_comes_up_while_the_daemon_ends_is_left_to_the_next(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,), (box,) = await started(running, launcher, plain())
            entry = running.entries[number]
            ending.unwatch(running, entry)
            fds = set(os.listdir("/proc/self/fd"))
            running.closing = True
            await ending.watch(running, entry)
            assert entry.pidfd == -1 and set(os.listdir("/proc/self/fd")) == fds
            box.now = "exited"
            await ending.watch(running, entry)
            assert number in running.active
            running.closing = False

    asyncio.run(play())


def test_a_caller_that_went_away_keeps_no_answer_from_the_others():
    async def play():
        first, second, third = (asyncio.get_running_loop().create_future() for _ in range(3))
        first.cancel()
        engine_module._settle([(first, 1, None), (second, 2, None), (third, None, SchedError("planted"))])
        assert second.result() == 2 and str(third.exception()) == "planted"

    asyncio.run(play())
