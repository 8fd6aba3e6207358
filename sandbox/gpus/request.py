"""What somebody wants (``--gpus``), and which GPUs that becomes.

The grammar is Docker's (docker/cli ``opts/gpus.go``), one line of CSV fields, with the quotes left out where they are not needed::

    2 | all | count=2             that many GPUs; all of them
    device=0,2                    these, by index (Docker: '"device=0,2"', accepted too), by UUID, or GPU:SLICE for MIG
    GPU-8a4f…[,GPU-…]  MIG-…      these, by UUID, or by so much of it that it is one's alone
    device=nvidia.com/gpu=0       this, by the name that the Container Device Interface gives it
    memory=20G                    each has at least so much; of one GPU a MIG slice that has it will do
    class=H100  class=1g.10gb     each is of that class: a model, a MIG profile, or 'whole' (no slice)
    class=amd.com/gpu             each is a device of that kind, see ``handed_out``
    amd.com/gpu=0,amd.com/gpu=1   these, by their names
    capabilities=compute,utility  driver=nvidia  options=key=value     checked and kept

Two differences, on purpose. **N means N free GPUs**: Docker's ``--gpus 2`` is always the first two, whoever computes there. Free is:
nobody holds a lease on it, and no process uses it but the host's display. ``choose`` takes nearest neighbours among the free ones. And
Docker's ``-1`` is refused: taking every GPU of a shared host is said with the word.

A GPU that MIG divides is not given whole; its slices are GPUs of their own here (``units``), asked for by name, profile or memory.

A model is one whose name has the words of the class next to each other, capitals or not: ``H100`` and ``h100-80gb`` are an ``NVIDIA H100
80GB HBM3``, and ``A10`` is no ``NVIDIA A100``.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from dockless.base import device_names
from dockless.base.dataclass import dataclass, replace
from dockless.base.settings import GPU_CLASS
from dockless.base.units import format_size, parse_size
from dockless.errors import BadInput, NotEnoughGpus, UnknownGpu
from dockless.sandbox.gpus.nvml import Gpu
from dockless.sandbox.gpus.topology import FARTHEST, best_set

ALL = -1
CAPABILITIES = frozenset({"gpu", "nvidia", "compute", "compat32", "graphics", "utility", "video", "display", "ngx", "all"})

_HEX = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_DEVICE = re.compile(rf"{device_names.KIND}={device_names.NAME}\Z")
_PART = "[0-9a-f]{4,8}(?:-[0-9a-f]{0,4}){0,3}(?:-[0-9a-f]{0,12})?"
"""A UUID, or its beginning, which is told from an index by its length."""
_NAME = re.compile(rf"(?:(?:GPU|MIG)-{_PART}|MIG-GPU-{_HEX}/[0-9]{{1,2}}/[0-9]{{1,2}})\Z", re.IGNORECASE)
_COUNT = re.compile(r"[0-9]{1,6}\Z")
_MORE_DEVICES = re.compile(r"(?!all\Z)")
_MORE_CAPABILITIES = re.compile(r"(?!(all|-?[0-9]+)\Z)")
_NEVER = re.compile(r"(?!)")
_INDEX = re.compile(r"[0-9]{1,4}(:[0-9]{1,2})?\Z")
_KEYS = ("count", "device", "memory", "class", "capabilities", "driver", "options")
_PROFILE = re.compile(r"([0-9]c\.)?[0-9]g\.[0-9]{1,4}gb[a-z0-9.+-]*\Z")
_WORD = re.compile(r"[a-z0-9]+")
_OF_NVIDIA = "nvidia.com/gpu="
_NONE: Mapping[str, str] = {}
WHOLE = "whole"
"""The class of all GPUs that are no slices."""
_HINT = "write a number of GPUs, 'all', 'device=0,2' or GPU UUIDs"


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """A parsed wish. ``count``: how many, ``ALL`` (-1) for every one, 0 when ``devices`` names them (indices, ``GPU:SLICE`` or UUIDs).
    ``memory``: bytes that each has at least. ``gpu_class``: what each is, "" for any."""

    count: int = 1
    devices: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    driver: str = ""
    options: tuple[tuple[str, str], ...] = ()
    memory: int = 0
    gpu_class: str = ""

    @property
    def of_devices(self) -> bool:
        """Whether it is one for devices that are no GPUs of NVIDIA."""
        return "/" in self.gpu_class or any(map(device_names.is_device, self.devices))

    def __str__(self) -> str:
        """``2 GPUs``, ``all GPUs``, ``GPU 0, 2``, ``1 GPU with 20G``, ``2 GPUs of class H100``: for reasons and reports."""
        least = f" of class {self.gpu_class}" if self.gpu_class else ""
        least += f" with {format_size(self.memory)}" if self.memory else ""
        if self.devices:
            return ("device " if self.of_devices else "GPU ") + ", ".join(self.devices) + least
        return f"all GPUs{least}" if self.count == ALL else f"{self.count} GPU{'s' if self.count != 1 else ''}{least}"


def parse_request(text: str | int) -> GpuRequest:
    """The value of ``--gpus``. Errors: ``BadInput``, for 0 as well: no GPUs is said by not asking."""
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise _bad(text, "is neither text nor a number")
    found: dict[str, list[str]] = {}
    for key, values in _fields(str(text)):
        if key in found:
            raise _bad(text, "gives the number of GPUs twice" if key == "count" else f"gives '{key}' twice")
        found[key] = values
    if "count" in found and "device" in found:
        raise _bad(text, "gives both a number of GPUs and names of GPUs")
    if not found:
        raise _bad(text, "asks for nothing")
    devices = tuple(_device(text, item) for item in found.get("device", ()))
    count = 0 if devices else _count(text, found["count"][0]) if "count" in found else 1
    if devices == ("all",):
        count, devices = ALL, ()
    if "all" in devices or len(set(devices)) < len(devices):
        raise _bad(text, "names a GPU twice")
    driver = found.get("driver", [""])[0]
    if driver not in ("", "nvidia"):
        raise _bad(text, f"asks for driver {driver[:40]!r}; only 'nvidia' is known")
    if len(set(map(device_names.is_device, devices))) > 1:
        raise _bad(text, "names GPUs, and devices of another kind")
    memory = parse_size(found["memory"][0], "memory of a GPU") if "memory" in found else 0
    if "memory" in found and (not memory or count == ALL):
        raise _bad(text, "asks for no memory" if not memory else "asks for all GPUs, and for memory")
    gpu_class = found.get("class", [""])[0]
    if "class" in found and (devices or not re.fullmatch(GPU_CLASS, gpu_class)):
        raise _bad(text, "names GPUs, and a class" if devices else f"asks for class {gpu_class[:40]!r}, which is none")
    return GpuRequest(count, devices, _capabilities(text, found), driver, _options(text, found.get("options", [])), memory, gpu_class)


def profile(unit: Gpu) -> str:
    """The MIG profile of a slice, ``1g.10gb``; "" for a whole GPU, and where the driver does not tell it."""
    name = unit.model.rpartition("MIG ")[2].lower()
    return name if unit.parent and _PROFILE.match(name) else ""


def is_profile(gpu_class: str) -> bool:
    """Whether that is the class of the slices of a MIG profile."""
    return _PROFILE.match(gpu_class.lower()) is not None


def is_of(unit: Gpu, gpu_class: str) -> bool:
    """Whether it is of that class."""
    if is_profile(gpu_class):
        return profile(unit) == gpu_class.lower()
    if unit.parent or gpu_class.lower() == WHOLE:
        return not unit.parent
    wanted, words = (_WORD.findall(name.lower()) for name in (gpu_class, unit.model))
    return any(words[at : at + len(wanted)] == wanted for at in range(len(words)))


def classes(inventory: Iterable[Gpu]) -> str:
    """What there is, for people: ``2 NVIDIA H100, 4 1g.10gb``."""
    found = Counter(profile(unit) or unit.model for unit in units(inventory))
    return ", ".join(f"{count} {name}" for name, count in found.items())


def units(inventory: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """What can be leased: every undivided GPU, and every slice of the divided ones as a ``Gpu`` of its own (with ``parent``)."""
    found: list[Gpu] = []
    for gpu in inventory:
        if not gpu.mig_enabled or gpu.parent:
            found.append(gpu)
            continue
        for part in gpu.mig:
            inside = tuple(p for p in gpu.processes if p.gi in (None, part.gi))
            found.append(
                replace(
                    gpu,
                    uuid=part.uuid,
                    model=part.model or gpu.model,
                    memory=part.memory,
                    mig=(part,),
                    processes=inside,
                    links=(),
                    parent=gpu.uuid,
                )
            )
    return tuple(found)


def find(uuids: Iterable[str], inventory: Collection[Gpu]) -> tuple[Gpu, ...]:
    """The leased units of these UUIDs, in this order. Errors: ``UnknownGpu`` (gone since the lease, or MIG was changed)."""
    known = {unit.uuid.lower(): unit for unit in units(inventory)}
    found = []
    for uuid in uuids:
        if uuid.lower() not in known:
            raise _unknown(uuid, inventory)
        found.append(known[uuid.lower()])
    return tuple(found)


def possible(request: GpuRequest, inventory: Collection[Gpu]) -> int:
    """How many GPUs the request stands for on this host, were all of them free: the check at submit.

    Errors: ``UnknownGpu``, ``NotEnoughGpus`` (more than the host has).
    """
    if request.devices:
        for unit in _named(request, inventory):
            if unit.memory < request.memory:
                raise NotEnoughGpus(
                    f"{request} asked for, {unit.uuid} has {format_size(unit.memory)}", subject=str(request), hint="ask for less memory"
                )
        return len(request.devices)
    pool = candidates(request, inventory)
    there = [unit for unit in units(inventory) if not request.gpu_class or is_of(unit, request.gpu_class)]
    if request.gpu_class and len(there) < max(1, request.count):
        raise NotEnoughGpus(
            f"{request} asked for, this host has {len(there)} of it{_simulated(inventory)}",
            subject=str(request),
            hint=f"its GPUs are {classes(inventory)}" if inventory else "'dockless doctor' says what is found here",
        )
    most = max((unit.memory for unit in there), default=0)
    if request.memory and most and not pool:
        raise NotEnoughGpus(
            f"{request} asked for, the largest of this host has {format_size(most)}{_simulated(inventory)}",
            subject=str(request),
            hint="ask for less memory, or for several GPUs",
        )
    if not pool or len(pool) < request.count:
        divided = sum(1 for gpu in inventory if gpu.mig_enabled and not gpu.parent)
        hint = f"{divided} divided by MIG: ask for its slices by UUID" if divided else f"ask for at most {len(pool)}"
        raise NotEnoughGpus(
            f"{request} asked for, this host has {len(pool)} in all{_simulated(inventory)}",
            subject=str(request),
            hint=hint if pool or divided else "run this on a host with a GPU; 'dockless doctor' says what is found here",
        )
    return len(pool) if request.count == ALL else request.count


def choose(
    request: GpuRequest, inventory: Collection[Gpu], busy: Collection[str] = (), out_of_service: Mapping[str, str] = _NONE
) -> tuple[Gpu, ...]:
    """The units to lease, none of them in ``busy`` (UUIDs of leased units), none with a process that uses it; neighbours preferred.
    ``out_of_service``: why nobody gets these, beside those whose driver finds something wrong.

    Pure: same arguments, same answer. Errors: ``UnknownGpu``, ``NotEnoughGpus`` with who holds what.
    """
    wanted = possible(request, inventory)
    pool = _named(request, inventory) if request.devices else candidates(request, inventory)
    told = (replace(gpu, trouble=gpu.trouble or out_of_service.get(gpu.uuid, "")) for gpu in pool)
    taken = {gpu.uuid: why for gpu in told if (why := why_not_free(gpu, busy))}
    free = [gpu for gpu in pool if gpu.uuid not in taken]
    if len(free) < wanted:
        names = {gpu.uuid: gpu.uuid if gpu.parent or request.of_devices else f"GPU {gpu.index}" for gpu in pool}
        held = "; ".join(f"{names[uuid]} {why}" for uuid, why in taken.items())
        raise NotEnoughGpus(
            f"{request} asked for, {len(free)} of {len(pool)} free{_simulated(inventory)}",
            subject=str(request),
            hint=f"{held}; wait for them (dockless submit), or ask for fewer",
        )
    if request.memory and wanted == 1:  # best fit: a slice before a whole GPU, the smallest that will do
        return (min(free, key=lambda unit: (not unit.parent, unit.memory)),)
    if len(free) == wanted or free[0].parent:  # slices have no links: the first GPU's first
        return tuple(free[:wanted])
    ranks = {(gpu.uuid, link.peer): link.rank - 0.01 * min(link.width, 50) for gpu in free for link in gpu.links}
    return best_set(free, wanted, lambda a, b: ranks.get((a.uuid, b.uuid), FARTHEST))


def why_not_free(gpu: Gpu, busy: Collection[str]) -> str:
    """ "" for a free unit, else the reason in a few words."""
    if gpu.uuid in busy or (gpu.parent and gpu.parent in busy):
        return "is leased"
    if gpu.trouble:
        return f"is out of service: {gpu.trouble}"
    if gpu.used_by:
        pids = ", ".join(str(process.pid) for process in gpu.used_by[:4])
        more = ", …" if len(gpu.used_by) > 4 else ""
        return f"is used by process {pids}{more}, which dockless did not start"
    return ""


def candidates(request: GpuRequest, inventory: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """The units of which a request that names none may get any."""
    pool = [unit for unit in units(inventory) if unit.memory >= request.memory]
    if request.gpu_class:
        return tuple(unit for unit in pool if is_of(unit, request.gpu_class))
    slices = request.count == ALL or (request.memory and request.count == 1)
    return tuple(unit for unit in pool if slices or not unit.parent)


def _named(request: GpuRequest, inventory: Collection[Gpu]) -> tuple[Gpu, ...]:
    found = tuple(_one(name, inventory) for name in request.devices)
    twice = {unit.uuid for unit in found if sum(other.uuid == unit.uuid for other in found) > 1}
    if twice:
        raise BadInput(f"{request} names {', '.join(sorted(twice))} twice", subject=str(request), hint="name each GPU once")
    return found


def _one(name: str, inventory: Collection[Gpu]) -> Gpu:
    """The unit called ``name``: an index, ``GPU:SLICE`` in the order of NVML, a UUID or its beginning, or the old
    ``MIG-GPU-uuid/gi/ci``."""
    name = _in_full(name, inventory)
    parent, _, place = name.partition(":")
    parts = name.lower().split("/")
    for unit in units(inventory):
        if unit.uuid.lower() == name.lower() or (not unit.parent and str(unit.index) == name):
            return unit
        if len(parts) == 3 and [f"mig-{unit.parent.lower()}", *(str(n) for m in unit.mig for n in (m.gi, m.ci))] == parts:
            return unit
    for gpu in inventory:
        if place and str(gpu.index) == parent and int(place) < len(gpu.mig):
            return find((gpu.mig[int(place)].uuid,), inventory)[0]
        if gpu.mig_enabled and not gpu.parent and (gpu.uuid.lower() == name.lower() or str(gpu.index) == name):
            slices = ", ".join(part.uuid for part in gpu.mig)
            raise UnknownGpu(
                f"GPU {name} is divided by MIG and not given whole",
                subject=name,
                hint=f"name its slices: {slices}" if slices else "it has no slices yet: 'nvidia-smi mig -cgi PROFILE -C' makes them",
            )
    raise _unknown(name, inventory)


def _in_full(name: str, inventory: Collection[Gpu]) -> str:
    """The UUID that begins so; anything else as it is. ``BadInput`` where two do."""
    if not _NAME.match(name):
        return name
    found = sorted({gpu.uuid for gpu in (*inventory, *units(inventory)) if gpu.uuid.lower().startswith(name.lower())})
    if len(found) > 1:
        raise BadInput(f"GPU {name} may be {' or '.join(found)}", subject=name, hint="write more of its UUID")
    return found[0] if found else name


def _unknown(name: str, inventory: Collection[Gpu]) -> UnknownGpu:
    kind, is_device, _ = name.partition("=")
    if is_device:
        have = ", ".join(unit.uuid for unit in inventory if unit.model == kind) or "none"
        hint = f"of that kind there are: {have}; 'dockless doctor' says what is wrong with others"
        return UnknownGpu(f"there is no device {name} on this host", subject=name, hint=hint)
    have = ", ".join(str(gpu.index) for gpu in inventory) or "none"
    return UnknownGpu(
        f"no GPU {name} on this host{_simulated(inventory)}",
        subject=name,
        hint=f"its GPUs are {have}; 'dockless info' lists their UUIDs",
    )


def _simulated(inventory: Collection[Gpu]) -> str:
    return " (simulated)" if any(gpu.simulated for gpu in inventory) else ""


def _fields(text: str) -> Iterable[tuple[str, list[str]]]:
    """(key, values) of each field. A bare value after ``device=`` or ``capabilities=`` continues that list, as does a UUID after a UUID."""
    if not text.isascii() or not text.isprintable() or len(text) > 4096:
        raise _bad(text, "contains characters that no request has")
    try:
        cells = next(csv.reader([text.strip()], strict=True), [])
    except csv.Error as error:
        raise _bad(text, f"is not one line of comma-separated fields ({error})") from None
    grouped: list[tuple[str, list[str]]] = []
    continues = _NEVER  # what a bare cell must look like to belong to the list before it
    for cell in (raw.strip() for raw in cells):
        key, equals, value = cell.partition("=")
        if equals and _DEVICE.match(cell):
            grouped += [] if grouped and grouped[-1][0] == "device" else [("device", [])]
            grouped[-1][1].append(cell)
            continues = _NEVER
        elif equals:
            if key not in _KEYS:
                raise _bad(text, f"has an unknown key {key[:40]!r}")
            many = key in ("device", "capabilities", "options")
            grouped.append((key, [part.strip() for part in value.split(",")] if many else [value]))
            continues = {"device": _MORE_DEVICES, "capabilities": _MORE_CAPABILITIES}.get(key, _NEVER)
        elif grouped and continues.match(cell):
            grouped[-1][1].append(cell)
        elif _NAME.match(cell):
            grouped.append(("device", [cell]))
            continues = _NAME
        else:
            grouped.append(("count", [cell]))
            continues = _NEVER
    return grouped


def _count(text: str | int, value: str) -> int:
    if value == "all":
        return ALL
    if value == "-1":
        raise BadInput("-1 is no number of GPUs", subject="-1", hint='for every GPU of the host write: --gpus all (gpus="all")')
    if not _COUNT.match(value):
        raise _bad(text, f"has {value[:40]!r} where a number of GPUs or 'all' is meant")
    if int(value) == 0:
        raise BadInput("0 GPUs asked for", subject="0", hint="leave the request out where no GPUs are wanted")
    return int(value)


def _device(text: str | int, item: str) -> str:
    item = item.removeprefix(_OF_NVIDIA)
    if item.lower() == "all":
        return "all"
    if _INDEX.match(item):
        return ":".join(str(int(part)) for part in item.split(":"))
    if _DEVICE.match(item):
        return item
    if not _NAME.match(item):
        raise _bad(text, f"names {item[:60]!r}, which is neither an index nor a GPU UUID")
    return item[:3].upper() + (item[3:].lower() if item[4:7].upper() != "GPU" else "-GPU" + item[7:].lower())


def _capabilities(text: str | int, found: dict[str, list[str]]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(found.get("capabilities", ())))
    for name in names:
        if name not in CAPABILITIES:
            raise _bad(text, f"asks for capability {name[:40]!r}; known are {', '.join(sorted(CAPABILITIES))}")
    return names


def _options(text: str | int, items: list[str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for item in items:
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise _bad(text, f"has an option {item[:40]!r} that is not key=value")
        pairs.append((key, value))
    return tuple(pairs)


def _bad(text: object, why: str) -> BadInput:
    return BadInput(f"GPU request {str(text)[:80]!r} {why}", subject=str(text)[:80], hint=_HINT)
