"""The daemon's socket itself, and how requests are read from it."""

from __future__ import annotations

import asyncio
import os
import stat
from collections import Counter
from types import SimpleNamespace

import pytest
from support.desk import ANN, BEN, PEOPLE, play
from support.stand_in import until

from dockless.errors import BadInput, DaemonUnavailable, NotPermitted, Refused, SchedError, UnknownJob
from dockless.sandbox.spec import Spec
from dockless.sched import Client, JobSpec
from dockless.sched.wire import answers, server
from dockless.sched.wire.listed import Listed
from dockless.sched.wire.listing import Part
from dockless.sched.wire.protocol import MAX_REQUEST

WIDE = JobSpec(Spec(argv=("true",)), gpus="2")


@pytest.fixture(autouse=True)
def _gpus(monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")


@pytest.mark.parametrize(("uid", "mode"), [(0, 0o666), (1000, 0o600)])
@pytest.mark.parametrize("mask", [0, 0o777])
def test_whose_socket_it_is(tmp_path, monkeypatch, uid, mode, mask):
    """Root's daemon serves everybody, a user's serves her alone, whatever the umask is, from the first moment."""
    monkeypatch.setattr(server.os, "geteuid", lambda: uid)
    listening = server.Server.__new__(server.Server)
    listening.path = tmp_path / "daemon.sock"
    born = []
    start = asyncio.start_unix_server

    async def seen(*args, **how):
        made = await start(*args, **how)
        born.append(stat.S_IMODE(os.stat(listening.path).st_mode))
        return made

    monkeypatch.setattr(asyncio, "start_unix_server", seen)

    async def play():
        await listening.open()
        listening._server.close()

    before = os.umask(mask)
    try:
        asyncio.run(play())
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert born == [mode] and stat.S_IMODE(os.stat(listening.path).st_mode) == mode


def read(pieces, *, under_way=0):
    """What a connection of user 7 gives that sends these pieces and hangs up, and what then counts as unfinished."""
    it = server.Server.__new__(server.Server)
    it._unfinished = Counter({7: under_way} if under_way else {})

    async def play():
        reader = asyncio.StreamReader(limit=server.PIECE)
        for piece in pieces:
            reader.feed_data(piece)
        reader.feed_eof()
        try:
            return await it._line(7, reader)
        except (BadInput, Refused) as error:
            return error

    return asyncio.run(play()), dict(it._unfinished), it


def test_a_request_counts_until_it_is_done():
    for line in (b"{}\n", b"x" * (3 * server.PIECE) + b"\n", b"x" * (MAX_REQUEST - 1) + b"\n"):
        got, unfinished, it = read([line, b"the next"])
        assert got == line and unfinished == {7: len(line)}
        it._over(7, len(line))
        assert dict(it._unfinished) == {}


def test_who_takes_nothing_of_an_answer_is_dropped(monkeypatch, tmp_path):
    """And what was to be sent is not kept for it."""
    monkeypatch.setattr(server, "PATIENCE", 0.2)

    async def story(desk):
        running, parts = desk.server, 0

        class Long(Listed):
            async def parts(self):
                nonlocal parts
                while parts < 1000:
                    parts += 1
                    yield Part([parts])

        async def queue(caller, request):
            return {"listed": Long(running.answers, None, False, 0, None)}

        running._verbs["queue"] = queue
        running.answers.page = lambda caller, part: {"jobs": "x" * server.PIECE}
        _, writer = await asyncio.open_unix_connection(desk.path, limit=1)
        writer.write(server.encode({"v": server.VERSION, "op": "queue"}))
        async with asyncio.timeout(20):
            while not parts or running._connections:
                await asyncio.sleep(0.01)
        assert parts < 100
        writer.close()

    play(tmp_path, story)


@pytest.mark.parametrize("pieces", [[], [b"half a request"], [b"x" * (3 * server.PIECE)]])
def test_who_hangs_up_leaves_nothing_unfinished(pieces):
    assert read(pieces)[:2] == (b"", {})


def test_too_long_a_request_is_refused_and_forgotten():
    got, unfinished, _ = read([b"x" * (MAX_REQUEST + server.PIECE)])
    assert isinstance(got, BadInput) and str(MAX_REQUEST) in str(got) and unfinished == {}


def test_long_requests_of_one_user_together_are_bounded():
    others = server.UNFINISHED - 2 * server.PIECE
    long = b"x" * (4 * server.PIECE) + b"\n"
    got, unfinished, _ = read([long], under_way=others)
    assert isinstance(got, Refused) and unfinished == {7: others}
    got, unfinished, _ = read([long], under_way=others - 3 * server.PIECE)
    assert got == long and unfinished == {7: others - 3 * server.PIECE + len(long)}


def test_who_does_not_hang_up_is_not_waited_for_for_ever(monkeypatch):
    it = server.Server.__new__(server.Server)

    async def play():
        waits = []

        async def wait(tasks, **how):
            waits.append((tasks, how))

        it._handlers = set()
        closed = []
        it.entering = SimpleNamespace(close=lambda: closed.append(True))
        with monkeypatch.context() as patch:
            patch.setattr(server.asyncio, "wait", wait)
            await it.hang_up()
            it._handlers = {asyncio.ensure_future(asyncio.sleep(3600))}
            await it.hang_up()
        assert waits == [(list(it._handlers), {"timeout": 2.0})] and closed == [True, True]
        await asyncio.wait(it._handlers)
        assert all(task.cancelled() for task in it._handlers)

    asyncio.run(play())


def test_a_server_that_never_listened_can_be_closed(tmp_path):
    it = server.Server.__new__(server.Server)
    it._server, it.path, it._busy = None, tmp_path / "s", 0
    asyncio.run(it.close())


def test_others_have_their_turn_while_many_ids_are_looked_up(tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "_AT_ONCE", 2)

    async def story(desk):
        numbers = await desk.submit(ANN, *[WIDE] * 5)
        (other,) = await desk.submit(BEN, WIDE)
        turns = []

        async def turn():
            turns.append(1)

        for count in range(6):
            turns.clear()
            await desk.server.answers.all_own(PEOPLE[ANN], numbers[:count], turn)
            assert len(turns) == (count + 1) // 2
        for wrong, error in ((other, NotPermitted), (4711, UnknownJob)):
            with pytest.raises(error):
                await desk.server.answers.all_own(PEOPLE[ANN], [*numbers, wrong], turn)
        await desk.server.answers.all_own(PEOPLE[0], [*numbers, other], turn)  # an administrator's are all of them

    play(tmp_path, story)


def test_half_an_answer_is_none(tmp_path, monkeypatch):
    """Whoever asked is hung up on, and the daemon goes on."""

    async def story(desk):
        (number,) = await desk.submit(ANN, WIDE)
        parts = Listed.parts

        async def failing(self):
            async for part in parts(self):
                yield part
                raise SchedError("the queue cannot be read")

        with monkeypatch.context() as patch:
            patch.setattr(Listed, "parts", failing)
            await desk.refused(DaemonUnavailable, ANN, lambda queue: queue.queue())
            await desk.refused(DaemonUnavailable, ANN, lambda queue: queue._call("queue"))  # an older client's
        assert [one.id for one in await desk(ANN, lambda queue: queue.queue())] == [number]
        await until(lambda: not desk.server._connections)

    play(tmp_path, story)


async def _reads(desk, connection) -> bytes:
    """All that comes until the daemon hangs up."""
    async with asyncio.timeout(20):
        return await connection[0].read()


@pytest.mark.parametrize("half", [b"{", b'{"v":1,"op":"ping"}', b"x" * (server.PIECE + 10), b"GET /metrics HTTP/1.1\r\n"])
def test_half_a_request_is_not_waited_for_for_ever(tmp_path, monkeypatch, half):
    monkeypatch.setattr(server, "HALF", 0.05)

    async def story(desk):
        connection = await asyncio.open_unix_connection(desk.path)
        connection[1].write(half)
        assert await _reads(desk, connection) == b""
        await until(lambda: not desk.server._connections)
        assert not desk.server._unfinished
        connection[1].close()

    play(tmp_path, story)


def test_a_request_that_drips_is_dropped_and_one_in_pieces_is_not(tmp_path, monkeypatch):
    """Each further piece of a long one has the time anew; some bytes now and then have not."""
    monkeypatch.setattr(server, "HALF", 0.3)

    async def story(desk):
        dripping, long = [await asyncio.open_unix_connection(desk.path) for _ in range(2)]
        line = b'{"v":1,"op":"ping","x":"' + b"x" * (8 * server.PIECE) + b'"}\n'
        with pytest.raises((ConnectionError, TimeoutError)):
            async with asyncio.timeout(20):
                for start in range(len(line)):
                    dripping[1].write(line[start : start + 1])
                    await asyncio.sleep(0.02)
                    await dripping[1].drain()
        begun = asyncio.get_running_loop().time()
        for start in range(0, len(line), server.PIECE):
            long[1].write(line[start : start + server.PIECE])
            await long[1].drain()
            await asyncio.sleep(0.05)
        assert asyncio.get_running_loop().time() - begun > server.HALF
        assert server.decode(await long[0].readline())["ok"]
        for one in (dripping, long):
            one[1].close()

    play(tmp_path, story)


def test_who_says_nothing_may_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "HALF", 0.05)

    async def story(desk):
        with desk_client(desk) as queue:
            await asyncio.sleep(0.2)
            assert (await asyncio.to_thread(queue.ping)).pid == os.getpid()
            await asyncio.sleep(0.2)
            assert (await asyncio.to_thread(queue.ping)).pid == os.getpid() and len(desk.server._silent) == 1

    play(tmp_path, story)


def test_who_has_entered_a_job_may_say_nothing_for_long(tmp_path, monkeypatch):
    """And is no connection that can be closed for another; half a word of hers is dropped, as anybody's."""
    monkeypatch.setattr(server, "HALF", 0.05)

    async def story(desk):
        async def serve(caller, job, request, line, writer):
            writer.write(await line())

        desk.server.entering.serve = serve
        (number,) = await desk.submit(ANN, WIDE)
        await until(lambda: not desk.server._connections)
        desk.who = ANN
        whole, half = [await asyncio.open_unix_connection(desk.path) for _ in range(2)]
        for connection in (whole, half):
            connection[1].write(server.encode({"v": server.VERSION, "op": "exec", "job": number}))
        await until(lambda: len(desk.server._handlers) == 2 and not desk.server._silent)
        await asyncio.sleep(0.2)
        whole[1].write(b'{"op":"kill"}\n')
        half[1].write(b'{"op"')
        assert await _reads(desk, whole) == b'{"op":"kill"}\n' and await _reads(desk, half) == b""
        for connection in (whole, half):
            connection[1].close()

    play(tmp_path, story)


def desk_client(desk):
    return Client(desk.path, timeout=20)


PING = server.encode({"v": server.VERSION, "op": "ping"})


async def _open(desk, who: int, line: bytes = b""):
    """A connection of hers, with what is answered; silent from then on."""
    desk.who = who
    connection = await asyncio.open_unix_connection(desk.path)
    connection[1].write(line or PING)
    return connection, server.decode(await connection[0].readline())


def test_the_longest_silent_connection_makes_room_for_another_of_its_user(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "IDLE", 0.0)
    monkeypatch.setattr(server, "PER_USER", 9)

    async def story(desk):
        other, said = await _open(desk, BEN)
        mine = [(await _open(desk, ANN))[0] for _ in range(9)]
        mine[0][1].write(PING)  # not silent for so long any more
        assert server.decode(await mine[0][0].readline())["ok"]
        newest, said = await _open(desk, ANN)
        assert said["ok"] and await _reads(desk, mine[1]) == b""
        await until(lambda: desk.server._connections == {ANN: 9, BEN: 1})
        for connection in (other, mine[0], *mine[2:], newest):
            connection[1].write(PING)
            assert server.decode(await connection[0].readline())["ok"]
        for connection in (other, *mine, newest):
            connection[1].close()

    play(tmp_path, story)


@pytest.mark.parametrize("idle", [0.0, 60.0])
def test_who_is_asking_makes_no_room(tmp_path, monkeypatch, idle):
    """Nor who was silent for a moment: it may be about to ask."""
    monkeypatch.setattr(server, "IDLE", idle)
    monkeypatch.setattr(server, "PER_USER", 9)

    async def story(desk):
        (number,) = await desk.submit(ANN, WIDE)
        await until(lambda: not desk.server._connections)
        desk.who = ANN
        lines = [server.encode({"v": server.VERSION, "op": "wait", "jobs": [number]})] * 5 + [b"half"] * 4
        mine = [await asyncio.open_unix_connection(desk.path) for _ in lines]
        for connection, line in zip(mine, lines, strict=True):
            connection[1].write(b"" if idle else line)
        await until(lambda: desk.server._connections == {ANN: 9} and len(desk.server._silent) == (9 if idle else 0))
        _, said = await _open(desk, ANN)
        assert said["error"]["code"] == "refused" and "has 9 connections" in said["error"]["message"]
        for connection in mine:
            connection[1].close()

    play(tmp_path, story)


def test_silent_ones_of_anybody_make_room_for_who_has_few(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "IDLE", 0.0)
    monkeypatch.setattr(server, "EVERYBODY", 5)
    monkeypatch.setattr(server, "OWN", 2)

    async def story(desk):
        root, _ = await _open(desk, 0)
        bens = [(await _open(desk, BEN))[0] for _ in range(5)]
        first, said = await _open(desk, ANN)
        assert said["ok"] and await _reads(desk, bens[0]) == b"" and await root[0].read(0) == b""
        second, said = await _open(desk, ANN)
        assert said["ok"] and await _reads(desk, bens[1]) == b""
        third, said = await _open(desk, ANN)  # two are few, and for more her own make room
        assert said["ok"] and await _reads(desk, first) == b""
        await until(lambda: desk.server._connections == {0: 1, BEN: 3, ANN: 2})
        root[1].write(PING)
        assert server.decode(await root[0].readline())["ok"]
        for connection in (root, *bens, first, second, third):
            connection[1].close()

    play(tmp_path, story)


def test_a_client_whose_silent_connection_was_closed_opens_another(tmp_path, monkeypatch):
    async def story(desk):
        with desk_client(desk) as queue:
            await asyncio.to_thread(queue.ping)
            await until(lambda: desk.server._silent)
            next(iter(desk.server._silent)).cancel()
            await until(lambda: not desk.server._connections)
            assert await asyncio.to_thread(queue.submit, WIDE) == 1

    play(tmp_path, story)
