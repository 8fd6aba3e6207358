"""A submit of more jobs than fit into a request: it comes in parts, and all of it is queued, or nothing."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
from support.desk import ANN, BEN, play
from support.stand_in import until

from dockless.base import findings
from dockless.cli import main
from dockless.errors import BadInput, DaemonUnavailable, NotEnoughGpus, Refused, UnknownJob
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec
from dockless.sched.config import Config
from dockless.sched.engine.admission import parts as parts_of_submits
from dockless.sched.policy.quotas import Quota, Quotas
from dockless.sched.wire import in_parts, protocol


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Few jobs are many."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    monkeypatch.setattr(protocol, "PART", 300)
    monkeypatch.setattr(protocol, "MAX_REQUEST", 1000)


def jobs(count: int, **more) -> list[JobSpec]:
    return [JobSpec(Spec(argv=("echo", str(number))), name=f"number-{number}", gpus="1", hold=True, **more) for number in range(count)]


def in_queue(desk) -> list[str]:
    return [name for (name,) in desk.engine.reader.execute("SELECT name FROM jobs ORDER BY id")]


def test_many_jobs_are_one_transaction(tmp_path):
    async def story(desk):
        told = []
        before = desk.engine._writer.transactions
        ids = await desk(ANN, lambda queue: queue.submit_many(jobs(100), progress=lambda sent, of: told.append((sent, of))))
        assert ids == list(range(1, 101)) and in_queue(desk) == [f"number-{number}" for number in range(100)]
        assert desk.engine._writer.transactions == before + 1 and len(desk.engine.entries) == 100
        assert len(told) > 10 and told == sorted(told) and told[-1] == (100, 100) and {of for _, of in told} == {100}
        assert desk.engine.per_user.jobs == {ANN: 100}
        assert await desk(ANN, lambda queue: queue.submit_many(jobs(3))) == [101, 102, 103]

    play(tmp_path, story)


def test_those_that_wait_for_the_same_unknown_job_are_told_each_by_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_REQUEST", 1 << 20)

    async def story(desk):
        wrong = [JobSpec(Spec(argv=("true",)), after=("any:99",))] * 2
        with pytest.raises(UnknownJob) as caught:
            await desk.submit(ANN, *wrong)
        (note, _) = caught.value.__notes__
        assert str(caught.value) == "job 1 of 2: there is no job 99 to wait for"
        assert note.startswith("job 2 of 2: there is no job 99 to wait for")

    play(tmp_path, story)


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_refused_of_a_file_has_its_line(tmp_path, monkeypatch, capfd, count):
    """A list of one job, too; but not what is about none of its jobs."""
    monkeypatch.setenv("DOCKLESS_SOCKET", str(tmp_path / "s"))
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"command": ["true"], "hold": true}\n' * (count - 1) + '{"command": ["true"], "gpus": 9}\n')

    async def story(desk):
        assert await desk(ANN, lambda _: main(["submit", "--from", str(path)])) == 125
        assert f"dockless: {path}:{count}: " in (err := capfd.readouterr().err) and "GPUs" in err
        path.write_text('{"command": ["true"]}\n' * count)
        desk.engine.closing = True
        assert await desk(ANN, lambda _: main(["submit", "--from", str(path)])) == 125
        assert "dockless: the daemon is ending" in capfd.readouterr().err
        desk.engine.closing = False

    play(tmp_path, story)


def test_no_more_are_looked_at_than_are_told(tmp_path, monkeypatch):
    """A user's long list of wrong jobs costs the daemon as much as a short one."""
    monkeypatch.setattr(protocol, "MAX_REQUEST", 1 << 20)

    async def story(desk):
        looked_at, admit = [], desk.engine.admission.admit
        monkeypatch.setattr(desk.engine.admission, "admit", lambda *args: looked_at.append(args) or admit(*args))
        wrong = [JobSpec(Spec(argv=("true",)), gpus="9")] * 100
        told = await desk.refused(NotEnoughGpus, ANN, lambda queue: queue.submit_many(wrong))
        assert told.startswith("job 1 of 100: ") and len(looked_at) == findings.MOST

    play(tmp_path, story)


def test_short_ones_of_many_values_come_in_parts_too(tmp_path, monkeypatch):
    """They would fit into a request, and would be too much to be decoded at once."""
    monkeypatch.setattr(protocol, "MAX_REQUEST", 1 << 20)
    monkeypatch.setattr(protocol, "MAX_PARTS", 60)

    async def story(desk):
        told = []
        assert await desk(ANN, lambda queue: queue.submit_many(jobs(40), progress=lambda sent, of: told.append(sent))) == [*range(1, 41)]
        assert len(told) > 1 and told[-1] == 40

    play(tmp_path, story)


def test_one_that_is_wrong_queues_none_of_them(tmp_path):
    async def story(desk):
        wrong = [*jobs(50), JobSpec(gpus="99"), *jobs(50)]
        with pytest.raises(NotEnoughGpus) as caught:
            await desk(ANN, lambda queue: queue.submit_many(wrong))
        assert str(caught.value).startswith("job 51 of 101: 99 GPUs") and caught.value.__notes__ == ["none of the jobs was queued"]
        await until(lambda: not desk.server._connections)
        assert in_queue(desk) == [] and not desk.engine.per_user.jobs and not desk.engine.per_user.size

    play(tmp_path, story)


def test_all_that_are_wrong_are_told_at_once(tmp_path):
    """Of one request and of parts, up to 20. What came before and after is not kept, and does not count."""

    async def story(desk):
        for good in (3, 40):
            wrong = [*jobs(good), JobSpec(gpus="99"), *jobs(good), *jobs(1, after=("ok:99",)), JobSpec(priority=1), *jobs(good)]
            with pytest.raises(NotEnoughGpus) as caught:
                await desk(ANN, lambda queue, wrong=wrong: queue.submit_many(wrong))
            count, first = 3 * good + 3, good + 1
            assert str(caught.value).startswith(f"job {first} of {count}: 99 GPUs asked for")
            unmet, priority, none = caught.value.__notes__
            assert unmet.startswith(f"job {2 * good + 2} of {count}: there is no job 99 to wait for")
            assert priority.startswith(f"job {2 * good + 3} of {count}: priority 1 is for administrators (use 0")
            assert none == "none of the jobs was queued"
        many = [*jobs(10), *[JobSpec(gpus="99")] * 60]
        with pytest.raises(NotEnoughGpus) as caught:
            await desk(ANN, lambda queue: queue.submit_many(many))
        *others, more, none = caught.value.__notes__
        assert [note.split(":")[0] for note in others] == [f"job {number} of 70" for number in range(12, 31)]
        assert more == "there may be more: correct these first"
        await until(lambda: not desk.server._connections)
        assert in_queue(desk) == [] and not desk.engine.per_user.jobs and not desk.engine.per_user.size

    play(tmp_path, story)


def test_parts_behind_one_that_is_wrong_are_counted_and_not_kept(tmp_path):
    async def story(desk):
        desk.who = ANN
        connection = await asyncio.open_unix_connection(desk.path)
        wrong = protocol.submission([b"{}", b'{"gpus":"99"}'], op="part", of=6)
        for line, kept in ((part(2, 6), 2), (wrong, 4), (part(2, 6), 6)):
            assert await ask(connection, line) == {"ok": True, "kept": kept}
            assert desk.engine.per_user.jobs == ({ANN: 2} if kept == 2 else {})
        end = protocol.encode({"v": 1, "op": "submit", "of": 6})
        assert (await ask(connection, end))["error"]["message"].startswith("job 4 of 6: 99 GPUs")
        assert await ask(connection, part(4, 4)) == {"ok": True, "kept": 4}
        assert await ask(connection, END) == {"ok": True, "first": 1}
        connection[1].close()

    play(tmp_path, story)


def test_what_is_too_much_is_refused_at_the_first_part(tmp_path):
    async def story(desk):
        told = []
        said = await desk.refused(Refused, ANN, lambda queue: queue.submit_many(jobs(61), progress=lambda *how: told.append(how)))
        assert "61 more would pass the limit of 60" in said and told == []
        assert await desk(ANN, lambda queue: queue.submit_many(jobs(60))) == list(range(1, 61))

    play(tmp_path, story, Config(per_user=60))


def part(count: int, of: int) -> bytes:
    from dockless.sched.wire.submitting import _plain

    return protocol.submission([protocol.encode(_plain(job))[:-1] for job in jobs(count)], op="part", of=of)


async def ask(connection, line: bytes):
    connection[1].write(line)
    return protocol.decode(await connection[0].readline())


END = protocol.encode({"v": 1, "op": "submit", "of": 4})


def test_parts_count_as_jobs_until_their_connection_ends(tmp_path):
    async def story(desk):
        desk.who = ANN
        first, second = [await asyncio.open_unix_connection(desk.path) for _ in range(2)]
        assert await ask(first, part(2, 4)) == {"ok": True, "kept": 2}
        assert await ask(first, part(2, 4)) == {"ok": True, "kept": 4}
        assert desk.engine.per_user.jobs == {ANN: 4} and desk.engine.per_user.size[ANN] > 4 * 50
        said = await ask(second, part(2, 2))
        assert said["error"]["code"] == "refused" and "has 4 jobs in the queue; 2 more" in said["error"]["message"]
        assert await ask(second, part(1, 1)) == {"ok": True, "kept": 1}
        desk.who = BEN
        other = await asyncio.open_unix_connection(desk.path)
        assert await ask(other, part(5, 5)) == {"ok": True, "kept": 5}
        first[1].close()
        await until(lambda: desk.engine.per_user.jobs == {ANN: 1, BEN: 5})
        assert in_queue(desk) == []
        second[1].close()
        other[1].close()
        await until(lambda: not desk.engine.per_user.jobs and not desk.engine.per_user.size)

    play(tmp_path, story, Config(per_user=5))


def test_parts_that_are_left_are_dropped_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(parts_of_submits, "KEPT_FOR", 0.05)

    async def story(desk):
        desk.who = ANN
        connection, silent = [await asyncio.open_unix_connection(desk.path) for _ in range(2)]
        assert await ask(connection, part(2, 4)) == {"ok": True, "kept": 2}
        assert await asyncio.wait_for(connection[0].read(), 20) == b"" and not desk.engine.per_user.jobs
        assert (await ask(silent, protocol.encode({"v": 1, "op": "ping"})))["ok"]  # who keeps nothing here may be silent
        for one in (connection, silent):
            one[1].close()

    play(tmp_path, story)


PING = protocol.encode({"v": 1, "op": "ping"})


def test_other_requests_do_not_keep_them(tmp_path, monkeypatch):
    """Neither many nor one that goes on for long."""
    monkeypatch.setattr(parts_of_submits, "KEPT_FOR", 0.2)

    async def story(desk):
        held = await desk.submit(ANN, *jobs(1))
        desk.who = ANN
        busy, waiting = [await asyncio.open_unix_connection(desk.path) for _ in range(2)]
        for one in (busy, waiting):
            assert await ask(one, part(2, 4)) == {"ok": True, "kept": 2}
        waiting[1].write(protocol.encode({"v": 1, "op": "wait", "jobs": held}))

        async def pings():
            while True:
                await ask(busy, PING)

        with pytest.raises((BadInput, ConnectionError)):
            await asyncio.wait_for(pings(), 20)
        assert await asyncio.wait_for(waiting[0].read(), 20) == b""
        await until(lambda: desk.engine.per_user.jobs == {ANN: 1} and not desk.engine.per_user.submitting)
        for one in (busy, waiting):
            one[1].close()

    play(tmp_path, story)


def test_more_parts_do_not_keep_them_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(parts_of_submits, "KEPT_AT_MOST", 0.3)

    async def story(desk):
        desk.who = ANN
        connection = await asyncio.open_unix_connection(desk.path)

        async def more():
            kept = 0
            while True:
                said = await ask(connection, part(1, 9000))
                kept += 1
                assert said == {"ok": True, "kept": kept}
                await asyncio.sleep(0.02)

        with pytest.raises((BadInput, ConnectionError)):
            await asyncio.wait_for(more(), 20)
        await until(lambda: not desk.engine.per_user.jobs and not desk.engine.per_user.size)
        connection[1].close()

    play(tmp_path, story, Config(per_user=10_000))


def test_quotas_say_who_has_them(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("DOCKLESS_SOCKET", str(tmp_path / "s"))

    async def story(desk):
        await desk.submit(ANN, *jobs(1))
        desk.who = ANN
        connection = await asyncio.open_unix_connection(desk.path)
        assert await ask(connection, part(2, 4)) == {"ok": True, "kept": 2}
        ann, vision = await desk(BEN, lambda queue: queue.quotas())
        for one in (ann, vision):
            assert (one.in_queue, one.submitting, one.queued) == (3, 2, None if one is ann else 8)
        assert await desk(BEN, lambda _: main(["quota", "show"])) == 0
        rows = [line.split("  ")[-1].strip() for line in capfd.readouterr().out.splitlines()]
        assert rows == ["QUEUED", "3 (2 being submitted)", "3 of 8 (2 being submitted)"]
        connection[1].close()

    play(tmp_path, story, Config(Quotas(groups={"vision": Quota(queued=8)})))


@pytest.mark.parametrize(
    "wrong", [part(1, 4).replace(b'"of":4', b'"of":true'), b"{garbage\n", protocol.encode({"v": 1, "op": "what"})], ids=["of", "json", "op"]
)
def test_any_error_drops_them(tmp_path, wrong):
    async def story(desk):
        desk.who = ANN
        connection = await asyncio.open_unix_connection(desk.path)
        assert (await ask(connection, part(2, 4)))["ok"] and desk.engine.per_user.jobs
        assert not (await ask(connection, wrong))["ok"]
        assert not desk.engine.per_user.jobs
        assert "0 jobs came of 4" in (await ask(connection, END))["error"]["message"]
        connection[1].close()

    play(tmp_path, story)


@pytest.mark.parametrize("kept", [2, 4])
def test_a_request_behind_their_end_is_answered(tmp_path, kept):
    """Also where that end is refused."""

    async def story(desk):
        desk.who = ANN
        connection = await asyncio.open_unix_connection(desk.path)
        assert await ask(connection, part(kept, 4)) == {"ok": True, "kept": kept}
        assert (await ask(connection, END + PING))["ok"] is (kept == 4)
        assert "daemon" in protocol.decode(await asyncio.wait_for(connection[0].readline(), 20))
        assert len(in_queue(desk)) == (4 if kept == 4 else 0)
        connection[1].close()

    play(tmp_path, story)


@pytest.mark.parametrize("parts", [[], [(2, 4)], [(2, 4), (1, 4)]])
def test_an_end_without_all_parts_queues_nothing(tmp_path, parts):
    async def story(desk):
        desk.who = ANN
        connection = await asyncio.open_unix_connection(desk.path)
        for one in parts:
            assert (await ask(connection, part(*one)))["ok"]
        said = await ask(connection, END)
        assert said["error"]["code"] == "bad_input" and f"{sum(count for count, _ in parts)} jobs came of 4" in said["error"]["message"]
        assert in_queue(desk) == [] and not desk.engine.per_user.jobs
        for line in (part(3, 2), part(1, 1).replace(b'"of":1,', b""), part(1, 1).replace(b'"of":1,', b'"of":0,')):
            assert (await ask(connection, line))["error"]["code"] == "bad_input"
        assert not desk.engine.per_user.jobs
        connection[1].close()

    play(tmp_path, story)


def test_of_a_submit_with_a_part_that_is_wrong_nothing_is_kept(tmp_path):
    """Whoever goes on all the same queues no half of it."""

    async def story(desk):
        desk.who = ANN
        connection = await asyncio.open_unix_connection(desk.path)
        unlike = part(2, 4).replace(b'"gpus":"1"', b'"gpus":"99"', 1), part(1, 4).replace(b'"jobs":[', b'"jobs":[7,')
        for wrong, code in ((part(3, 4), "bad_input"), (unlike[0], "not_enough_gpus"), (unlike[1], "bad_input")):
            assert await ask(connection, part(2, 4)) == {"ok": True, "kept": 2}
            said = await ask(connection, wrong)
            assert not desk.engine.per_user.jobs and not desk.engine.per_user.size
            if wrong in unlike:
                assert said == {"ok": True, "kept": 4}
                said = await ask(connection, END)
            assert said["error"]["code"] == code
        said = await ask(connection, END.replace(b'"of":4', b'"of":2'))
        assert "0 jobs came of 2" in said["error"]["message"] and in_queue(desk) == []
        connection[1].close()

    play(tmp_path, story)


def test_what_was_asked_is_not_kept_while_nothing_else_is(tmp_path):
    """A connection that waits costs what it costs, and not what its last request was."""
    mark = "a mark that nothing else has"

    def kept() -> bool:
        return any(type(one) is dict and mark in one for one in gc.get_objects())

    async def story(desk):
        desk.who = ANN
        connection = await asyncio.open_unix_connection(desk.path)
        gc.disable()  # nor until the collector comes
        wrong = f'{{"v":1,"op":"submit","jobs":[{{"{mark}":{{"{mark}":[]}}}}]}}\n'
        for line in (
            f'{{"v":1,"op":"ping","{mark}":[]}}\n',
            wrong,
            part(2, 4).decode().replace('"gpus":"1"', f'"{mark}":{{"{mark}":[]}}', 1),
        ):
            await ask(connection, line.encode())
            assert not kept()
        connection[1].close()

    try:
        play(tmp_path, story)
    finally:
        gc.enable()


def test_all_of_them_are_judged_by_the_same_settings(tmp_path):
    """Else the first would not count in the quota of a group that the settings have now."""

    async def story(desk):
        desk.who = ANN
        connection = await asyncio.open_unix_connection(desk.path)
        assert (await ask(connection, part(2, 4)))["ok"]
        desk.engine.configure(Config(per_user=10))
        desk.know_people()
        assert (await ask(connection, part(2, 4)))["ok"]
        said = await ask(connection, END)
        assert said["error"]["code"] == "refused" and "settings were read again" in said["error"]["message"]
        assert in_queue(desk) == [] and not desk.engine.per_user.jobs
        assert (await ask(connection, part(4, 4)))["ok"] and await ask(connection, END) == {"ok": True, "first": 1}
        connection[1].close()

    play(tmp_path, story)


@pytest.mark.parametrize("late", [False, True])
def test_who_hangs_up_before_they_are_on_disk_has_queued_nothing(tmp_path, late):
    async def story(desk):
        desk.who = ANN
        connection = await asyncio.open_unix_connection(desk.path)
        assert await ask(connection, part(4, 4)) == {"ok": True, "kept": 4}
        disk = threading.Event()
        waiting = desk.engine.write(lambda db: disk.wait(30))
        connection[1].write(END)
        await until(lambda: desk.engine._writer._waiting)
        if late:
            disk.set()
            await until(lambda: desk.engine.entries)
        connection[1].write_eof()
        for _ in range(20):
            await asyncio.sleep(0)
        disk.set()
        await waiting
        said = protocol.decode(await connection[0].readline())
        assert (said == {"ok": True, "first": 1}) if late else (said["error"]["code"] == "refused")
        assert len(in_queue(desk)) == len(desk.engine.entries) == (4 if late else 0)
        assert desk.engine.per_user.jobs == ({ANN: 4} if late else {})
        connection[1].close()

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("when", "text"), [("parts", "none of the jobs was queued"), ("end", "none of the jobs was queued"), ("late", "too late")]
)
def test_an_interrupt_says_what_became_of_them(tmp_path, monkeypatch, when, text):
    async def story(desk):
        disk = threading.Event()
        waiting = None if when == "parts" else desk.engine.write(lambda db: disk.wait(30))

        def work(queue):
            receive, calls = queue._receive, []

            def interrupted(timeout):
                calls.append(timeout)
                if timeout > queue.timeout and len([one for one in calls if one > queue.timeout]) == 1:  # for the end of all parts
                    if when == "late":
                        disk.set()
                        answer = receive(timeout)
                        queue._buffer[:0] = protocol.encode(answer)
                    raise KeyboardInterrupt
                if timeout > queue.timeout:
                    threading.Timer(0.2, disk.set).start()
                return receive(timeout)

            monkeypatch.setattr(queue, "_receive", interrupted)

            def progress(sent, of):
                if when == "parts":
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt) as caught:
                queue.submit_many(jobs(40), progress=progress)
            return str(caught.value)

        assert text in await desk(ANN, work)
        if waiting is not None:
            await waiting
        await until(lambda: not desk.server._connections)
        assert len(in_queue(desk)) == len(desk.engine.entries) == (40 if when == "late" else 0)

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("submit", "text"),
    [
        (lambda queue: queue.submit_many(jobs(1)), "the interrupt came too late: the job is queued, as 1"),
        (lambda queue: queue.submit_many(jobs(2)), "the interrupt came too late: the jobs are queued, from job 1 on"),
        (lambda queue: queue.submit_array(jobs(1)[0], 3), "the interrupt came too late: the jobs are queued, from job 1 on"),
        (lambda queue: queue.submit_many(jobs(2, after=("ok:99",))), "none of the jobs was queued"),
    ],
)
def test_an_interrupt_of_one_request_says_what_became_of_it(tmp_path, monkeypatch, submit, text):
    async def story(desk):
        def work(queue):
            receive, timeouts = queue._receive, []

            def interrupted(timeout):
                timeouts.append(timeout)
                if len(timeouts) == 1:
                    raise KeyboardInterrupt
                return receive(timeout)

            monkeypatch.setattr(queue, "_receive", interrupted)
            with pytest.raises(KeyboardInterrupt) as caught:
                submit(queue)
            assert min(timeouts) > queue.timeout  # the more jobs, the longer
            return str(caught.value)

        assert await desk(ANN, work) == text
        assert bool(in_queue(desk)) == ("too late" in text)

    play(tmp_path, story)


def test_without_an_answer_they_may_be_in_the_queue(tmp_path, monkeypatch):
    async def story(desk):
        disk = threading.Event()
        waiting = desk.engine.write(lambda db: disk.wait(30))

        def work(queue):
            queue.timeout = 0.05
            with pytest.raises(DaemonUnavailable) as caught:
                queue.submit_many(jobs(2))
            return caught.value.hint

        assert "may be in the queue: look with `dockless queue`" in await desk(ANN, work)
        disk.set()
        await waiting
        await until(lambda: in_queue(desk))

    play(tmp_path, story)


def test_an_interrupt_before_anything_is_sent_says_so(tmp_path, monkeypatch):
    from dockless.sched.wire import client, submitting

    def interrupted(job):
        raise KeyboardInterrupt

    monkeypatch.setattr(submitting, "_plain", interrupted)
    with pytest.raises(KeyboardInterrupt, match="none of the jobs was queued"):
        client.Client(tmp_path / "no").submit_many(jobs(2))


def test_an_older_daemon_takes_none_of_them(tmp_path, monkeypatch):
    async def story(desk):
        monkeypatch.setattr(in_parts, "is_one", lambda request: False)
        with pytest.raises(BadInput, match="unknown operation 'part'") as caught:
            await desk(ANN, lambda queue: queue.submit_many(jobs(40)))
        assert "restart it, or submit a shorter list" in caught.value.hint and in_queue(desk) == []

    play(tmp_path, story)


def test_a_job_that_is_longer_than_a_request_is_not_sent(tmp_path):
    async def story(desk):
        long = JobSpec(Spec(argv=("x" * 1200,)))
        assert "the request has" in await desk.refused(BadInput, ANN, lambda queue: queue.submit_many([*jobs(2), long]))
        assert in_queue(desk) == [] and not desk.engine.per_user.jobs

    play(tmp_path, story)


def test_parts_are_lost_with_the_daemon(tmp_path):
    """A list goes to one daemon from its first job to its last."""

    async def story(desk):
        def work(queue):
            def progress(sent, of):
                if sent > 10:
                    queue.close()

            with pytest.raises(DaemonUnavailable):
                queue.submit_many(jobs(40), progress=progress)

        await desk(ANN, work)
        assert in_queue(desk) == []

    play(tmp_path, story)
