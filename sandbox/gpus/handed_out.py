"""Devices that are leased as GPUs are: those of the kinds that a setting names, ``gpus.devices = ["amd.com/gpu"]``.

::

    inventory(kinds) ──► Gpu …             each with its name, "amd.com/gpu=0", in the place of a UUID
    meant(request, kinds) ──► request      with these names for others that mean the same, "amd.com/gpu=all"
    nodes("amd.com/gpu=0") ──► numbers     of the nodes that nobody else may have meanwhile

Names of the Container Device Interface overlap: ``all`` has the nodes of each. What cannot be given twice is a node. So of the names of a
kind those are devices that have the fewest nodes and none of another device; each other name stands for the devices whose nodes it has.
Nodes that all names have, as AMD's /dev/kfd may be, and those of the file's own edits belong to no device.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from dockless.base import settings
from dockless.base.dataclass import dataclass, replace
from dockless.errors import BadInput, UnknownGpu
from dockless.sandbox.gpus import cdi
from dockless.sandbox.gpus.cdi_files import Edits
from dockless.sandbox.gpus.gpu import Gpu, GpuRequest
from dockless.sandbox.spec import Spec


@dataclass(frozen=True, slots=True)
class Kind:
    """``devices``: the nodes of each, by its name without the kind; ``names``: the devices that each name of the kind stands for, none
    where it has nodes of its own beside theirs, or no node."""

    devices: Mapping[str, frozenset[str]]
    names: Mapping[str, tuple[str, ...]]


def kinds() -> tuple[str, ...]:
    """Those that the caller's settings or root's name. ``BadInput`` where the caller's are wrong."""
    return tuple(dict.fromkeys(chain.from_iterable(settings.with_roots("gpus.devices"))))


def beside(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Those of this host, numbered after its GPUs. ``BadInput`` where the caller's settings are wrong."""
    return inventory(kinds(), number_after(gpus))


def number_after(gpus: Sequence[Gpu]) -> int:
    return 1 + max((unit.index for unit in gpus), default=-1)


def inventory(wanted: Sequence[str], first: int = 0) -> tuple[Gpu, ...]:
    """The devices of these kinds, numbered from ``first``. Of two kinds with the same nodes the first has them."""
    found: list[Gpu] = []
    taken: set[str] = set()
    for kind in wanted:
        for name, nodes in read(kind).devices.items():
            if taken.isdisjoint(nodes):
                found.append(Gpu(first + len(found), f"{kind}={name}", -1, kind, 0))
                taken |= nodes
    return tuple(found)


def missing(wanted: Collection[str], found: Sequence[Gpu]) -> list[str]:
    """A line for each kind of which nothing is among ``found``, with what is wrong with the files."""
    lacking = sorted(set(wanted).difference(unit.model for unit in found))
    why = "".join(f"; {fault}" for fault in (cdi.unsound() if lacking else ()))
    where = " or ".join(cdi.directories())
    return [f"there are no devices of kind {kind}: no file in {where} has one whose nodes are there{why}" for kind in lacking]


def meant(request: GpuRequest, known: Collection[str]) -> GpuRequest:
    """The same request with the names of devices. ``BadInput`` for a kind that is not of the ``known`` ones, ``UnknownGpu``"""
    for kind in {request.gpu_class} if request.gpu_class else {name.partition("=")[0] for name in request.devices}:
        if kind not in known:
            hint = f"those that the setting gpus.devices names are: {', '.join(known) or 'none'}"
            raise BadInput(f"devices {kind[:80]} are not leased on this host", subject=kind[:80], hint=hint)
    if not request.devices:
        return request
    return replace(request, devices=tuple(one for name in request.devices for one in _devices(name)))


def _devices(name: str) -> tuple[str, ...]:
    kind, _, device = name.partition("=")
    names = read(kind).names
    if device not in names:
        raise UnknownGpu(f"there is no device {name} on this host", subject=name, hint=f"its devices are {', '.join(names) or 'none'}")
    if not names[device]:
        hint = "ask for one by another name, or for a number of them: " + f"{kind}:1"
        raise BadInput(f"device {name} cannot be leased: it has a part of another, or no node", subject=name, hint=hint)
    return tuple(f"{kind}={one}" for one in names[device])


def taken_out(spec: Spec, known: Collection[str], others: bool) -> tuple[Spec, str]:
    """The spec without the devices that are of the ``known`` kinds, and the request for these, "" for none. ``others``: whether GPUs are
    asked for beside it; ``BadInput`` if both are."""
    leased = [name for name in spec.cdi if name.partition("=")[0] in known]
    if leased and others:
        hint = "ask for one or the other"
        raise BadInput(f"device {leased[0]} is leased as a GPU is, and other GPUs are asked for", subject="devices", hint=hint)
    return (replace(spec, cdi=tuple(name for name in spec.cdi if name not in leased)) if leased else spec), ",".join(leased)


def nodes(name: str) -> frozenset[str]:
    """``c226:128`` and others; none where there is no such device any more."""
    kind, _, device = name.partition("=")
    return read(kind).devices.get(device, frozenset())


def read(kind: str) -> Kind:
    """What the files say of a kind now, as far as they are sound and its nodes are there."""
    found: dict[str, frozenset[str]] = {}
    for name, file in cdi.of_kind(kind).items():
        with contextlib.suppress(OSError):
            found[name] = _numbers(file.devices[name]) - _numbers(file.edits)
    return divide(found)


def divide(named: Mapping[str, frozenset[str]]) -> Kind:
    """Which of these names are devices. Pure."""
    several = set(named.values())
    common = frozenset.intersection(*several) if len(several) > 1 else frozenset()
    if common in several:
        common = frozenset()
    own = {name: nodes - common for name, nodes in named.items() if nodes}
    devices: dict[str, frozenset[str]] = {}
    for name in sorted(own, key=lambda name: len(own[name])):  # of as many nodes, in the file's order
        if all(own[name].isdisjoint(nodes) for nodes in devices.values()):
            devices[name] = own[name]
    devices = {name: devices[name] for name in own if name in devices}
    names = {}
    for name in named:
        parts = [device for device, nodes in devices.items() if nodes <= own.get(name, frozenset())]
        whole = frozenset().union(*(devices[device] for device in parts)) == own.get(name)
        names[name] = tuple(parts) if whole else ()
    return Kind(devices, names)


def _numbers(edits: Edits) -> frozenset[str]:
    """``OSError``"""
    found = set()
    for node in edits.nodes:
        about = os.stat(node.source)
        number = f"{os.major(about.st_rdev)}:{os.minor(about.st_rdev)}"
        found.add(("b" if stat.S_ISBLK(about.st_mode) else "c") + number)
    return frozenset(found)
