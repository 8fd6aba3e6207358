"""GPUs that are out of service are held by root's daemon, so that a ``dockless run`` and a user's own daemon do not give them out either.

::

    settle(engine)       holds those that are out of service as soon as they are free, and lets go of those that are in service again

Whoever has one keeps it: the name of a GPU in the one table of leases has one holder. Of a job of this daemon the sockets are copied, so
that its GPU stays held when it has ended and nobody comes between. Of a GPU that somebody else has, or that jobs share, it is looked every
``AGAIN`` seconds whether it is free.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from socket import socket

from dockless.base.typing import TYPE_CHECKING
from dockless.errors import DocklessError
from dockless.sched.engine.faults import describe, say
from dockless.sched.jobs import State

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine

AGAIN = 0.25


class KeptOut:
    """The GPUs that are held, by their UUIDs, and what is said of each."""

    def __init__(self) -> None:
        self._names: dict[str, list[socket]] = {}
        self._copies: dict[str, list[socket]] = {}
        self._said: dict[str, tuple[str, list[socket]]] = {}
        self._failed: set[str] = set()

    @property
    def uuids(self) -> Collection[str]:
        return self._names.keys()

    def settle(self, reasons: Mapping[str, str], starting: Collection[str], running: Mapping[str, int]) -> bool:
        """Hold these and no others. ``starting``: jobs that have not leased them yet are about to; ``running``: jobs have them, with these
        keepers (pidfds). False where it is to be looked again before one of these jobs ends: somebody else has one."""
        for uuid in self._names.keys() - reasons.keys():
            self._let_go(uuid)
        for uuid in [uuid for uuid in self._copies if uuid not in reasons or uuid not in running]:
            self._take_over(uuid, uuid in reasons)
        for uuid in reasons.keys() - starting:
            try:
                if uuid in running and uuid not in self._names:
                    self._copy(uuid, running[uuid])
                    continue
                self._hold(uuid, reasons[uuid])
            except DocklessError as error:
                if uuid not in self._failed:
                    say(f"others may still lease {uuid}, which is out of service: {describe(error)}; trying again")
                self._failed.add(uuid)
        return reasons.keys() <= self._names.keys() | running.keys()

    def _copy(self, uuid: str, keeper: int) -> None:
        from dockless.sandbox.gpus import lease

        if uuid not in self._copies:
            self._copies[uuid] = lease.copied(keeper, uuid)

    def _take_over(self, uuid: str, wanted: bool) -> None:
        """Its job has ended, and what the job had is ours alone, or nobody's where it is not ``wanted``."""
        copies = self._copies.pop(uuid)
        if wanted and copies and uuid not in self._names:
            self._names[uuid] = copies
            return
        for one in copies:
            one.close()

    def _hold(self, uuid: str, why: str) -> None:
        from dockless.sandbox.gpus import lease

        if uuid not in self._names and (held := lease.keep_out(uuid)):
            self._names[uuid] = held
        if uuid in self._names and self._said.get(uuid, ("",))[0] != why:
            self._hush(uuid)
            self._said[uuid] = why, lease.say_why(uuid, why)

    def _let_go(self, uuid: str) -> None:
        self._hush(uuid)
        for held in self._names.pop(uuid):
            held.close()

    def _hush(self, uuid: str) -> None:
        for said in self._said.pop(uuid, ("", []))[1]:
            said.close()

    def close(self) -> None:
        for uuid in [*self._names]:
            self._let_go(uuid)
        for uuid in [*self._copies]:
            self._take_over(uuid, wanted=False)


def settle(engine: Engine) -> None:
    """Now, and again while some that are out of service are not free. Nothing where this is a user's own daemon: nobody believes it."""
    if engine.closing or os.geteuid() != 0:
        return
    active = engine.active.values()
    starting = {uuid for entry in active if entry.job.state is State.STARTING for uuid in entry.job.devices}
    running = {uuid: entry.pidfd for entry in active if entry.pidfd >= 0 for uuid in entry.job.devices}
    if engine.gpus.kept_out.settle(engine.gpus.reasons, starting, running):
        return
    if engine.settles_again is None:
        engine.settles_again = engine.loop.call_later(AGAIN, _again, engine)


def _again(engine: Engine) -> None:
    engine.settles_again = None
    settle(engine)
