"""The public face of this folder.

::

    inventory() ──► Gpu …                 nvml          read through NVML (or its stand-in, DOCKLESS_SIMULATED_GPUS=4x80G)
    parse_request("2") ──► GpuRequest     request       Docker's grammar; N means N free GPUs
    choose(request, gpus, busy) ──► Gpu … request       pure; neighbours by topology
        (the scheduler turns them into a lease)
    device_nodes(gpus)                     nodes         the chosen nodes, checked, and nothing else
    environment(gpus)                      environment

Only a lease grants a device: never the environment of an image or of a user. A UUID names a GPU everywhere (an index is for people, a
minor for /dev). It has all of them but ``lease``.
"""

from __future__ import annotations

from dockless.sandbox.gpus.environment import UNSET_IN_SANDBOX, environment
from dockless.sandbox.gpus.nodes import DeviceNode, device_nodes, links, other_nodes
from dockless.sandbox.gpus.nvml import (
    Driver,
    Gpu,
    GpuProcess,
    MigInstance,
    driver,
    inventory,
    refresh,
    session,
    shareable,
    simulated_host,
    simulating,
)
from dockless.sandbox.gpus.request import (
    ALL,
    WHOLE,
    GpuRequest,
    candidates,
    choose,
    find,
    is_of,
    parse_request,
    possible,
    profile,
    units,
    why_not_free,
)
from dockless.sandbox.gpus.topology import Link, best_set

__all__ = [
    "ALL",
    "UNSET_IN_SANDBOX",
    "WHOLE",
    "DeviceNode",
    "Driver",
    "Gpu",
    "GpuProcess",
    "GpuRequest",
    "Link",
    "MigInstance",
    "best_set",
    "candidates",
    "choose",
    "device_nodes",
    "driver",
    "environment",
    "find",
    "inventory",
    "is_of",
    "links",
    "other_nodes",
    "parse_request",
    "possible",
    "profile",
    "refresh",
    "session",
    "shareable",
    "simulated_host",
    "simulating",
    "units",
    "why_not_free",
]
