"""Whether this host has a GPU of a class: asked of the classes that quotas name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from dockless.errors import DocklessError
from dockless.sandbox.gpus import gpu, handed_out


def has_class(kinds: Sequence[str]) -> Callable[[str], bool]:
    """What says so; the driver is asked once it is called. ``kinds``: the kinds of devices that are handed out beside the GPUs. True of
    every model and MIG profile where the driver tells of no GPU: there is nothing to compare with."""

    @cache
    def units() -> tuple[gpu.Gpu, ...]:
        try:
            return gpu.units(gpu.inventory(processes=False, links=False))
        except DocklessError:
            return ()

    def found(name: str) -> bool:
        if "/" in name:
            return any(gpu.is_of(unit, name) for unit in handed_out.inventory(kinds))
        return not units() or any(gpu.is_of(unit, name) for unit in units())

    return found
