"""What begins and ends within one step: runs, sandboxes with deadlines, a program that is attached to, jobs of the queue.

Each is a coroutine over a lane, a fresh key and a number to vary it by. What it makes is called by its key, and is gone when it is over, or
cancelled.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from walk import keyed
from walk.lanes import Lane

import dockless
from dockless import DEVNULL, PIPE, Sandbox
from dockless.errors import DocklessError, LaunchFailed, SandboxGone

Whole = Callable[[Lane, str, str, int], Coroutine[Any, Any, None]]


async def run(lane: Lane, image: str, key: str, n: int) -> None:
    """It says what it was told; its timeout may pass before."""
    lines = n % 7000
    how: dict[str, Any] = {"timeout": 0.05} if n % 7 == 0 else {}
    try:
        ran = await lane.run(image, ["sh", "-c", "cat; true"], input=keyed.text(key, lines), capture_output=True, **how)
    except LaunchFailed as error:
        assert how and "the timeout" in str(error)  # it passed before the program began
        return
    assert ran.returncode == 0 or ran.timed_out, ran
    keyed.check(key, lines, ran.stdout, whole=ran.returncode == 0)


async def left(lane: Lane, image: str, key: str, n: int) -> None:
    """Its output is without end; who leaves ends it."""
    reader = keyed.Reader(key, 10**9)
    args = ["sh", "-c", keyed.script(key, reader.lines)]
    async with lane.sandbox(image, args, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL) as box:
        for _ in range(n % 4):
            reader.feed(await box.stdout.read(n))
        if n % 2:
            box.kill()
            assert (await box.wait()).signal == signal.SIGKILL


async def brief(lane: Lane, image: str, key: str, n: int) -> None:
    """It ends when it is too old, or when nobody has used it for too long."""
    limit = "ttl" if n % 2 else "idle_timeout"
    with _removed(key):
        try:
            box = lane.opened(await lane.begin(image, ["sleep", "1000"], id=key, labels={"walk": key}, **{limit: 0.2}))
        except LaunchFailed as error:
            assert f"the {limit} of 0.2 s passed before" in str(error)
            return
        if n % 3:
            with contextlib.suppress(SandboxGone):  # it has come to its end
                await box.extend(0.3)
        ended = await box.wait()
        assert ended.timed_out and ended.exit_code == 124, ended
        assert ended.limit == limit or n % 3, ended
        assert ended.limit in ("ttl", limit), ended


async def attached(lane: Lane, image: str, key: str, n: int) -> None:
    """What is typed comes back, whoever attaches; one client is killed, and the next one goes on."""

    def talk(began: int, killed: bool) -> None:
        words = [sys.executable, "-P", "-m", "dockless", "attach", "--sig-proxy", "false", key]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0) as client:
            assert client.stdin is not None and client.stdout is not None
            try:
                sent = keyed.text(key, 20, began)
                client.stdin.write(sent)
                data = b""
                while len(data) < len(sent):
                    more = client.stdout.read(len(sent) - len(data))
                    assert more, f"{key} ends after {data!r}"
                    data += more
                assert data == sent, (data, sent)
            finally:
                client.send_signal(signal.SIGKILL if killed else signal.SIGINT)

    with _removed(key):
        box = lane.opened(await lane.begin(image, ["cat"], id=key, labels={"walk": key}, interactive=True))
        for turn in range(1 + n % 2):
            await lane.blocking(lambda turn=turn: talk(1 + 20 * turn, bool(n & 2)))
        assert box.state == "running"


async def made_later(lane: Lane, image: str, key: str, n: int) -> None:
    """Written down first: it has files, and finds them when it is started."""
    with _removed(key) as handles:
        handles.append(await lane.make(image, ["sh", "-c", "cat /given"], id=key, labels={"walk": key}))
        box = lane.opened(handles[0])
        assert box.state == "created"
        await box.files.write_bytes("/given", keyed.text(key, n % 3000))
        for _ in range(1 + n % 2):
            await box.start()
            assert (await box.wait()).code == 0
        rows = await lane.blocking(lambda: list(Sandbox.open(key).logs()))
        said = b"".join(row.text + b"\n" * (not row.partial) for row in rows)
        assert said == keyed.text(key, n % 3000) * (1 + n % 2)


async def job(lane: Lane, image: str, key: str, n: int) -> None:
    """Entered by its owner while it runs, then cancelled; or it comes to its end."""
    queued = await lane.submit(image, ["sh", "-c", f"{keyed.script(key, 500)}; exec sleep {1000 * (n % 2)}"], name=key)
    try:
        if n % 2:
            async with contextlib.aclosing(aiter(queued.logs(follow=True))) as lines:
                assert f"{key}.1".startswith((await anext(lines)).text)
            ran = await queued.exec("cat", input=keyed.text(key, n % 900))
            keyed.check(key, n % 900, ran.stdout, whole=True)
            await queued.files.write_text("/tmp/a", key)
            assert await queued.files.read_text("/tmp/a") == key
            assert (await queued.cancel(grace=0)).id == int(queued)
        ended = await queued.wait()
        assert ended.state == ("CANCELLED" if n % 2 else "COMPLETED"), ended
        said = "".join([line.text + "\n" * (not line.partial) async for line in queued.logs()])
        keyed.check(key, 500, said.encode(), whole=not n % 2)
    finally:
        with contextlib.suppress(DocklessError):
            dockless.sched.connect().cancel(int(queued), grace=0)


@contextlib.contextmanager
def _removed(key: str) -> Iterator[list[Sandbox[bytes]]]:
    """And who acts on the files of these handles ends."""
    handles: list[Sandbox[bytes]] = []
    try:
        yield handles
    finally:
        for box in handles:
            box.files.close()
        with contextlib.suppress(SandboxGone):
            Sandbox.open(key).rm(force=True)


WHOLES: dict[str, Whole] = {one.__name__: one for one in (run, left, brief, attached, made_later, job)}
