"""Devices by the names of the Container Device Interface, ``amd.com/gpu=0``: what their files say becomes nodes, binds and variables.

::

    names ─► files of /etc/cdi and /var/run/cdi ─► Given      devices, for sandbox.devices; binds on a layer of ours; variables; groups

The files say what root's dockless binds, so each must be root's (or the caller's own), and so must what it names: nobody else can write
there. No hook is run. Of those that NVIDIA's toolkit writes, links and the linker's cache are made by our own code, over the image and not
by a program of the host (decision 109).
"""

from __future__ import annotations

import contextlib
import os
import platform
import stat
from collections.abc import Iterator, Sequence

from dockless.base import settings, yaml
from dockless.base.dataclass import dataclass
from dockless.errors import BadInput, DocklessError, Unsupported
from dockless.images.catalog.image import Image
from dockless.images.layers.layers import Layer
from dockless.sandbox.gpus import elf, linker_cache
from dockless.sandbox.gpus.cdi_files import DeviceFile, FileMount, Hook, Node, all_edits, parse
from dockless.sandbox.gpus.driver_files import check_owner
from dockless.sandbox.gpus.extra_layer import ExtraLayer, kept
from dockless.sandbox.resolved import HostFile
from dockless.sandbox.spec import HostDevice

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""Where no setting says others. Files of a later one go before those of an earlier one."""
_SUFFIXES = (".json", ".yaml", ".yml")
_MOST_LIBRARIES = 1000
_FLAGS = linker_cache.LIBC6 | {"x86_64": linker_cache.X86_64, "aarch64": linker_cache.AARCH64}.get(platform.machine(), 0)
_HINT = "its vendor's tool makes such files; root alone may write there"


@dataclass(frozen=True, slots=True)
class Given:
    """What devices bring. ``layer``: above the image's own and the driver's."""

    env: tuple[tuple[str, str], ...] = ()
    devices: tuple[HostDevice, ...] = ()
    gids: tuple[int, ...] = ()
    layer: Layer | None = None
    files: tuple[HostFile, ...] = ()


def directories() -> tuple[str, ...]:
    """Where the files are, by the caller's settings or else by root's. ``BadInput`` where the caller's are wrong."""
    return next(filter(None, settings.with_roots("gpus.cdi")), DIRECTORIES)


def find(names: Sequence[str]) -> list[tuple[DeviceFile, tuple[str, ...]]]:
    """The file of each of these devices, with those of its names that are asked for. ``BadInput``"""
    found: dict[str, tuple[DeviceFile, list[str]]] = {}
    for name in dict.fromkeys(names):
        kind, _, device = name.partition("=")
        file = _file_with(kind, device)
        found.setdefault(file.path, (file, []))[1].append(device)
    return [(file, tuple(devices)) for file, devices in found.values()]


def listed() -> list[DeviceFile]:
    """All files that are sound, those that go before others first."""
    found = []
    for directory in reversed(directories()):
        for path, text in _texts(directory):
            with contextlib.suppress(DocklessError):
                found.append(parse(path, text))
    return found


def of_kind(kind: str) -> dict[str, DeviceFile]:
    """The file of each device of a kind, those alone of which one file may speak."""
    found: dict[str, DeviceFile] = {}
    for directory in reversed(directories()):
        here: dict[str, list[DeviceFile]] = {}
        for path, text in _texts(directory):
            with contextlib.suppress(DocklessError):
                check_owner(path, "a description of devices", _HINT)
                file = parse(path, text)
                for name in file.devices if file.kind == kind else ():
                    here.setdefault(name, []).append(file)
        found |= {name: files[0] for name, files in here.items() if len(files) == 1 and name not in found}
    return found


def unsound() -> list[str]:
    """What is wrong with each file that cannot be used."""
    found = []
    for directory in directories():
        for path, text in _texts(directory):
            try:
                check_owner(path, "a description of devices", _HINT)
                parse(path, text)
            except DocklessError as error:
                found.append(str(error))
    return found


def given(names: Sequence[str], image: Image, below: Sequence[Layer]) -> Given:
    """What these devices bring to a sandbox of this image. ``below``: other layers of ours. ``BadInput``, ``GpuError``, ``Unsupported``"""
    if not names:
        return Given()
    found = find(names)
    edits = [one for file, devices in found for one in all_edits(file, devices)]
    for one in edits:
        if one.refused:
            raise Unsupported(one.refused, subject="devices", hint="take another device, or ask its vendor for a file without it")
    mounts = list({mount.target: mount for one in edits for mount in one.mounts}.values())
    links, folders = _done_here([hook for one in edits for hook in one.hooks])
    sources = {mount: _source(mount) for mount in mounts}
    layer: Layer | None = None
    files: tuple[HostFile, ...] = ()
    if image.is_host:
        files = tuple(_file(mount, sources[mount], mount.target) for mount in mounts if not _shown_by_the_host(mount, sources[mount]))
    elif mounts or links or folders:
        what = ["cdi", [[*_fields(mount), sources[mount]] for mount in mounts], links, folders]
        layer, files, _ = kept(image, what, _Layer(sources, links, folders), below)
    return Given(
        tuple(pair for one in edits for pair in one.env),
        tuple(dict.fromkeys(_device(node) for one in edits for node in one.nodes)),
        tuple(dict.fromkeys(gid for one in edits for gid in one.gids)),
        layer,
        files,
    )


# ---- files ----------------------------------------------------------------------------------------------------------------------------


def _file_with(kind: str, device: str) -> DeviceFile:
    """The file that has a device. ``BadInput`` where none has, or two of one directory; one that is not sound is told of where no other
    has it."""
    known: list[str] = []
    unsound: DocklessError | None = None
    for directory in reversed(directories()):
        having: list[DeviceFile] = []
        for path, text in _texts(directory):
            if kind not in text.replace("\\/", "/"):
                continue
            try:
                check_owner(path, "a description of devices", _HINT)
                file = parse(path, text)
            except DocklessError as error:
                unsound = unsound or error
                continue
            if file.kind == kind:
                known += file.devices
                having += [file] if device in file.devices else []
        if len(having) > 1:
            both = f"{having[0].path} and {having[1].path}"
            raise BadInput(f"device {kind}={device} is in {both}", subject=f"{kind}={device}", hint="remove one of the two files")
        if having:
            return having[0]
    if unsound is not None:
        raise unsound
    hint = f"its devices are {', '.join(dict.fromkeys(known))}" if known else f"no file in {' or '.join(directories())} has this kind"
    raise BadInput(f"there is no device {kind}={device} on this host", subject=f"{kind}={device}", hint=hint)


def _texts(directory: str) -> Iterator[tuple[str, str]]:
    """The files of a directory with their paths, which have no link in them."""
    directory = os.path.realpath(directory)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(directory)):
            if not name.endswith(_SUFFIXES):
                continue
            path = os.path.realpath(f"{directory}/{name}")
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
                with open(fd, encoding="utf-8", errors="replace") as stream:
                    if stat.S_ISREG(os.fstat(fd).st_mode):
                        yield path, stream.read(yaml.LONGEST + 1)
            except OSError as error:
                raise BadInput(f"{path}: {error.strerror}", subject=path, hint=_HINT) from None


# ---- what they say --------------------------------------------------------------------------------------------------------------------


def _device(node: Node) -> HostDevice:
    source = os.path.realpath(node.source)
    try:
        found = os.stat(source)
    except OSError as error:
        hint = "is its driver loaded? its vendor's tool makes the file anew"
        raise BadInput(f"{node.where}: {node.source}: {error.strerror}", subject=node.source, hint=hint) from None
    kind = "b" if stat.S_ISBLK(found.st_mode) else "c" if stat.S_ISCHR(found.st_mode) else "no device"
    number = os.major(found.st_rdev), os.minor(found.st_rdev)
    said = node.major if node.major >= 0 else number[0], node.minor if node.minor >= 0 else number[1]
    if kind != (node.kind or kind) or kind == "no device" or number != said:
        wanted = f"{node.kind or 'a'} device {said[0]}:{said[1]}"
        raise BadInput(
            f"{node.where}: {node.source} is {kind} {number[0]}:{number[1]}, and not {wanted}",
            subject=node.source,
            hint="the file is older than the driver: its vendor's tool makes it anew",
        )
    check_owner(os.path.dirname(source), "the directory of a device", _HINT)
    return HostDevice(source, node.target, node.access)


def _source(mount: FileMount) -> str:
    source = os.path.realpath(mount.source)
    try:
        kind = os.lstat(source).st_mode
    except OSError as error:
        hint = "its vendor's tool makes the file anew"
        raise BadInput(f"{mount.where}: {mount.source}: {error.strerror}", subject=mount.source, hint=hint) from None
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISSOCK(kind)):
        raise BadInput(f"{mount.where}: {mount.source} is no file, directory or socket", subject=mount.source, hint=_HINT)
    if mount.target == "/" or mount.target.split("/")[1] in ("proc", "sys", "dev"):
        hint = "/, /proc, /sys and /dev are the sandbox's own"
        raise Unsupported(f"{mount.where}: nothing can be mounted at {mount.target}", subject=mount.target, hint=hint)
    check_owner(os.path.dirname(source) if stat.S_ISSOCK(kind) else source, "a file of a device", _HINT)
    return source


def _file(mount: FileMount, source: str, target: str) -> HostFile:
    return HostFile(source, target, mount.readonly, mount.noexec, mount.recursive)


def _fields(mount: FileMount) -> list[object]:
    return [mount.target, mount.readonly, mount.noexec, mount.recursive]


def _shown_by_the_host(mount: FileMount, source: str) -> bool:
    """Whether the pseudo-image ``host`` has it already."""
    return mount.source == mount.target and source.split("/")[1] in ("usr", "bin", "sbin", "lib", "lib64", "etc", "opt")


def _done_here(hooks: Sequence[Hook]) -> tuple[list[tuple[str, str]], list[str]]:
    """Links, as path and target, and directories of libraries, which hooks of NVIDIA's toolkit would make. ``Unsupported`` for any other
    hook."""
    links: list[tuple[str, str]] = []
    folders: list[str] = []
    for hook in hooks:
        program, *args = hook.args or (hook.path,)
        if os.path.basename(hook.path) in ("nvidia-ctk", "nvidia-cdi-hook"):
            args = args[1:] if args[:1] == ["hook"] else args
            verb, options = (args[0] if args else ""), _options(args[1:])
            if verb == "create-symlinks":
                links += [(path, target) for target, _, path in (link.partition("::") for link in options.get("link", ()))]
                continue
            if verb == "update-ldcache":
                folders += options.get("folder", ())
                continue
            if verb == "chmod":  # of directories below /dev, which everybody may enter
                continue
            program = f"{program} {verb}"
        raise Unsupported(
            f"{hook.where}: hook {program!r} is a program of the host, and dockless runs none",
            subject=hook.path,
            hint="ask its vendor for a file without it, or show its nodes: --device /dev/NAME",
        )
    return links, folders


def _options(args: Sequence[str]) -> dict[str, list[str]]:
    """``--name value`` and ``--name=value``."""
    found: dict[str, list[str]] = {}
    rest = iter(args)
    for word in rest:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found.setdefault(name, []).append(value if equals else next(rest, ""))
    return found


class _Layer(ExtraLayer):
    """For one image. ``sources``: the path without links of what each mount shows."""

    def __init__(self, sources: dict[FileMount, str], links: list[tuple[str, str]], folders: list[str]) -> None:
        super().__init__()
        self._sources, self._links, self._searched = sources, links, {folder.rstrip("/") for folder in folders}

    def fill(self, image: Image) -> None:
        entries: list[linker_cache.Entry] = []
        for mount, source in self._sources.items():
            directory = os.path.isdir(source)
            target = self.inside(mount.target, directory=directory)
            self.bind(source, target, readonly=mount.readonly, noexec=mount.noexec, recursive=mount.recursive)
            if not directory and os.path.dirname(mount.target) in self._searched and (soname := _soname(source)):
                name = os.path.basename(target)
                if soname != name:
                    self.links[os.path.join(os.path.dirname(target), soname)] = name
                entries.append(_entry(soname, os.path.dirname(target)))
            elif directory and mount.target.rstrip("/") in self._searched:
                there = os.listdir(source)[:_MOST_LIBRARIES]
                sonames = {_soname(f"{source}/{name}") for name in sorted(there) if ".so" in name}
                entries += [_entry(soname, target) for soname in sorted(sonames & set(there))]
        for path, destination in self._links:
            self.links[self.inside(path)] = destination
        self.add_to_cache(entries)


def _entry(soname: str, directory: str) -> linker_cache.Entry:
    return linker_cache.Entry(soname.encode(), f"/{directory}/{soname}".encode(), _FLAGS)


def _soname(path: str) -> str:
    """Of a 64-bit library, empty for anything else."""
    with contextlib.suppress(OSError, ValueError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = elf.read(fd) if stat.S_ISREG(os.fstat(fd).st_mode) else None
        finally:
            os.close(fd)
        if about is not None and about.bits == 64 and "/" not in about.soname:
            return about.soname
    return ""
