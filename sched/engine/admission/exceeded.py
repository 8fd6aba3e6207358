"""Which quotas are exceeded by GPUs that somebody has just leased outside the queue. Who leases them asks, and gives them back then."""

from __future__ import annotations

from collections.abc import Collection

from dockless.base.typing import TYPE_CHECKING
from dockless.sched.engine import queue_state
from dockless.sched.used import Exceeded

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine


async def exceeded(engine: Engine, uid: int, leased: Collection[str]) -> list[Exceeded]:
    """Quotas of this user and of her groups. Of the GPUs ``leased`` those count that she has now: none that another has, or nobody."""
    await engine.gpus.see_leases()
    user, groups = engine.callers.quota_of(uid)
    others = queue_state.others(engine)
    new = {gpu for job in others if job.user == user for gpu in job.gpus}.intersection(leased)
    quotas, running = engine.config.quotas, [*queue_state.running(engine), *others]
    of_classes = engine.gpus.of_classes(quotas.classes)
    found = []
    for kind, who in (("user", user), *(("group", group) for group in groups)):
        quota = quotas.of(kind, who)
        gpus = [gpu for job in running if (who == job.user if kind == "user" else who in job.groups) for gpu in job.gpus]
        limits = [("", quota.limit, set(gpus)), *((name, said.limit, set(of_classes[name])) for name, said in quota.classes.items())]
        for gpu_class, limit, counted in limits:
            asked, used = len(new & counted), sum(1 for gpu in gpus if gpu in counted)
            if limit is not None and asked and used > limit:
                found.append(Exceeded(kind, who, gpu_class, limit, used - asked, asked))
    return found
