"""A60, the largest requests of each kind that one user can send: another user's ping is answered in between."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.desk import ANN, BEN, play

from dockless.sched.config import Config
from dockless.sched.engine.admission.amounts import MOST_VALUES, count_values
from dockless.sched.wire.protocol import MAX_PARTS, MAX_REQUEST, VERSION, check_parts, encode

TRIES = 3
"""The shortest of so many counts: what else the machine does costs processor time, too."""


def ruler() -> float:
    """Seconds of processor time for what takes some 30 ms: a gap is told in these, so that a slow machine changes nothing."""
    before, count = time.thread_time(), 0
    while count < 1_000_000:
        count += 1
    return time.thread_time() - before


LONGEST = 3.0
"""How many of these a ping may take."""


def job(spec: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"spec": {"argv": ["true"], **(spec or {})}, "hold": True, **more}


def filled(fill: Callable[[list[Any]], dict[str, Any]], item: Any, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """A message with as many of the items as fit."""
    few, many = 1, min(MAX_PARTS, MAX_REQUEST // (len(encode({"": item})) - 6)) + 20
    while many - few > 20:
        middle = (few + many) // 2
        few, many = (middle, many) if fits(fill([item] * middle)) else (few, middle)
    return fill([item] * few)


def is_read(message: dict[str, Any]) -> bool:
    """Whether the daemon decodes it."""
    line = encode({"v": VERSION, **message})
    try:
        check_parts(line)
    except Exception:
        return False
    return len(line) <= MAX_REQUEST


def is_taken(message: dict[str, Any]) -> bool:
    """Whether it is no more than one job may have."""
    return count_values(message.get("program") or message["jobs"][0]) <= MOST_VALUES


def submit(*jobs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"op": "submit", "jobs": list(jobs), **more}


OF_ONE_JOB = {
    "env": (lambda items: submit(job({"env": items})), ["NAME", "text"]),
    "words": (lambda items: submit(job({"argv": items})), "word"),
    "tmpfs": (lambda items: submit(job({"mounts": items})), {"kind": "tmpfs", "target": "/a"}),
    "volumes": (lambda items: submit(job({"mounts": items})), {"kind": "volume", "target": "/a", "source": "a"}),
    "devices": (lambda items: submit(job({"devices": items})), {"source": "/a", "target": "/dev/a"}),
    "cdi": (lambda items: submit(job({"cdi": items})), "amd.com/gpu=0"),
    "rlimits": (lambda items: submit(job({"rlimits": items})), {"name": "core", "soft": 1, "hard": 1}),
    "hosts": (lambda items: submit(job({"hosts": items})), ["a", "10.0.0.1"]),
    "sysctls": (lambda items: submit(job({"sysctls": items})), ["net.a", "1"]),
    "groups": (lambda items: submit(job({"groups": items})), "1"),
    "huge pages": (lambda items: submit(job({"limits": {"hugetlb": items}})), ["2M", 1]),
    "disks": (lambda items: submit(job({"limits": {"io_max": items}})), {"target": "8:0", "rbps": 1}),
    "after": (lambda items: submit(job(after=items)), "ok:77"),
    "notices": (lambda items: submit(job(notify=items)), "end"),
    "ports": (lambda items: submit(job(role="a", ports=items), gang=True), "a:1"),
    "secrets": (lambda items: submit(job(secrets=items)), ["a", ""]),
    "secrets in texts": (lambda items: submit(job({"env": items}, secrets=[["a", "x"]])), ["NAME", "<% $secrets.a %>"]),
    "a part": (lambda items: {"op": "part", "of": 10, "jobs": [job({"env": items})]}, ["NAME", "text"]),
    "exec": (lambda items: {"op": "exec", "job": 1, "program": {"argv": ["true"], "env": items}}, ["NAME", "text"]),
}
OF_MANY = {
    "small jobs": (lambda items: submit(*items[:10_000]), job()),
    "jobs of many variables": (lambda items: submit(*items), job({"env": [["NAME", "text"]] * 600})),
    "jobs that wait for many": (lambda items: submit(*items), job(after=[f"ok:{number}" for number in range(10, 910)])),
    "a gang": (lambda items: submit(*items[:256], gang=True), job({"env": [["NAME", "text"]] * 150}, role="a")),
    "a part of many": (lambda items: {"op": "part", "of": 10_000, "jobs": items[:10_000]}, job()),
    "what means nothing": (lambda items: {"op": "ping", "and": items}, []),
    "wrong states": (lambda items: {"op": "queue", "states": items}, "PENDING"),
}


async def longest_gap(desk, message: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Seconds of processor time until the slowest of another user's pings is answered, while this is; and its answer."""

    async def dial(who: int):
        desk.who = who
        reader, writer = await asyncio.open_unix_connection(desk.path, limit=1 << 26)
        writer.write(encode({"v": VERSION, "op": "ping"}))
        await reader.readline()
        return reader, writer

    (ping, pinging), (reader, writer) = await dial(BEN), await dial(ANN)
    line, gap = encode({"v": VERSION, **message}), 0.0
    writer.write(line)
    answered = asyncio.ensure_future(reader.readline())
    while not answered.done():
        before = time.thread_time()
        pinging.write(encode({"v": VERSION, "op": "ping"}))
        assert json.loads(await ping.readline())["ok"]
        gap = max(gap, time.thread_time() - before)
    for one in (pinging, writer):
        one.close()
    return gap, json.loads(answered.result())


async def quick(desk, message: dict[str, Any]) -> dict[str, Any]:
    gaps = []
    for _ in range(TRIES):
        gap, answer = await longest_gap(desk, message)
        gaps.append(gap / ruler())
        if gaps[-1] < LONGEST:
            return answer
    raise AssertionError(f"another user's ping takes {min(gaps):.1f} rulers: {str(answer)[:200]}")


@pytest.fixture(autouse=True)
def _gpus(monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")


@pytest.mark.parametrize("kind", OF_ONE_JOB)
def test_one_job_that_is_as_large_as_can_be(tmp_path, kind):
    fill, item = OF_ONE_JOB[kind]

    async def story(desk):
        for fits in (is_read, is_taken):
            await quick(desk, filled(fill, item, fits))

    play(tmp_path, story, Config(share="no"))


@pytest.mark.parametrize("kind", OF_MANY)
def test_as_many_as_a_request_can_have(tmp_path, kind):
    fill, item = OF_MANY[kind]
    play(tmp_path, lambda desk: quick(desk, filled(fill, item, is_read)), Config(share="no"))


def test_what_is_asked_of_ten_thousand_jobs(tmp_path):
    async def story(desk):
        first = (await quick(desk, submit(job(gpus="1"), array=10_000)))["first"]
        numbers = [*range(first, first + 10_000)]
        assert len(desk.engine.entries) >= 10_000
        for message in (
            {"op": "queue"},
            {"op": "queue", "pages": True},
            {"op": "wait", "jobs": numbers, "timeout": 0},
            {"op": "hold", "jobs": numbers},
            {"op": "cancel", "jobs": numbers},
        ):
            assert (await quick(desk, message))["ok"]

    play(tmp_path, story, Config(share="no"))
