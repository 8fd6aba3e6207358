"""The environment variables of a sandbox that are about GPUs. A small module of its own, as every start imports it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dockless.base.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dockless.sandbox.gpus.nvml import Gpu

UNSET_IN_SANDBOX = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")

VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def said_visible(variables: Mapping[str, str] | Iterable[tuple[str, str]]) -> frozenset[str]:
    """The words of ``NVIDIA_VISIBLE_DEVICES``: ``all``, ``none``, ``void`` or names of GPUs; none where it is empty or not set. Of several
    pairs with that name the last counts."""
    return frozenset(map(str.strip, dict(variables).get(VISIBLE, "").split(","))) - {""}


def asks_for_files_alone(variables: Iterable[tuple[str, str]]) -> bool:
    """Whether the variables ask for the driver's files without a GPU: ``NVIDIA_VISIBLE_DEVICES=none``. Called at each start."""
    pairs = tuple(variables)
    return any(name == VISIBLE for name, _ in pairs) and "none" in (said := said_visible(pairs)) and "void" not in said


def environment(gpus: Sequence[Gpu], devices: Sequence[str] = ()) -> dict[str, str]:
    """Variables set inside, over those of the image. ``devices``: the names of leased ones of other kinds. ``void`` keeps NVIDIA's own
    container hooks out if they run below us.

    CUDA numbers what it can open from 0, so CUDA_VISIBLE_DEVICES must not be set: drop ``UNSET_IN_SANDBOX`` of image and user first.
    """
    values = {"NVIDIA_VISIBLE_DEVICES": "void"}
    if gpus or devices:
        values["DOCKLESS_GPUS"] = ",".join([*(gpu.uuid for gpu in gpus), *devices])
    if any(gpu.simulated for gpu in gpus):
        values["DOCKLESS_GPUS_SIMULATED"] = "1"
    return values
