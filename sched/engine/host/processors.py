"""What changes for the processors of a user's jobs when one of them has started or ended: how much time all of hers get (``weights``), and
which processors are hers alone (``own_cores``)."""

from __future__ import annotations

import os

from dockless.base.typing import TYPE_CHECKING
from dockless.sched.engine.host import own_cores, weights

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine


def started(engine: Engine, uid: int) -> None:
    """One of her jobs runs: perhaps in a group that was made for it."""
    if os.geteuid() == 0:
        weights.started(engine, uid)
        own_cores.started(engine, uid)


def ended(engine: Engine, uid: int) -> None:
    """One of her jobs does not run any more, or never did."""
    own_cores.apply(engine)
    weights.ended(engine, uid)
