"""``gpus=2`` without a daemon: see ``sandbox.gpus.lease``."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dockless.sandbox.gpus.lease import GpuLease


def lease(wanted: str | int) -> GpuLease:
    """Free GPUs, held until the lease is closed. Errors: ``BadInput``, ``UnknownGpu``, ``NotEnoughGpus``, ``GpuDriverMissing``."""
    from dockless.sandbox.gpus import gpu
    from dockless.sandbox.gpus import lease as gpu_lease

    return gpu_lease.lease(gpu.parse_request(wanted))
