"""What a GPU does, and whether it is fit for use: read through NVML, each question on its own, for old drivers and GPUs do not know all.

``trouble`` is asked whenever GPUs are chosen: one with an answer is not leased. ``failures`` waits for what a driver reports by itself.
``readings`` is for people: ``dockless top``, ``dockless metrics``.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Collection, Iterator

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
_NOTHING = 0
"""The one of these for a GPU that needs none."""
_OF_PROGRAMS = frozenset((13, 31, 43, 45, 68, 69, 109))
"""Xid errors that a program causes, and that end with it. docs.nvidia.com, Xid Errors"""
_MENDED = frozenset((63, 94, 154))
"""Those that the driver has dealt with, or that tell of others; where something is still to be done, ``trouble`` says so."""
_XIDS = {
    13: "a program's fault, such as an access beyond an array",
    31: "an access of a program to memory that it does not have",
    43: "a program has stopped for a fault of its own",
    45: "the work of a program that ended was removed",
    48: "an uncorrectable error of its memory",
    63: "a row of its memory is replaced",
    64: "a row of its memory could not be replaced",
    68: "a fault of its video decoder",
    69: "a command of a program that it does not know",
    74: "an error of an NVLink",
    79: "it has fallen off its bus",
    94: "an error of its memory that ends the program that met it, and no other",
    95: "an uncontained error of its memory",
    109: "a program did not let others have their turn",
    119: "its system processor does not answer",
    120: "its system processor has failed",
    154: "what its driver asks to be done with it has changed",
}
_NO_INSTANCE = 0xFFFFFFFF
LOST = "it does not answer: nvidia-smi and the kernel's log say why"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one GPU does now; None for what this driver or GPU does not tell. ``busy``: the share of the last sample, up to a second, in
    which something computed, 0 to 1. ``used``: bytes of its memory. ``temperature``: degrees Celsius. ``power``: watts. ``ecc_corrected``,
    ``ecc_uncorrected``: errors of its memory since its driver was loaded."""

    uuid: str
    busy: float | None = None
    used: int | None = None
    temperature: float | None = None
    power: float | None = None
    trouble: str = ""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What a driver has reported by itself. ``uuid``: of a whole GPU; empty for one that it does not name. ``why``: in words. ``xid``: the
    number of an Xid error, 0 for anything else. ``unfit``: the GPU is not fit for use; else a program is in trouble, or the driver has
    dealt with it. ``gi``: the MIG GPU instance that it is about, None for the whole GPU."""

    uuid: str
    why: str
    xid: int = 0
    unfit: bool = True
    gi: int | None = None


def trouble(nvml: Any, handle: Any) -> str:
    """Why a GPU is not fit for use; empty for one that is, or whose driver does not tell. ``handle`` None: it could not be had."""
    if handle is None or attempt(None, nvml.nvmlDeviceGetUUID, handle) is None:
        return LOST
    action = _action(nvml, handle)
    if action in _ACTIONS:
        return _ACTIONS[action]
    _, _, pending, failed = attempt((0, 0, 0, 0), nvml.nvmlDeviceGetRemappedRows, handle)
    if failed:
        return "a row of its memory is broken and could not be replaced"
    if pending:
        return "rows of its memory are replaced by a reset, which has not been done"
    if action == _NOTHING:  # whatever it has met is contained, or mended
        return ""
    errors = attempt(0, nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    return f"{errors} uncorrectable errors of its memory since its driver was loaded" if errors else ""


def _action(nvml: Any, handle: Any) -> int | None:
    """What its driver asks to be done with a GPU; None where it does not tell."""
    values = attempt((), nvml.nvmlDeviceGetFieldValues, handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return int(values[0].value.uiVal) if values and values[0].nvmlReturn == 0 else None


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
                attempt(None, nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC),
                attempt(None, nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
            )
        )
    return tuple(found)


def computing(nvml: Any, uuid: str) -> dict[int, float] | None:
    """The processes that computed on a whole GPU in the last second, and the share of that time of each, 0 to 1. None where that is not
    told, as of MIG slices."""
    handle = attempt(None, nvml.nvmlDeviceGetHandleByUUID, uuid)
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, int((time.time() - 1) * 1e6))
    except nvml.NVMLError_NotFound:
        return {}
    except (nvml.NVMLError, nvml.NVMLLibraryMismatchError):
        return None
    # Some drivers leave samples in the list that they have not filled.
    newest = {int(one.pid): one.smUtil / 100 for one in sorted(samples, key=lambda one: int(one.timeStamp)) if one.smUtil <= 100}
    newest.pop(0, None)
    return newest


def failures(nvml: Any, uuids: Collection[str], seconds: float) -> Iterator[Report | None]:
    """What the driver reports of whole GPUs, as it happens. None at least every so many seconds. Ends where the driver reports nothing."""
    wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
    events = attempt(None, nvml.nvmlEventSetCreate)
    if events is None:
        return
    try:
        names = {}
        for uuid in uuids:
            handle = attempt(None, nvml.nvmlDeviceGetHandleByUUID, uuid)
            types = wanted & attempt(0, nvml.nvmlDeviceGetSupportedEventTypes, handle) if handle is not None else 0
            if types and attempt(False, _registered, nvml, handle, types, events):
                names[_address(handle)] = uuid
        lost = False
        while names:
            try:
                event = nvml.nvmlEventSetWait_v2(events, int(seconds * 1000))
            except nvml.NVMLError_Timeout:
                yield None
                continue
            except nvml.NVMLError_GpuIsLost:  # the driver does not say which: whoever asks each finds out
                yield None if lost else Report("", LOST)
                lost = True
                time.sleep(seconds)  # it says so again at once
                continue
            except nvml.NVMLError:
                return
            yield _report(nvml, names.get(_address(event.device), ""), event)
    finally:
        attempt(None, nvml.nvmlEventSetFree, events)


def _registered(nvml: Any, handle: Any, types: int, events: Any) -> bool:
    nvml.nvmlDeviceRegisterEvents(handle, types, events)
    return True


def _address(handle: Any) -> int | None:
    """NVML names a GPU by a pointer, and gives another object with the same pointer each time."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def _report(nvml: Any, uuid: str, event: Any) -> Report:
    gi = None if event.gpuInstanceId == _NO_INSTANCE else int(event.gpuInstanceId)
    if event.eventType != nvml.nvmlEventTypeXidCriticalError:
        return Report(uuid, "an uncorrectable error of its memory", unfit=_action(nvml, event.device) != _NOTHING, gi=gi)
    number = int(event.eventData)
    what = _XIDS.get(number, "an error that its driver has reported: the kernel log says more")
    return Report(uuid, f"Xid {number}, {what}", number, number not in _OF_PROGRAMS | _MENDED, gi)
