"""The NVIDIA driver's files in a sandbox with a GPU: real ones of Debian's packages, in images of Debian's and of Red Hat's layout."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import boxes, driver_roots, driver_trees, glibc_images
from support.elf_files import library
from support.make_image import directory, file, symlink
from support.requires import requires

import dockless
from dockless.base import paths
from dockless.errors import GpuError
from dockless.sandbox.gpus import driver_files, extra_layer, injection

pytestmark = [
    requires("userns", "overlay", "program:gcc"),
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this host has a real NVIDIA driver"),
]


@pytest.fixture
def driver(monkeypatch):
    """Let simulated GPUs have the driver below a directory."""

    def use(root: Path) -> None:
        home = Path(os.environ["DOCKLESS_HOME"])
        home.mkdir(exist_ok=True)
        (home / "dockless.toml").write_text(f'[gpus]\ndriver_root = "{root}"\n')
        monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")

    return use


@pytest.fixture
def real(driver):
    def use(family: str = "535") -> None:
        if why := driver_roots.missing(family):
            pytest.skip(why)
        driver(driver_roots.root(family))

    return use


@pytest.mark.parametrize("kind", ["debian", "rpm"])
@pytest.mark.parametrize("family", driver_roots.CUDA)
def test_libcuda_answers_and_ldconfig_knows_it(family, kind, real, tmp_path):
    real(family)
    image = glibc_images.load(tmp_path, kind)
    result = dockless.run(
        image, ["sh", "-c", "probe; ldconfig -p | grep libcuda; nvidia-smi; echo $?"], gpus=1, capture_output=True, text=True
    )
    lines = result.stdout.splitlines()
    assert lines[0] == str(driver_roots.CUDA[family]), result
    assert lines[1].endswith(f"=> /{glibc_images.DIRECTORY[kind]}/libcuda.so.1")
    # An ordinary user's simulated GPU is /dev/null, which opens.
    told, code = ("couldn't communicate with the NVIDIA driver", "9") if os.geteuid() == 0 else ("Failed to initialize NVML", "17")
    assert told in result.stdout and lines[-1] == code


@pytest.mark.parametrize("kind", ["debian", "rpm"])
@pytest.mark.parametrize("family", driver_roots.VERSIONS)
def test_libraries_for_graphics_are_known_and_open(family, kind, real, tmp_path):
    real(family)
    version, place = driver_roots.VERSIONS[family], f"/{glibc_images.DIRECTORY[kind]}"
    look = f"""
        for name in libGLX_nvidia.so.0 libEGL_nvidia.so.0 libGLESv2_nvidia.so.2 libnvidia-glcore.so.{version}; do
            ldconfig -p | grep -F "$name ("
        done
        probe libEGL_nvidia.so.0; probe libnvidia-eglcore.so.{version}; probe libnvidia-glvkspirv.so.{version}
        cat /usr/share/vulkan/icd.d/nvidia_icd.json /usr/share/glvnd/egl_vendor.d/10_nvidia.json
    """
    image = glibc_images.load(tmp_path, kind)
    found = output(image, look, gpus="capabilities=graphics")
    assert [line.rpartition("=> ")[2] for line in found[:4]] == [
        f"{place}/{name}"
        for name in ("libGLX_nvidia.so.0", "libEGL_nvidia.so.0", "libGLESv2_nvidia.so.2", f"libnvidia-glcore.so.{version}")
    ]
    assert found[4:7] == ["0", "0", "0"], found  # opened: no library that they need is missing
    assert re.findall(r'"library_path" *: *"([^"]*)"', "".join(found[7:])) == ["libGLX_nvidia.so.0", "libEGL_nvidia.so.0"]
    assert output(image, "ldconfig -p | grep -c nvidia; probe libEGL_nvidia.so.0 | grep -c 'cannot open'", gpus=1)[1] == "1"


@pytest.mark.parametrize("kind", ["debian", "rpm"])
@pytest.mark.parametrize("family", driver_roots.CUDA)
def test_an_image_with_another_glibc_than_the_hosts(family, kind, real, tmp_path):
    """That of Debian 13, 2.41: its ldconfig reads the cache that ours has written, and writes another."""
    if platform.libc_ver()[1] == "2.41":
        pytest.skip("it is this host's own")
    real("glibc-2.41")
    real(family)
    image = glibc_images.load(tmp_path, kind, glibc=driver_roots.root("glibc-2.41"))
    look = "ldconfig --version | head -n 1; probe; ldconfig -p | grep -F 'libcuda.so.1 ('; ldconfig; probe"
    found = output(image, look, gpus=1)
    cuda = str(driver_roots.CUDA[family])
    assert found[0].endswith(" 2.41") and (found[1], found[3]) == (cuda, cuda)
    assert found[2].endswith(f"=> /{glibc_images.DIRECTORY[kind]}/libcuda.so.1")


# ---- what need not be a driver's: small libraries with its names ---------------------------------------------------------------------


VERSION = "600.10.01"


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory) -> Path:
    """A driver of three libraries that do nothing, as NVIDIA's installer places them."""
    root = tmp_path_factory.mktemp("driver")
    root.chmod(0o755)
    where = root / glibc_images.DIRECTORY["debian"]
    where.mkdir(parents=True)
    for name, soname in (("libcuda", "libcuda.so.1"), ("libnvidia-ml", "libnvidia-ml.so.1"), ("libnvidia-encode", "libnvidia-encode.so.1")):
        command = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-x", "c", "/dev/null", "-o", f"{where}/{name}.so.{VERSION}"]
        subprocess.run(command, check=True, capture_output=True)
    (where / "libcuda.so.1").symlink_to(f"libcuda.so.{VERSION}")
    library(where / f"vdpau/libvdpau_nvidia.so.{VERSION}", "libvdpau_nvidia.so.1")
    library(root / f"usr/lib32/libcuda.so.{VERSION}", "libcuda.so.1", bits=32)
    (root / "usr/bin").mkdir()
    (root / "usr/bin/nvidia-smi").write_text("#!/bin/sh\necho this is nvidia-smi\n")
    (root / "usr/bin/nvidia-smi").chmod(0o755)
    proc = root / "proc/driver/nvidia"
    for number in (0, 1):
        (proc / f"gpus/d0c1:1{number}:00.0").mkdir(parents=True)
        (proc / f"gpus/d0c1:1{number}:00.0/information").write_text(f"GPU {number}\n")
    for instance in (1, 2):
        for path in (f"gi{instance}/access", f"gi{instance}/ci0/access", f"gi{instance}/ci1/access"):
            (proc / "capabilities/gpu0/mig" / path).parent.mkdir(parents=True, exist_ok=True)
            (proc / "capabilities/gpu0/mig" / path).write_text(f"of {path}\n")
    (root / "proc/driver/nvidia-caps").mkdir()
    (root / "proc/driver/nvidia-caps/mig-minors").write_text("gpu0/gi1/access 12\n")
    (proc / "params").write_text("ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n")
    (proc / "version").write_text(f"NVRM version: {VERSION}\n")
    return root


@pytest.fixture
def image(tmp_path, stand_in, driver):
    driver(stand_in)
    return glibc_images.load(tmp_path, "debian")


def output(image: str, script: str, **options: Any) -> list[str]:
    result = dockless.run(image, ["sh", "-c", script], capture_output=True, text=True, check=True, **options)
    return result.stdout.splitlines()


LIST = "cd /usr/lib/*-linux-gnu && ls | grep -e cuda -e nvidia; ls /usr/bin | grep nvidia; ldconfig -p | grep -c -e cuda -e nvidia"


def test_the_default_is_utility_and_compute(image):
    names = ["libcuda.so", "libcuda.so.1", f"libcuda.so.{VERSION}", "libnvidia-ml.so.1", f"libnvidia-ml.so.{VERSION}", "nvidia-smi", "2"]
    assert output(image, LIST, gpus=1) == names
    assert output(image, "nvidia-smi; readlink /usr/lib/*/libcuda.so.1", gpus=1) == ["this is nvidia-smi", f"libcuda.so.{VERSION}"]


@pytest.mark.parametrize(
    "wanted",
    [{"gpus": "capabilities=utility"}, {"gpus": 1, "env": {"NVIDIA_DRIVER_CAPABILITIES": "utility"}}],
)
def test_capabilities_choose_the_files(wanted, image):
    assert output(image, LIST, **wanted) == ["libnvidia-ml.so.1", f"libnvidia-ml.so.{VERSION}", "nvidia-smi", "1"]


def test_the_image_chooses_where_nobody_else_does(tmp_path, stand_in, driver):
    driver(stand_in)
    image = glibc_images.load(tmp_path, "debian", env={"NVIDIA_DRIVER_CAPABILITIES": "video", "NVIDIA_VISIBLE_DEVICES": "1,0"})
    found = output(image, LIST + "; ls /dev | grep nvidia[0-9]", gpus=1)
    assert f"libnvidia-encode.so.{VERSION}" in found and f"libnvidia-ml.so.{VERSION}" not in found
    assert len([name for name in found if name.startswith("nvidia")]) == 1  # a list of GPUs in an image gives none


def test_an_unknown_capability_is_an_error(image):
    with pytest.raises(GpuError, match="'everything'"):
        dockless.run(image, ["true"], gpus=1, env={"NVIDIA_DRIVER_CAPABILITIES": "everything"})


@pytest.mark.parametrize("said", ["void", " void", "0,void", "0, void ,1"])
def test_void_leaves_the_files_out(said, image):
    script = "ls /usr/lib/*/libcuda* 2>/dev/null; ls /dev | grep nvidiactl"
    assert output(image, script, gpus=1, env={"NVIDIA_VISIBLE_DEVICES": said}) == ["nvidiactl"]


SEEN = "ls /usr/lib/*/libcuda.so.1 2> /dev/null | wc -l; ls /dev | grep '^nvidia[0-9]'; echo $NVIDIA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    "said", [None, "", " , ", "all", "1", "0,1", "GPU-51d01a7e-d000-4000-8000-000000000001", "none", "void", "0,void", "none,void"]
)
def test_an_image_says_neither_whether_there_are_gpus_nor_which(said, tmp_path, stand_in, driver):
    """As with Docker's --gpus, which goes before what the image says."""
    driver(stand_in)
    image = glibc_images.load(tmp_path, "debian", env={} if said is None else {"NVIDIA_VISIBLE_DEVICES": said})
    assert output(image, SEEN, gpus="device=0") == ["1", "nvidia1", "void"]  # the minor of GPU 0
    assert output(image, SEEN) == ["1" if said == "none" else "0", "void"]


@pytest.mark.parametrize("said", ["", "all", "0", "none"])
def test_nothing_but_void_of_the_callers_leaves_the_files_out(said, image):
    assert output(image, SEEN, gpus="device=0", env={"NVIDIA_VISIBLE_DEVICES": said}) == ["1", "nvidia1", "void"]


@pytest.mark.parametrize(
    ("of_image", "said", "files"), [("none", "all", "0"), ("all", " none", "1"), ("none", "none,void", "0"), ("void", "none", "1")]
)
def test_none_gives_the_files_without_a_gpu(of_image, said, files, tmp_path, stand_in, driver):
    """The caller's goes before the image's."""
    driver(stand_in)
    image = glibc_images.load(
        tmp_path, "debian", env={"NVIDIA_VISIBLE_DEVICES": of_image, "NVIDIA_DRIVER_CAPABILITIES": "compute,graphics"}
    )
    assert output(image, "true") == []  # a plan that is kept, and is not this one's
    assert output(image, SEEN, env={"NVIDIA_VISIBLE_DEVICES": said}) == [files, "void"]
    if files == "1":
        look = "ls -A /proc/driver/nvidia /run; cat /etc/nvidia/nvidia-application-profiles-rc.d/*; ls /dev | grep nvidia || true"
        found = output(image, look, env={"NVIDIA_VISIBLE_DEVICES": said})
        assert not {"gpus", "nvidia-persistenced"} & set(found)
        assert json.loads(found[-1])["profiles"][0]["settings"] == ["EGLVisibleDGPUDevices", 0]


def test_none_shows_no_socket_of_the_drivers_daemons(image, stand_in, monkeypatch):
    (stand_in / "run/nvidia-persistenced").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listening:
        with monkeypatch.context() as patch:
            patch.chdir(stand_in / "run/nvidia-persistenced")
            listening.bind("socket")
        try:
            look = "ls -d /run/nvidia-persistenced 2> /dev/null || echo none"
            assert output(image, look, env={"NVIDIA_VISIBLE_DEVICES": "none"}) == ["none"]
            assert output(image, look, gpus=1) == ["/run/nvidia-persistenced"]
        finally:
            shutil.rmtree(stand_in / "run")


def test_none_on_a_host_without_a_driver_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G")
    image = glibc_images.load(tmp_path, "debian", env={"NVIDIA_VISIBLE_DEVICES": "none"})
    told = dockless.run(image, ["true"], capture_output=True, check=True).warnings
    assert [line for line in told if "this host has none" in line]


@pytest.mark.parametrize(
    ("variables", "all_of_it"),
    [
        ({"CUDA_VERSION": "9.0.176"}, True),
        ({"CUDA_VERSION": "9.0.176", "NVIDIA_REQUIRE_CUDA": ""}, True),
        ({"CUDA_VERSION": "9.0.176", "NVIDIA_REQUIRE_CUDA": "cuda>=9.0"}, False),
        ({"CUDA_VERSION": "9.0.176", "NVIDIA_DRIVER_CAPABILITIES": ""}, False),
        ({"CUDA_VERSION": "9.0.176", "NVIDIA_DRIVER_CAPABILITIES": "utility,compute"}, False),
    ],
)
def test_a_legacy_image_gets_the_whole_driver(variables, all_of_it, tmp_path, stand_in, driver):
    """One from before there were capabilities and requirements."""
    driver(stand_in)
    image = glibc_images.load(tmp_path, "debian", env=variables)
    found = output(image, "ls /usr/lib/*/", gpus=1)
    assert (f"libnvidia-encode.so.{VERSION}" in found) is all_of_it and f"libnvidia-ml.so.{VERSION}" in found


def test_without_a_gpu_there_is_nothing_of_it(image):
    before = output(image, "find / -xdev | grep -v ^/proc | sort; cat /etc/ld.so.cache | sha256sum")
    output(image, "true", gpus=1)
    assert output(image, "find / -xdev | grep -v ^/proc | sort; cat /etc/ld.so.cache | sha256sum") == before
    assert not any("cuda" in line or "nvidia" in line for line in before)


def test_nothing_of_it_is_in_a_diff_or_a_commit(image):
    box = dockless.start(image, ["sh", "-c", "echo hello > /made; ldconfig -p | grep -q libcuda"], gpus=1)
    try:
        assert box.wait().exit_code == 0
        assert [(change.kind, change.path) for change in dockless.diff(box)] == [("A", "/made")]
        dockless.commit(box, "after:latest")
    finally:
        box.rm(force=True)
    assert not [line for line in output("after", "find / -xdev | grep -v ^/proc; ldconfig -p") if "cuda" in line or "nvidia" in line]


def test_a_program_can_run_ldconfig_itself(image):
    found = output(image, "ldconfig 2>&1; ldconfig -p | grep libcuda.so.1; rm /usr/lib/*/libcuda.so.1 && echo gone", gpus=1)
    assert len(found) == 2 and "libcuda.so.1" in found[0] and found[1] == "gone"


def test_files_are_read_only_mounts(image):
    mounts = output(image, "grep -e /libcuda -e /nvidia-smi -e ' /proc/driver' /proc/self/mountinfo", gpus="device=1")
    attributes = {line.split()[4]: set(line.split()[5].split(",")) for line in mounts}
    places = ["nvidia/gpus/d0c1:11:00.0", "nvidia-caps"]
    assert set(attributes) == {
        f"/{glibc_images.DIRECTORY['debian']}/libcuda.so.{VERSION}",
        "/usr/bin/nvidia-smi",
        "/proc/driver",
        *(f"/proc/driver/{place}" for place in places),
    }
    assert all({"ro", "nosuid", "nodev"} <= found for found in attributes.values())


def test_graphics_counts_the_leased_gpus_alone(image):
    profile, link = output(
        image,
        "cat /etc/nvidia/nvidia-application-profiles-rc.d/*; echo; readlink /usr/lib/*/gbm/nvidia-drm_gbm.so",
        gpus="device=0,capabilities=graphics",
    )
    assert json.loads(profile)["profiles"][0]["settings"] == ["EGLVisibleDGPUDevices", 2]  # its minor is 1
    assert link == "../libnvidia-allocator.so.1"


@pytest.mark.parametrize("kind", ["debian", "rpm"])
def test_vulkan_finds_a_library_that_its_file_names_by_the_hosts_path(kind, tmp_path, driver):
    """As the files of Red Hat's packages do, and the image has its libraries in another directory."""
    root = driver_trees.make(tmp_path / "root", VERSION, "rpm-615")
    file = root / f"usr/share/vulkan/icd.d/nvidia_icd.{os.uname().machine}.json"
    file.write_text('{"ICD": {"library_path": "/usr/lib64/libGLX_nvidia.so.0"}}')
    driver(root)
    image = glibc_images.load(tmp_path, kind)
    look = f"cat /{file.relative_to(root)}; echo; readlink -f /usr/lib64/libGLX_nvidia.so.0"
    found = output(image, look, gpus="capabilities=graphics")
    assert found == [file.read_text(), f"/{glibc_images.DIRECTORY[kind]}/libGLX_nvidia.so.{VERSION}"]


@pytest.mark.parametrize(("kind", "modules"), [("debian", "/usr/lib/xorg/modules"), ("rpm", "/usr/lib64/xorg/modules")])
def test_the_x_servers_modules_are_where_the_image_has_them(kind, modules, tmp_path, driver):
    root = driver_trees.make(tmp_path / "root", VERSION, "debian-550")
    driver(root)
    image = glibc_images.load(tmp_path, kind)
    found = output(image, f"cd {modules}; readlink extensions/*.so; ls drivers; ls / | grep -c xorg || true", gpus="capabilities=display")
    assert found == [f"libglxserver_nvidia.so.{VERSION}", "nvidia_drv.so", "0"]
    assert output(image, f"ls {modules} 2> /dev/null || echo none", gpus="capabilities=graphics") == ["none"]


def test_sockets_of_the_drivers_daemons_are_there(image, stand_in, monkeypatch):
    (stand_in / "run/nvidia-persistenced").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listening:
        with monkeypatch.context() as patch:
            patch.chdir(stand_in / "run/nvidia-persistenced")  # a socket's path is short
            listening.bind("socket")
        try:
            look = "test -S /run/nvidia-persistenced/socket && grep -c 'nvidia-persistenced/socket .*noexec' /proc/self/mountinfo"
            assert output(image, look, gpus=1) == ["1"]
            assert output(image, f"{look} || echo none", gpus="capabilities=compute") == ["none"]
        finally:
            shutil.rmtree(stand_in / "run")
    assert output(image, "test -e /run/nvidia-persistenced || echo none", gpus=1) == ["none"]


@pytest.mark.parametrize("allowed", [True, False])
def test_gpudirect_storage_reads_its_settings_and_which_disks_there_are(allowed, image, stand_in, tmp_path, monkeypatch):
    (tmp_path / "gds/etc").mkdir(parents=True)
    (tmp_path / "gds/etc/cufile.json").write_text("{}")
    (tmp_path / "gds/run/udev/data").mkdir(parents=True)
    of_gds = driver_files.of_gds
    monkeypatch.setattr(driver_files, "of_gds", lambda: of_gds(str(tmp_path / "gds")))
    if allowed:
        with open(Path(os.environ["DOCKLESS_HOME"]) / "dockless.toml", "a") as settings:
            settings.write('beside = ["gds"]\n')
    look = "cat /etc/cufile.json /run/udev/none 2> /dev/null; ls /run/udev 2> /dev/null; touch /run/udev/x 2> /dev/null || echo closed"
    asked = {"NVIDIA_GDS": "enabled"}
    assert output(image, look, gpus=1, env=asked) == (["{}data", "closed"] if allowed else ["closed"])
    assert output(image, look, env={**asked, "NVIDIA_VISIBLE_DEVICES": "none"}) == output(image, look, gpus=1) == ["closed"]


def test_it_is_there_again_after_a_restart_whatever_became_of_it(image):
    script = "ldconfig -p 2> /dev/null | grep -c libcuda.so.1; rm -f /usr/lib/*/libcuda.so /etc/ld.so.cache; ls /usr/lib/*/libcuda* | wc -l"
    box = dockless.start(image, ["sh", "-c", script], gpus=1)
    try:
        box.wait()
        assert [row.text.strip() for row in box.logs()] == [b"1", b"2"]
        assert {change.path for change in dockless.diff(box) if change.kind != "C"} <= {"/etc/ld.so.cache"}
        box.start()
        box.wait()
        assert [row.text.strip() for row in box.logs()][2:] == [b"0", b"2"]
    finally:
        box.rm(force=True)


def test_alpine_is_told(tmp_path, stand_in, driver):
    driver(stand_in)
    entries = [file(f"lib/ld-musl-{os.uname().machine}.so.1", b"", 0o755), file("etc/alpine-release", "3.20.0\n")]
    image = boxes.load(tmp_path, [directory("lib"), *entries], name="alpine:3.20")
    result = dockless.run(image, ["find", "/usr", "-name", "*cuda*"], gpus=1, capture_output=True)
    assert result.stdout == b""
    assert [line for line in result.warnings if "alpine:3.20 is Alpine with musl" in line and "needs glibc" in line]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"NVIDIA_REQUIRE_DRIVER": "driver>=700"}, "needs driver>=700"),
        ({"NVIDIA_REQUIRE_DRIVER": "driver>=700 driver<400"}, "needs driver>=700 or driver<400"),
    ],
)
def test_a_requirement_that_does_not_hold_is_an_error(variables, words, tmp_path, stand_in, driver):
    driver(stand_in)
    image = glibc_images.load(tmp_path, "debian", env=variables)
    with pytest.raises(GpuError, match=re.escape(words)):
        dockless.run(image, ["true"], gpus=1)
    assert dockless.run(image, ["true"], gpus=1, env={"NVIDIA_DISABLE_REQUIRE": "1"}).returncode == 0


@pytest.mark.parametrize(
    ("theirs", "drivers", "taken"),
    [
        ("610.1", ["590", "600"], True),
        ("610.1", ["590"], False),  # made for another driver
        ("600.01", ["600"], False),  # older than the driver
        ("610.1", None, True),
        ("600.20", None, False),  # of the same major version, and says nothing
    ],
)
def test_a_newer_libcuda_of_the_image_stands_above_the_driver(theirs, drivers, taken, tmp_path, stand_in, driver):
    driver(stand_in)
    note = None if drivers is None else json.dumps({"CUDA Version": "13.0", "Driver": drivers}).encode()
    library(tmp_path / "libcuda", "libcuda.so.1", note=note)
    compat = "usr/local/cuda/compat"
    more = [
        file(f"{compat}/libcuda.so.{theirs}", (tmp_path / "libcuda").read_bytes()),
        symlink(f"{compat}/libcuda.so.1", f"libcuda.so.{theirs}"),
    ]
    image = glibc_images.load(tmp_path, "debian", more)
    found = output(image, "ldconfig -p | grep -e libcuda -e nvidia-ml", gpus=1)
    directory = compat if taken else glibc_images.DIRECTORY["debian"]
    assert [line.rpartition(" => ")[2] for line in found] == [
        f"/{glibc_images.DIRECTORY['debian']}/libnvidia-ml.so.1",
        f"/{directory}/libcuda.so.1",
    ]


COMPAT = "usr/local/cuda/compat"
INCLUDE = "include /etc/ld.so.conf.d/*.conf\n"
PLACE = f"/{glibc_images.DIRECTORY['debian']}\n"


@pytest.mark.parametrize(
    ("more", "configuration"),
    [
        ([file("etc/.wh.ld.so.conf", b"")], INCLUDE),
        ([file("etc/ld.so.conf", PLACE)], INCLUDE + PLACE),
        ([file("etc/ld.so.conf", INCLUDE), directory("etc/ld.so.conf.d"), file("etc/ld.so.conf.d/multiarch.conf", PLACE)], INCLUDE),
        ([file("etc/ld.so.conf", "include ld.so.conf.d/*.conf # all"), symlink("etc/ld.so.conf.d", "../../opt"), directory("opt")], None),
        ([file("etc/own.conf", PLACE), symlink("etc/ld.so.conf", "../../../etc/own.conf")], INCLUDE + PLACE),
        ([directory("etc/ld.so.conf.d"), file("etc/ld.so.conf", f"include ld.so.conf.d/a*.conf\n{PLACE}")], None),
    ],
    ids=["no file", "no include", "Debian's", "links", "a link", "another include"],
)
def test_it_stands_there_after_an_ldconfig_inside_too(more, configuration, tmp_path, stand_in, driver):
    """As the installation of any package runs one."""
    driver(stand_in)
    command = ["gcc", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-x", "c", "/dev/null", "-o", str(tmp_path / "libcuda")]
    subprocess.run(command, check=True, capture_output=True)
    compat = [
        file(f"{COMPAT}/libcuda.so.610.1", (tmp_path / "libcuda").read_bytes()),
        symlink(f"{COMPAT}/libcuda.so.1", "libcuda.so.610.1"),
    ]
    image = glibc_images.load(tmp_path, "debian", [*compat, *more])
    look = "ldconfig -p | grep libcuda.so.1 | head -n 1; LD_DEBUG=libs probe 2>&1 | grep -m 1 'trying file=.*libcuda.so.1'"
    found = output(image, f"{look}; ldconfig 2> /dev/null; {look}; cat /etc/ld.so.conf", gpus=1)
    assert [line.split("=")[-1].lstrip("> ") for line in found[:4]] == [f"/{COMPAT}/libcuda.so.1"] * 4
    if configuration is not None:
        assert "".join(f"{line}\n" for line in found[4:]) == configuration
    assert "dockless" not in " ".join(output(image, "ls /etc/ld.so.conf.d 2> /dev/null; true"))


@pytest.mark.parametrize("theirs", ["500.1", ""])
def test_the_linkers_configuration_stays_as_it_is_where_the_driver_is_the_newer(theirs, tmp_path, stand_in, driver):
    driver(stand_in)
    library(tmp_path / "libcuda", "libcuda.so.1")
    more = [file(f"{COMPAT}/libcuda.so.{theirs}", (tmp_path / "libcuda").read_bytes())] if theirs else []
    image = glibc_images.load(tmp_path, "debian", more)
    assert output(image, "cat /etc/ld.so.conf; ls -d /etc/ld.so.conf.d 2> /dev/null || echo none", gpus=1) == [PLACE.strip(), "none"]


def test_proc_driver_shows_the_leased_gpu_alone(image):
    found = output(
        image,
        "cd /proc/driver; ls nvidia/gpus; cat nvidia/gpus/*/information nvidia/params nvidia/version; echo x > nvidia/params || true",
        gpus="device=1",
    )
    assert found == [
        "d0c1:11:00.0",
        "GPU 1",
        "ResmanDebugLevel: 4294967295",
        "ModifyDeviceFiles: 0",
        "DeviceFileMode: 438",
        f"NVRM version: {VERSION}",
    ]


def test_proc_driver_shows_the_leased_slice_alone(image, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G,mig=2")
    found = output(image, "cd /proc/driver; find . -type f | sort; cat nvidia/capabilities/gpu0/mig/gi2/ci0/access", gpus="device=1:1")
    assert found == [
        "./nvidia-caps/mig-minors",
        "./nvidia/capabilities/gpu0/mig/gi2/access",
        "./nvidia/capabilities/gpu0/mig/gi2/ci0/access",
        "./nvidia/gpus/d0c1:11:00.0/information",
        "./nvidia/params",
        "./nvidia/version",
        "of gi2/ci0/access",
    ]


def test_32_bit_libraries_and_those_of_vdpau_have_places_of_their_own(image):
    script = "ls /usr/lib/i386-linux-gnu /usr/lib/x86_64-linux-gnu/vdpau; ldconfig -p | grep -e libcuda -e vdpau"
    if os.uname().machine != "x86_64":
        pytest.skip("the places are those of x86_64")
    assert output(image, script, gpus="capabilities=video,compat32") == [
        "/usr/lib/i386-linux-gnu:",
        "libcuda.so",
        "libcuda.so.1",
        f"libcuda.so.{VERSION}",
        "",
        "/usr/lib/x86_64-linux-gnu/vdpau:",
        "libvdpau_nvidia.so.1",
        f"libvdpau_nvidia.so.{VERSION}",
        "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1",
    ]


def test_an_image_whose_directories_are_links(tmp_path, stand_in, driver):
    """Nothing lands outside of its root, and the links stay."""
    driver(stand_in)
    more = [directory("opt"), directory("opt/libraries", 0o750), directory("opt/programs")]
    more += [symlink("usr/lib64", "../../../opt/libraries"), symlink("usr/bin", "/opt/programs")]
    image = boxes.load(tmp_path, more, without={"usr/bin"})
    found = output(image, "ls /opt/libraries /opt/programs; stat -c %a /opt/libraries; readlink /usr/lib64; readlink /usr/bin", gpus=1)
    assert f"libcuda.so.{VERSION}" in found and "nvidia-smi" in found and found[-3:] == ["750", "../../../opt/libraries", "/opt/programs"]


@pytest.mark.parametrize("target", ["/", "../.."])
def test_directories_that_lead_to_the_images_root(target, tmp_path, stand_in, driver):
    """The image's, not the host's."""
    driver(stand_in)
    image = boxes.load(tmp_path, [symlink("usr/bin", target), symlink("usr/lib64", target)], without={"usr/bin"})
    names = {"nvidia-smi", "libcuda.so.1", f"libcuda.so.{VERSION}"}
    assert names <= set(output(image, "ls /", gpus="capabilities=compute,utility,graphics"))
    assert output(image, "cat /nvidia-smi; ls /gbm", gpus="capabilities=utility,graphics")[-1] == "nvidia-drm_gbm.so"
    assert names.isdisjoint(os.listdir("/"))


def test_directories_keep_their_modes_and_owners(tmp_path, stand_in, driver):
    """Red Hat's are 0555, in which an ordinary user makes nothing."""
    driver(stand_in)
    who = {"uid": 1000, "gid": 50} if os.geteuid() == 0 else {}
    more = [directory("usr", 0o555), directory("usr/bin", 0o555), directory("usr/lib64", 0o555), directory("etc", 0o775, **who)]
    image = boxes.load(tmp_path, more)
    script = "stat -c '%a %u %g %n' /usr /usr/bin /usr/lib64 /etc /"
    assert output(image, script, gpus=1) == output(image, script)
    assert "libcuda.so.1" in output(image, "ls /usr/lib64", gpus=1)


def test_an_image_that_leads_to_proc_is_refused(tmp_path, stand_in, driver):
    driver(stand_in)
    image = boxes.load(tmp_path, [symlink("usr/lib64", "/proc")])
    with pytest.raises(GpuError, match="leads to /proc"):
        dockless.run(image, ["true"], gpus=1)


def test_what_was_found_is_kept_and_looked_at_again(image, stand_in):
    output(image, "true", gpus=1)
    kept = {path: path.stat().st_ino for path in (paths.store() / "driver").rglob("*.json")}
    assert len(kept) == 2  # of the driver, and of the image's layer
    output(image, "true", gpus=1)
    assert {path: path.stat().st_ino for path in (paths.store() / "driver").rglob("*.json")} == kept
    program = stand_in / "usr/bin/nvidia-smi"
    program.write_text("#!/bin/sh\necho this is another one\n")
    assert output(image, "nvidia-smi", gpus=1) == ["this is another one"]
    away = program.rename(program.with_name("away"))
    try:
        assert output(image, "ls /usr/bin | grep nvidia || echo none", gpus=1) == ["none"]
    finally:
        away.rename(program)
        program.write_text("#!/bin/sh\necho this is nvidia-smi\n")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (f"{glibc_images.DIRECTORY['debian']}/libnvidia-cfg.so.{VERSION}", f"/{glibc_images.DIRECTORY['debian']}/libnvidia-cfg.so.1"),
        (f"usr/lib64/libnvidia-cfg.so.{VERSION}", f"/{glibc_images.DIRECTORY['debian']}/libnvidia-cfg.so.1"),
        (f"usr/lib/{os.uname().machine}-linux-gnu/nvidia/current/libnvidia-cfg.so.{VERSION}", "/usr/lib/*/libnvidia-cfg.so.1"),
        ("usr/bin/nvidia-debugdump", "/usr/bin/nvidia-debugdump"),
        ("usr/sbin/nvidia-persistenced", "/usr/bin/nvidia-persistenced"),
        ("etc/OpenCL/vendors/nvidia.icd", "/etc/OpenCL/vendors/nvidia.icd"),
        (f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin", f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"),
    ],
)
def test_what_is_installed_later_is_seen(path, shown, image, stand_in):
    script = f"ls {shown} 2> /dev/null || echo none"
    assert output(image, script, gpus=1) == ["none"]
    made = next(place for place in (*reversed((stand_in / path).parents), stand_in / path) if not place.exists())
    library(stand_in / path, "libnvidia-cfg.so.1")
    try:
        assert output(image, script, gpus=1) != ["none"]
    finally:
        shutil.rmtree(made) if made.is_dir() else made.unlink()
    assert output(image, script, gpus=1) == ["none"]


def test_a_library_that_was_just_being_written_is_seen_when_it_is_whole(image, stand_in):
    """In its place, as installers write it: its directory does not change any more."""
    path = stand_in / glibc_images.DIRECTORY["debian"] / f"libnvidia-cfg.so.{VERSION}"
    script = "ls /usr/lib/*/libnvidia-cfg.so.1 2> /dev/null || echo none"
    path.touch(0o644)
    try:
        assert output(image, script, gpus=1) == ["none"]
        library(path, "libnvidia-cfg.so.1")
        assert output(image, script, gpus=1) != ["none"]
    finally:
        path.unlink()


def test_a_libcuda_that_comes_later_is_no_longer_missed(image, stand_in):
    libcuda = stand_in / glibc_images.DIRECTORY["debian"] / f"libcuda.so.{VERSION}"
    away = libcuda.rename(stand_in / "away")  # one of 32 bits is left, by which simulated GPUs know the version
    try:
        told = dockless.run(image, ["true"], gpus=1, capture_output=True).warnings
    finally:
        away.rename(libcuda)
    missing = f"libcuda.so.{VERSION} is not on this host, so CUDA does not start: install the whole driver"
    assert missing in told and missing not in dockless.run(image, ["true"], gpus=1, capture_output=True).warnings


def test_the_driver_is_searched_once_for_all_images_and_capabilities(tmp_path, stand_in, driver, monkeypatch):
    searches = []
    find = driver_files.find
    monkeypatch.setattr(driver_files, "find", lambda *where: searches.append(where) or find(*where))
    driver(stand_in)
    one, other = glibc_images.load(tmp_path, "debian"), glibc_images.load(tmp_path, "rpm")
    for image, wanted in ((one, "utility"), (one, "compute"), (other, "compute"), (other, "all")):
        output(image, "true", gpus=f"capabilities={wanted}")
    assert searches == [(str(stand_in), VERSION)]


def test_what_was_kept_goes_with_the_boot(image):
    output(image, "true", gpus=1)
    (boot,) = (paths.store() / "driver").iterdir()
    boot.rename(boot.with_name("earlier"))
    assert output(image, "nvidia-smi", gpus=1) == ["this is nvidia-smi"]
    assert list((paths.store() / "driver").iterdir()) == [boot]


def test_what_is_kept_has_a_bound(image, monkeypatch):
    """An image says what is to be kept, by its variables. What a sandbox has stays, and so does what was used last."""
    monkeypatch.setattr(extra_layer, "KEPT", 2)
    with dockless.Sandbox(image, ["sleep", "1000"], gpus=1, env={"NVIDIA_DRIVER_CAPABILITIES": "all"}) as box:
        (oldest,) = (paths.store() / "driver").glob("*/driver-*")
        for wanted in ("utility", "compute", "utility", "graphics", "compute,video"):
            output(image, "true", gpus=1, env={"NVIDIA_DRIVER_CAPABILITIES": wanted})
        left = {path.name for path in (paths.store() / "driver").glob("*/driver-*")}
        assert oldest.name in left and len(left) == 3
        assert box.exec("nvidia-smi", text=True).stdout == "this is nvidia-smi\n"
        assert len([*(paths.store() / "driver").glob("*/*.json")]) == 2
    output(image, "true", gpus=1, env={"NVIDIA_DRIVER_CAPABILITIES": "utility,video"})
    left = {path.name for path in (paths.store() / "driver").glob("*/driver-*")}
    assert oldest.name not in left and len(left) == 2


def test_a_layer_that_goes_before_it_is_held_is_an_error(image, monkeypatch):
    def removed(*arguments):
        found = inject(*arguments)
        shutil.rmtree(found.layer.path.parent)
        return found

    inject = injection.inject
    monkeypatch.setattr(injection, "inject", removed)
    with pytest.raises(GpuError, match="has just been removed"):
        output(image, "true", gpus=1)


def test_a_layer_that_is_gone_is_made_again(image):
    output(image, "true", gpus=1)
    (layer,) = (paths.store() / "driver").glob("*/driver-*")
    shutil.rmtree(layer)
    assert output(image, "nvidia-smi", gpus=1) == ["this is nvidia-smi"]


@pytest.mark.parametrize("name", ["", f"libcuda.so.{VERSION}"], ids=["the directory", "the library"])
def test_a_file_that_others_may_change_is_refused(name, image, stand_in):
    output(image, "true", gpus=1)
    library = stand_in / glibc_images.DIRECTORY["debian"] / name
    library.chmod(0o777)
    try:
        with pytest.raises(GpuError, match="can be changed by others"):
            dockless.run(image, ["true"], gpus=1)
    finally:
        library.chmod(0o755)


def test_an_image_cannot_say_where_the_driver_is(tmp_path, stand_in, monkeypatch):
    """Simulated GPUs have no driver unless the settings say so."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G")
    image = glibc_images.load(tmp_path, "debian", env={"DOCKLESS_HOME": str(stand_in), "NVIDIA_DRIVER_ROOT": str(stand_in)})
    assert output(image, "ls /usr/lib/*/libcuda* 2>/dev/null; true", gpus=1) == []
