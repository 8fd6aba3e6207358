"""``dockless.aio.networks``: ``dockless.networks``, to be awaited. A cancellation arrives when a call is over."""

from __future__ import annotations

from dockless import networks
from dockless._async_volumes import awaited

__all__ = networks.__all__

create = awaited(networks.create)
get = awaited(networks.get)
list = awaited(networks.list)
remove = awaited(networks.remove)
prune = awaited(networks.prune)
connect = awaited(networks.connect)
disconnect = awaited(networks.disconnect)
