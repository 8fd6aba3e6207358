"""A program that goes on without this one: its files in a volume, its health checked, its input open.

    python examples/served.py [IMAGE]

Whoever knows its name finds it again with ``aio.Sandbox.open``, from any program of the same user.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import dockless
from dockless import DEVNULL, PIPE, aio

PROGRAM = """
touch /data/ready
while read number; do echo $((number * 2)) | tee -a /data/answers; done
"""


@asynccontextmanager
async def served(image: str, volume: str) -> AsyncGenerator[aio.Sandbox[bytes]]:
    """A sandbox that doubles numbers, ready to be asked. It is removed at the end; the volume stays."""
    await aio.volumes.create(volume, labels={"example": "served"})
    async with aio.start(
        image,
        ["sh", "-c", PROGRAM],
        interactive=True,  # its standard input stays open, whoever comes and goes
        mounts=[f"{volume}:/data"],
        health=dockless.HealthCheck(["test", "-e", "/data/ready"], interval=0.1),
        labels={"example": "served"},
    ) as box:
        try:
            await box.wait_healthy(timeout=60)
            yield box
        finally:
            await box.rm(force=True)


async def doubled(box: aio.Sandbox[bytes], number: int) -> int:
    """Ask it, and wait for the next line that it writes."""
    async with box.attach() as attached:
        await attached.write(b"%d\n" % number)
        async for row in attached:
            return int(row.text)
    raise dockless.SandboxGone("it ended before it answered", subject=box.id)


async def main(image: str = "busybox") -> None:
    volume = f"answers-{time.time_ns()}"
    async with served(image, volume) as box:
        print([await doubled(box, number) for number in (1, 20, 300)])
        async with box.spawn("cat", "/data/answers", stdin=DEVNULL, stdout=PIPE, text=True) as answers:
            async for line in answers.stdout:
                print("kept:", line.strip())
        async for event in aio.events(since=0, until=time.time(), ids=box.id, kinds=("create", "start", "health_status")):
            print(event.kind, event.details.get("status", ""))
    print([found.name for found in await aio.volumes.list(labels={"example": None}, dangling=True)] == [volume])
    await aio.volumes.remove(volume)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
