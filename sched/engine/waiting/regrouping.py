"""The groups that a job counts against: those with a quota that its user is in when she submits it, and again when settings are read."""

from __future__ import annotations

from itertools import chain

from dockless.base.dataclass import copied
from dockless.base.typing import TYPE_CHECKING
from dockless.sched.policy.waiting import Kind, WaitingJob, WaitingList
from dockless.sched.store import queue

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine


def regroup(engine: Engine) -> None:
    """Each job that has not ended counts from now on against the groups with a quota that its user is in; its place stays what it was."""
    groups = dict(map(engine.callers.quota_of, engine.per_user.jobs)) if engine.config.quotas.groups else {}
    kinds: dict[Kind, Kind] = {}
    changed: dict[int, WaitingJob] = {}
    for number, waiting in engine.entries.all_seen():
        now = groups.get(waiting.user, ())
        if waiting.groups != now:
            kind = kinds.setdefault(waiting.kind, waiting.kind._replace(groups=now))
            changed[number] = copied(waiting, groups=now, kind=kind)
    if not changed:
        return
    engine.entries.see(changed)
    engine.waiting = WaitingList([changed.get(job.id, job) for job in chain.from_iterable(engine.waiting.lines.values())])
    engine.aside.regrouped(changed)
    of_users = {job.user: job.groups for job in changed.values()}
    engine.spawn(engine.write_surely(lambda db: queue.set_quota_groups(db, of_users)))
