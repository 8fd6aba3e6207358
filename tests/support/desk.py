"""The daemon's server on an engine that starts nothing, and callers of any user, in one process and one story."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from support.stand_in import DEADLINE, StandIn, engine, until

from dockless.sched import Client, JobSpec, State
from dockless.sched.callers import Caller
from dockless.sched.config import Config
from dockless.sched.wire.server import Server

ANN, BEN = 1001, 1002
PEOPLE = {
    0: Caller(0, "root", frozenset(), True),
    ANN: Caller(ANN, "ann", frozenset({"vision"}), False),
    BEN: Caller(BEN, "ben", frozenset(), False),
}


class Desk:
    """The daemon's end, and how its callers are asked: ``await desk(who, lambda queue: …)``, in a thread as its own program would."""

    def __init__(self, running, path: Path) -> None:
        self.engine, self.path = running, path
        self.ended = asyncio.Event()
        self.server = Server(running, path, "1.2", self.ended.set)
        self.who = 0
        self.know_people()

    def know_people(self) -> None:
        """To be said again when the settings have been read."""
        callers = self.engine.callers
        callers.peer_uid = lambda connection: self.who
        callers._look_up = lambda uid: (PEOPLE[uid].user, dict.fromkeys(PEOPLE[uid].groups, 0), True)
        callers._owner, callers._overflow = 0, -1

    async def __call__(self, who: int, work):
        self.who = who
        with Client(self.path, timeout=DEADLINE) as queue:
            return await asyncio.wait_for(asyncio.to_thread(work, queue), DEADLINE)

    async def refused(self, error: type[Exception], who: int, work) -> str:
        with pytest.raises(error) as caught:
            await self(who, work)
        return str(caught.value)

    async def submit(self, who: int, *jobs: JobSpec) -> list[int]:
        return await self(who, lambda queue: queue.submit_many(jobs))

    async def runs(self, number: int):
        """Its sandbox, once it runs."""
        await until(lambda: self.engine.entries[number].job.state is State.RUNNING)
        return next(box for box in self.engine.launcher.boxes.values() if box.id.startswith(f"job-{number}-"))


@contextlib.asynccontextmanager
async def serving(tmp_path: Path, config: Config | None = None):
    async with engine(tmp_path, StandIn(tmp_path / "boxes"), config) as running:
        desk = Desk(running, tmp_path / "s")
        await desk.server.open()
        try:
            yield desk
        finally:
            await desk.server.close()
            await desk.server.hang_up()


def play(tmp_path, story, config: Config | None = None):
    async def all_of_it():
        async with serving(tmp_path, config) as desk:
            return await story(desk)

    return asyncio.run(all_of_it())
