"""What of the host's NVIDIA driver a sandbox with a GPU is shown besides device nodes: files, links, a linker cache, /proc/driver.

::

    image's and caller's variables ─► what kind of access      NVIDIA_DRIVER_CAPABILITIES, _VISIBLE_DEVICES, _REQUIRE_*; never which GPUs
    driver_files.find              ─► files of the host        read-only binds, made by the plan
    the image's layout             ─► one more layer           empty files to mount on, links, /etc/ld.so.cache with our libraries in it

The layer lies above those of the image and below the private upper. So nothing is written to either: ``diff`` and ``commit`` show
nothing of it, and the same image without a GPU has nothing of it. No program of the host runs over the image (decision 104).

What was found is kept in the store until the next boot, by image, driver and kind of access, and used again while no file has changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import platform
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dockless.base import json, paths, settings
from dockless.base.dataclass import dataclass
from dockless.base.path import Path
from dockless.errors import DocklessError, GpuError
from dockless.images.catalog.image import Image
from dockless.images.files import explained, make_private, remove_tree, replacing
from dockless.images.layers.layers import Layer
from dockless.images.layers.merged import Merged
from dockless.images.model import digest
from dockless.sandbox.gpus import driver_files, elf, linker_cache, nvml, requirements
from dockless.sandbox.gpus.driver_files import DriverFile
from dockless.sandbox.gpus.nvml import Gpu
from dockless.sandbox.resolved import HostFile

KEPT = 64
"""Layers, and records of what was found, that are kept at most besides those that sandboxes have."""
_LAYER = "driver-"
_FORMAT = "1"
"""Of what is kept: another one is not read."""
_COMPAT = "usr/local/cuda/compat"
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


def inject(image: Image, variables: Mapping[str, str], gpus: Sequence[Gpu]) -> Injection:
    """For these leased GPUs. ``variables``: the caller's over the image's. Reads the host; what it makes is kept in the store.

    ``GpuError`` for a requirement of the image that does not hold, and for files that root cannot trust; ``BadInput``.
    """
    simulated = any(gpu.simulated for gpu in gpus)
    root = _driver_root(paths.config_file())
    version = _version(root, simulated)
    wanted = requirements.requirements(variables)
    if wanted:
        requirements.check(wanted, nvml.facts(gpus) | {"driver": version}, note=" (simulated)" if simulated else "")
    proc, proc_files = _proc(root if simulated else "/", gpus) if version else ((), ())
    capabilities = driver_files.parse_capabilities(variables.get("NVIDIA_DRIVER_CAPABILITIES", ""))
    if image.is_host or not version or variables.get("NVIDIA_VISIBLE_DEVICES") == "void":
        return Injection(proc=proc, proc_files=proc_files)
    layer, files, warnings = _kept(image, root, version, capabilities, gpus)
    return Injection(layer, files, proc, proc_files, warnings)


@functools.cache
def _driver_root(path: Path) -> str:
    """Read once by a process: a daemon's jobs do not fail while somebody edits the settings."""
    root: str = settings.load(path)["gpus.driver_root"]
    return root


def _version(root: str, simulated: bool) -> str:
    """Of the driver that the kernel runs, which the files must have, too. Simulated GPUs have none, "", unless the settings say where one
    is."""
    if not simulated:
        with contextlib.suppress(OSError):
            return _MODULE_VERSION.read_text().strip()
        return nvml.driver().version
    if root == "/":
        return ""
    version = driver_files.installed_version(root)
    if not version:
        raise GpuError(
            f"no NVIDIA driver below {root}", subject=root, hint="install one there, or take gpus.driver_root out of dockless.toml"
        )
    return version


# ---- kept between starts --------------------------------------------------------------------------------------------------------------


def _kept(
    image: Image, root: str, version: str, capabilities: frozenset[str], gpus: Sequence[Gpu]
) -> tuple[Layer | None, tuple[HostFile, ...], tuple[str, ...]]:
    minors = sorted({gpu.minor for gpu in gpus}) if "graphics" in capabilities else []
    sockets = driver_files.needed(driver_files.sockets(root), capabilities)
    lies = [str(layer.path) for layer in image.layers]
    what = [_FORMAT, root, version, image.digest, lies, sorted(capabilities), minors, [file.source for file in sockets]]
    place = _place()
    record = place / f"{digest.of(json.dumps(what).encode()).hex[:32]}.json"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        known = json.loads(record.read_bytes())
        layer = Layer(place / known["layer"] / "fs") if known["layer"] else None
        if all(_stamp(file["source"]) == file["stamp"] for file in known["files"]) and (layer is None or layer.path.is_dir()):
            for used in (record, *((layer.path.parent,) if layer is not None else ())):
                os.utime(used)
            files = tuple(HostFile(file["source"], file["target"], file["socket"]) for file in known["files"])
            return layer, files, tuple(known["warnings"])
    made = _Made(image, root, version, capabilities, minors, sockets)
    name = ""
    if made.tree:
        name = f"{_LAYER}{os.urandom(8).hex()}"
        with paths.writing("the image store", place):
            made.write(place / name / "fs")
    files = tuple(made.files)
    listed = [{"source": f.source, "target": f.target, "socket": f.socket, "stamp": _stamp(f.source)} for f in files]
    with paths.writing("the image store", place), replacing(record) as out:
        out.write(json.dumps({"layer": name, "files": listed, "warnings": made.warnings}).encode())
    _make_room(place)
    return Layer(place / name / "fs") if name else None, files, tuple(made.warnings)


def _place() -> Path:
    """Where it is kept: of this boot. What is of others no sandbox can use any more."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    top = paths.store() / "driver"
    if not (top / boot).is_dir():
        with paths.writing("the image store", top):
            make_private(paths.store())
            paths.make(top, 0o700)
            for name in set(os.listdir(top)) - {boot}:  # which somebody else may just have made
                remove_tree(top / name)
            paths.make(top / boot, 0o700)
    return top / boot


def _make_room(place: Path) -> None:
    """Of what is kept the longest unused goes: an image says what is to be kept, and there are many images. What a sandbox has stays."""
    kept = sorted(((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name) for entry in os.scandir(place)), reverse=True)
    for layers in (False, True):
        for _, name in [one for one in kept if one[1].startswith(_LAYER) == layers][KEPT:]:
            with contextlib.suppress(OSError):
                _remove(place / name)


def _remove(path: Path) -> None:
    """``BlockingIOError`` for a layer that is pinned."""
    if not path.name.startswith(_LAYER):
        os.unlink(path)
        return
    with _opened(path) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(path)


def pin(layers: Sequence[Layer], opened: contextlib.ExitStack) -> list[int]:
    """A descriptor for the driver's layer among these, which stays as long as it is open. ``GpuError`` where it has just been removed."""
    found = []
    for path in (layer.path.parent for layer in layers if layer.path.parent.name.startswith(_LAYER)):
        try:
            found.append(opened.enter_context(_opened(path)))
            fcntl.flock(found[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.lstat(path)
        except OSError:
            raise GpuError("the driver's layer has just been removed from the store", subject=str(path), hint="try again") from None
    return found


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _stamp(path: str) -> list[int]:
    found = os.lstat(path)
    return [found.st_ino, found.st_size, found.st_mtime_ns] if not stat.S_ISSOCK(found.st_mode) else [found.st_ino]


class _Made:
    """The layer and the list of binds for one image. ``tree``: path below the layer → content of a file; ``links``: → target;
    ``directories``: → what the image says of it."""

    def __init__(
        self, image: Image, root: str, version: str, capabilities: frozenset[str], minors: list[int], sockets: tuple[DriverFile, ...]
    ) -> None:
        self.files: list[HostFile] = []
        self.warnings: list[str] = []
        self.tree: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.directories: dict[str, os.stat_result | None] = {}
        with explained(f"cannot look into image {image.name}", image.name, "dockless images check"), Merged(image.top_first) as merged:
            self._merged = merged
            if self._is_musl():
                kind = "Alpine" if self._exists("etc/alpine-release") else "an image"
                self.warnings.append(
                    f"image {image.name} is {kind} with musl for its C library, and NVIDIA's driver needs glibc: no driver files are shown "
                    "inside; take an image of Debian, Ubuntu or Red Hat"
                )
                return
            found = driver_files.needed(driver_files.find(root, version), capabilities)
            if "compute" in capabilities and not any(file.soname == "libcuda.so.1" for file in found):
                self.warnings.append(f"libcuda.so.{version} is not on this host, so CUDA does not start: install the whole driver")
            self._add_files((*found, *sockets))
            if "graphics" in capabilities:
                self._add_graphics(minors)
            self._add_cache(found, version)
            self.directories = self._directories()

    def _add_files(self, found: Iterable[DriverFile]) -> None:
        self.places = {
            "lib": self._library_directory(),
            "lib32": self._library_directory_32(),
            "bin": self._inside("usr/bin", directory=True),
        }
        for file in found:
            if not file.place:
                self._bind(file, self._inside(file.name))
                continue
            directory = self.places[file.place]
            if "/vdpau/" in file.source:
                directory = os.path.join(directory, "vdpau")
            self._bind(file, os.path.join(directory, file.name))
            before = file.name
            for link in file.links:
                self.links[os.path.join(directory, link)] = before
                before = link

    def _add_graphics(self, minors: list[int]) -> None:
        """Vulkan and EGL count GPUs by what the driver says, and this says which are ours."""
        mask = sum(1 << minor for minor in minors)
        profile = {
            "profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", mask]}],
            "rules": [{"pattern": [], "profile": "_container_"}],
        }
        self.tree[self._inside("etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf")] = json.dumps(profile).encode()
        self.links[os.path.join(self.places["lib"], "gbm/nvidia-drm_gbm.so")] = "../libnvidia-allocator.so.1"

    def _add_cache(self, found: Iterable[DriverFile], version: str) -> None:
        machine = platform.machine()
        wide = linker_cache.LIBC6 | {"x86_64": linker_cache.X86_64, "aarch64": linker_cache.AARCH64}.get(machine, 0)
        ours = {}
        for file in found:
            if file.soname and "/vdpau/" not in file.source:
                path = os.path.join("/", self.places[file.place], file.soname)
                ours[file.place, file.soname] = (path, wide if file.place == "lib" else linker_cache.LIBC6)
        for soname in self._forward_compatible(version):
            ours["lib", soname] = (f"/{_COMPAT}/{soname}", wide)
        entries = [linker_cache.Entry(soname.encode(), path.encode(), flags) for (_, soname), (path, flags) in ours.items()]
        cache = linker_cache.Cache()
        with contextlib.suppress(ValueError, DocklessError):  # one that the linker would not read either
            cache = linker_cache.parse(self._read(linker_cache.PATH, linker_cache.SIZE_MAX))
        if entries:
            self.tree[self._inside(linker_cache.PATH)] = linker_cache.encode(linker_cache.merged(cache, entries))

    def _forward_compatible(self, version: str) -> list[str]:
        """Libraries of the image that stand for the driver's own, for a CUDA that is newer than the driver: where its libcuda says in a
        note that it was made for this driver, or says nothing and is of a newer major version."""
        node = self._merged.lookup(_COMPAT.encode())
        if node is None or not node.is_dir:
            return []
        names = [name for name in map(os.fsdecode, self._merged.names(node)) if _SONAME.match(name) or _LIBCUDA.match(name)]
        there = {name: child for name in names[:_MOST_COMPAT] if (child := self._merged.child(node, os.fsencode(name))) is not None}
        versions = [name.removeprefix("libcuda.so.") for name in there if _LIBCUDA.match(name)]
        if len(versions) != 1:
            return []
        here, theirs = driver_files.version_numbers(version), driver_files.version_numbers(versions[0])
        with contextlib.suppress(DocklessError, OSError, ValueError):
            with self._merged.open_file(there[f"libcuda.so.{versions[0]}"]) as stream:
                said = elf.note(stream.fileno(), ".note.cuda.fwd_compatibility")
            majors = _majors(said) if said is not None else None
            if theirs > here if majors is not None and here[0] in majors else majors is None and theirs[:1] > here[:1]:
                return [name for name in there if _SONAME.match(name)]
        return []

    # ---- the image's layout --------------------------------------------------------------------------------------------------------

    def _is_musl(self) -> bool:
        machine = platform.machine()
        return self._exists(f"lib/ld-musl-{machine}.so.1") and not self._exists(_LOADERS.get(machine, "lib/ld-linux.so.2"))

    def _library_directory(self) -> str:
        multiarch = f"usr/lib/{driver_files.MULTIARCH.get(platform.machine(), platform.machine())}"
        debian = self._exists("etc/debian_version") or self._exists(multiarch)
        return self._inside(multiarch if debian else "usr/lib64", directory=True)

    def _library_directory_32(self) -> str:
        multiarch = f"usr/lib/{driver_files.MULTIARCH_32.get(platform.machine(), 'none')}"
        wanted = multiarch if self._exists("etc/debian_version") else "usr/lib32" if self._exists("usr/lib32") else "usr/lib"
        return self._inside(wanted, directory=True)

    def _exists(self, path: str) -> bool:
        return self._merged.lookup(path.encode()) is not None

    def _read(self, path: str, limit: int) -> bytes:
        node = self._merged.lookup(path.encode())
        if node is None:
            return b""
        with self._merged.open_file(node) as stream:
            return stream.read(limit)

    def _inside(self, path: str, *, directory: bool = False) -> str:
        """Where a path of the image really is: its directories' links followed, so that ours in the layer covers none of them. Without a
        leading slash: "" for its root."""
        parts = path.strip("/").split("/")
        folder = parts if directory else parts[:-1]
        for length in range(len(folder), -1, -1):
            node = self._merged.lookup("/".join(folder[:length]).encode())
            if node is not None and node.is_dir:
                break
        found = [os.fsdecode(part) for part in node.parts] if node is not None else []
        if found and found[0] in ("proc", "sys", "dev"):
            raise GpuError(
                f"/{path} of the image leads to /{found[0]}", subject=path, hint="use another image: this one is made to deceive"
            )
        return "/".join((*found, *folder[length:], *(() if directory else parts[-1:])))

    def _bind(self, file: DriverFile, target: str) -> None:
        self.files.append(HostFile(file.source, f"/{target}", stat.S_ISSOCK(os.lstat(file.source).st_mode)))
        self.tree[target] = b""

    def _directories(self) -> dict[str, os.stat_result | None]:
        """Those of the layer, each after the one that it is in, with what the image says of it."""
        above: dict[str, os.stat_result | None] = {"": self._merged.root.info}
        for path in (*self.tree, *self.links):
            parts = path.split("/")[:-1]
            for length in range(1, len(parts) + 1):
                folder = "/".join(parts[:length])
                if folder not in above:
                    node = self._merged.directory(tuple(map(os.fsencode, parts[:length])))
                    above[folder] = node.info if node is not None else None
        return above

    def write(self, top: Path) -> None:
        """Make the layer: every path is put behind its own, so that none is the host's. A directory that the image has, too, keeps the
        image's mode, and its owner where root makes it."""
        for folder in self.directories:
            paths.make(Path(f"{top}/{folder}"), 0o755, 0o700)
        for path, text in self.tree.items():
            fd = os.open(f"{top}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as stream:
                os.fchmod(fd, 0o644)
                stream.write(text)
        for path, target in self.links.items():
            os.symlink(target, f"{top}/{path}")
        for folder, known in self.directories.items():  # last: nobody but root writes in one of mode 0555
            if known is not None:
                if os.geteuid() == 0:
                    os.chown(f"{top}/{folder}", known.st_uid, known.st_gid)
                os.chmod(f"{top}/{folder}", stat.S_IMODE(known.st_mode))


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
