"""The rate of a pipe: what a sandbox writes is read by each way there is, beside ``subprocess`` and ``asyncio.subprocess``.

The program waits for a line before it writes, so that no start is in the figures. Ours and theirs take turns, one right after the other.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from subprocess import PIPE
from typing import Any

from benchmarks.report import Table
from benchmarks.scene import Scene

WANTED = 0.9
CHUNK = 1 << 16
_GO = b"go\n"


def streams(scene: Scene, rounds: int, size: int) -> Table:
    """Wanted: 0.9 of ``subprocess``'s rate in each way of reading, ``size`` bytes at a time."""
    argv = ["/bin/sh", "-c", f"read go; exec dd if=/dev/zero bs=256k count={size >> 18} 2>/dev/null"]
    table = Table(
        "streams", f"{size / 1e6:.0f} MB through a pipe, GB/s: a sandbox, and a process of subprocess's (medians of {rounds} in turns)"
    )
    for name, way in WAYS.items():
        pairs: list[tuple[float, float]] = []
        for _ in range(rounds + 1):
            seconds = {ours: way(scene.image, argv, size, ours) for ours in random.sample((True, False), 2)}
            pairs.append((seconds[True], seconds[False]))
        ours, theirs = zip(*pairs[1:], strict=True)
        ratio = statistics.median(b / a for a, b in pairs[1:])
        least = min(theirs) / min(ours)
        met = "met" if min(ratio, least) >= WANTED else "MISSED"
        rates = (size / 1e9 / statistics.median(times) for times in (ours, theirs))
        table.rows.append(
            f"{name:26} {next(rates):5.2f} {next(rates):5.2f}   {ratio:.2f} x, of the quickest {least:.2f} x (wanted {WANTED}: {met})"
        )
        table.extra[name] = {"seconds": ours, "subprocess_seconds": theirs, "ratio": ratio, "ratio_of_quickest": least}
    return table


def _blocking(take: Callable[[Any], int]) -> Callable[[Any, list[str], int, bool], float]:
    def way(image: Any, argv: list[str], size: int, ours: bool) -> float:
        import dockless

        made: Any = dockless.Sandbox(image, argv, stdin=PIPE, stdout=PIPE) if ours else subprocess.Popen(argv, stdin=PIPE, stdout=PIPE)
        with made as process:
            since = time.perf_counter()
            got = take(process)
            seconds = time.perf_counter() - since
        assert got == size
        return seconds

    return way


def _go(process: Any) -> Any:
    process.stdin.write(_GO)
    process.stdin.flush()
    return process.stdout


def _chunks(process: Any) -> int:
    stdout = _go(process)
    return sum(map(len, iter(lambda: stdout.read1(CHUNK), b"")))


def _iterated(process: Any) -> int:
    stdout = _go(process)
    return sum(map(len, stdout.chunks() if hasattr(stdout, "chunks") else iter(lambda: stdout.read1(CHUNK), b"")))


def _looping(take: Callable[[Any], Awaitable[int]]) -> Callable[[Any, list[str], int, bool], float]:
    def way(image: Any, argv: list[str], size: int, ours: bool) -> float:
        return asyncio.run(_timed(take, image, argv, size, ours))

    return way


async def _timed(take: Callable[[Any], Awaitable[int]], image: Any, argv: list[str], size: int, ours: bool) -> float:
    from dockless import aio

    async def timed(process: Any) -> float:
        since = time.perf_counter()
        assert await take(process) == size
        return time.perf_counter() - since

    if ours:
        async with aio.Sandbox(image, argv, stdin=PIPE, stdout=PIPE) as box:
            return await timed(box)
    process = await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE)
    seconds = await timed(process)
    await process.wait()
    return seconds


async def _aio_go(process: Any) -> Any:
    written = process.stdin.write(_GO)
    if written is not None:
        await written
    return process.stdout


async def _aio_chunks(process: Any) -> int:
    stdout, got = await _aio_go(process), 0
    if hasattr(stdout, "chunks"):
        async for chunk in stdout.chunks():
            got += len(chunk)
        return got
    while chunk := await stdout.read(CHUNK):
        got += len(chunk)
    return got


async def _aio_read(process: Any) -> int:
    return len(await (await _aio_go(process)).read())


async def _aio_communicate(process: Any) -> int:
    return len((await process.communicate(_GO))[0])


WAYS = {
    "for chunk in chunks()": _blocking(_iterated),
    "read1()": _blocking(_chunks),
    "read()": _blocking(lambda process: len(_go(process).read())),
    "communicate()": _blocking(lambda process: len(process.communicate(_GO)[0])),
    "aio: async for chunk": _looping(_aio_chunks),
    "aio: read()": _looping(_aio_read),
    "aio: communicate()": _looping(_aio_communicate),
}
