"""How much processor time each user gets while it is short: as much as all of her jobs together may count on, however many they are.

On root's daemon the jobs of a user lie in one cgroup (``cgroups.users``). It weighs the cores that her running jobs have, and a
tenth of one for all those together that have none of their own. On which processors they run: ``own_cores``; both are
told of starts and ends by ``processors``.
"""

from __future__ import annotations

from collections.abc import Iterable

from dockless.base.typing import TYPE_CHECKING
from dockless.cgroups import users
from dockless.sched.engine.host.host_supplies import had
from dockless.sched.policy.supplies import CORES

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine

REST = users.WEIGHT // 10
"""Little beside a core: where processors are few, the kernel's balance between them is too coarse for cores that have to be kept free."""


def started(engine: Engine, uid: int) -> None:
    """One of her jobs runs: perhaps in a group that was made for it. Root's daemon alone has such groups."""
    _set(engine, uid, _now(engine, uid))


def ended(engine: Engine, uid: int) -> None:
    """One of her jobs does not run any more, or never did. Her group weighs the same as before more often than not, and is gone with her
    last job, or soon will be."""
    if uid not in engine.weights:
        return
    wanted = _now(engine, uid)
    if wanted != engine.weights[uid]:
        _set(engine, uid, wanted)
    if all(entry.job.uid != uid for entry in engine.active.values()):
        del engine.weights[uid]


def _now(engine: Engine, uid: int) -> int:
    own = (entry for entry in engine.active.values() if entry.job.uid == uid and entry is entry.first)
    return weight(had(engine, entry, CORES) for entry in own)


def _set(engine: Engine, uid: int, wanted: int) -> None:
    users.weigh(uid, wanted)
    engine.weights[uid] = wanted


def weight(cores: Iterable[int]) -> int:
    """Of jobs that have so many thousandths of a core each, 0 where a job has none of its own."""
    each = list(cores)
    wanted = sum(each) * users.WEIGHT // 1000 + (0 if each and all(each) else REST)
    return max(1, min(10_000, wanted))
