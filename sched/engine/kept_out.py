"""GPUs that are out of service are held by root's daemon, so that a ``dockless run`` and a user's own daemon do not give them out either.

::

    settle(engine)       holds those that are out of service as soon as they are free, and lets go of those that are in service again

Whoever has one keeps it: the name of a GPU in the one table of leases has one holder. When a job of this daemon ends, its GPU is held
before anything else is done; of a GPU that somebody else has it is looked every ``AGAIN`` seconds whether it is free.
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
        self._said: dict[str, tuple[str, list[socket]]] = {}
        self._failed: set[str] = set()

    @property
    def uuids(self) -> Collection[str]:
        return self._names.keys()

    def settle(self, reasons: Mapping[str, str], starting: Collection[str]) -> bool:
        """Hold these and no others. ``starting``: jobs that have not leased them yet are about to. False where some are not free."""
        for uuid in self._names.keys() - reasons.keys():
            self._let_go(uuid)
        for uuid in reasons.keys() - starting:
            try:
                self._hold(uuid, reasons[uuid])
            except DocklessError as error:
                if uuid not in self._failed:
                    say(f"others may still lease {uuid}, which is out of service: {describe(error)}; trying again")
                self._failed.add(uuid)
        return reasons.keys() <= self._names.keys()

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


def settle(engine: Engine) -> None:
    """Now, and again while some that are out of service are not free. Nothing where this is a user's own daemon: nobody believes it."""
    if engine.closing or os.geteuid() != 0:
        return
    starting = (entry.job.devices for entry in engine.active.values() if entry.job.state is State.STARTING)
    if engine.gpus.kept_out.settle(engine.gpus.reasons, {uuid for devices in starting for uuid in devices}):
        return
    if engine.settles_again is None:
        engine.settles_again = engine.loop.call_later(AGAIN, _again, engine)


def _again(engine: Engine) -> None:
    engine.settles_again = None
    settle(engine)
