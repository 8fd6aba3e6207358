"""Which files of a driver are found, in trees as distributions and installers have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import driver_trees
from support.elf_files import library

from dockless.errors import GpuError
from dockless.sandbox.gpus import driver_files, elf, linker_cache
from dockless.sandbox.gpus.driver_files import DriverFile, changed_at, find, installed_version, needed, parse_capabilities, searched
from dockless.sandbox.gpus.injection import _majors, _same

VERSION = "580.65.06"
WIDE = f"usr/lib/{os.uname().machine}-linux-gnu"


def names(files: tuple[DriverFile, ...], place: str = "lib") -> list[str]:
    return sorted(file.name for file in files if file.place == place)


def sources(root: Path, files: tuple[DriverFile, ...]) -> set[str]:
    return {os.path.relpath(file.source, root) for file in files}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def driver(root: Path, where: str, **more) -> None:
    library(root / where / f"libcuda.so.{VERSION}", "libcuda.so.1", **more)
    library(root / where / f"libnvidia-ml.so.{VERSION}", "libnvidia-ml.so.1", **more)


@pytest.mark.parametrize("where", [WIDE, f"{WIDE}/nvidia/current", f"{WIDE}/nvidia/tesla-580", "usr/lib64", "usr/lib", "lib64"])
def test_where_it_is_installed(where, root):
    driver(root, where)
    assert installed_version(str(root)) == VERSION
    found = find(str(root), VERSION)
    assert names(found) == [f"libcuda.so.{VERSION}", f"libnvidia-ml.so.{VERSION}"]
    assert [file.links for file in found] == [("libcuda.so.1", "libcuda.so"), ("libnvidia-ml.so.1",)]
    assert sources(root, found) == {f"{where}/libcuda.so.{VERSION}", f"{where}/libnvidia-ml.so.{VERSION}"}


def test_where_the_linkers_cache_says(root):
    driver(root, "opt/nvidia/lib")
    assert find(str(root), VERSION) == ()
    entry = linker_cache.Entry(b"libcuda.so.1", b"/opt/nvidia/lib/libcuda.so.1", 0x303)
    (root / "etc").mkdir()
    (root / "etc/ld.so.cache").write_bytes(linker_cache.encode(linker_cache.Cache((entry,))))
    assert len(find(str(root), VERSION)) == 2


def test_another_version_is_not_taken(root):
    driver(root, "usr/lib64")
    library(root / "usr/lib64/libcuda.so.575.1", "libcuda.so.1")
    library(root / "usr/lib64/libnvidia-opencl.so.1", "libnvidia-opencl.so.1")
    library(root / f"usr/lib64/libother.so.{VERSION}", "libother.so.1")
    (root / f"usr/lib64/libnvidia-cfg.so.{VERSION}").write_text("no library")
    assert len(find(str(root), VERSION)) == 2
    assert sources(root, find(str(root), "575.1")) == {"usr/lib64/libcuda.so.575.1"}


def test_a_library_that_is_a_link_is_what_it_leads_to(root):
    library(root / f"opt/libcuda.so.{VERSION}", "libcuda.so.1")
    (root / "usr/lib64").mkdir(parents=True)
    (root / f"usr/lib64/libcuda.so.{VERSION}").symlink_to(f"/opt/libcuda.so.{VERSION}")  # of the driver's root, not of the host's
    assert sources(root, find(str(root), VERSION)) == {f"opt/libcuda.so.{VERSION}"}


def test_no_link_leads_out_of_the_root(root):
    library(root / f"outside/libcuda.so.{VERSION}", "libcuda.so.1")
    (root / "driver/usr/lib64").mkdir(parents=True)
    (root / f"driver/usr/lib64/libcuda.so.{VERSION}").symlink_to(f"../../../outside/libcuda.so.{VERSION}")
    (root / "driver/usr/bin").symlink_to(root / "outside")
    (root / "outside/nvidia-smi").write_text("")
    assert find(str(root / "driver"), VERSION) == ()


def test_32_bit_libraries_are_for_compat32(root):
    driver(root, "usr/lib64")
    driver(root, "usr/lib32", bits=32)
    found = find(str(root), VERSION)
    assert names(found, "lib32") == [f"libcuda.so.{VERSION}", f"libnvidia-ml.so.{VERSION}"]
    assert names(needed(found, parse_capabilities("compute")), "lib32") == []
    assert names(needed(found, parse_capabilities("compute,compat32")), "lib32") == [f"libcuda.so.{VERSION}"]


def test_programs_and_firmware_and_configuration(root):
    driver(root, f"{WIDE}/nvidia/current")
    texts = ["usr/lib/nvidia/current/nvidia-smi", "usr/sbin/nvidia-cuda-mps-server", f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"]
    texts += ["lib/firmware/nvidia/575.1/gsp_ga10x.bin", "etc/OpenCL/vendors/nvidia.icd", "usr/share/glvnd/egl_vendor.d/10_nvidia.json"]
    for path in texts:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x")
    (root / "usr/bin").mkdir()
    (root / "usr/bin/nvidia-smi").write_text("of another driver")
    found = find(str(root), VERSION)
    assert names(found, "bin") == ["nvidia-cuda-mps-server", "nvidia-smi"]
    assert "usr/lib/nvidia/current/nvidia-smi" in sources(root, found)
    everywhere = {f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"}
    assert set(names(needed(found, parse_capabilities("utility")), "")) == everywhere
    assert set(names(needed(found, parse_capabilities("compute")), "")) == {*everywhere, "etc/OpenCL/vendors/nvidia.icd"}
    assert names(needed(found, parse_capabilities("display")), "") == ["usr/share/glvnd/egl_vendor.d/10_nvidia.json"]


def test_a_library_that_is_newer_than_the_table(root):
    for name in ("libnvidia-tomorrow", "libnvidia-gtk3", "libnvidia-wayland-client", "libother"):
        library(root / f"usr/lib64/{name}.so.{VERSION}", f"{name}.so.1")
    library(root / "usr/lib64/libnvidia-tomorrow.so.575.1", "libnvidia-tomorrow.so.1")
    found = find(str(root), VERSION)
    assert [(file.name, file.capabilities) for file in found] == [(f"libnvidia-tomorrow.so.{VERSION}", ("compute", "graphics"))]
    assert needed(found, parse_capabilities("utility,video,ngx")) == found and needed(found, parse_capabilities("utility,ngx")) == ()


def test_libraries_whose_version_is_their_own(root):
    for name in ("libnvidia-nvvm70.so.4", "libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-wayland2.so.1.0.2"):
        library(root / "usr/lib64" / name, name[: name.index(".so.") + 5])
    (root / "usr/lib64/libnvidia-egl-gbm.so.1").symlink_to("libnvidia-egl-gbm.so.1.1.2")
    found = find(str(root), VERSION)
    assert names(needed(found, parse_capabilities("compute"))) == ["libnvidia-nvvm70.so.4"]
    assert names(needed(found, parse_capabilities("graphics"))) == ["libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-wayland2.so.1.0.2"]


@pytest.mark.parametrize("where", ["usr/lib64/vdpau", f"{WIDE}/nvidia/current"])
def test_vdpau_finds_its_driver(where, root):
    """In Debian it lies beside the others, and a link leads there."""
    library(root / where / f"libvdpau_nvidia.so.{VERSION}", "libvdpau_nvidia.so.1")
    assert names(find(str(root), VERSION)) == [f"vdpau/libvdpau_nvidia.so.{VERSION}"]


def write(root: Path, *places: str, text: str = "x") -> None:
    for path in places:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.mark.parametrize("top", ["etc", "usr/share"])
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (f"vulkan/icd.d/nvidia_icd.{os.uname().machine}.json", "graphics"),
        ("vulkan/icd.d/nvidia_icd.json", "graphics"),
        ("vulkan/icd.d/nvidia_layers.json", "graphics"),
        ("vulkan/implicit_layer.d/nvidia_layers.json", "graphics"),
        ("glvnd/egl_vendor.d/10_nvidia.json", "graphics"),
        ("egl/egl_external_platform.d/09_nvidia_wayland2.json", "graphics"),
        ("nvidia/nvoptix.bin", "graphics"),
        ("X11/xorg.conf.d/10-nvidia.conf", "display"),
        ("X11/xorg.conf.d/nvidia-drm-outputclass.conf", "display"),
    ],
)
def test_configuration_for_graphics_and_display(name, wanted, top, root):
    write(root, f"{top}/{name}")
    found = find(str(root), VERSION)
    assert [(file.name, file.capabilities) for file in found] == [(f"{top}/{name}", (wanted,))]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"ICD": {"library_path": "libGLX_nvidia.so.0"}}', ()),
        ('{"ICD": {"library_path": "/usr/lib64/libGLX_nvidia.so.0"}}', ("/usr/lib64/libGLX_nvidia.so.0",)),
        ('{"layer": {"library_path": "/a/b"}}', ("/a/b",)),
        ('{"layers": [{"library_path": "/a/b"}, {"library_path": "/a/../c"}, {"library_path": 3}, 4]}', ("/a/b",)),
        ('{"layers": [{}], "ICD": []}', ()),
        ("[]", ()),
        ("{", ()),
        ("[" * 100_000, ()),
    ],
)
def test_libraries_that_vulkan_opens_by_their_paths(text, named, root):
    write(root, "usr/share/vulkan/icd.d/nvidia_icd.json", text=text)
    assert [file.links for file in find(str(root), VERSION)] == [named]


def test_firmware_is_where_the_kernel_looks_for_it(root, monkeypatch):
    own = root / "path"
    monkeypatch.setattr(driver_files, "_FIRMWARE_PATH", own)
    release = os.uname().release
    places = ["opt/fw", f"lib/firmware/updates/{release}", "lib/firmware/updates", f"lib/firmware/{release}", "lib/firmware"]
    files = [f"{place}/nvidia/{VERSION}/gsp_ga10x.bin" for place in places]
    write(root, *files)
    own.write_text("/opt/fw\n")
    assert names(find(str(root), VERSION), "") == sorted(files)
    own.write_text("/opt/../opt/fw\n")
    assert names(find(str(root), VERSION), "") == sorted(files[1:])
    own.unlink()
    assert names(find(str(root), VERSION), "") == sorted(files[1:])


def test_programs_by_capability(root):
    write(
        root,
        "usr/bin/nvidia-imex",
        "usr/bin/nvidia-imex-ctl",
        "usr/bin/nvidia-xconfig",
        "usr/bin/nvidia-modprobe",
        "usr/bin/nvidia-settings",
    )
    found = find(str(root), VERSION)
    assert names(needed(found, parse_capabilities("utility")), "bin") == ["nvidia-imex", "nvidia-imex-ctl"]
    assert names(needed(found, parse_capabilities("display")), "bin") == ["nvidia-xconfig"]


@pytest.mark.parametrize(
    ("driver", "glx"),
    [
        ("usr/lib/nvidia/current/", "usr/lib/nvidia/current/"),
        (f"{WIDE}/nvidia/xorg/", f"{WIDE}/nvidia/xorg/"),
        ("usr/lib64/xorg/modules/drivers/", "usr/lib64/xorg/modules/extensions/"),
        ("usr/lib/xorg/modules/updates/drivers/", "usr/lib/xorg/modules/updates/extensions/"),
    ],
)
def test_modules_of_the_x_server(driver, glx, root):
    write(root, f"{driver}nvidia_drv.so", "usr/lib/nvidia/tesla-470/nvidia_drv.so", f"{glx}libglxserver_nvidia.so.575.1")
    assert find(str(root), VERSION) == ()  # which version that driver is nobody says
    write(root, f"{glx}libglxserver_nvidia.so.{VERSION}")
    found = find(str(root), VERSION)
    assert sources(root, found) == {f"{driver}nvidia_drv.so", f"{glx}libglxserver_nvidia.so.{VERSION}"}
    assert names(found, "xorg") == ["drivers/nvidia_drv.so", f"extensions/libglxserver_nvidia.so.{VERSION}"]
    assert needed(found, parse_capabilities("graphics")) == () and needed(found, parse_capabilities("display")) == found


@pytest.mark.parametrize("layout", ["debian-535", "debian-550", "rpm-580", "rpm-615"])
def test_all_that_is_found_lies_where_is_searched(layout, root):
    """So that what is kept is looked at again once another file lies there."""
    top = driver_trees.make(root / "driver", VERSION, layout)
    looked = {os.path.realpath(top / place) for place in searched(str(top), VERSION)}
    found = find(str(top), VERSION)
    assert len(found) > 30 and {os.path.dirname(file.source) for file in found} <= looked


def test_when_a_place_has_changed(root):
    driver(root, "usr/lib64")
    (root / "lib64").symlink_to("usr/lib64")
    places = ["usr/lib64", "lib64", "usr/lib", "etc/ld.so.cache"]
    before = changed_at(str(root), places)
    assert before[0] == before[1] == (root / "usr/lib64").stat().st_ctime_ns and before[2:] == [-1, -1]
    (root / "usr/lib").mkdir()
    (root / "usr/lib64").chmod(0o700)
    (root / "lib64").unlink()
    after = changed_at(str(root), places)
    assert after[0] > before[0] and after[1] == -1 and after[2] > 0


def test_capabilities():
    assert parse_capabilities("") == parse_capabilities("gpu") == {"utility", "compute"}
    assert parse_capabilities(" utility , gpu") == {"utility"}
    assert parse_capabilities("video") == {"video", "compute"}
    assert parse_capabilities("all") == {"compute", "compat32", "graphics", "utility", "video", "display", "ngx"}
    with pytest.raises(GpuError, match="'teapot'"):
        parse_capabilities("compute,teapot")


@pytest.mark.parametrize("path", [f"usr/lib64/libcuda.so.{VERSION}", "usr/lib64", "usr"])
def test_what_others_may_change_is_an_error(path, root):
    driver(root, "usr/lib64")
    (root / path).chmod(0o777)
    with pytest.raises(GpuError, match="can be changed by others"):
        find(str(root), VERSION)


@pytest.mark.parametrize("path", [f"usr/lib64/libcuda.so.{VERSION}", "usr/lib64"])
def test_what_another_group_may_change_is_an_error(path, root):
    others = 4711 if os.geteuid() == 0 else next((gid for gid in os.getgroups() if gid != os.getegid()), None)
    if others is None:
        pytest.skip("this user is in one group alone")
    driver(root, "usr/lib64")
    os.chown(root / path, -1, others)
    (root / path).chmod(0o775)
    with pytest.raises(GpuError, match="can be changed by others"):
        find(str(root), VERSION)


def test_a_file_is_not_protected_by_a_sticky_bit(root):
    """As a directory is."""
    driver(root, "usr/lib64")
    (root / "usr/lib64").chmod(0o1777)
    assert find(str(root), VERSION)
    (root / f"usr/lib64/libcuda.so.{VERSION}").chmod(0o1777)
    with pytest.raises(GpuError, match="can be changed by others"):
        find(str(root), VERSION)


def test_what_gpudirect_storage_reads_is_the_administrators_alone(tmp_path):
    path = tmp_path / "etc/cufile.json"
    path.parent.mkdir(mode=0o755)
    path.touch(mode=0o644)
    path.chmod(0o644)
    assert [file.source for file in driver_files.of_gds(str(tmp_path))] == [str(path)]
    path.chmod(0o646)
    with pytest.raises(GpuError, match="can be changed by others"):
        driver_files.of_gds(str(tmp_path))


def test_the_newest_of_several_is_the_installed_one(root):
    for version in ("575.99.1", "580.65.06", "580.9"):
        library(root / f"usr/lib64/libcuda.so.{version}", "libcuda.so.1")
    assert installed_version(str(root)) == "580.65.06"


@pytest.mark.parametrize(
    ("name", "address", "same"),
    [
        ("0000:3b:00.0", "0000:3b:00.0", True),
        ("00000000:3B:00.0", "0000:3b:00.0", True),
        ("0001:3b:00.0", "0000:3b:00.0", False),
        ("0000:3b:00.0", "0000:3c:00.0", False),
    ],
)
def test_pci_addresses(name, address, same):
    assert _same(name, address) is same


# ---- ELF ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [32, 64])
def test_soname_and_note(bits, tmp_path):
    library(tmp_path / "library", "libcuda.so.1", bits=bits, note=b'{"CUDA Version": "13.0", "Driver": ["535", 570]}')
    with open(tmp_path / "library", "rb") as stream:
        assert elf.read(stream.fileno()) == elf.Elf(bits, "libcuda.so.1")
        said = elf.note(stream.fileno(), ".note.cuda.fwd_compatibility")
        assert elf.note(stream.fileno(), ".note.other") is None
    assert said is not None
    assert _majors(said) == {535, 570}


@pytest.mark.parametrize("said", [b"", b"[]", b'{"Driver": 3}', b'{"Driver": ["x"]}', b"[" * 100_000])
def test_a_note_that_makes_no_sense_names_no_driver(said):
    assert _majors(said) == frozenset()


def test_any_byte_may_be_wrong(tmp_path):
    library(tmp_path / "library", "libcuda.so.1", note=b"{}")
    sound = (tmp_path / "library").read_bytes()
    refused = 0
    for place in range(len(sound)):
        for value in (0x00, 0xFF):
            (tmp_path / "other").write_bytes(sound[:place] + bytes([value]) + sound[place + 1 :])
            with open(tmp_path / "other", "rb") as stream:
                try:
                    elf.read(stream.fileno())
                    elf.note(stream.fileno(), ".note.cuda.fwd_compatibility")
                except ValueError:
                    refused += 1
    assert refused > 20
