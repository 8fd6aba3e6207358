"""What the daemon does now and then: forget ended jobs, give room back, remove what could not be removed before.

Jobs that ended are remembered for ``queue.keep_days``, the newest ``queue.keep_jobs`` of each user; with what was asked for, for clones,
the newest ``queue.per_user_size`` bytes of each user; their output for ``logs.keep_days``, the newest ``logs.per_user`` bytes of each user.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial

from dockless.base.typing import TYPE_CHECKING
from dockless.errors import SchedError
from dockless.sched.engine.faults import describe, say
from dockless.sched.engine.lifecycle import gang_networks, remains
from dockless.sched.store import queries, queue

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine

EVERY = 3600.0
"""Seconds between two rounds."""
AFTER_ENDS = 1000
"""Jobs after whose end a round comes earlier."""
AT_ONCE = 500
"""Jobs forgotten in one transaction: others' changes wait for it."""
PAGES = 256
"""Pages given back in one transaction."""
_DAY = 86400.0


async def keep_house(engine: Engine) -> None:
    """Until cancelled."""
    while True:
        try:
            await one_round(engine)
        except (SchedError, OSError) as error:
            say(f"housekeeping: {describe(error)}; trying again in an hour")
        engine.ends = 0
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(engine.many_ended.wait(), EVERY)
        engine.many_ended.clear()


async def one_round(engine: Engine) -> None:
    """Also called by tests. Gives way to the daemon's other work between its small steps."""
    config = engine.config
    before = time.time() - config.keep_jobs_days * _DAY
    while True:
        count, names = await engine.write(lambda db: queue.forget(db, before, config.keep_jobs, AT_ONCE))
        for name in names:
            engine.kept.remove(name)
        if not count:
            break
    for uid in [*engine.left_specs]:
        del engine.left_specs[uid]
        await engine.write(partial(queue.shed, uid=uid, most=config.per_user_size))
    while await engine.write(lambda db: queue.give_back(db, PAGES)):
        pass
    engine.kept.prune(config.kept_since())
    await remains.clear_left(engine)
    await _forget_networks(engine)


async def _forget_networks(engine: Engine) -> None:
    """Of jobs that started together and have ended: a daemon was killed before it did, or a sandbox did not end at once."""
    for first in await asyncio.to_thread(gang_networks.every):
        job = queries.job(engine.reader, first)
        if job is None or job.state.ended:
            await asyncio.to_thread(gang_networks.forget, first)
