"""``gpus=2`` without a daemon: see ``sandbox.gpus.lease`` and ``sandbox.gpus.handed_out``."""

from __future__ import annotations

import contextlib
import os

from dockless.base.path import Path
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import DocklessError, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dockless.sandbox.gpus.lease import GpuLease
    from dockless.sandbox.spec import Spec
    from dockless.sched.used import Exceeded

_PATIENCE = 2.0
"""Seconds for which a daemon that does not answer holds up a start."""


@contextlib.contextmanager
def leased(spec: Spec, wanted: str | int | None) -> Iterator[tuple[Spec, GpuLease | None]]:
    """The spec with GPUs, which are held for as long as the block runs; as it is where none are wanted. Errors are those of ``lease``."""
    spec, wanted = with_devices(spec, wanted)
    if wanted is None:
        yield spec, None
        return
    from dockless.base.dataclass import replace

    with lease(wanted) as found:
        yield replace(spec, gpus=found.uuids), found


def lease(wanted: str | int) -> GpuLease:
    """Free GPUs, held until the lease is closed. Errors: ``BadInput``, ``UnknownGpu``, ``NotEnoughGpus``, ``GpuDriverMissing``, and
    ``Refused`` where a quota of root's daemon does not allow them."""
    from dockless.sandbox.gpus import gpu
    from dockless.sandbox.gpus import lease as gpu_lease

    found = gpu_lease.lease(gpu.parse_request(wanted))
    try:
        _check_quotas(found.uuids)
    except BaseException:
        found.close()
        raise
    return found


def _check_quotas(uuids: Sequence[str]) -> None:
    """``Refused`` where root's daemon says that these GPUs, which we have leased, exceed a quota. They are leased first: of two who ask at
    the same time neither is passed over. Where no such daemon answers, or one that knows no such question, nothing is checked."""
    from dockless.base import paths
    from dockless.sandbox.gpus import gpu, tables

    named = os.environ.get("DOCKLESS_SOCKET")
    places = [Path(named)] if named else []
    places.append(paths.runtime() / "daemon.sock" if gpu.simulated_host() else paths.SOCKET_OF_ROOT)
    for path in dict.fromkeys(places):
        if tables.listener(path)[1] != 0:
            continue
        from dockless.sched.wire.client import Client

        exceeded: Sequence[Exceeded] = ()
        with contextlib.suppress(DocklessError), Client(path, timeout=_PATIENCE) as queue:
            exceeded = queue.exceeded(uuids)
        for one in exceeded:
            count = f"{one.asked} {one.gpu_class} GPU{'' if one.asked == 1 else 's'}".replace("  ", " ")
            raise Refused(
                f"{count} asked for, and the quota of {one.kind} {one.name} is {one.limit} at once, of which {one.used} "
                f"{'is' if one.used == 1 else 'are'} in use",
                subject=f"{one.kind} {one.name}",
                hint=f"ask for at most {one.limit}, or ask the administrator for a larger quota"
                if one.asked > one.limit
                else "dockless submit waits for its turn; dockless quota show says who has what",
            )


def with_devices(spec: Spec, wanted: str | int | None) -> tuple[Spec, str | int | None]:
    """The spec without the named devices that are leased on this host, and what is to be leased with them. ``BadInput``"""
    if not spec.cdi:
        return spec, wanted
    from dockless.sandbox.gpus import handed_out

    spec, leased = handed_out.taken_out(spec, handed_out.kinds(), wanted is not None)
    return spec, leased or wanted
