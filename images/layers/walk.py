"""Walking one or several overlay layers as one tree: sorted, on descriptors, without recursion, whatever lies there.

``walk`` takes the roots of layers, top first, and gives everything of the merged tree, parents before what is in them, names in the order
of their bytes. A whiteout hides what lies below, an opaque directory the directories below (``whiteouts.py``). With ``raw`` (one root)
whiteouts are given instead of obeyed: that is how an upper is read.

Directories are opened one name at a time with ``O_NOFOLLOW``. A bounded number of them is held open; deeper ones let go of those above,
which are opened anew, and checked to be the same, when the walk comes back. So neither depth nor breadth of a tree matters, and a tree that
somebody moves about meanwhile cannot lead elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence

from dockless.base.dataclass import dataclass, field
from dockless.errors import ImageError
from dockless.images.layers import whiteouts
from dockless.images.layers.merged import PATH_MAX, show

_OPEN_MAX = 200
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class WalkedFile:
    """A thing in the tree. ``path``: from the root, without a leading slash, empty for the root itself. ``layer``: which root it is in.
    ``parent``, ``name``: a descriptor and a name to open it by, while the walk stands here. ``opaque``: a directory that hides those
    below."""

    path: bytes
    info: os.stat_result
    layer: int
    parent: int
    name: bytes
    opaque: bool = False
    whiteout: bool = False

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.info.st_mode) and not self.whiteout

    @property
    def place(self) -> bytes:
        """A path that leads there while the walk stands here. Not to be followed where it is a link."""
        return b"/proc/self/fd/%d/%s" % (self.parent, self.name)

    def open(self) -> int:
        """A regular file for reading; the caller closes it. ``ImageError`` if it is not the one that was seen."""
        fd = os.open(self.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.parent)
        now = os.fstat(fd)
        if not stat.S_ISREG(now.st_mode) or now.st_ino != self.info.st_ino:
            os.close(fd)
            raise changed(self.path)
        return fd

    def readlink(self) -> bytes:
        return os.readlink(self.name, dir_fd=self.parent)

    def xattrs(self) -> dict[bytes, bytes]:
        """All of them. Asked by name, so that links, fifos and devices need not be opened."""
        return all_xattrs(self.place)

    def xattr(self, key: bytes) -> bytes | None:
        try:
            return os.getxattr(self.place, key, follow_symlinks=False)
        except OSError:
            return None


@dataclass(slots=True)
class _Level:
    """A directory of the walk: its part in each layer that has one, top first, open or to be opened again."""

    layers: list[int]
    fds: list[int]
    ids: list[tuple[int, int]]
    todo: list[bytes] = field(default_factory=list)
    has_marked: tuple[bool, ...] = ()


def walk(roots: Sequence[int], *, userxattr: bool, raw: bool = False) -> Iterator[WalkedFile]:
    """Everything below ``roots`` (descriptors of directories, top first), the root first. ``userxattr``: the marks are ``user.overlay.*``,
    as an ordinary user's mounts have them, and not ``trusted.overlay.*``."""
    walker = _Walker(roots, whiteouts.prefix(userxattr=userxattr), raw)
    try:
        yield from walker.all()
    finally:
        walker.close()


class _Walker:
    def __init__(self, roots: Sequence[int], prefix: bytes, raw: bool) -> None:
        assert roots and not (raw and len(roots) > 1)
        self._roots = roots
        self._prefix = prefix
        self._raw = raw
        self._levels: list[_Level] = []
        self._open = 0
        self._path: list[bytes] = []

    def close(self) -> None:
        for level in self._levels:
            self._release(level)

    def all(self) -> Iterator[WalkedFile]:
        fds = [os.open(".", _DIRECTORY, dir_fd=root) for root in self._roots]
        self._enter(list(range(len(fds))), fds)
        top = self._levels[0]
        yield WalkedFile(b"", os.fstat(top.fds[0]), 0, top.fds[0], b".")
        while self._levels:
            level = self._levels[-1]
            if not level.todo:
                self._leave()
                continue
            self._reopen(level)
            name = level.todo.pop()
            found, layers, fds = self._look(level, name)
            if found is None:
                continue
            try:
                yield found
            except BaseException:
                for fd in fds:
                    os.close(fd)
                raise
            if found.is_dir:
                self._path.append(name)
                self._enter(layers, fds)

    def _look(self, level: _Level, name: bytes) -> tuple[WalkedFile | None, list[int], list[int]]:
        """What the layers of ``level`` show at ``name``; for a directory with its parts, opened."""
        first: WalkedFile | None = None
        layers: list[int] = []
        fds: list[int] = []
        path = b"/".join((*self._path, name))
        if len(path) >= PATH_MAX:
            raise too_long(path)
        for at, layer in enumerate(level.layers):
            try:
                info = os.stat(name, dir_fd=level.fds[at], follow_symlinks=False)
            except FileNotFoundError:
                continue
            if not stat.S_ISDIR(info.st_mode):
                if first is None:
                    whiteout = self._is_whiteout(level, at, name, info)
                    if not whiteout or self._raw:
                        return WalkedFile(path, info, layer, level.fds[at], name, whiteout=whiteout), [], []
                break
            fd = os.open(name, _DIRECTORY, dir_fd=level.fds[at])
            fds.append(fd)
            layers.append(layer)
            opaque = whiteouts.opaque(fd, self._prefix) == whiteouts.HIDES
            first = first or WalkedFile(path, info, layer, level.fds[at], name, opaque)
            if opaque:
                break
        return first, layers, fds

    def _is_whiteout(self, level: _Level, at: int, name: bytes, info: os.stat_result) -> bool:
        if whiteouts.is_whiteout(info):
            return True
        if not level.has_marked[at] or info.st_size:
            return False
        return whiteouts.is_marked(info, all_xattrs(b"/proc/self/fd/%d/%s" % (level.fds[at], name)), self._prefix)

    # -- directories -----------------------------------------------------------------------------------------------------------------

    def _enter(self, layers: list[int], fds: list[int]) -> None:
        ids = [(info.st_dev, info.st_ino) for info in map(os.fstat, fds)]
        level = _Level(layers, fds, ids)
        self._levels.append(level)
        self._open += len(fds)
        names: set[bytes] = set()
        for fd in fds:
            names.update(os.fsencode(entry) for entry in os.listdir(fd))
        level.todo = sorted(names, reverse=True)
        level.has_marked = tuple(whiteouts.opaque(fd, self._prefix) == whiteouts.HAS_MARKED for fd in fds)
        for above in self._levels[:-1]:
            if self._open <= _OPEN_MAX:
                break
            self._release(above)

    def _leave(self) -> None:
        self._release(self._levels.pop())
        if self._path:
            self._path.pop()

    def _release(self, level: _Level) -> None:
        self._open -= len(level.fds)
        while level.fds:
            os.close(level.fds.pop())

    def _reopen(self, level: _Level) -> None:
        """The way down again from the roots, if the directory was let go of."""
        if level.fds:
            return
        for layer, expected in zip(level.layers, level.ids, strict=True):
            fd = os.open(".", _DIRECTORY, dir_fd=self._roots[layer])
            try:
                for name in self._path:
                    below = os.open(name, _DIRECTORY, dir_fd=fd)
                    os.close(fd)
                    fd = below
                info = os.fstat(fd)
                if (info.st_dev, info.st_ino) != expected:
                    raise changed(b"/".join(self._path))
            except BaseException:
                os.close(fd)
                raise
            level.fds.append(fd)
            self._open += 1


def all_xattrs(path: bytes) -> dict[bytes, bytes]:
    """Of what it names, which is not followed."""
    try:
        names = map(os.fsencode, os.listxattr(path, follow_symlinks=False))
        return {key: os.getxattr(path, key, follow_symlinks=False) for key in names}
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENODATA):
            raise
        return {}


def too_long(path: bytes) -> ImageError:
    why = f"the path {show(path)} … is longer than {PATH_MAX - 1} bytes, which no image can hold"
    return ImageError(why, subject=show(path), hint="remove that directory first")


def changed(path: bytes) -> ImageError:
    return ImageError(
        f"{show(path)} was changed while it was read", subject=show(path), hint="stop the sandbox first, or freeze it while it is read"
    )
