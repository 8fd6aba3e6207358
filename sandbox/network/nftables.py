"""Requests of nftables, in one transaction."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from dockless.sandbox.network.netlink import Request


def carry_out(asking: socket.socket, requests: Sequence[Request]) -> None:
    """All of them or none."""
