"""A layer of our own, above those of an image and below the private upper: what devices need of the host's files.

::

    the image's layout ─► empty files to mount on, links, /etc/ld.so.cache with more libraries in it       ExtraLayer
    files of the host  ─► read-only binds, made by the plan                                               HostFile

So nothing is written to the image or to the upper: ``diff`` and ``commit`` show nothing of it, and the same image without the device has
nothing of it. No program of the host runs over the image (decision 104).

What was made is kept in the store until the next boot, by image and by what was asked for, and used again while no file has changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterable, Sequence

from dockless.base import json, locks, paths
from dockless.base.path import Path
from dockless.errors import DocklessError, GpuError
from dockless.images.catalog.image import Image
from dockless.images.files import explained, make_private, remove_tree, replacing
from dockless.images.layers.layers import Layer
from dockless.images.layers.merged import Merged
from dockless.images.model import digest
from dockless.sandbox.gpus import linker_cache
from dockless.sandbox.resolved import DRIVER_LAYER, HostFile

KEPT = 64
"""Layers, and records of what was found, that are kept at most besides those that sandboxes have."""
_FORMAT = "4"
"""Of what is kept: another one is not read."""


class ExtraLayer:
    """The layer and the list of binds for one image. ``tree``: path below the layer → content of a file; ``links``: → target;
    ``folders``: directories to mount on."""

    def __init__(self) -> None:
        self.files: list[HostFile] = []
        self.warnings: list[str] = []
        self.tree: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.folders: list[str] = []
        self.merged: Merged

    def fill(self, image: Image) -> None:
        """With what ``bind``, ``tree`` and ``links`` take, while ``merged`` is the image."""
        raise NotImplementedError

    def make(self, image: Image, below: Sequence[Layer]) -> None:
        """``below``: other layers of ours above the image, top first."""
        lies = (*below, *image.top_first)
        with explained(f"cannot look into image {image.name}", image.name, "dockless images check"), Merged(lies) as self.merged:
            self.fill(image)
            self._directories = self._found_directories()

    @property
    def is_empty(self) -> bool:
        return not (self.tree or self.links or self.folders)

    def exists(self, path: str) -> bool:
        return self.merged.lookup(path.encode()) is not None

    def read(self, path: str, limit: int) -> bytes:
        node = self.merged.lookup(path.encode())
        if node is None:
            return b""
        with self.merged.open_file(node) as stream:
            return stream.read(limit)

    def add_to_cache(self, entries: Iterable[linker_cache.Entry]) -> None:
        """Libraries that programs of the image find by their names."""
        entries, cache = list(entries), linker_cache.Cache()
        with contextlib.suppress(ValueError, DocklessError):  # one that the linker would not read either
            cache = linker_cache.parse(self.read(linker_cache.PATH, linker_cache.SIZE_MAX))
        if entries:
            self.tree[self.inside(linker_cache.PATH)] = linker_cache.encode(linker_cache.merged(cache, entries))

    def inside(self, path: str, *, directory: bool = False) -> str:
        """Where a path of the image really is: its directories' links followed, so that ours in the layer covers none of them. Without a
        leading slash: "" for its root."""
        parts = path.strip("/").split("/")
        folder = parts if directory else parts[:-1]
        for length in range(len(folder), -1, -1):
            node = self.merged.lookup("/".join(folder[:length]).encode())
            if node is not None and node.is_dir:
                break
        found = [os.fsdecode(part) for part in node.parts] if node is not None else []
        if found and found[0] in ("proc", "sys", "dev"):
            raise GpuError(
                f"/{path} of the image leads to /{found[0]}", subject=path, hint="use another image: this one is made to deceive"
            )
        return "/".join((*found, *folder[length:], *(() if directory else parts[-1:])))

    def bind(self, source: str, target: str, **how: bool) -> None:
        """``target``: as ``inside`` has it. ``how``: fields of ``HostFile``."""
        kind = os.lstat(source).st_mode
        if stat.S_ISSOCK(kind):
            how = {"readonly": False, "noexec": True}
        self.files.append(HostFile(source, f"/{target}", **how))
        if stat.S_ISDIR(kind):
            self.folders.append(target)
        else:
            self.tree[target] = b""

    def _found_directories(self) -> dict[str, os.stat_result | None]:
        """Those of the layer, each after the one that it is in, with what the image says of it."""
        above: dict[str, os.stat_result | None] = {"": self.merged.root.info}
        for path in (*self.tree, *self.links, *(f"{folder}/" for folder in self.folders)):
            parts = path.split("/")[:-1]
            for length in range(1, len(parts) + 1):
                folder = "/".join(parts[:length])
                if folder not in above:
                    node = self.merged.directory(tuple(map(os.fsencode, parts[:length])))
                    above[folder] = node.info if node is not None else None
        return above

    def write(self, top: Path) -> None:
        """Make the layer: every path is put behind its own, so that none is the host's. A directory that the image has, too, keeps the
        image's mode, and its owner where root makes it."""
        for folder in self._directories:
            paths.make(Path(f"{top}/{folder}"), 0o755, 0o700)
        for path, text in self.tree.items():
            fd = os.open(f"{top}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as stream:
                os.fchmod(fd, 0o644)
                stream.write(text)
        for path, target in self.links.items():
            os.symlink(target, f"{top}/{path}")
        for folder, known in self._directories.items():  # last: nobody but root writes in one of mode 0555
            if known is not None:
                if os.geteuid() == 0:
                    os.chown(f"{top}/{folder}", known.st_uid, known.st_gid)
                os.chmod(f"{top}/{folder}", stat.S_IMODE(known.st_mode))


# ---- kept between starts --------------------------------------------------------------------------------------------------------------


def kept(
    image: Image, what: Sequence[object], layer: ExtraLayer, below: Sequence[Layer] = ()
) -> tuple[Layer | None, tuple[HostFile, ...], tuple[str, ...]]:
    """The layer for an image, what is bound in, and what is missing and why: made now, or kept since it was. ``what``: all that it is made
    of besides the image and the files."""
    lies = [str(one.path) for one in (*below, *image.layers)]
    place = place_of_boot()
    record = place / f"{digest.of(json.dumps([_FORMAT, image.digest, lies, what]).encode()).hex[:32]}.json"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        known = json.loads(record.read_bytes())
        found = Layer(place / known["layer"] / "fs") if known["layer"] else None
        if all(stamp(file[0]) == file[-1] for file in known["files"]) and (found is None or found.path.is_dir()):
            for used in (record, *((found.path.parent,) if found is not None else ())):
                os.utime(used)
            return found, tuple(HostFile(*file[:-1]) for file in known["files"]), tuple(known["warnings"])
    layer.make(image, below)
    name = ""
    if not layer.is_empty:
        name = f"{DRIVER_LAYER}{os.urandom(8).hex()}"
        with paths.writing("the image store", place):
            layer.write(place / name / "fs")
    listed = [[f.source, f.target, f.readonly, f.noexec, f.recursive, stamp(f.source)] for f in layer.files]
    with paths.writing("the image store", place), replacing(record) as out:
        out.write(json.dumps({"layer": name, "files": listed, "warnings": layer.warnings}).encode())
    _make_room(place)
    return Layer(place / name / "fs") if name else None, tuple(layer.files), tuple(layer.warnings)


def place_of_boot() -> Path:
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
        for _, name in [one for one in kept if one[1].startswith(DRIVER_LAYER) == layers][KEPT:]:
            with contextlib.suppress(OSError):
                _remove(place / name)


def _remove(path: Path) -> None:
    """``BlockingIOError`` for a layer that is pinned."""
    if not path.name.startswith(DRIVER_LAYER):
        os.unlink(path)
        return
    with locks.opened(path) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(path)


def pin(layers: Sequence[Layer], opened: contextlib.ExitStack) -> list[int]:
    """A descriptor for the driver's layer among these, which stays as long as it is open. ``GpuError`` where it has just been removed."""
    found = []
    for path in (layer.path.parent for layer in layers if layer.path.parent.name.startswith(DRIVER_LAYER)):
        try:
            found.append(opened.enter_context(locks.opened(path)))
            fcntl.flock(found[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.lstat(path)
        except OSError:
            raise GpuError("the driver's layer has just been removed from the store", subject=str(path), hint="try again") from None
    return found


def stamp(path: str) -> list[int]:
    """What of a file is another once it has changed, its mode and owner too; of anything else, once another is in its place."""
    found = os.lstat(path)
    return [found.st_ino, found.st_size, found.st_ctime_ns] if stat.S_ISREG(found.st_mode) else [found.st_ino]
