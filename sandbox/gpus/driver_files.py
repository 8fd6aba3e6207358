"""The files of the NVIDIA driver that a program needs to use a GPU: which they are, and where this host has them.

::

    find("/", "580.65.06") ──► DriverFile …     libraries, programs, firmware, configuration; each with the capabilities that need it
    needed(files, capabilities)                 those of ``compute,utility`` and the like

A library is taken only if its name ends in exactly the version of the kernel's driver: another one cannot talk to it. They are looked for
in the directories of Debian (``nvidia/current`` behind alternatives, ``nvidia/tesla-470``), of NVIDIA's installer and of Red Hat, and in
those that the host's linker cache names. ``root`` is ``/``, or where the driver is installed apart (``gpus.driver_root``); no link leads
out of it. openat2(2), RESOLVE_IN_ROOT

The table follows ``nvc_info.c`` of NVIDIA's libnvidia-container, and the container toolkit's ``internal/discover/graphics.go`` and
``pkg/nvcdi``. As the toolkit does, a library of this version that the table does not know is taken, too: it is newer than the table.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import platform
import stat
from collections.abc import Callable, Iterable, Iterator

from dockless import native
from dockless.base import json, settings
from dockless.base.dataclass import dataclass
from dockless.base.path import Path
from dockless.base.paths import config_file
from dockless.errors import GpuError
from dockless.sandbox.gpus import elf, linker_cache
from dockless.sandbox.gpus.request import CAPABILITIES

MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
MULTIARCH_32 = {"x86_64": "i386-linux-gnu", "aarch64": "arm-linux-gnueabihf"}
DEFAULT_CAPABILITIES = frozenset({"utility", "compute"})

_LIBRARIES = {
    "utility": "libnvidia-ml libnvidia-cfg libnvidia-nscq libnvidia-sandboxutils",
    "compute": "libcuda libcudadebugger libnvidia-opencl libnvidia-gpucomp libnvidia-ptxjitcompiler libnvidia-fatbinaryloader"
    " libnvidia-allocator libnvidia-compiler libnvidia-pkcs11 libnvidia-pkcs11-openssl3 libnvidia-nvvm libnvidia-nvvm70 libnvidia-tileiras",
    "video": "libvdpau_nvidia libnvidia-encode libnvidia-opticalflow libnvcuvid",
    "graphics": "libnvidia-eglcore libnvidia-glcore libnvidia-tls libnvidia-glsi libnvidia-fbc libnvidia-ifr libnvidia-rtcore libnvoptix"
    " libGLX_nvidia libEGL_nvidia libGLESv2_nvidia libGLESv1_CM_nvidia libnvidia-glvkspirv libnvidia-cbl libnvidia-allocator"
    " libnvidia-gpucomp libnvidia-vulkan-producer libnvidia-present libnvidia-vksc-core",
    "ngx": "libnvidia-ngx",
}
_OWN_VERSIONS = ("libnvidia-nvvm70", "libnvidia-egl-gbm", "libnvidia-egl-wayland", "libnvidia-egl-wayland2", "libnvidia-egl-xcb",
                 "libnvidia-egl-xlib")  # fmt: skip
"""Libraries of the driver's package whose version is their own."""
_UNKNOWN = ("compute", "graphics")
"""The capabilities of a library that is in none of these lists, but whose name begins as those of the driver do (``libnv``)."""
_OF_SETTINGS = ("libnvidia-gtk2", "libnvidia-gtk3", "libnvidia-wayland-client")
"""Libraries of nvidia-settings, which is not shown."""
_LINKS = {"libcuda": "libcuda.so", "libnvidia-opticalflow": "libnvidia-opticalflow.so", "libGLX_nvidia": "libGLX_indirect.so.0",
          "libnvidia-vulkan-producer": "libnvidia-vulkan-producer.so"}  # fmt: skip
"""Names that programs open, whether the host has them or not."""
_PROGRAMS = {
    "utility": "nvidia-smi nvidia-debugdump nvidia-persistenced nv-fabricmanager nvidia-imex nvidia-imex-ctl",
    "compute": "nvidia-cuda-mps-control nvidia-cuda-mps-server",
    "display": "nvidia-xconfig",
}
_PROGRAM_DIRECTORIES = ("usr/bin", "usr/sbin", "bin", "sbin")
_BELOW_ETC_OR_SHARE = {
    "graphics": "glvnd/egl_vendor.d/10_nvidia.json egl/egl_external_platform.d/15_nvidia_gbm.json"
    " egl/egl_external_platform.d/10_nvidia_wayland.json egl/egl_external_platform.d/09_nvidia_wayland2.json"
    " egl/egl_external_platform.d/20_nvidia_xcb.json egl/egl_external_platform.d/20_nvidia_xlib.json nvidia/nvoptix.bin"
    f" vulkan/icd.d/nvidia_icd.json vulkan/icd.d/nvidia_icd.{platform.machine()}.json vulkan/icd.d/nvidia_layers.json"
    " vulkan/implicit_layer.d/nvidia_layers.json",
    "display": "X11/xorg.conf.d/10-nvidia.conf X11/xorg.conf.d/nvidia-drm-outputclass.conf",
}
_CONFIGURATION = {
    "etc/OpenCL/vendors/nvidia.icd": "compute",
    **{
        f"{top}/{name}": capability
        for capability, names in _BELOW_ETC_OR_SHARE.items()
        for name, top in itertools.product(names.split(), ("usr/share", "etc"))
    },
}
_TEXT_MAX = 1 << 16
"""Bytes of a file for Vulkan that are read."""
_XORG_MODULES = ("usr/lib/xorg/modules", "usr/lib64/xorg/modules", "usr/X11R6/lib/modules", "usr/X11R6/lib64/modules")
_FIRMWARE_PATH = Path("/sys/module/firmware_class/parameters/path")
_SOCKETS = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_IMPLIED = {"video": {"compute"}, "display": {"graphics"}}
_RESOLVE = 0x10 | 0x02  # RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS


@dataclass(frozen=True, slots=True)
class DriverFile:
    """``source``: on this host, no link in it. ``place``: below the sandbox's directory of libraries (``lib``, ``lib32``), of programs
    (``bin``) or of the X server's modules (``xorg``), or ``""`` where ``name`` is the whole path. ``links``: names beside it that lead to
    it, its SONAME first; of a file with a whole path, the libraries that it names by whole paths."""

    source: str
    place: str
    name: str
    capabilities: tuple[str, ...]
    soname: str = ""
    links: tuple[str, ...] = ()


def configured_root() -> str:
    """``/``, or where the settings say that the driver is. ``BadInput``"""
    return _configured_root(config_file())


@functools.cache
def _configured_root(path: Path) -> str:
    """Read once by a process: a daemon's jobs do not fail while somebody edits the settings."""
    found: str = settings.load(path)["gpus.driver_root"]
    return found


def find(root: str, version: str) -> tuple[DriverFile, ...]:
    """Every file of this version of the driver below ``root``. ``GpuError`` for one that others than root may change."""
    with _opened(root) as top:
        found = {(file.place, file.name): file for file in _libraries(top, version)}
        folders = sorted({os.path.basename(os.path.dirname(file.source)) for file in found.values()})
        others = (*_programs(top, folders), *_modules_of_xorg(top, version), *_others(top, version))
        found |= {(file.place, file.name): file for file in others}
    for file in found.values():
        check_owner(file.source)
    return tuple(found.values())


def searched(root: str, version: str) -> tuple[str, ...]:
    """Where ``find`` looks, as paths below ``root``: directories, also such as are not there, the linker's cache, and files that have a
    library's name and are none, which may just be written. What it finds can only be another while one of them, or a file that was found,
    has changed. ``GpuError``"""
    with _opened(root) as top:
        libraries = [linker_cache.PATH, *(f"usr/lib/{name}/nvidia" for name in _multiarch()), *_library_places(top)]
        named = [f"{directory}/{name}" for directory, names in _directories(top) for name in names if name.endswith(f".so.{version}")]
        libraries += [path for path in named if _library(top, path) is None]
        programs = ["usr/lib/nvidia", *_inside(top, "usr/lib/nvidia"), *_PROGRAM_DIRECTORIES, "etc/alternatives"]
        programs += _places_of_xorg(top)
    others = [os.path.dirname(path) for path in _CONFIGURATION]
    return tuple(dict.fromkeys((*libraries, *programs, *others, *_firmware(version))))


def changed_at(root: str, places: Iterable[str]) -> list[int]:
    """When each of these places below ``root`` changed last, its mode and owner among what counts: nanoseconds, -1 where nothing is.
    ``GpuError``"""
    with _opened(root) as top:
        return [_changed_at(top, place) for place in places]


def _changed_at(top: int, place: str) -> int:
    try:
        fd = _below(top, place)
    except OSError:
        return -1
    try:
        return os.fstat(fd).st_ctime_ns
    finally:
        os.close(fd)


def find_library(root: str, soname: str) -> str:
    """Where the 64-bit library of this name lies, with no link in the path; "" for none. ``GpuError`` as ``find``"""
    with _opened(root) as top:
        there = (_library(top, f"{directory}/{soname}") for directory, names in _directories(top) if soname in names)
        source = next((one[0] for one in there if one is not None and one[1].bits == 64), "")
    if source:
        check_owner(source)
    return source


def installed_version(root: str) -> str:
    """The newest version below ``root`` by the name of its libcuda; "" for none. For where no kernel module can be asked."""
    with _opened(root) as top:
        names = (name for _, names in _directories(top) for name in names if name.startswith("libcuda.so."))
        versions = (name.removeprefix("libcuda.so.") for name in names)
        return max((text for text in versions if "." in text and version_numbers(text)), key=version_numbers, default="")


def version_numbers(text: str) -> tuple[int, ...]:
    """``535.261.03`` as numbers; () for what is no version."""
    parts = text.split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts) else ()


def sockets(root: str) -> tuple[DriverFile, ...]:
    """The sockets of the driver's daemons that are there now. ``GpuError`` as ``find``."""
    with _opened(root) as top:
        found = [(_lies(top, path, stat.S_ISSOCK), path) for path in _SOCKETS]
    for source, _ in found:
        if source:
            check_owner(os.path.dirname(source))
    return tuple(DriverFile(source, "", path, ("utility",)) for source, path in found if source)


def of_gds(root: str = "/") -> tuple[DriverFile, ...]:
    """What the library of GPUDirect Storage reads of the host, as far as it is there: its settings, and which disks there are. ``GpuError``
    as ``find``."""
    with _opened(root) as top:
        found = {"etc/cufile.json": _regular(top, "etc/cufile.json"), "run/udev": _lies(top, "run/udev", stat.S_ISDIR)}
    for source in filter(None, found.values()):
        check_owner(source)
    return tuple(DriverFile(source, "", path, ("gds",)) for path, source in found.items() if source)


def needed(files: Iterable[DriverFile], capabilities: frozenset[str]) -> tuple[DriverFile, ...]:
    """Those that one of the capabilities needs; 32-bit libraries only with ``compat32``."""
    wanted = (file for file in files if not capabilities.isdisjoint(file.capabilities))
    return tuple(file for file in wanted if file.place != "lib32" or "compat32" in capabilities)


def parse_capabilities(text: str) -> frozenset[str]:
    """The value of ``NVIDIA_DRIVER_CAPABILITIES``: with what they imply, and the default for an empty one. ``GpuError``"""
    names = {name.strip() for name in text.split(",")} - {"", "gpu", "nvidia"}
    for name in sorted(names):
        if name not in CAPABILITIES:
            raise GpuError(
                f"NVIDIA_DRIVER_CAPABILITIES names {name[:40]!r}, which the driver does not have",
                subject="NVIDIA_DRIVER_CAPABILITIES",
                hint=f"-e NVIDIA_DRIVER_CAPABILITIES=… overrides the image's: {', '.join(sorted(CAPABILITIES - {'gpu', 'nvidia'}))}",
            )
    if "all" in names:
        return CAPABILITIES - {"gpu", "nvidia", "all"}
    for name in tuple(names):
        names |= _IMPLIED.get(name, set())
    return frozenset(names) or DEFAULT_CAPABILITIES


def check_owner(path: str, what: str = "of the NVIDIA driver", hint: str = "or reinstall the driver") -> None:
    """``GpuError`` if another user could put something else at this path of the host, which has no link in it."""
    users, groups = {0, os.geteuid()}, {0, os.getegid()}
    while True:
        found = os.lstat(path)
        writable = found.st_mode & (0o002 if found.st_gid in groups else 0o022)
        if found.st_uid not in users or (writable and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX)):
            raise GpuError(
                f"{path}, {what}, can be changed by others than root",
                subject=path,
                hint=f"make it and the directories above it root's, writable by nobody else; {hint}",
            )
        if path == "/":
            return
        path = os.path.dirname(path)


@contextlib.contextmanager
def _opened(root: str) -> Iterator[int]:
    try:
        fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise GpuError(f"the driver's root {root}: {error.strerror}", subject=root, hint="see gpus.driver_root in dockless.toml") from None
    try:
        yield fd
    finally:
        os.close(fd)


def _below(top: int, path: str, flags: int = os.O_PATH) -> int:
    return native.openat2(top, path.lstrip("/") or ".", flags, resolve=_RESOLVE)


def _directories(top: int) -> Iterator[tuple[str, list[str]]]:
    """Those of them that are there, and what is in them."""
    for place in _library_places(top):
        with contextlib.suppress(OSError):
            fd = _below(top, place, os.O_RDONLY | os.O_DIRECTORY)
            try:
                names = os.listdir(fd)
            finally:
                os.close(fd)
            yield place, names


def _library_places(top: int) -> list[str]:
    """Directories that may have libraries, 64 bit first."""
    wide, narrow = _multiarch()
    paths = ["usr/lib64", f"usr/lib/{wide}", *_inside(top, f"usr/lib/{wide}/nvidia"), "lib64", f"lib/{wide}"]
    paths += _named_by_the_cache(top)
    paths += [f"usr/lib/{narrow}", *_inside(top, f"usr/lib/{narrow}/nvidia"), "usr/lib32", "usr/lib"]
    return [place for path in dict.fromkeys(paths) for place in (path, f"{path}/vdpau")]


def _multiarch() -> tuple[str, str]:
    machine = platform.machine()
    return MULTIARCH.get(machine, machine), MULTIARCH_32.get(machine, "none")


def _inside(top: int, path: str) -> list[str]:
    """Directories of a directory: Debian has one for each family of drivers, ``current`` before the others."""
    with contextlib.suppress(OSError):
        fd = _below(top, path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return [f"{path}/{name}" for name in sorted(os.listdir(fd), key=lambda name: (name != "current", name))]
        finally:
            os.close(fd)
    return []


def _named_by_the_cache(top: int) -> list[str]:
    """Directories in which the host's linker finds a part of the driver."""
    with contextlib.suppress(OSError, ValueError):
        fd = _below(top, linker_cache.PATH, os.O_RDONLY)
        with open(fd, "rb") as stream:
            cache = linker_cache.parse(stream.read(linker_cache.SIZE_MAX))
        named = (entry.path for entry in cache.entries if entry.name in (b"libcuda.so.1", b"libnvidia-ml.so.1"))
        return [os.fsdecode(os.path.dirname(path)) for path in named]
    return []


def _libraries(top: int, version: str) -> Iterator[DriverFile]:
    capabilities: dict[str, list[str]] = {}
    for capability, libraries in _LIBRARIES.items():
        for name in libraries.split():
            capabilities.setdefault(name, []).append(capability)
    for name in _OWN_VERSIONS:
        capabilities.setdefault(name, ["graphics"])
    seen = set()
    for directory, names in _directories(top):
        there = set(names)
        for file in sorted(names):
            base, dot, suffix = file.partition(".so.")
            wanted = capabilities.get(base, _UNKNOWN if base.startswith("libnv") and base not in _OF_SETTINGS else ())
            own = base in _OWN_VERSIONS and ("." in suffix or base == "libnvidia-nvvm70")  # whose only name is libnvidia-nvvm70.so.4
            if not dot or not wanted or (suffix != version and not own):
                continue
            read = _library(top, f"{directory}/{file}")
            if read is None:
                continue
            source, about = read
            place = "lib" if about.bits == 64 else "lib32"
            if (place, file) in seen:
                continue
            seen.add((place, file))
            name = f"vdpau/{file}" if base == "libvdpau_nvidia" else file
            links = [about.soname] if "/" not in about.soname else []
            links += [f"{base}.so"] if f"{base}.so" in there else []
            links += _LINKS.get(base, "").split()
            links = [name for name in dict.fromkeys(links) if name and name != file]
            yield DriverFile(source, place, name, tuple(wanted), about.soname, tuple(links))


def _library(top: int, path: str) -> tuple[str, elf.Elf] | None:
    """Where a library lies on the host, and what it says of itself; None for what is none."""
    with contextlib.suppress(OSError, ValueError):
        fd = _below(top, path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return os.readlink(f"/proc/self/fd/{fd}"), elf.read(fd)
        finally:
            os.close(fd)
    return None


def _programs(top: int, families: list[str]) -> Iterator[DriverFile]:
    directories = [*(f"usr/lib/nvidia/{family}" for family in families), *_PROGRAM_DIRECTORIES]
    for capability, names in _PROGRAMS.items():
        for name in names.split():
            paths = (_regular(top, f"{directory}/{name}") for directory in directories)
            source = next((path for path in paths if path), "")
            if source:
                yield DriverFile(source, "bin", name, (capability,))


def _places_of_xorg(top: int) -> list[str]:
    """Directories that may have its modules: Debian's of each family of drivers, Ubuntu's, NVIDIA's installer's."""
    wide, _ = _multiarch()
    modules = [*_XORG_MODULES, f"usr/lib/{wide}/xorg/modules"]
    parts = [f"{place}/{part}" for place in modules for part in ("drivers", "extensions", "updates/drivers", "updates/extensions")]
    return [*_inside(top, "usr/lib/nvidia"), f"usr/lib/{wide}/nvidia/xorg", "usr/lib64/nvidia/xorg", *parts]


def _modules_of_xorg(top: int, version: str) -> Iterator[DriverFile]:
    """Its driver has no version in its name, so that is only taken beside the other module, which has one."""
    name = f"libglxserver_nvidia.so.{version}"
    for place in _places_of_xorg(top):
        glx = _regular(top, f"{place}/{name}")
        driver = glx and _regular(top, f"{place.replace('/extensions', '/drivers')}/nvidia_drv.so")
        if driver:
            yield DriverFile(glx, "xorg", f"extensions/{name}", ("display",), links=("libglxserver_nvidia.so",))
            yield DriverFile(driver, "xorg", "drivers/nvidia_drv.so", ("display",))
            return


def _others(top: int, version: str) -> Iterator[DriverFile]:
    for path, capability in _CONFIGURATION.items():
        if source := _regular(top, path):
            yield DriverFile(source, "", path, (capability,), links=_libraries_named(source) if "/vulkan/" in path else ())
    for path in (path for place in _firmware(version) for path in _inside(top, place)):
        if os.path.basename(path).startswith("gsp") and path.endswith(".bin") and (source := _regular(top, path)):
            yield DriverFile(source, "", path, ("utility", "compute"))


def _libraries_named(path: str) -> tuple[str, ...]:
    """The libraries that a file for Vulkan names by whole paths, as those of Red Hat's packages do: there programs open them."""
    with contextlib.suppress(OSError, ValueError, RecursionError), open(path, "rb") as stream:
        said = json.loads(stream.read(_TEXT_MAX))
        parts = [said.get("ICD"), said.get("layer"), *(said.get("layers") or ())] if isinstance(said, dict) else []
        named = [part.get("library_path") for part in parts if isinstance(part, dict)]
        return tuple(name for name in named if isinstance(name, str) and name.startswith("/") and os.path.normpath(name) == name)
    return ()


def _firmware(version: str) -> list[str]:
    """Where the kernel looks for it, in this order. Documentation/driver-api/firmware/fw_search_path.rst"""
    own = ""
    with contextlib.suppress(OSError):
        own = _FIRMWARE_PATH.read_text().strip()
    release = os.uname().release
    places = [f"lib/firmware/updates/{release}", "lib/firmware/updates", f"lib/firmware/{release}", "lib/firmware"]
    if own.startswith("/") and os.path.normpath(own) == own:
        places.insert(0, own.lstrip("/"))
    return [f"{place}/nvidia/{version}" for place in dict.fromkeys(places)]


def _regular(top: int, path: str) -> str:
    return _lies(top, path, stat.S_ISREG)


def _lies(top: int, path: str, kind: Callable[[int], bool]) -> str:
    """Where the file of this kind at this path below the root lies on the host, "" for none."""
    with contextlib.suppress(OSError):
        fd = _below(top, path)
        try:
            if kind(os.fstat(fd).st_mode):
                return os.readlink(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
    return ""
