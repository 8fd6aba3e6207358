"""``gpus=2`` without a daemon: a lease held for the run, choosing none that the daemon has given out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dockless.errors import DocklessError

if TYPE_CHECKING:
    from dockless.sandbox.gpu_lease import GpuLease


def lease(wanted: str | int) -> GpuLease:
    """Free GPUs, held until the lease is closed. Errors: ``BadInput``, ``UnknownGpu``, ``NotEnoughGpus``, ``GpuDriverMissing``."""
    from dockless.sandbox import gpu, gpu_lease

    return gpu_lease.lease(gpu.parse_request(wanted), busy=leased_by_daemon())


def leased_by_daemon() -> frozenset[str]:
    """UUIDs that the daemon's jobs hold; none where no daemon answers."""
    from dockless.sched.client import connect, socket_path

    if not socket_path().exists():
        return frozenset()
    try:
        with connect(timeout=2.0) as queue:
            return frozenset(gpu.uuid for gpu in queue.info().gpus if gpu.job)
    except DocklessError:
        return frozenset()
