"""Trees of whole drivers by the names that their packages have: small files instead of NVIDIA's own, which may not be handed on.

The lists are of the packages of 580.95.05 (NVIDIA's installer and Red Hat's layout) and 615.71.09 (Debian's layout).
"""

from __future__ import annotations

from pathlib import Path

from support.elf_files import library

_LIBRARIES = """
libEGL_nvidia.so.0 libGLESv1_CM_nvidia.so.1 libGLESv2_nvidia.so.2 libGLX_nvidia.so.0 libcuda.so.1 libcudadebugger.so.1 libnvcuvid.so.1
libnvidia-allocator.so.1 libnvidia-cfg.so.1 libnvidia-eglcore.so libnvidia-encode.so.1 libnvidia-fbc.so.1 libnvidia-glcore.so
libnvidia-glsi.so libnvidia-glvkspirv.so libnvidia-gpucomp.so libnvidia-ml.so.1 libnvidia-ngx.so.1 libnvidia-nvvm.so.4
libnvidia-opencl.so.1 libnvidia-opticalflow.so.1 libnvidia-pkcs11-openssl3.so libnvidia-pkcs11.so libnvidia-ptxjitcompiler.so.1
libnvidia-rtcore.so libnvidia-sandboxutils.so.1 libnvidia-tls.so libnvoptix.so.1
""".split()
"""By their SONAMEs; one without a number after .so is its own file's name in the real driver."""
_NEW = ("libnvidia-tileiras.so.1",)
_OWN = ("libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-wayland.so.1.1.20", "libnvidia-egl-xcb.so.1.0.3", "libnvidia-egl-xlib.so.1.0.3")
_PROGRAMS = "nvidia-smi nvidia-debugdump nvidia-persistenced nvidia-cuda-mps-control nvidia-cuda-mps-server nvidia-modprobe nvidia-xconfig"
_FILES = """
etc/OpenCL/vendors/nvidia.icd usr/share/glvnd/egl_vendor.d/10_nvidia.json usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json
usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json usr/share/nvidia/nvoptix.bin usr/share/vulkan/icd.d/nvidia_icd.json
usr/share/vulkan/implicit_layer.d/nvidia_layers.json
""".split()


def make(root: Path, version: str, layout: str) -> Path:
    """``layout``: ``rpm``, or ``debian`` with its directory behind alternatives."""
    root.mkdir(mode=0o755)
    multiarch = "usr/lib/x86_64-linux-gnu"
    where = root / (f"{multiarch}/nvidia/current" if layout == "debian" else "usr/lib64")
    new = _NEW if version >= "600" else ()
    for soname in (*_LIBRARIES, *new):
        base = soname.partition(".so")[0]
        library(where / f"{base}.so.{version}", soname if soname[-1].isdigit() else f"{soname}.{version}")
    for name in _OWN:
        library(where / name, ".".join(name.split(".")[:3]))
    library(where / f"vdpau/libvdpau_nvidia.so.{version}", "libvdpau_nvidia.so.1")
    library(where / "libcuda.so.470.1", "libcuda.so.1")  # left of another version
    if layout == "debian":
        _write(root / "etc/debian_version", "13.0\n")
        (root / multiarch / "libcuda.so.1").symlink_to("nvidia/current/libcuda.so.1")
    else:
        library(root / f"usr/lib/libcuda.so.{version}", "libcuda.so.1", bits=32)
    for name in _PROGRAMS.split():
        _write(root / ("usr/lib/nvidia/current" if layout == "debian" and name == "nvidia-smi" else "usr/bin") / name)
    for name in (*_FILES, f"lib/firmware/nvidia/{version}/gsp_ga10x.bin", f"lib/firmware/nvidia/{version}/gsp_tu10x.bin"):
        _write(root / name)
    return root


def _write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
