"""Keepers of detached sandboxes that this process started: its children, whoever ends or removes what they keep."""

from __future__ import annotations

import contextlib
import os

_WALL = 0x40000000
"""__WALL: children that were cloned without an exit signal too. wait(2)"""
_NOW = os.WEXITED | os.WNOHANG | _WALL
_children: set[int] = set()
os.register_at_fork(after_in_child=_children.clear)


def collect_later(keeper: int) -> None:
    """Whenever sandboxes are listed or started."""
    _children.add(keeper)


def collect(keeper: int) -> None:
    """One that is about to end, now. Nothing happens where somebody has waited for it."""
    _children.discard(keeper)  # before its pid can be another's
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, keeper, os.WEXITED | _WALL)


def collect_ended() -> None:
    """What has ended does not stay a zombie; as long as one is, its pid is nobody else's. One call where none has, however many live."""
    while _children:
        try:
            ended = os.waitid(os.P_ALL, 0, _NOW | os.WNOWAIT)
        except ChildProcessError:  # somebody has waited for all of them
            return _look_at_each()
        if ended is None:
            return None
        if ended.si_pid not in _children:  # it is not for us to wait for, and hides others
            return _look_at_each()
        collect_if_ended(ended.si_pid)
    return None


def _look_at_each() -> None:
    for pid in tuple(_children):
        collect_if_ended(pid)


def collect_if_ended(pid: int) -> None:
    """One of ours; nothing happens where it goes on, or somebody has waited for it."""
    try:
        if os.waitid(os.P_PID, pid, _NOW) is not None:
            _children.discard(pid)
    except ChildProcessError:  # somebody has waited for it
        _children.discard(pid)
