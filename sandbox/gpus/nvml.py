"""What GPUs this host has, read through NVML: the records, and the one place that talks to ``pynvml``.

Every reader opens its own NVML session (``session``, reference counted by the driver, so it nests and works from threads). Opening the
first one can take the driver tens of milliseconds; a daemon holds one open and every read inside it is cheap::

    with session():
        gpus = inventory()          # everything, links and MIG slices too
        ...
        gpus = refresh(gpus)        # the same GPUs, only their processes read again

A question that an old driver (symbol missing) or an old GPU (not supported) cannot answer leaves its field at "unknown"; it is never an
error. A host with no driver at all is ``GpuDriverMissing``.

With ``DOCKLESS_SIMULATED_GPUS`` set, ``native/simulated_nvml.c`` is loaded first; it carries the SONAME libnvidia-ml.so.1, so the real
pynvml finds it in place of the driver's. What tells the two apart is a symbol of the library itself, not the variable.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dockless.base import paths
from dockless.base.dataclass import dataclass, replace
from dockless.base.typing import Any
from dockless.errors import BadInput, GpuDriverMissing, GpuError
from dockless.sandbox.gpus.attempt import attempt
from dockless.sandbox.gpus.topology import Link, bus_id, read_links
from dockless.sandbox.gpus.watch import trouble

SIMULATE = "DOCKLESS_SIMULATED_GPUS"
_KIND = "[1-9][0-9]?x[1-9][0-9]{0,5}[MGT](:[A-Za-z0-9-]{1,20})?"
_SIMULATE_GRAMMAR = re.compile(
    rf"{_KIND}(\+{_KIND})*(,(nvlink=[1-9][0-9]?|mig=[1-7]|(busy|ecc|lost)=[0-9]{{1,2}}|cuda=[1-9][0-9]?\.[0-9]|old|limits"
    r"|host=(?P<host>[a-z0-9]{1,20})))*\Z"
)
_MOST_SIMULATED = 99
_MARK = "dockless_simulated_nvml"  # exported by the stand-in only
_RESERVED = 1 << 30
"""Bytes that a driver may keep of a GPU, where it does not say."""
_LITTLE = 64 << 20
"""Bytes below which a context for graphics is taken for one of a display server."""
_MIG_MINORS = Path("/proc/driver/nvidia-caps/mig-minors")


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a context on a GPU, for computing or for graphics. ``pid``: in the host's PID namespace; ``memory``: bytes, None where
    not told; ``gi``: the MIG GPU instance it runs in, None on a whole GPU. ``display``: it belongs to the host's display, and leaves the
    GPU free: it has no context but for graphics, on a GPU that shows a display, or less than 64 MiB, for a display server keeps some MiB
    of each GPU that it finds."""

    pid: int
    memory: int | None = None
    gi: int | None = None
    display: bool = False


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One MIG slice: a GPU instance ``gi`` and a compute instance ``ci`` in it. ``memory``: bytes. ``gi_cap``/``ci_cap``: minors of the
    two /dev/nvidia-caps nodes that open it, None where the kernel does not list them."""

    uuid: str
    gi: int
    ci: int
    memory: int
    model: str = ""
    gi_cap: int | None = None
    ci_cap: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG slice of it (then ``parent`` is the GPU's UUID, ``mig`` holds that slice alone and ``minor`` is the parent's).

    ``minor`` names /dev/nvidia<minor>; it is **not** the index. ``memory``: bytes. ``pci_bus_id``: as in /sys/bus/pci/devices.
    ``numa_node``: of the nearest processors, None if unknown. ``links``: to every other GPU. ``mig_enabled``: the GPU is divided, its
    slices are used and not the whole. ``simulated``: made up by ``DOCKLESS_SIMULATED_GPUS``. ``trouble``: why it is not fit for use.
    """

    index: int
    uuid: str
    minor: int
    model: str
    memory: int
    pci_bus_id: str = ""
    numa_node: int | None = None
    mig: tuple[MigInstance, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    simulated: bool = False
    links: tuple[Link, ...] = ()
    mig_enabled: bool = False
    parent: str = ""
    trouble: str = ""

    @property
    def used_by(self) -> tuple[GpuProcess, ...]:
        """Its processes, without those of the host's display."""
        return tuple(process for process in self.processes if not process.display)

    def __str__(self) -> str:
        """``GPU 0 Simulated GPU, 80.0 GiB, GPU-… (simulated)``"""
        kind = "MIG slice of GPU" if self.parent else "GPU"
        note = " (simulated)" if self.simulated else ""
        return f"{kind} {self.index} {self.model}, {self.memory / 2**30:.1f} GiB, {self.uuid}{note}"


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver behind the inventory. ``cuda``: newest CUDA it supports, like ``13.0``; ``lost``: indices that did not answer."""

    version: str
    cuda: str
    count: int
    lost: tuple[int, ...] = ()
    simulated: bool = False


@contextmanager
def session() -> Iterator[Any]:
    """An initialised ``pynvml``, shut down again at the end; nests, and may be held open by a daemon.

    Errors: ``GpuDriverMissing`` without a driver, ``BadInput`` for a malformed simulation and malformed settings, ``GpuError`` for a driver
    that is broken.
    """
    import pynvml  # type: ignore[import-untyped]

    if os.environ.get(SIMULATE):
        _load_stand_in(pynvml)
    elif pynvml.nvmlLib is None:
        _load_installed()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _init_error(pynvml, error) from error
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def inventory(*, processes: bool = True, links: bool = True, only: Collection[str] = ()) -> tuple[Gpu, ...]:
    """Every GPU of this host that answers, by index. ``links=False`` leaves that field empty, ``processes=False`` that and ``trouble``
    (cheaper). ``only``: the GPUs that have these UUIDs, or slices with them; where they are there nothing is asked about others, one of
    which may hang.

    Errors: as ``session``.
    """
    with session() as nvml:
        simulated = is_simulated(nvml)
        caps = _mig_caps(simulated)
        handles = [(index, handle) for index, handle in _those(nvml, only) or _handles(nvml) if handle is not None]
        read = [(_read(nvml, index, handle, simulated, caps, processes), handle) for index, handle in handles]
        read = [(gpu, handle) for gpu, handle in read if gpu.uuid]  # without a name it cannot be leased: lost while being read
        joined = read_links(nvml, attempt, [(g.uuid, g.pci_bus_id, h) for g, h in read]) if links else {}
        return tuple(replace(gpu, links=joined.get(gpu.uuid, ())) for gpu, _ in read)


def refresh(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The same GPUs with their processes and troubles read again, and nothing else: the cheap look for a loop."""
    with session() as nvml:
        found = ((gpu, attempt(None, nvml.nvmlDeviceGetHandleByUUID, gpu.uuid)) for gpu in gpus)
        return tuple(
            replace(gpu, processes=_processes(nvml, handle) if handle else (), trouble=_trouble(nvml, gpu, handle)) for gpu, handle in found
        )


def _trouble(nvml: Any, gpu: Gpu, handle: Any) -> str:
    """Of a slice that is there: that of its GPU."""
    return trouble(nvml, attempt(None, nvml.nvmlDeviceGetHandleByUUID, gpu.parent) if gpu.parent and handle else handle)


def shareable(gpus: Iterable[Gpu]) -> dict[str, int]:
    """The MiB of each whole GPU that several programs can have together: all but what its driver keeps for itself. Left out are GPUs that
    take one program at a time, and those whose driver does not tell what is on them. Errors: as ``session``."""
    found = {}
    with session() as nvml:
        for gpu in gpus:
            handle = None if gpu.parent or gpu.mig_enabled else attempt(None, nvml.nvmlDeviceGetHandleByUUID, gpu.uuid)
            if handle is None or attempt(0, nvml.nvmlDeviceGetComputeMode, handle) != nvml.NVML_COMPUTEMODE_DEFAULT:
                continue
            if attempt(None, nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle) is None:
                continue
            memory = attempt(None, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
            found[gpu.uuid] = gpu.memory - (_RESERVED if memory is None else int(memory.reserved)) >> 20
    return found


def driver() -> Driver:
    """Version and state of the driver. Errors: as ``session``."""
    with session() as nvml:
        handles = _handles(nvml)
        return Driver(
            version=driver_version(),
            cuda=_cuda(nvml),
            count=len(handles),
            lost=tuple(index for index, handle in handles if handle is None),
            simulated=is_simulated(nvml),
        )


def driver_version() -> str:
    """Without a question to any GPU. Errors: as ``session``."""
    with session() as nvml:
        return str(attempt("", nvml.nvmlSystemGetDriverVersion))


def _cuda(nvml: Any) -> str:
    cuda = attempt(0, nvml.nvmlSystemGetCudaDriverVersion)
    return f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""


def facts(gpus: Iterable[Gpu]) -> dict[str, str]:
    """What an image may ask of all of these GPUs: ``cuda`` (of their driver), ``arch``, ``brand``; "" for what is not known. Errors: as
    ``session``."""
    with session() as nvml:
        handles = [attempt(None, nvml.nvmlDeviceGetHandleByUUID, gpu.parent or gpu.uuid) for gpu in gpus]
        arches = [attempt(None, nvml.nvmlDeviceGetCudaComputeCapability, handle) for handle in handles if handle is not None]
        brands = {attempt(None, nvml.nvmlDeviceGetBrand, handle) for handle in handles if handle is not None}
        return {
            "cuda": _cuda(nvml),
            "arch": "{}.{}".format(*min(arches)) if arches and None not in arches else "",
            "brand": brand_names(nvml).get(next(iter(brands)), "") if len(brands) == 1 else "",
        }


def brand_names(nvml: Any) -> dict[int, str]:
    """NVML's numbers as images write them: ``geforcertx``."""
    return {getattr(nvml, name): name[11:].replace("_", "").lower() for name in dir(nvml) if name.startswith("NVML_BRAND_")}


def simulating() -> bool:
    """Whether ``DOCKLESS_SIMULATED_GPUS`` asks for made-up GPUs."""
    return bool(os.environ.get(SIMULATE))


def simulated_host() -> str:
    """Where simulated GPUs are: on the host that ``host=NAME`` names, else on one of this DOCKLESS_HOME; empty for real ones. A name that
    ends in a slash, of 21 characters at most."""
    wanted = os.environ.get(SIMULATE)
    if not wanted:
        return ""
    found = _SIMULATE_GRAMMAR.match(wanted)
    if found is not None and found["host"]:
        return f"{found['host']}/"
    return f"{hashlib.blake2b(os.fsencode(paths.runtime()), digest_size=10).hexdigest()}/"


def is_simulated(nvml: Any) -> bool:
    """Whether the library that pynvml loaded is the stand-in: asked of the library itself."""
    return hasattr(nvml.nvmlLib, _MARK)


def _handles(nvml: Any) -> list[tuple[int, Any]]:
    """(index, handle); handle None for a GPU that fell off the bus or that this user may not open."""
    return [(i, attempt(None, nvml.nvmlDeviceGetHandleByIndex, i)) for i in range(attempt(0, nvml.nvmlDeviceGetCount))]


def _those(nvml: Any, uuids: Iterable[str]) -> list[tuple[int, Any]]:
    """Of the GPUs with these UUIDs, or with slices that have them; none where one of them is not there."""
    found = {}
    for uuid in uuids:
        handle = attempt(None, nvml.nvmlDeviceGetHandleByUUID, uuid)
        if handle is not None and uuid.upper().startswith("MIG-"):
            handle = attempt(None, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
        index = None if handle is None else attempt(None, nvml.nvmlDeviceGetIndex, handle)
        if index is None:
            return []
        found[index] = handle
    return sorted(found.items())


def _read(nvml: Any, index: int, handle: Any, simulated: bool, caps: dict[str, int] | None, processes: bool) -> Gpu:
    memory = attempt(None, nvml.nvmlDeviceGetMemoryInfo, handle)
    pci = attempt(None, nvml.nvmlDeviceGetPciInfo, handle)
    address = bus_id(pci) if pci is not None else ""
    minor = attempt(index, nvml.nvmlDeviceGetMinorNumber, handle)
    mode = attempt((0, 0), nvml.nvmlDeviceGetMigMode, handle)
    divided = bool(mode[0])
    return Gpu(
        index=index,
        uuid=attempt("", nvml.nvmlDeviceGetUUID, handle),
        minor=minor,
        model=attempt("NVIDIA GPU", nvml.nvmlDeviceGetName, handle),
        memory=int(memory.total) if memory is not None else 0,
        pci_bus_id=address,
        numa_node=_numa_node(nvml, handle, address),
        mig=_mig(nvml, handle, minor, simulated, caps) if divided else (),
        processes=_processes(nvml, handle) if processes else (),
        simulated=simulated,
        mig_enabled=divided,
        trouble=trouble(nvml, handle) if processes else "",
    )


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    """Those that compute, clients of MPS too, and those that draw. A driver older than R450 cannot be asked: it shows none."""
    found: dict[int, GpuProcess] = {}
    for item in _listed(nvml, handle, "Graphics"):
        memory = None if item.usedGpuMemory is None else int(item.usedGpuMemory)
        shown = (memory or 0) < _LITTLE or bool(attempt(0, nvml.nvmlDeviceGetDisplayActive, handle))
        found[item.pid] = GpuProcess(int(item.pid), memory, _instance(item), shown)
    for item in (*_listed(nvml, handle, "Compute"), *_listed(nvml, handle, "MPSCompute")):
        told = [int(one) for one in (item.usedGpuMemory, found[item.pid].memory if item.pid in found else None) if one is not None]
        found[item.pid] = GpuProcess(int(item.pid), max(told, default=None), _instance(item))
    return tuple(found[pid] for pid in sorted(found))


def _listed(nvml: Any, handle: Any, kind: str) -> Any:
    name = f"nvmlDeviceGet{kind}RunningProcesses_v3"
    listed = attempt(None, getattr(nvml, name), handle)
    return attempt((), getattr(nvml, name.replace("_v3", "_v2"), tuple), handle) if listed is None else listed


def _instance(item: Any) -> int | None:
    gi = getattr(item, "gpuInstanceId", 0xFFFFFFFF)
    return None if gi == 0xFFFFFFFF else int(gi)


def _numa_node(nvml: Any, handle: Any, address: str) -> int | None:
    """The node of the GPU's PCIe slot. (nvmlDeviceGetNumaNodeId is another thing: the node that a Grace GPU's own memory forms.)"""
    try:
        node = int(Path(f"/sys/bus/pci/devices/{address}/numa_node").read_text())
    except (OSError, ValueError):
        masks = attempt((), nvml.nvmlDeviceGetMemoryAffinity, handle, 4, nvml.NVML_AFFINITY_SCOPE_NODE)
        nodes = [word * 64 + bit for word, mask in enumerate(masks) for bit in range(64) if mask >> bit & 1]
        return nodes[0] if nodes else None
    return node if node >= 0 else None


def _mig(nvml: Any, handle: Any, minor: int, simulated: bool, caps: dict[str, int] | None) -> tuple[MigInstance, ...]:
    slices = []
    for number in range(attempt(0, nvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
        part = attempt(None, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if part is None:
            continue
        gi = attempt(None, nvml.nvmlDeviceGetGpuInstanceId, part)
        ci = attempt(None, nvml.nvmlDeviceGetComputeInstanceId, part)
        uuid = attempt("", nvml.nvmlDeviceGetUUID, part)
        if gi is None or ci is None or not uuid:
            continue
        memory = attempt(None, nvml.nvmlDeviceGetMemoryInfo, part)
        slices.append(
            MigInstance(
                uuid=uuid,
                gi=gi,
                ci=ci,
                memory=int(memory.total) if memory is not None else 0,
                model=attempt("MIG", nvml.nvmlDeviceGetName, part),
                gi_cap=_cap_minor(caps, minor, f"gi{gi}/access", 3 + 135 * minor + 9 * gi if simulated else None),
                ci_cap=_cap_minor(caps, minor, f"gi{gi}/ci{ci}/access", 4 + 135 * minor + 9 * gi + ci if simulated else None),
            )
        )
    return tuple(slices)


def _cap_minor(caps: dict[str, int] | None, minor: int, name: str, made_up: int | None) -> int | None:
    """The minor behind one capability. Made-up GPUs use the numbering of the real driver: 15 GPU instances, 8 compute instances each."""
    return made_up if caps is None else caps.get(f"gpu{minor}/{name}")


def _mig_caps(simulated: bool) -> dict[str, int] | None:
    if simulated:
        return None
    try:
        return parse_mig_minors(_MIG_MINORS.read_text())
    except OSError:
        return {}


def parse_mig_minors(text: str) -> dict[str, int]:
    """``/proc/driver/nvidia-caps/mig-minors``: lines like ``gpu0/gi1/access 12`` or ``config 1``; gpuN is the GPU's minor."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def stand_in_library() -> Path:
    """Where the build puts the stand-in for libnvidia-ml.so.1 (looked up without importing the extension beside it)."""
    spec = importlib.util.find_spec("dockless.native")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0] if places else ".") / "simulated" / "libnvidia-ml.so.1"


def _load_stand_in(pynvml: Any) -> None:
    wanted = os.environ.get(SIMULATE, "")
    numbers = [kind.partition("x")[0] for kind in wanted.partition(",")[0].split("+")]
    if not _SIMULATE_GRAMMAR.match(wanted) or sum(map(int, numbers)) > _MOST_SIMULATED:
        raise BadInput(
            f"{SIMULATE}={wanted[:80]!r} does not describe simulated GPUs",
            subject=SIMULATE,
            hint="write COUNTxMEMORY, like 4x80G or 2x80G:H100+2x40G, with ',nvlink=GROUP', ',mig=SLICES', ',busy=INDEX', ',ecc=INDEX',"
            " ',lost=INDEX', ',cuda=12.4', ',old', ',limits' or ',host=NAME' after it; 99 GPUs are the most",
        )
    if pynvml.nvmlLib is not None:
        if not is_simulated(pynvml):
            raise GpuError(
                f"{SIMULATE} is set, but this process has loaded the real NVML already",
                subject=SIMULATE,
                hint="set the variable before the process starts",
            )
        return
    _load(str(stand_in_library()), "the simulated NVML library", "build it with 'make build', or unset " + SIMULATE)


def _load_installed() -> None:
    """The driver's own library where the driver lies apart from the host's files, which the linker's path does not lead to. Where it is not
    there, pynvml goes by that path."""
    from dockless.sandbox.gpus import driver_files

    root = driver_files.configured_root()
    if root != "/" and (path := driver_files.find_library(root, "libnvidia-ml.so.1")):
        _load(path, "the NVIDIA driver's library", "see gpus.driver_root in dockless.toml")


def _load(path: str, what: str, hint: str) -> None:
    """By path and RTLD_GLOBAL: afterwards dlopen("libnvidia-ml.so.1") finds this one by its SONAME, whatever ld.so would pick."""
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise GpuError(f"{what} does not load: {error}", subject=path, hint=hint) from error


def _init_error(pynvml: Any, error: Any) -> GpuError:
    if error.value in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
        what = "its kernel module is not loaded"
        if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            what = "libnvidia-ml.so.1 is not installed"
        elif is_simulated(pynvml):  # loaded once, it stays in this process under the driver's name
            what = f"this process has loaded the simulated one, and {SIMULATE} is no longer set"
        return GpuDriverMissing(
            f"no NVIDIA driver on this host: {what}",
            subject="libnvidia-ml.so.1",
            hint=f"install the NVIDIA driver (and 'modprobe nvidia'), or try without GPUs: {SIMULATE}=4x80G",
        )
    hints = {
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was updated under its running module: reboot, or reload the nvidia modules",
        pynvml.NVML_ERROR_NO_PERMISSION: "its nodes are closed to this user, see /dev/nvidiactl: `dockless submit` asks root's daemon",
    }
    return GpuError(
        f"the NVIDIA driver does not start: {error}", subject="NVML", hint=hints.get(error.value, "look at 'nvidia-smi' and 'dmesg'")
    )
