"""Questions to a driver that hangs: who asks goes on, and what is asked about answers again by itself."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from support.stand_in import until

from dockless.errors import GpuError
from dockless.sched.engine.gpus import asking
from dockless.sched.engine.gpus.asking import Asker


def test_each_has_its_own_thread_and_nobody_waits_for_one_that_hangs(monkeypatch):
    monkeypatch.setattr(asking, "NO_ANSWER", 0.2)
    go_on = threading.Event()

    async def play():
        told = []
        asker = Asker(lambda: told.append((asker.hangs("a"), asker.silent("a"))))
        assert await asker.ask({"a": lambda: 1, "b": lambda: 2}) == {"a": 1, "b": 2} and asker.idle
        began = time.monotonic()
        assert await asker.ask({"a": go_on.wait, "b": lambda: 3}, 0.05) == {"b": 3}
        assert time.monotonic() - began < 1 and not asker.idle
        assert (asker.hangs("a"), asker.silent("a"), asker.hangs("b"), asker.hangs("c")) == (True, False, False, False)
        assert await asker.ask({"a": lambda: 4, "b": lambda: 5}) == {"b": 5}, "it is not asked, nor waited for"
        await until(lambda: told == [(True, True)])
        go_on.set()
        await until(lambda: told[1:] == [(False, False)])
        assert asker.idle and await asker.ask({"a": lambda: 6}) == {"a": 6}
        asker.close()

    asyncio.run(play())


def test_answers_that_come_one_after_the_other_are_no_silence(monkeypatch):
    """Whoever asks later waits longer; the time without an answer is that of the question that is under way."""
    monkeypatch.setattr(asking, "NO_ANSWER", 0.3)

    async def play():
        told = []
        asker = Asker(lambda: told.append(asker.silent("a")))
        several = [asyncio.ensure_future(asker.ask({"a": lambda: time.sleep(0.15)}, 0.01)) for _ in range(4)]
        assert await asyncio.gather(*several) == [{}] * 4
        await until(lambda: asker.idle)
        assert told == [False] and not asker.hangs("a")
        asker.close()

    asyncio.run(play())


def test_what_a_question_raises():
    def fails():
        raise GpuError("the NVIDIA driver does not start")

    async def play():
        asker = Asker(lambda: None)
        with pytest.raises(GpuError, match="does not start"):
            await asker.ask({"a": fails, "b": lambda: 1})
        assert asker.idle and not asker.hangs("a")
        asker.close()

    asyncio.run(play())
