"""MIG slices of the host's GPUs: made and removed by root's daemon for administrators, as the driver lets only root do it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import BadInput, NotPermitted
from dockless.sched.callers import Caller
from dockless.sched.engine import reading

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine


async def create(engine: Engine, caller: Caller, index: int, profiles: Sequence[str]) -> tuple[str, ...]:
    """Make slices, all of them or none; their UUIDs. ``NotPermitted``, and the errors of ``mig.create``."""
    from dockless.sandbox.gpus import mig

    made: tuple[str, ...] = await _change(engine, caller, mig.create, index, profiles)
    return made


async def remove(engine: Engine, caller: Caller, uuids: Sequence[str]) -> None:
    """Remove slices that are not leased. ``NotPermitted``, and the errors of ``mig.remove``."""
    from dockless.sandbox.gpus import mig

    await _change(engine, caller, mig.remove, uuids)


async def _change(engine: Engine, caller: Caller, work: Callable[..., Any], *args: Any) -> Any:
    if not caller.admin:
        hint = "ask one; the settings are host.admins and host.admin_groups"
        raise NotPermitted("making and removing MIG slices is for administrators", subject=caller.user, hint=hint)
    try:
        return await engine.in_thread(engine.slicing, work, *args)
    finally:
        with contextlib.suppress(BadInput):  # of the settings: it is in the log
            await reading.reload(engine)
