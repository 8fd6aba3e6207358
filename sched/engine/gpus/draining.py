"""GPUs, or the whole host, on which nothing new is started: before a disk is changed, say. What runs there goes on.

While root's daemon runs nobody else leases those GPUs either: see ``kept_out``."""

from __future__ import annotations

from collections.abc import Sequence

from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadInput, NotPermitted, UnknownGpu
from dockless.sched.callers import Caller
from dockless.sched.engine.gpus import kept_out
from dockless.sched.engine.gpus.hostgpus import HOST
from dockless.sched.store import queue

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine

MAX_REASON = 200


async def drain(engine: Engine, caller: Caller, gpus: Sequence[str], everything: bool, reason: str) -> None:
    """Start nothing more there until ``undrain``, also after a restart. ``everything``: on the whole host, jobs without GPUs included.
    Raises NotPermitted, UnknownGpu, BadInput."""
    if len(reason) > MAX_REASON or not reason.isprintable():
        raise BadInput("the reason is too long or not printable", subject="reason", hint=f"at most {MAX_REASON} printable characters")
    text = f"drained by {caller.user}{': ' + reason if reason else ''}"
    await _change(engine, caller, dict.fromkeys([HOST] if everything else _named(engine, gpus), text), ())


async def undrain(engine: Engine, caller: Caller, gpus: Sequence[str], everything: bool) -> None:
    """Start jobs there again; no error where that was allowed. ``everything``: everywhere. Raises NotPermitted, UnknownGpu."""
    await _change(engine, caller, {}, [*engine.drained] if everything else _named(engine, gpus))


async def _change(engine: Engine, caller: Caller, more: dict[str, str], less: Sequence[str]) -> None:
    if not caller.admin:
        raise NotPermitted("draining GPUs is for administrators", subject=caller.user, hint="ask one")
    take_over(engine, await engine.write(lambda db: queue.change_drained(db, more, less)))


def take_over(engine: Engine, drained: dict[str, str]) -> None:
    """As it is on disk."""
    engine.drained = drained
    engine.gpus.drain(drained)
    kept_out.settle(engine)
    engine.kick()


def _named(engine: Engine, names: Sequence[str]) -> list[str]:
    uuids = {str(gpu.index): gpu.uuid for gpu in engine.gpus.everything if not gpu.parent} | {uuid: uuid for uuid in engine.gpus.uuids}
    for name in names:
        if name not in uuids:
            raise UnknownGpu(f"there is no GPU {name[:60]}", subject=name[:60], hint="`dockless info` lists them")
    return [uuids[name] for name in names]
