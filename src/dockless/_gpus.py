"""``gpus=2`` without a daemon: a lease held for the run, choosing none that the daemon has given out."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING
from dockless.errors import DocklessError

if TYPE_CHECKING:
    from dockless.sandbox.gpus.lease import GpuLease


def lease(wanted: str | int) -> GpuLease:
    """Free GPUs, held until the lease is closed. Errors: ``BadInput``, ``UnknownGpu``, ``NotEnoughGpus``, ``GpuDriverMissing``."""
    from dockless.sandbox.gpus import gpu
    from dockless.sandbox.gpus import lease as gpu_lease
    from dockless.sandbox.run import detached

    granted = leased_by_daemon()
    return gpu_lease.lease(gpu.parse_request(wanted), lambda: granted | detached.gpus())


def leased_by_daemon() -> frozenset[str]:
    """UUIDs that the daemon's jobs hold; none where no daemon answers."""
    from dockless.sched.wire.client import connect, socket_path

    if not socket_path().exists():
        return frozenset()
    try:
        with connect(timeout=2.0) as queue:
            return frozenset(gpu.uuid for gpu in queue.info().gpus if gpu.job)
    except DocklessError:
        return frozenset()
