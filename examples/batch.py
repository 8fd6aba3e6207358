"""A hundred programs, each in a sandbox of its own with limits, a few at a time, from one event loop.

python examples/batch.py [IMAGE]
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Sequence

import dockless
from dockless import aio

AT_ONCE = 2 * (os.cpu_count() or 1)
LIMITS: dockless.Options = {
    "profile": "untrusted",
    "memory": "256M",
    "cpus": 1,
    "pids": 64,
    "timeout": 5,
    "best_effort": True,  # where this host cannot limit memory, go on; leave it out on a server
}


async def run_all(image: str, programs: Sequence[str]) -> list[dockless.Result[str]]:
    """The results, in the order of the programs. If this is cancelled, everything that was started is ended."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def run(program: str) -> dockless.Result[str]:
        async with turn:
            return await aio.run(
                image,
                ["python3", "-"],
                input=program,
                capture_output=True,
                text=True,
                errors="replace",
                max_output="16K",
                **LIMITS,
            )

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(program)) for program in programs]
    return [task.result() for task in tasks]


def verdict(result: dockless.Result[str], expected: str) -> str:
    """Of a submission: how it ended, or whether it wrote what it should have."""
    if result.returncode:
        return result.why
    return "right" if result.stdout.strip() == expected else "wrong"


def main(image: str = "python:3.12-slim") -> None:
    submissions = [f"print(sum(range({number + 1})))" for number in range(100)]
    submissions[7] = "while True: pass"
    submissions[20] = "print(210 - 1)"
    submissions[55] = "import urllib.request as web; web.urlopen('http://192.0.2.1')"
    results = asyncio.run(run_all(image, submissions))
    verdicts = [verdict(result, str(number * (number + 1) // 2)) for number, result in enumerate(results)]
    for found, count in Counter(verdicts).most_common():
        print(f"{count:4}  {found}")
    print(f"longest: {max(result.duration for result in results):.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
