"""What of the host's NVIDIA driver a sandbox with a GPU is shown besides device nodes: files, links, a linker cache, /proc/driver.

::

    image's and caller's variables ─► what kind of access      NVIDIA_DRIVER_CAPABILITIES, _VISIBLE_DEVICES, _REQUIRE_*; never which GPUs
    NVIDIA_VISIBLE_DEVICES=none    ─► the files, without a GPU
    collected                      ─► files of the host        read-only binds, made by the plan
    the image's layout             ─► one more layer           empty files to mount on, links, /etc/ld.so.cache with our libraries in it
    the image `host`               ─► nothing: the driver is there; or, where it is installed apart, a directory of its own

The layer, and what is kept of it between starts: ``extra_layer``.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence

from dockless.base import json
from dockless.base.dataclass import dataclass
from dockless.base.path import Path
from dockless.errors import DocklessError, GpuError
from dockless.images.catalog.image import Image
from dockless.images.layers.layers import Layer
from dockless.sandbox.gpus import beside, driver_files, elf, linker_cache, nvml, requirements
from dockless.sandbox.gpus.collected import collected, fields
from dockless.sandbox.gpus.driver_files import DriverFile
from dockless.sandbox.gpus.environment import said_visible
from dockless.sandbox.gpus.extra_layer import ExtraLayer, kept
from dockless.sandbox.gpus.nvml import Gpu
from dockless.sandbox.resolved import HostFile

HOST_PLACE = "/run/nvidia-driver"
"""Where a driver that is installed apart is in the image ``host``."""
_COMPAT = "usr/local/cuda/compat"
_LINKER = "etc/ld.so.conf"
_LINKER_MAX = 1 << 16
"""Bytes of that file that are read."""
_INCLUDE = re.compile(rb"^\s*include\s+(/etc/)?ld\.so\.conf\.d/\*(\.conf)?\s*(#.*)?$", re.MULTILINE)
_TEXTS = ("params", "version", "registry")
_MODULE_VERSION = Path("/sys/module/nvidia/version")
_LOADERS = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
_SONAME = re.compile(r"lib[A-Za-z0-9_.+-]+\.so\.[0-9]+\Z")
_LIBCUDA = re.compile(r"libcuda\.so\.[0-9]+\.[0-9.]+\Z")
_MOST_COMPAT = 1000
"""Names of that directory of an image that are looked at."""


@dataclass(frozen=True, slots=True)
class Injection:
    """``layer``: above the image's own. ``files``: bound in, read-only, at places that the layer has. ``proc``: files of /proc/driver
    with their text; ``proc_files``: what of the host's /proc/driver shows there besides. ``warnings``: what is missing, and why."""

    layer: Layer | None = None
    files: tuple[HostFile, ...] = ()
    proc: tuple[tuple[str, str], ...] = ()
    proc_files: tuple[HostFile, ...] = ()
    warnings: tuple[str, ...] = ()


def inject(image: Image, said: Mapping[str, str], gpus: Sequence[Gpu]) -> Injection:
    """For these leased GPUs. ``said``: the caller's variables. Reads the host; what it makes is kept in the store.

    ``GpuError`` for a requirement of the image that does not hold, and for files that root cannot trust; ``BadInput``.
    """
    simulated = any(gpu.simulated for gpu in gpus)
    return _given(image, said, gpus, *installed(simulated=simulated), simulated=simulated)


def inject_files_alone(image: Image, said: Mapping[str, str]) -> Injection:
    """For a sandbox without GPUs, to which ``NVIDIA_VISIBLE_DEVICES=none`` gives the driver's files: programs for CUDA are built with
    them. No node, and no socket of the driver's daemons. Errors: as ``inject``."""
    if image.is_host:
        return Injection()
    simulated = nvml.simulating()
    root, version = driver_files.configured_root(), ""
    with contextlib.suppress(GpuError):
        version = _version(root, simulated)
    if not version:
        return Injection(warnings=("NVIDIA_VISIBLE_DEVICES=none asks for the files of an NVIDIA driver, and this host has none",))
    return _given(image, said, (), root, version, simulated=simulated)


def _given(image: Image, said: Mapping[str, str], gpus: Sequence[Gpu], root: str, version: str, *, simulated: bool) -> Injection:
    variables = {**dict(image.config.env), **said}
    wanted = requirements.requirements(variables)
    if wanted:
        requirements.check(wanted, nvml.facts(gpus) | {"driver": version}, note=" (simulated)" if simulated else "")
    proc, proc_files = _proc(root if simulated else "/", gpus) if version else ((), ())
    capabilities = wanted_capabilities(variables)
    if not version or "void" in said_visible(said):  # an image's own is outranked by --gpus
        return Injection(proc=proc, proc_files=proc_files)
    if image.is_host:
        files = _beside_the_host(root, version, capabilities) if root != "/" else ()
        return Injection(files=files, proc=proc, proc_files=proc_files)
    asked = beside.asked(variables) if gpus else frozenset()
    layer, files, warnings = _kept(image, root, version, capabilities | (asked & {"gds"}), gpus)
    return Injection(layer, files, proc, proc_files, warnings)


def wanted_capabilities(variables: Mapping[str, str]) -> frozenset[str]:
    """What of the driver is asked for. A legacy image that does not say gets all that there are. ``GpuError``"""
    legacy = "all" if requirements.is_legacy(variables) else ""
    return driver_files.parse_capabilities(variables.get("NVIDIA_DRIVER_CAPABILITIES", legacy))


def _beside_the_host(root: str, version: str, capabilities: frozenset[str]) -> tuple[HostFile, ...]:
    """In the image ``host``, whose own directories cannot be added to: programs, and libraries by the names that they are opened by."""
    found = driver_files.needed(collected(root, version), capabilities)
    files = (file for file in found if file.place in ("lib", "bin"))
    return tuple(HostFile(file.source, f"{HOST_PLACE}/{os.path.basename(file.soname or file.name)}") for file in files)


def installed(*, simulated: bool) -> tuple[str, str]:
    """Where the driver's files are, and its version: "" for simulated GPUs that have no driver. ``GpuError``, ``BadInput``"""
    root = driver_files.configured_root()
    return root, _version(root, simulated)


def _version(root: str, simulated: bool) -> str:
    """Of the driver that the kernel runs, which the files must have, too. Simulated GPUs have none, "", unless the settings say where one
    is."""
    if not simulated:
        with contextlib.suppress(OSError):
            return _MODULE_VERSION.read_text().strip()
        return nvml.driver_version()
    if root == "/":
        return ""
    version = driver_files.installed_version(root)
    if not version:
        raise GpuError(
            f"no NVIDIA driver below {root}", subject=root, hint="install one there, or take gpus.driver_root out of dockless.toml"
        )
    return version


def _kept(
    image: Image, root: str, version: str, capabilities: frozenset[str], gpus: Sequence[Gpu]
) -> tuple[Layer | None, tuple[HostFile, ...], tuple[str, ...]]:
    minors = sorted({gpu.minor for gpu in gpus}) if "graphics" in capabilities else []
    sockets = driver_files.needed((*driver_files.sockets(root), *driver_files.of_gds()), capabilities) if gpus else ()
    found = driver_files.needed(collected(root, version), capabilities)
    what = ["driver", version, sorted(capabilities), minors, [fields(file) for file in (*found, *sockets)]]
    return kept(image, what, _DriverLayer(found, version, capabilities, minors, sockets))


class _DriverLayer(ExtraLayer):
    """For one image."""

    def __init__(
        self, found: tuple[DriverFile, ...], version: str, capabilities: frozenset[str], minors: list[int], sockets: tuple[DriverFile, ...]
    ) -> None:
        super().__init__()
        self._found, self._version, self._capabilities, self._minors, self._sockets = found, version, capabilities, minors, sockets

    def fill(self, image: Image) -> None:
        if self._is_musl():
            kind = "Alpine" if self.exists("etc/alpine-release") else "an image"
            self.warnings.append(
                f"image {image.name} is {kind} with musl for its C library, and NVIDIA's driver needs glibc: no driver files are shown "
                "inside; take an image of Debian, Ubuntu or Red Hat"
            )
            return
        if "compute" in self._capabilities and not any(file.soname == "libcuda.so.1" for file in self._found):
            self.warnings.append(f"libcuda.so.{self._version} is not on this host, so CUDA does not start: install the whole driver")
        self._add_files((*self._found, *self._sockets))
        if "graphics" in self._capabilities:
            self._add_graphics(self._minors)
        self._add_cache(self._found, self._version)

    def _add_files(self, found: Sequence[DriverFile]) -> None:
        self.places = {
            "lib": self._library_directory(),
            "lib32": self._library_directory_32(),
            "bin": self.inside("usr/bin", directory=True),
        }
        if "display" in self._capabilities:
            self.places["xorg"] = self.inside(f"usr/{'lib' if self._is_debian() else 'lib64'}/xorg/modules", directory=True)
        for file in found:
            if not file.place:
                self.bind(file.source, self.inside(file.name))
                self._add_named(file.links, found)
                continue
            folder, before = os.path.split(file.name)
            directory = os.path.join(self.places[file.place], folder)
            self.bind(file.source, os.path.join(directory, before))
            for link in file.links:
                self.links[os.path.join(directory, link)] = before
                before = link

    def _add_named(self, paths: Iterable[str], found: Sequence[DriverFile]) -> None:
        """Links at the whole paths of libraries, as the host has them and a file of the driver's names them, where ours lie elsewhere."""
        names = {name for file in found if file.place == "lib" for name in (file.name, *file.links)}
        for path in paths:
            directory, name = os.path.split(self.inside(path))
            if name in names and directory != self.places["lib"]:
                self.links[f"{directory}/{name}".lstrip("/")] = f"/{self.places['lib']}/{name}".replace("//", "/")

    def _add_graphics(self, minors: list[int]) -> None:
        """Vulkan and EGL count GPUs by what the driver says, and this says which are ours."""
        mask = sum(1 << minor for minor in minors)
        profile = {
            "profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", mask]}],
            "rules": [{"pattern": [], "profile": "_container_"}],
        }
        self.tree[self.inside("etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf")] = json.dumps(profile).encode()
        self.links[os.path.join(self.places["lib"], "gbm/nvidia-drm_gbm.so")] = "../libnvidia-allocator.so.1"

    def _add_cache(self, found: Iterable[DriverFile], version: str) -> None:
        machine = platform.machine()
        wide = linker_cache.LIBC6 | {"x86_64": linker_cache.X86_64, "aarch64": linker_cache.AARCH64}.get(machine, 0)
        ours = {}
        for file in found:
            if file.soname and "/" not in file.name:
                path = os.path.join("/", self.places[file.place], file.soname)
                ours[file.place, file.soname] = (path, wide if file.place == "lib" else linker_cache.LIBC6)
        if compatible := self._forward_compatible(version):
            self._configure_linker()
        for soname in compatible:
            ours["lib", soname] = (f"/{_COMPAT}/{soname}", wide)
        entries = [linker_cache.Entry(soname.encode(), path.encode(), flags) for (_, soname), (path, flags) in ours.items()]
        self.add_to_cache(entries)

    def _configure_linker(self) -> None:
        """Programs inside run ``ldconfig``, as every installation of a package does. The cache that it makes has the libraries of the
        directory first that these files name first."""
        self.tree[self.inside(f"{_LINKER}.d/00-dockless-compat.conf")] = f"/{_COMPAT}\n".encode()
        text = b""
        with contextlib.suppress(DocklessError, OSError):  # one that the linker would not read either
            text = self.read(_LINKER, _LINKER_MAX + 1)
        if len(text) <= _LINKER_MAX and not _INCLUDE.search(text):
            self.tree[self.inside(_LINKER)] = b"include /etc/ld.so.conf.d/*.conf\n" + text

    def _forward_compatible(self, version: str) -> list[str]:
        """Libraries of the image that stand for the driver's own, for a CUDA that is newer than the driver: where its libcuda says in a
        note that it was made for this driver, or says nothing and is of a newer major version."""
        node = self.merged.lookup(_COMPAT.encode())
        if node is None or not node.is_dir:
            return []
        names = [name for name in map(os.fsdecode, self.merged.names(node)) if _SONAME.match(name) or _LIBCUDA.match(name)]
        there = {name: child for name in names[:_MOST_COMPAT] if (child := self.merged.child(node, os.fsencode(name))) is not None}
        versions = [name.removeprefix("libcuda.so.") for name in there if _LIBCUDA.match(name)]
        if len(versions) != 1:
            return []
        here, theirs = driver_files.version_numbers(version), driver_files.version_numbers(versions[0])
        with contextlib.suppress(DocklessError, OSError, ValueError):
            with self.merged.open_file(there[f"libcuda.so.{versions[0]}"]) as stream:
                said = elf.note(stream.fileno(), ".note.cuda.fwd_compatibility")
            majors = _majors(said) if said is not None else None
            if theirs > here if majors is not None and here[0] in majors else majors is None and theirs[:1] > here[:1]:
                return [name for name in there if _SONAME.match(name)]
        return []

    # ---- the image's layout --------------------------------------------------------------------------------------------------------

    def _is_musl(self) -> bool:
        machine = platform.machine()
        return self.exists(f"lib/ld-musl-{machine}.so.1") and not self.exists(_LOADERS.get(machine, "lib/ld-linux.so.2"))

    def _library_directory(self) -> str:
        return self.inside(_multiarch() if self._is_debian() else "usr/lib64", directory=True)

    def _is_debian(self) -> bool:
        return self.exists("etc/debian_version") or self.exists(_multiarch())

    def _library_directory_32(self) -> str:
        multiarch = f"usr/lib/{driver_files.MULTIARCH_32.get(platform.machine(), 'none')}"
        wanted = multiarch if self.exists("etc/debian_version") else "usr/lib32" if self.exists("usr/lib32") else "usr/lib"
        return self.inside(wanted, directory=True)


def _multiarch() -> str:
    return f"usr/lib/{driver_files.MULTIARCH.get(platform.machine(), platform.machine())}"


# ---- /proc/driver ---------------------------------------------------------------------------------------------------------------------


def _proc(top: str, gpus: Sequence[Gpu]) -> tuple[tuple[tuple[str, str], ...], tuple[HostFile, ...]]:
    """What /proc/driver shows inside: the driver's parameters with the making of device nodes switched off, and of the GPUs only these."""
    driver = os.path.join(top, "proc/driver")
    texts = {name: _text(f"{driver}/nvidia/{name}") for name in _TEXTS}
    if not texts["params"]:
        return (), ()
    texts["params"] = re.sub(r"(?m)^ModifyDeviceFiles: .*$", "ModifyDeviceFiles: 0", texts["params"])
    wanted = [f"nvidia/gpus/{name}" for name in _listed(f"{driver}/nvidia/gpus") if any(_same(name, gpu.pci_bus_id) for gpu in gpus)]
    for gpu in gpus:
        for part in gpu.mig if gpu.parent else ():
            instance = f"nvidia/capabilities/gpu{gpu.minor}/mig/gi{part.gi}"
            wanted += [f"{instance}/access", f"{instance}/ci{part.ci}/access"]
    wanted += [name for name in _listed(driver) if name.startswith("nvidia-")]
    sources = {name: os.path.realpath(f"{driver}/{name}") for name in wanted if os.path.exists(f"{driver}/{name}")}
    for source in sources.values():
        driver_files.check_owner(source)
    files = tuple(HostFile(source, name) for name, source in sources.items())
    return tuple((f"nvidia/{name}", text) for name, text in texts.items() if text), files


def _text(path: str) -> str:
    with contextlib.suppress(OSError), open(path, errors="replace") as stream:
        return stream.read(65536)
    return ""


def _listed(path: str) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(os.listdir(path))
    return []


def _same(name: str, address: str) -> bool:
    """Whether two PCI addresses are one: the driver writes domains with 8 digits in places."""
    (domain, _, rest), (other, _, more) = name.lower().partition(":"), address.lower().partition(":")
    return rest == more and domain.lstrip("0") == other.lstrip("0")


def _majors(said: bytes) -> frozenset[int]:
    """Major versions of the drivers that a libcuda was made to stand above."""
    try:
        return frozenset(int(str(major).partition(".")[0]) for major in json.loads(said.rstrip(b"\0"))["Driver"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return frozenset()
