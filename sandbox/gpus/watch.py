"""What a GPU does, and whether it is fit for use: read through NVML, each question on its own, for old drivers and GPUs do not know all.

``trouble`` is asked whenever GPUs are chosen: one with an answer is not leased. The rest is for people: ``dockless metrics``.
"""

from __future__ import annotations

from collections.abc import Collection

from dockless.base.dataclass import dataclass
from dockless.base.typing import Any
from dockless.sandbox.gpus.attempt import attempt

_ACTIONS = {
    1: "its driver asks for a reset of the GPU",
    2: "its driver asks for a reboot of the host",
    3: "its driver asks for its peers to be drained",
    4: "its driver asks for it to be drained and reset",
    6: "its driver asks for a reset of its bus",
    7: "its driver asks for a reboot of the system",
}
"""nvmlDeviceGpuRecoveryAction_t, since R570."""
LOST = "it does not answer: nvidia-smi and the kernel's log say why"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one GPU does now; None for what this driver or GPU does not tell. ``busy``: the share of the last sample, up to a second, in
    which something computed, 0 to 1. ``used``: bytes of its memory. ``temperature``: degrees Celsius. ``power``: watts."""

    uuid: str
    busy: float | None = None
    used: int | None = None
    temperature: float | None = None
    power: float | None = None
    trouble: str = ""


def trouble(nvml: Any, handle: Any) -> str:
    """Why a GPU is not fit for use; empty for one that is, or whose driver does not tell. ``handle`` None: it could not be had."""
    if handle is None or attempt(None, nvml.nvmlDeviceGetUUID, handle) is None:
        return LOST
    values = attempt((), nvml.nvmlDeviceGetFieldValues, handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if values and values[0].nvmlReturn == 0 and (action := _ACTIONS.get(values[0].value.uiVal)):
        return action
    _, _, pending, failed = attempt((0, 0, 0, 0), nvml.nvmlDeviceGetRemappedRows, handle)
    if failed:
        return "a row of its memory is broken and could not be replaced"
    if pending:
        return "rows of its memory are replaced by a reset, which has not been done"
    errors = attempt(0, nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    return f"{errors} uncorrectable errors of its memory since its driver was loaded" if errors else ""


def readings(nvml: Any, uuids: Collection[str]) -> tuple[Reading, ...]:
    """Of whole GPUs and MIG slices, in this order; a slice tells its memory alone."""
    found = []
    for uuid in uuids:
        handle = attempt(None, nvml.nvmlDeviceGetHandleByUUID, uuid)
        if handle is None:
            found.append(Reading(uuid, trouble=LOST))
            continue
        rates = attempt(None, nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = attempt(None, nvml.nvmlDeviceGetMemoryInfo, handle)
        power = attempt(None, nvml.nvmlDeviceGetPowerUsage, handle)
        found.append(
            Reading(
                uuid,
                None if rates is None else rates.gpu / 100,
                None if memory is None else int(memory.used),
                attempt(None, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
                None if power is None else power / 1000,
                trouble(nvml, handle),
            )
        )
    return tuple(found)
