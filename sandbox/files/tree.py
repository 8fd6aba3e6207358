"""What travels in a copy, whichever way: items, each after the directory that it is in, and the bounds that hold them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator

from dockless.base.dataclass import dataclass, field
from dockless.base.typing import Literal

Kind = Literal["file", "directory", "link", "hardlink", "special"]
Progress = Callable[[int, int], None]
"""Called with the files and bytes that were copied so far."""
NOTHING: Iterator[bytes] = iter(())


@dataclass(frozen=True, slots=True)
class Item:
    """``path``: below what is copied, empty for itself. ``modified``: nanoseconds since 1970. ``size``: of a file, as it was seen;
    ``content``: of a file, to its end, in whole chunks but the last. ``target``: where a link leads; the path of a hard link's file, of a
    tar alone."""

    path: bytes
    kind: Kind
    mode: int
    modified: int
    size: int = 0
    content: Iterator[bytes] = NOTHING
    target: bytes = b""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy has copied. ``size``: bytes of files' contents. ``skipped``: paths and why they were left out: special
    files, links that would lead out of what was copied, the end of a file that became shorter; the first 1,000 of
    ``skipped_count``."""

    files: int
    directories: int
    links: int
    size: int
    skipped: tuple[tuple[str, str], ...] = ()
    skipped_count: int = 0


_NOTED = 1000
_NAME, _NAMES = 256, 1 << 20
"""Bytes of paths for each file that may be copied, and for all in any case: so much is held in memory."""


class Beyond(OSError):
    """A copy has grown beyond ``bound``, its ``max_size`` or ``max_files``."""

    bound = ""


@dataclass(slots=True)
class Tally:
    """Counts a copy, and ends it where it grows beyond its bounds: ``OSError`` (EFBIG)."""

    max_size: int
    max_files: int
    progress: Progress | None = None
    files: int = 0
    directories: int = 0
    links: int = 0
    size: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    skipped_count: int = 0
    names: int = 0

    def item(self, item: Item) -> None:
        self.files += item.kind in ("file", "hardlink")
        self.names += len(item.path)
        self.directories += item.kind == "directory"
        self.links += item.kind == "link"
        if self.files + self.directories + self.links + self.skipped_count > self.max_files:
            raise self._beyond(f"More than {self.max_files} file{'' if self.max_files == 1 else 's'}", item.path, "max_files")
        if self.names > max(_NAMES, self.max_files * _NAME):
            raise self._beyond("More names than memory is for", item.path, "max_files")
        if self.progress is not None:
            self.progress(self.files, self.size)

    def chunk(self, item: Item, size: int) -> None:
        self.size += size
        if self.size > self.max_size:
            raise self._beyond(f"More than {self.max_size} bytes", item.path, "max_size")
        if self.progress is not None:
            self.progress(self.files, self.size)

    def skip(self, item: Item, why: str) -> None:
        self.links -= item.kind == "link"
        self.note_skipped(item, why)

    def note_skipped(self, item: Item, why: str) -> None:
        self.skipped_count += 1
        if len(self.skipped) < _NOTED:
            self.skipped.append((os.fsdecode(item.path), why))

    @staticmethod
    def _beyond(what: str, path: bytes, bound: str) -> Beyond:
        error = Beyond(errno.EFBIG, what, os.fsdecode(path))
        error.bound = bound
        error.add_note(f"what was copied until then is there; raise {bound} to copy all of it")
        return error

    def copied(self) -> Copied:
        return Copied(self.files, self.directories, self.links, self.size, tuple(self.skipped), self.skipped_count)


def leads_out(path: bytes, target: bytes) -> bool:
    """Whether a link at ``path`` could lead out of the tree that it is in, wherever other such links lead.

    ``..`` counts only in front, where it leaves directories that are no links: behind a name it would leave whatever that name leads to.
    """
    names = [name for name in target.split(b"/") if name not in (b"", b".")]
    up = 0
    while up < len(names) and names[up] == b"..":
        up += 1
    return target.startswith(b"/") or not target or b".." in names[up:] or up > path.count(b"/")


@contextlib.contextmanager
def below(base: bytes) -> Iterator[None]:
    """Errors inside that name a path below this one name it whole, as text."""
    try:
        yield
    except OSError as error:
        name = os.fsdecode(error.filename) if error.filename is not None else ""
        if name:
            error.filename = os.path.join(os.fsdecode(base), name)
        raise


def joined(above: bytes, name: bytes) -> bytes:
    return above + b"/" + name if above else name


@dataclass(frozen=True, slots=True)
class Landing:
    """Where a copy arrives. ``name``: appended to the target, empty for the target itself. ``merged``: the target is a directory that is
    there, and gets the contents of the source."""

    name: bytes = b""
    merged: bool = False


def landing(source: bytes, source_is_directory: bool, target: bytes, target_is: Literal["missing", "file", "directory"]) -> Landing:
    """As ``docker cp`` has it: into a directory that is there, by the source's name, or for ``DIR/.`` its contents alone; else as the
    target itself. ``NotADirectoryError``, ``FileNotFoundError``"""
    wants_directory = target.endswith((b"/", b"/.")) or target in (b".", b"..")
    contents = source.endswith(b"/.") or source in (b".", b"/", b"/.")
    if not source_is_directory:
        if source.endswith((b"/", b"/.")):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fsdecode(source))
        if target_is == "directory":
            return Landing(os.path.basename(source))
        if wants_directory:
            number = errno.ENOENT if target_is == "missing" else errno.ENOTDIR
            raise OSError(number, os.strerror(number), os.fsdecode(target))
        return Landing()
    if target_is == "file":
        raise NotADirectoryError(errno.ENOTDIR, "A directory cannot be copied over a file", os.fsdecode(target))
    if target_is == "missing":
        return Landing()
    name = os.path.basename(source.rstrip(b"/"))
    return Landing(merged=True) if contents or name in (b"", b"..") else Landing(name)
