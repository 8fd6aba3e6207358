"""Work is divided among users, not among their connections."""

from __future__ import annotations

import asyncio


class Pacing:
    """Of each user's connections one goes on in each round of the loop."""

    def __init__(self) -> None:
        self.locks: dict[int, asyncio.Lock] = {}

    async def turn(self, uid: int, rounds: int = 1) -> None:
        """Until it is that user's turn. ``rounds``: what a long request costs its user afterwards."""
        async with self.locks.setdefault(uid, asyncio.Lock()):
            for _ in range(rounds):
                await asyncio.sleep(0)

    def forget(self, uid: int) -> None:
        """A user's last connection is closed."""
        self.locks.pop(uid, None)
