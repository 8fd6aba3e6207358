"""Whether this host has a GPU of a class. Used to check the classes that quotas name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from dockless.errors import DocklessError
from dockless.sandbox.gpus import gpu, handed_out


def has_class(kinds: Sequence[str]) -> Callable[[str], bool]:
    """A function that says whether this host has a GPU of that class. It asks the driver at the first call. ``kinds``: the kinds of
    devices that are leased beside GPUs. Where the driver lists no GPU, the answer is True for every model and MIG profile."""

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
