"""Whether a job may be on the networks that it asks for, and publish its ports, when it is submitted. docs/networks.md"""

from __future__ import annotations

import os

from dockless.base.typing import TYPE_CHECKING
from dockless.errors import NotPermitted
from dockless.sched.callers import Caller

if TYPE_CHECKING:
    from dockless.sandbox.spec import Spec

FIRST_PORT = 1024
"""Lower ones are the host's own services', as for any program of an ordinary user. ip(7)"""


def check(caller: Caller, spec: Spec) -> None:
    """``UnknownNetwork`` for one that is not there; ``BadInput`` for a port that none of them can have; ``NotPermitted``"""
    if spec.network in ("none", "host"):
        return
    from dockless.sandbox.network import records
    from dockless.sandbox.network.asked import check_routed
    from dockless.sandbox.network.model import DEFAULT

    found = [records.find(one.network) for one in spec.endpoints if one.network != DEFAULT]
    if os.geteuid() != 0:
        return
    check_routed(spec.ports)
    if caller.root:
        return
    low = next((port.outside for port in spec.ports if port.outside < FIRST_PORT), 0)
    strange = next((network.name for network in found if network.owner != caller.uid), "")
    for wrong, what, hint in (
        (spec.network != "private", "another sandbox's network", "leave it out; jobs that start together share one"),
        (strange, f"network {strange}", f"take the network that all have: --network {DEFAULT}"),
        (any(one.mac for one in spec.endpoints), "a MAC address of a job's own", "leave it out: each has one of its own"),
        (low, f"port {low} of the host", f"publish a port from {FIRST_PORT} on"),
    ):
        if wrong:
            raise NotPermitted(f"{what} is for root", subject=caller.user, hint=hint)
