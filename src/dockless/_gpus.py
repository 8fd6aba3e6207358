"""``gpus=2`` without a daemon: see ``sandbox.gpus.lease`` and ``sandbox.gpus.handed_out``."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dockless.sandbox.gpus.lease import GpuLease
    from dockless.sandbox.spec import Spec


def lease(wanted: str | int) -> GpuLease:
    """Free GPUs, held until the lease is closed. Errors: ``BadInput``, ``UnknownGpu``, ``NotEnoughGpus``, ``GpuDriverMissing``."""
    from dockless.sandbox.gpus import gpu
    from dockless.sandbox.gpus import lease as gpu_lease

    return gpu_lease.lease(gpu.parse_request(wanted))


def with_devices(spec: Spec, wanted: str | int | None) -> tuple[Spec, str | int | None]:
    """The spec without the named devices that are leased on this host, and what is to be leased with them. ``BadInput``"""
    if not spec.cdi:
        return spec, wanted
    from dockless.sandbox.gpus import handed_out

    spec, leased = handed_out.taken_out(spec, handed_out.kinds(), wanted is not None)
    return spec, leased or wanted
