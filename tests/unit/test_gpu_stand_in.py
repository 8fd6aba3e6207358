"""The stand-in for NVML, call by call, as nvml.h has them: what it answers, and what it says to a wrong question."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dockless.sandbox.gpus import nvml as gpu_nvml

OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT, NO_DRIVER, NO_FUNCTION = 0, 1, 2, 3, 6, 7, 9, 13
VERSION_MISMATCH = 25
Handle = ctypes.c_void_p


class Pci(ctypes.Structure):
    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "device_id", "subsystem_id")),
        ("id", ctypes.c_char * 32),
    )


class Memory(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


class Memory2(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")))


class Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Running(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint))


LIBRARY: ctypes.CDLL


@pytest.fixture(autouse=True, scope="module")
def library() -> None:
    """Loaded by the first test here: from then on this process finds it under the driver's name."""
    global LIBRARY
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this host has a real NVIDIA driver; this process may have loaded it")
    LIBRARY = ctypes.CDLL(str(gpu_nvml.stand_in_library()))
    LIBRARY.nvmlErrorString.restype = ctypes.c_char_p


@pytest.fixture
def started(monkeypatch) -> Callable[[str], contextmanager]:
    """The library, initialised for these GPUs; it is not any more afterwards."""

    @contextmanager
    def running(text: str) -> Iterator[None]:
        monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", text)
        assert LIBRARY.nvmlInit_v2() == OK
        try:
            yield
        finally:
            assert LIBRARY.nvmlShutdown() == OK
            assert LIBRARY.nvmlShutdown() == UNINITIALIZED

    return running


def gpu(index: int) -> Handle:
    handle = Handle()
    assert LIBRARY.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == OK
    return handle


def part(whole: Handle, index: int) -> Handle:
    handle = Handle()
    assert LIBRARY.nvmlDeviceGetMigDeviceHandleByIndex(whole, index, ctypes.byref(handle)) == OK
    return handle


def number(name: str, *arguments: object) -> int:
    """What a call answers by its last argument; its error, negated."""
    found = ctypes.c_uint(77)
    status = getattr(LIBRARY, name)(*arguments, ctypes.byref(found))
    return -status if status else found.value


def text(name: str, *arguments: object, room: int = 96) -> str | int:
    buffer = ctypes.create_string_buffer(room)
    status = getattr(LIBRARY, name)(*arguments, buffer, room)
    return -status if status else buffer.value.decode()


def filled(name: str, kind: type, *arguments: object) -> ctypes.Structure | int:
    found = kind()
    if kind is Memory2:
        found.version = ctypes.sizeof(Memory2) | 2 << 24
    status = getattr(LIBRARY, name)(*arguments, ctypes.byref(found))
    return -status if status else found


BEFORE = {
    "nvmlSystemGetDriverVersion": (ctypes.create_string_buffer(9), 9),
    "nvmlSystemGetCudaDriverVersion": (ctypes.byref(ctypes.c_int()),),
    "nvmlDeviceGetCount_v2": (ctypes.byref(ctypes.c_uint()),),
    "nvmlDeviceGetHandleByIndex_v2": (0, ctypes.byref(Handle())),
    "nvmlDeviceGetHandleByUUID": (b"x", ctypes.byref(Handle())),
}
ABOUT_A_GPU = {
    **{f"nvmlDeviceGet{name}": (ctypes.byref(ctypes.c_uint()),) for name in ("Index", "MinorNumber", "MaxMigDeviceCount")},
    **{f"nvmlDeviceGet{name}": (ctypes.byref(ctypes.c_uint()),) for name in ("GpuInstanceId", "ComputeInstanceId")},
    **{f"nvmlDeviceGet{name}": (ctypes.create_string_buffer(96), 96) for name in ("UUID", "Name")},
    "nvmlDeviceGetMemoryInfo": (ctypes.byref(Memory()),),
    "nvmlDeviceGetMemoryInfo_v2": (ctypes.byref(Memory2()),),
    "nvmlDeviceGetPciInfo_v3": (ctypes.byref(Pci()),),
    "nvmlDeviceGetUtilizationRates": (ctypes.byref(Rates()),),
    "nvmlDeviceGetTemperature": (0, ctypes.byref(ctypes.c_uint())),
    "nvmlDeviceGetPowerUsage": (ctypes.byref(ctypes.c_uint()),),
    "nvmlDeviceGetTotalEccErrors": (1, 0, ctypes.byref(ctypes.c_ulonglong())),
    "nvmlDeviceGetMemoryAffinity": (1, ctypes.byref(ctypes.c_ulong()), 0),
    "nvmlDeviceGetNvLinkState": (0, ctypes.byref(ctypes.c_uint())),
    "nvmlDeviceGetNvLinkRemoteDeviceType": (0, ctypes.byref(ctypes.c_uint())),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": (0, ctypes.byref(Pci())),
    "nvmlDeviceGetMigMode": (ctypes.byref(ctypes.c_uint()), ctypes.byref(ctypes.c_uint())),
    "nvmlDeviceGetMigDeviceHandleByIndex": (0, ctypes.byref(Handle())),
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": (ctypes.byref(Handle()),),
    "nvmlDeviceGetComputeRunningProcesses_v3": (ctypes.byref(ctypes.c_uint()), ctypes.byref(Running())),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": (ctypes.byref(ctypes.c_uint()), ctypes.byref(Running())),
    "nvmlDeviceGetDisplayActive": (ctypes.byref(ctypes.c_uint()),),
    "nvmlDeviceGetFieldValues": (1, ctypes.create_string_buffer(64)),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": (ctypes.byref(ctypes.c_uint()), None),
}
OF_TWO = {
    "nvmlDeviceGetTopologyCommonAncestor": (ctypes.byref(ctypes.c_uint()),),
    "nvmlDeviceGetP2PStatus": (2, ctypes.byref(ctypes.c_uint())),
}


def test_before_it_is_initialised(started):
    with started("2x8G"):
        handle = gpu(0)
    for name, arguments in BEFORE.items():
        assert getattr(LIBRARY, name)(*arguments) == UNINITIALIZED, name
    for name, arguments in ABOUT_A_GPU.items():
        assert getattr(LIBRARY, name)(handle, *arguments) == UNINITIALIZED, name
    for name, arguments in OF_TWO.items():
        assert getattr(LIBRARY, name)(handle, handle, *arguments) == UNINITIALIZED, name


def test_wrong_arguments(started):
    """No handle, one past the last, one that only a part has or has not, and nowhere to put the answer."""
    with started("2x8G,mig=2,nvlink=2"):
        whole, size = gpu(0), gpu(1).value - gpu(0).value
        beyond = Handle(gpu(1).value + size)
        parts = [part(gpu(1), 0), part(gpu(1), 1)]
        for name, arguments in ABOUT_A_GPU.items():
            call = getattr(LIBRARY, name)
            for wrong in (None, beyond, Handle(whole.value - size), Handle(parts[0].value - size), Handle(parts[1].value + size)):
                assert call(wrong, *arguments) == INVALID, name
            nowhere = [
                0 if isinstance(one, int) and name.endswith("Affinity") else one if isinstance(one, int) else None for one in arguments
            ]
            assert call(parts[0] if "Instance" in name or "FromMig" in name else whole, *nowhere) == INVALID, name
        for name, arguments in OF_TWO.items():
            call = getattr(LIBRARY, name)
            assert [call(whole, None, *arguments), call(None, whole, *arguments)] == [INVALID, INVALID]
            assert call(whole, whole, *(one if isinstance(one, int) else None for one in arguments)) == INVALID
        assert LIBRARY.nvmlDeviceGetCount_v2(None) == LIBRARY.nvmlSystemGetCudaDriverVersion_v2(None) == INVALID
        assert LIBRARY.nvmlDeviceGetHandleByIndex_v2(0, None) == LIBRARY.nvmlDeviceGetHandleByIndex_v2(2, ctypes.byref(Handle())) == INVALID
        assert LIBRARY.nvmlDeviceGetHandleByUUID(None, ctypes.byref(Handle())) == LIBRARY.nvmlDeviceGetHandleByUUID(b"x", None) == INVALID
        for name in ("nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetDeviceHandleFromMigDeviceHandle"):
            assert number(name, whole) == -INVALID
        assert LIBRARY.nvmlDeviceGetMigMode(whole, None, ctypes.byref(ctypes.c_uint())) == INVALID
        assert LIBRARY.nvmlDeviceGetMigMode(whole, ctypes.byref(ctypes.c_uint()), None) == INVALID
        assert LIBRARY.nvmlDeviceGetMemoryAffinity(whole, 1, None, 0) == INVALID
        assert LIBRARY.nvmlDeviceGetMemoryInfo_v2(whole, ctypes.byref(Memory2())) == VERSION_MISMATCH
        assert number("nvmlDeviceGetNumaNodeId", whole) == -NOT_SUPPORTED


@pytest.mark.parametrize(
    "wrong",
    [
        *["0x8G", "100x8G", "-1x8G", "2x0G", "2x1000000M", "2x8K", "2x8", "2x", "x8G", "2x8G,", "2x8G,nvlink", "2x8G,mig=8", "2x8G,mig=-1"],
        *["2x8G+", "+2x8G", "2x8G+x", "60x8G+40x8G", "2x8G:", "2x8G:H_100", "2x8G:a23456789012345678901", "2x8G:H100:A100"],
        *["2x8G,cuda", "2x8G,cuda=12", "2x8G,cuda=12.", "2x8G,mig=1+2x8G"],
        *["2x8G,nvlink=-1", "2x8G,young", "2x8Gold", "2x8G,old,x"],
    ],
)
def test_what_is_no_description(monkeypatch, wrong):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", wrong)
    assert LIBRARY.nvmlInit_v2() == LIBRARY.nvmlInit() == LIBRARY.nvmlInitWithFlags(1) == INVALID
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "")
    assert LIBRARY.nvmlInit_v2() == NO_DRIVER
    monkeypatch.delenv("DOCKLESS_SIMULATED_GPUS")
    assert LIBRARY.nvmlInit_v2() == NO_DRIVER
    assert LIBRARY.nvmlShutdown() == UNINITIALIZED


def test_the_table_changes_only_while_nobody_uses_it(monkeypatch, started):
    with started("2x8G"):
        monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "5x8G")
        assert LIBRARY.nvmlInit() == OK
        assert number("nvmlDeviceGetCount_v2") == 2
        assert LIBRARY.nvmlShutdown() == OK
        assert number("nvmlDeviceGetCount_v2") == 2
    with started("99x999999M"):
        assert number("nvmlDeviceGetCount_v2") == 99
        assert filled("nvmlDeviceGetMemoryInfo", Memory, gpu(98)).total == 999999 << 20


@pytest.mark.parametrize(("unit", "shift"), [("M", 20), ("G", 30), ("T", 40)])
def test_memory(started, unit, shift):
    with started(f"2x6{unit},busy=1,mig=3"):
        whole = gpu(1)
        for name, kind in (("nvmlDeviceGetMemoryInfo", Memory), ("nvmlDeviceGetMemoryInfo_v2", Memory2)):
            free, used = filled(name, kind, gpu(0)), filled(name, kind, whole)
            assert (free.total, free.free, free.used) == (6 << shift, 6 << shift, 0)
            taken = min(1 << 30, 6 << shift)
            assert (used.total, used.free, used.used) == (6 << shift, (6 << shift) - taken, taken)
            slice_ = filled(name, kind, part(whole, 2))
            assert (slice_.total, slice_.free, slice_.used) == (2 << shift, 2 << shift, 0)
        assert filled("nvmlDeviceGetMemoryInfo_v2", Memory2, whole).reserved == 0


def test_names_and_places(started):
    with started("3x8G,mig=2"):
        assert [number("nvmlDeviceGetIndex", gpu(n)) for n in range(3)] == [0, 1, 2]
        assert [number("nvmlDeviceGetMinorNumber", gpu(n)) for n in range(3)] == [1, 2, 0]
        parts = [part(gpu(2), 0), part(gpu(2), 1)]
        assert number("nvmlDeviceGetMinorNumber", parts[0]) == -NOT_SUPPORTED
        assert [number("nvmlDeviceGetIndex", one) for one in parts] == [2, 2]
        assert text("nvmlDeviceGetUUID", gpu(2)) == "GPU-51d01a7e-d000-4000-8000-000000000002"
        assert text("nvmlDeviceGetUUID", parts[1]) == "MIG-51d01a7e-d000-5000-8002-000000000001"
        assert text("nvmlDeviceGetName", gpu(0)) == "Simulated GPU"
        assert text("nvmlDeviceGetName", parts[0]) == "Simulated GPU MIG 3g.4gb"
        assert text("nvmlDeviceGetName", gpu(0), room=14) == "Simulated GPU"
        assert text("nvmlDeviceGetName", gpu(0), room=13) == -INSUFFICIENT
        assert text("nvmlSystemGetDriverVersion") == text("nvmlSystemGetNVMLVersion") == "0.0-simulated"
        assert number("nvmlSystemGetCudaDriverVersion") == number("nvmlSystemGetCudaDriverVersion_v2") == 0
        for n in range(3):
            pci = filled("nvmlDeviceGetPciInfo_v3", Pci, gpu(n))
            assert (pci.domain, pci.bus, pci.device, pci.device_id, pci.subsystem_id) == (0xD0C1, 0x10 + n, 0, 0x10DE, 0)
            assert (pci.legacy, pci.id) == (b"D0C1:%02X:00.0" % (0x10 + n), b"0000D0C1:%02X:00.0" % (0x10 + n))
        found = Handle()
        for handle, uuid in ((gpu(0), "GPU-51D01A7E-d000-4000-8000-000000000000"), (parts[1], "mig-51d01a7e-d000-5000-8002-000000000001")):
            assert LIBRARY.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(found)) == OK and found.value == handle.value
        for uuid in (b"", b"GPU-51d01a7e-d000-4000-8000-000000000003", b"MIG-51d01a7e-d000-5000-8002-000000000002"):
            assert LIBRARY.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(found)) == NOT_FOUND


def test_kinds(started):
    """Their models are shown as simulated ones, also with their slices; slices are of the last."""
    with started("2x80G:H100+1x40G+1x24G:RTX-4090,mig=2,cuda=12.4"):
        sizes = [filled("nvmlDeviceGetMemoryInfo", Memory, gpu(n)).total >> 30 for n in range(4)]
        assert sizes == [80, 80, 40, 24] and number("nvmlDeviceGetCount_v2") == 4
        names = ["Simulated H100", "Simulated H100", "Simulated GPU", "Simulated RTX-4090"]
        assert [text("nvmlDeviceGetName", gpu(n)) for n in range(4)] == names
        assert text("nvmlDeviceGetName", part(gpu(3), 1)) == "Simulated RTX-4090 MIG 3g.12gb"
        assert [number("nvmlDeviceGetMinorNumber", gpu(n)) for n in range(4)] == [1, 2, 3, 0]
        assert number("nvmlSystemGetCudaDriverVersion_v2") == 12040
    with started("1x80G"):
        assert number("nvmlDeviceGetCount_v2") == 1 and number("nvmlSystemGetCudaDriverVersion_v2") == 0


def test_mig(started):
    with started("2x8G,mig=2"):
        modes = []
        for n in range(2):
            current, pending = ctypes.c_uint(7), ctypes.c_uint(7)
            assert LIBRARY.nvmlDeviceGetMigMode(gpu(n), ctypes.byref(current), ctypes.byref(pending)) == OK
            modes.append((current.value, pending.value, number("nvmlDeviceGetMaxMigDeviceCount", gpu(n))))
        assert modes == [(0, 0, 0), (1, 1, 7)]
        parts = [part(gpu(1), n) for n in range(2)]
        assert [number("nvmlDeviceGetGpuInstanceId", one) for one in parts] == [1, 2]
        assert [number("nvmlDeviceGetComputeInstanceId", one) for one in parts] == [0, 0]
        whole = Handle()
        assert LIBRARY.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(parts[0], ctypes.byref(whole)) == OK and whole.value == gpu(1).value
        for handle, index in ((gpu(0), 0), (gpu(1), 2), (parts[0], 0)):
            assert LIBRARY.nvmlDeviceGetMigDeviceHandleByIndex(handle, index, ctypes.byref(Handle())) == NOT_FOUND
    with started("2x8G,mig=7"):
        assert number("nvmlDeviceGetGpuInstanceId", part(gpu(1), 6)) == 7
    with started("1x8G"):
        assert number("nvmlDeviceGetMaxMigDeviceCount", gpu(0)) == 0


def test_distances(started):
    def levels(count: int) -> list[list[int]]:
        return [[number("nvmlDeviceGetTopologyCommonAncestor", gpu(a), gpu(b)) for b in range(count)] for a in range(count)]

    def nodes(count: int) -> list[int]:
        found = []
        for n in range(count):
            words = (ctypes.c_ulong * 2)(9, 9)
            assert LIBRARY.nvmlDeviceGetMemoryAffinity(gpu(n), 2, words, 0) == OK
            assert words[1] == 0
            found.append(words[0])
        return found

    with started("4x8G"):
        assert levels(4) == [[0, 10, 40, 40], [10, 0, 40, 40], [40, 40, 0, 10], [40, 40, 10, 0]]
        assert nodes(4) == [1] * 4
    with started("5x8G"):
        assert nodes(5) == [1, 1, 2, 2, 2]
        assert levels(5)[0] == [0, 10, 50, 50, 50]
        assert levels(5)[2] == [50, 50, 0, 10, 40]
    with started("8x8G,mig=1"):
        assert nodes(8) == [1] * 4 + [2] * 4
        assert number("nvmlDeviceGetTopologyCommonAncestor", part(gpu(7), 0), gpu(7)) == 0


def links(index: int) -> list[object]:
    """The bus that each link of a GPU leads to, and the kind of device there."""
    found: list[object] = []
    for n in range(12):
        active = number("nvmlDeviceGetNvLinkState", gpu(index), n)
        kind = number("nvmlDeviceGetNvLinkRemoteDeviceType", gpu(index), n)
        remote = filled("nvmlDeviceGetNvLinkRemotePciInfo_v2", Pci, gpu(index), n)
        assert (active == 1) == (kind >= 0) == isinstance(remote, Pci)
        found.append((kind, remote.bus) if isinstance(remote, Pci) else None)
    return found


def test_links(started):
    with started("2x8G,nvlink=2"):
        assert links(0) == [(0, 0x11)] * 12
        assert links(1) == [(0, 0x10)] * 12
        assert number("nvmlDeviceGetNvLinkState", gpu(0), 12) == -INVALID
        assert number("nvmlDeviceGetNvLinkRemoteDeviceType", gpu(0), 12) == -INVALID
    with started("7x8G,nvlink=3"):
        assert links(1) == [(0, 0x10)] * 6 + [(0, 0x12)] * 6
        assert links(3) == [(0, 0x14)] * 6 + [(0, 0x15)] * 6
        assert links(6) == [None] * 12, "nobody is left for it"
        assert number("nvmlDeviceGetNvLinkState", gpu(6), 0) == 0
    with started("6x8G,nvlink=4"):
        assert links(2) == [(0, 0x10)] * 4 + [(0, 0x11)] * 4 + [(0, 0x13)] * 4
        assert links(5) == [(0, 0x14)] * 12
    with started("13x8G,nvlink=6"):
        assert links(0) == [(2, 0x80 + n // 2) for n in range(12)]
        assert links(7) == [(2, 0x88 + n // 2) for n in range(12)]
        assert links(12) == [None] * 12
    for without in ("2x8G", "2x8G,nvlink=1", "2x8G,nvlink=0"):
        with started(without):
            assert number("nvmlDeviceGetNvLinkState", gpu(0), 0) == -NOT_SUPPORTED
            assert number("nvmlDeviceGetNvLinkRemoteDeviceType", gpu(0), 0) == -INVALID
    with started("2x8G,nvlink=2,mig=1"):
        assert number("nvmlDeviceGetNvLinkState", part(gpu(1), 0), 0) == -NOT_SUPPORTED
        assert number("nvmlDeviceGetNvLinkRemoteDeviceType", part(gpu(1), 0), 0) == -INVALID


def test_peers(started):
    with started("5x8G,nvlink=2,mig=1"):
        status = [[number("nvmlDeviceGetP2PStatus", gpu(a), gpu(b), 2) for b in range(5)] for a in range(5)]
        assert status == [[0 if a // 2 == b // 2 else 5 for b in range(5)] for a in range(5)]
        assert number("nvmlDeviceGetP2PStatus", gpu(0), gpu(4), 0) == 0
        for pair in ((part(gpu(4), 0), gpu(4)), (gpu(4), part(gpu(4), 0))):
            assert number("nvmlDeviceGetP2PStatus", *pair, 2) == 5
    for alone in ("2x8G", "2x8G,nvlink=1"):
        with started(alone):
            assert number("nvmlDeviceGetP2PStatus", gpu(0), gpu(0), 2) == 5


@pytest.mark.parametrize(("mig", "instance"), [("", (2**32 - 1, 2**32 - 1)), (",mig=2", (1, 0))])
def test_who_computes(started, mig, instance):
    with started(f"2x8G,busy=1{mig}"):
        for index, expected in ((0, []), (1, [(1, 1 << 30, *instance)])):
            room, found = ctypes.c_uint(3), (Running * 3)()
            assert LIBRARY.nvmlDeviceGetComputeRunningProcesses_v3(gpu(index), ctypes.byref(room), found) == OK
            assert [(one.pid, one.used, one.gi, one.ci) for one in found[: room.value]] == expected
        room = ctypes.c_uint(0)
        assert LIBRARY.nvmlDeviceGetComputeRunningProcesses_v3(gpu(1), ctypes.byref(room), found) == INSUFFICIENT and room.value == 1
        assert LIBRARY.nvmlDeviceGetComputeRunningProcesses_v3(gpu(1), ctypes.byref(room), None) == INSUFFICIENT
        assert LIBRARY.nvmlDeviceGetComputeRunningProcesses_v3(gpu(0), ctypes.byref(room), None) == OK and room.value == 0
        room.value = 5
        assert LIBRARY.nvmlDeviceGetMPSComputeRunningProcesses_v3(gpu(1), ctypes.byref(room), None) == OK and room.value == 0
        if mig:
            room.value = 3
            assert LIBRARY.nvmlDeviceGetComputeRunningProcesses_v3(part(gpu(1), 0), ctypes.byref(room), found) == OK and room.value == 0


def test_an_old_driver(started):
    later = [
        *("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetMigMode"),
        *("nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetComputeRunningProcesses_v3"),
        *("nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2"),
    ]
    with started("2x8G,nvlink=2,old,busy=0"):
        for name in later:
            assert getattr(LIBRARY, name)(gpu(0), *ABOUT_A_GPU[name]) == NO_FUNCTION, name
        for name, arguments in OF_TWO.items():
            assert getattr(LIBRARY, name)(gpu(0), gpu(1), *arguments) == NO_FUNCTION, name
        assert filled("nvmlDeviceGetMemoryInfo", Memory, gpu(0)).used == 1 << 30
        assert text("nvmlDeviceGetName", gpu(0)) == "Simulated GPU"


def test_words_for_errors():
    said = [
        LIBRARY.nvmlErrorString(code)
        for code in (OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT, NO_DRIVER, NO_FUNCTION, 99)
    ]
    assert said == [
        *(b"Success (simulated)", b"Uninitialized", b"Invalid Argument", b"Not Supported", b"Not Found", b"Insufficient Size"),
        *(b"Driver Not Loaded", b"Function Not Found", b"Unknown Error"),
    ]
    assert ctypes.c_int.in_dll(LIBRARY, "dockless_simulated_nvml").value == 1
