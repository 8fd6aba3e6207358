"""What the daemon answers: the real server, engine and client over a socket, with a launcher that starts nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support.desk import ANN, BEN, PEOPLE, play
from support.quotas import limits
from support.stand_in import DEADLINE, until

from dockless.base.records import differences
from dockless.errors import BadInput, DaemonUnavailable, NotEnoughGpus, NotPermitted, Refused, SchedError, UnknownJob
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Bind, Namespaces, Spec
from dockless.sched import Job, JobSpec, State
from dockless.sched.config import Config
from dockless.sched.jobs import Filter
from dockless.sched.policy.forecast import forecast
from dockless.sched.policy.whatif import Sooner
from dockless.sched.store import queries
from dockless.sched.wire import answers, client, listed, outlook, protocol, server, verbs
from dockless.sched.wire.protocol import Ahead, DaemonInfo, GpuInfo, HostInfo
from dockless.sched.wire.server import EVERYBODY, IN_ALL, KEPT_BACK, OWN, PER_USER, Server


@pytest.fixture(autouse=True)
def _gpus(monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")


def job(**fields) -> JobSpec:
    return JobSpec(Spec(argv=("true",)), **fields)


def test_who_answers_and_to_whom(tmp_path):
    async def story(desk):
        for who, user, admin in ((0, "root", True), (ANN, "ann", False)):
            info = await desk(who, lambda queue: queue.ping())
            assert info == DaemonInfo(os.getpid(), "1.2", os.geteuid(), user, admin, desk.server.started, str(desk.path), True)
        await desk.refused(NotPermitted, ANN, lambda queue: queue.shutdown())
        assert not desk.ended.is_set()
        await desk(0, lambda queue: queue.shutdown())
        await asyncio.wait_for(desk.ended.wait(), DEADLINE)

    play(tmp_path, story)


def test_a_release_is_answered_with_what_the_job_waits_for_then(tmp_path):
    async def story(desk):
        await desk.runs((await desk.submit(BEN, job(gpus="2")))[0])
        (held,) = await desk.submit(ANN, job(gpus="2", hold=True))
        desk.engine._took = 0.2  # as in a long queue: the next pass is not at once
        (released,) = await desk(ANN, lambda queue: queue.release(held))
        await until(lambda: not desk.engine._kicked)
        assert released.reason == (await desk(ANN, lambda queue: queue.job(held))).reason

    play(tmp_path, story)


def test_the_host_and_who_holds_what(tmp_path):
    config = Config(limits({"ann": 1, "zoe": 3}, {"vision": 2, "empty": 1}), {"vision": ("ann",)}, cpu_jobs=7)

    async def story(desk):
        first, _, third = [*await desk.submit(ANN, job(gpus="1"), job(gpus="1")), *await desk.submit(BEN, job())]
        await desk.runs(first), await desk.runs(third)
        info = await desk(BEN, lambda queue: queue.info())
        held, free = desk.engine.gpus.gpus
        since = desk.engine.entries[first].job.started
        rows = [
            GpuInfo(gpu.index, gpu.uuid, gpu.model, gpu.memory, -1 if gpu.numa_node is None else gpu.numa_node, True)
            for gpu in (held, free)
        ]
        rows[0] = replace(rows[0], job=first, attempt=1, user="ann", since=since)
        quotas = (
            ("user", "ann", 1, 1),
            ("user", "ben", 0, None),
            ("user", "zoe", 0, 3),
            ("group", "empty", 0, 1),
            ("group", "vision", 1, 2),
        )
        assert replace(info, cores=0.0, cores_used=0.0, memory=0, memory_used=0) == HostInfo(tuple(rows), 1, 2, 7, "", quotas)
        assert info.gpus[0].since > 0

    play(tmp_path, story, config)


def test_what_others_see_of_a_job(tmp_path):
    """Its numbers, and why it waits; not what it is, nor why it ended. An administrator sees all."""

    async def story(desk):
        running, waiting = await desk.submit(ANN, job(gpus="2", name="secret"), job(gpus="1", name="secret", time_limit=5.0))
        box = await desk.runs(running)
        shown = {who: await desk(who, lambda queue: queue.queue()) for who in (0, ANN, BEN)}
        assert shown[0] == shown[ANN] and [(one.name, one.command, one.image) for one in shown[ANN]] == [("secret", "true", "host")] * 2
        assert shown[BEN] == [replace(one, name="", command="", image="") for one in shown[ANN]]
        assert [one.reason for one in shown[BEN]] == ["", f"needs 1 GPU, 0 free; waits for job {running}, which has no time limit"]
        box.end(Exit(3, None))
        await until(lambda: running not in desk.engine.entries)
        mine, theirs = [(await desk(who, lambda queue: queue.queue(ended=True)))[-1] for who in (ANN, BEN)]
        assert (mine.id, mine.reason, mine.name) == (running, "exit code 3", "secret")
        assert theirs == replace(mine, name="", command="", image="", reason="")
        for ask in (lambda queue: queue.job(waiting), lambda queue: queue.wait(running), lambda queue: queue.cancel(waiting)):
            assert await desk.refused(NotPermitted, BEN, ask) in (f"job {running} belongs to ann", f"job {waiting} belongs to ann")
        assert (await desk(0, lambda queue: queue.job(running))).name == "secret"

    play(tmp_path, story)


def test_why_a_job_waits(tmp_path):
    """GPUs that it names are called by their index, as users ask for them; what the queue's disk says comes first."""

    async def story(desk):
        desk.engine._settled, desk.engine.decision = False, None  # nothing is decided yet
        (number,) = await desk.submit(ANN, job(gpus="device=1"))
        assert (await desk(ANN, lambda queue: queue.job(number))).reason == "just submitted"
        desk.engine._settled = True
        desk.engine.kick()
        await desk.runs(number)
        (second,) = await desk.submit(ANN, job(gpus="device=1"))
        await until(lambda: desk.engine.decision.held(desk.engine.entries[second].waiting))
        assert (await desk(ANN, lambda queue: queue.job(second))).reason == (
            f"needs GPU 1, 0 free; waits for job {number}, which has no time limit"
        )
        desk.engine.outage.text = "the disk is full"
        assert (await desk(ANN, lambda queue: queue.job(second))).reason == "nothing can be started: the disk is full"
        desk.engine.outage.text = ""
        stored = (await desk(ANN, lambda queue: queue.job(number))).attempts
        assert [(one.number, str(one.state), len(one.gpus)) for one in stored] == [(1, "RUNNING", 1)]

    play(tmp_path, story)


def test_why_a_job_waits_at_length(tmp_path, monkeypatch):
    """Its owner and administrators are told. One that is just being cancelled waits no more, though its end is not written down."""

    async def story(desk):
        head, wide, other = await desk.submit(ANN, job(gpus="1", time_limit=3600.0), job(gpus="2"), job(gpus="1"))
        await desk.runs(head)
        found = await desk(ANN, lambda queue: queue.why(wide))
        assert (found.job, found.state, found.place, found.waiting, found.sooner) == (wide, "PENDING", 1, 2, ("with 1 GPU instead of 2",))
        assert found.reason.startswith("needs 2 GPUs, 1 free; starts in about 1 h") and 3500 < found.starts_in <= 3600
        assert (found.rule, found.ahead, found.at_latest) == ("resources", (), True)
        found = await desk(0, lambda queue: queue.why(other))
        assert (found.place, found.sooner) == (2, ("with a time limit of 59 min or less",))
        assert (found.rule, found.ahead, found.starts_in, found.endless) == ("reserved", (Ahead(wide, "ann", 2),), None, (wide,))
        with monkeypatch.context() as patched:  # among too many kinds of jobs
            patched.setattr(outlook, "KINDS", 1)
            found = await desk(0, lambda queue: queue.why(other))
        assert (found.place, found.sooner) == (2, ())
        await desk.refused(NotPermitted, BEN, lambda queue: queue.why(wide))
        await desk.refused(UnknownJob, ANN, lambda queue: queue.why(99))
        found = await desk(ANN, lambda queue: queue.why(head))
        assert (found.state, found.place, found.starts_in, found.sooner) == ("RUNNING", 0, None, ())
        entry = desk.engine.entries[wide]
        entry.cancelled = True
        desk.engine.waiting.remove(entry.waiting)
        found = await desk(ANN, lambda queue: queue.why(wide))
        assert (found.state, found.place, found.sooner) == ("PENDING", 0, ())
        entry.cancelled = False
        desk.engine.waiting.add(entry.waiting)

    play(tmp_path, story)


def test_why_is_answered_after_the_pass_that_is_due(tmp_path):
    async def story(desk):
        (first,) = await desk.submit(BEN, job(gpus="2"))
        box = await desk.runs(first)
        (waits,) = await desk.submit(ANN, job(gpus="1"))
        await desk.engine.decided()
        desk.engine._took = 0.5  # as in a long queue: the next pass is not at once
        box.end(Exit(0, None))
        await until(lambda: first not in desk.engine.entries)
        assert desk.engine._kicked and desk.engine.entries[waits].job.state is State.PENDING
        assert (await desk(ANN, lambda queue: queue.why(waits))).state != "PENDING"

    play(tmp_path, story)


def test_when_each_of_a_queue_starts(tmp_path, monkeypatch):
    """One behind the other, in ``why`` and in a listing; whoever holds up the answers does not hold up the daemon."""
    threads = set()
    monkeypatch.setattr(outlook, "sooner", lambda *args: threads.add(threading.get_ident()) or Sooner())
    monkeypatch.setattr(outlook, "forecast", lambda *args: threads.add(threading.get_ident()) or forecast(*args))

    async def story(desk):
        numbers = await desk.submit(ANN, *[job(gpus="2", time_limit=3600.0 * hours) for hours in (1, 2, 3)], job(gpus="1", time_limit=9e5))
        numbers += await desk.submit(BEN, job(gpus="1", time_limit=60.0), job())
        await desk.runs(numbers[0])
        await desk.engine.decided()
        found = [await desk(0, lambda queue, one=one: queue.why(one)) for one in numbers[1:5]]
        assert [(one.place, one.waiting, one.at_latest) for one in found] == [(1, 4, True), (2, 4, False), (3, 4, False), (4, 4, False)]
        assert [round(one.starts_in / 3600, 1) for one in found] == [1.0, 3.0, 6.0, 6.0]
        assert [ahead.job for ahead in found[3].ahead] == numbers[1:4] and found[3].ahead[0] == Ahead(numbers[1], "ann", 2)
        rows = await desk(BEN, lambda queue: queue.queue())
        assert [(row.place, row.starts_in and round(row.starts_in / 3600, 1)) for row in rows if row.id in numbers[:5]] == [
            (0, None), (1, 1.0), (2, 3.0), (3, 6.0), (4, 6.0),
        ]  # fmt: skip
        (mine,) = await desk(BEN, lambda queue: queue.queue(user="ben", states=["PENDING"]))
        assert (mine.id, mine.place, round(mine.starts_in / 3600, 1)) == (numbers[4], 4, 6.0), "others are counted all the same"
        assert threads and threading.get_ident() not in threads

    play(tmp_path, story)


def test_what_would_let_it_start_earlier(tmp_path):
    """Each with its moment; what would start now is said once."""

    async def story(desk):
        (first,) = await desk.submit(ANN, job(gpus="2", time_limit=3600.0))
        await desk.runs(first)
        await desk.submit(BEN, job(gpus="1", time_limit=7200.0))
        wide, *_ = await desk.submit(ANN, job(gpus="2", time_limit=7200.0))
        await desk.engine.decided()
        found = await desk(ANN, lambda queue: queue.why(wide))
        assert round(found.starts_in / 3600, 1) == 3.0 and found.sooner == ()
        assert found.earlier == ("in about 1 h with 1 GPU instead of 2",)

    play(tmp_path, story)


def test_another_model_would_start_earlier(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G:H100+1x80G:A100")

    async def story(desk):
        hours, half = await desk.submit(ANN, job(gpus="class=H100", time_limit=7200.0), job(gpus="class=A100", time_limit=1800.0))
        for number in (hours, half):
            await desk.runs(number)
        (waits,) = await desk.submit(ANN, job(gpus="class=H100", time_limit=60.0))
        await desk.engine.decided()
        found = await desk(ANN, lambda queue: queue.why(waits))
        assert found.earlier == ("in about 30 min with 1 GPU of model Simulated A100",)

    play(tmp_path, story)


def test_places_in_a_listing_of_some(tmp_path):
    """Jobs without GPUs have places of their own, those that are held none."""

    async def story(desk):
        first, *waiting = await desk.submit(ANN, *[job() for _ in range(3)], job(gpus="2"), job(gpus="2", group="vision"), job(hold=True))
        (other,) = await desk.submit(BEN, job())
        await desk.engine.decided()
        rows = {row.id: row.place for row in await desk(0, lambda queue: queue.queue())}
        ran = waiting[2]
        assert rows == {first: 0, ran: 0, other: 1, waiting[0]: 2, waiting[1]: 3, waiting[3]: 1, waiting[4]: 0}
        found = await desk(0, lambda queue: queue.queue(group="vision"))
        assert [(row.id, row.place) for row in found] == [(waiting[3], 1)]
        found = await desk(0, lambda queue: queue.queue(states=["PENDING"], limit=2))
        assert [(row.id, row.place) for row in found] == [(waiting[3], 1), (other, 1)] and found.more == 3

    play(tmp_path, story, Config(cpu_jobs=1))


def test_a_listing_is_in_the_order_in_which_they_start(tmp_path):
    async def story(desk):
        (first,) = await desk.submit(ANN, job(gpus="2"))
        await desk.runs(first)
        hers, his = [*await desk.submit(ANN, job(gpus="1")), *await desk.submit(BEN, job(gpus="1"))]
        assert [row.id for row in await desk(0, lambda queue: queue.queue())] == [first, his, hers]
        assert (await desk(0, lambda queue: queue.why(his))).place == 1

    play(tmp_path, story, Config(order="fair"))


def test_a_listing(tmp_path):
    """What runs, by its number; what waits, as it will start; then what has ended, the newest first. A limit is for the latter two each."""

    async def story(desk):
        ran = await desk.submit(ANN, *[job() for _ in range(3)])
        for number in ran:
            box = await desk.runs(number)
            box.end(Exit(0, None))
            await until(lambda number=number: number not in desk.engine.entries)
        up = [*await desk.submit(ANN, job(gpus="1")), *await desk.submit(BEN, job(gpus="1"))]
        for number in up:
            await desk.runs(number)
        waiting = [*await desk.submit(ANN, job(gpus="1"), job(gpus="2")), *await desk.submit(0, job(gpus="1", priority=1))]
        in_line = [waiting[2], *waiting[:2]]

        async def ids(**how):
            return [one.id for one in await desk(BEN, lambda queue: queue.queue(**how))]

        assert await ids() == up + in_line
        assert await ids(ended=True) == up + in_line + ran[::-1]
        assert await ids(ended=True, limit=1) == [*up, in_line[0], ran[2]]
        assert await ids(user="ann", ended=True, limit=2) == [up[0], *waiting[:2], *ran[:0:-1]]
        assert await ids(user="ben", ended=True) == [up[1]]
        assert await ids(user="nobody", ended=True) == []

    play(tmp_path, story)


def test_a_long_listing_comes_in_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(verbs, "AT_ONCE", 3)
    monkeypatch.setattr(listed, "PART", 3)

    async def story(desk):
        for count in (0, 3, 4):
            numbers = await desk(ANN, lambda queue, count=count: queue.submit_array(job(gpus="2"), count)) if count else []
            found = [one.id for one in await desk(ANN, lambda queue: queue.queue())]
            assert len(found) == {0: 0, 3: 3, 4: 7}[count] and found[len(found) - count :] == numbers
        turns = []
        turn = desk.server.pacing.turn

        async def counted(*args):
            turns.append(args)
            await turn(*args)

        desk.server.pacing.turn = counted
        await desk(ANN, lambda queue: queue.queue())
        assert (
            len(turns) == 1 + 1 + 2 + 2
        )  # for the request, after the one that runs, twice after putting the others in order, after each page

    play(tmp_path, story)


def test_all_are_listed_unless_one_says(tmp_path, monkeypatch):
    monkeypatch.setattr(listed, "PART", 2)

    async def story(desk):
        numbers = await desk(ANN, lambda queue: queue.submit_array(job(gpus="2"), 6))
        cancelled = await desk(BEN, lambda queue: queue.submit_many([job(gpus="1"), job(gpus="1")]))
        await desk(BEN, lambda queue: queue.cancel_many(cancelled))
        rows = {}
        for ended, user, limit in (
            (False, "", 0),
            (False, "", 1),
            (False, "", 5),
            (True, "", 0),
            (True, "", 1),
            (True, "ben", 1),
            (True, "eve", 1),
        ):
            found = await desk(ANN, lambda queue, a=ended, b=user, c=limit: queue.queue(ended=a, user=b, limit=c))
            rows[ended, user, limit] = [row.id for row in found], found.more
        assert (
            rows
            == {  # one runs
                (False, "", 0): (numbers, 0),
                (False, "", 1): (numbers[:2], 4),
                (False, "", 5): (numbers, 0),
                (True, "", 0): ([*numbers, *reversed(cancelled)], 0),
                (True, "", 1): ([*numbers[:2], cancelled[1]], 5),
                (True, "ben", 1): ([cancelled[1]], 1),
                (True, "eve", 1): ([], 0),
            }
        )

    play(tmp_path, story)
    assert verbs.MAX_LISTED == 100_000


def test_a_page_shows_what_one_job_shows(tmp_path):
    """Whoever asks: the columns of a listing and the daemon's answer about one job are the same."""

    async def story(desk):
        numbers = await desk.submit(ANN, *[job(gpus="2") for _ in range(3)], job(gpus="1", time_limit=9.0))
        numbers += await desk.submit(BEN, job(gpus="1"))
        await desk.runs(numbers[0])
        await desk(ANN, lambda queue: queue.cancel(numbers[1]))
        await desk.engine.decided()
        for who in (ANN, BEN):
            caller = PEOPLE[who]
            found = await desk(who, lambda queue: queue.queue(ended=True))
            entries = desk.engine.entries
            past = {row.id: row for row in queries.ended(desk.engine.reader, Filter(), 10)}
            for row in found:
                alone = desk.server.answers.view(caller, entries[row.id].job if row.id in entries else past[row.id])
                assert replace(row, place=0, starts_in=None) == alone
                assert Job.from_dict(row.as_dict()) == row
            assert sorted(row.id for row in found) == numbers

    play(tmp_path, story)


def test_waiting_for_many(tmp_path):
    async def story(desk):
        numbers = await desk.submit(ANN, *[job() for _ in range(3)])
        boxes = [await desk.runs(number) for number in numbers]
        said = await desk.refused(TimeoutError, ANN, lambda queue: queue.wait_many(numbers, timeout=0))
        assert said == "3 of 3 jobs have not ended after 0 s"
        boxes[1].end(Exit(0, None))
        await until(lambda: numbers[1] not in desk.engine.entries)
        assert "2 of 3 jobs" in await desk.refused(TimeoutError, ANN, lambda queue: queue.wait_many(numbers, timeout=0.01))
        assert [entry.ended for entry in desk.engine.entries.values()] == [[], []]  # nobody waits any more
        waiter = asyncio.ensure_future(desk(ANN, lambda queue: queue.wait_many([numbers[2], *numbers, numbers[1]], timeout=1000)))
        await until(lambda: desk.engine.entries[numbers[2]].ended)
        boxes[2].end(Exit(2, None))
        await until(lambda: numbers[2] not in desk.engine.entries and desk.engine.entries[numbers[0]].ended)
        boxes[0].end(Exit(None, 9))
        found = await waiter
        assert [(one.id, one.exit_code) for one in found] == [
            (numbers[2], 2), (numbers[0], 137), (numbers[1], 0), (numbers[2], 2), (numbers[1], 0)
        ]  # fmt: skip
        assert "there is no job 4711" in await desk.refused(UnknownJob, ANN, lambda queue: queue.wait_many([numbers[0], 4711]))
        assert await desk(ANN, lambda queue: queue.wait_many([])) == []

    play(tmp_path, story)


def test_cancelling_many(tmp_path, monkeypatch):
    """In pieces, in the order asked for, each once; of a piece all or none."""
    monkeypatch.setattr(client, "_AT_ONCE", 2)

    async def story(desk):
        ran, *numbers = await desk.submit(ANN, job(gpus="2"), *[job(gpus="1") for _ in range(4)])
        box = await desk.runs(ran)
        for wrong, error in (([numbers[0], 4711], UnknownJob), ([numbers[0], *await desk.submit(BEN, job(gpus="1"))], NotPermitted)):
            await desk.refused(error, ANN, lambda queue, wrong=wrong: queue.cancel_many(wrong))
            assert desk.engine.entries[numbers[0]].job.state is State.PENDING
        asked = [numbers[2], ran, numbers[0], numbers[2], numbers[1]]
        found = await desk(ANN, lambda queue: queue.cancel_many(asked, grace=5))
        assert [one.id for one in found] == asked
        assert {one.state for one in found if one.id != ran} == {State.CANCELLED}
        await until(lambda: ran not in desk.engine.entries)
        assert box.said[0] == "stop" and desk.engine.entries[numbers[3]].job.state is not State.CANCELLED

    play(tmp_path, story)


def test_what_was_forgotten_meanwhile(tmp_path):
    async def story(desk):
        numbers = await desk.submit(ANN, job(), job())
        for number in numbers:
            (await desk.runs(number)).end(Exit(0, None))
        await until(lambda: not desk.engine.entries)
        found = desk.server.answers.own

        def forgotten(caller, number):
            if number == numbers[1]:
                raise UnknownJob("gone")
            return found(caller, number)

        desk.server.answers.own = forgotten
        for ask in (lambda queue: queue.wait_many(numbers), lambda queue: queue.cancel_many(numbers)):
            assert await desk.refused(UnknownJob, ANN, ask) == f"job {numbers[1]} ended and was forgotten"

    play(tmp_path, story)


def test_who_waits_and_goes_away_is_forgotten(tmp_path):
    async def story(desk):
        (number,) = await desk.submit(ANN, job())
        await desk.runs(number)
        desk.who = ANN
        _, writer = await asyncio.open_unix_connection(desk.path)
        writer.write(protocol.encode({"v": 1, "op": "wait", "jobs": [number]}))
        await until(lambda: desk.engine.entries[number].ended)
        assert desk.server._connections == {ANN: 1} and len(desk.server._handlers) == 1
        writer.close()
        await until(lambda: not desk.engine.entries[number].ended)
        await until(lambda: not desk.server._handlers)
        assert desk.server._connections == {} and desk.server.pacing.locks == {} and desk.server._unfinished == {}

    play(tmp_path, story)


def write_log(directory: Path, *lines: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "log", "a") as file:
        file.writelines(f"2026-01-01T00:00:00.000000000Z {line}\n" for line in lines)


def test_the_output_of_a_job(tmp_path):
    """Of what waits, runs and has ended; of each attempt; followed until its program is gone, or only as far as it goes now."""

    async def story(desk):
        (number,) = await desk.submit(ANN, job(gpus="2"))
        box = await desk.runs(number)
        (waiting,) = await desk.submit(ANN, job(gpus="1"))
        write_log(box.directory, "stdout F one", "stderr P tw")

        def texts(queue, **how):
            return [line.text for line in queue.logs(number, **how)]

        assert await desk(ANN, texts) == ["one", "tw"] == await desk(ANN, lambda queue: texts(queue, attempt=1))
        assert await desk(ANN, lambda queue: list(queue.logs(waiting))) == []
        for who, text in ((number, "its newest attempt is 1"), (waiting, "it has not been started yet")):
            with pytest.raises(BadInput, match=f"job {who} has no attempt 2") as caught:
                await desk(ANN, lambda queue, who=who: list(queue.logs(who, attempt=2)))
            assert caught.value.hint.startswith(text)
        await desk.refused(NotPermitted, BEN, lambda queue: list(queue.logs(number)))
        follower = asyncio.ensure_future(desk(ANN, lambda queue: texts(queue, follow=True)))
        late = asyncio.ensure_future(desk(ANN, lambda queue: [line.text for line in queue.logs(waiting, follow=True)]))
        await until(lambda: desk.engine.entries[number].gone and desk.engine.entries[waiting].up)
        write_log(box.directory, "stdout F end")
        box.end(Exit(0, None))
        assert await follower == ["one", "tw", "end"]
        other = await desk.runs(waiting)
        write_log(other.directory, "stdout F late")
        other.end(Exit(0, None))
        assert await late == ["late"]
        await until(lambda: not desk.engine.entries)
        assert await desk(ANN, texts) == ["one", "tw", "end"]

    play(tmp_path, story)


def test_who_comes_while_the_end_is_written_down_waits_for_nothing(tmp_path, monkeypatch):
    async def story(desk):
        (number,) = await desk.submit(ANN, job(gpus="1"))
        box = await desk.runs(number)
        write_log(box.directory, "stdout F all of it")
        writing, written, write = asyncio.Event(), asyncio.Event(), desk.engine.write

        async def slowly(work):
            writing.set()
            await written.wait()
            return await write(work)

        monkeypatch.setattr(desk.engine, "write", slowly)
        box.end(Exit(0, None))
        await asyncio.wait_for(writing.wait(), DEADLINE)
        follower = desk(ANN, lambda queue: [line.text for line in queue.logs(number, follow=True)])
        try:
            assert await asyncio.wait_for(follower, DEADLINE) == ["all of it"]
        finally:
            written.set()

    play(tmp_path, story)


def test_a_job_that_is_cancelled_while_its_output_is_awaited(tmp_path):
    async def story(desk):
        first, waiting = await desk.submit(ANN, job(gpus="2"), job(gpus="1"))
        await desk.runs(first)
        follower = asyncio.ensure_future(desk(ANN, lambda queue: list(queue.logs(waiting, follow=True))))
        await until(lambda: desk.engine.entries[waiting].up)
        assert (await desk(ANN, lambda queue: queue.cancel(waiting))).state is State.CANCELLED
        assert await follower == []
        again = await desk(ANN, lambda queue: queue.cancel(waiting))
        assert (again.state, again.reason) == (State.CANCELLED, "cancelled by ann")

    play(tmp_path, story)


async def wire(desk, *requests):
    """The raw answers to raw requests on one connection."""
    reader, writer = await asyncio.open_unix_connection(desk.path)
    answers = []
    for request in requests:
        writer.write(request if isinstance(request, bytes) else protocol.encode(request))
        answers.append(protocol.decode(await asyncio.wait_for(reader.readline(), DEADLINE)))
    writer.close()
    return answers


def test_a_request_that_is_none_is_answered_and_the_next_one_served(tmp_path):
    async def story(desk):
        good = {"v": 1, "op": "ping"}
        answers = await wire(desk, b"rubbish\n", good, {"v": 2, "op": "ping"}, {"v": 1, "op": "dance" * 20}, {"v": 1}, good)
        assert [answer["ok"] for answer in answers] == [False, True, False, False, False, True]
        assert [answer["error"]["message"] for answer in answers if not answer["ok"]] == [
            "a message is not JSON",
            "protocol version 2, this daemon speaks 1",
            f"unknown operation {('dance' * 8)!r}",
            "unknown operation 'None'",
        ]

    play(tmp_path, story)


def test_a_failure_of_the_daemon_itself_is_told_without_what_was_asked(tmp_path, capfd):
    async def story(desk):
        async def broken(*_):
            raise ValueError("hunter2")

        desk.server._verbs["ping"] = broken
        desk.server._logs = broken
        answers = await wire(desk, {"v": 1, "op": "ping"}, {"v": 1, "op": "logs", "job": 1}, {"v": 1, "op": "info"})
        assert [answer["ok"] for answer in answers] == [False, False, True]
        assert all(
            answer["error"]["code"] == SchedError.code and "the daemon failed" in answer["error"]["message"] for answer in answers[:2]
        )

    play(tmp_path, story)
    said = capfd.readouterr().err
    assert "unexpected error in ping of uid 0" in said and "unexpected error in logs of uid 0" in said and "hunter2" not in said


@pytest.mark.parametrize(
    ("request_", "wrong"),
    [
        ({"op": "queue", "limit": 100_000}, ""),
        ({"op": "queue", "limit": 100_001}, "'limit' is not a whole number from 0 to 100000"),
        ({"op": "queue", "limit": -1}, "'limit'"),
        ({"op": "queue", "limit": True}, "'limit'"),
        ({"op": "queue", "limit": 1.0}, "'limit'"),
        ({"op": "queue", "limit": None, "user": None}, ""),
        ({"op": "queue", "user": 7}, "'user' is not a name"),
        ({"op": "submit", "jobs": []}, "'jobs' is not a list of 1 to 10000"),
        ({"op": "submit", "jobs": {}}, "'jobs' is not a list of 1 to 10000"),
        ({"op": "submit", "jobs": [{}] * 10_001}, "'jobs' is not a list of 1 to 10000"),
        ({"op": "submit", "jobs": [None] * 10_000}, "job"),
        ({"op": "submit", "jobs": [{}], "array": 0}, "'array' is not a whole number from 1 to 10000"),
        ({"op": "submit", "jobs": [{}], "array": 10_001}, "'array' is not a whole number from 1 to 10000"),
        ({"op": "wait", "jobs": [1] * 10_001}, "'jobs' is not a list of up to 10000 job ids"),
        ({"op": "wait", "jobs": {}}, "'jobs' is not a list of up to 10000 job ids"),
        ({"op": "wait", "jobs": [4711] * 10_000}, "there is no job 4711"),
        ({"op": "wait", "jobs": [], "timeout": 1e9}, ""),
        ({"op": "wait", "jobs": [], "timeout": 1e9 + 1}, "'timeout' is not a number of seconds"),
        ({"op": "wait", "jobs": [], "timeout": 0}, ""),
        ({"op": "wait", "jobs": [], "timeout": -1}, "'timeout'"),
        ({"op": "wait", "jobs": [], "timeout": True}, "'timeout'"),
        ({"op": "wait", "jobs": [], "timeout": "1"}, "'timeout'"),
        ({"op": "cancel", "jobs": [1], "grace": 3600}, "there is no job 1"),
        ({"op": "cancel", "jobs": [1], "grace": 3601}, "'grace' is not a number of seconds"),
        ({"op": "job", "job": 0}, "'0' is not a job id"),
        ({"op": "job", "job": True}, "'True' is not a job id"),
        ({"op": "job", "job": 1.0}, "'1.0' is not a job id"),
        ({"op": "job", "job": (1 << 62) - 1}, "there is no job"),
        ({"op": "job", "job": 1 << 62}, "is not a job id"),
        ({"op": "job"}, "'None' is not a job id"),
    ],
)
def test_the_bounds_of_what_is_asked(tmp_path, request_, wrong):
    async def story(desk):
        return (await wire(desk, {"v": 1, **request_}))[0]

    answer = play(tmp_path, story)
    assert answer["ok"] is (wrong == "") and wrong in answer.get("error", {}).get("message", "")


def test_the_bounds_of_what_is_asked_of_a_log(tmp_path):
    async def story(desk):
        (number,) = await desk.submit(0, job())
        await desk.runs(number)
        asked = [{"attempt": 1_000_001}, {"attempt": -1}, {"after": -1}, {"after": (1 << 62) + 1}, {"attempt": 0, "after": 1 << 62}]
        answers = await wire(desk, *({"v": 1, "op": "logs", "job": number, **fields} for fields in asked))
        assert [answer["error"]["subject"] for answer in answers[:4]] == ["attempt", "attempt", "after", "after"]
        assert answers[4] == {"ok": True, "end": True}

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("mine", "all", "descriptor", "refusal"),
    [
        (OWN, EVERYBODY, 0, ""),
        (OWN, EVERYBODY + 1, 0, "as many connections as it can serve"),
        (1, 1, 1024 - KEPT_BACK - 1, ""),
        (1, 1, 1024 - KEPT_BACK, "as many connections as it can serve"),
        (OWN + 1, IN_ALL, 0, ""),
        (OWN, IN_ALL + 1, 0, ""),
        (OWN + 1, IN_ALL + 1, 0, f"until there are fewer each user can have {OWN}"),
        (PER_USER, PER_USER, 0, ""),
        (PER_USER + 1, PER_USER + 1, 0, f"user ann has {PER_USER} connections to the daemon already"),
    ],
)
def test_how_many_connections(monkeypatch, mine, all, descriptor, refusal):
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: (1024, 4096))
    desk = Server.__new__(Server)
    desk._connections = Counter({ANN: mine, BEN: all - mine, 0: 50})  # root's count against nobody
    with pytest.raises(Refused, match=refusal) if refusal else contextlib.nullcontext():
        desk._refuse_too_many(PEOPLE[ANN], descriptor)
    desk._refuse_too_many(PEOPLE[0], 1023)


def test_who_is_refused_hears_it_and_takes_no_place(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "OWN", 1)
    monkeypatch.setattr(server, "PER_USER", 1)

    async def story(desk):
        desk.who = ANN
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(desk.path))
            await until(lambda: desk.server._connections[ANN] == 1)
            assert "user ann has 1 connections" in await desk.refused(Refused, ANN, lambda queue: queue.ping())
            await until(lambda: desk.server._connections[ANN] == 1)
        await until(lambda: not desk.server._connections)
        assert (await desk(ANN, lambda queue: queue.ping())).user == "ann"

    play(tmp_path, story)


def test_what_was_asked_is_answered_before_the_end_and_who_waits_is_hung_up_on(tmp_path):
    async def story(desk):
        gate, inside = asyncio.Event(), asyncio.Event()
        ping = desk.server._verbs["ping"]

        async def slowly(*args):
            inside.set()
            await gate.wait()
            return await ping(*args)

        desk.server._verbs["ping"] = slowly
        (number,) = await desk.submit(0, job())
        await desk.runs(number)
        asked = asyncio.ensure_future(desk(0, lambda queue: queue.ping()))
        waits = asyncio.ensure_future(desk(0, lambda queue: setattr(queue, "patience", 0.0) or queue.wait(number)))
        await asyncio.wait_for(inside.wait(), DEADLINE)
        await until(lambda: desk.engine.entries[number].ended)
        closing = asyncio.ensure_future(desk.server.close())
        await until(lambda: not desk.path.exists())
        assert not closing.done()
        gate.set()
        await asyncio.wait_for(closing, DEADLINE)
        assert (await asked).version == "1.2"
        await desk.server.hang_up()
        with pytest.raises(DaemonUnavailable):
            await waits
        assert not desk.server._handlers

    play(tmp_path, story)


def test_a_long_request_costs_its_user_turns(tmp_path, monkeypatch):
    async def story(desk):
        turns = []
        turn = desk.server.pacing.turn

        async def counted(uid, rounds=1):
            turns.append((uid, rounds))
            await turn(uid, rounds)

        desk.server.pacing.turn = counted
        for size in (server.PIECE, server.PIECE + 1, 3 * server.PIECE):
            line = protocol.encode({"v": 1, "op": "ping", "x": ""})
            line = line.replace(b'"x":""', b'"x":"' + b"y" * (size - len(line)) + b'"')
            assert len(line) == size and (await wire(desk, line))[0]["ok"]
        assert turns == [(0, 1), (0, 1), (0, 1), (0, 1), (0, 3)]
        assert desk.server._unfinished == {}

    play(tmp_path, story)


def test_how_much_one_user_may_have_in_the_queue(tmp_path):
    """So many jobs, and specs of so many bytes; an array's once. What ends makes room, what is refused takes none."""

    def of_size(size: int) -> JobSpec:
        return JobSpec(Spec(argv=("true",), env=(("A", "x" * size),)), gpus="2")

    empty = len(json.dumps(differences(of_size(0)), separators=(",", ":")))

    async def story(desk):
        await desk.submit(BEN, job(gpus="2"))
        assert "of jobs in the queue" in await desk.refused(Refused, ANN, lambda queue: queue.submit(of_size(501 - empty)))
        assert desk.engine.per_user.size[ANN] == desk.engine.per_user.jobs[ANN] == 0
        first = await desk(ANN, lambda queue: queue.submit_array(of_size(500 - empty), 2))
        for more in (of_size(0), job()):
            assert "has 500 B of jobs in the queue" in await desk.refused(Refused, ANN, lambda queue, more=more: queue.submit(more))
        await desk(ANN, lambda queue: queue.cancel_many(first))
        last = await desk.submit(ANN, *[job(gpus="2")] * 3)
        said = await desk.refused(Refused, ANN, lambda queue: queue.submit(job()))
        assert said == "user ann has 3 jobs in the queue; 1 more would pass the limit of 3"
        await desk(ANN, lambda queue: queue.cancel(last[0]))
        await desk.refused(Refused, ANN, lambda queue: queue.submit_array(job(), 2))
        await desk.submit(ANN, job(gpus="2"))

    play(tmp_path, story, Config(per_user=3, per_user_size=500))


@pytest.mark.parametrize(
    ("who", "spec", "error", "said"),
    [
        (ANN, job(priority=1), NotPermitted, "priority 1 is for administrators"), (ANN, job(priority=0), None, ""),
        (0, job(priority=1), None, ""),
        (ANN, job(group="lab"), NotPermitted, "ann is not in group lab"), (ANN, job(group="vision"), None, ""),
        (0, job(group="lab"), None, ""),
        (ANN, JobSpec(Spec(profile="privileged")), NotPermitted, "the profile 'privileged' is for root"),
        (ANN, JobSpec(Spec(namespaces=Namespaces(user="host"))), NotPermitted, "the host's user namespace is for root"),
        (ANN, JobSpec(Spec(oom_score_adj=-1)), NotPermitted, "oom_score_adj -1 is for root"),
        (ANN, JobSpec(Spec(oom_score_adj=0)), None, ""),
        (0, JobSpec(Spec(oom_score_adj=-1)), None, ""),
        (ANN, JobSpec(Spec(mounts=(Bind("/a", "/b"), Bind("/a", "/c", idmap=True)))), NotPermitted, "an id-mapped bind mount is for root"),
        (ANN, JobSpec(Spec(log_size=1001)), Refused, "log_size 1001 is more than the limit of 1000"),
        (ANN, JobSpec(Spec(log_size=1000)), None, ""),
        (ANN, job(gpus="2"), Refused, "needs 2 GPUs, the quota of user ann is 1: this could never start"), (ANN, job(gpus="1"), None, ""),
        (BEN, job(gpus="2"), None, ""), (BEN, job(gpus="3"), NotEnoughGpus, "3 GPUs asked for"),
        (ANN, job(), None, ""),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused_at_submit(tmp_path, who, spec, error, said):
    async def story(desk):
        if error is None:
            assert await desk.submit(who, spec) == [1]
        else:
            assert said in await desk.refused(error, who, lambda queue: queue.submit(spec))
            assert not desk.engine.entries

    play(tmp_path, story, Config(limits({"ann": 1}), {"vision": ("ann",), "lab": ("ben",)}, log_size_limit=1000, log_size=10))


def test_a_host_that_runs_no_jobs_without_gpus(tmp_path):
    async def story(desk):
        assert "no jobs without GPUs" in await desk.refused(Refused, ANN, lambda queue: queue.submit(job()))
        await desk.submit(ANN, job(gpus="1"))

    play(tmp_path, story, Config(cpu_jobs=0))


def test_what_is_listed_of_a_long_command(tmp_path):
    async def story(desk):
        long = JobSpec(Spec(argv=("sh", "-c", "x y", "\udcff", *["z" * 300] * 50), entrypoint=("env",)))
        await desk.submit(ANN, long)
        shown = (await desk(ANN, lambda queue: queue.job(1))).command
        assert shown.startswith("env sh -c 'x y' '\\xff' zzz") and 200 <= len(shown) < 210

    play(tmp_path, story)


def test_what_happened_to_a_job(tmp_path, monkeypatch):
    async def story(desk):
        (number,) = await desk.submit(ANN, job(gpus="1", hold=True))

        async def told(who=ANN):
            found = await desk(who, lambda queue: queue.events(number))
            assert [one.at for one in found] == sorted(one.at for one in found)
            return [(one.event, one.attempt, one.detail) for one in found]

        assert await told() == [("submit", 0, "held")]
        await desk(ANN, lambda queue: queue.release(number))
        await desk.runs(number)
        (gpu,) = desk.engine.entries[number].job.devices
        before = [("submit", 0, "held"), ("release", 0, "by ann"), ("start", 1, gpu), ("running", 1, "")]
        assert await told() == before
        await desk(ANN, lambda queue: queue.requeue(number))
        await until(lambda: desk.engine.entries[number].job.attempt == 2)
        await desk.runs(number)
        before = await told()
        again = [("requeue", 0, "by ann"), ("ended", 1, "requeued by ann"), ("requeue", 0, "requeued by ann")]
        assert before[4:] == [*again, ("start", 2, gpu), ("running", 2, "")]
        await desk(ANN, lambda queue: queue.requeue(number))
        await until(lambda: desk.engine.entries[number].job.attempt == 3)
        await desk.runs(number)
        again = [("requeue", 0, "by ann"), ("ended", 2, "requeued by ann"), ("requeue", 0, "requeued by ann")]
        assert (await told())[len(before) :] == [*again, ("start", 3, gpu), ("running", 3, "")]
        before = await told()
        desk.engine.launcher.boxes[desk.engine.name(number, 3)].end(Exit(3, None))
        await desk(ANN, lambda queue: queue.wait(number, timeout=DEADLINE))
        whole = await told(0)
        assert whole == [*before, ("ended", 3, "exit code 3"), ("failed", 0, "exit code 3")]
        said = await desk.refused(NotPermitted, BEN, lambda queue: queue.events(number))
        assert "belongs to ann" in said
        await desk.refused(UnknownJob, 0, lambda queue: queue.events(99))
        (cancelled,) = await desk.submit(ANN, job(begin=time.time() + 3600))
        await desk(ANN, lambda queue: queue.hold(cancelled))
        await desk(ANN, lambda queue: queue.cancel(cancelled))
        found = await desk(ANN, lambda queue: queue.events(cancelled))
        assert [(one.event, one.detail) for one in found][:2] == [("submit", ""), ("hold", "by ann")]
        assert [one.event for one in found][-1] == "cancelled"
        monkeypatch.setattr(answers, "MAX_EVENTS", 3)
        assert await told() == whole[-3:]

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("mig_create", {}), ("mig_create", {"gpu": 1}), ("mig_create", {"profiles": ["1g.10gb"]}),
        ("mig_create", {"gpu": -1, "profiles": ["1g"]}), ("mig_create", {"gpu": True, "profiles": ["1g"]}),
        ("mig_create", {"gpu": 1, "profiles": []}),
        ("mig_create", {"gpu": 1, "profiles": "1g"}), ("mig_create", {"gpu": 1, "profiles": ["1g"] * 257}),
        ("mig_remove", {}), ("mig_remove", {"slices": [1]}), ("mig_remove", {"slices": [["MIG-1"]]}),
    ],
)  # fmt: skip
def test_what_slices_are_asked_for_is_checked(tmp_path, op, fields):
    async def story(desk):
        await desk.refused(BadInput, 0, lambda queue: queue._call(op, **fields))

    play(tmp_path, story)


def test_slices_are_for_administrators(tmp_path):
    async def story(desk):
        said = await desk.refused(NotPermitted, ANN, lambda queue: queue.create_slices(1, ["1g.10gb"]))
        assert said == "making and removing MIG slices is for administrators"
        assert await desk.refused(NotPermitted, ANN, lambda queue: queue.remove_slices(["MIG-1"])) == said

    play(tmp_path, story)
