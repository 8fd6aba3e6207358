"""The scheduler's engine with a launcher that starts nothing, on a real database: what happens when, step by step."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dockless.errors import SandboxGone
from dockless.sandbox.process import Exit
from dockless.sched.config import Config
from dockless.sched.engine import Engine
from dockless.sched.hostgpus import HostGpus

DEADLINE = 20.0


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

    def loss(self) -> str:
        return "its keeper was killed"

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

    def start(self, spec: Any, *, id: str, owner: int | None = None, labels: dict[str, str] | None = None) -> Box:
        box = self.boxes[id] = Box(id, self.place / id, labels or {}, spec)
        self.started.set()
        return box

    def find(self, id: str) -> Box | None:
        return self.boxes.get(id)

    def list_all(self) -> list[Box]:
        return list(self.boxes.values())


@asynccontextmanager
async def engine(directory: Path, launcher: StandIn, config: Config | None = None) -> AsyncIterator[Engine]:
    """Taken up and deciding."""
    made = Engine(directory, launcher, HostGpus(), config or Config(), lambda _: None)
    try:
        await asyncio.wait_for(made.recover(), DEADLINE)
        yield made
    finally:
        await made.close()


async def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + DEADLINE
    while not (answer := condition()):
        assert time.monotonic() < end, "not within the deadline"
        await asyncio.sleep(0.002)
    return answer
