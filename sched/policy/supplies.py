"""What jobs need beside GPUs: the host's cores and its memory.

Each GPU has a part of its own, which goes with it to whoever has it, used or not: no free GPU lacks cores because others have them all.
What a job asks beyond the parts of its GPUs it draws from what is common to all.
"""

from __future__ import annotations

from collections.abc import Collection

from dockless.base.dataclass import dataclass
from dockless.base.units import format_size

CORES, MEMORY = "cores", "memory"
"""Pools; also the fields of a job that say how much it asks."""


@dataclass(frozen=True, slots=True)
class Supply:
    """Cores in thousandths, or bytes of memory. ``total``: that jobs may have; ``per_gpu``: the part of each GPU; ``per_job``: what a job
    without GPUs counts for that does not say what it needs."""

    total: int
    per_gpu: int = 0
    per_job: int = 0

    def common(self, gpus: int) -> int:
        """What is common to all on a host of so many GPUs."""
        return max(0, self.total - self.per_gpu * gpus)

    def own(self, gpus: int, share: int, shareable: Collection[int]) -> int:
        """The parts of a job's GPUs. ``share``: MiB of its one GPU, of the ``shareable`` of each; 0 where its GPUs are its own."""
        whole = self.per_gpu * gpus
        return whole * share // max(shareable, default=share) if share else whole

    def counts(self, asked: int, *, has_gpus: bool, own: int = 0) -> int:
        """What a job counts for that asks so much, 0 where it does not say. ``own``: the parts of its GPUs, which go with them, used or
        not."""
        return max(asked, own) if has_gpus else asked or self.per_job


def amount(pool: str, value: int) -> str:
    """``1.5 cores``, ``64 GiB of memory``."""
    if pool == CORES:
        return f"{value / 1000:g} core{'' if value == 1000 else 's'}"
    return f"{format_size(value)} of memory"


def bare(pool: str, value: int) -> str:
    """The same without saying of what."""
    return f"{value / 1000:g}" if pool == CORES else format_size(value)
