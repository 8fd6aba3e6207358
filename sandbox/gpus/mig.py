"""MIG slices made and removed, by administrators. A slice is a GPU instance, a part of a GPU with memory of its own, with one compute
instance that takes all of it.

::

    profiles(0) ──► Profile("1g.10gb", …)      what can be made of GPU 0, and how many more of each
    create(0, ["3g.40gb", "1g.10gb"]) ──► UUIDs     all of them or none
    remove(["MIG-…"])                          none that is leased, or on which something computes

Whether a GPU is divided at all is not changed here: that resets it (``nvidia-smi -i 0 -mig 1``). NVML asks for root.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from dockless.base.dataclass import dataclass
from dockless.base.typing import Any
from dockless.errors import BadInput, GpuError, NotEnoughGpus, UnknownGpu
from dockless.sandbox.gpus.attempt import attempt
from dockless.sandbox.gpus.lease import out_of_service, take
from dockless.sandbox.gpus.nvml import Gpu, inventory, session
from dockless.sandbox.gpus.request import find, units


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of slice. ``memory``: bytes. ``slices``: sevenths of the GPU's processors. ``free``: how many more of it there is room for."""

    name: str
    id: int
    memory: int
    slices: int
    free: int


def profiles(index: int) -> tuple[Profile, ...]:
    """Of a GPU that is divided. ``UnknownGpu``, ``GpuError``"""
    with session() as nvml:
        return tuple(_profiles(nvml, _divided(nvml, index)))


def create(index: int, names: Sequence[str]) -> tuple[str, ...]:
    """The UUIDs of new slices of a GPU, all of them or none. ``UnknownGpu``, ``BadInput`` for a profile that it does not have,
    ``NotEnoughGpus`` where there is no room, ``GpuError``"""
    with session() as nvml:
        handle = _divided(nvml, index)
        known = {profile.name: profile for profile in _profiles(nvml, handle)}
        for name in names:
            if name not in known:
                raise BadInput(f"GPU {index} has no profile {name[:40]!r}", subject=name[:40], hint=f"its profiles are {', '.join(known)}")
        before = _slices(index)
        with contextlib.ExitStack() as made:
            for name in names:
                with _told(nvml, f"a slice {name} of GPU {index} cannot be made"):
                    instance = nvml.nvmlDeviceCreateGpuInstance(handle, known[name].id)
                    made.callback(attempt, None, nvml.nvmlGpuInstanceDestroy, instance)
                    compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, _whole(nvml, instance, known[name].slices))
                    made.callback(attempt, None, nvml.nvmlComputeInstanceDestroy, compute)
            made.pop_all()
        return tuple(uuid for uuid in _slices(index) if uuid not in before)


def remove(uuids: Sequence[str]) -> None:
    """``UnknownGpu``, ``BadInput`` for a whole GPU, ``NotEnoughGpus`` for a slice that is leased, ``GpuError`` for one on which something
    computes."""
    with session() as nvml, contextlib.ExitStack() as held:
        there = inventory(links=False)
        for part in find(uuids, there):
            if not part.parent:
                raise BadInput(f"GPU {part.index} is not a slice", subject=part.uuid, hint="name slices: `dockless gpu list`")
            if part.processes:
                pids = ", ".join(str(process.pid) for process in part.processes)
                raise GpuError(f"process {pids} computes on {part.uuid}", subject=part.uuid, hint="end it first")
        out = out_of_service(uuids)  # nobody can lease those either
        for socket in take([uuid for uuid in uuids if uuid not in out]):
            held.enter_context(socket)
        for part in find(uuids, there):
            _remove(nvml, part)


def _remove(nvml: Any, part: Gpu) -> None:
    (numbers,) = part.mig
    with _told(nvml, f"{part.uuid} cannot be removed"):
        handle = nvml.nvmlDeviceGetHandleByUUID(part.parent)
        instance = nvml.nvmlDeviceGetGpuInstanceById(handle, numbers.gi)
        nvml.nvmlComputeInstanceDestroy(nvml.nvmlGpuInstanceGetComputeInstanceById(instance, numbers.ci))
        others = [unit for unit in units(inventory(processes=False, links=False)) if unit.parent == part.parent]
        if not any(unit.mig[0].gi == numbers.gi for unit in others):
            nvml.nvmlGpuInstanceDestroy(instance)


def _divided(nvml: Any, index: int) -> Any:
    handle = attempt(None, nvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        raise UnknownGpu(f"no GPU {index} on this host", subject=str(index), hint="`dockless gpu list` shows what there is")
    if not attempt((0, 0), nvml.nvmlDeviceGetMigMode, handle)[0]:
        hint = f"'nvidia-smi -i {index} -mig 1' divides it, and resets it; not every GPU can be divided"
        raise GpuError(f"GPU {index} is not divided by MIG", subject=str(index), hint=hint)
    return handle


def _profiles(nvml: Any, handle: Any) -> Iterator[Profile]:
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = attempt(None, nvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)
        if info is not None:
            name = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
            free = attempt(0, nvml.nvmlDeviceGetGpuInstanceRemainingCapacity, handle, info.id)
            yield Profile(name.removeprefix("MIG "), info.id, int(info.memorySizeMB) << 20, info.sliceCount, free)


def _whole(nvml: Any, instance: Any, slices: int) -> int:
    """The profile of the compute instance that takes all of a GPU instance."""
    shared = nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        info = attempt(None, nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, number, shared)
        if info is not None and info.sliceCount == slices:
            return int(info.id)
    raise GpuError("its driver has no compute instance for the whole slice", subject="MIG", hint="nvidia-smi mig -lcip")


def _slices(index: int) -> list[str]:
    return [part.uuid for gpu in inventory(processes=False, links=False) if gpu.index == index for part in gpu.mig]


@contextlib.contextmanager
def _told(nvml: Any, what: str) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_INSUFFICIENT_RESOURCES:
            hint = "`dockless gpu mig profiles` says what there is room for; remove slices first"
            raise NotEnoughGpus(f"{what}: there is no room", subject="MIG", hint=hint) from error
        hints = {nvml.NVML_ERROR_NO_PERMISSION: "root alone may: sudo", nvml.NVML_ERROR_IN_USE: "something uses it: nvidia-smi says what"}
        raise GpuError(f"{what}: {error}", subject="MIG", hint=hints.get(error.value, "see nvidia-smi mig")) from error
