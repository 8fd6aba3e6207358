"""The scheduler's engine with a launcher that starts nothing, on a real database: what happens when, step by step."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dockless.base.records import differences
from dockless.errors import SandboxGone, SchedError
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State, clock
from dockless.sched.config import Config
from dockless.sched.engine.engine import Engine
from dockless.sched.engine.gpus.hostgpus import HostGpus
from dockless.sched.jobs import sandbox_id
from dockless.sched.policy.waiting import order
from dockless.sched.store import queries, queue, schema
from dockless.sched.store.lease import Lease, held
from dockless.sched.wire.answers import Answers

DEADLINE = 20.0
TRUE = Spec(argv=("true",))


def plain(spec: Spec = TRUE, **fields: Any) -> dict[str, Any]:
    """A job as a client sends it."""
    return differences(JobSpec(spec, **fields))


@contextmanager
def unwritable(running: Engine) -> Iterator[None]:
    """For what is refused as the queue cannot be written."""

    def refused(change: Any) -> Any:
        raise SchedError("planted", subject="jobs.db")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SchedError, match="planted"):
        patch.setattr(running, "write", refused)
        yield


@dataclass
class Box:
    """A sandbox that ends when ``end`` is called. ``said``: what it was asked to do, in order."""

    id: str
    directory: Path
    labels: dict[str, str] = field(default_factory=dict)
    spec: Any = None
    now: str = "running"
    record: Exit | None = None
    said: list[str] = field(default_factory=list)
    on_kill: Callable[[], None] = lambda: None
    pid: int = 0
    document: Any = field(default_factory=lambda: SimpleNamespace(cgroup=""))

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._reader, self._writer = os.pipe()

    def state(self) -> str:
        return self.now

    def exit(self) -> Exit | None:
        return self.record

    def pidfd(self) -> int:
        if self.now != "running":
            raise SandboxGone("it ended", subject=self.id)
        return os.dup(self._reader)

    def end(self, record: Exit | None) -> None:
        self.record, self.now = record, "exited" if record else "vanished"
        os.write(self._writer, b"x")

    def why_vanished(self) -> str:
        return "its keeper was killed"

    def cgroup(self) -> None:
        """It has none."""

    def send_signal(self, number: int) -> None:
        self.said.append(f"signal {number}")

    def send_stop(self) -> None:
        self.said.append("stop")
        self.end(Exit(None, 15))

    def kill(self) -> None:
        self.said.append("kill")
        self.on_kill()

    def lighten(self) -> None:
        pass

    def remove(self) -> None:
        self.said.append("remove")


class StandIn:
    """A launcher. ``boxes``: by id."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.boxes: dict[str, Box] = {}
        self.started = threading.Event()

    def start(
        self,
        spec: Any,
        *,
        id: str,
        owner: int | None = None,
        labels: dict[str, str] | None = None,
        network: Any = None,
        user: int | None = None,
        leased: Sequence[Any] = (),
        controllers: Sequence[str] = (),
    ) -> Box:
        box = self.boxes[id] = Box(id, self.place / id, labels or {}, spec)
        self.started.set()
        return box

    def find(self, id: str) -> Box | None:
        return self.boxes.get(id)

    def list_all(self) -> list[Box]:
        return list(self.boxes.values())


def left_running(
    directory: Path,
    launcher: StandIn,
    *,
    cancelled: bool = False,
    ticks: float | None = None,
    boot: str | None = None,
    state: str = "running",
    box: bool = True,
    **job: Any,
) -> tuple[int, Box | None]:
    """A job that an earlier daemon started, by root, on one GPU, and its sandbox. ``job``: other values of it."""
    values = {
        "uid": 0, "user": "root", "name": "", "group": "", "image": "host", "command": "true", "gpus": "1", "gpu_count": 1, "wanted": (),
        "quota_groups": (), "priority": 0, "time_limit": 0.0, "on_reboot": "fail", "spec": "{}",
    }  # fmt: skip
    db = schema.open_queue(directory / "jobs.db")
    db.execute("INSERT INTO sqlite_sequence SELECT 'jobs', 6 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name='jobs')")
    (number,) = queue.insert(db, [queue.NewJob(**(values | job))], False, 1.0)  # not 1, which would be the attempt's number, too
    name = sandbox_id(number, 1, queries.queue_id(db))
    ticks = clock.ticks() if ticks is None else ticks
    queue.begin_attempt(db, Lease(number, 1, ("GPU-0",), 5.0), name, boot or clock.boot_id(), ticks)
    if state == "running":
        queue.set_running(db, number, 1, 6.0)
    if cancelled:
        queue.want_cancel(db, number, 7.0, "by root")
    db.close()
    if box:
        launcher.boxes[name] = Box(name, launcher.place / name)
    return number, launcher.boxes.get(name)


@asynccontextmanager
async def engine(directory: Path, launcher: StandIn, config: Config | None = None) -> AsyncIterator[Engine]:
    """Taken up and deciding."""
    made = Engine(directory, launcher, HostGpus(), config or Config(), lambda _: None)
    try:
        await asyncio.wait_for(made.recover(), DEADLINE)
        yield made
        await settled(made)
    finally:
        await made.close()


def check(engine: Engine) -> None:
    """What is so of an engine while nothing is under way in it: each job is in its places and in no other."""
    jobs = {number: entry.job for number, entry in engine.entries.items()}
    assert {number for number, job in jobs.items() if job.state in (State.STARTING, State.RUNNING)} == set(engine.active)
    pending = {number: entry for number, entry in engine.entries.items() if entry.job.state is State.PENDING}
    assert engine.aside.kept == {number: pending[number].waiting.kind for number in engine.aside.kept}
    assert engine.aside.counts == Counter((kind.user, kind.groups) for kind in engine.aside.kept.values())
    assert all(engine.aside.counts.values()), "who has none is not among them"
    waiting = [entry.waiting for number, entry in pending.items() if number not in engine.aside.kept and entry is entry.first]
    assert sorted(waiting, key=order) == list(engine.waiting)
    assert engine.per_user.jobs == Counter(job.uid for job in jobs.values())
    for number, job in jobs.items():
        assert bool(job.devices) == (number in engine.active and job.gpu_count > 0)
        assert bool(job.started) == (number in engine.active)
    if not any(job.state is State.STARTING for job in jobs.values()):  # the lease of such a one may be on its way to the disk
        assert {lease.job: lease.gpus for lease in held(engine.reader)} == {job.id: job.devices for job in jobs.values() if job.devices}


async def settled(engine: Engine) -> None:
    """``check``, as soon as what is on its way to the disk or from there has arrived."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            return check(engine)
        except AssertionError:
            if time.monotonic() > end:
                raise
        await asyncio.sleep(0.002)


async def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + DEADLINE
    while not (answer := condition()):
        assert time.monotonic() < end, "not within the deadline"
        await asyncio.sleep(0.002)
    return answer


class Daemon:
    """The daemon in a thread of this process. ``do``: a call in its loop, for what only that may touch."""

    def __init__(self, directory: Path, config: Config | None = None) -> None:
        self.launcher = StandIn(directory / "boxes")
        self.path = directory / "s"
        self._directory, self._config = directory, config
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error

    async def _serve(self) -> None:
        from dockless.sched.wire.server import Server

        self._loop = asyncio.get_running_loop()
        async with engine(self._directory, self.launcher, self._config) as self.engine:
            self.server = Server(self.engine, self.path, "1.2", self._over.set)
            await self.server.open()
            self._ready.set()
            await self._over.wait()
            await self.server.close()
            await self.server.hang_up()

    def __enter__(self) -> Daemon:
        self._thread.start()
        assert self._ready.wait(DEADLINE)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(2 * DEADLINE)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def do(self, work: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(DEADLINE)

    def running(self, number: int) -> Box:
        """The sandbox of a job, once it runs."""

        def look() -> Box | None:
            found = [box for box in self.launcher.boxes.values() if box.id.startswith(f"job-{number}-")]
            entry = self.engine.entries.get(number)
            return found[-1] if entry is not None and entry.job.state == "RUNNING" else None

        end = time.monotonic() + DEADLINE
        while (box := self.do(look)) is None:
            assert time.monotonic() < end, "it does not run"
            time.sleep(0.002)
        return box

    def ended(self, number: int, record: Exit) -> None:
        """End it so, and until the queue knows."""
        self.running(number).end(record)
        end = time.monotonic() + DEADLINE
        while self.do(lambda: number in self.engine.entries):
            assert time.monotonic() < end, "it has not ended"
            time.sleep(0.002)


def why_waits(running, number):
    """Why a job of this engine waits."""
    return Answers(running).reasons()(running.entries[number].job)
