"""What the environment of a sandbox says about GPUs. Its own small module: every start needs it, and few need the rest of ``gpu``."""

from __future__ import annotations

from collections.abc import Sequence

from dockless.base.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dockless.sandbox.gpus.nvml import Gpu

UNSET_IN_SANDBOX = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


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
