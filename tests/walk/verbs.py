"""What can be done with a sandbox. Each verb is written once, over the names of ``dockless.aio``; its lane says who waits, and how.

A verb looks at what it gets: bytes of streams and files, exit codes, states. ``CALM`` verbs leave the sandbox as it was; ``UPSETTING``
ones end it, or let others fail who are at it at the same time.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import re
import signal
import tarfile
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walk import keyed
from walk.lanes import Lane

import dockless
from dockless import DEVNULL, PIPE, Sandbox
from dockless.errors import BadInput, DocklessError, LaunchFailed, LimitUnavailable, SandboxGone, Unsupported
from dockless.sandbox.run.ending import send_to
from dockless.sandbox.run.host_names import is_restarter
from dockless.sandbox.run.process import Exit

_numbers = itertools.count()
LOGGED = 3000
"""Lines that the command of every sandbox says at its start."""
CODE = 7
"""How it ends when it is asked to."""
HOST = "host"


def command(key: str) -> list[str]:
    return ["sh", "-c", f"trap 'exit {CODE}' TERM; {keyed.script(key, LOGGED)}; while :; do sleep 1000 & wait; done"]


@dataclass(eq=False)
class Known:
    """A sandbox and what is expected of it. ``alive``: None where something ended it, or not. ``calm``: nothing has upset it."""

    box: Sandbox[bytes]
    key: str
    image: str
    foreground: bool
    removed: bool
    output: keyed.Reader | None = None
    alive: bool | None = True
    starts: int = 1
    policy: str = ""
    healthy: bool = False
    found: Sandbox[bytes] | None = None

    @property
    def handle(self) -> Sandbox[bytes]:
        """For loops: one in the foreground belongs to the functions that block, and is opened by its id."""
        if not self.foreground:
            return self.box
        if self.found is None:
            self.found = Sandbox.open(self.box.id)
        return self.found


@dataclass(frozen=True)
class Try:
    """One call of a verb. ``calm``: nothing disturbs it, so it has to succeed. ``n``: a number to vary it by."""

    known: Known
    lane: Lane
    calm: bool
    n: int

    @property
    def box(self) -> Any:
        return self.lane.handle(self.known)

    def went_well(self, ended: Any) -> bool:
        """Of a result or an exit: whether it is that of a command that came to its end."""
        assert not self.calm or ended.returncode == 0, f"returned {ended.returncode}: {ended}"
        return bool(ended.returncode == 0)


Verb = Callable[[Try], Coroutine[Any, Any, None]]


def fresh(letter: str) -> str:
    return f"{letter}{os.getpid()}x{next(_numbers)}"


# -- commands ------------------------------------------------------------------------------------------------------------------------------


async def echo(t: Try) -> None:
    key, lines = fresh("e"), t.n % 6000
    ran = await t.box.exec("sh", "-c", "cat; echo done >&2", input=keyed.text(key, lines))
    well = t.went_well(ran)
    keyed.check(key, lines, ran.stdout, whole=well)
    assert ran.stderr == (b"done\n" if well else ran.stderr[: 5 * (ran.stderr == b"done\n")])


async def both(t: Try) -> None:
    one, two = fresh("o"), fresh("t")
    ran = await t.box.shell(f"{keyed.script(one, 2000)} & {keyed.script(two, 2500)} >&2; wait", text=True)
    well = t.went_well(ran)
    keyed.check(one, 2000, ran.stdout.encode(), whole=well)
    keyed.check(two, 2500, ran.stderr.encode(), whole=well)


async def code(t: Try) -> None:
    ran = await t.box.exec("sh", "-c", f"exit {t.n % 200}", env={"A": "b"}, workdir="/")
    assert ran.returncode == t.n % 200 or not t.calm, ran


async def slow(t: Try) -> None:
    try:
        ran = await t.box.shell("sleep 1000 & sleep 1000", timeout=0.02 + t.n % 100 / 1000)
    except LaunchFailed as error:
        assert "the timeout" in str(error) or not t.calm  # it passed before the program began
        return
    assert ran.timed_out or not t.calm, ran


async def lines(t: Try) -> None:
    reader = keyed.Reader(fresh("l"), 1 + t.n % 4000)
    async with t.box.spawn("sh", "-c", keyed.script(reader.key, reader.lines), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL) as command:
        async for line in command.stdout:
            reader.feed(line)
        if t.went_well(await command.wait()):
            reader.end()


async def partly(t: Try) -> None:
    """Its output is without end; who leaves ends it."""
    reader = keyed.Reader(fresh("p"), 10**9)
    async with t.box.spawn("sh", "-c", keyed.script(reader.key, reader.lines), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL) as command:
        for _ in range(t.n % 5):
            reader.feed(await command.stdout.read(1 + t.n * 7 % 100_000))


async def conversation(t: Try) -> None:
    reader = keyed.Reader(fresh("c"), 50)
    async with t.box.spawn("cat", stdin=PIPE, stdout=PIPE, stderr=DEVNULL) as command:
        for number in range(1, 51, 10):
            await command.stdin.write(keyed.text(reader.key, 10, number))
            for _ in range(10):
                reader.feed(await command.stdout.readline())
        command.stdin.close()
        if t.went_well(await command.wait()):
            reader.end()


async def patience(t: Try) -> None:
    async with t.box.spawn("sleep", "1000", stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL) as command:
        try:
            await command.wait(0.01)
            assert not t.calm, "it ended"
        except TimeoutError:
            pass
        command.send_signal(signal.SIGINT)
        ended = await command.wait()
        assert not t.calm or ended.signal == signal.SIGINT


async def terminal(t: Try) -> None:
    key, rows = fresh("y"), 2 + t.n % 90  # busybox's stty says 24 for 1
    script = f"stty -echo -opost; stty size; read word; stty size; {keyed.script(key, 500)}"
    async with t.box.spawn("sh", "-c", script, tty=True, size=(rows, 5)) as command:
        first = await command.stdout.readline()
        assert first.strip() == b"%d 5" % rows or not t.calm, first
        command.resize(rows + 1, 6)
        await command.stdin.write(b"word\n")
        second = await command.stdout.readline()
        assert second.strip() == b"%d 6" % (rows + 1) or not t.calm, second
        shown = await command.stdout.read()
        if t.went_well(await command.wait()):
            keyed.check(key, 500, shown.replace(b"\r\n", b"\n"), whole=True)


async def alone(t: Try) -> None:
    """It goes on, and ends at its timeout or with the sandbox."""
    try:
        await t.lane.blocking(lambda: t.known.box.spawn_alone("sleep", "1000", timeout=0.05 + t.n % 50 / 100))
    except LaunchFailed as error:
        assert "the timeout" in str(error) or not t.calm  # it passed before the program began


# -- files ---------------------------------------------------------------------------------------------------------------------------------


async def files(t: Try) -> None:
    inside, key, count = t.box.files, fresh("f"), t.n % 9000
    path = f"/tmp/{key}/a/file"
    await inside.mkdir(f"/tmp/{key}/a", parents=True)
    await inside.write_bytes(path, keyed.text(key, count))
    assert (await inside.stat(path)).size == len(keyed.text(key, count))
    keyed.check(key, count, await inside.read_bytes(path), whole=True)
    await inside.rename(path, path + "2")
    assert not await inside.exists(path)
    assert [one.name for one in await inside.list(f"/tmp/{key}/a")] == ["file2"]
    await inside.remove(f"/tmp/{key}", recursive=True)


async def copies(t: Try) -> None:
    inside, key = t.box.files, fresh("w")
    with tempfile.TemporaryDirectory(prefix=f"walk-{os.getpid()}-") as here:
        there = Path(here, "in")
        there.mkdir()
        for number in range(5):
            Path(there, f"{number}").write_bytes(keyed.text(f"{key}n{number}", 300 * number))
        Path(there, "link").symlink_to("1")
        await inside.copy_in(there, f"/tmp/{key}")
        await inside.copy_out(f"/tmp/{key}", Path(here, "out"))
        for number in range(5):
            keyed.check(f"{key}n{number}", 300 * number, Path(here, f"out/{number}").read_bytes(), whole=True)
        assert os.readlink(Path(here, "out/link")) == "1"
        await inside.remove(f"/tmp/{key}", recursive=True)


async def tars(t: Try) -> None:
    """``cp -``: in and out again as a tar, plain or compressed."""
    inside, key, count = t.box.files, fresh("u"), t.n % 3000
    packed, out = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz" if t.n % 2 else "w") as tar:
        for number in range(4):
            text = keyed.text(f"{key}n{number}", count * number)
            one = tarfile.TarInfo(f"{key}/d{number}/file")
            one.size = len(text)
            tar.addfile(one, io.BytesIO(text))
    packed.seek(0)
    copied = await inside.tar_in(packed, "/tmp")
    assert copied.files >= 4 and not copied.skipped_count, copied
    await inside.tar_out(f"/tmp/{key}", out)
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        for number in range(4):
            file = tar.extractfile(f"{key}/d{number}/file")
            assert file is not None
            keyed.check(f"{key}n{number}", count * number, file.read(), whole=True)
    await inside.remove(f"/tmp/{key}", recursive=True)


async def watching(t: Try) -> None:
    inside, key = t.box.files, fresh("h")
    await inside.mkdir(f"/tmp/{key}")
    async with inside.watch(f"/tmp/{key}") as watch:
        await inside.write_text(f"/tmp/{key}/one", "x")
        async with contextlib.aclosing(aiter(watch)) as events:
            event = await anext(events)
            assert event.path == f"/tmp/{key}/one", event
    await inside.remove(f"/tmp/{key}", recursive=True)


# -- what it is ----------------------------------------------------------------------------------------------------------------------------


async def look(t: Try) -> None:
    box = t.box
    state, said, labels = box.state, await box.inspect(), box.labels
    assert (said["id"] == box.id and labels == {"walk": t.known.key} == said["labels"]) or not t.calm, (said, box.id, labels)
    assert not t.calm or (state in ("running", "paused") and said["state"] in ("running", "paused")), (state, said)
    listed = {one.id for one in await t.lane.list()}
    assert not t.calm or box.id in listed


async def opened(t: Try) -> None:
    """By another handle."""
    other = t.lane.opened(Sandbox.open(t.known.box.id))
    try:
        ended = await other.wait(0.01)
        assert not t.calm, ended
    except TimeoutError:
        pass
    ran = await other.exec("echo", "in", text=True)
    assert ran.stdout == "in\n" or not t.calm, ran


async def healthy(t: Try) -> None:
    """Its check succeeds always, so it becomes healthy in time, also after a restart."""
    if not t.known.healthy:
        try:
            await t.box.wait_healthy(0.01)
            raise AssertionError("it has no checks")
        except BadInput:
            return
    found = await t.box.wait_healthy(60)
    assert found.status == "healthy" and found.streak == 0 and found.exit_code == 0 and found.output == t.known.key, found


async def extend(t: Try) -> None:
    """It ends in an hour or more, whatever was said before."""
    began, left = time.time(), 3600 + t.n
    assert began + left <= await t.box.extend(left) <= time.time() + left
    ends = (await t.box.inspect())["ends"]
    assert not t.calm or ends > began + 3600, ends


async def past(t: Try) -> None:
    """Its start is told of, and its labels."""
    events = await t.lane.past(t.known.box.id)
    assert not t.calm or {"create", "start"} & {event.kind for event in events}, events
    assert all(event.id == t.known.box.id for event in events if not event.details.get("old")) or not t.calm, events


async def update(t: Try) -> None:
    with contextlib.suppress(Unsupported, LimitUnavailable):
        await t.box.update(pids=200 + t.n)


async def pause(t: Try) -> None:
    """Who pauses one lets it go on, also who is cancelled meanwhile."""
    with contextlib.suppress(Unsupported):
        try:
            await t.box.pause()
        finally:
            t.known.box.resume()


async def logs(t: Try) -> None:
    if t.known.foreground:
        return
    rows = await t.lane.blocking(lambda: list(t.known.box.logs()))
    said = b"".join(row.text + b"\n" * (not row.partial) for row in rows if row.stream == "stdout")
    for run in re.split(rb"(?=%s\.1\n)" % t.known.key.encode(), said):  # each start says all of it, as far as nothing ends it
        keyed.check(t.known.key, LOGGED, run, whole=False)


# -- images of it --------------------------------------------------------------------------------------------------------------------------


async def snapshot(t: Try) -> None:
    key = fresh("s")
    await t.box.exec("sh", "-c", f"{keyed.script(key, 1000)} >/kept-{key}", check=t.calm)
    try:
        image = (await t.box.snapshot()).name
        ran = await t.lane.run(image, ["cat", f"/kept-{key}"], capture_output=True, stdin=DEVNULL)
        keyed.check(key, 1000, ran.stdout, whole=t.went_well(ran))
    finally:
        await t.box.exec("rm", "-f", f"/kept-{key}")


async def fork(t: Try) -> None:
    for box in await t.box.fork(1 + t.n % 2):
        made = getattr(box, "box", box)
        try:
            ran = await t.lane.opened(made).exec("echo", "forked", text=True)
            assert ran.stdout == "forked\n", ran
        finally:
            await t.lane.opened(made).rm(force=True)


async def commit(t: Try) -> None:
    tag = f"walk/{fresh('m')}:1"
    changed = await t.lane.blocking(lambda: dockless.diff(t.known.box))
    assert all(change.path.startswith("/") for change in changed)
    await t.lane.blocking(lambda: dockless.commit(t.known.box, tag, compression="none"))
    ran = await t.lane.run(tag, ["true"], stdin=DEVNULL)
    assert ran.returncode == 0
    await t.lane.blocking(lambda: dockless.Store().remove(tag))


# -- what upsets it ------------------------------------------------------------------------------------------------------------------------


async def stop(t: Try) -> None:
    await t.box.stop(5)
    _ended(t)


async def kill(t: Try) -> None:
    t.box.kill()
    with contextlib.suppress(*((SandboxGone,) if t.known.removed or t.known.foreground else ())):  # how it ended went with it
        ended: Exit = await t.box.wait()
        assert ended.signal == signal.SIGKILL or not t.calm, ended


async def restart(t: Try) -> None:
    try:
        await t.box.restart(1)
        t.known.starts += 1
    except Unsupported:
        assert t.known.foreground or t.known.removed


async def start(t: Try) -> None:
    """What runs is refused, what has ended or was only made runs afterwards, as often as one likes."""
    before = t.known.box.state
    try:
        await t.box.start()
    except (BadInput, Unsupported) as error:
        assert t.calm or t.known.foreground or t.known.removed or before not in ("created", "exited"), (before, error)
        return
    assert not t.calm, "it ran, and was started"
    t.known.starts += 1


async def rename(t: Try) -> None:
    name = fresh("name")
    try:
        await t.box.rename(name)
        assert not t.calm or (t.box.id == name and Sandbox.open(name).state != "vanished")
    except Unsupported:
        assert t.known.foreground or t.known.removed


async def remove(t: Try) -> None:
    await t.box.rm(force=True)
    assert not t.calm or t.known.box.id not in {one.id for one in dockless.list()}


def _ended(t: Try) -> None:
    if t.calm and not t.known.removed:
        ended = t.known.box.poll()
        assert ended is not None and (ended.code == CODE or ended.signal == signal.SIGTERM), ended


def keeper_of(known: Known) -> int:
    return known.box.process.keeper_pid if known.foreground else int(known.box.inspect()["pid"])


async def kill_keeper(t: Try) -> None:
    with contextlib.suppress(DocklessError):
        send_to(t.known.box._found, keeper_of(t.known), signal.SIGKILL)


async def kill_init(t: Try) -> None:
    with contextlib.suppress(DocklessError):
        send_to(t.known.box._found, t.known.box.pid, signal.SIGKILL)


async def kill_entered(t: Try) -> None:
    """Whatever else the keeper has started, but who restarts it: what acts on its files is then started with the next request."""
    with contextlib.suppress(DocklessError, OSError):
        keeper, init = keeper_of(t.known), t.known.box.pid
        for pid in map(int, Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()):
            fd = os.pidfd_open(pid)
            try:
                if pid != init and parent_of(pid) == keeper and not is_restarter(pid, t.known.box._found.directory):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                os.close(fd)
    for box in filter(None, (t.known.box, t.known.found)):
        box.files.close()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def where_it_can_stand_still(verb: Verb) -> Verb:
    """Of one that runs no image is made where it has no cgroup by which it could be frozen."""

    @functools.wraps(verb)
    async def call(t: Try) -> None:
        try:
            await verb(t)
        except Unsupported:
            assert not t.calm or t.known.box._found.cgroup() is None

    return call


# -- what does not run -------------------------------------------------------------------------------------------------------------------


async def files_of_ended(t: Try) -> None:
    """They are there, and can be changed, though nothing runs: where its private root is on disk."""
    inside, key, count = t.box.files, fresh("g"), t.n % 3000
    try:
        await inside.write_bytes(f"/{key}", keyed.text(key, count))
        keyed.check(key, count, await inside.read_bytes(f"/{key}"), whole=True)
        await inside.remove(f"/{key}")
    except Unsupported:
        assert t.known.image == HOST
    finally:
        t.known.box.files.close()


async def refused(t: Try) -> None:
    for call in (t.box.exec("true"), t.box.extend(1), t.box.pause(), t.box.wait_healthy(1)):
        try:
            await call
            raise AssertionError(f"{t.known.key} does not run, and was entered")
        except (SandboxGone, BadInput, Unsupported):
            pass


async def look_at_ended(t: Try) -> None:
    said = await t.box.inspect()
    assert said["state"] in ("created", "exited", "vanished") and not said["pid"], said
    assert said["labels"] == {"walk": t.known.key}


async def ended_again(t: Try) -> None:
    """To end it once more changes nothing."""
    before = t.known.box.state
    await t.box.stop(1)
    assert t.known.box.state == before, (before, t.known.box.state)


CALM: dict[str, Verb] = {
    verb.__name__: verb
    for verb in (
        echo, both, code, slow, lines, partly, conversation, patience, terminal, alone, files, copies, tars, watching, look, opened,
        healthy, extend, past, update, pause, logs, *map(where_it_can_stand_still, (snapshot, fork, commit)),
    )
}  # fmt: skip
ON_IMAGES = ("snapshot", "fork", "commit")
"""Verbs that need an image with an upper on disk."""
UPSETTING: dict[str, Verb] = {
    verb.__name__: verb for verb in (stop, kill, restart, start, rename, remove, kill_keeper, kill_init, kill_entered)
}
ENDED: dict[str, Verb] = {verb.__name__: verb for verb in (files_of_ended, refused, look_at_ended, ended_again)}
REFUSED = (DocklessError, TimeoutError, BrokenPipeError)
"""What a call may raise whose sandbox somebody else ends meanwhile."""
