"""``dockless.aio`` with real sandboxes, under asyncio and, where they are installed, trio and anyio."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from support.boxes import DEADLINE
from support.requires import requires

import dockless
from dockless import DEVNULL, PIPE, _loop, aio
from dockless.errors import BadInput, CheckFailed, CommandNotFound, Killed, SandboxGone, TimedOut

pytestmark = requires("userns")


def by_trio(main):
    return pytest.importorskip("trio").run(main)


def by_anyio(main):
    return pytest.importorskip("anyio").run(main)


def by_anyio_and_trio(main):
    pytest.importorskip("trio")
    return pytest.importorskip("anyio").run(main, backend="trio")


def by_asyncio(main):
    return asyncio.run(main())


@pytest.fixture(params=[by_asyncio, by_trio, by_anyio, by_anyio_and_trio])
def loop(request):
    """Runs an async function of no arguments."""
    return request.param


@pytest.fixture(autouse=True)
def _no_descriptor_stays_open():
    dockless.run(["true"])  # what stays open for the next start
    before = os.listdir("/proc/self/fd")
    yield
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_run_and_its_result(loop):
    async def main():
        result = await aio.run(["sh", "-c", "cat; echo err >&2; exit 3"], input="caf\xe9", capture_output=True, text=True)
        assert (result.stdout, result.stderr, result.returncode) == ("caf\xe9", "err\n", 3)
        for wrong, error in ((["no-such-program"], CommandNotFound), (["false"], CheckFailed), (["sh", "-c", "kill -9 $$"], Killed)):
            with pytest.raises(error):
                await aio.run(wrong, stdin=DEVNULL, check=True)
        with pytest.raises(TimedOut):
            await aio.run(["sleep", "300"], timeout=0.1, stdin=DEVNULL, check=True)

    loop(main)


def test_streams_both_ways(loop):
    async def main():
        async with aio.Sandbox(["cat"], stdin=PIPE, stdout=PIPE, text=True) as box:
            seen = []
            await box.stdin.write("one\n")
            async for line in box.stdout:
                seen.append(line)
                if len(seen) == 3:
                    box.stdin.close()
                else:
                    await box.stdin.write("more\n")
            assert seen == ["one\n", "more\n", "more\n"] and (await box).code == 0 and box.returncode == 0
        async with aio.Sandbox(["cat"], stdin=PIPE, stdout=PIPE) as box:
            await box.stdin.write(b"abcdef")
            assert await box.stdout.read(2) == b"ab" and [chunk async for chunk in first(box.stdout.chunks(3))] == [b"cde"]
            assert await box.communicate(b"gh\ni") == (b"fgh\ni", None) == await box.communicate()
        with pytest.raises(SandboxGone):
            await aio.Sandbox(["true"]).wait()

    loop(main)


async def first(items):
    async for item in items:
        yield item
        return


def test_back_pressure(loop):
    """Much more than fits in a pipe, written by one task and read by another, and nothing is lost."""

    async def main():
        size, got = 24 << 20, 0

        async def write(box):
            for _ in range(size // (1 << 20)):
                await box.stdin.write(bytes(1 << 20))
            box.stdin.close()

        async with aio.Sandbox(["cat"], stdin=PIPE, stdout=PIPE) as box, together(write, box):
            async for chunk in box.stdout.chunks():
                got += len(chunk)
        assert got == size

    loop(main)


class together:
    """Another task beside the block."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    async def __aenter__(self):
        from dockless._loop import _trio

        trio = _trio()
        if trio:
            self.nursery = trio.open_nursery()
            (await self.nursery.__aenter__()).start_soon(self.function, *self.args)
        else:
            self.nursery = asyncio.TaskGroup()
            (await self.nursery.__aenter__()).create_task(self.function(*self.args))

    async def __aexit__(self, *error):
        return await self.nursery.__aexit__(*error)


def test_functions_that_hear_of_it(loop):
    async def main():
        out, err = [], []
        script = "for i in 1 2 3; do echo $i; echo e$i >&2; done"
        result = await aio.run(["sh", "-c", script], on_stdout=out.append, on_stderr=err.append, text=True)
        assert (out, err, result.stdout) == (["1\n", "2\n", "3\n"], ["e1\n", "e2\n", "e3\n"], None)
        async with aio.Sandbox(["sh", "-c", "head -c 3000000 /dev/zero >&2; echo out"], stdout=PIPE, on_stderr=err.append) as box:
            assert await box.stdout.read() == b"out\n"
            await box
        assert len(b"".join(err[3:])) == 3_000_000
        with pytest.raises(BadInput, match="no plain function"):
            aio.Sandbox(["true"], on_stdout=main)

    loop(main)


@pytest.mark.parametrize("how", ["wait", "communicate", "read"])
def test_a_function_hears_it_while_one_waits(loop, how):
    """It goes on only when it is answered."""

    async def main():
        def hear(line):
            os.write(stdin, b"answer\n")

        streams = {"stdin": PIPE, "stdout": PIPE, "on_stderr": hear}
        async with aio.Sandbox(["sh", "-c", "echo ask >&2; read line; echo $line"], text=True, **streams) as box:
            stdin = os.dup(box.stdin.fileno())
            try:
                if how == "wait":
                    assert (await box.wait(DEADLINE)).code == 0
                elif how == "communicate":
                    assert (await box.communicate(timeout=DEADLINE))[0] == "answer\n"
                else:
                    assert await box.stdout.readline() == "answer\n"
            finally:
                os.close(stdin)

    loop(main)


def test_what_a_function_raises_arrives_and_nothing_is_lost_for_the_next(loop):
    heard = []

    def hear(line):
        heard.append(line)
        if line == "2\n":
            raise KeyError("oh")

    async def main():
        async with aio.Sandbox(["seq", "5"], on_stdout=hear, text=True) as box:
            while box.poll() is None:
                await _loop.pause(0.001)
            with pytest.raises(KeyError):
                await box.wait()
            await box.wait()
        assert heard == [f"{number}\n" for number in range(1, 6)]

    loop(main)


def test_times_and_what_was_read_before(loop):
    async def main():
        async with aio.Sandbox(["sh", "-c", "echo first; read x; echo $x"], stdin=PIPE, stdout=PIPE, text=True) as box:
            with pytest.raises(TimeoutError):
                await box.wait(0.01)
            assert await box.communicate("in\n", 60) == ("first\nin\n", None)
        async with aio.Sandbox(["sleep", "300"], stdout=PIPE) as box:
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await box.communicate(timeout=0.01)
            box.terminate()
            assert (await box.wait()).signal == signal.SIGTERM

    loop(main)


def test_two_readers_of_one_stream_are_told(loop):
    async def main():
        async with aio.Sandbox(["sleep", "300"], stdout=PIPE) as box:

            async def read():
                with pytest.raises(BadInput, match="two tasks"):
                    while box.poll() is None:
                        await _loop.pause(0)
                        if box.stdout._busy:
                            await box.stdout.readline()
                box.kill()

            async with together(read):
                assert await box.stdout.readline() == b""

    loop(main)


def test_a_handle_of_one_that_goes_on(loop):
    async def main():
        box = await aio.start(["sleep", "300"])
        assert box.state == "running" and box.id in [one.id for one in await aio.list()]
        assert await aio.list(state="exited") == []
        found = await aio.Sandbox.open(box.id)
        async with found:
            with pytest.raises(TimeoutError):
                await found.wait(0.01)
        await box.stop(0)
        assert (await found).signal is not None and (await box.inspect())["state"] == "exited"
        await box.rm()

    loop(main)


def test_what_is_opened_is_awaited_or_for_async_with(loop):
    """``async with`` ends what is ours to end, lets go of what is not, and each is a coroutine that a task can be made of."""

    async def main():
        async with aio.start(["cat"], interactive=True, id="held") as box, aio.Sandbox.open("held") as found:
            assert box.state == found.state == "running"
            async with box.spawn("cat", stdin=PIPE, stdout=PIPE) as cat:
                assert await cat.communicate(b"x") == (b"x", None)
            async with box.spawn("sleep", "300", stdin=DEVNULL) as sleep:
                assert sleep.poll() is None
            assert (await sleep).signal == signal.SIGKILL, "leaving has ended it"
            with pytest.raises(ZeroDivisionError):
                async with box.spawn("sleep", "300", stdin=DEVNULL) as second:
                    raise ZeroDivisionError
            assert (await second).signal == signal.SIGKILL and await second.communicate() == (None, None)
            async with await box.spawn("sleep", "300", stdin=DEVNULL) as awaited, box.open_stdin() as stdin:
                await stdin.write(b"into cat")
                assert awaited.poll() is None
            async with box.spawn("echo", "unread", stdin=PIPE, stdout=PIPE, stderr=PIPE):
                pass
            with pytest.raises(CommandNotFound):
                async with box.spawn("no-such-program"):
                    raise AssertionError("it was not opened")
        assert found.state == "running", "a handle is let go of"
        await found.rm(force=True)
        async with aio.Sandbox(["sleep", "300"]) as ended:
            pass
        assert (await ended).signal == signal.SIGKILL

    loop(main)


def test_what_is_opened_by_a_task():
    async def main():
        async with aio.Sandbox(["sleep", "300"]) as box:
            async with await asyncio.create_task(box.spawn("true", stdin=DEVNULL)) as command:
                assert (await command).code == 0
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(box.spawn("true", stdin=DEVNULL)) for _ in range(3)]
            for task in tasks:
                async with task.result() as command:
                    assert (await command).code == 0

    asyncio.run(main())


@pytest.mark.parametrize("what", ["sandbox", "command"])
def test_leaving_ends_it_at_once_though_all_threads_are_busy(what):
    async def main():
        loop, free, opened, leave = asyncio.get_running_loop(), threading.Event(), asyncio.Queue(), asyncio.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))

        async def stay(box):
            async with aio.Sandbox(["sleep", "300"]) if what == "sandbox" else box.spawn("sleep", "300", stdin=DEVNULL) as it:
                opened.put_nowait(it.box.process if what == "sandbox" else it.process)
                await leave.wait()

        async with aio.Sandbox(["sleep", "300"]) as box, asyncio.TaskGroup() as tasks:
            tasks.create_task(stay(box))
            process = await opened.get()
            busy = loop.run_in_executor(None, free.wait)
            leave.set()
            try:
                assert await _loop.readable(process.fileno(), DEADLINE)
            finally:
                free.set()
                await busy

    asyncio.run(main())


# -- cancellation


def cancelled(seconds):
    """A block that is cancelled after so long."""
    from dockless._loop import _trio

    trio = _trio()
    return trio.move_on_after(seconds) if trio else timed(seconds)


class timed:
    def __init__(self, seconds):
        self.timeout = asyncio.timeout(seconds)

    async def __aenter__(self):
        await self.timeout.__aenter__()

    async def __aexit__(self, *error):
        try:
            return await self.timeout.__aexit__(*error)
        except TimeoutError:
            return True


async def cancel_after(seconds, function):
    scope = cancelled(seconds)
    if isinstance(scope, timed):
        async with scope:
            await function()
    else:
        with scope:
            await function()


def test_cancelled_at_random_moments(loop):
    """In a start, in a read, at the end: nothing of it is left, no descriptor, no process (the fixtures look)."""
    random.seed(4)

    async def use():
        async with aio.Sandbox(["sh", "-c", "echo a; sleep 300"], stdin=PIPE, stdout=PIPE, stderr=PIPE) as box:
            await box.stdout.readline()
            await box.stdin.write(bytes(1 << 20))

    async def main():
        for _ in range(15):
            await cancel_after(random.random() * 0.03, use)
        await cancel_after(0.1, lambda: aio.run(["sleep", "300"], capture_output=True))

    loop(main)


@pytest.mark.parametrize("make", ["start", "create"])
def test_who_is_cancelled_while_a_sandbox_is_made_leaves_none(loop, make):
    """Nobody has a handle of it."""

    async def main():
        for number in range(4):
            await cancel_after(0.0005 * number, begin)

    async def begin():
        quick.append(await getattr(aio, make)(["sleep", "300"]))

    quick = []
    loop(main)
    assert sorted(box.id for box in dockless.list()) == sorted(box.id for box in quick)
    for box in quick:
        box.box.rm(force=True)


def test_a_command_whose_start_is_cancelled_is_ended(loop):
    async def main():
        async with aio.Sandbox(["cat"], stdin=PIPE) as box:
            for number in range(8):
                await cancel_after(0.002 * number, partial(opened, box))
            left = await box.shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", stdin=DEVNULL)
            assert b"sleep 300" not in left.stdout

    async def opened(box):
        async with box.spawn("sleep", "300", stdin=DEVNULL):
            pass

    loop(main)


def test_a_cancelled_communicate_goes_on(loop):
    async def main():
        async with aio.Sandbox(["sh", "-c", "echo first; read x; echo last"], stdin=PIPE, stdout=PIPE, text=True) as box:
            while b"first\n" not in (box._streams._readers[0].data() or b"" if box._streams._readers[0] else b""):
                await cancel_after(0.01, box.communicate) if box._streams._communicating else await box_begins(box)
            assert (await box.communicate())[0] == "first\nlast\n"

    async def box_begins(box):
        await cancel_after(0.01, lambda: box.communicate("x\n"))

    loop(main)


def test_anyio_s_own_scopes():
    anyio = pytest.importorskip("anyio")

    async def main():
        for seconds in (0, 0.001, 0.01, 0.05):
            with anyio.move_on_after(seconds):
                await aio.run(["sleep", "300"], capture_output=True)

    for backend in ("asyncio", "trio"):
        anyio.run(main, backend=backend)


# -- load


def test_several_loops_in_several_threads():
    failed = []

    async def main(number):
        async def one(i):
            data = f"{number} {i} ".encode() * 20000
            result = await aio.run(["cat"], input=data, capture_output=True)
            assert result.stdout == data

        await asyncio.gather(*(one(i) for i in range(8)))

    def run(number):
        try:
            asyncio.run(main(number))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_many_at_once_without_a_thread_each():
    async def main():
        boxes = [aio.Sandbox(["sh", "-c", f"read x; echo {i} $x"], stdin=PIPE, stdout=PIPE, text=True) for i in range(60)]
        for box in boxes:
            await box.__aenter__()
        waiting = [asyncio.ensure_future(box.communicate()) for box in boxes[:-1]]
        await asyncio.sleep(0.05)
        threads = threading.active_count()
        waiting.append(asyncio.ensure_future(boxes[-1].communicate("x\n")))
        assert [(await one)[0].split()[0] for one in waiting] == [str(i) for i in range(60)]
        for box in boxes:
            await box.__aexit__(None, None, None)
        assert threads < 20

    asyncio.run(main())


def test_a_keeper_that_is_killed_is_a_lost_sandbox():
    with dockless.Sandbox(["sleep", "300"], stdin=DEVNULL) as box:
        os.kill(box.process.keeper_pid, signal.SIGKILL)
        ended = box.wait(60)
        assert ended.lost and not ended.killed
    with dockless.Sandbox(["sleep", "300"], stdin=DEVNULL) as box:
        box.kill()
        ended = box.wait(60)
        assert ended.killed and not ended.lost


def test_how_one_ended_that_nobody_keeps(loop):
    """Whoever waits is told, though its keeper removes everything at its end; several wait by one handle."""

    async def main():
        box = await aio.start(["sh", "-c", "trap 'exit 5' TERM; echo on; while :; do sleep 0.05; done"], remove=True)
        found = []

        async def wait():
            found.append((await box.wait()).code)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(wait)
            while not (await box.exec("pidof", "sleep")).stdout:
                await anyio.sleep(0.01)
            await anyio.sleep(0)
            box.terminate()
        assert found == [5, 5, 5]
        with pytest.raises(SandboxGone):
            await box.wait()

    anyio = pytest.importorskip("anyio")
    loop(main)
