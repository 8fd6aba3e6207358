"""The inventory, through the real pynvml on the stand-in library; and what a host without a driver says.

pynvml keeps the first library it loads, so what must see another one runs in a Python of its own.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.requires import requires

from dockless.base.dataclass import replace
from dockless.errors import BadInput, GpuDriverMissing, GpuError, NotEnoughGpus
from dockless.sandbox.gpus import nvml as gpu_nvml
from dockless.sandbox.gpus import watch
from dockless.sandbox.gpus.gpu import Gpu, choose, driver, find, inventory, parse_request, refresh, session, units
from dockless.sched.engine.gpus.hostgpus import HostGpus


@pytest.fixture
def simulate(monkeypatch):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this host has a real NVIDIA driver; this process may have loaded it")
    assert gpu_nvml.stand_in_library().exists(), "native/simulated/libnvidia-ml.so.1 is not built: run 'make build'"
    return lambda text: monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", text)


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key != "DOCKLESS_SIMULATED_GPUS"}
    return subprocess.run([sys.executable, "-P", "-c", code], env={**clean, **env}, capture_output=True, text=True, timeout=60)


_NVML = r"""
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return flags ? 1 : 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { for (char *at = "600.10.01"; size-- && (*text++ = *at++);) ; return 0; }
"""


@pytest.fixture
def apart(tmp_path):
    """Where a driver is installed apart from the host's files, and the settings that say so."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this host has a real NVIDIA driver")
    tmp_path.chmod(0o755)
    place = tmp_path / f"driver/usr/lib/{os.uname().machine}-linux-gnu"
    place.mkdir(parents=True)
    made = [
        "gcc",
        "-shared",
        "-nostdlib",
        "-fPIC",
        "-Wl,-soname,libnvidia-ml.so.1",
        "-x",
        "c",
        "-",
        "-o",
        str(place / "libnvidia-ml.so.600.10.01"),
    ]
    subprocess.run(made, check=True, input=_NVML.encode(), capture_output=True)
    (place / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.600.10.01")
    (tmp_path / "dockless.toml").write_text(f'[gpus]\ndriver_root = "{tmp_path}/driver"\n')
    return place


_ASK = "from dockless.sandbox.gpus.gpu import driver; print(driver())"


@requires("program:gcc")
def test_a_driver_that_is_installed_apart_is_asked(apart, tmp_path):
    result = python(_ASK, DOCKLESS_HOME=str(tmp_path))
    assert "version='600.10.01'" in result.stdout and "simulated=False" in result.stdout, result


@requires("program:gcc")
def test_nothing_is_loaded_that_others_may_change(apart, tmp_path):
    (apart / "libnvidia-ml.so.600.10.01").chmod(0o777)
    result = python(_ASK, DOCKLESS_HOME=str(tmp_path))
    assert result.returncode == 1 and "can be changed by others than root" in result.stderr


@requires("program:gcc")
def test_a_driver_apart_whose_library_is_no_library(apart, tmp_path):
    """Of 32 bits, or none at all: the linker's path is gone by, as without the setting."""
    (apart / "libnvidia-ml.so.600.10.01").write_text("no library")
    result = python(_ASK, DOCKLESS_HOME=str(tmp_path))
    assert result.returncode == 1 and "no NVIDIA driver on this host: libnvidia-ml.so.1 is not installed" in result.stderr


def test_four_gpus(simulate):
    simulate("4x80G")
    gpus = inventory()
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]
    assert [gpu.minor for gpu in gpus] == [1, 2, 3, 0]  # never the index
    assert len({gpu.uuid for gpu in gpus}) == len({gpu.pci_bus_id for gpu in gpus}) == 4
    assert all(gpu.memory == 80 << 30 and gpu.numa_node == 0 and not gpu.processes and not gpu.mig_enabled for gpu in gpus)
    assert gpus[0].pci_bus_id == "d0c1:10:00.0"


def test_everything_says_simulated(simulate):
    simulate("2x80G,mig=2")
    for gpu in (*inventory(), *units(inventory())):
        assert gpu.simulated and "Simulated" in gpu.model and "(simulated)" in str(gpu)
    assert driver().simulated and "simulated" in driver().version


@pytest.mark.parametrize(("text", "size"), [("1x512M", 512 << 20), ("1x24G", 24 << 30), ("1x2T", 2 << 40)])
def test_memory_sizes(simulate, text, size):
    simulate(text)
    assert [gpu.memory for gpu in inventory()] == [size]


def kinds(gpu: Gpu) -> list[tuple[str, int]]:
    return [(link.kind, link.width) for link in gpu.links]


def test_pcie_distances(simulate):
    simulate("8x80G")
    first = inventory()[0]
    assert kinds(first) == [("PIX", 0), ("NODE", 0), ("NODE", 0)] + [("SYS", 0)] * 4
    assert [gpu.numa_node for gpu in inventory()] == [0] * 4 + [1] * 4


@pytest.mark.parametrize(("group", "width"), [(2, 12), (4, 4), (8, 12)])
def test_nvlink_direct_and_through_switches(simulate, group, width):
    simulate(f"8x80G,nvlink={group}")
    gpus = inventory()
    for gpu in gpus:
        near = {link.peer: link for link in gpu.links}
        for other in gpus:
            if other is gpu:
                continue
            joined = gpu.index // group == other.index // group
            assert (near[other.uuid].kind == "NVLINK") == joined
            assert near[other.uuid].width == (width if joined else 0)


@pytest.mark.parametrize("text", ["3x80G,nvlink=2", "5x80G,nvlink=4", "1x80G,nvlink=8", "7x80G,nvlink=3"])
def test_groups_that_do_not_divide_evenly(simulate, text):
    simulate(text)
    gpus = inventory()
    width = {(gpu.uuid, link.peer): link.width for gpu in gpus for link in gpu.links}
    assert all(width[b, a] == n for (a, b), n in width.items())


def test_mig_slices(simulate):
    simulate("2x70G,mig=3")
    whole, divided = inventory()
    assert not whole.mig_enabled and divided.mig_enabled
    assert [(part.gi, part.ci, part.gi_cap, part.ci_cap) for part in divided.mig] == [(1, 0, 12, 13), (2, 0, 21, 22), (3, 0, 30, 31)]
    assert find([divided.mig[1].uuid], (whole, divided))[0].memory == (70 << 30) // 3


def test_a_foreign_process(simulate):
    simulate("2x80G,busy=1")
    assert [[process.pid for process in gpu.processes] for gpu in inventory()] == [[], [1]]
    assert inventory()[1].processes[0].memory == 1 << 30
    simulate("2x80G,mig=2,busy=1")
    assert [bool(unit.processes) for unit in units(inventory())] == [False, True, False]


def test_an_old_driver_leaves_fields_unknown(simulate):
    simulate("2x80G,nvlink=2,mig=2,busy=1,old")
    gpus = inventory()
    assert len(gpus) == 2
    assert all(gpu.numa_node is None and not gpu.processes and not gpu.mig and kinds(gpu) == [("SYS", 0)] for gpu in gpus)


def test_the_cheap_reads(simulate):
    simulate("2x80G,nvlink=2")
    plain = inventory(processes=False, links=False)
    assert all(not gpu.links for gpu in plain) and [g.uuid for g in plain] == [g.uuid for g in inventory()]
    simulate("2x80G,nvlink=2,busy=0")
    again = refresh(inventory(processes=False))
    assert again == inventory()
    simulate("1x80G")
    assert [gpu.trouble for gpu in refresh(again)] == ["", watch.LOST], "the other one is gone"


def test_one_that_is_not_fit_for_use(simulate):
    """It is not leased, and the reason is said; nor are its slices. An old driver tells of none."""
    simulate("3x80G,ecc=1")
    broken = "2 uncorrectable errors of its memory since its driver was loaded"
    assert [gpu.trouble for gpu in inventory()] == ["", broken, ""] == [gpu.trouble for gpu in refresh(inventory(processes=False))]
    assert [gpu.index for gpu in choose(parse_request(2), inventory())] == [0, 2]
    with pytest.raises(NotEnoughGpus) as caught:
        choose(parse_request(3), inventory())
    assert f"GPU 1 is out of service: {broken}" in caught.value.hint
    simulate("2x80G,mig=2,ecc=1")
    assert [unit.trouble for unit in units(inventory())] == ["", broken, broken] == [unit.trouble for unit in refresh(units(inventory()))]


def test_what_a_contained_error_leaves_behind(simulate, monkeypatch, tmp_path):
    """A count that stays until the driver is loaded again takes no GPU out of service where the driver says that nothing is to be done."""
    simulate("2x80G,ecc=1")
    state = state_of(monkeypatch, tmp_path, "recovery 1 0")
    assert [gpu.trouble for gpu in inventory()] == ["", ""]
    state.write_text("recovery 1 1\n")
    assert [gpu.trouble for gpu in inventory()] == ["", "its driver asks for a reset of the GPU"]


def test_one_that_falls_off_its_bus(simulate):
    simulate("2x80G")
    both = inventory()
    simulate("2x80G,lost=1")
    assert [gpu.index for gpu in inventory()] == [0] and driver().lost == (1,)
    assert [gpu.trouble for gpu in refresh(both)] == ["", watch.LOST]


class Answers:
    """NVML of a GPU that tells what is given here, and nothing else."""

    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 230, 1, 0

    def __init__(self, action=None, rows=(0, 0, 0, 0), errors=0):
        value = SimpleNamespace(nvmlReturn=0 if action is not None else 3, value=SimpleNamespace(uiVal=action))
        self.nvmlDeviceGetUUID = lambda handle: "GPU-1"
        self.nvmlDeviceGetFieldValues = lambda handle, fields: [value] if fields == [230] else []
        self.nvmlDeviceGetRemappedRows = lambda handle: rows
        self.nvmlDeviceGetTotalEccErrors = lambda handle, kind, since: errors if (kind, since) == (1, 0) else 77


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({}, ""),
        ({"action": 0}, ""),
        ({"action": 0, "errors": 5}, ""),
        ({"action": 0, "rows": (0, 0, 1, 0)}, "are replaced by a reset"),
        ({"action": 5, "errors": 5}, "5 uncorrectable errors"),
        ({"action": 1, "errors": 5}, "asks for a reset of the GPU"),
        ({"action": 2}, "asks for a reboot of the host"),
        ({"rows": (9, 9, 0, 0)}, ""),
        ({"rows": (0, 0, 1, 0)}, "are replaced by a reset"),
        ({"rows": (0, 0, 1, 1)}, "could not be replaced"),
        ({"errors": 1}, "1 uncorrectable errors"),
    ],
)
def test_what_a_driver_says_of_trouble(answers, words):
    found = watch.trouble(Answers(**answers), "handle")
    assert words in found and bool(words) == bool(found)


def test_what_a_gpu_does(simulate):
    simulate("2x80G,mig=1,busy=0")
    whole, divided = inventory()
    with session() as nvml:
        readings = watch.readings(nvml, [whole.uuid, divided.mig[0].uuid, "GPU-0"])
    assert readings == (
        watch.Reading(whole.uuid, 1.0, 1 << 30, 70, 300.5, "", 0, 0),
        watch.Reading(divided.mig[0].uuid, None, 0, None, None, "", 0, 0),
        watch.Reading("GPU-0", trouble=watch.LOST),
    )


def test_init_and_shutdown_are_balanced_from_threads(simulate):
    simulate("4x80G,nvlink=4")
    with session() as nvml, ThreadPoolExecutor(8) as pool:
        expected = inventory()
        assert all(found == expected for found in pool.map(lambda _: inventory(), range(64)))
    with ThreadPoolExecutor(8) as pool:  # and with nobody holding it open
        assert all(found == expected for found in pool.map(lambda _: inventory(), range(64)))
    with pytest.raises(nvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetCount()


def test_a_session_ends_when_its_body_fails(simulate):
    simulate("1x80G")
    with pytest.raises(KeyError), session() as nvml:
        raise KeyError
    with pytest.raises(nvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetCount()


@pytest.mark.parametrize(
    "text",
    [
        *["4", "0x80G", "4x0G", "x80G", "4x80", "100x80G", "4x80G,", "4x80G,mig=8", "4x80G,nvlink", "4x80G;", "-1x80G", "yes"],
        *["4x80G+", "60x80G+40x80G", "4x80G:", "4x80G:H_100", "4x80G,cuda=12", "4x80G,cuda=012.4"],
    ],
)
def test_a_malformed_simulation_is_bad_input(simulate, text):
    simulate(text)
    with pytest.raises(BadInput) as error:
        inventory()
    assert "4x80G" in error.value.hint


def test_the_stand_in_reads_no_further_than_its_own_grammar(simulate):
    """What Python lets through, C reads the same; what it does not, C refuses too."""
    library = ctypes.CDLL(str(gpu_nvml.stand_in_library()))
    for text, expected in [("4x80G,mig=7,busy=3,old", 0), ("4x80G,mig=8", 2), ("100x80G", 2), ("4x80Gx", 2), ("4x80G,nvlink=", 2)]:
        simulate(text)
        assert library.nvmlInit_v2() == expected, text
        if expected == 0:
            assert library.nvmlShutdown() == 0


def state_of(monkeypatch, tmp_path, *lines: str) -> Path:
    state = tmp_path / "state"
    state.write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setenv("DOCKLESS_SIMULATED_STATE", str(state))
    return state


def test_what_the_simulated_gpus_do_changes_at_will(simulate, monkeypatch, tmp_path):
    simulate("2x80G,mig=2")
    state = state_of(monkeypatch, tmp_path, "busy 0 35", "process 0 4711 1048576", "process 1 4712 2097152 2", "busy x 1", "")
    with session() as nvml:
        gpus = units(inventory())
        assert [[(p.pid, p.memory) for p in unit.processes] for unit in gpus] == [[(4711, 1 << 20)], [], [(4712, 2 << 20)]]
        first = watch.readings(nvml, [unit.uuid for unit in gpus])
        assert [one.busy for one in first] == [0.35, None, None] and [one.used for one in first] == [1 << 20, 0, 2 << 20]
        assert (first[0].temperature, first[0].power) == (44, 50 + 35 * 2.505)
        state.write_text("")
        assert not any(unit.processes for unit in refresh(gpus))
        assert watch.readings(nvml, [gpus[0].uuid])[0].busy == 0
        assert watch.computing(nvml, gpus[0].uuid) == {} and watch.computing(nvml, gpus[1].uuid) is None, "a slice does not tell"
        state.write_text(
            "computes 0 4711 20\ncomputes 0 4712 5\ncomputes 0 4711 30\ncomputes 0 0 9\ncomputes 0 4713 4294967\ncomputes 1 1 1\n"
        )
        assert watch.computing(nvml, gpus[0].uuid) == {4711: 0.3, 4712: 0.05}, "the newest of each; what is not filled is left out"


def test_errors_heat_and_power_of_a_simulated_gpu_change_while_it_runs(simulate, monkeypatch, tmp_path):
    simulate("2x80G,ecc=1")
    state = state_of(monkeypatch, tmp_path, "busy 0 50")
    with session() as nvml:
        uuids = [unit.uuid for unit in inventory()]
        first, second = watch.readings(nvml, uuids)
        assert (first.temperature, first.power, first.ecc_corrected, first.ecc_uncorrected) == (50, 50 + 50 * 2.505, 0, 0)
        assert second.ecc_uncorrected == 2 and not first.trouble
        state.write_text("temperature 0 91\npower 0 300\necc 0 1\necc 0 3 7\necc 1 0\n")
        first, second = watch.readings(nvml, uuids)
        assert (first.temperature, first.power, first.ecc_corrected, first.ecc_uncorrected) == (91, 300, 7, 3)
        assert "3 uncorrectable errors" in first.trouble and not second.trouble


def test_a_simulated_gpu_is_lost_and_is_there_again(simulate, monkeypatch, tmp_path):
    simulate("2x80G,mig=2")
    state = state_of(monkeypatch, tmp_path)
    with session() as nvml:
        uuids = [unit.uuid for unit in units(inventory())]
        handle = nvml.nvmlDeviceGetHandleByUUID(uuids[0])
        state.write_text("lost 0 1\n")
        with pytest.raises(nvml.NVMLError_GpuIsLost):
            nvml.nvmlDeviceGetMemoryInfo(handle)  # who has it already, too
        assert [reading.trouble for reading in watch.readings(nvml, uuids)] == [watch.LOST, "", ""]
        state.write_text("lost 1 1\n")
        assert [reading.trouble for reading in watch.readings(nvml, uuids)] == ["", watch.LOST, watch.LOST]
        state.write_text("lost 1 1\nlost 1 0\n")
        assert [reading.trouble for reading in watch.readings(nvml, uuids)] == ["", "", ""]


def test_programs_that_draw(simulate, monkeypatch, tmp_path):
    """They have a GPU like those that compute; the host's display has it beside them: what is on a GPU that shows one, and the few MiB that
    a display server keeps of each GPU."""
    simulate("2x80G")
    lines = "graphics 0 11 4194304", f"graphics 1 21 {3 << 30}", f"graphics 1 22 {1 << 30}", f"process 1 22 {2 << 30}"
    state = state_of(monkeypatch, tmp_path, *lines)
    first, second = inventory()
    assert [(p.pid, p.memory, p.display) for p in first.processes] == [(11, 4 << 20, True)]
    assert [(p.pid, p.memory, p.display) for p in second.processes] == [(21, 3 << 30, False), (22, 2 << 30, False)]
    assert choose(parse_request("1"), (second, first)) == (first,)
    with pytest.raises(NotEnoughGpus) as refused:
        choose(parse_request("2"), (first, second))
    assert "GPU 1 is used by process 21, 22, which dockless did not start" in refused.value.hint
    host = HostGpus()
    assert host.unusable(()) == {second.uuid}
    host.close()
    with state.open("a") as file:
        file.write("display 1 1\n")
    assert [(p.pid, p.display) for p in refresh((second,))[0].processes] == [(21, True), (22, False)]
    state.write_text(f"display 1 1\n{lines[1]}\n")
    assert choose(parse_request("2"), inventory()) == inventory()
    with session() as nvml:
        assert watch.readings(nvml, [second.uuid])[0].used == 3 << 30


def test_a_driver_that_does_not_tell_of_those_that_draw(simulate, monkeypatch, tmp_path):
    """Those that compute are told all the same."""
    simulate("1x80G")
    state_of(monkeypatch, tmp_path, "graphics 0 11 1073741824", "process 0 12 1048576")
    with session() as nvml:

        def unknown(handle):
            raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)

        for version in ("_v2", "_v3"):
            monkeypatch.setattr(nvml, f"nvmlDeviceGetGraphicsRunningProcesses{version}", unknown)
        assert [p.pid for p in inventory()[0].processes] == [12]


def test_one_that_hangs(simulate, monkeypatch, tmp_path):
    """Whoever wants the others is not kept waiting, and it answers when the hang is over."""
    simulate("2x80G,mig=2")
    state = state_of(monkeypatch, tmp_path)
    with session():
        everything = inventory()
        whole, *slices = units(everything)
        assert inventory(only=[unit.uuid for unit in (whole, *slices)]) == everything
        state.write_text("hang 0 600\n")
        (divided,) = inventory(only=[slices[1].uuid])
        assert divided.index == 1 and find([slices[0].uuid, slices[1].uuid], [divided])
        assert set(gpu_nvml.facts([divided])) == {"cuda", "arch", "brand"} and gpu_nvml.driver_version() == "0.0-simulated"
        hung = threading.Thread(target=refresh, args=((whole,),))
        hung.start()
        hung.join(0.2)
        assert hung.is_alive()
        state.write_text("")
        hung.join(10)
        assert not hung.is_alive()
        state.write_text("hang 0 1\n")
        began = time.monotonic()
        assert len(inventory(processes=False, links=False, only=["GPU-of-another-host"])) == 2, "so that the error says which there are"
        assert time.monotonic() - began >= 1


def test_what_the_driver_reports_by_itself(simulate, monkeypatch, tmp_path):
    """Each once, in their order; what a program has done to itself, and what is mended, leaves the GPU fit for use."""
    simulate("3x80G,lost=2")
    state = state_of(monkeypatch, tmp_path, "xid 0 31", "xid 1 79", "xid 0 94 3")
    with session() as nvml:
        uuids = [gpu.uuid for gpu in inventory()]
        heard = watch.failures(nvml, [*uuids, "GPU-of-another-host"], 0.01)
        fault = "Xid 31, an access of a program to memory that it does not have"
        assert next(heard) == watch.Report(uuids[0], fault, 31, unfit=False)
        assert next(heard) == watch.Report(uuids[1], "Xid 79, it has fallen off its bus", 79)
        contained = "Xid 94, an error of its memory that ends the program that met it, and no other"
        assert next(heard) == watch.Report(uuids[0], contained, 94, unfit=False, gi=3)
        assert next(heard) is None
        with state.open("a") as file:
            file.write("xid 0 69\nxid 0 1000\n")
        assert not next(heard).unfit
        assert next(heard) == watch.Report(uuids[0], "Xid 1000, an error that its driver has reported: the kernel log says more", 1000)
        state.write_text("xid 0 48\n")
        assert next(heard) is None and state.write_text("") == 0 and next(heard) is None
        state.write_text("xid 0 48\n")
        assert next(heard) == watch.Report(uuids[0], "Xid 48, an uncorrectable error of its memory", 48)
        heard.close()


def test_a_driver_that_reports_nothing(simulate):
    simulate("2x80G,old")
    with session() as nvml:
        assert [*watch.failures(nvml, [gpu.uuid for gpu in inventory()], 0.01)] == []
        assert [*watch.failures(nvml, [], 0.01)] == []


def test_a_lost_gpu_that_is_not_named(simulate, monkeypatch):
    """It is told once, however often the driver says so; others are still heard of."""
    simulate("2x80G")
    with session() as nvml:
        uuids = [gpu.uuid for gpu in inventory()]
        device = nvml.nvmlDeviceGetHandleByUUID(uuids[1])
        event = SimpleNamespace(device=device, eventType=nvml.nvmlEventTypeDoubleBitEccError, eventData=0, gpuInstanceId=0xFFFFFFFF)
        lost = nvml.NVMLError(nvml.NVML_ERROR_GPU_IS_LOST)
        said = [lost, lost, event, nvml.NVMLError(nvml.NVML_ERROR_UNKNOWN)]

        def wait(events, milliseconds):
            if isinstance(one := said.pop(0), Exception):
                raise one
            return one

        monkeypatch.setattr(nvml, "nvmlEventSetWait_v2", wait)
        broken = watch.Report(uuids[1], "an uncorrectable error of its memory")
        assert [*watch.failures(nvml, uuids, 0.001)] == [watch.Report("", watch.LOST), None, broken]
        monkeypatch.setattr(watch, "_action", lambda nvml, handle: 0)
        said.extend((event, nvml.NVMLError(nvml.NVML_ERROR_UNKNOWN)))
        assert [*watch.failures(nvml, uuids, 0.001)] == [replace(broken, unfit=False)], "its driver asks for nothing"


def test_once_the_variable_is_gone_the_simulated_gpus_are(simulate, monkeypatch):
    simulate("2x80G")
    inventory()
    monkeypatch.delenv("DOCKLESS_SIMULATED_GPUS")
    with pytest.raises(GpuDriverMissing, match="simulated one"):
        inventory()


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this host has an NVIDIA driver")
def test_without_a_driver():
    code = """
from dockless.errors import GpuDriverMissing
from dockless.sandbox.gpus import gpu
for call in (gpu.inventory, gpu.driver, lambda: gpu.refresh(())):
    try: call()
    except GpuDriverMissing as error: print(error.code, bool(error.hint), error)
"""
    done = python(code)
    assert done.stdout.splitlines() == ["gpu_driver_missing True no NVIDIA driver on this host: libnvidia-ml.so.1 is not installed"] * 3, (
        done
    )


def test_importing_does_not_import_pynvml():
    done = python("import sys; import dockless.sandbox.gpus.gpu; print('pynvml' in sys.modules)")
    assert done.stdout.split() == ["False"], done


def test_a_stand_in_that_is_not_built_is_an_error(simulate, monkeypatch, tmp_path):
    code = """
from pathlib import Path
from types import SimpleNamespace
from dockless.sandbox.gpus import nvml
nvml.stand_in_library = lambda: Path("/nonexistent/libnvidia-ml.so.1")
try: nvml.inventory()
except nvml.GpuError as error: print(type(error).__name__, "make build" in error.hint)
"""
    assert python(code, DOCKLESS_SIMULATED_GPUS="1x80G").stdout.split() == ["GpuError", "True"]


def test_the_real_library_and_the_simulation_do_not_mix():
    """A process that has loaded another NVML is told so, instead of taking its GPUs for simulated ones."""
    code = """
import ctypes, pynvml
from dockless.sandbox.gpus import nvml
pynvml.nvmlLib = ctypes.CDLL(None)   # any library without our mark
try: nvml.inventory()
except nvml.GpuError as error: print(error)
"""
    assert "real NVML already" in python(code, DOCKLESS_SIMULATED_GPUS="1x80G").stdout


def test_mig_minors():
    text = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi1/ci1/access\nx y\n"
    assert gpu_nvml.parse_mig_minors(text) == {"config": 1, "monitor": 2, "gpu0/gi1/access": 12, "gpu0/gi1/ci0/access": 13}


@requires("gpu")
def test_a_real_gpu_host():
    """The inventory beside nvidia-smi."""
    listed = subprocess.run(["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    code = """
from dockless.sandbox.gpus.gpu import inventory
for gpu in inventory():
    assert gpu.memory and not gpu.simulated
    print(f"{gpu.index}, {gpu.uuid}")
"""
    assert python(code).stdout == listed.stdout


def test_errors_of_a_broken_driver_are_not_called_missing():
    import pynvml

    for value in (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_UNKNOWN):
        error = gpu_nvml._init_error(pynvml, pynvml.NVMLError(value))
        assert isinstance(error, GpuError) and not isinstance(error, GpuDriverMissing) and error.hint


def test_near_is_first_the_kind_of_link_then_how_many(simulate):
    """As the scheduler compares them: twelve links are nearer than four, and any link is nearer than none."""
    apart = []
    for text in ("8x80G,nvlink=2", "8x80G,nvlink=4", "8x80G"):
        simulate(text)
        gpus = HostGpus()
        near, beside, far = (gpus.distances[gpus.uuids[0], gpus.uuids[other]] for other in (1, 2, 7))
        apart.append(near)
        assert near <= beside < far
        gpus.close()
    assert apart == sorted(set(apart))
