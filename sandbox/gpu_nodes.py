"""The device nodes of leased GPUs in a sandbox: the host's nodes, or nodes of the sandbox's own where it may not open those.

An administrator may close the host's nodes (``NVreg_DeviceFileMode=0600``), so that only root's daemon can give out GPUs. Root then makes
nodes for each sandbox, as for other leased devices. A user cannot make nodes: what users start without root's daemon gets no GPU there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from dockless.base.dataclass import replace
from dockless.base.idmaps import IdMap, Range
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import Unsupported
from dockless.sandbox import devices
from dockless.sandbox.gpus.nodes import is_optional
from dockless.sandbox.gpus.own_nodes import named_anew
from dockless.sandbox.resolved import Device

if TYPE_CHECKING:
    from dockless.sandbox.accounts import Account
    from dockless.sandbox.gpus.nodes import DeviceNode


def given(nodes: Sequence[DeviceNode], idmap: IdMap | None, account: Account, *, rootful: bool) -> tuple[Device, ...]:
    """``account``: whose the program is. ``Unsupported`` where nobody inside could open one that CUDA needs, and root does not start it."""
    found = []
    for node in nodes:
        device = Device(node.target, node.source, node.major, node.minor)
        # The driver asks for no more than reading of what lets a slice be used.
        asked = replace(device, access="r") if node.target.startswith("/dev/nvidia-caps/") else device
        lacking = devices.lacks(asked, idmap if idmap is not None else _alone(account), rootful=rootful)
        if lacking and rootful:
            device = named_anew(device)
        elif lacking and not is_optional(node.target):
            hint = (
                devices.only_by_group(device, lacking) or "its nodes are closed on this host: `dockless submit` asks root's daemon for GPUs"
            )
            raise Unsupported(f"GPU node {node.source}: nobody inside could open it for '{lacking}'", subject="gpus", hint=hint)
        found.append(device)
    return tuple(found)


def _alone(account: Account) -> IdMap | None:
    """Of a program that has the host's ids: hers, and those of root all of them."""
    if account.uid == 0:
        return None
    gids = tuple(Range(gid, gid, 1) for gid in (account.gid, *account.groups))
    return IdMap(uids=(Range(account.uid, account.uid, 1),), gids=gids)


def closed(nodes: Sequence[DeviceNode]) -> list[str]:
    """Those of them, on the host, that not everybody may read and write."""
    return [
        node.source
        for node in nodes
        if not is_optional(node.target) and "caps/" not in node.target and os.stat(node.source).st_mode & 6 != 6
    ]
