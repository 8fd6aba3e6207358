"""Many small programs, each in a sandbox of its own that was made before it was needed.

    python examples/snippets.py [IMAGE]

A start from nothing makes namespaces and mounts first. In a pool all of that is done, so a snippet waits for its interpreter alone. Nothing
of one is there for the next: each sandbox is used once.
"""

from __future__ import annotations

import asyncio
import sys

from dockless import aio

SNIPPETS = [
    "print(6 * 7)",
    "open('/tmp/left', 'w').write('by the second')",
    "import os; print(os.path.exists('/tmp/left'))",
    "while True: pass",
    "1 / 0",
]
"""What callers might send."""


async def answer(pool: aio.Pool, snippet: str) -> str:
    done = await pool.run(["python3", "-I", "-c", snippet], capture_output=True, text=True, max_output="64K")
    if done.timed_out:
        return "it took too long"
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


async def main(image: str = "python:3.12-slim") -> None:
    async with aio.Pool(
        image, size=4, expire="10m", timeout=2, root="tmpfs", profile="untrusted", memory="256M", pids=64, best_effort=True
    ) as pool:
        for snippet, said in zip(SNIPPETS, await asyncio.gather(*(answer(pool, one) for one in SNIPPETS)), strict=True):
            print(f"{snippet}\n  {said}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
