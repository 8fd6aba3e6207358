"""A limit of a GPU's memory that its driver enforces, for all processes of a control group together: since R615, for root. An allocation
beyond it fails in the program that makes it. It goes with the group.

Where the kernel has the controller ``dmem`` (6.14) the driver sets it in the group's ``dmem.max``, and says "not found" for a group that
has no such file: each group above it must pass the controller on, so who makes the group asks for ``CONTROLLERS``. For other kernels NVIDIA
documents an accounting of the driver's own, called misc: there no controller is needed. docs.nvidia.com, MPS v3 Memory Partitioning
"""

from __future__ import annotations

import os

from dockless.base.typing import Any
from dockless.sandbox.gpus.attempt import attempt
from dockless.sandbox.gpus.nvml import session

CONTROLLERS = ("dmem",)
"""What a group that is to be limited has, where the kernel has it."""
_PAGE = 2 << 20
"""Bytes by which a driver may round."""


def set_limit(uuid: str, group: str, memory: int) -> bool:
    """At most ``memory`` bytes of a GPU for the group at this path. False where that cannot be had here. Errors: as ``session``."""
    with session() as nvml:
        handle = attempt(None, nvml.nvmlDeviceGetHandleByUUID, uuid)
        if handle is None or not hasattr(nvml, "nvmlDeviceSetMemoryLimits_v1"):  # an older pynvml
            return False
        return bool(attempt(False, _set, nvml, handle, os.fsencode(group), memory))


def _set(nvml: Any, handle: Any, group: bytes, memory: int) -> bool:
    nvml.nvmlDeviceSetMemoryLimits_v1(handle, nvml.c_nvmlSetMemoryLimits_v1_t(group, 0, memory))
    holds = nvml.c_nvmlGetMemoryLimits_v1_t(group)
    nvml.nvmlDeviceGetMemoryLimits_v1(handle, holds)
    return bool(0 < holds.hardLimit < memory + _PAGE)
