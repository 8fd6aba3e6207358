"""Keepers that this process started and that nobody finds again to collect them: they remove their sandboxes, or another one follows."""

from __future__ import annotations

import os

_WALL = 0x40000000
"""__WALL: children that were cloned without an exit signal too. wait(2)"""
_children: set[int] = set()


def collect_later(keeper: int) -> None:
    """Whenever sandboxes are listed or started."""
    _children.add(keeper)


def collect_ended() -> None:
    """Those that have ended do not stay zombies. As long as one is, its pid is nobody else's."""
    for pid in tuple(_children):
        try:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | _WALL)
        except ChildProcessError:  # somebody has waited for it, or we are forked
            ended = None
            _children.discard(pid)
        if ended is not None:
            _children.discard(pid)
