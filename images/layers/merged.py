"""Looking up a path as the merged image shows it: whiteouts, opaque directories, symbolic links resolved inside, never out of the layers.

Layers are given from top to bottom, in the form overlayfs takes (``whiteouts.py``), as dockless writes it: no whiteout is a file that is
marked. A walk goes component by component on descriptors with ``O_NOFOLLOW``; a link is expanded by hand against the merged root, ``..``
stops at the root, and 40 links are enough (attacks A2, A15, A35). This is as strict as ``openat2(RESOLVE_IN_ROOT)`` on one layer, and it
knows what lies in the layers below.

https://docs.kernel.org/filesystems/overlayfs.html
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from types import TracebackType

from dockless.base.dataclass import dataclass
from dockless.base.typing import BinaryIO
from dockless.errors import BadImage, UnsafeLayer
from dockless.images.layers import whiteouts
from dockless.images.layers.layers import Layer

LINKS_MAX = 40
STEPS_MAX = 128
"""Components of all links on one way together: each costs an open for every layer and every directory above it."""
PATH_MAX = 4096
Parts = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A thing in the merged tree. ``parts``: its path without links. ``layers``: for a directory every layer that adds to it, top
    first; for anything else the one layer it is in."""

    parts: Parts
    layers: tuple[int, ...]
    info: os.stat_result

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.info.st_mode)


class Merged:
    """The merged view of some layers, top first. A context manager: it holds one descriptor per layer."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._fds: list[int] = []
        try:
            for layer in layers:
                self._fds.append(layer.open())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Merged:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def __bool__(self) -> bool:
        return bool(self._fds)

    @property
    def root(self) -> Node:
        return Node((), tuple(range(len(self._fds))), os.fstat(self._fds[0]))

    def child(self, node: Node, name: bytes) -> Node | None:
        """``name`` in the directory ``node``, links not followed; None where there is nothing, or a whiteout."""
        layers: list[int] = []
        info: os.stat_result | None = None
        for layer in node.layers:
            with self._opened(layer, node.parts) as fd:
                try:
                    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                except OSError as error:
                    if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
                        continue
                    raise
                if not stat.S_ISDIR(found.st_mode):
                    if not layers and not whiteouts.is_whiteout(found):
                        return Node((*node.parts, name), (layer,), found)
                    break
                info = info or found
                layers.append(layer)
                if _is_opaque(fd, name):
                    break
        return Node((*node.parts, name), tuple(layers), info) if info is not None else None

    def directory(self, parts: Parts) -> Node | None:
        """The directory at exactly ``parts``, no link followed; None if something else or nothing is there."""
        node: Node | None = self.root if self._fds else None
        for name in parts:
            node = self.child(node, name) if node is not None else None
            if node is None or not node.is_dir:
                return None
        return node

    def children(self, node: Node) -> dict[bytes, Node]:
        """Everything in the directory ``node``."""
        found = {name: self.child(node, name) for name in sorted(self.names(node))}
        return {name: child for name, child in found.items() if child is not None}

    def names(self, node: Node) -> set[bytes]:
        """Names in the directory ``node``, those of whiteouts among them: quicker than ``children`` where few are wanted."""
        names: set[bytes] = set()
        for layer in node.layers:
            with self._opened(layer, node.parts, os.O_RDONLY) as fd:
                names.update(os.fsencode(name) for name in os.listdir(fd))
        return names

    def lookup(self, path: bytes, *, follow: bool = True) -> Node | None:
        """The node at ``path``; the last component is followed too unless ``follow`` is false. None where the path leads nowhere."""
        if not self._fds:
            return None
        todo = _split(path)
        trail = [self.root]
        links = steps = 0
        while todo:
            name = todo.pop()
            if name == b"..":
                if len(trail) > 1:
                    trail.pop()
                continue
            if not trail[-1].is_dir:
                return None
            node = self.child(trail[-1], name)
            if node is None:
                return None
            if stat.S_ISLNK(node.info.st_mode) and (todo or follow):
                links += 1
                target = self.readlink(node)
                more = _split(target)
                steps += len(more)
                if links > LINKS_MAX or steps > STEPS_MAX or len(todo) + len(target) > PATH_MAX:
                    raise UnsafeLayer(f"too many symbolic links on the way to {show(path)}", subject=show(path))
                if target.startswith(b"/"):
                    del trail[1:]
                todo += more
            else:
                trail.append(node)
        return trail[-1]

    def readlink(self, node: Node) -> bytes:
        with self._opened(node.layers[0], node.parts[:-1]) as fd:
            return os.readlink(node.parts[-1], dir_fd=fd)

    def open_file(self, node: Node) -> BinaryIO:
        """A regular file, opened for reading; ``BadImage`` if it is something else."""
        if not stat.S_ISREG(node.info.st_mode):
            name = show(b"/" + b"/".join(node.parts))
            raise BadImage(f"{name} is not a regular file", subject=name)
        with self._opened(node.layers[0], node.parts[:-1]) as parent:
            fd = os.open(node.parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        return open(fd, "rb")

    def _open(self, layer: int, parts: Parts, flags: int) -> int:
        fd = os.open(".", flags | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fds[layer])
        for at, name in enumerate(parts):
            last = flags if at == len(parts) - 1 else os.O_PATH
            try:
                below = os.open(name, last | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
        return fd

    @contextlib.contextmanager
    def _opened(self, layer: int, parts: Parts, flags: int = os.O_PATH) -> Iterator[int]:
        fd = self._open(layer, parts, flags)
        try:
            yield fd
        finally:
            os.close(fd)


def read_file(layers: Sequence[Layer], path: str, limit: int) -> bytes | None:
    """The content of the file ``path`` in the merged ``layers`` (top first), None if there is none; ``BadImage`` beyond ``limit`` bytes."""
    with Merged(layers) as merged:
        node = merged.lookup(os.fsencode(path))
        if node is None:
            return None
        with merged.open_file(node) as stream:
            data = stream.read(limit + 1)
    if len(data) > limit:
        raise BadImage(f"{path} is larger than {limit} bytes", subject=path, hint="this file is read by dockless and must be small")
    return data


def _is_opaque(parent: int, name: bytes) -> bool:
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        return whiteouts.is_opaque(fd)
    finally:
        os.close(fd)


def _split(path: bytes) -> list[bytes]:
    """Components, last one first, so that a walk pops them off the end."""
    return [part for part in reversed(path.split(b"/")) if part not in (b"", b".")]


def show(path: bytes) -> str:
    """A path for people: printable, not too long."""
    return repr(path[:120].decode("utf-8", "backslashreplace"))
