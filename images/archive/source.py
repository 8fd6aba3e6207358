"""Where images come from: a directory, or a tar archive in any compression. Both answer ``open(name)``; the loader needs no more.

Names are keys, never host paths: in a directory they are resolved inside it, links included (the official busybox layouts keep their blobs
behind links); in an archive they are looked up in an index of its members, and links are followed by name. A compressed archive is first
decompressed to an unnamed file in the store, because its members are needed in another order than they come.
"""

from __future__ import annotations

import io
import os
import posixpath
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dockless.base.typing import BinaryIO, Protocol
from dockless.errors import BadImage, BadInput, ImageError
from dockless.images.files import check_room
from dockless.images.layers.compression import CHUNK, MAGIC_LENGTH, Decompressed, detect
from dockless.images.layers.layer import explained
from dockless.images.layers.layers import Layer
from dockless.images.layers.merged import Merged
from dockless.native.layers import TAR_BLOCK, Member, TarLister

MEMBERS_MAX = 100_000
_NAME_BYTES_MAX = 32 << 20
_NAMES_MAX = 1000
_LINKS_MAX = 10
_ROOM_STEP = 64 << 20


class ArchiveSource(Protocol):
    """A place that holds named files."""

    what: str

    def open(self, name: str) -> BinaryIO | None:
        """The file ``name`` for reading, None if there is none."""

    def names(self) -> list[str]:
        """Some names at the top, for error messages."""

    def close(self) -> None: ...


class DirectorySource:
    """A directory of the caller's."""

    def __init__(self, path: Path) -> None:
        self.what = str(path)
        self._path = path
        try:
            self._tree = Merged([Layer(path.resolve())])
        except OSError as error:
            raise BadInput(f"cannot open {path}: {error.strerror}", subject=str(path)) from error

    def open(self, name: str) -> BinaryIO | None:
        node = self._tree.lookup(os.fsencode(name))
        return self._tree.open_file(node) if node is not None else None

    def names(self) -> list[str]:
        return sorted(os.listdir(self._path))[:_NAMES_MAX]

    def close(self) -> None:
        self._tree.close()


class TarSource:
    """A tar archive in a seekable file; takes the file over. ``BadImage`` where it is torn or no archive at all."""

    def __init__(self, file: BinaryIO, what: str) -> None:
        self.what = what
        self._file = file
        self._files: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        self._top: set[str] = set()
        for member in _members(file, what):
            name = _clean(member.name.decode("utf-8", "surrogateescape"))
            if name is None:
                continue
            if len(self._top) < _NAMES_MAX:
                self._top.add(name.partition("/")[0])
            self._files.pop(name, None)
            self._links.pop(name, None)
            link = member.link.decode("utf-8", "surrogateescape")
            if member.kind == "file" and member.sparse is None:
                self._files[name] = (member.offset, member.size)
            elif member.kind == "symlink" and not link.startswith("/"):
                target = _clean(posixpath.normpath(posixpath.join(posixpath.dirname(name), link)))
                if target is not None:
                    self._links[name] = target
            elif member.kind == "hardlink" and (target := _clean(link)) is not None:
                self._links[name] = target

    def open(self, name: str) -> BinaryIO | None:
        found: str | None = _clean(name)
        for _ in range(_LINKS_MAX):
            if found is None or found in self._files:
                break
            found = self._links.get(found)
        if found is None or found not in self._files:
            return None
        return io.BufferedReader(_Slice(self._file.fileno(), *self._files[found]), CHUNK)

    def names(self) -> list[str]:
        return sorted(self._top)

    def close(self) -> None:
        self._file.close()


def _members(file: BinaryIO, what: str) -> Iterator[Member]:
    """The members of an archive, as far as an image can have so many; data are passed over by seeking."""
    lister = TarLister(MEMBERS_MAX)
    names = 0
    with explained(what):
        while not lister.ended and (piece := file.read(CHUNK)):
            lister.feed(piece)
            for member in lister.members:
                names += len(member.name) + len(member.link)
                if names > _NAME_BYTES_MAX:
                    return
                yield member
            lister.members.clear()
            if lister.left > CHUNK:
                # The last byte is read, so that an archive that ends too early is still noticed.
                skipped = lister.left - 1
                file.seek(skipped, os.SEEK_CUR)
                lister.skip(skipped)
        lister.finish()


class _Slice(io.RawIOBase):
    """``size`` bytes from ``offset`` of a file, by pread: several can be read at once."""

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self._fd, self._offset, self._left = fd, offset, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = min(len(buffer), self._left)
        count = os.preadv(self._fd, [memoryview(buffer)[:count]], self._offset) if count else 0
        self._offset += count
        self._left -= count
        return count


def open_source(path: Path, scratch: Path, size_max: int) -> ArchiveSource:
    """The source at ``path``. ``scratch``: a directory for decompressing, at most ``size_max`` bytes."""
    try:
        info = path.stat()
    except OSError as error:
        raise BadInput(
            f"cannot open {path}: {error.strerror}",
            subject=str(path),
            hint="give an OCI layout (directory or tar) or a docker-save archive",
        ) from error
    if stat.S_ISDIR(info.st_mode):
        return DirectorySource(path)
    if not stat.S_ISREG(info.st_mode):
        raise BadInput(f"{path} is neither a file nor a directory", subject=str(path), hint="write the stream to a file first")
    try:
        file: BinaryIO = open(path, "rb")  # noqa: SIM115 - the source owns it
    except OSError as error:
        raise BadInput(f"cannot open {path}: {error.strerror}", subject=str(path)) from error
    try:
        head = file.read(MAGIC_LENGTH)
        file.seek(0)
        if detect(head) != "none":
            with file:
                file = _spool(file, str(path), scratch, size_max)
        elif info.st_size < TAR_BLOCK:
            raise BadImage(f"{path} is not an image: it has only {info.st_size} bytes", subject=str(path))
        elif head[:4] == b"\x7fELF":
            raise BadImage(f"{path} is a program, not an image", subject=str(path), hint="build an image that contains it")
        return TarSource(file, str(path))
    except BaseException:
        file.close()
        raise


def _spool(file: BinaryIO, what: str, scratch: Path, size_max: int) -> BinaryIO:
    out = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 - handed on
    try:
        stream = Decompressed(file, what)
        done = checked = 0
        while piece := stream.read(CHUNK):
            done += len(piece)
            if done > size_max:
                raise ImageError(f"{what} decompresses to more than {size_max} bytes", subject=what, hint="raise the limits of the store")
            if done > checked:
                check_room(out.fileno(), len(piece), what)
                checked = done + _ROOM_STEP
            out.write(piece)
        out.flush()
        out.seek(0)
    except BaseException:
        out.close()
        raise
    return out


def _clean(name: str) -> str | None:
    """``./a//b`` as ``a/b``; None for the root and for names that lead out of it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return "/".join(parts) if parts and ".." not in parts else None
