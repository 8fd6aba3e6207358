"""How near two GPUs are to each other, and which of the free ones sit best together.

NVML answers two questions per pair: do NVLinks join them (and how many), and what is the lowest thing on the PCIe tree above both.
Both become one small ranked ``Link``; the names are those of ``nvidia-smi topo -m``::

    rank 0  NVLINK   joined by NVLinks, directly or through NVSwitch; ``width`` counts them
    rank 1  BOARD    two chips of one board
    rank 2  PIX      one PCIe switch between them
    rank 3  PXB      several PCIe switches
    rank 4  PHB      a PCIe host bridge
    rank 5  NODE     the interconnect between host bridges of one NUMA node
    rank 6  SYS      the link between processors, or nothing known

``best_set`` is the one packing rule: it knows only names and distances, so the scheduler's policy calls it with its own data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

from dockless.base.dataclass import dataclass
from dockless.base.typing import Any, TypeVar

KINDS = ("NVLINK", "BOARD", "PIX", "PXB", "PHB", "NODE", "SYS")
FARTHEST = KINDS.index("SYS")

_ANCESTORS = {0: "BOARD", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}  # nvmlGpuTopologyLevel_t
_EXHAUSTIVE = 4000  # more combinations than this and best_set grows sets greedily instead

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Link:
    """The way from one GPU to ``peer`` (a UUID). ``rank``: 0 nearest, see ``KINDS``; ``width``: NVLinks in parallel, 0 for PCIe."""

    peer: str
    kind: str
    rank: int
    width: int = 0


def link(peer: str, kind: str, width: int = 0) -> Link:
    """A ``Link`` with the rank that belongs to its kind."""
    return Link(peer, kind, KINDS.index(kind), width)


@dataclass(frozen=True, slots=True)
class _NvLinks:
    """One GPU's active NVLinks: how many lead to each remote PCI address, and how many to switches."""

    remote: Mapping[str, int]
    to_switch: int


def read_links(nvml: Any, attempt: Callable[..., Any], devices: Sequence[tuple[str, str, Any]]) -> dict[str, tuple[Link, ...]]:
    """Links of every device to every other. ``devices``: (uuid, pci bus id, NVML handle). ``attempt(default, f, *args)`` calls NVML
    and gives ``default`` where this driver or this GPU has no answer. Reads n(n-1)/2 pairs and up to 36 links of each GPU.
    """
    if len(devices) < 2:
        return {uuid: () for uuid, _, _ in devices}
    nvlinks = [_read_nvlinks(nvml, attempt, handle) for _, _, handle in devices]
    found: dict[str, list[Link]] = {uuid: [] for uuid, _, _ in devices}
    for (i, (uuid_a, bus_a, a)), (j, (uuid_b, bus_b, b)) in combinations(enumerate(devices), 2):
        width = _nvlink_width(nvml, attempt, (nvlinks[i], bus_a, a), (nvlinks[j], bus_b, b))
        kind = "NVLINK" if width else _ANCESTORS.get(attempt(50, nvml.nvmlDeviceGetTopologyCommonAncestor, a, b), "SYS")
        found[uuid_a].append(link(uuid_b, kind, width))
        found[uuid_b].append(link(uuid_a, kind, width))
    return {uuid: tuple(links) for uuid, links in found.items()}


def _read_nvlinks(nvml: Any, attempt: Callable[..., Any], handle: Any) -> _NvLinks:
    remote: dict[str, int] = {}
    to_switch = 0
    for number in range(nvml.NVML_NVLINK_MAX_LINKS):
        active = attempt(None, nvml.nvmlDeviceGetNvLinkState, handle, number)
        if active is None:  # past the last link of this model, or no NVLink at all
            break
        if not active:
            continue
        if attempt(None, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            to_switch += 1
            continue
        info = attempt(None, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
        if info is not None:
            address = bus_id(info)
            remote[address] = remote.get(address, 0) + 1
    return _NvLinks(remote, to_switch)


def _nvlink_width(nvml: Any, attempt: Callable[..., Any], one: tuple[_NvLinks, str, Any], other: tuple[_NvLinks, str, Any]) -> int:
    """NVLinks between two GPUs: those that name the other's address, else those of both that end in switches they share."""
    (links_a, bus_a, a), (links_b, bus_b, b) = one, other
    direct = links_a.remote.get(bus_b, 0) or links_b.remote.get(bus_a, 0)
    if direct:
        return direct
    # A driver too old to tell a switch from a GPU still gives the switch's address: two GPUs that name the same third are joined by it.
    shared = sum(min(count, links_b.remote[address]) for address, count in links_a.remote.items() if address in links_b.remote)
    width = shared or min(links_a.to_switch, links_b.to_switch)
    # Links into a switch are only a path if the fabric routes them; a driver that says peer-to-peer over NVLink is not OK knows better.
    status = attempt(None, nvml.nvmlDeviceGetP2PStatus, a, b, nvml.NVML_P2P_CAPS_INDEX_NVLINK) if width else None
    return width if status in (None, nvml.NVML_P2P_STATUS_OK) else 0


def bus_id(info: Any) -> str:
    """The PCI address of an ``nvmlPciInfo_t`` as sysfs spells it, ``0000:17:00.0``; falls back on the old field of old drivers."""
    raw = info.busId or info.busIdLegacy
    text = (raw.decode() if isinstance(raw, bytes) else str(raw)).lower()
    domain, _, rest = text.partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}"
    except ValueError:
        return text


def best_set(free: Iterable[T], count: int, distance: Callable[[T, T], float]) -> tuple[T, ...]:
    """``count`` of ``free`` that are nearest to each other and, among equals, leave the nearest rest behind; then the first in order.

    The second rule is best fit: with pairs {0,1} {2,3} joined and 0, 2, 3 free, one GPU is taken from the broken pair. Fewer than
    ``count`` free: an empty tuple. Exact up to some thousand combinations (any 8-GPU host), greedy above.
    """
    pool = list(free)
    if count <= 0 or len(pool) < count:
        return ()
    size = len(pool)
    table = [[0.0 if i == j else distance(pool[i], pool[j]) for j in range(size)] for i in range(size)]
    everything = range(size)

    def cost(members: Sequence[int]) -> float:
        return sum(table[i][j] for i, j in combinations(members, 2))

    def score(members: tuple[int, ...]) -> tuple[float, float, tuple[int, ...]]:
        inside = set(members)
        return cost(members), cost([i for i in everything if i not in inside]), members

    if math.comb(size, count) <= _EXHAUSTIVE:
        sets: Iterable[tuple[int, ...]] = combinations(everything, count)
    else:
        sets = (_grow(seed, count, table) for seed in everything)
    return tuple(pool[i] for i in min(sets, key=score))


def _grow(seed: int, count: int, table: Sequence[Sequence[float]]) -> tuple[int, ...]:
    members = [seed]
    while len(members) < count:
        rest = (i for i in range(len(table)) if i not in members)
        members.append(min(rest, key=lambda i: (sum(table[i][j] for j in members), i)))
    return tuple(sorted(members))
