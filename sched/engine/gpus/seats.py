"""GPUs that jobs which start together share with each other by memory: on which of them each job is, and of which class they are. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

from dockless.sandbox.gpus.request import WHOLE
from dockless.sched.policy import classes


def room_of(units: Iterable[str], shareable: Mapping[str, int], not_whole: Container[str]) -> list[int]:
    """The MiB of each whole GPU among these that several jobs can have together. ``shareable``: of those of which something is known."""
    return [shareable.get(unit, 0) for unit in units if unit not in not_whole]


def share_of(memory: int, room: Collection[int]) -> int:
    """The MiB that a job which asks for so many bytes of one GPU has of it; 0 where some have less ``room``: it gets one of its own."""
    share = -(-memory >> 20)
    return share if share <= min(room, default=0) else 0


def seated(wishes: Sequence[tuple[int, str]], room: Callable[[str], Collection[int]]) -> tuple[list[int], str]:
    """The place of each job, as ``seats`` has it, and the class of the GPUs that they share. ``wishes``: of each job the MiB of a GPU that
    it asks for, 0 where it has GPUs of its own, and the class of its GPUs. ``room``: the MiB of each GPU of a class that jobs can share.

    A class says how much memory each GPU has only where some of that model have less than the largest share."""
    shares = [share for share, _ in wishes]
    largest, models = max(shares, default=0), {classes.model(name) for share, name in wishes if share}
    models = {"" if model.lower() == WHOLE else model for model in models}
    if len(models) != 1:
        return [0] * len(wishes), ""
    (gpu_class,) = models
    if largest > min(room(gpu_class), default=0):
        gpu_class = classes.named(gpu_class or WHOLE, largest << 20)
    capacity = min(room(gpu_class), default=0)
    return (seats(shares, capacity) if largest <= capacity else [0] * len(wishes)), gpu_class


def seats(shares: Sequence[int], capacity: int) -> list[int]:
    """On which of their GPUs each job has its share: 1 for the first, 0 where it has none. Each is on the first GPU that has room for it,
    and nobody else is on these GPUs. ``capacity``: the MiB of a GPU. All are 0 where no two fit on one: then each has a GPU of its own."""
    left: list[int] = []
    places = []
    for share in shares:
        at = next((at for at, room in enumerate(left) if share <= room), len(left))
        if share and at == len(left):
            left.append(capacity)
        if share:
            left[at] -= share
        places.append(at + 1 if share else 0)
    return places if len(left) < sum(1 for place in places if place) else [0] * len(places)
