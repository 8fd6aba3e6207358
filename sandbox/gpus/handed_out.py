"""Devices that are leased as GPUs are: those of the kinds that a setting names, ``gpus.devices = ["amd.com/gpu"]``.

::

    inventory(kinds) ──► Gpu …             each with its name, "amd.com/gpu=0", in the place of a UUID
    meant(request, kinds) ──► request      with these names for others that mean the same, "amd.com/gpu=all"
    nodes(["amd.com/gpu=0"]) ──► numbers   of the nodes that nobody else may have meanwhile

Names of the Container Device Interface overlap: ``all`` has the nodes of each. What cannot be given twice is a node. So of the names of a
kind those are devices that have the fewest nodes and none of another device; each other name stands for the devices whose nodes it has, and
cannot be leased where it has a part of one. Everybody's are the nodes of a file's own edits, and those that are known to be (``CONTROL``).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

from dockless.base import settings
from dockless.base.dataclass import dataclass, replace
from dockless.errors import BadInput, UnknownGpu
from dockless.sandbox.gpus import cdi
from dockless.sandbox.gpus.cdi_files import Edits
from dockless.sandbox.gpus.gpu import Gpu, GpuRequest
from dockless.sandbox.spec import Spec

CONTROL = (
    "/dev/kfd",
    "/dev/vfio/vfio",
    "/dev/davinci_manager",
    "/dev/devmm_svm",
    "/dev/hisi_hdc",
    "/dev/cambricon_ctl",
)
"""Nodes of drivers for all of their devices, which vendors' files name in each, as amd-ctk does the first: who has one has no device."""


@dataclass(frozen=True, slots=True)
class Kind:
    """``devices``: the nodes of each, by its name without the kind; ``names``: the devices that each name of the kind stands for, none
    where it has nodes of its own beside theirs, or no node; ``overlaps``: of such a name a device with which it has a node in common, and
    that node."""

    devices: Mapping[str, frozenset[str]]
    names: Mapping[str, tuple[str, ...]]
    overlaps: Mapping[str, tuple[str, str]]


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
    there = [name for name, other in _overlapping(wanted) if not other]
    return tuple(Gpu(number, name, -1, name.partition("=")[0], 0) for number, name in enumerate(there, first))


def unleased(wanted: Sequence[str]) -> dict[str, str]:
    """The names of these kinds that cannot be leased, and why: of two with a node in common nobody may have the second beside the first."""
    return {name: f"it has {other[1]} in common with {other[0]}" for name, other in _overlapping(wanted) if other}


def in_words(unleased: Mapping[str, str]) -> list[str]:
    """A line for each."""
    return [f"device {name} cannot be leased: {why}" for name, why in unleased.items()]


def _overlapping(wanted: Sequence[str]) -> Iterator[tuple[str, tuple[str, str] | None]]:
    """The devices of these kinds by their names, and the names that overlap one before: with its name, and the node that both have."""
    taken: dict[str, str] = {}
    for kind in wanted:
        found = read(kind)
        for name, nodes in found.devices.items():
            shared = min(taken.keys() & nodes, default="")
            yield f"{kind}={name}", (taken[shared], _shown(shared)) if shared else None
            taken |= {node: f"{kind}={name}" for node in nodes if not shared}
        for name, (device, node) in found.overlaps.items():
            yield f"{kind}={name}", (f"{kind}={device}", _shown(node))


def _shown(node: str) -> str:
    return f"the {'block' if node[0] == 'b' else 'character'} device {node[1:]}"


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
    found = read(kind)
    if device not in found.names:
        hint = f"its devices are {', '.join(found.names) or 'none'}; 'dockless doctor' says what is wrong with others"
        raise UnknownGpu(f"there is no device {name} on this host", subject=name, hint=hint)
    if not found.names[device]:
        hint = "ask for one by another name, or for a number of them: " + f"{kind}:1"
        other, node = found.overlaps.get(device, ("", ""))
        why = f"it has {_shown(node)} in common with {kind}={other}" if other else "it has no node of its own"
        raise BadInput(f"device {name} cannot be leased: {why}", subject=name, hint=hint)
    return tuple(f"{kind}={one}" for one in found.names[device])


def taken_out(spec: Spec, known: Collection[str], others: bool) -> tuple[Spec, str]:
    """The spec without the devices that are of the ``known`` kinds, and the request for these, "" for none. ``others``: whether GPUs are
    asked for beside it; ``BadInput`` if both are."""
    leased = [name for name in spec.cdi if name.partition("=")[0] in known]
    if leased and others:
        hint = "ask for one or the other"
        raise BadInput(f"device {leased[0]} is leased as a GPU is, and other GPUs are asked for", subject="devices", hint=hint)
    return (replace(spec, cdi=tuple(name for name in spec.cdi if name not in leased)) if leased else spec), ",".join(leased)


def nodes(names: Collection[str]) -> dict[str, frozenset[str]]:
    """Of each of these devices ``c226:128`` and others; none where there is no such device any more."""
    parts = {name: name.partition("=") for name in names}
    found = {kind: read(kind) for kind in {kind for kind, _, _ in parts.values()}}
    return {name: found[kind].devices.get(device, frozenset()) for name, (kind, _, device) in parts.items()}


def read(kind: str) -> Kind:
    """What the files say of a kind now, as far as they are sound and its nodes are there."""
    named = cdi.of_kind(kind)
    everybodys: set[str] = set()
    for node in CONTROL:
        with contextlib.suppress(OSError):
            everybodys.add(_number(node))
    sound = set()
    for file in {file.path: file for file in named.values()}.values():
        with contextlib.suppress(OSError):
            everybodys |= _numbers(file.edits)
            sound.add(file.path)
    found: dict[str, frozenset[str]] = {}
    for name, file in named.items():
        with contextlib.suppress(OSError):
            if file.path in sound:
                found[name] = _numbers(file.devices[name]) - everybodys
    return divide(found)


def divide(named: Mapping[str, frozenset[str]]) -> Kind:
    """Which of these names are devices. Pure."""
    devices: dict[str, frozenset[str]] = {}
    for name in sorted(named, key=lambda name: len(named[name])):  # of as many nodes, in the file's order
        if named[name] and all(named[name].isdisjoint(nodes) for nodes in devices.values()):
            devices[name] = named[name]
    devices = {name: devices[name] for name in named if name in devices}
    names: dict[str, tuple[str, ...]] = {}
    overlaps: dict[str, tuple[str, str]] = {}
    for name, own in named.items():
        parts = [device for device, nodes in devices.items() if nodes <= own]
        whole = bool(own) and frozenset().union(*(devices[device] for device in parts)) == own
        names[name] = tuple(parts) if whole else ()
        if own and not whole:
            overlaps[name] = next((device, min(nodes & own)) for device, nodes in devices.items() if nodes & own)
    return Kind(devices, names, overlaps)


def _numbers(edits: Edits) -> frozenset[str]:
    """``OSError``"""
    return frozenset(_number(node.source) for node in edits.nodes)


def _number(node: str) -> str:
    """``OSError``"""
    about = os.stat(node)
    return f"{'b' if stat.S_ISBLK(about.st_mode) else 'c'}{os.major(about.st_rdev)}:{os.minor(about.st_rdev)}"
